"""Clocks: nothing that ranks, workers or the controller decide depends on the time of day, which may jump."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# Where the time of day has a part, and why it does no harm there.
WALL = {
    "controller/database/store.py": "where a new database's generations begin; a switch's mark counts more",
    "controller/database/revisions.py": "when a configuration was applied, for people",
    "controller/security/authority.py": "validity of certificates",
    "controller/security/channels.py": "validity of certificates",
    "controller/security/checking.py": "validity of certificates",
    "controller/security/certificates.py": "validity of certificates",
}
NATIVE = ("system_clock", "CLOCK_REALTIME", "gettimeofday")
TIMES = {"time", "time_ns", "localtime", "gmtime", "ctime", "strftime"}


def of_day(source: str) -> bool:
    """Tell whether Python code reads the time of day: `datetime.now`, `time.time`, CLOCK_REALTIME."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(value=ast.Name(id="time"), attr=name) if name in TIMES:
                return True
            case ast.Attribute(attr="CLOCK_REALTIME"):
                return True
            case ast.Attribute(value=ast.Name(id="datetime") | ast.Attribute(attr="datetime")):
                return True
            case ast.ImportFrom(module="time", names=names) if TIMES & {name.name for name in names}:
                return True
            case ast.ImportFrom(module="datetime", names=names) if "datetime" in {n.name for n in names}:
                return True
    return False


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import time\nat = time.time()", True),
        ("from time import time", True),
        ("import datetime\nat = datetime.datetime.now()", True),
        ("import time\nat = time.clock_gettime_ns(time.CLOCK_REALTIME)", True),
        ("import time\nat = time.monotonic()\ntime.sleep(1)", False),
    ],
)
def test_code_that_reads_the_time_of_day_is_found(source: str, found: bool) -> None:
    assert of_day(source) == found


def test_no_decision_depends_on_the_time_of_day() -> None:
    files = [path for top in ("controller", "host_agent") for path in (ROOT / top).rglob("*.py")]
    assert len(files) > 100
    reads = {str(path.relative_to(ROOT)) for path in files if of_day(path.read_text())}
    assert reads <= WALL.keys()
    native = [path for path in (ROOT / "host_agent" / "native").iterdir() if path.suffix in (".cpp", ".h")]
    assert native
    assert not [path.name for path in native if any(word in path.read_text() for word in NATIVE)]

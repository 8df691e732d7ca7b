"""Tests of the native code under sanitizers: `python -m tests.sanitized KIND [TESTS AND OPTIONS OF PYTEST]`.

KIND is `address` (AddressSanitizer and UndefinedBehaviorSanitizer) or `thread` (ThreadSanitizer). The tree
is copied, so that nothing here is built over. In the copy, the agent, the switch's engine and the programs
that it compiles are built with a compiler that adds the sanitizer, and what runs has the sanitizer's library
loaded first. A finding ends the process that it is in (`address`), or makes its exit code 66 (`thread`).

    python -m tests.sanitized address --keep /tmp/address tests/host_agent/transport -k selective
    python -m tests.sanitized address --keep /tmp/address --run tests.security.fuzz agent --runs 20000
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
NOT_COPIED = shutil.ignore_patterns(".*", "*.so", "*.egg-info", "__pycache__")
ALWAYS = ("-g1", "-O1", "-fno-omit-frame-pointer")
# A sanitizer writes to standard error itself: pytest would keep that, and lose it with a process that ends.
PYTEST = ("-q", "--capture=sys", "-p", "no:faulthandler", "-p", "no:cacheprovider", "--timeout=1800")


@dataclass(frozen=True)
class Kind:
    """A sanitizer: how it is built in and loaded, and the tests that it is for."""

    flags: tuple[str, ...]
    library: str
    options: dict[str, str]
    tests: tuple[str, ...]


AGENT = (
    "tests/host_agent/transport",
    "tests/host_agent/test_communicator.py",
    "tests/host_agent/test_on_veths.py",
    "tests/p4reduce/workloads/capture/test_player.py",
)
SWITCH = (
    "tests/soft_switch/test_dataplane.py",
    "tests/soft_switch/test_fault_control.py",
    "tests/soft_switch/test_faults.py",
    "tests/soft_switch/test_ports.py",
    "tests/soft_switch/server/test_on_dataplane.py",
    "tests/soft_switch/server/test_packets.py",
    "tests/soft_switch/server/test_ticker.py",
)

KINDS = {
    "address": Kind(
        ("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
        "libasan.so",
        {
            "ASAN_OPTIONS": "detect_leaks=0:detect_odr_violation=0:allocator_may_return_null=1",
            "UBSAN_OPTIONS": "print_stacktrace=1",
            "PYTHONMALLOC": "malloc",  # so that Python's own bytes have bounds, too
        },
        (*AGENT, "tests/host_agent/test_quantisation.py", "tests/security/test_fuzz.py", *SWITCH),
    ),
    "thread": Kind(
        ("-fsanitize=thread",),
        "libtsan.so",
        {"TSAN_OPTIONS": "ignore_noninstrumented_modules=1:exitcode=66:die_after_fork=0"},
        (*AGENT, *SWITCH),
    ),
}


def main() -> int:
    """Run the tests, and return the exit code of pytest, or of what broke before."""
    parser = argparse.ArgumentParser(prog="sanitized", description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="where the copy stays, to be built upon again"
    )
    parser.add_argument(
        "--run", metavar="MODULE", help="python -m MODULE instead of pytest, with the options"
    )
    options, chosen = parser.parse_known_args()
    kind = KINDS[options.kind]
    with tempfile.TemporaryDirectory(prefix="sanitized-") as temporary:
        folder: Path = (options.keep or Path(temporary)).absolute()
        environment = build(kind, folder)
        command = ["pytest", *PYTEST, *(chosen or kind.tests)]
        if options.run is not None:
            command = [options.run, *chosen]
        print(f"== {options.kind}: {shlex.join(command)}", flush=True)
        return subprocess.run(
            [sys.executable, "-m", *command], cwd=folder / "tree", env=environment, check=False
        ).returncode


def build(kind: Kind, folder: Path) -> dict[str, str]:
    """Build the native parts in a copy of the tree in the folder; return the environment to run it in."""
    tree = folder / "tree"
    shutil.copytree(ROOT, tree, ignore=not_copied, symlinks=True, dirs_exist_ok=True)
    environment = {
        **os.environ,
        **kind.options,
        "CC": str(compiler("gcc", kind, folder)),
        "CXX": str(compiler("g++", kind, folder)),
        "PYTHONPATH": str(tree),
        "XDG_CACHE_HOME": str(folder),
        # Its handlers of a fork that is to run a command fail now and then in a process that is so slow.
        "GRPC_ENABLE_FORK_SUPPORT": "0",
    }
    subprocess.run(
        [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"],
        cwd=tree,
        env=environment,
        check=True,
    )
    # libstdc++ as well: the sanitizer looks for what it wraps of it when it begins.
    return {**environment, "LD_PRELOAD": " ".join(library(name) for name in (kind.library, "libstdc++.so.6"))}


def not_copied(folder: str, names: list[str]) -> set[str]:
    """Return the names of files and folders that are not copied: those that were built here."""
    here = {"build", "dist"} if Path(folder) == ROOT else set()
    return {*NOT_COPIED(folder, names), *here}


def compiler(name: str, kind: Kind, folder: Path) -> Path:
    """Write a compiler that adds the sanitizer to all that it is told, and runs without its library."""
    script = folder / name
    script.write_text(f'#!/bin/sh\nunset LD_PRELOAD\nexec {name} "$@" {shlex.join((*ALWAYS, *kind.flags))}\n')
    script.chmod(0o755)
    return script


def library(name: str) -> str:
    """Return the path at which g++ has a library."""
    found = subprocess.run(["g++", f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    path = found.stdout.strip()
    if not Path(path).is_absolute():
        raise SystemExit(f"g++ has no {name}: install libasan, libtsan and libubsan of its version")
    return path


if __name__ == "__main__":
    sys.exit(main())

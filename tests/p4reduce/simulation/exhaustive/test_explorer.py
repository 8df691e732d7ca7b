"""Small scopes hold in every order, each state counted once; and what is planted is found."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from host_agent.transport import native
from p4reduce.oracle.rules import Sends
from p4reduce.oracle.slot_rules import SwitchModel
from p4reduce.simulation.exhaustive.catalogue import UnknownScopeError, explorer_of, scope_of
from p4reduce.simulation.exhaustive.explorer import Explorer
from p4reduce.simulation.exhaustive.found import Found
from p4reduce.simulation.exhaustive.scopes import HALF, SCOPES, Earlier, Scope
from tests.p4reduce.simulation.defects import (
    duplicates_are_added,
    foreign_packets_are_forwarded,
    generations_are_ignored,
    one_window_of_slots,
    sums_go_out_before_all_are_there,
)
from tests.p4reduce.simulation.planted import Planted, change_rule, sets

SHORT = [name for name in SCOPES if not name.startswith("large")]
NATIVE = Path(native.__file__).parent.parent / "native"


@pytest.mark.slow
@pytest.mark.parametrize("name", SHORT)
def test_a_scope_holds(name: str) -> None:
    found = Explorer(SCOPES[name]).explore()
    assert not found.wrong
    assert not found.interrupted
    assert found.ends >= 1
    assert found.checks["ways to an end"] == found.states


def figures(found: Found) -> list[Any]:
    """Return what an exploration came to, as numbers."""
    return [found.states, found.transitions, found.ends, found.depth, found.checks]


@pytest.mark.parametrize("name", ["trio", pytest.param("control-trio", marks=pytest.mark.slow)])
def test_a_scope_is_explored_alike_every_time(name: str) -> None:
    one, other = (explorer_of(scope_of(name)).explore() for _ in range(2))
    assert figures(one) == figures(other)
    assert not one.wrong


@pytest.mark.parametrize("name", ["trio", "adapters", "all-the-way"])
def test_what_is_left_out_makes_no_difference_to_the_ends(name: str) -> None:
    """The reduced graph has the same ends, from everywhere one is reached, and fewer states."""
    scope = replace(SCOPES[name], lost=1, anything=0)
    less, all_of_it = Explorer(scope).explore(), Explorer(replace(scope, reduced=False)).explore()
    assert not less.wrong
    assert not all_of_it.wrong
    assert less.ends == all_of_it.ends
    assert less.states < all_of_it.states


class Unturned(Explorer):
    """Counts states that differ in the ranks alone as others."""

    def key(self, state: Any) -> bytes:
        return repr(self._turned(state, 0)).encode()


def test_states_that_are_the_same_with_the_ranks_turned_are_counted_once() -> None:
    scope = replace(SCOPES["trio"], lost=0)
    once, apart = Explorer(scope).explore(), Unturned(scope).explore()
    assert not once.wrong
    assert not apart.wrong
    assert once.states < apart.states <= 3 * once.states
    assert once.depth == apart.depth


def test_a_state_is_reached_again_by_what_led_there() -> None:
    """Endpoints are not kept for ever; one that is made anew does the same."""
    kept = Explorer(SCOPES["trio"]).explore()
    explorer = Explorer(SCOPES["trio"])
    step = explorer.hosts.step

    def forgetful(rank: int, state: int, given: int) -> Any:
        explorer.hosts.live[rank].clear()
        return step(rank, state, given)

    explorer.hosts.step = forgetful  # type: ignore[method-assign]
    again = explorer.explore()
    assert figures(kept) == figures(again)


def test_an_unknown_scope_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(UnknownScopeError, match="no scope 'none': known are pair, "):
        scope_of("none")


# Planted defects.


def every_duplicate_is_told_to_wait(patch: pytest.MonkeyPatch) -> None:
    """Tell every duplicate to wait, though its receiver may lack what was before it."""
    change_rule(patch, "3 duplicate", sends=Sends.NOT_READY)


def nothing(patch: pytest.MonkeyPatch) -> None:
    """Change nothing: the scope has the defect, in something that the controller or the agent sees to."""


def changed(name: str, **changes: Any) -> Scope:
    return replace(SCOPES[name], **changes)


PLANTED = [
    Planted("W slots", one_window_of_slots, SCOPES["pair"], "overwrites the slot"),
    Planted("bitmap not looked at", duplicates_are_added, SCOPES["pair-packets"], "is no sum of ranks"),
    Planted("early sums", sums_go_out_before_all_are_there, SCOPES["pair"], "call 1 has"),
    Planted("nothing placed", foreign_packets_are_forwarded, SCOPES["trio"], "no end can be reached"),
    Planted("generations ignored", generations_are_ignored, SCOPES["renewed"], "not a result"),
    Planted(
        "signature not compared",
        sets(SwitchModel, "compare", lambda *_, **__: False),
        SCOPES["disagree"],
        "has a sum, and the ranks do not agree",
    ),
    Planted(
        "every duplicate waits",
        every_duplicate_is_told_to_wait,
        changed("adapters", anything=2),
        "hears that all",
    ),
    Planted(
        "records of an earlier stay", nothing, changed("moved-back", earlier=Earlier(0, 7)), "call 1 has"
    ),
    Planted(
        "awaited PSN of an earlier stay",
        nothing,
        changed("adapters-moved-back", earlier=Earlier(0, 7)),
        "no answer after 3 retries",
    ),
    Planted("2^31 messages", nothing, changed("long-untouched", first_message=HALF + 8), "no end can be"),
    Planted(
        "queue pair numbers again",
        nothing,
        changed("renewed", qpns_again=True),
        "expected job 3, generation 8",
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.name)
def test_a_planted_defect_is_found(planted: Planted, monkeypatch: pytest.MonkeyPatch) -> None:
    planted.require_found(monkeypatch)


# Of the native endpoints: a copy of them with a condition changed.


@dataclass(frozen=True)
class NativeDefect:
    name: str
    path: str
    right: str
    wrong: str
    scope: Scope
    says: str


NATIVE_DEFECTS = [
    NativeDefect(
        "unmarked",
        "responder.cpp",
        "!packet.summed",
        "!(packet.summed || planted(%s))",
        SCOPES["restart"],
        "call",
    ),
    NativeDefect(
        "message0",
        "outbox.cpp",
        "if (begun_ &&",
        "if ((planted(%s) ? next_message_ != 0 : begun_) &&",
        SCOPES["all-the-way"],
        "is not drained",
    ),
]
COMPILER = ["g++", "-std=c++17", "-O0", "-fPIC", "-fvisibility=hidden"]
SWITCHED = """
#include <cstdlib>
#include <cstring>
static bool planted(const char *name) {
    const char *set = getenv("P4REDUCE_PLANTED");
    return set != nullptr && strcmp(set, name) == 0;
}
"""


@pytest.fixture(scope="module")
def breakable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the native library with defects that the environment switches on."""
    folder = tmp_path_factory.mktemp("native")
    shutil.copytree(NATIVE, folder / "native")
    for defect in NATIVE_DEFECTS:
        source = folder / "native" / defect.path
        text = source.read_text()
        assert text.count(defect.right) == 1
        source.write_text(SWITCHED + text.replace(defect.right, defect.wrong % f'"{defect.name}"'))

    def compiled(source: Path) -> str:
        made = source.with_suffix(".o")
        subprocess.run([*COMPILER, "-c", str(source), "-o", str(made)], check=True)
        return str(made)

    with ThreadPoolExecutor(os.cpu_count()) as workers:
        objects = list(workers.map(compiled, sorted((folder / "native").glob("*.cpp"))))
    library = folder / "_native.so"
    subprocess.run(["g++", "-shared", "-pthread", *objects, "-o", str(library)], check=True)
    return library


@pytest.fixture
def broken_library(breakable: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    monkeypatch.setattr(native, "LIBRARY", breakable)
    native.library.cache_clear()
    yield monkeypatch
    native.library.cache_clear()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("defect", NATIVE_DEFECTS, ids=lambda defect: defect.name)
def test_a_defect_of_the_endpoints_is_found(defect: NativeDefect, broken_library: pytest.MonkeyPatch) -> None:
    assert not Explorer(defect.scope).explore().wrong
    broken_library.setenv("P4REDUCE_PLANTED", defect.name)
    found = Explorer(defect.scope).explore()
    assert found.wrong
    assert defect.says in found.wrong

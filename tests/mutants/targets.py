"""The files whose mutants are looked for, and by what: the tests that are nearest first, then wider ones."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from tests.mutants import rules
from tests.mutants.finding import ROOT, Scope, Seeds, Step, Tests, import_changed
from tests.mutants.making import Mutant, mutants_of

SEEDS: Final = (Seeds(1, 100), Seeds(101, 2000))


@dataclass(frozen=True)
class Target:
    """`steps`: in their order, until one finds a mutant."""

    mutants: Callable[[], list[Mutant]]
    steps: tuple[Step, ...]


def of_file(path: str) -> Callable[[], list[Mutant]]:
    """Return a function that makes whatever mutants a Python file has."""

    def make() -> list[Mutant]:
        file = ROOT / path
        tree = ast.parse(file.read_text())

        def changed(mutant: Mutant) -> Mutant:
            def change() -> None:
                mutant.change()
                import_changed(file, tree)

            return replace(mutant, change=change)

        return [changed(mutant) for mutant in mutants_of(file, path, tree)]

    return make


def _scopes(*names: str) -> tuple[Step, ...]:
    return tuple(map(Scope, names))


# Those that end soon come first.
_CONTROL: Final = _scopes(
    "control-pair",
    "control-kill",
    "control-elastic",
    "control-break",
    "control-crash",
    "control-renumber",
    "control-move",
)
_GANG: Final = _scopes(
    "gang-pair",
    "gang-cancel-one",
    "gang-differ",
    "gang-leave",
    "gang-strict",
    "gang-elastic-restart",
    "gang-elastic-kill",
)
_ORACLE: Final = Tests(("tests/p4reduce/oracle",))
_PROGRAM: Final = Tests(("tests/p4src/test_rules.py",), marks="not emulation and not long")
# The second takes ten times as long.
_AGAINST_MODEL: Final = tuple(
    Tests((f"tests/p4src/{name}.py",), marks="not emulation and not long")
    for name in ("test_against_model", "test_fabric_against_model")
)
_PAIRS: Final = _scopes("pair", "pair-packets", "trio")
# Not test_rules.py there: what says the same in another place is not behaviour.
_BEHAVIOUR: Final = tuple(
    Tests((f"tests/p4reduce/oracle/test_{name}.py",)) for name in ("rows", "slot_rules", "tree")
)
_SIMULATION: Final = Tests(("tests/p4reduce/simulation",))

TARGETS: Final[dict[str, Target]] = {
    "host_agent/member.py": Target(
        of_file("host_agent/member.py"),
        (
            Tests(("tests/host_agent/test_member.py",)),
            *_CONTROL,
            SEEDS[0],
            Tests(("tests/host_agent/test_execution.py",)),
            *SEEDS[1:],
        ),
    ),
    "host_agent/session.py": Target(
        of_file("host_agent/session.py"),
        (
            Tests(("tests/host_agent/test_session.py",)),
            *_CONTROL,
            SEEDS[0],
            Tests(("tests/host_agent/test_controller_session.py",)),
            *SEEDS[1:],
        ),
    ),
    "host_agent/machine/gang.py": Target(
        of_file("host_agent/machine/gang.py"),
        (
            Tests(("tests/host_agent/machine/test_gang.py",)),
            *_GANG,
            SEEDS[0],
            Tests(("tests/host_agent/machine",)),
            *SEEDS[1:],
        ),
    ),
    "controller/jobs/states.py": Target(
        of_file("controller/jobs/states.py"),
        (
            Tests(("tests/controller/jobs/test_states.py",)),
            Tests(("tests/controller/jobs",)),
            *_CONTROL,
            SEEDS[0],
            Tests(("tests/controller/orchestration",)),
            *SEEDS[1:],
        ),
    ),
    "p4reduce/oracle/rules.py": Target(
        of_file("p4reduce/oracle/rules.py"), (_ORACLE, *_PAIRS, _PROGRAM, *_AGAINST_MODEL, *SEEDS)
    ),
    "p4reduce/oracle/slot_rules.py": Target(
        of_file("p4reduce/oracle/slot_rules.py"), (_ORACLE, *_PAIRS, _PROGRAM, *_AGAINST_MODEL, *SEEDS)
    ),
    "table:oracle": Target(
        rules.of_the_oracle,
        (
            Tests(("tests/p4reduce/oracle/test_rules.py",)),
            _ORACLE,
            Tests(("tests/p4src/test_rule_table.py",)),
        ),
    ),
    "table:program": Target(
        rules.of_the_program, (Tests(("tests/p4src/test_rule_table.py",)), _PROGRAM, *_AGAINST_MODEL)
    ),
    "table:both": Target(
        lambda: rules.of_the_oracle(columns=("writes", "sends", "counts"), rows=False),
        (*_BEHAVIOUR, *_PAIRS, SEEDS[0], _SIMULATION, *SEEDS[1:]),
    ),
}

"""Defects that are put in, and what the exploration of a small scope says of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from p4reduce.oracle import rules, slot_rules
from p4reduce.simulation.exhaustive.catalogue import explorer_of

NEVER = "nothing will ever happen again"
Broken = Callable[[pytest.MonkeyPatch], None]


def sets(where: Any, name: str, value: Any) -> Broken:
    """Return a defect that sets this attribute, and nothing else."""
    return lambda patch: patch.setattr(where, name, value)


def change_rule(patch: pytest.MonkeyPatch, name: str, **outcome: Any) -> None:
    """Change what the rule `name` writes, sends or counts, for every switch."""
    changed = {rule: rule._replace(**outcome) for rule in rules.RULES if rule.name == name}
    assert changed, f"there is no rule {name!r}"

    def rule_of(*case: Any) -> rules.Rule:
        rule = rules.rule_of(*case)
        return changed.get(rule, rule)

    patch.setattr(slot_rules, "rule_of", rule_of)


@dataclass(frozen=True)
class Planted:
    """`broken`: what is set where; `says`: what the exploration of `scope` ends with."""

    name: str
    broken: Broken
    scope: Any
    says: str

    def require_found(self, patch: pytest.MonkeyPatch) -> None:
        """Check that exploring says what is wrong, and that the choices that it found lead there."""
        self.broken(patch)
        found = explorer_of(self.scope).explore()
        assert found.wrong
        assert self.says in found.wrong
        *_, last = said = list(explorer_of(self.scope).play(found.choices))
        assert len(said) == len(found.choices) + 1
        at_an_end = any(text in found.wrong for text in (NEVER, "no end can be", "all workers are over"))
        assert at_an_end or last.strip() == found.wrong

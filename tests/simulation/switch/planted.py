"""Defects in the slot rules: another outcome in a row."""

from __future__ import annotations

from typing import Any

import pytest

from simulation.switch import rules, slot_rules


def change_rule(patch: pytest.MonkeyPatch, name: str, **outcome: Any) -> None:
    """For every switch: what the rule `name` writes, sends or counts instead."""
    changed = {rule: rule._replace(**outcome) for rule in rules.RULES if rule.name == name}
    assert changed, f"there is no rule {name!r}"

    def rule_of(*case: Any) -> rules.Rule:
        rule = rules.rule_of(*case)
        return changed.get(rule, rule)

    patch.setattr(slot_rules, "rule_of", rule_of)

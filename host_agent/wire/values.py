"""Frozen dataclasses of which there is one for every header of every packet.

Python makes a frozen instance field by field through `object.__setattr__`, which takes three times as long as
plain assignment. The type checker makes sure that nothing is assigned to later: for it, `value_class` is
`dataclass`. At run time it makes the same class without the guard.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass as value_class
else:
    from dataclasses import dataclass

    def value_class(*, frozen, **options):
        """Make the decorator: `@value_class(frozen=True)`, with the other options of `dataclass`."""
        assert frozen
        return dataclass(unsafe_hash=True, **options)


__all__ = ["value_class"]

"""Defects put into the model and the member, each by a patch."""

from __future__ import annotations

import pytest

from host_agent.member import Member
from host_agent.membership import View
from p4reduce.oracle import placement
from p4reduce.oracle.rules import Sends, Writes
from p4reduce.oracle.state import Owner, Slot, serial_age
from tests.p4reduce.simulation.planted import change_rule


def one_window_of_slots(patch: pytest.MonkeyPatch) -> None:
    def slot(self: Owner, message: int, index: int) -> Slot:
        return self.slots[message % self.window * self.packets + index]

    patch.setattr(Owner, "slot", slot)


def duplicates_are_added(patch: pytest.MonkeyPatch) -> None:
    change_rule(patch, "3 duplicate", writes=Writes.ADD, counts=("aggregated",))


def generations_are_ignored(patch: pytest.MonkeyPatch) -> None:
    def behind(self: Slot, tag: tuple[int, int]) -> bool:
        return self.tag is None or serial_age(self.tag[1], tag[1]) > 0

    patch.setattr(Slot, "behind", behind)


def sums_go_out_before_all_are_there(patch: pytest.MonkeyPatch) -> None:
    change_rule(patch, "1 claim", sends=Sends.SUM)


def foreign_packets_are_forwarded(patch: pytest.MonkeyPatch) -> None:
    """Leave every packet without a place, so that it is dropped: a run hangs."""
    patch.setattr(placement, "place", lambda job, flow, packet: None)


def ranks_change_over_at_once(patch: pytest.MonkeyPatch) -> None:
    """Let each worker see the new ranks from its own next call on, wherever the others are."""
    change_over = Member._change_over

    def at_once(self: Member, view: View, first: int) -> None:
        change_over(self, view, self.called)

    patch.setattr(Member, "_change_over", at_once)

"""Probes: when a link is down and when it is up again, and a probe's bytes."""

from __future__ import annotations

import pytest

from controller.fabric.graph import Graph, Link
from controller.fabric.probes import Prober, echo_request
from p4reduce.oracle.tree_packets import Kind, TreePacket
from tests.controller.bench import fabric

LINKS = Graph.of(fabric((1, 1), spines=1)).links
ONE, TWO = (link.name for link in LINKS)


class Line:
    """Probes every half second; `answers` says which links answer, after `delay` intervals."""

    def __init__(self, *, lost: int = 4, found: int = 3) -> None:
        self.prober = Prober(LINKS, interval_s=0.5, lost=lost, found=found)
        self.now = 100.0
        self.answers = {ONE, TWO}
        self.askable = {"l1", "l2"}
        self.delay = 0
        self.under_way: list[list[int]] = []

    def step(self) -> frozenset[str]:
        """Let half a second pass; return the links that are down then."""
        self.now += 0.5
        probes = self.prober.due(self.now, lambda link: link.leaf in self.askable)
        self.under_way.append([nonce for link, nonce in probes if link.name in self.answers])
        while len(self.under_way) > self.delay:
            for nonce in self.under_way.pop(0):
                self.prober.answer(nonce, self.now + 0.001)
        return self.prober.down

    def steps(self, count: int) -> list[frozenset[str]]:
        return [self.step() for _ in range(count)]


def test_a_link_that_answers_is_up() -> None:
    assert set(Line().steps(20)) == {frozenset()}


def test_several_answers_in_a_row_must_be_missing() -> None:
    line = Line()
    line.steps(3)
    line.answers = {TWO}
    assert line.steps(4) == [frozenset()] * 4  # the fourth has only just been sent
    assert line.steps(3) == [frozenset({ONE})] * 3
    assert line.prober.silent_for(ONE, line.now) == pytest.approx(3.5, abs=0.01)


def test_one_answer_in_between_is_enough_to_stay() -> None:
    line = Line()
    for _ in range(6):
        line.answers = set()
        assert line.steps(3) == [frozenset()] * 3
        line.answers = {ONE, TWO}
        assert line.step() == frozenset()


def test_several_good_ones_bring_it_back_and_a_bad_one_begins_anew() -> None:
    line = Line()
    line.answers = {TWO}
    line.steps(6)
    line.answers = {ONE, TWO}
    assert line.steps(2) == [frozenset({ONE})] * 2
    line.answers = {TWO}
    line.step()
    line.answers = {ONE, TWO}
    assert line.steps(3) == [frozenset({ONE})] * 3
    assert line.steps(2) == [frozenset()] * 2


def test_late_answers_are_answers() -> None:
    line = Line()
    line.delay = 3  # 1.5 s: a machine with other things to do
    line.steps(4)
    assert set(line.steps(40)) == {frozenset()}


def test_who_cannot_be_asked_stays_what_it_was() -> None:
    line = Line()
    line.answers = {TWO}
    line.steps(6)
    line.askable = set()
    assert line.steps(10) == [frozenset({ONE})] * 10
    line.askable, line.answers = {"l1", "l2"}, {ONE, TWO}
    assert line.steps(4)[-1] == frozenset()


def test_a_controller_that_slept_has_missed_nothing() -> None:
    line = Line()
    line.steps(3)
    for _ in range(6):
        line.now += 10.0
        assert line.step() == frozenset()


def test_what_was_not_sent_is_not_missed() -> None:
    line = Line()
    for _ in range(10):
        line.now += 0.5
        for _, nonce in line.prober.due(line.now, lambda link: True):
            line.prober.not_sent(nonce)
    assert line.prober.down == frozenset()


def test_an_interval_of_zero_is_off() -> None:
    assert Prober(LINKS, interval_s=0.0, lost=1, found=1).due(1e9, lambda link: True) == []


def test_the_frame_is_a_tree_packet_of_the_protocol() -> None:
    link = Link("l3", 102, "s2", 3, 1)
    frame = echo_request(link, leaf_id=3, spine_id=102, nonce=0xC0FFEE01)
    assert frame.hex() == (
        "027000660003" + "027000030066" + "0800"
        "4500003400004000" + "4011e653" + "a9fe0003" + "a9fe0066"
        "d034d034" + "00200000"
        "0104000000000000" + "00000000" + "c0ffee01" + "00000000"
        "1d0d7922"
    )
    packet = TreePacket.parse(frame)
    assert packet is not None
    assert packet.icrc_ok()
    assert (packet.kind, packet.message, packet.generation) == (Kind.ECHO_REQUEST, 0xC0FFEE01, 0)

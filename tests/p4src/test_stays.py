"""A job's stay in a switch: messages far apart, and what a later stay finds of an earlier one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from ipaddress import IPv4Address

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from controller.api.messages import Mode
from controller.fabric.routes import base_entries
from controller.fabric.trees import Tree, entries_on
from controller.jobs.specs import Plan
from controller.slots.allocator import Region
from host_agent.member import IN_NETWORK_LIMIT
from host_agent.wire.aggregation import Op
from host_agent.wire.headers import Ethernet, IPv4, RocePacket, Udp
from p4reduce.oracle.state import MOST_AGGREGATED
from p4reduce.oracle.tree_packets import Kind, TreeFlags, TreePacket
from tests.controller.bench import fabric, member
from tests.p4src.entry_pair import EntryPair
from tests.p4src.pair import LANES, Pair
from tests.p4src.rack import CompiledRack

pytestmark = pytest.mark.slow
MOST = IN_NETWORK_LIMIT + 2**28  # what begins before the limit may end here
assert MOST == MOST_AGGREGATED

# Aggregated messages of a generation, anywhere below 2^31, many of them in the same slots.
NUMBERS = st.lists(
    st.one_of(
        st.integers(0, 40),
        st.integers(2**30 - 20, 2**30 + 20),
        st.integers(IN_NETWORK_LIMIT - 20, IN_NETWORK_LIMIT + 20),
        st.integers(MOST - 20, MOST - 1),
        st.integers(0, MOST - 1),
    ),
    min_size=2,
    max_size=8,
    unique=True,
).map(sorted)


@pytest.fixture(scope="module")
def compiled() -> Iterator[CompiledRack]:
    rack = CompiledRack()
    yield rack
    rack.plane.close()


class FarPair(Pair):
    """Messages of two packets, any number of them apart; PSNs as if all were there.

    `others`: packets and op of the messages that are no sums of two packets.
    """

    others: Mapping[int, tuple[int, Op]] = {}

    def packets_of(self, message: int) -> int:
        return self.others.get(message, (2, Op.SUM))[0]

    def psn(self, rank: int, message: int, index: int) -> int:
        return (self.configs[rank].psn_out + 2 * message + index) % 2**24

    def op_of(self, message: int) -> Op:
        return self.others.get(message, (2, Op.SUM))[1]

    def lanes(self, rank: int, message: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        random = np.random.default_rng([rank, message])
        return random.integers(-(2**30), 2**30, LANES)

    def contribute(self, rank: int, message: int, index: int) -> list[tuple[int, bytes]]:
        packet = self.packet(rank, message, index, 1, 1)
        if index:
            packet = replace_payload(packet, self.lanes(rank, message).astype(">i4").tobytes())
        return self.both(rank + 1, packet.build())


def replace_payload(packet: RocePacket, payload: bytes) -> RocePacket:
    return RocePacket(ethernet=packet.ethernet, ip=packet.ip, udp=packet.udp, bth=packet.bth, payload=payload)


@settings(max_examples=60, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(numbers=NUMBERS, window=st.sampled_from([1, 2, 8]))
def test_messages_of_a_generation_may_be_any_distance_apart(
    compiled: CompiledRack, numbers: list[int], window: int
) -> None:
    pair = FarPair(compiled, world_size=2, window=window, check_icrc=True)
    for message in numbers:
        for index in (0, 1):
            assert pair.contribute(0, message, index) == []
            left = pair.contribute(1, message, index)
            assert [port for port, _ in sorted(left)] == [1, 2]
        total = pair.lanes(0, message) + pair.lanes(1, message)
        for _, frame in left:
            packet = RocePacket.parse(frame)
            assert np.array_equal(np.frombuffer(packet.payload, ">i4"), total.astype(np.int32))


def test_a_sum_behind_the_first_2_31_messages_never_leaves_in_part(compiled: CompiledRack) -> None:
    """Check a message whose First's slot was used since, and whose Last's was not.

    Without the rule, a sum would leave, and then a raw contribution.
    """
    pair = FarPair(compiled, world_size=2, window=1, check_icrc=True)
    far = 2**31 + 8
    pair.others = {2**30: (1, Op.SUM), 2**31 - 1: (1, Op.PASS), far + 1: (1, Op.PASS)}
    for message, index in ((0, 0), (0, 1), (2**30, 0)):
        assert pair.contribute(0, message, index) == []
        assert len(pair.contribute(1, message, index)) == 2
    for rank in (0, 1):
        assert len(pair.contribute(rank, 2**31 - 1, 0)) == 1
    for index in (0, 1):
        for rank in (0, 1):
            assert pair.contribute(rank, far, index) == []
    assert pair.counted("unplaced", "stale", "completed") == (4, 0, 3)
    for rank in (0, 1):  # the flows go on
        assert len(pair.contribute(rank, far + 1, 0)) == 1
    pair.assert_counters_agree()


@pytest.mark.parametrize("op", [Op.SUM, Op.MAX, Op.PASS])
def test_pass_messages_come_round_and_aggregated_ones_end_at_2_31(compiled: CompiledRack, op: Op) -> None:
    pair = FarPair(compiled, world_size=2, window=2, check_icrc=True)
    numbers = (MOST - 2, MOST - 1, MOST, MOST + 1, 2**32 - 9)
    around = (2**32 - 1, 0, 1) if op == Op.PASS else ()  # with the PSNs of messages that went through
    pair.others = dict.fromkeys(numbers + around, (2, op))
    for message in numbers + around:
        for index in (0, 1):
            left = [len(pair.contribute(rank, message, index)) for rank in (0, 1)]
            assert left == ([1, 1] if op == Op.PASS else [0, 2] if message < MOST else [0, 0])
    expected = (0, 0, 32) if op == Op.PASS else (12, 4, 0)
    assert pair.counted("unplaced", "completed", "passed") == expected
    pair.assert_counters_agree()


@settings(max_examples=40, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(numbers=NUMBERS)
def test_a_spine_that_was_left_takes_what_comes_whenever_it_comes(numbers: list[int]) -> None:
    spine = Spine()
    for message in numbers:
        assert spine.partial(0, message) == []
        left = spine.partial(1, message)
        assert sorted(port for port, _ in left) == sorted(spine.ports)
        for _, frame in left:
            result = TreePacket.parse(frame)
            assert result is not None
            assert result.kind == Kind.RESULT
            assert np.frombuffer(result.payload, ">i4")[0] == 2 * (message % 1000) + 1


def test_a_spine_that_was_left_for_2_31_messages_takes_none_behind_them() -> None:
    """Check that it takes none: to take some, and call others stale, made it call the right ones stale."""
    spine = Spine()
    for message, leaves in ((0, True), (2**31, False), (2**30, True), (2**31 + 8, False), (2**31 - 8, True)):
        assert spine.partial(0, message) == []
        assert bool(spine.partial(1, message)) is leaves
    assert spine.pair.model.counted()["unplaced"] == 4
    assert spine.pair.model.counted()["stale"] == 0
    spine.pair.assert_counters_agree()


class Spine:
    """A spine that has just started, and a job with a worker behind each of two leaves."""

    def __init__(self) -> None:
        config = fabric((1, 1), spines=1)
        members = [member(config, 0, 0, qp=0x100, psn=3), member(config, 1, 1, qp=0x200, psn=7)]
        plan = Plan(
            job_id=3,
            generation=9,
            window=2,
            message_packets=4,
            path_mtu=256,
            mode=Mode.IN_NETWORK,
            ring=(0, 1),
        )
        tree = Tree.of(config, members)
        by_name = {link.a: link.b_port for link in config.links}
        self.ports = [by_name["l1"], by_name["l2"]]
        self.pair = spine_pair()
        self.pair.reset()
        self.pair.write(
            [
                *base_entries(config, config.switch("s1")),
                *entries_on(config, tree, "s1", plan, Region(0, 0, 16), ["s1"]),
            ]
        )

    def partial(self, leaf: int, message: int) -> list[tuple[int, bytes]]:
        """Return what leaves when a leaf's part of a sum comes."""
        lanes = np.zeros(LANES, ">i4")
        lanes[0] = message % 1000 + leaf
        packet = TreePacket(
            ethernet=Ethernet(dst=bytes(6), src=bytes(6)),
            ip=IPv4(
                src=IPv4Address(f"169.254.0.{leaf + 1}"), dst=IPv4Address("169.254.0.101"), total_length=0
            ),
            udp=Udp(length=0, src_port=53300, dst_port=53300),
            kind=Kind.PARTIAL,
            opcode=2,
            op=Op.SUM,
            index=1,
            flags=TreeFlags.PSN_VALID,
            generation=9,
            message=message,
            psn=message % 2**24,
            payload=lanes.tobytes(),
        )
        return self.pair.process(self.ports[leaf], packet.build())


_SPINE: list[EntryPair] = []


def spine_pair() -> EntryPair:
    """Return one pair for all examples: the program is compiled once."""
    if not _SPINE:
        _SPINE.append(EntryPair())
    return _SPINE[0]


def earlier_stay(compiled: CompiledRack, generation: int) -> FarPair:
    """Return a job of one message, all acknowledged, that wants RNR NAKs; its flow indexes are free again."""
    pair = FarPair(compiled, world_size=2, window=1, check_icrc=True, generation=generation, rnr_ranks=0b11)
    for index in (0, 1):
        pair.contribute(0, 0, index)
        pair.contribute(1, 0, index)
    for rank in (0, 1):
        pair.acknowledge(rank, pair.psn(rank, 0, 1))
    return pair


@pytest.mark.parametrize("same", [False, True])
def test_a_last_without_its_first_gets_no_sum_of_an_earlier_stay(compiled: CompiledRack, same: bool) -> None:
    """PSNs have come round. Under the same generation the switch answers with what it stored."""
    generation = 7_000_000 + 2 * same
    before = earlier_stay(compiled, generation)
    again = FarPair(compiled, world_size=2, window=1, check_icrc=True, generation=generation + (not same))
    last = again.packet(0, 2**23, 1, 1, 1)
    assert last.bth.psn == before.psn(0, 0, 1)
    left = compiled.plane.process(1, last.build())
    assert bool(left) is same


@pytest.mark.parametrize("same", [False, True])
def test_what_was_awaited_in_an_earlier_stay_means_nothing(compiled: CompiledRack, same: bool) -> None:
    """A NIC behind a straggler needs its RNR NAK. Under the same generation it gets none."""
    generation = 8_000_000 + 2 * same
    earlier_stay(compiled, generation)
    again = FarPair(
        compiled,
        world_size=2,
        window=1,
        check_icrc=True,
        generation=generation + (not same),
        rnr_ranks=0b11,
    )
    # Under the same one, the job has gone by ring meanwhile, and its connections are where that left them.
    first = again.packet(0, 2**20 if same else 0, 0, 1, 1).build()
    assert compiled.plane.process(1, first) == []
    assert bool(compiled.plane.process(1, first)) is not same

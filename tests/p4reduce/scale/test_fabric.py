"""Bytes on the wire, and fabrics that cannot be."""

from __future__ import annotations

from typing import Any

import pytest

from host_agent.wire.headers import ROCE_OVERHEAD
from p4reduce.scale.fabric import ETHERNET_BYTES, NIC_UP, Framing, uplink
from p4reduce.workloads.errors import WorkloadError
from tests.p4reduce.scale.fabrics import fabric

FRAME = ROCE_OVERHEAD + ETHERNET_BYTES


def test_headers_are_those_of_the_protocol() -> None:
    assert FRAME == 20 + 8 + 12 + 4 + 38
    framing = Framing(path_mtu=1024, packets=4)
    assert framing.payload_bytes == 4096 - 256
    assert framing.wire_bytes(3840) == 4096 + 4 * FRAME  # a message to the last byte
    assert framing.wire_bytes(3841) == 4096 + 4 * FRAME + 512 + FRAME  # and one of a header and a chunk
    assert framing.wire_bytes(1) == 512 + FRAME
    assert framing.wire_bytes(769) == 1280 + 2 * FRAME  # the header leaves 768 of the first packet
    assert framing.wire_bytes(0) == 0
    assert framing.window_bytes == 8 * 4096


def test_scales_are_announced_a_window_ahead() -> None:
    framing = Framing()
    assert framing.announcement_bytes(1 << 30) == 8 * (256 + FRAME)
    assert framing.announcement_bytes(framing.payload_bytes + 1) == 2 * (256 + FRAME)


def test_only_several_racks_have_uplinks() -> None:
    assert uplink(0) not in fabric(hosts=16, gpus_per_host=8).capacities()
    two = fabric(hosts=17, gpus_per_host=8, spines=3)
    assert two.racks == 2
    assert [uplink(spine) in two.capacities() for spine in range(4)] == [True, True, True, False]
    assert two.capacities()[NIC_UP] == two.rate / 8
    assert (two.tree_s(0), two.way_s(0, crosses=False)) == pytest.approx((4e-9, 2e-9))


def test_switches_send_a_packet_on_when_they_have_it() -> None:
    on = fabric(hosts=4, gpus_per_host=1, rate=1e9, uplink_rate=4e9, alpha_s=1e-6)
    packet_s = (4096 + FRAME) * 8 / 1e9
    assert on.way_s(1e6, crosses=False) == pytest.approx(2e-6 + packet_s)
    assert on.way_s(1e6, crosses=True) == pytest.approx(4e-6 + packet_s + 2 * packet_s / 4)
    assert on.way_s(100, crosses=False) == pytest.approx(2e-6 + 100 * 8 / 1e9)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hosts": 1}, "8 GPUs are one machine of 8, .* take at least 16"),
        ({"gpus_per_host": 9}, "9 GPUs a machine: a machine has 1 to 8"),
        ({"hosts": 10_000}, "80000 GPUs are too many"),
        ({"rate": 0.0}, "a link has a rate"),
        ({"intra_rate": float("nan")}, "a link has a rate"),
        ({"alpha_s": 2.0}, "take a latency below 1s"),
        ({"spines": 0}, "at least one spine"),
    ],
)
def test_fabrics_that_cannot_be(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        fabric(**{"hosts": 4, "gpus_per_host": 8, **changes})


@pytest.mark.parametrize("wrong", [{"path_mtu": 1500}, {"window": 3}, {"packets": 1}])
def test_framings_that_cannot_be(wrong: dict[str, int]) -> None:
    with pytest.raises(WorkloadError, match="take"):
        Framing(**wrong)

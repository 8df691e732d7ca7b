"""Links: what is asked of tc, and rates as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from host_agent.wire.headers import ROCE_OVERHEAD
from topologies.errors import TopologyError
from topologies.links import ETHERNET_OVERHEAD, LinkShape, parse_rate_mbit

_RXE_MAX_HEADER = 80  # RXE_MAX_HDR_LENGTH of the kernel's drivers/infiniband/sw/rxe/rxe_hdr.h


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("100mbit", 100.0),
        ("100", 100.0),
        ("1gbit", 1000.0),
        ("1.5Gbit/s", 1500.0),
        ("800kbit", 0.8),
        ("10Mbitps", 10.0),
        (" 2 gbit/s", 2000.0),
        ("none", None),
        ("unlimited", None),
    ],
)
def test_rates(text: str, rate: float | None) -> None:
    assert parse_rate_mbit(text) == rate


@pytest.mark.parametrize("text", ["", "fast", "100 furlongs", "-3mbit", "0", "0.0mbit", "mbit", "3b"])
def test_no_rates(text: str) -> None:
    with pytest.raises(TopologyError, match=r"is no rate: say .*100mbit"):
        parse_rate_mbit(text)


@pytest.mark.parametrize(
    ("text", "bits", "as_bytes"),
    [
        ("100mbps", "100mbit", "800mbit"),
        ("100mb", "100mbit", "800mbit"),
        ("100M", "100mbit", "800mbit"),
        ("1.5 GB/s", "1.5gbit", "12gbit"),
        ("8k", "8kbit", "64kbit"),
    ],
)
def test_rates_in_bits_or_bytes(text: str, bits: str, as_bytes: str) -> None:
    with pytest.raises(TopologyError, match=f"may mean bits or bytes: say {bits}, or {as_bytes} if you"):
        parse_rate_mbit(text)


@given(st.sampled_from((256, 512, 1024, 2048, 4096)))
def test_a_link_carries_its_path_mtu(path_mtu: int) -> None:
    shape = LinkShape(path_mtu=path_mtu)
    assert shape.mtu >= path_mtu + ROCE_OVERHEAD
    assert shape.mtu - _RXE_MAX_HEADER >= path_mtu  # else rxe takes the next smaller one
    assert shape.mtu >= 1500  # the management of a real network


@given(st.sampled_from((256, 1024, 4096)), st.floats(1.0, 10_000.0))
def test_the_queue_holds_two_windows(path_mtu: int, rate: float) -> None:
    shape = LinkShape(path_mtu=path_mtu, rate_mbit=rate)
    assert shape.queue_bytes >= 2 * 128 * (path_mtu + ROCE_OVERHEAD + ETHERNET_OVERHEAD)
    (command,) = shape.qdiscs()
    words = command.split()
    burst = int(words[words.index("burst") + 1])
    assert burst >= shape.mtu + ETHERNET_OVERHEAD  # or tbf passes no full frame
    assert int(words[words.index("limit") + 1]) == shape.queue_bytes


def test_qdiscs_of_an_unlimited_link() -> None:
    assert LinkShape(path_mtu=1024).qdiscs() == []


def test_qdiscs_in_order() -> None:
    shape = LinkShape(path_mtu=1024, rate_mbit=100.0, delay_ms=2.5, loss=0.01)
    rate, delay = shape.qdiscs()
    assert rate.startswith("root handle 5: tbf rate 100000000bit ")
    assert delay.startswith("parent 5:1 handle 10: netem delay 2.5ms loss 1% ")


def test_delay_without_a_rate_is_at_the_root() -> None:
    (delay,) = LinkShape(path_mtu=1024, delay_ms=1.0).qdiscs()
    assert delay.startswith("root handle 10: netem delay 1ms ")

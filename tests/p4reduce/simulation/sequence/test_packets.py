"""Names of frames, and fields of their headers, which are those that were built into them."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from host_agent.wire.aggregation import Op
from p4reduce.oracle import half
from p4reduce.oracle.state import Slot
from p4reduce.simulation.faults.drawing import draw
from p4reduce.simulation.sequence.packets import LAYERS, Packet, Packets, numbers, slot_numbers
from tests.p4reduce.simulation.sequence.shown import example, steps_of


def packets(name: str) -> list[Packet]:
    """Return the packets that left in an example."""
    return [arrow.packet for step in steps_of(example(name)) for arrow in step.left]


def fields(packet: Packet, layer: str) -> dict[str, str]:
    return dict(zip(LAYERS[layer], dict(packet.layers)[layer], strict=True))


def test_a_first_has_its_headers_by_name() -> None:
    first = next(packet for packet in packets("plain-sum") if packet.label == "m0.0 First")
    assert fields(first, "BTH") == {
        "opcode": "0x00 First",
        "destination QP": "0x000103",
        "PSN": "0x0003e8 m0.0",
        "AckReq": "0",
        "reserved": "0x00",
        "P_Key": "0xffff",
    }
    header = fields(first, "aggregation header")
    assert (header["flags"], header["message"], header["rank"], header["op"]) == ("0x00", "0", "0", "1 SUM")
    assert (header["element type"], header["kind"], header["packets"]) == ("1 int32", "1 all_reduce", "2")
    assert fields(first, "IPv4")["destination"] == "10.0.1.2"
    assert fields(first, "UDP")["destination port"] == "4791"
    assert fields(first, "payload")["bytes"] == "512"
    assert fields(first, "ICRC")["value"].endswith(" right")


def test_a_sum_an_acknowledgement_and_a_nak() -> None:
    found = {packet.label: packet for packet in packets("lost-result")}
    result = found["sum m0.0 First"]
    assert result.kind == "sum"
    assert fields(result, "BTH")["reserved"] == "0x40 made by a switch"
    assert fields(result, "aggregation header")["flags"] == "0x01 RESULT"
    assert fields(found["ACK m0.1"], "AETH")["syndrome"] == "0x1f ACK"
    assert found["NAK m0.0"].kind == "nak"
    assert fields(found["NAK m0.0"], "AETH")["syndrome"] == "0x60 NAK, PSN sequence error"


def test_packets_between_switches() -> None:
    found = {packet.label: packet for packet in packets("two-racks")}
    partial = fields(found["PARTIAL m0.0"], "tree header")
    assert (partial["kind"], partial["opcode"], partial["op"]) == ("1 PARTIAL", "0x04 Only", "1 SUM")
    assert partial["flags"] == "0x04 PSN_VALID"
    assert fields(found["RESULT m0.0"], "UDP")["destination port"] == "53300"
    assert found["ECHO REQUEST"].kind == "probe"


def test_every_layer_has_a_value_for_each_of_its_fields() -> None:
    kinds: Counter[str] = Counter()
    for seed in (8, 17):
        for step in steps_of(draw(seed)):
            for arrow in step.left:
                kinds[arrow.packet.kind] += 1
                assert arrow.packet.label
                for name, values in arrow.packet.layers:
                    assert len(values) == len(LAYERS[name])
                    assert all(values)
    assert {"data", "sum", "pass", "ack", "nak", "partial", "result", "probe"} <= set(kinds)


@pytest.mark.parametrize("frame", [b"\0" * 14, b"\xff" * 60, b"\0" * 12 + b"\x08\x06" + b"\0" * 46])
def test_what_is_no_packet_of_ours_is_something_else(frame: bytes) -> None:
    assert Packets().read(frame).kind == "other"


def test_numbers_are_what_a_switch_takes_them_for() -> None:
    payload = bytes(256) + np.arange(1, 9, dtype=">i4").tobytes()
    assert numbers(payload, Op.SUM, header=True) == "1 2 3 4 5 6"
    assert numbers(np.array([0.5, -2, 1024], ">f2").tobytes(), Op.SUM_HALF, header=False) == "0.5 -2 1024"
    assert numbers(np.array([7, -7], ">i2").tobytes(), Op.MAX_HALF, header=False) == "7 -7"
    assert numbers(bytes(256), Op.SUM, header=True) == ""


def test_halves_that_are_being_added_are_shown_as_the_numbers_they_stand_for() -> None:
    slot, values = Slot(op=Op.SUM_HALF, count=1), np.zeros(128, np.float16)
    values[:4] = 1.5, -2, 0.25, 3
    slot.store(values.astype(">f2").tobytes(), Op.SUM_HALF, 1, last=False)
    assert slot_numbers(slot, 1, Op.SUM_HALF, more=True) == "1.5 -2 0.25 3 0 0"
    slot.add(values.astype(">f2").tobytes(), Op.SUM_HALF, 1, last=True)
    assert slot_numbers(slot, 1, Op.SUM_HALF, more=False) == "3 -4 0.5 6 0 0"
    assert half.UNIT == 2.0**-24

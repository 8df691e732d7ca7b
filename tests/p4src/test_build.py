"""The compiled program is that of the sources, and P4, Python and the docs agree on every shared fact."""

from __future__ import annotations

import json
import re
import shutil
import struct
from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest

import p4src
from controller.fabric import probes
from controller.fabric.addresses import switch_ip
from controller.fabric.graph import Link
from controller.fabric.tables.membership import RNR_NAK
from host_agent.wire import aggregation, headers
from host_agent.wire.aggregation import AggregationHeader, ElementType, Flags, Op, Reduction
from host_agent.wire.headers import Ethernet, IPv4, Udp
from p4reduce.oracle.tree_packets import LINK_LOCAL, TREE_PORT, TREE_VERSION, Kind, TreeFlags, TreePacket
from p4src.compile import COMPILER, compile_program, compiler_version

P4_SIZES = p4src.ROOT / "include" / "sizes.p4"
P4_HEADERS = p4src.ROOT / "include" / "headers.p4"
PROTOCOL = Path(__file__).parents[2] / "docs" / "protocol.md"


def test_the_committed_output_was_made_from_these_sources() -> None:
    assert p4src.built_from()["sources_sha256"] == p4src.sources_hash(), (
        "p4src/build is older than the sources: run 'python p4src/compile.py' (it needs p4c-bm2-ss)"
    )
    assert re.match(r"\d+\.\d+", p4src.built_from()["p4c_version"])


def test_the_output_holds_no_path_of_the_machine_that_made_it() -> None:
    assert '"/' not in p4src.JSON_PATH.read_text()


def test_bmv2_has_few_variables_to_clear() -> None:
    """Check it: BMv2 clears all for each packet and each replica, and 1,317 took it four times as long."""
    program = json.loads(p4src.JSON_PATH.read_text())
    fields = {kind["name"]: len(kind["fields"]) for kind in program["header_types"]}
    metadata = [header for header in program["headers"] if header["metadata"]]
    assert sum(fields[header["header_type"]] for header in metadata) < 200


@pytest.mark.slow
@pytest.mark.p4c
@pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"{COMPILER} is not on the PATH")
def test_compiling_again_gives_the_committed_output(tmp_path: Path) -> None:
    committed = p4src.built_from()["p4c_version"]
    if compiler_version() != committed:
        pytest.skip(f"this p4c is {compiler_version()}; the output was made with {committed}")
    compile_program(tmp_path)  # raises on any warning
    for path in (p4src.JSON_PATH, p4src.P4INFO_PATH, p4src.SOURCES_PATH):
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()


def defines(path: Path) -> dict[str, int]:
    return {name: int(value) for name, value in re.findall(r"#define (\w+) (\d+)", path.read_text())}


def constants(path: Path) -> dict[str, int]:
    values: dict[str, int] = {}
    for name, value in re.findall(r"const \S+\s+(\w+)\s*=\s*(\w+);", path.read_text()):
        values[name] = values[value] if value in values else int(value, 0)
    return values


def test_limits_are_those_of_the_program() -> None:
    sizes = defines(P4_SIZES)
    shared = set(sizes) & set(p4src.__all__)
    assert {
        "MAX_FLOWS",
        "MAX_SLOTS",
        "MAX_JOBS",
        "MAX_RANKS",
        "MAX_CHUNKS",
        "HISTORY_MESSAGES",
        "BUCKETS",
        "AGAIN_GROUP",
        "RID_UP",
        "RID_BACK",
    } <= shared
    assert {name: getattr(p4src, name) for name in shared} == {name: sizes[name] for name in shared}
    assert sizes["MAX_FLOWS"] == sizes["MAX_JOBS"] * sizes["MAX_RANKS"]
    assert (sizes["CHUNK_BYTES"], sizes["MAX_CHUNKS"]) == (aggregation.CHUNK_BYTES, aggregation.MAX_CHUNKS)
    assert sizes["MAX_RANKS"] == aggregation.MAX_RANKS


def test_registers_hold_what_is_promised() -> None:
    program = json.loads(p4src.JSON_PATH.read_text())
    sizes = {array["name"].rpartition(".")[2]: array["size"] for array in program["register_arrays"]}
    assert sizes["slot_state"] == p4src.MAX_SLOTS >= 4096
    assert sizes["records"] == p4src.MAX_FLOWS * p4src.HISTORY_MESSAGES
    assert p4src.MAX_JOBS >= 16
    assert p4src.MAX_RANKS >= 32


def test_a_slot_tells_every_op_and_size_from_every_other() -> None:
    """Check that its state has room for them: 3 bits for the op and 5 for the number of chunks."""
    assert aggregation.LAST_OP < 2**3
    assert p4src.MAX_CHUNKS < 2**5


def test_codes_are_the_same_in_p4_and_python() -> None:
    p4 = constants(P4_HEADERS)
    assert p4["AGGREGATION_MAGIC"] == aggregation.MAGIC
    assert p4["AGGREGATION_VERSION"] == aggregation.VERSION
    assert [p4[f"OP_{op.name}"] for op in Op] == list(Op)
    assert p4["OP_LAST"] == aggregation.LAST_OP
    assert [p4["FLAG_RESULT"], p4["FLAG_MISMATCH"]] == [Flags.RESULT, Flags.MISMATCH]
    assert p4["ROCE_V2_PORT"] == headers.ROCE_V2_PORT
    for opcode in ("SEND_FIRST", "SEND_MIDDLE", "SEND_LAST", "SEND_ONLY", "ACKNOWLEDGE"):
        assert p4[opcode] == headers.Opcode[opcode]
    assert p4["AETH_ACK"] == headers.ACK_SYNDROME & p4["AETH_KIND"]
    assert p4["AETH_RNR_NAK"] == headers.RNR_NAK_SYNDROME == RNR_NAK
    assert p4["AETH_NAK_SEQUENCE_ERROR"] == headers.NAK_SEQUENCE_ERROR


def documented_header() -> dict[str, tuple[int, int]]:
    """Return offset and size, in bytes, of the fields in docs/protocol.md's aggregation header table."""
    section = PROTOCOL.read_text().split("## Aggregation header", 1)[1].split("\n## ", 1)[0]
    rows = re.findall(r"^\| (\d+) \| (\d+) \| `(\w+)` \|", section, re.MULTILINE)
    return {name: (int(offset), int(size)) for offset, size, name in rows}


def test_the_aggregation_header_is_one_layout_in_docs_and_python() -> None:
    """Check that each field, set alone, is where the docs say it is."""
    plain: dict[str, Any] = {"job": 0, "generation": 0, "message": 0, "rank": 0, "op": Op.PASS, "packets": 0}
    known: dict[str, Any] = {
        "magic": aggregation.MAGIC,
        "version": aggregation.VERSION,
        "op": Op.MAX,
        "element_type": ElementType.BFLOAT16,
        "reduction": Reduction.MIN,
        "kind": aggregation.Kind.REPAIR,
        "stage": aggregation.Stage.RING_BARRIER,
    }
    documented = documented_header()
    assert documented.pop("exponents") == (
        aggregation.HEADER_BYTES,
        aggregation.CHUNK_BYTES - aggregation.HEADER_BYTES,
    )
    for name, (offset, size) in documented.items():
        value = known.get(name, 0xA1B2C3D4 >> 8 * (4 - size))
        fields = plain if name in ("magic", "version") else {**plain, name: value}
        packed = AggregationHeader(**fields).pack()
        assert int.from_bytes(packed[offset : offset + size], "big") == value, name
    end = max(offset + size for offset, size in documented.values())
    assert end == aggregation.HEADER_BYTES
    assert struct.calcsize(aggregation._LAYOUT.format) == end


def test_the_aggregation_header_is_one_layout_in_docs_and_p4() -> None:
    documented = documented_header()
    text = (p4src.ROOT / "placement.p4").read_text()
    slices = {
        name.lower(): (int(high), int(low))
        for name, high, low in re.findall(r"#define HEAD_(\w+)\s+HEAD\[(\d+):(\d+)\]", text)
    }
    signature = slices.pop("signature")
    assert {"magic", "version", "flags", "job", "generation", "message", "rank", "op", "packets"} == set(
        slices
    )
    bits = 8 * aggregation.CHUNK_BYTES
    for name, (high, low) in slices.items():
        offset, size = documented[name]
        assert (high, low) == (bits - 1 - 8 * offset, bits - 8 * (offset + size)), name
    assert signature == (bits - 1 - 8 * aggregation.SIGNATURE.start, bits - 8 * aggregation.SIGNATURE.stop)
    assert documented["op"][0] == aggregation.SIGNATURE.start
    assert sum(documented["tensor_elements"]) == aggregation.SIGNATURE.stop


def documented_tree_header() -> dict[str, tuple[int, int]]:
    """Return offset and size of the fields in docs/protocol.md's table of the tree header."""
    section = PROTOCOL.read_text().split("### Tree packets", 1)[1].split("\n### ", 1)[0]
    rows = re.findall(r"^\| (\d+) \| (\d+) \| `(\w+)` \|", section, re.MULTILINE)
    return {name: (int(offset), int(size)) for offset, size, name in rows}


def test_the_tree_header_is_one_layout_in_docs_and_p4_and_python() -> None:
    documented = documented_tree_header()
    plain = TreePacket(
        ethernet=Ethernet(dst=bytes(6), src=bytes(6)),
        ip=IPv4(src=IPv4Address(switch_ip(1)), dst=IPv4Address(switch_ip(2)), total_length=0),
        udp=Udp(length=0),
        kind=Kind.RESULT,
    )
    fields = re.search(r"header tree_t \{(.*?)\n\}", P4_HEADERS.read_text(), re.DOTALL)
    assert fields is not None
    widths = {"generation_t": 32, "message_t": 32, "psn_t": 24}
    offset, in_p4 = 0, {}
    for kind, name in re.findall(r"^\s+([\w<>]+)\s+(\w+);", fields[1], re.MULTILINE):
        width = widths.get(kind) or int(kind[4:-1])
        in_p4[name] = (offset // 8, width // 8)
        offset += width
    assert offset // 8 == len(plain.header()) == 20
    assert {name: place for name, place in in_p4.items() if not name.startswith("reserved")} == documented
    for name, (start, size) in documented.items():
        value = 0x11223344 >> 8 * (4 - size)
        changed: dict[str, Any] = {name: value}
        packed = replace(plain, **changed).header()
        assert int.from_bytes(packed[start : start + size], "big") == value, name


def test_the_controllers_probe_is_a_tree_packet() -> None:
    link = Link(leaf="l1", leaf_port=101, spine="s1", spine_port=1, index=0)
    frame = probes.echo_request(link, leaf_id=1, spine_id=101, nonce=0x01020304)
    packet = TreePacket.parse(frame)
    assert packet is not None
    assert (packet.kind, packet.message, packet.payload) == (Kind.ECHO_REQUEST, 0x01020304, b"")
    assert (packet.ip.src, packet.ip.dst) == (IPv4Address(switch_ip(1)), IPv4Address(switch_ip(101)))
    assert packet.icrc_ok()
    assert packet.build() == frame


def test_codes_of_the_tree_are_the_same_in_p4_and_python() -> None:
    p4 = constants(P4_HEADERS)
    assert {f"TREE_{kind.name}": kind.value for kind in Kind}.items() <= p4.items()
    assert (p4["TREE_PORT"], p4["TREE_VERSION"]) == (TREE_PORT, TREE_VERSION)
    assert probes.TREE_PORT == TREE_PORT
    assert p4["LINK_LOCAL"] == int(LINK_LOCAL.network_address) >> 16
    assert LINK_LOCAL.prefixlen == 16
    assert [p4["FLAG_MISMATCH"], p4["FLAG_PSN_VALID"]] == [TreeFlags.MISMATCH, TreeFlags.PSN_VALID]

"""MLCommons Chakra's execution traces as nodes; their messages are those of chakra.proto.

A trace is a file of messages, each after its length as a varint: a GlobalMetadata, then Nodes to the end; it
may be compressed with gzip.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import DecodeError

from p4reduce.workloads.errors import WorkloadError
from p4reduce.workloads.traffic import chakra_pb2 as pb


class Collective(IntEnum):
    """`comm_type` of a collective's node."""

    ALL_REDUCE = 0


@dataclass(frozen=True)
class Node:
    """A node of the graph: what ran, for how long, and after which others."""

    id: int
    name: str
    type: int
    parents: tuple[int, ...]
    start_us: int
    duration_us: int
    attributes: dict[str, int | float | str | bool]
    callers: tuple[int, ...] = ()
    """The parents that called it, in PyTorch's traces."""

    @property
    def on_processor(self) -> bool | None:
        """The side that it ran on: true of operators, false of a device's, None where nothing tells."""
        # Converters of early 2024, and generators of traces, write a number.
        said = self.attributes.get("is_cpu_op")
        return bool(said) if isinstance(said, bool | int) else None


def nodes_of_binary(content: bytes, *, where: str) -> tuple[Node, ...]:
    """Return the nodes of a trace's (uncompressed) content; `where` names it in errors."""
    nodes: list[Node] = []
    for number, encoded in enumerate(_delimited(content, where=where)):
        message: Any = pb.GlobalMetadata() if number == 0 else pb.Node()
        try:
            message.ParseFromString(encoded)
        except DecodeError as error:
            kind = "GlobalMetadata" if number == 0 else "Node"
            raise WorkloadError(
                f"{where}: message {number} is no {kind} of a Chakra execution trace ({error}); "
                "expected is what chakra_converter has written since version 0.0.4 (October 2023)"
            ) from error
        if number:
            nodes.append(_node(message))
    return _with_ids_of_their_own(nodes, where=where)


def nodes_of_json(text: str, *, where: str) -> tuple[Node, ...]:
    """Return a trace's nodes from JSON: messages in turn (chakra_jsonizer), or a `workload_graph`."""
    documents = list(_documents(text, where=where))
    first = documents[0] if documents else {}
    if "workload_graph" in first:
        graph = first["workload_graph"]
        if not isinstance(graph, list):
            raise WorkloadError(f"{where}: workload_graph is no list of nodes")
        return _with_ids_of_their_own(
            [_graph_node(entry, where=where, number=number) for number, entry in enumerate(graph)],
            where=where,
        )
    if "nodes" in first:
        raise WorkloadError(
            f"{where} is PyTorch's part of a Chakra trace, without durations: join it with the profiler's "
            "(chakra_trace_link), convert that (chakra_converter), and give the .et file"
        )
    nodes = []
    for number, document in enumerate(documents[1:], start=1):
        try:
            nodes.append(_node(json_format.ParseDict(document, pb.Node(), ignore_unknown_fields=True)))
        except (json_format.ParseError, OverflowError) as error:
            raise WorkloadError(f"{where}: object {number} is no Chakra node: {error}") from error
    return _with_ids_of_their_own(nodes, where=where)


def _with_ids_of_their_own(nodes: list[Node], *, where: str) -> tuple[Node, ...]:
    seen: dict[int, Node] = {}
    for node in nodes:
        if (other := seen.setdefault(node.id, node)) is not node:
            raise WorkloadError(
                f"{where}: {other.name!r} and {node.name!r} both have the id {node.id}, so that dependencies "
                "on it do not tell which is meant: give the trace of one process, each node once"
            )
    return tuple(nodes)


def _delimited(content: bytes, *, where: str) -> Iterator[bytes]:
    at = 0
    number = 0
    while at < len(content):
        length = shift = 0
        start = at
        while True:
            if at == len(content) or shift > 28:
                raise WorkloadError(
                    f"{where}: at byte {start} there is no length of a message: this is no Chakra execution "
                    "trace, or it was cut off"
                )
            byte = content[at]
            at += 1
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        if at + length > len(content):
            raise WorkloadError(
                f"{where}: message {number}, at byte {start}, has {length} bytes, and the file ends before: "
                "this is no Chakra execution trace, or it was cut off"
            )
        yield content[at : at + length]
        at += length
        number += 1


def _node(message: pb.Node) -> Node:
    attributes = {
        attribute.name: getattr(attribute, value)
        for attribute in message.attr
        if (value := attribute.WhichOneof("value")) is not None
    }
    start_us: int = message.start_time_micros
    # Converters of early 2024 wrote start times as an attribute.
    if start_us == 0 and isinstance(ts := attributes.get("ts"), int) and ts > 0:
        start_us = ts
    return Node(
        message.id,
        message.name,
        message.type,
        (*message.ctrl_deps, *message.data_deps),
        start_us,
        message.duration_micros,
        attributes,
        tuple(message.ctrl_deps),
    )


def _graph_node(entry: Any, *, where: str, number: int) -> Node:
    """Read a node of the JSON that Chakra's feeder (src/feeder/json_node.cpp) reads."""
    try:
        return Node(
            int(entry["Id"]),
            str(entry.get("Name", "")),
            int(entry["NodeType"]),
            (*map(int, entry.get("ctrlDeps", ())), *map(int, entry.get("data_deps", ()))),
            0,
            int(entry.get("runtime", 0)),
            {
                key: value
                for key, value in entry.items()
                if key in ("comm_size", "comm_type", "is_cpu_op", "tensor_size")
            },
        )
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise WorkloadError(
            f"{where}: entry {number} of workload_graph is no Chakra node: {error!r}"
        ) from error


def _documents(text: str, *, where: str) -> Iterator[dict[str, Any]]:
    decoder = json.JSONDecoder()
    at = 0
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        try:
            document, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            raise WorkloadError(f"{where} is no JSON: {error}") from error
        if not isinstance(document, dict):
            raise WorkloadError(
                f"{where} has no Chakra trace: an object is expected, not {type(document).__name__}"
            )
        yield document

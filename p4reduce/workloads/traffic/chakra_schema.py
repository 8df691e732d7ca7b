"""MLCommons Chakra's execution traces as messages: schema/protobuf/et_def.proto of mlcommons/chakra.

Only the fields that are read here are declared; protobuf skips the others. A trace is a file of messages,
each after its length as a varint: a GlobalMetadata, then Nodes to the end; it may be compressed with gzip.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.message import DecodeError, Message

from p4reduce.workloads.errors import WorkloadError

_Type = descriptor_pb2.FieldDescriptorProto
_VALUES: Final = {
    "double_val": (3, _Type.TYPE_DOUBLE),
    "float_val": (5, _Type.TYPE_FLOAT),
    "int32_val": (7, _Type.TYPE_INT32),
    "int64_val": (9, _Type.TYPE_INT64),
    "uint32_val": (11, _Type.TYPE_UINT32),
    "uint64_val": (13, _Type.TYPE_UINT64),
    "sint32_val": (15, _Type.TYPE_SINT32),
    "sint64_val": (17, _Type.TYPE_SINT64),
    "fixed32_val": (19, _Type.TYPE_FIXED32),
    "fixed64_val": (21, _Type.TYPE_FIXED64),
    "sfixed32_val": (23, _Type.TYPE_SFIXED32),
    "sfixed64_val": (25, _Type.TYPE_SFIXED64),
    "bool_val": (27, _Type.TYPE_BOOL),
    "string_val": (29, _Type.TYPE_STRING),
}
"""Attributes are a oneof; its lists and bytes are not needed."""


class NodeType(IntEnum):
    """The kinds of nodes that say something about a training iteration."""

    METADATA = 1
    COMPUTE = 4
    COLLECTIVE = 7


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


def _messages() -> tuple[type[Message], type[Message]]:
    """The classes of GlobalMetadata and Node."""
    file = descriptor_pb2.FileDescriptorProto(
        name="p4reduce/chakra.proto", package="p4reduce.chakra", syntax="proto3"
    )

    def declare(message: str, **fields: tuple[int, int] | tuple[int, int, str]) -> None:
        declared = file.message_type.add(name=message)
        for name, (number, kind, *of) in fields.items():
            field = declared.field.add(name=name, number=number, type=kind, label=_Type.LABEL_OPTIONAL)
            if of:
                field.type_name = f".p4reduce.chakra.{of[0]}"
            if name in ("attr", "ctrl_deps", "data_deps"):
                field.label = _Type.LABEL_REPEATED
            if name in _VALUES:
                field.oneof_index = 0
        if message == "AttributeProto":
            declared.oneof_decl.add(name="value")

    declare("AttributeProto", name=(1, _Type.TYPE_STRING), **_VALUES)
    declare(
        "GlobalMetadata",
        version=(1, _Type.TYPE_STRING),
        attr=(2, _Type.TYPE_MESSAGE, "AttributeProto"),
    )
    declare(
        "Node",
        id=(1, _Type.TYPE_UINT64),
        name=(2, _Type.TYPE_STRING),
        type=(3, _Type.TYPE_ENUM, "NodeType"),
        ctrl_deps=(4, _Type.TYPE_UINT64),
        data_deps=(5, _Type.TYPE_UINT64),
        start_time_micros=(6, _Type.TYPE_UINT64),
        duration_micros=(7, _Type.TYPE_UINT64),
        attr=(10, _Type.TYPE_MESSAGE, "AttributeProto"),
    )
    # JSON has the names; proto3 keeps numbers that are not among them.
    kinds = file.enum_type.add(name="NodeType")
    for number, name in enumerate(
        ("INVALID_NODE", "METADATA_NODE", "MEM_LOAD_NODE", "MEM_STORE_NODE", "COMP_NODE", "COMM_SEND_NODE",
         "COMM_RECV_NODE", "COMM_COLL_NODE", "STORAGE_NODE", "BATCH_NODE", "CHECKPOINT_NODE")
    ):  # fmt: skip
        kinds.value.add(name=name, number=number)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    metadata, node = (
        message_factory.GetMessageClass(pool.FindMessageTypeByName(f"p4reduce.chakra.{name}"))
        for name in ("GlobalMetadata", "Node")
    )
    return metadata, node


GlobalMetadata, NodeMessage = _messages()


def nodes_of_binary(content: bytes, *, where: str) -> tuple[Node, ...]:
    """The nodes of a trace's (uncompressed) content; `where` names it in errors."""
    nodes: list[Node] = []
    for number, encoded in enumerate(_delimited(content, where=where)):
        message: Any = GlobalMetadata() if number == 0 else NodeMessage()
        try:
            message.ParseFromString(encoded)
        except DecodeError as error:
            kind = "GlobalMetadata" if number == 0 else "Node"
            raise WorkloadError(
                f"{where}: message {number} is no {kind} of a Chakra execution trace ({error}); "
                "expected is what chakra_converter writes"
            ) from error
        if number:
            nodes.append(_node(message))
    return tuple(nodes)


def nodes_of_json(text: str, *, where: str) -> tuple[Node, ...]:
    """The nodes of a trace as JSON: messages one after the other (chakra_jsonizer), or a `workload_graph`."""
    documents = list(_documents(text, where=where))
    first = documents[0] if documents else {}
    if "workload_graph" in first:
        graph = first["workload_graph"]
        if not isinstance(graph, list):
            raise WorkloadError(f"{where}: workload_graph is no list of nodes")
        return tuple(_graph_node(entry, where=where, number=number) for number, entry in enumerate(graph))
    if "nodes" in first:
        raise WorkloadError(
            f"{where} is PyTorch's part of a Chakra trace, without durations: join it with the profiler's "
            "(chakra_trace_link), convert that (chakra_converter), and give the .et file"
        )
    nodes = []
    for number, document in enumerate(documents[1:], start=1):
        try:
            nodes.append(_node(json_format.ParseDict(document, NodeMessage(), ignore_unknown_fields=True)))
        except (json_format.ParseError, OverflowError) as error:
            raise WorkloadError(f"{where}: object {number} is no Chakra node: {error}") from error
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


def _node(message: Any) -> Node:
    attributes = {
        attribute.name: getattr(attribute, value)
        for attribute in message.attr
        if (value := attribute.WhichOneof("value")) is not None
    }
    return Node(
        message.id,
        message.name,
        message.type,
        (*message.ctrl_deps, *message.data_deps),
        message.start_time_micros,
        message.duration_micros,
        attributes,
    )


def _graph_node(entry: Any, *, where: str, number: int) -> Node:
    """A node of the JSON that Chakra's feeder (src/feeder/json_node.cpp) reads."""
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

"""Traces made by hand: Chakra's messages byte by byte (the numbers are those of et_def.proto), and events."""

from __future__ import annotations

from typing import Any

COMP_NODE, COMM_COLL_NODE = 4, 7
ALL_REDUCE, ALL_GATHER = 0, 2
ACCUMULATE = "torch::autograd::AccumulateGrad"


def varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def _number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value & (1 << 64) - 1)


def _bytes(field: int, value: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(value)) + value


def delimited(*messages: bytes) -> bytes:
    """Return a file: each message after its length."""
    return b"".join(varint(len(message)) + message for message in messages)


def metadata(version: str = "0.0.4") -> bytes:
    return _bytes(1, version.encode())


def node(
    identity: int,
    name: str,
    kind: int = COMP_NODE,
    *,
    after: tuple[int, ...] = (),
    callers: tuple[int, ...] = (),
    duration_us: int = 0,
    start_us: int = 0,
    packed: bool = True,
    **attributes: int | bool | str,
) -> bytes:
    """Return a Node. Whole attributes are int64_val, truth values bool_val, texts string_val."""
    encoded = _number(1, identity) + _bytes(2, name.encode()) + _number(3, kind)
    encoded += b"".join(_number(4, caller) for caller in callers)
    if packed and after:
        encoded += _bytes(5, b"".join(varint(parent) for parent in after))
    else:
        encoded += b"".join(_number(5, parent) for parent in after)
    encoded += _number(6, start_us) + _number(7, duration_us)
    # inputs (field 8) are not read: they must not disturb.
    encoded += _bytes(8, _bytes(2, b"[[64, 3, 11, 11]]"))
    for key, value in attributes.items():
        if isinstance(value, str):
            held = _bytes(29, value.encode())
        else:
            held = _number(27 if isinstance(value, bool) else 9, value)
        encoded += _bytes(10, _bytes(1, key.encode()) + held)
    return encoded


def all_reduce(
    identity: int,
    name: str,
    size: int,
    *,
    after: tuple[int, ...] = (),
    duration_us: int = 0,
    start_us: int = 0,
    is_cpu_op: bool | None = None,
    group: str | None = None,
) -> bytes:
    said: dict[str, Any] = {"is_cpu_op": is_cpu_op, "pg_name": group}
    said = {key: value for key, value in said.items() if value is not None}
    return node(
        identity, name, COMM_COLL_NODE, after=after, duration_us=duration_us, start_us=start_us,
        comm_type=ALL_REDUCE, comm_size=size, **said,
    )  # fmt: skip


def event(
    name: str, start: float, duration: float, *, category: str = "cpu_op", thread: int = 1, **args: Any
) -> dict[str, Any]:
    """Return a complete event of a Chrome trace, in microseconds; `Input_Dims=...` becomes "Input Dims"."""
    named = {key.replace("_", " "): value for key, value in args.items()}
    return {
        "ph": "X", "cat": category, "name": name, "pid": 1, "tid": thread, "ts": start, "dur": duration,
        "args": named,
    }  # fmt: skip


def backward(
    function: str, start: float, duration: float, sequence: int, **more: Any
) -> list[dict[str, Any]]:
    """Return autograd's evaluation of a function, on the thread of the backward pass."""
    return [
        event(
            f"autograd::engine::evaluate_function: {function}", start, duration, thread=2,
            Sequence_number=sequence, Fwd_thread_id=1, **more,
        )
    ]  # fmt: skip


def gradient(start: float, duration: float, shape: list[int] | None) -> list[dict[str, Any]]:
    """Return the events that hand over a gradient."""
    dims: dict[str, Any] = {} if shape is None else {"Input_Dims": [shape]}
    return [
        event(f"autograd::engine::evaluate_function: {ACCUMULATE}", start, duration, thread=2),
        event(ACCUMULATE, start + duration / 4, duration / 2, thread=2, **dims),
    ]

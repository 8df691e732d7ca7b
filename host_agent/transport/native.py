"""The native library through ctypes: its structures as `host_agent/native/p4r.h` lays them out.

ctypes releases the interpreter's lock during every call.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import c_char, c_char_p, c_int, c_int64, c_size_t, c_uint8, c_uint32, c_uint64, c_void_p
from dataclasses import fields
from functools import cache
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, Final

from host_agent.transport.config import TransportConfig
from host_agent.transport.errors import NativeLibraryError
from host_agent.transport.events import Counters, Event, EventType, Failure, FailureCode, Progress
from host_agent.transport.operation import Operation
from host_agent.wire.headers import parse_mac

ABI_VERSION: Final = 14
NEVER: Final = 2**63 - 1
ERROR_BYTES: Final = 400
LIBRARY: Final = Path(__file__).parent.parent / "_native.so"

_COUNTERS: Final = tuple(field.name for field in fields(Counters))
_PROGRESS: Final = tuple(field.name for field in fields(Progress))
_MACS: Final = ("own_mac", "successor_mac", "predecessor_mac")
_PARAMETERS: Final = (  # as `TransportConfig` has them
    *("path_mtu", "window", "message_packets", "job_id", "generation", "rank", "predecessor_rank"),
    *("world_size", "retry_limit", "check_icrc", "max_burst", "selective", "first_message"),
)
_TIMEOUTS: Final = ("rto_low", "rto", "rto_max")


def _all(kind: Any, *names: str) -> tuple[tuple[str, Any], ...]:
    """Return fields of one kind."""
    return tuple((name, kind) for name in names)


class NativeConfig(ctypes.Structure):
    _fields_ = (
        *_all(c_uint8 * 6, *_MACS),
        ("reserved", c_uint8 * 2),
        *_all(c_uint32, "own_ip", "successor_ip", "predecessor_ip", "qpn_out", "psn_out", "qpn_in"),
        *_all(c_uint32, "successor_qpn", "predecessor_qpn", "predecessor_psn"),
        *_all(c_uint32, *_PARAMETERS, "in_flight_bytes"),
        *_all(c_int64, *(f"{name}_ns" for name in _TIMEOUTS)),
    )


class NativeOperation(ctypes.Structure):
    _fields_ = (
        *_all(c_void_p, "send", "receive", "special"),
        *_all(c_uint64, "send_elements", "receive_elements", "cut_elements"),
        *_all(c_uint32, "total_elements", "collective", "divisor"),
        *_all(c_uint8, "switch_op", "element_type", "reduction", "arrival", "element_size", "invert"),
        *_all(c_uint8, "header_type", "kind", "root", "stage", "residual"),
        ("reserved", c_uint8 * 5),
    )


class NativeEvent(ctypes.Structure):
    _fields_ = (
        *_all(c_uint32, "type", "code"),
        ("op_id", c_uint64),
        *_all(c_uint32, "message", "psn", "header_bytes"),
        ("header", c_uint8 * 64),
        ("text", c_char * 320),
        ("reserved", c_uint32),
    )


class NativeCounters(ctypes.Structure):
    _fields_ = tuple((name, c_int64 if name.endswith("_ns") else c_uint64) for name in _COUNTERS)


class NativeProgress(ctypes.Structure):
    _fields_ = (
        *_all(c_uint32, "posted_messages", "sent_messages", "acked_messages", "received_messages"),
        *_all(c_uint32, "first_unacked_psn", "next_psn", "expected_psn", "timeouts_in_a_row"),
        ("oldest_unacked_since_ns", c_int64),
        *_all(c_uint32, "operations", "failed"),
        ("numbered", c_uint64),
    )


_PROTOTYPES: Final[dict[str, tuple[Any, tuple[Any, ...]]]] = {
    "p4r_endpoint_new": (c_void_p, (ctypes.POINTER(NativeConfig), c_char_p, c_size_t)),
    "p4r_endpoint_free": (None, (c_void_p,)),
    "p4r_endpoint_post": (
        c_uint64,
        (c_void_p, ctypes.POINTER(NativeOperation), c_int64, c_char_p, c_size_t),
    ),
    "p4r_endpoint_receive": (None, (c_void_p, c_char_p, c_size_t, c_int64)),
    "p4r_endpoint_frame_bytes": (c_size_t, (c_void_p,)),
    "p4r_endpoint_poll": (
        c_size_t,
        (c_void_p, c_int64, c_void_p, c_size_t, ctypes.POINTER(c_uint32), c_size_t),
    ),
    "p4r_endpoint_next_timeout": (c_int64, (c_void_p,)),
    "p4r_endpoint_halt": (None, (c_void_p,)),
    "p4r_endpoint_event": (c_int, (c_void_p, ctypes.POINTER(NativeEvent))),
    "p4r_endpoint_state": (c_size_t, (c_void_p, c_int64, c_void_p, c_size_t)),
    "p4r_endpoint_counters": (None, (c_void_p, ctypes.POINTER(NativeCounters))),
    "p4r_endpoint_progress": (None, (c_void_p, ctypes.POINTER(NativeProgress))),
    "p4r_driver_new": (c_void_p, (ctypes.POINTER(NativeConfig), c_char_p, c_char_p, c_size_t)),
    "p4r_driver_stop": (None, (c_void_p,)),
    "p4r_link_free": (None, (c_void_p,)),
    "p4r_link_post": (c_uint64, (c_void_p, ctypes.POINTER(NativeOperation), c_char_p, c_size_t)),
    "p4r_link_wait": (c_int, (c_void_p, c_uint64, c_int, c_int64)),
    "p4r_link_done": (c_uint64, (c_void_p, c_int)),
    "p4r_link_abort": (None, (c_void_p,)),
    "p4r_link_failure": (c_int, (c_void_p, ctypes.POINTER(NativeEvent))),
    "p4r_link_counters": (None, (c_void_p, ctypes.POINTER(NativeCounters))),
    "p4r_link_progress": (None, (c_void_p, ctypes.POINTER(NativeProgress))),
    "p4r_messages_new": (c_void_p, (ctypes.POINTER(NativeConfig), c_char_p, c_size_t)),
    "p4r_messages_bytes": (c_size_t, (c_void_p,)),
    "p4r_messages_next_send": (c_size_t, (c_void_p, c_void_p, c_size_t, c_int64)),
    "p4r_messages_acknowledged": (None, (c_void_p, c_size_t)),
    "p4r_messages_receive": (c_int, (c_void_p, c_void_p, c_size_t, c_int64)),
    "p4r_messages_fail": (None, (c_void_p, c_uint32, c_char_p)),
    "p4r_messages_state": (c_size_t, (c_void_p, c_void_p, c_size_t)),
    "p4r_crc32": (c_uint32, (c_uint32, c_char_p, c_size_t)),
    "p4r_encode_lanes": (None, (c_int, c_int, c_void_p, c_size_t, c_void_p, c_int, c_int)),
    "p4r_decode_lanes": (None, (c_int, c_int, c_void_p, c_size_t, c_void_p, c_int, c_uint32, c_int)),
    "p4r_encode_half": (None, (c_int, c_void_p, c_size_t, c_void_p, c_int)),
    "p4r_decode_half": (None, (c_int, c_void_p, c_size_t, c_void_p, c_int, c_uint32)),
    "p4r_leave_residual": (None, (c_void_p, c_size_t, c_int)),
    "p4r_keep": (None, (c_void_p, c_size_t, c_void_p)),
    "p4r_fold": (None, (c_int, c_int, c_void_p, c_void_p, c_size_t)),
    "p4r_sum_rows": (None, (c_int, c_void_p, c_size_t, c_size_t, c_size_t, c_uint32, c_void_p)),
    "p4r_sum_floats": (
        None,
        (c_int, ctypes.POINTER(c_void_p), c_size_t, c_size_t, c_int, c_void_p),
    ),
    "p4r_round_floats": (None, (c_int, c_void_p, c_size_t, c_int, c_uint32, c_void_p)),
    "p4r_has_special": (c_int, (c_int, c_void_p, c_size_t)),
    "p4r_divide": (None, (c_int, c_void_p, c_size_t, c_uint32)),
    "p4r_float_mode_enter": (c_uint64, ()),
    "p4r_float_mode_leave": (None, (c_uint64,)),
    "p4r_counter_wait": (c_int, (c_void_p, c_uint32, c_int64)),
    "p4r_counter_set": (None, (c_void_p, c_uint32)),
    "p4r_counter64_wait": (c_int, (c_void_p, c_uint64, c_int64)),
    "p4r_counter64_set": (None, (c_void_p, c_uint64)),
    "p4r_counter64_get": (c_uint64, (c_void_p,)),
    "p4r_exponents_of_blocks": (None, (c_int, c_void_p, c_void_p, c_size_t, c_uint64, c_void_p)),
    "p4r_encode_blocks": (
        None,
        (c_int, c_void_p, c_void_p, c_size_t, c_uint64, c_void_p, c_int, c_void_p),
    ),
    "p4r_decode_blocks": (
        None,
        (c_int, c_void_p, c_void_p, c_size_t, c_uint64, c_void_p, c_int, c_uint32, c_void_p),
    ),
    "p4r_sum_words": (None, (ctypes.POINTER(c_void_p), c_size_t, c_size_t, c_void_p)),
}


@cache
def library() -> ctypes.CDLL:
    """Return the native library, loaded once. NativeLibraryError says how to build it."""
    return loaded(LIBRARY, _PROTOTYPES)


def loaded(path: Path, prototypes: dict[str, tuple[Any, tuple[Any, ...]]]) -> ctypes.CDLL:
    """Load a library of this interface version, and declare its functions' types. NativeLibraryError."""
    remedy = "build it with 'pip install .' or 'python setup.py build_ext --inplace'"
    try:
        lib = ctypes.CDLL(str(path))
        for name, (result, arguments) in prototypes.items():
            function = getattr(lib, name)
            function.restype, function.argtypes = result, arguments
        version = lib.p4r_abi_version()
    except (OSError, AttributeError) as error:
        raise NativeLibraryError(f"the native library {path} does not load ({error}): {remedy}") from error
    if version != ABI_VERSION:
        raise NativeLibraryError(f"{path} has interface version {version}, not {ABI_VERSION}: {remedy}")
    return lib


def native_config(config: TransportConfig) -> NativeConfig:
    native = NativeConfig(
        own_ip=int(config.ip),
        successor_ip=int(config.successor.ip),
        predecessor_ip=int(config.predecessor.ip),
        qpn_out=config.qpn_out,
        psn_out=config.psn_out,
        qpn_in=config.qpn_in,
        successor_qpn=config.successor.qpn_in,
        predecessor_qpn=config.predecessor.qpn_out,
        predecessor_psn=config.predecessor.psn_out,
        in_flight_bytes=config.in_flight_bytes or 0,
        **{name: getattr(config, name) for name in _PARAMETERS},
        **{f"{name}_ns": round(getattr(config, f"{name}_s") * 1e9) for name in _TIMEOUTS},
    )
    for field, mac in zip(_MACS, (config.mac, config.successor.mac, config.predecessor.mac), strict=True):
        setattr(native, field, (c_uint8 * 6)(*parse_mac(mac)))
    return native


def native_operation(operation: Operation) -> NativeOperation:
    send, receive = operation.send, operation.receive
    sent = 0 if send is None else send.size
    received = operation.receive_elements
    if received is None:
        received = 0 if receive is None else receive.size
    return NativeOperation(  # by place: with names it takes twice as long
        None if send is None else send.ctypes.data,
        None if receive is None else receive.ctypes.data,
        None if operation.special is None else operation.special.ctypes.data,
        sent,
        received,
        max(sent, received) if operation.cut_elements is None else operation.cut_elements,
        operation.total_elements,
        operation.collective,
        operation.divisor,
        operation.switch_op,
        operation.element_type,
        operation.reduction,
        operation.arrival,
        operation.element_size,
        operation.invert,
        operation.element_type if operation.header_type is None else operation.header_type,
        operation.kind,
        operation.root,
        operation.stage,
        operation.residual,
    )


def failure_of(event: NativeEvent, config: TransportConfig) -> Failure:
    """Return a fatal event with the worker it happened to."""
    return Failure(
        code=FailureCode(event.code),
        message=event.message,
        psn=event.psn,
        text=f"rank {config.rank}: {event.text.decode()}",
        header=bytes(event.header[: event.header_bytes]),
    )


def event_of(event: NativeEvent, config: TransportConfig) -> Event:
    kind = EventType(event.type)
    failure = failure_of(event, config) if kind is EventType.FAILED else None
    return Event(type=kind, op_id=event.op_id, failure=failure)


def read_counters(read: Callable[[Any], object]) -> Counters:
    native = NativeCounters()
    read(ctypes.byref(native))
    return Counters(**{name: int(getattr(native, name)) for name in _COUNTERS})


def read_progress(read: Callable[[Any], object]) -> Progress:
    native = NativeProgress()
    read(ctypes.byref(native))
    values = {name: int(getattr(native, name)) for name in _PROGRESS}
    return Progress(**{**values, "failed": bool(native.failed)})  # type: ignore[arg-type]


def read_state(read: Callable[[Any, int], int]) -> bytes:
    buffer = ctypes.create_string_buffer(4096)
    length = read(buffer, len(buffer))
    if length > len(buffer):
        buffer = ctypes.create_string_buffer(length)
        read(buffer, length)
    return buffer.raw[:length]


def address_text(address: IPv4Address, qpn: int) -> str:
    return f"{address} (QP {qpn:#08x})"

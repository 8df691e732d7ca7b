"""Reports of a device in words: completions with an error, events, and its own counters."""

from __future__ import annotations

from enum import IntEnum
from pathlib import Path
from typing import Final

from controller.api.messages import RcParameters
from host_agent.transport.config import TransportConfig
from host_agent.transport.events import FailureCode
from host_agent.transport.native import address_text


class Status(IntEnum):
    """Values of ibv_wc_status, those that an RC queue pair of SENDs can have."""

    SUCCESS = 0
    LOC_LEN_ERR = 1
    LOC_QP_OP_ERR = 2
    LOC_PROT_ERR = 4
    WR_FLUSH_ERR = 5  # the queue pair is in the error state; the reason came before
    BAD_RESP_ERR = 7
    LOC_ACCESS_ERR = 8
    REM_INV_REQ_ERR = 9
    REM_ACCESS_ERR = 10
    REM_OP_ERR = 11
    RETRY_EXC_ERR = 12
    RNR_RETRY_EXC_ERR = 13
    REM_ABORT_ERR = 16
    FATAL_ERR = 19
    RESP_TIMEOUT_ERR = 20
    GENERAL_ERR = 21


class DeviceEvent(IntEnum):
    """Values of ibv_event_type, those that are of interest here."""

    CQ_ERR = 0
    QP_FATAL = 1
    QP_REQ_ERR = 2
    QP_ACCESS_ERR = 3
    DEVICE_FATAL = 8
    PORT_ACTIVE = 9
    PORT_ERR = 10


FATAL_EVENTS: Final = frozenset(
    (
        DeviceEvent.CQ_ERR,
        DeviceEvent.QP_FATAL,
        DeviceEvent.QP_REQ_ERR,
        DeviceEvent.QP_ACCESS_ERR,
        DeviceEvent.DEVICE_FATAL,
    )
)
_REMOTE: Final = (Status.REM_INV_REQ_ERR, Status.REM_ACCESS_ERR, Status.REM_OP_ERR, Status.REM_ABORT_ERR)


def failure_of(
    status: int, *, receiving: bool, config: TransportConfig, rc: RcParameters, device: str
) -> tuple[FailureCode, str]:
    """Explain a completion with an error, and what to do about it."""
    successor = address_text(config.successor.ip, config.successor.qpn_in)
    predecessor = address_text(config.predecessor.ip, config.predecessor.qpn_out)
    name = Status(status).name if status in Status._value2member_map_ else "unknown"
    if status == Status.RETRY_EXC_ERR:
        return FailureCode.RETRY_LIMIT, (
            f"no acknowledgement from the successor {successor} after {rc.retry_count} retransmissions, "
            f"{timeout_text(rc.timeout)} each at least (timeout {rc.timeout}, retry_count "
            f"{rc.retry_count}): it or the way to it is down; if it is only slow, raise rc_timeout in the "
            f"controller's configuration"
        )
    if status == Status.RNR_RETRY_EXC_ERR:
        return FailureCode.RETRY_LIMIT, (
            f"the successor {successor}, or the switch for it, was not ready more than {rc.rnr_retry} times "
            f"in a row: set rc_rnr_retry to 7 (for ever) in the controller's configuration"
        )
    if status in _REMOTE:
        return FailureCode.REMOTE_ERROR, (
            f"the successor {successor} refused a message (completion status {status}, {name}): it failed, "
            f"or its receive buffers are smaller than the job's messages"
        )
    where = f"receiving from {predecessor}" if receiving else f"sending to {successor}"
    return FailureCode.LOCAL_ERROR, (
        f"RDMA device {device} reported completion status {status} ({name}) {where}: its log (dmesg) may say "
        f"more"
    )


def timeout_text(exponent: int) -> str:
    """Return an RC timeout in words (InfiniBand specification, vol. 1, 9.7.6.1.3)."""
    return "no limit" if exponent == 0 else f"{4.096e-3 * 2**exponent:.3g} ms"


# Which of a device's counters say what `Counters` means: rdma_rxe's names, then mlx5's.
_MEANING: Final = {
    "go_backs": ("completer_retry_err",),
    "timeouts": ("local_ack_timeout_err",),
    "naks_received": ("rcvd_seq_err", "packet_seq_err"),
    "rnr_naks_received": ("rcvd_rnr_err", "rnr_nak_retry_err"),
    "rnr_naks_sent": ("send_rnr_err",),
    "duplicates_received": ("duplicate_request",),
    "out_of_order_received": ("out_of_seq_request", "out_of_sequence"),
}


def read_device_counters(folder: Path) -> dict[str, int]:
    """Read the device's counters by their names in `Counters`; what it does not count is missing."""
    counters = {}
    for field, names in _MEANING.items():
        for name in names:
            try:
                counters[field] = int((folder / name).read_text())
            except (OSError, ValueError):  # not this device's name for it
                continue
    return counters

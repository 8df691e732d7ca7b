"""A worker's metrics for Prometheus: its collectives, and their traffic on the wire."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from controller.api.messages import Mode
from controller.telemetry import address as addresses
from controller.telemetry.address import VARIABLE, MetricsError
from controller.telemetry.server import MetricsServer
from controller.telemetry.sockets import UNIX
from host_agent.errors import UsageError
from host_agent.transport.events import Counters

if TYPE_CHECKING:
    from prometheus_client.core import Metric

SOCKETS: Final = "agent-*.sock"  # in a directory
WHOSE: Final = ".json"  # beside the socket: whose it is, for when that cannot answer any more

_LOG = logging.getLogger(__name__)
_NUMBERS = itertools.count()

_COUNTERS: Final[Mapping[str, tuple[str, str]]] = {
    "data_packets_sent": ("data_packets_sent", "Data packets sent, resent ones included."),
    "data_bytes_sent": ("data_sent_bytes", "Bytes of the data frames sent, resent ones included."),
    "data_packets_received": ("data_packets_received", "Data packets received."),
    "data_bytes_received": ("data_received_bytes", "Bytes of the data frames received."),
    "retransmitted_packets": ("retransmitted_packets", "Data packets sent again."),
    "retransmitted_bytes": ("retransmitted_bytes", "Bytes of the data frames sent again."),
    "timeouts": ("timeouts", "Times that an acknowledgement did not come in time."),
    "go_backs": ("go_backs", "Times that sending began again at an earlier packet."),
    "tail_probes": (
        "tail_probes",
        "Times that the ends of what was sent were sent again after some silence.",
    ),
    "kept_packets": (
        "kept_packets",
        "Data packets received behind a gap and kept, of selective retransmission.",
    ),
    "duplicates_received": ("duplicate_packets_received", "Data packets received that were there already."),
    "out_of_order_received": ("out_of_order_packets_received", "Data packets received behind a gap."),
    "messages_sent": ("messages_sent", "Messages sent and acknowledged."),
    "messages_received": ("messages_received", "Messages received."),
    "results_received": ("results_received", "Messages received that a switch has summed."),
    "frames_blocked": ("frames_blocked", "Frames that waited for room at the interface."),
    "send_errors": ("send_errors", "Frames lost because the interface was down."),
}
_ACKNOWLEDGEMENTS: Final = (
    ("sent", "ack", "acks_sent"),
    ("sent", "nak", "naks_sent"),
    ("sent", "rnr_nak", "rnr_naks_sent"),
    ("received", "ack", "acks_received"),
    ("received", "nak", "naks_received"),
    ("received", "rnr_nak", "rnr_naks_received"),
    ("received", "stale", "stale_acks"),
)
_DROPS: Final = (
    ("bad_icrc", "icrc_errors"),
    ("malformed", "malformed"),
    ("foreign", "foreign"),
    ("ring_full", "ring_drops"),
)


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """Counts of a communicator so far. Bytes are of whole data frames, resent ones included.

    `ring_reason`: why the job went by ring, now or the last time; empty if it never did.
    An RDMA device resends by itself and does not tell how much. There, packets and bytes are without what was
    resent, `retransmissions` is 0, and the rest comes from the device's own counters (see `VerbsLink`).
    """

    collectives: int
    in_network: int
    ring: int
    non_finite_fallbacks: int
    busy_s: float
    bytes_sent: int
    packets_sent: int
    retransmissions: int
    duplicates: int
    timeouts: int
    renewals: int = 0
    ring_reason: str = ""


class Counted(Protocol):
    """The part of a `Communicator` that the metrics need."""

    @property
    def rank(self) -> int: ...

    @property
    def mode(self) -> Mode: ...

    def counters(self) -> Counters: ...

    def statistics(self) -> Statistics: ...

    def status(self, job: str) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Where:
    """An address, or a directory for a socket. `required`: the user asked for it; a failure is an error."""

    address: str = ""
    directory: Path | None = None
    required: bool = False

    def expose(self, communicator: Counted, *, job: str) -> Exposed | None:
        """Serve a communicator's metrics. On failure raise UsageError if it was asked for, else return
        None.
        """
        address = self.address
        if self.directory is not None:
            _remove_abandoned(self.directory)
            address = f"{UNIX}{self.directory / SOCKETS.replace('*', f'{os.getpid()}-{next(_NUMBERS)}')}"
        try:
            exposed = Exposed(address, AgentMetrics(communicator, job=job))
            if self.directory is not None:
                exposed.say_whose(job, communicator.rank)
            return exposed
        except MetricsError as error:
            if self.required:
                raise UsageError(str(error)) from error
            _LOG.warning("%s", error)
            return None


def where(asked: str | None) -> Where | None:
    """Return where metrics go: as asked for, else as the environment says; None for nowhere. UsageError."""
    text = os.environ.get(VARIABLE, "") if asked is None else asked
    if not text:
        return None
    if asked is None and Path(text).is_absolute():
        return Where(directory=Path(text))
    try:
        addresses.parse(text)
    except MetricsError as error:
        raise UsageError(str(error) if asked is not None else f"${VARIABLE}: {error}") from error
    return Where(address=text, required=asked is not None)


def _remove_abandoned(directory: Path) -> None:
    """Remove the sockets of workers that were killed, if this one may."""
    for path in directory.glob(SOCKETS):
        pid = path.name.split("-")[1]
        if not Path("/proc", pid).exists():
            for file in (path, path.with_suffix(WHOSE)):
                with contextlib.suppress(OSError):
                    file.unlink()


class Exposed:
    """Metrics that are being served. After `close` nothing asks the communicator any more."""

    def __init__(self, address: str, metrics: AgentMetrics) -> None:
        self._metrics = metrics
        self._server = MetricsServer(address, metrics.collect, state=metrics.status)
        self.address = self._server.address
        self._whose: Path | None = None

    def say_whose(self, job: str, rank: int) -> None:
        """Write beside the Unix socket who this is: a worker that is stopped does not answer."""
        if self.address.path is not None:
            whose = {
                "job": job,
                "rank": rank,
                "pid": os.getpid(),
                "started": _started(),
                "namespace": os.stat("/proc/self/ns/net").st_ino,
            }
            self._whose = self.address.path.with_suffix(WHOSE)
            try:
                self._whose.write_text(json.dumps(whose))
            except OSError as error:  # a full disk is no reason to fail
                _LOG.warning("%s: %s", self._whose, error)

    def close(self) -> None:
        """Stop serving. Idempotent."""
        self._metrics.close()
        self._server.close()
        if self._whose is not None:
            self._whose.unlink(missing_ok=True)


def _started() -> int:
    """Return when this process started, in clock ticks since boot: field 22 of /proc/self/stat (proc(5))."""
    return int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])


class AgentMetrics:
    """A communicator as Prometheus' metric families, labelled with its job and rank."""

    def __init__(self, communicator: Counted, *, job: str) -> None:
        self._communicator = communicator
        self._job = job
        self._lock = threading.Lock()
        self._closed = False

    def close(self) -> None:
        """Refuse requests from now on: the communicator is going away."""
        with self._lock:
            self._closed = True

    def status(self) -> dict[str, Any]:
        """Return the worker's status. MetricsError after `close`."""
        with self._lock:
            if self._closed:
                raise MetricsError("this worker is leaving its job")
            return self._communicator.status(self._job)

    def collect(self) -> Iterator[Metric]:
        """Return all families, as they are now. MetricsError after `close`."""
        with self._lock:
            if self._closed:
                raise MetricsError("this worker is leaving its job")
            tally, wire = self._communicator.statistics(), self._communicator.counters()
            in_network = self._communicator.mode is Mode.IN_NETWORK
        return self._families(tally, wire, in_network)

    def _families(self, tally: Statistics, wire: Counters, in_network: bool) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        mine = {"job": self._job, "rank": str(self._communicator.rank)}

        def family(
            kind: Any, name: str, text: str, *values: tuple[str | float, ...], by: tuple[str, ...] = ()
        ) -> Metric:
            """Make a family of `values`; each comes last behind its own labels."""
            made: Metric = kind(f"p4reduce_agent_{name}", text, labels=(*mine, *by))
            for *labels, value in values:
                made.add_metric((*mine.values(), *labels), value)  # type: ignore[attr-defined]
            return made

        counter = partial(family, CounterMetricFamily)
        ways = ("in_network", tally.in_network), ("ring", tally.ring)
        yield counter(
            "collectives", "Collectives that have run, by how their data travelled.", *ways, by=("strategy",)
        )
        fallbacks = "Collectives by ring because of an infinity or NaN."
        yield counter("non_finite_fallbacks", fallbacks, (tally.non_finite_fallbacks,))
        yield counter("busy_seconds", "Time spent in collectives.", (tally.busy_s,))
        yield counter("renewals", "Times that the job went on under a new generation.", (tally.renewals,))
        where = "Whether the switches make the job's sums now."
        yield family(GaugeMetricFamily, "in_network", where, (float(in_network),))
        for field, (name, text) in _COUNTERS.items():
            yield counter(name, text, (getattr(wire, field),))
        yield counter(
            "acknowledgements",
            "Acknowledgements and negative ones; stale: of what was acknowledged already.",
            *((direction, kind, getattr(wire, field)) for direction, kind, field in _ACKNOWLEDGEMENTS),
            by=("direction", "kind"),
        )
        drops = ((reason, getattr(wire, field)) for reason, field in _DROPS)
        yield counter("dropped_packets", "Received frames that were not used.", *drops, by=("reason",))

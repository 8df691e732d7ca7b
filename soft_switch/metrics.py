"""The switch's own counts for Prometheus: what the engine saw on each port. P4 counters are not here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from soft_switch.dataplane import DataPlane

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_TRAFFIC: Final = (
    ("receive_packets", "Frames received.", "rx_packets"),
    ("receive_bytes", "Bytes of the frames received.", "rx_bytes"),
    ("transmit_packets", "Frames sent.", "tx_packets"),
    ("transmit_bytes", "Bytes of the frames sent.", "tx_bytes"),
)
# How frames were lost at a port, and the count of each.
_LOSSES: Final = (
    ("receive", "ring_full", "rx_dropped"),
    ("receive", "oversize", "rx_oversize"),
    ("receive", "on_request", "rx_lost"),
    ("transmit", "queue_full", "tx_dropped"),
    ("transmit", "error", "tx_errors"),
    ("transmit", "on_request", "tx_lost"),
)
_WAYS: Final = {"in": "receive", "out": "transmit"}
_GLOBAL: Final = (
    ("no_port_packets", "Frames for a port that is not there.", "no_port"),
    ("too_long_packets", "Frames that the program made longer than any frame can be.", "too_long"),
    (
        "control_events_dropped",
        "Packet-ins, digests and log lines that nobody took in time.",
        "events_dropped",
    ),
    ("failed_asserts", "Assertions of the program that did not hold.", "failed_asserts"),
    ("passes_dropped", "Packets that were to go through the program again and did not.", "passes_dropped"),
)


class SwitchMetrics:
    """A data plane as Prometheus' metric families; as many series as there are ports."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane

    def collect(self) -> Iterator[Metric]:
        """Yield all families, as they are now."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        ports, stats = self._plane.ports(), self._plane.stats()
        yield GaugeMetricFamily(
            "p4reduce_switch_program_loaded",
            "Whether the switch has a P4 program.",
            value=float(self._plane.program is not None),
        )
        of_port = ("port", "interface")
        for name, text, field in _TRAFFIC:
            traffic = CounterMetricFamily(f"p4reduce_switch_port_{name}", text, labels=of_port)
            for number, port in ports.items():
                traffic.add_metric((str(number), port.interface), getattr(port, field))
            yield traffic
        lost = CounterMetricFamily(
            "p4reduce_switch_port_lost_packets",
            "Frames lost at a port of the switch, by direction and reason.",
            labels=(*of_port, "direction", "reason"),
        )
        up = GaugeMetricFamily(
            "p4reduce_switch_port_up", "Whether the interface has a carrier.", labels=of_port
        )
        again = CounterMetricFamily(
            "p4reduce_switch_port_reopened", "How often the interface came back.", labels=of_port
        )
        faults = CounterMetricFamily(
            "p4reduce_switch_port_faults",
            "Frames that faults on purpose have struck at a port, by direction and kind.",
            labels=(*of_port, "direction", "kind"),
        )
        for number, port in ports.items():
            labels = (str(number), port.interface)
            for (way, kind), count in self._plane.struck(number).items():
                faults.add_metric((*labels, _WAYS[way], kind.value), count)
            up.add_metric(labels, port.up)
            again.add_metric(labels, port.reopened)
            for direction, reason, field in _LOSSES:
                lost.add_metric((*labels, direction, reason), getattr(port, field))
        yield from (lost, faults, up, again)
        for name, text, field in _GLOBAL:
            yield CounterMetricFamily(f"p4reduce_switch_{name}", text, value=getattr(stats, field))

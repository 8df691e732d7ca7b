"""All metrics of a running cluster, from outside: those of each of its processes, labelled with its source.

| label | value |
| --- | --- |
| cluster | its name |
| component | controller, switch, agent, or cluster (from the kernel and the cluster's record) |
| switch | the switch, for metrics of a switch itself and for those that the controller has of it |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from controller.config import Target
from controller.service.metrics import TIMEOUT_S as CONTROLLER_S
from controller.telemetry import client
from controller.telemetry.address import Address, MetricsError
from host_agent.metrics import SOCKETS
from p4reduce.live import reading
from topologies import state, wires
from topologies.errors import TopologyError
from topologies.state import ClusterState

_AT_ONCE: Final = 8
_TIMEOUT_S: Final = CONTROLLER_S + 1.0  # the controller waits for switches
_BYTES_PER_MBIT: Final = 1e6 / 8

Labels = dict[str, str]


@dataclass(frozen=True)
class Teller:
    """A process that tells metrics, by the path of its socket. `required`: the cluster needs it."""

    path: Path
    labels: Mapping[str, str]
    required: bool = True


class ClusterMetrics:
    """The metrics of the cluster `name`. The other parameters are for tests."""

    def __init__(
        self,
        name: str,
        *,
        find: Callable[[str], ClusterState] = state.running,
        fetch: Callable[[Path], str] = lambda path: client.fetch(Address(path=path), timeout_s=_TIMEOUT_S),
        interfaces: Callable[[ClusterState], Mapping[str, Any]] = wires.interfaces,
    ) -> None:
        self.name = name
        self._find = find
        self._fetch = fetch
        self._interfaces = interfaces

    def collect(self) -> Iterable[Metric]:
        """Return all families; if the cluster does not run, only `p4reduce_up`."""
        up = GaugeMetricFamily("p4reduce_up", "Whether it runs, and tells its metrics.")
        merged = _Merged()
        try:
            cluster = self._find(self.name)
        except TopologyError:
            up.add_sample(up.name, {"cluster": self.name, "component": "cluster"}, 0)
            return [up]
        up.add_sample(up.name, {"cluster": self.name, "component": "cluster"}, 1)
        for teller, text in self._ask(tellers(cluster)):
            if teller.required:
                up.add_sample(up.name, {"cluster": self.name, **teller.labels}, float(text is not None))
            for family in text_string_to_metric_families(text or ""):
                merged.add(family, {"cluster": self.name, **teller.labels})
        for family in self._own(cluster):
            merged.add(family, {"cluster": self.name, "component": "cluster"})
        return [up, *merged.families()]

    def _ask(self, whom: list[Teller]) -> Iterator[tuple[Teller, str | None]]:
        """Yield each process's metrics; None if it does not answer."""

        def ask(teller: Teller) -> str | None:
            try:
                return self._fetch(teller.path)
            except MetricsError:
                return None

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            yield from zip(whom, pool.map(ask, whom), strict=True)

    def _own(self, cluster: ClusterState) -> Iterator[Metric]:
        info = GaugeMetricFamily(
            "p4reduce_cluster_info", "What the cluster is.", labels=("topology", "target", "path_mtu")
        )
        info.add_metric((cluster.topology, cluster.target, str(cluster.path_mtu)), 1)
        yield info
        try:
            lines = reading.lines(cluster, self._interfaces(cluster))
        except TopologyError:  # it is going away just now
            return
        way = ("link", "direction")
        octets = CounterMetricFamily(
            "p4reduce_link_bytes",
            "Bytes over a link, as the kernel counts; up: away from the host, or to the spine.",
            labels=way,
        )
        packets = CounterMetricFamily(
            "p4reduce_link_packets", "Frames over a link, as the kernel counts.", labels=way
        )
        carrier = GaugeMetricFamily("p4reduce_link_carrier", "Whether both ends are up.", labels=("link",))
        rate = GaugeMetricFamily(
            "p4reduce_link_rate_bytes_per_second", "What a link can carry, each way.", labels=("link",)
        )
        for name, line in lines.items():
            for direction, traffic in (("up", line.up), ("down", line.down)):
                octets.add_metric((name, direction), traffic.bytes)
                packets.add_metric((name, direction), traffic.packets)
            carrier.add_metric((name,), float(line.is_up))
            if line.rate_mbit is not None:
                rate.add_metric((name,), line.rate_mbit * _BYTES_PER_MBIT)
        yield from (octets, packets, carrier, rate)


def tellers(cluster: ClusterState) -> list[Teller]:
    """Return the processes that tell metrics. BMv2 tells none: the controller tells what it reads from it."""
    found = [Teller(cluster.metrics / "controller.sock", {"component": "controller"})]
    for switch in cluster.switches:
        if switch.target == Target.EMBEDDED.value:
            labels = {"component": "switch", "switch": switch.name}
            found.append(Teller(cluster.metrics / f"switch-{switch.name}.sock", labels))
    agents = sorted(cluster.metrics.glob(SOCKETS)) if cluster.metrics.is_dir() else []
    return [*found, *(Teller(path, {"component": "agent"}, required=False) for path in agents)]


class _Merged:
    """Families by name, without duplicate samples: a lingering worker may have the place of a newer one."""

    def __init__(self) -> None:
        self._families: dict[str, Metric] = {}
        self._samples: dict[str, dict[tuple[str, frozenset[tuple[str, str]]], Sample]] = {}

    def add(self, family: Metric, labels: Labels) -> None:
        """Add a family's samples, with `labels` in front of their own."""
        self._families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
        samples = self._samples.setdefault(family.name, {})
        for sample in family.samples:
            told = {**labels, **sample.labels}
            samples[sample.name, frozenset(told.items())] = Sample(sample.name, told, sample.value)

    def families(self) -> Iterator[Metric]:
        """Yield all families."""
        for name, family in self._families.items():
            family.samples = list(self._samples[name].values())
            yield family

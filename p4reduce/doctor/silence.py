"""The case that no ping comes back although links and switches are up, and no finding names the link."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from p4reduce.doctor import words
from p4reduce.doctor.control import stopped_do
from p4reduce.doctor.earlier import injected
from p4reduce.doctor.facts import Echo, Facts, Observation, ProcessState
from p4reduce.doctor.findings import Finding, error
from topologies.state import ClusterState, HostState

_SHOWN = 4  # links
_TURNS = 2  # a machine that is short of time delays a few pings; a switch may just have been away
_NAME_A_LINK = frozenset({"loss", "corruption"})


def silence(facts: Facts, found: Sequence[Finding]) -> Iterator[Finding]:
    """Yield one finding for all links concerned; none if one of the `found` findings names a link of them."""
    hosts = silent_hosts(facts.cluster, facts.now, facts.echoes)
    if not hosts or facts.echo_turns < _TURNS or not _are_ready(facts) or _has_received(facts):
        return
    links = [f"{host.name}:{host.switch}" for host in hosts]
    if any(finding.code in _NAME_A_LINK and finding.where in ("", *links) for finding in found):
        return  # without a place: several of them
    more = [f"{len(links) - _SHOWN} more"] if len(links) > _SHOWN else []
    says = f"nothing comes through links {words.listed([*links[:_SHOWN], *more])}, which are up"
    do: tuple[str, ...] = (
        *(
            f"p4reduce exec {host.name} ip -s link show dev {host.interface}  (does it send, receive?)"
            for host in hosts[:_SHOWN]
        ),
        "p4reduce show ports  (twice: do packets come to the switch, and leave it?)",
        "p4reduce plan  (are its routes there? 'p4reduce rollback' puts them right)",
        *injected(facts),
    )
    process = facts.now.processes.get("wires")
    if process is not None and process.state is ProcessState.STOPPED:
        says += f": the process that is all links' wires ({process.pid}) is stopped (SIGSTOP)"
        do = stopped_do(process)
    yield error(
        code="fabric-silent",
        says=says,
        evidence=("no ping over the fabric between their hosts came back, twice in a row",),
        do=do,
    )


def silent_hosts(
    cluster: ClusterState, observation: Observation, echoes: Mapping[tuple[str, str], Echo]
) -> list[HostState]:
    """Return the hosts whose due pings all failed to come back; none if any ping came back.

    A ping is not due over a link or through a switch that is down, or between leaves while an uplink is down.
    """
    if not _are_well(observation):
        return []
    up = {
        host.name: host.switch
        for host in cluster.hosts
        if (line := observation.lines.get(f"{host.name}:{host.switch}")) is not None and line.is_up
    }
    crosses = all(line.is_up for line in observation.lines.values() if line.uplink) and all(
        link.up for link in observation.links.value or ()
    )
    due = {
        (one, other): echo
        for (one, other), echo in echoes.items()
        if one in up and other in up and (crosses or up[one] == up[other])
    }
    if any(echo.received for echo in due.values()):
        return []
    return [host for host in cluster.hosts if any(host.name in pair for pair in due)]


def _are_well(observation: Observation) -> bool:
    return all(
        process.is_well for name, process in observation.processes.items() if name.startswith("switch ")
    )


def _are_ready(facts: Facts) -> bool:
    """Return whether all switches had their programs in both observations. Only the controller knows."""
    return all(
        _are_well(observation)
        and observation.status.value is not None
        and all(info.connected for info in observation.status.value.switches)
        for observation in (facts.before, facts.now)
    )


def _has_received(facts: Facts) -> bool:
    """Return whether a worker has received anything meanwhile: if so, the pings were only late."""
    before = {(w.job, w.rank): w.status for w in facts.before.workers}
    return any(
        (worker.status.acked, worker.status.received) != (then.acked, then.received)
        for worker in facts.now.workers
        if worker.status is not None and (then := before.get((worker.job, worker.rank))) is not None
    )

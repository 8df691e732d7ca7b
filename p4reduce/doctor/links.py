"""Findings about links that are down, or that lose, double, damage or delay packets."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from controller.api import controller_pb2 as pb
from p4reduce.doctor import counting, growing, words
from p4reduce.doctor.earlier import KINDS, earlier, injected, merged
from p4reduce.doctor.facts import Facts, Observation, ProcessState, Worker
from p4reduce.doctor.findings import Finding, error, note, warning
from p4reduce.doctor.probing import pairs_of
from p4reduce.doctor.unwanted import asked_to_wait, late_copies, unwanted
from p4reduce.live.reading import WorkerKey, counted
from topologies.state import HostState

_LATE_MS = 8.0  # what an echo may take on a link that is not slower than others
_TIMES = 5.0
_MAKE_GAPS = frozenset({"loss", "corruption", "link-down", "cut-off", "uplink-down", "uplink-silent"})
_MANY = 3  # findings of one kind that become one
_DOMINATES = 2.0


def links(facts: Facts) -> Iterator[Finding]:
    """Yield all findings about links."""
    found = list(_down(facts))
    down = {finding.where for finding in found}
    for host in facts.cluster.hosts:
        if f"{host.name}:{host.switch}" not in down:
            found += _host_link(facts, host)
    for link in facts.cluster.links:
        if link.name not in down:
            for one, port, other in ((link.a, link.a_port, link.b), (link.b, link.b_port, link.a)):
                found += _lost_at_port(facts, one, port, link.name, other)
    codes = {finding.code for finding in found}
    if not codes & _MAKE_GAPS:
        found += _overtaking(facts)
    found += unwanted(facts, is_damaged="corruption" in codes)
    found += _overflows(facts)
    if not codes & _MAKE_GAPS and not any(finding.code in ("reordering", "gaps") for finding in found):
        found += late_copies(facts)
    yield from asked_to_wait(facts)
    losses = [finding for finding in found if finding.code == "loss"]
    several = len(losses) >= _MANY and len({finding.where for finding in losses}) > 1
    yield from [_all_lose(facts, losses)] if several else losses
    yield from (finding for finding in found if finding.code not in KINDS and finding.code != "loss")
    yield from merged([finding for finding in found if finding.code in KINDS])


def _all_lose(facts: Facts, losses: Sequence[Finding]) -> Finding:
    """Merge the losses of several links into one finding; each link loses in one direction or both."""
    shown = [finding.says.removeprefix("link ").replace(" loses packets", "") for finding in losses]
    return warning(
        code="loss",
        says=f"{len({finding.where for finding in losses})} links lose packets: {'; '.join(shown)}",
        evidence=tuple(dict.fromkeys(line for f in losses for line in f.evidence if "again" in line)),
        do=(
            "so many at once have one cause: a switch that is short of time, cables of one kind, a wrong "
            "setting",
            *injected(facts),
        ),
    )


def _down(facts: Facts) -> Iterator[Finding]:
    said = {f"{link.a}:{link.b}": link for link in facts.now.links.value or ()}
    for name, line in facts.now.lines.items():
        link = said.get(name)
        if not line.is_up:
            yield error(
                code="uplink-down" if line.uplink else "link-down",
                says=f"link {name} is down" + (f": {_instead(name, said)}" if line.uplink else ""),
                where=name,
                do=(
                    f"p4reduce link up {name}"
                    if line.uplink
                    else f"p4reduce fault link up {name.partition(':')[0]}",
                ),
            )
        elif link is not None and "drained" in link.state:
            yield note(
                code="drained",
                says=f"link {name} is not used because it is drained: {link.state}",
                where=name,
            )
        elif link is not None and not link.up and (still := _still(facts, link)):
            yield note(
                code="uplink-silent",
                says=f"link {name} carries nothing, as switch {still} does not run: {_instead(name, said)}",
                where=name,
            )
        elif link is not None and not link.up:
            yield error(
                code="uplink-silent",
                says=f"link {name} is up but carries nothing ({link.state}): {_instead(name, said)}",
                where=name,
                do=(f"look at both ends: p4reduce link down {name}; p4reduce link up {name}",),
            )


def _still(facts: Facts, link: pb.Link) -> str:
    """Return the end of a link that is dead or stopped, which has its own finding; empty if both run."""
    for name in (link.a, link.b):
        process = facts.now.processes.get(f"switch {name}")
        if process is None or process.state in (ProcessState.GONE, ProcessState.STOPPED):
            return name
    return ""


def _instead(name: str, said: dict[str, pb.Link]) -> str:
    """Describe where the traffic of a link between switches goes now."""
    leaf = name.partition(":")[0]
    others = [link.b for link in said.values() if link.a == leaf and link.up and f"{link.a}:{link.b}" != name]
    if not others:
        return f"there is no other way out of {leaf}"
    if name in said and said[name].up:
        return (
            f"the controller will notice by its probes, and move what {leaf} sends to {words.listed(others)}"
        )
    return f"what {leaf} sent over it has moved to {words.listed(others)}"


@dataclass(frozen=True)
class _Direction:
    """One direction of a host's link: losses that the switch's port counted, and the bounds from counting."""

    words: str
    now: int
    total: int
    bounds: counting.Bounds


def _host_link(facts: Facts, host: HostState) -> Iterator[Finding]:
    name = f"{host.name}:{host.switch}"
    echoes = pairs_of(host.name, facts.echoes)
    others = [echo for pair, echo in facts.echoes.items() if host.name not in pair]
    if echoes and not any(echo.received for echo in echoes) and _any_came_back(facts, host.name):
        yield error(
            code="cut-off",
            says=f"link {name} is up, but nothing comes through it",
            where=name,
            evidence=(f"no ping over the fabric from or to {host.name} came back",),
            do=(
                f"p4reduce exec {host.name} ip -s link show dev {host.interface}",
                f"p4reduce fault link up {host.name}  (where it was taken down on purpose)",
                *injected(facts),
            ),
        )
        return
    slow = list(_slow(facts, host, [e.fastest_ms for e in echoes], [e.fastest_ms for e in others]))
    yield from slow
    for direction in _directions(facts, host, holds_back=bool(slow)):
        lost = max(direction.now, direction.bounds.lost)
        if lost:
            yield warning(
                code="loss",
                says=f"link {name} loses packets {direction.words}: {lost} in {words.seconds(facts.seconds)}",
                where=name,
                evidence=(*_counts(direction), *_resent(facts, host.name)),
                do=(
                    f"p4reduce exec {host.name} ip -s link show dev {host.interface}  (and the cable, the "
                    f"port)",
                    *injected(facts),
                ),
            )
        elif direction.total:
            yield earlier("has-lost", f"{direction.total} {direction.words}")
        if more := direction.bounds.doubled:
            yield warning(
                code="duplication",
                says=f"link {name} doubles packets {direction.words}: {more} more came out than went in, in "
                f"{words.seconds(facts.seconds)}",
                where=name,
                evidence=("sums stay right: copies are known by rank, message and packet number",),
                do=injected(facts),
            )
    yield from _damaged(facts, host)


def _any_came_back(facts: Facts, host: str) -> bool:
    """Return whether echoes between other hosts came back.

    If none did, the fault is the switch's or everywhere. With two hosts there are no others.
    """
    others = [echo for pair, echo in facts.echoes.items() if host not in pair]
    return any(echo.received for echo in others)


def _directions(facts: Facts, host: HostState, *, holds_back: bool) -> list[_Direction]:
    """Return both directions of a host's link.

    What a link holds back, or a switch without its program, is not lost: the bounds are 0 then.
    """
    port = (host.switch, host.port)
    samples = facts.samples if _is_settled(facts, host.switch) and not holds_back else ()
    found = []
    for towards, side, bounds in (
        (f"from {host.name} to {host.switch}", "receive", counting.to_switch(host.name, samples)),
        (f"from {host.switch} to {host.name}", "transmit", counting.to_host(host.name, samples)),
    ):
        total = _port_count(facts.now, port, side)
        now = growing.growth(total, _port_count(facts.before, port, side))
        found.append(_Direction(words=towards, now=now, total=total, bounds=bounds))
    return found


def _is_settled(facts: Facts, switch: str) -> bool:
    """Return whether a switch had its program in both observations, as far as is known."""
    return all(
        info.connected
        for observation in (facts.before, facts.now)
        for info in (observation.status.value.switches if observation.status.value is not None else ())
        if info.name == switch
    )


def _port_count(observation: Observation, port: tuple[str, int], side: str) -> int:
    """Return how many packets a switch's port counted as lost on one side."""
    losses = observation.losses.get(port)
    if losses is None:
        return 0
    return sum(number for name, number in losses.items() if name.startswith(f"{side}."))


def _counts(direction: _Direction) -> tuple[str, ...]:
    said = []
    if direction.bounds.lost:
        said.append(
            f"counts of host and switch disagree {direction.words}: at least {direction.bounds.lost} more "
            f"were "
            f"sent than arrived"
        )
    if direction.now:
        said.append(f"the switch's port says so itself: {direction.now} just now, {direction.total} in all")
    return tuple(said)


def _resent(facts: Facts, host: str) -> tuple[str, ...]:
    """Describe how many packets the workers on a host retransmitted between the two observations."""
    said = []
    for key in _workers_on(facts, host):
        again, timeouts = (growing.worker(facts, key, name) for name in ("retransmitted_packets", "timeouts"))
        if again:
            said.append(
                f"job {key[0]} {words.rank(key[1], host)} sent {words.count(again, 'packet')} again, "
                f"{words.count(timeouts, 'timeout')}"
            )
    return tuple(said)


def _workers_on(facts: Facts, host: str) -> list[WorkerKey]:
    return [(w.job, w.rank) for w in facts.now.workers if w.host == host and w.status is not None]


def _damaged(facts: Facts, host: HostState) -> Iterator[Finding]:
    """Report packets with a wrong ICRC.

    The switch counts them by the flow they came on, each worker counts its own.
    """
    name = f"{host.name}:{host.switch}"
    for direction, now, total in (
        (f"from {host.name} to {host.switch}", *_bad_at_switch(facts, host)),
        (f"from {host.switch} to {host.name}", *_bad_at_host(facts, host)),
    ):
        if now:
            yield warning(
                code="corruption",
                says=f"link {name} damages packets {direction}: {words.count(now, 'wrong checksum')} "
                f"(ICRC) in "
                f"{words.seconds(facts.seconds)}, {total} in all",
                where=name,
                evidence=("damaged packets are dropped and sent again: no sum is made of them",),
                do=("change the cable or transceiver, look at the port's error counters", *injected(facts)),
            )
        elif total:
            yield earlier("has-damaged", f"{total} {direction}")


def _bad_at_switch(facts: Facts, host: HostState) -> tuple[int, int]:
    keys = _ranks_on(facts, host.name)
    totals = []
    for observation in (facts.before, facts.now):
        flows = [
            f for f in observation.counters.value or () if (f.job, f.rank) in keys and f.switch == host.switch
        ]
        totals.append(sum(counted(flow.counters, "bad_icrc") for flow in flows))
    return growing.growth(totals[1], totals[0]), totals[1]


def _bad_at_host(facts: Facts, host: HostState) -> tuple[int, int]:
    keys = _workers_on(facts, host.name)
    names = ("icrc_errors", "malformed")
    total = sum(
        worker.status.counters.get(name, 0)
        for worker in facts.now.workers
        for name in names
        if (worker.job, worker.rank) in keys and worker.status is not None
    )
    return sum(growing.worker(facts, key, name) for key in keys for name in names), total


def _ranks_on(facts: Facts, host: str) -> set[WorkerKey]:
    return {
        (job.spec.name, worker.worker.rank)
        for job in facts.now.jobs.value or ()
        for worker in job.workers
        if worker.host == host
    }


def _slow(
    facts: Facts, host: HostState, mine: Sequence[float | None], others: Sequence[float | None]
) -> Iterator[Finding]:
    """Report a link whose echoes all take much longer than those between other hosts."""
    my_times = [ms for ms in mine if ms is not None]
    their_times = [ms for ms in others if ms is not None]
    if len(my_times) < 2 or not their_times:
        return
    usual = statistics.median(their_times)
    if min(my_times) > max(_LATE_MS, _TIMES * usual):
        name = f"{host.name}:{host.switch}"
        yield warning(
            code="delay",
            says=f"link {name} is slow: a ping over it takes {min(my_times):.0f} ms there and back, "
            f"between other "
            f"hosts {usual:.1f} ms",
            where=name,
            evidence=("all ranks wait for the slowest link, message by message",),
            do=(f"p4reduce exec {host.name} tc -s qdisc show dev {host.interface}", *injected(facts)),
        )


def _overtaking(facts: Facts) -> Iterator[Finding]:
    """Report packets that arrived behind a gap: they were overtaken, or lost if the switches cannot tell."""
    beside = _beside_the_switches(facts)
    grown = [
        (worker, number)
        for worker in facts.now.workers
        if worker.job not in beside
        and (number := growing.worker(facts, (worker.job, worker.rank), "out_of_order_received"))
    ]
    if not grown:
        return
    hosts = {host.name: host for host in facts.cluster.hosts}
    names = {worker.host for worker, _ in grown}
    overtaken = {
        name
        for name in hosts
        if (echoes := pairs_of(name, facts.echoes)) and all(echo.overtaken for echo in echoes)
    }
    if len(names) == 1 and (name := names.pop()) in hosts:
        switch = hosts[name].switch
        where, way = f"{name}:{switch}", f"on link {name}:{switch}, from {switch} to {name}"
    elif len(overtaken) == 1:
        name = overtaken.pop()
        where = f"{name}:{hosts[name].switch}"
        way = f"on link {where}"
    else:
        where, way = "", "on the way to the switch: sums come in another order to several ranks"
        sender = _sender(facts, grown)
        if sender in hosts:
            switch = hosts[sender].switch
            where, way = f"{sender}:{switch}", f"on link {sender}:{switch}, from {sender} to {switch}"
    total = sum(number for _, number in grown)
    behind = f"{words.count(total, 'packet')} arrived behind a gap in {words.seconds(facts.seconds)}"
    counts_all = bool(facts.now.losses) and facts.cluster.wires is None  # a switch that sees each loss
    yield warning(
        code="reordering" if counts_all else "gaps",
        says=f"packets overtake each other {way}: {behind}, though none was lost"
        if counts_all
        else f"packets are lost or overtake each other {way}: {behind}",
        where=where,
        evidence=(
            *(f"job {w.job} {words.rank(w.rank, w.host)}: {number} out of order" for w, number in grown),
            "sums stay right; go-back-N sends all that came behind a gap again",
        ),
        do=("selective retransmission bears it better: leave '--no-selective' out", *injected(facts)),
    )


def _beside_the_switches(facts: Facts) -> set[str]:
    """Return the ring jobs with hosts whose switch is away: their packets take the management network."""
    status = facts.now.status.value
    away = {info.name for info in status.switches if not info.connected} if status is not None else set()
    behind = {host.name for host in facts.cluster.hosts if host.switch in away}
    return {
        job.spec.name
        for job in facts.now.jobs.value or ()
        if job.mode == pb.RING and any(worker.host in behind for worker in job.workers)
    }


def _sender(facts: Facts, grown: Sequence[tuple[Worker, int]]) -> str:
    """Return the host whose packets overtake each other, if several ranks get their sums in another order.

    All ranks get sums in the order in which packets completed them. The sender's successor in the ring also
    gets repeated ones. Empty if no rank stands out.
    """
    ordered = sorted(grown, key=lambda item: -item[1])
    most, job_name = ordered[0][0], ordered[0][0].job
    job = next((job for job in facts.now.jobs.value or () if job.spec.name == job_name), None)
    if job is None or ordered[0][1] < _DOMINATES * ordered[1][1]:
        return ""
    ring = list(job.ring) or sorted(worker.worker.rank for worker in job.workers)
    if most.rank not in ring:
        return ""
    return growing.rank_hosts(facts).get((job_name, ring[ring.index(most.rank) - 1]), "")


def _lost_at_port(facts: Facts, switch: str, port: int, link: str, other: str) -> Iterator[Finding]:
    """Report packets that a port between switches lost, of those it received or was to send."""
    for side, way in (("receive", f"from {other} to {switch}"), ("transmit", f"from {switch} to {other}")):
        total = _port_count(facts.now, (switch, port), side)
        now = growing.growth(total, _port_count(facts.before, (switch, port), side))
        if now:
            yield warning(
                code="loss",
                says=f"link {link} loses packets {way}: {now} in {words.seconds(facts.seconds)}",
                where=link,
                evidence=(f"the port of {switch} says so: {total} in all",),
                do=("p4reduce show links", *injected(facts)),
            )
        elif total:
            yield earlier("has-lost", f"{total} {way}")


def _overflows(facts: Facts) -> Iterator[Finding]:
    """Report frames that a worker's machine had no room for in its receive ring."""
    for worker in facts.now.workers:
        if worker.status is None:
            continue
        key = (worker.job, worker.rank)
        now, total = growing.worker(facts, key, "ring_drops"), worker.status.counters.get("ring_drops", 0)
        who = f"job {worker.job} {words.rank(worker.rank, worker.host)}"
        if now:
            yield warning(
                code="ring-overflow",
                says=f"{who}: its machine is too slow: {words.count(now, 'frame')} found no room in the "
                f"receive "
                f"ring in {words.seconds(facts.seconds)}, {total} in all",
                job=worker.job,
                rank=worker.rank,
                where=worker.host,
                do=(
                    "give that worker a core of its own, or the job a smaller window: "
                    "p4reduce job create ... --window 2",
                ),
            )
        elif total:
            yield earlier("has-overflowed", f"{total} of {who}")

"""What is wrong on the way: links that are down, lose, double, damage or delay; frames that nobody wants."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from controller.api import controller_pb2 as pb
from p4reduce.doctor import counting, words
from p4reduce.doctor.facts import Facts, Observation, Worker, WorkerKey
from p4reduce.doctor.findings import Finding, Severity
from p4reduce.doctor.probing import pairs_of
from topologies.state import HostState

_LATE_MS = 8.0  # what an echo may take on a link that is not slower than others
_TIMES = 5.0
_MAKE_GAPS = frozenset({"loss", "corruption", "link-down", "cut-off", "uplink-down", "uplink-silent"})
_CUT_OFF = 0  # echoes that came back
_CLEAR = "p4reduce fault clear  (faults are injected on purpose)"
_MANY = 3  # findings of one kind that become one
_MANY_COPIES = 10
_DOMINATES = 2.0

# Flow counters of packets that should not be (docs/p4-program.md): what they are, whose they may be.
_UNWANTED = {
    "foreign": ("foreign-traffic", "packets for {0}'s queue pair that are not from its peer were dropped"),
    "unplaced": ("unplaced", "packets of {0} that fit no message of its flow were dropped"),
    "mismatch": ("mismatch", "packets of {0} did not fit what the other ranks sent: their calls disagree"),
}
_PORTS = {
    "spoofed": ("spoofed", "RoCE packets with another host's address came from {0} and were dropped"),
    "no_job": ("no-job", "partial sums of no job came from {0} and were dropped"),
    "bad_echo": ("bad-echo", "probes that fit no link came from {0} and were dropped"),
}


def links(facts: Facts) -> Iterator[Finding]:
    """All of it."""
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
    found += _unwanted(facts, is_damaged="corruption" in codes)
    found += _overflows(facts)
    if not codes & _MAKE_GAPS and not any(finding.code in ("reordering", "gaps") for finding in found):
        found += _late_copies(facts)
    yield from _asked_to_wait(facts)
    losses = [finding for finding in found if finding.code == "loss"]
    yield from losses if len(losses) < _MANY else [_all_lose(facts, losses)]
    yield from (finding for finding in found if finding.code not in _EARLIER and finding.code != "loss")
    yield from _merged([finding for finding in found if finding.code in _EARLIER])


# What is over is said in one sentence each, with where and how often.
_EARLIER = {
    "has-lost": "packets were lost earlier, and sent again",
    "has-damaged": "packets were damaged earlier (wrong ICRC), dropped and sent again",
    "has-overflowed": "frames found no room in receive rings earlier",
    "unplaced": "packets were dropped as they fit no message of their flow, as after the loss of its first",
    "has-dropped": "packets were dropped earlier that nobody wants",
}


def _earlier(code: str, what: str) -> Finding:
    """A part of what `_merged` says."""
    code = code if code in _EARLIER else "has-dropped"
    return Finding(code=code, severity=Severity.NOTE, says=_EARLIER[code], evidence=(what,))


def _all_lose(facts: Facts, losses: Sequence[Finding]) -> Finding:
    """In one finding, where many links do."""
    shown = [finding.says.removeprefix("link ").replace(" loses packets", "") for finding in losses]
    return Finding(
        code="loss",
        severity=Severity.WARNING,
        says=f"{len(losses)} links lose packets: {'; '.join(shown)}",
        evidence=tuple(dict.fromkeys(line for f in losses for line in f.evidence if "again" in line)),
        do=(
            "so many at once have one cause: a switch that is short of time, cables of one kind, a wrong "
            "setting",
            *_injected(facts),
        ),
    )


def _late_copies(facts: Facts) -> Iterator[Finding]:
    """Packets of messages that are long over, though nothing was lost: copies that took their time."""
    before = {(f.job, f.generation, f.rank, f.switch): f for f in facts.before.counters.value or ()}
    for flow in facts.now.counters.value or ():
        old = before.get((flow.job, flow.generation, flow.rank, flow.switch))
        grown = 0
        for counter in ("unplaced", "stale"):
            total = flow.counters[counter].packets if counter in flow.counters else 0
            past = old.counters[counter].packets if old is not None and counter in old.counters else 0
            grown += _growth(total, past)
        if grown >= _MANY_COPIES:
            who = f"job {flow.job} {words.rank(flow.rank, _hosts(facts).get((flow.job, flow.rank), ''))}"
            yield Finding(
                code="late-copies",
                severity=Severity.WARNING,
                says=f"switch {flow.switch}: {grown} packets of {who} came in "
                f"{words.seconds(facts.seconds)} that "
                f"belong to messages which are over: copies that were long under way",
                job=flow.job,
                rank=flow.rank,
                where=flow.switch,
                evidence=("they are dropped or only acknowledged: no sum takes them",),
                do=_injected(facts),
            )


def _hosts(facts: Facts) -> dict[WorkerKey, str]:
    return {(job.spec.name, w.worker.rank): w.host for job in facts.now.jobs.value or () for w in job.workers}


def _injected(facts: Facts) -> tuple[str, ...]:
    """Where faults are injected on purpose, how that ends."""
    return (_CLEAR,) if facts.rules else ()


def _merged(found: Sequence[Finding]) -> Iterator[Finding]:
    for code, says in _EARLIER.items():
        parts = [part for finding in found if finding.code == code for part in finding.evidence]
        if parts:
            yield Finding(code=code, severity=Severity.NOTE, says=f"{says}: {', '.join(parts)}")


def _down(facts: Facts) -> Iterator[Finding]:
    said = {f"{link.a}:{link.b}": link for link in facts.now.links.value or ()}
    for name, line in facts.now.lines.items():
        link = said.get(name)
        if not line.is_up:
            yield Finding(
                code="uplink-down" if line.uplink else "link-down",
                severity=Severity.ERROR,
                says=f"link {name} is down" + (f": {_instead(name, said)}" if line.uplink else ""),
                where=name,
                do=(
                    f"p4reduce link up {name}"
                    if line.uplink
                    else f"p4reduce fault link up {name.partition(':')[0]}",
                ),
            )
        elif link is not None and "drained" in link.state:
            yield Finding(
                code="drained",
                severity=Severity.NOTE,
                says=f"link {name} is not used because it is drained: {link.state}",
                where=name,
            )
        elif link is not None and not link.up:
            yield Finding(
                code="uplink-silent",
                severity=Severity.ERROR,
                says=f"link {name} is up but carries nothing ({link.state}): {_instead(name, said)}",
                where=name,
                do=(f"look at both ends: p4reduce link down {name}; p4reduce link up {name}",),
            )


def _instead(name: str, said: dict[str, pb.Link]) -> str:
    """Where the traffic of a link between switches goes now."""
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
    """One direction of a host's link: what the switch's port says it lost, and what counting tells."""

    words: str
    now: int
    total: int
    bounds: counting.Bounds


def _host_link(facts: Facts, host: HostState) -> Iterator[Finding]:
    name = f"{host.name}:{host.switch}"
    echoes = pairs_of(host.name, facts.echoes)
    others = [echo for pair, echo in facts.echoes.items() if host.name not in pair]
    if echoes and all(echo.received == _CUT_OFF for echo in echoes) and _any_came_back(facts, host.name):
        yield Finding(
            code="cut-off",
            severity=Severity.ERROR,
            says=f"link {name} is up, but nothing comes through it",
            where=name,
            evidence=(f"no ping over the fabric from or to {host.name} came back",),
            do=(
                f"p4reduce exec {host.name} ip -s link show dev {host.interface}",
                f"p4reduce fault link up {host.name}  (where it was taken down on purpose)",
                *_injected(facts),
            ),
        )
        return
    slow = list(_slow(facts, host, [e.fastest_ms for e in echoes], [e.fastest_ms for e in others]))
    yield from slow
    for direction in _directions(facts, host, holds_back=bool(slow)):
        lost = max(direction.now, direction.bounds.lost)
        if lost:
            yield Finding(
                code="loss",
                severity=Severity.WARNING,
                says=f"link {name} loses packets {direction.words}: {lost} in {words.seconds(facts.seconds)}",
                where=name,
                evidence=(*_counts(direction, facts), *_resent(facts, host.name)),
                do=(
                    f"p4reduce exec {host.name} ip -s link show dev {host.interface}  (and the cable, the "
                    f"port)",
                    *_injected(facts),
                ),
            )
        elif direction.total:
            yield _earlier("has-lost", f"{direction.total} {direction.words}")
        if more := direction.bounds.doubled:
            yield Finding(
                code="duplication",
                severity=Severity.WARNING,
                says=f"link {name} doubles packets {direction.words}: {more} more came out than went in, in "
                f"{words.seconds(facts.seconds)}",
                where=name,
                evidence=("sums stay right: copies are known by rank, message and packet number",),
                do=_injected(facts),
            )
    yield from _damaged(facts, host)


def _any_came_back(facts: Facts, host: str) -> bool:
    """Whether echoes between others did: else it is the switch, or all of it. Two hosts have no others."""
    others = [echo for pair, echo in facts.echoes.items() if host not in pair]
    return any(echo.received > _CUT_OFF for echo in others)


def _directions(facts: Facts, host: HostState, *, holds_back: bool) -> list[_Direction]:
    """Both. On a link that holds packets back, those are neither lost nor doubled: counting says nothing."""
    port = (host.switch, host.port)
    samples = () if holds_back else facts.samples
    found = []
    for towards, side, bounds in (
        (f"from {host.name} to {host.switch}", "receive", counting.to_switch(host.name, samples)),
        (f"from {host.switch} to {host.name}", "transmit", counting.to_host(host.name, samples)),
    ):
        total = _port_count(facts.now, port, side)
        now = _growth(total, _port_count(facts.before, port, side))
        found.append(_Direction(words=towards, now=now, total=total, bounds=bounds))
    return found


def _port_count(look: Observation, port: tuple[str, int], side: str) -> int:
    """What a switch's port counts as lost on one side."""
    losses = look.losses.get(port)
    if losses is None:
        return 0
    return sum(number for name, number in losses.counts.items() if name.startswith(f"{side}."))


def _growth(now: int, before: int) -> int:
    """A counter that began anew has grown by what it says."""
    return now - before if now >= before else now


def _counts(direction: _Direction, facts: Facts) -> tuple[str, ...]:
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
    """How much the workers on a host had to send again meanwhile."""
    said = []
    for key in _workers_on(facts, host):
        again, timeouts = (_grown(facts, key, name) for name in ("retransmitted_packets", "timeouts"))
        if again:
            said.append(
                f"job {key[0]} {words.rank(key[1], host)} sent {words.count(again, 'packet')} again, "
                f"{words.count(timeouts, 'timeout')}"
            )
    return tuple(said)


def _workers_on(facts: Facts, host: str) -> list[WorkerKey]:
    return [(w.job, w.rank) for w in facts.now.workers if w.host == host and w.standing is not None]


def _grown(facts: Facts, key: WorkerKey, name: str) -> int:
    """How much a worker's counter has grown between the two looks."""
    values = []
    for look in (facts.before, facts.now):
        worker = next((w for w in look.workers if (w.job, w.rank) == key and w.standing is not None), None)
        if worker is None or worker.standing is None:
            return 0
        values.append(worker.standing.counters.get(name, 0))
    return _growth(values[1], values[0])


def _damaged(facts: Facts, host: HostState) -> Iterator[Finding]:
    """Packets with a wrong ICRC: the switch counts them by the flow they came on, workers for themselves."""
    name = f"{host.name}:{host.switch}"
    for direction, now, total in (
        (f"from {host.name} to {host.switch}", *_bad_at_switch(facts, host)),
        (f"from {host.switch} to {host.name}", *_bad_at_host(facts, host)),
    ):
        if now:
            yield Finding(
                code="corruption",
                severity=Severity.WARNING,
                says=f"link {name} damages packets {direction}: {words.count(now, 'wrong checksum')} "
                f"(ICRC) in "
                f"{words.seconds(facts.seconds)}, {total} in all",
                where=name,
                evidence=("damaged packets are dropped and sent again: no sum is made of them",),
                do=("change the cable or transceiver, look at the port's error counters", *_injected(facts)),
            )
        elif total:
            yield _earlier("has-damaged", f"{total} {direction}")


def _bad_at_switch(facts: Facts, host: HostState) -> tuple[int, int]:
    keys = _ranks_on(facts, host.name)
    totals = []
    for look in (facts.before, facts.now):
        flows = [f for f in look.counters.value or () if (f.job, f.rank) in keys and f.switch == host.switch]
        totals.append(sum(f.counters["bad_icrc"].packets for f in flows if "bad_icrc" in f.counters))
    return _growth(totals[1], totals[0]), totals[1]


def _bad_at_host(facts: Facts, host: HostState) -> tuple[int, int]:
    keys = _workers_on(facts, host.name)
    names = ("icrc_errors", "malformed")
    total = sum(
        worker.standing.counters.get(name, 0)
        for worker in facts.now.workers
        for name in names
        if (worker.job, worker.rank) in keys and worker.standing is not None
    )
    return sum(_grown(facts, key, name) for key in keys for name in names), total


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
    """A link whose echoes all take much longer than those between other hosts."""
    my_times = [ms for ms in mine if ms is not None]
    their_times = [ms for ms in others if ms is not None]
    if len(my_times) < 2 or not their_times:
        return
    usual = statistics.median(their_times)
    if min(my_times) > max(_LATE_MS, _TIMES * usual):
        name = f"{host.name}:{host.switch}"
        yield Finding(
            code="delay",
            severity=Severity.WARNING,
            says=f"link {name} is slow: a ping over it takes {min(my_times):.0f} ms there and back, "
            f"between other "
            f"hosts {usual:.1f} ms",
            where=name,
            evidence=("all ranks wait for the slowest link, message by message",),
            do=(f"p4reduce exec {host.name} tc -s qdisc show dev {host.interface}", *_injected(facts)),
        )


def _overtaking(facts: Facts) -> Iterator[Finding]:
    """Packets that arrive behind a gap although none was lost have been overtaken."""
    beside = _beside_the_switches(facts)
    grown = [
        (worker, number)
        for worker in facts.now.workers
        if worker.job not in beside
        and (number := _grown(facts, (worker.job, worker.rank), "out_of_order_received"))
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
    yield Finding(
        code="reordering" if counts_all else "gaps",
        severity=Severity.WARNING,
        says=f"packets overtake each other {way}: {behind}, though none was lost"
        if counts_all
        else f"packets are lost or overtake each other {way}: {behind}",
        where=where,
        evidence=(
            *(f"job {w.job} {words.rank(w.rank, w.host)}: {number} out of order" for w, number in grown),
            "sums stay right; go-back-N sends all that came behind a gap again",
        ),
        do=("a selective job bears it better: '--selective'", *_injected(facts)),
    )


def _beside_the_switches(facts: Facts) -> set[str]:
    """Jobs by ring with hosts whose switch is away: their packets take the management network."""
    status = facts.now.status.value
    away = {info.name for info in status.switches if not info.connected} if status is not None else set()
    behind = {host.name for host in facts.cluster.hosts if host.switch in away}
    return {
        job.spec.name
        for job in facts.now.jobs.value or ()
        if job.mode == pb.RING and any(worker.host in behind for worker in job.workers)
    }


def _sender(facts: Facts, grown: Sequence[tuple[Worker, int]]) -> str:
    """Whose packets overtake each other, where several ranks get their sums in another order.

    All get them in the order in which packets completed them, and the sender's successor its repeated ones
    as well.
    """
    ordered = sorted(grown, key=lambda item: -item[1])
    most, job_name = ordered[0][0], ordered[0][0].job
    job = next((job for job in facts.now.jobs.value or () if job.spec.name == job_name), None)
    if job is None or ordered[0][1] < _DOMINATES * ordered[1][1]:
        return ""
    ring = list(job.ring) or sorted(worker.worker.rank for worker in job.workers)
    if most.rank not in ring:
        return ""
    return _hosts(facts).get((job_name, ring[ring.index(most.rank) - 1]), "")


def _asked_to_wait(facts: Facts) -> Iterator[Finding]:
    """RNR NAKs that the switch sent to devices whose peers are late."""
    hosts = _hosts(facts)
    before = {(f.job, f.generation, f.rank, f.switch): f for f in facts.before.counters.value or ()}
    for flow in facts.now.counters.value or ():
        old = before.get((flow.job, flow.generation, flow.rank, flow.switch))
        total = flow.counters["not_ready"].packets if "not_ready" in flow.counters else 0
        past = old.counters["not_ready"].packets if old is not None and "not_ready" in old.counters else 0
        if total and (now := _growth(total, past)):
            who = words.rank(flow.rank, hosts.get((flow.job, flow.rank), ""))
            yield Finding(
                code="rnr-waits",
                severity=Severity.NOTE,
                says=f"job {flow.job}: {who}'s device was asked to wait (RNR NAK) "
                f"{words.count(now, 'time')} in "
                f"{words.seconds(facts.seconds)}: it sends again while another rank is late",
                job=flow.job,
                rank=flow.rank,
                where=flow.switch,
            )


def _lost_at_port(facts: Facts, switch: str, port: int, link: str, other: str) -> Iterator[Finding]:
    """What a port between switches lost of what it received or was to send."""
    for side, way in (("receive", f"from {other} to {switch}"), ("transmit", f"from {switch} to {other}")):
        total = _port_count(facts.now, (switch, port), side)
        now = _growth(total, _port_count(facts.before, (switch, port), side))
        if now:
            yield Finding(
                code="loss",
                severity=Severity.WARNING,
                says=f"link {link} loses packets {way}: {now} in {words.seconds(facts.seconds)}",
                where=link,
                evidence=(f"the port of {switch} says so: {total} in all",),
                do=("p4reduce show links", *_injected(facts)),
            )
        elif total:
            yield _earlier("has-lost", f"{total} {way}")


def _unwanted(facts: Facts, *, is_damaged: bool) -> Iterator[Finding]:
    """Packets that were dropped because of what they were; a damaged one may look like anything."""
    hosts = _hosts(facts)
    before = {(f.job, f.generation, f.rank, f.switch): f for f in facts.before.counters.value or ()}
    for flow in facts.now.counters.value or ():
        old = before.get((flow.job, flow.generation, flow.rank, flow.switch))
        who = f"job {flow.job} {words.rank(flow.rank, hosts.get((flow.job, flow.rank), ''))}"
        for counter, what in _UNWANTED.items():
            total = flow.counters[counter].packets if counter in flow.counters else 0
            past = old.counters[counter].packets if old is not None and counter in old.counters else 0
            yield from _dropped(facts, what, who, flow.switch, total, past, is_damaged=is_damaged)
    ports = {(port.switch, port.port): port for port in facts.before.ports.value or ()}
    for port in facts.now.ports.value or ():
        known = ports.get((port.switch, port.port))
        for counter, what in _PORTS.items():
            total = port.drops[counter].packets if counter in port.drops else 0
            past = known.drops[counter].packets if known is not None and counter in known.drops else 0
            behind = port.host or port.peer
            yield from _dropped(facts, what, behind, port.switch, total, past, is_damaged=is_damaged)


def _dropped(
    facts: Facts,
    what: tuple[str, str],
    who: str,
    switch: str,
    total: int,
    past: int,
    *,
    is_damaged: bool,
) -> Iterator[Finding]:
    code, sentence = what
    now = _growth(total, past)
    if not total:
        return
    if not now or is_damaged or code == "unplaced":  # which is what a loss leads to
        yield _earlier(code, f"{total} of {who} on {switch}")
        return
    yield Finding(
        code=code,
        severity=Severity.WARNING,
        says=f"switch {switch}: {sentence.format(who)}: {now} in {words.seconds(facts.seconds)}, {total} "
        f"in all",
        where=switch,
        do=("no sum has anything of them; tcpdump at that port shows who sends",)
        if code in ("foreign-traffic", "spoofed")
        else (),
    )


def _overflows(facts: Facts) -> Iterator[Finding]:
    """Frames that a worker's machine had no room for, and those it could not send."""
    for worker in facts.now.workers:
        if worker.standing is None:
            continue
        key = (worker.job, worker.rank)
        now, total = _grown(facts, key, "ring_drops"), worker.standing.counters.get("ring_drops", 0)
        who = f"job {worker.job} {words.rank(worker.rank, worker.host)}"
        if now:
            yield Finding(
                code="ring-overflow",
                severity=Severity.WARNING,
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
            yield _earlier("has-overflowed", f"{total} of {who}")

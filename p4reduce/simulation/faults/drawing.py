"""Schedules drawn from seeds: most are small, some are large, all kinds of faults come alone and together."""

from __future__ import annotations

import math
import random
from dataclasses import replace

from controller.config import Config, Spread
from host_agent.member import IN_NETWORK_LIMIT
from p4reduce.simulation.faults.loop import NS
from p4reduce.simulation.faults.schedule import (
    COLLECTIVES,
    ON_CONTROLLER,
    ON_SWITCHES,
    ON_WORKERS,
    JobPlan,
    Mishap,
    Rates,
    Schedule,
    Work,
)
from p4reduce.simulation.network import fabric_config

_COLLECTIVES = ("all_reduce",) * 4 + COLLECTIVES
_SIZES = [
    (1, 2, 256),
    (2, 2, 256),
    (2, 4, 256),
    (4, 2, 512),
    (8, 2, 256),
    (4, 4, 1024),
    (1, 4, 256),
    (2, 8, 256),
]


def draw(seed: int) -> Schedule:
    """Draw the schedule of a seed, the same for ever as long as this file is."""
    chance = random.Random(seed)
    large = chance.random() < 0.04
    spines, hosts = _fabric(chance, large)
    config = fabric_config(spines, hosts)
    count = 1 if chance.random() < 0.75 else chance.randint(2, 3)
    jobs: list[JobPlan] = []
    for _ in range(count):
        jobs.append(_job(chance, config, large, jobs))
    calm = chance.random() < 0.15
    rates = [Rates() if calm or chance.random() < 0.25 else _rates(chance) for _ in range(2)]
    mishaps = [] if chance.random() < 0.4 else _mishaps(chance, config, jobs)
    absences = _long_absence(seed, jobs)
    mishaps += absences
    mishaps += _restored(seed, config, jobs)
    mishaps += _gang(seed, config, jobs)
    mishaps += _suspended(seed, jobs, mishaps)
    mishaps += _second_controller(seed, config, jobs)
    mishaps += _clock_jumps(seed, jobs)
    _strict_calls(seed, jobs)
    numbers = random.Random(f"numbers/{seed}")  # of its own: what other draws give stays
    renumber = 0 if absences else numbers.choice([0, 0, 0, 0, 0, 1, 4, 16])
    # Workers say with their heartbeats how far they are, and most jobs are over before the first.
    timing = {"heartbeat_interval_s": numbers.choice([0.01, 0.04])} if renumber else {}
    for n, job in enumerate(jobs):
        first = _near_a_boundary(numbers) if numbers.random() < 0.2 else 0
        jobs[n] = replace(job, first_message=first, work=job.work * (3 if renumber else 1))
    return Schedule(
        seed=seed,
        spines=spines,
        hosts=hosts,
        jobs=jobs,
        host_rates=rates[0],
        uplink_rates=rates[1],
        mishaps=sorted(mishaps, key=lambda mishap: mishap.at_ns),
        spread=chance.choice([spread.value for spread in Spread]),
        slots=_slots(seed, jobs, chance.choice([0, 0, 0, 0, 64])),
        timing=timing,
        renumber=renumber,
    )


def _near_a_boundary(chance: random.Random) -> int:
    """Draw a first message shortly before the switch sums no more, or before numbers come round."""
    boundary = chance.choice([IN_NETWORK_LIMIT, 2**31, 2**32])
    return (boundary - chance.choice([1, 2, 3, chance.randint(1, 40)])) % 2**32


def _fabric(chance: random.Random, large: bool) -> tuple[int, list[int]]:
    if chance.random() < 0.6:
        return 0, [chance.randint(2, 8 if large else 4)]
    leaves = chance.randint(2, 4 if large else 3)
    return chance.randint(1, 3), [chance.randint(1, 4 if large else 2) for _ in range(leaves)]


def _rates(chance: random.Random) -> Rates:
    some = [0.0, 0.0, 0.005, 0.02, 0.1]
    return Rates(
        loss=chance.choice([0.0, 0.002, 0.01, 0.05, 0.2]),
        duplicate=chance.choice(some),
        reorder=chance.choice(some),
        corrupt=chance.choice([0.0, 0.0, 0.01, 0.03]),
        stale=chance.choice([0.0, 0.0, 0.01, 0.05]),
        late_ns=chance.choice([20_000, 200_000, 2_000_000]),
        stale_ns=chance.choice([1_000_000, 100_000_000, 2_000_000_000]),
    )


def _job(chance: random.Random, config: Config, large: bool, others: list[JobPlan]) -> JobPlan:
    hosts = list(range(len(config.hosts)))
    size = min(len(hosts), chance.choice([2, 2, 3, 3, 4]) if not large else chance.randint(2, 8))
    placement = chance.sample(hosts, size)
    if len(placement) < 2 or chance.random() < 0.05:
        placement.append(chance.choice(hosts))  # two on one host
    ranks = range(len(placement))
    adapters = chance.random() < 0.06
    wrap = chance.random() < 0.4
    window, packets, path_mtu = chance.choice(_SIZES)
    elements = chance.choice([500, 2000] if large else [40, 120, 120, 250])
    elastic = chance.random() < 0.2
    follows = bool(others) and chance.random() < 0.5
    first_qpn = others[-1].qpns[0] if follows else 0x100 + 0x1000 * len(others)
    job = JobPlan(
        hosts=placement,
        work=[
            _work(chance, elements, elastic)
            for _ in range(chance.choice([1, 1, 2, 3]) if not large else chance.randint(2, 6))
        ],
        qpns=[first_qpn + 2 * rank for rank in ranks],
        # A stray of the job before on the same QPs must not be in order by mere chance.
        psns=[_psn(chance, len(others), wrap) for _ in ranks],
        mode=chance.choice(["", "", "", "", "", "", "", "", "", "RING"]),
        window=window,
        packets=packets,
        path_mtu=path_mtu,
        adapters=[rank for rank in ranks if adapters and chance.random() < 0.7],
        rnr=[rank for rank in ranks if chance.random() < 0.05],
        late_ns=[0 if chance.random() < 0.8 else _log_time(chance, 100_000_000) for _ in ranks],
        starts_ns=chance.choice([0, 0, _log_time(chance, 100_000_000)]),
        after=len(others) if follows else 0,
        seed=chance.randrange(2**32),
        elastic=elastic,
        backup=chance.random() < 0.5,
        selective=_selective(chance),
    )
    # What is asked for where some worker has an RDMA device is refused, and nothing to be seen then.
    return replace(job, selective=None) if job.selective and (job.adapters or job.rnr) else job


def _selective(chance: random.Random) -> bool | None:
    """Draw what all workers ask for: selective or not, or None for what comes by itself."""
    drawn = chance.random()
    return None if drawn < 0.5 else drawn < 0.65


def _psn(chance: random.Random, before: int, wrap: bool) -> int:
    """Draw a PSN far from those of as many jobs `before`; the first job's may wrap at once."""
    first = -chance.randint(1, 40) if wrap else 2**21 + chance.randrange(2**20)
    return (first + 2**22 * before) % 2**24


def _work(chance: random.Random, elements: int, elastic: bool) -> Work:
    name = chance.choice(_COLLECTIVES)
    return Work(
        module="in_network" if chance.random() < 0.8 else "ring",
        name="all_reduce" if elastic and name == "reduce_scatter" else name,
        dtype=chance.choice(["int32", "int32", "float32", "float16", "bfloat16"]),
        elements=chance.choice([0, 1, chance.randint(0, elements), elements, elements]),
        reduction=chance.choice(["SUM", "SUM", "AVG", "MAX", "MIN"]),
        root=chance.randrange(32),
        non_finite=chance.random() < 0.15,
        in_place=chance.random() < 0.3,
        half=chance.random() < 0.3,
        scaled=chance.random() < 0.5,
        think_ns=chance.choice([0, 0, 50_000, 1_000_000, 100_000_000]),
    )


def _mishaps(chance: random.Random, config: Config, jobs: list[JobPlan]) -> list[Mishap]:
    soon_ns = chance.choice([1_000_000, 5_000_000, 30_000_000, 300_000_000])
    return [_mishap(chance, config, jobs, soon_ns) for _ in range(chance.choice([1, 1, 1, 2, 2, 4]))]


_MISHAPS = (
    *("worker-kill", "worker-pause", "worker-pause", "link-down", "link-down", "link-down", "session-cut"),
    *("switch-restart", "switch-restart", "switch-restart", "p4runtime-cut", "p4runtime-cut", "disk-full"),
    *("controller-restart", "controller-restart"),
)


def _mishap(chance: random.Random, config: Config, jobs: list[JobPlan], soon_ns: int) -> Mishap:
    kind = chance.choice(_MISHAPS)
    lasts_ns = _log_time(chance, chance.choice([1_000_000, 100_000_000, NS, 8 * NS]))
    what = ""
    if kind == "link-down":
        ends = [f"{host.name}:{host.switch}" for host in config.hosts] + [link.name for link in config.links]
        what = chance.choice(ends)
    elif kind in ON_SWITCHES:
        what = chance.choice([switch.name for switch in config.switches])
    job = chance.randrange(len(jobs))
    rank = chance.randrange(len(jobs[job].hosts))
    on_worker = kind in ON_WORKERS
    since = job + 1 if chance.random() < 0.85 else 0
    return Mishap(
        _log_time(chance, soon_ns) if since else _log_time(chance, 200_000_000),
        kind,
        what,
        job + 1 if on_worker else 0,
        rank if on_worker else 0,
        0 if kind == "worker-kill" else lasts_ns,
        since,
    )


def _long_absence(seed: int, jobs: list[JobPlan]) -> list[Mishap]:
    """Draw for some seeds an absence of the controller for minutes. Drawn beside all else, which stays."""
    chance = random.Random(f"{seed}/absence")
    if chance.random() >= 0.06:
        return []
    kind = chance.choice(ON_CONTROLLER)
    lasts_ns = round(NS * 45 * math.pow(700 / 45, chance.random()))
    return [
        Mishap(_log_time(chance, 30_000_000), kind, lasts_ns=lasts_ns, since=chance.randint(1, len(jobs)))
    ]


def _restored(seed: int, config: Config, jobs: list[JobPlan]) -> list[Mishap]:
    """Draw for some seeds a backup of the controller's database, with which it goes on later.

    The backup may not have all of the jobs: one more begins when it has been made. Drawn beside all else.
    """
    chance = random.Random(f"{seed}/restored")
    if chance.random() >= 0.06:
        return []
    job = _job(chance, config, False, jobs)
    if chance.random() < 0.6:
        job = replace(job, after=len(jobs))
    jobs.append(replace(job, work=job.work * 3))
    backup = Mishap(_log_time(chance, 3_000_000), "database-backup", since=chance.randint(1, len(jobs)))
    lasts_ns = _log_time(chance, chance.choice([100_000_000, 8 * NS]))
    restored = Mishap(
        _log_time(chance, chance.choice([1_000_000, 30_000_000])),
        "database-restored",
        lasts_ns=lasts_ns,
        since=chance.choice([len(jobs), len(jobs), chance.randint(1, len(jobs))]),
    )
    return [backup, restored]


def _gang(seed: int, config: Config, jobs: list[JobPlan]) -> list[Mishap]:
    """Draw for some seeds a gang, too, to which most of what goes wrong happens. Drawn beside all else."""
    chance = random.Random(f"{seed}/gang")
    if chance.random() >= 0.12:
        return []
    others = len(jobs)
    base = replace(_job(chance, config, False, jobs), elastic=False, gang=1)
    if random.Random(f"{seed}/gang-elastic").random() < 0.4:
        base = replace(base, elastic=True, work=[_in_elastic(work) for work in base.work])
    base = replace(base, work=[work for work in base.work for _ in range(chance.choice([1, 4, 12]))])
    if chance.random() < 0.6:
        base = replace(base, window=0, packets=0)
    planes = chance.choice([2, 2, 2, 3])
    for plane in range(planes):
        ranks = range(len(base.hosts))
        qpns = base.qpns if plane == 0 else [0x100 + 0x1000 * len(jobs) + 2 * rank for rank in ranks]
        jobs.append(
            replace(
                base,
                qpns=qpns,
                psns=[_psn(chance, len(jobs), chance.random() < 0.3) for _ in ranks],
                late_ns=[0 if chance.random() < 0.7 else _log_time(chance, 100_000_000) for _ in ranks],
                seed=chance.randrange(2**32),
            )
        )
    jobs[others:] = _interfaces_of_gang(seed, _calls_of_gang(seed, jobs[others:]))
    soon_ns = chance.choice([1_000_000, 5_000_000, 30_000_000, 300_000_000])
    count, found = chance.choice([0, 1, 1, 2, 3]), []
    for _ in range(count):
        mishap = _mishap(chance, config, jobs[others:], soon_ns)
        mishap = replace(
            mishap,
            job=mishap.job and mishap.job + others,
            since=mishap.since and mishap.since + others,
        )
        fate = chance.random()
        if fate < 0.3:
            lasts_ns = _log_time(chance, chance.choice([1_000_000, NS]))
            switch = chance.choice([switch.name for switch in config.switches])
            since = others + chance.randint(1, planes)
            mishap = Mishap(_log_time(chance, soon_ns), "switch-restart", switch, 0, 0, lasts_ns, since)
        elif fate < 0.6:
            number = others + chance.randint(1, planes)
            kind = chance.choice(
                ["worker-kill", "worker-kill", "machine-kill", "session-cut", "worker-pause"]
            )
            lasts_ns = 0 if kind.endswith("kill") else chance.choice([100_000_000, 8 * NS])
            rank = chance.randrange(len(base.hosts))
            mishap = Mishap(_log_time(chance, soon_ns), kind, "", number, rank, lasts_ns, number)
        found.append(mishap)
    return found


def _calls_of_gang(seed: int, planes: list[JobPlan]) -> list[JobPlan]:
    """Make some calls of a gang strict or cancelled, and now and then different. Drawn beside all else."""
    chance = random.Random(f"{seed}/gang-calls")
    work = list(planes[0].work)
    for call in range(len(work)):
        drawn = chance.random()
        if drawn < 0.15:
            work[call] = replace(work[call], strict=True, module="in_network")
        elif drawn < 0.25:
            work[call] = replace(work[call], cancelled=True)
    planes = [replace(plane, work=list(work), cancels=[]) for plane in planes]
    odd, call = chance.randrange(len(planes)), chance.randrange(len(work))
    drawn = chance.random()
    if drawn < 0.08:
        other = replace(work[call], elements=work[call].elements + 1, cancelled=False)
        planes[odd].work[call] = chance.choice([other, replace(work[call], strict=not work[call].strict)])
    elif drawn < 0.14 and not work[call].cancelled:
        planes[odd].cancels.append([chance.randrange(len(planes[odd].hosts)), call])
    elif drawn < 0.17:
        planes[odd].cancels.extend([rank, call] for rank in range(len(planes[odd].hosts)))
    elif drawn < 0.2:
        rank = chance.randrange(len(planes[odd].hosts))
        planes = [replace(plane, cancels=[[rank, call]]) for plane in planes]
    return planes


def _interfaces_of_gang(seed: int, planes: list[JobPlan]) -> list[JobPlan]:
    """Give some gangs' GPUs interfaces that carry less than others. Drawn beside all else."""
    chance = random.Random(f"{seed}/gang-interfaces")
    if chance.random() >= 0.3:
        return planes
    few = chance.random() < 0.5
    return [
        replace(
            plane,
            path_mtus=[
                chance.choice([256, 512, 1024]) if not few or chance.random() < 0.3 else 1024
                for _ in plane.hosts
            ],
        )
        for plane in planes
    ]


def _suspended(seed: int, jobs: list[JobPlan], mishaps: list[Mishap]) -> list[Mishap]:
    """Draw for some seeds a worker of an elastic job that is suspended until it is given up.

    A hypervisor suspends it. Drawn beside all else. Nothing else happens to workers of that job: if the
    successor died as well, the others might make again what the suspended worker returns.
    """
    chance = random.Random(f"{seed}/suspended")
    hurt = {mishap.job for mishap in mishaps}
    fit = [n for n, job in enumerate(jobs, 1) if not job.gang and n not in hurt]
    if chance.random() >= 0.08 or not fit:
        return []
    number = chance.choice(fit)
    job = jobs[number - 1]
    work = [_in_elastic(work) for work in job.work] * chance.choice([1, 4])
    jobs[number - 1] = replace(job, elastic=True, work=work)
    rank, lasts_ns = chance.randrange(len(job.hosts)), chance.choice([2 * NS, 8 * NS])
    return [Mishap(_log_time(chance, 100_000_000), "worker-suspend", "", number, rank, lasts_ns, number)]


def _clock_jumps(seed: int, jobs: list[JobPlan]) -> list[Mishap]:
    """Draw for some seeds jumps of a worker's clock, by less or more than it waits for anything.

    Drawn beside all else.
    """
    chance = random.Random(f"{seed}/clock")
    if chance.random() >= 0.06:
        return []
    found = []
    for _ in range(chance.choice([1, 1, 3])):
        number = chance.randint(1, len(jobs))
        rank, by_ns = chance.randrange(len(jobs[number - 1].hosts)), _log_time(chance, 600 * NS)
        found.append(Mishap(_log_time(chance, NS), "clock-jump", "", number, rank, by_ns, number))
    return found


def _strict_calls(seed: int, jobs: list[JobPlan]) -> None:
    """Make users of some jobs that are no gang's ask for switches only. Drawn beside all else."""
    chance = random.Random(f"{seed}/strict")
    if chance.random() >= 0.15:
        return
    for n, job in enumerate(jobs):
        if not job.gang:
            work = [replace(w, strict=w.module == "in_network" and chance.random() < 0.4) for w in job.work]
            jobs[n] = replace(job, work=work)


def _second_controller(seed: int, config: Config, jobs: list[JobPlan]) -> list[Mishap]:
    """Draw for some seeds a second controller on a copy of the database, which gets lost switches.

    Drawn beside all else.
    """
    chance = random.Random(f"{seed}/second")
    if chance.random() >= 0.05:
        return []
    since = chance.randint(1, len(jobs))
    at_ns = _log_time(chance, 100_000_000)
    lasts_ns = chance.choice([NS // 2, NS, 3 * NS, 40 * NS])
    found = [Mishap(at_ns, "controller-second", lasts_ns=lasts_ns, since=since)]
    for _ in range(chance.choice([0, 1, 1, 2])):
        switch = chance.choice([switch.name for switch in config.switches])
        kind = chance.choice(["p4runtime-cut", "p4runtime-cut", "switch-restart"])
        after_ns = at_ns + _log_time(chance, chance.choice([100_000_000, 8 * NS]))
        found.append(Mishap(after_ns, kind, switch, 0, 0, _log_time(chance, 100_000_000), since))
    return found


def _in_elastic(work: Work) -> Work:
    return replace(work, name="all_reduce") if work.name == "reduce_scatter" else work


def _slots(seed: int, jobs: list[JobPlan], otherwise: int) -> int:
    """Draw the slots of each switch: with a gang often few, so that planes have no or little room."""
    chance = random.Random(f"{seed}/gang-slots")
    if not any(job.gang for job in jobs):
        return otherwise
    return chance.choice([otherwise, 64, 128, 256, 512, 1024])


def _log_time(chance: random.Random, most_ns: int) -> int:
    """Draw a time from 1 us on; every order of magnitude is as likely as another."""
    return round(1000 * math.pow(most_ns / 1000, chance.random()))

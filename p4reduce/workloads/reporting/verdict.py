"""The verdict on whether in-network aggregation paid in a run, and why: in sentences, from figures alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Final

from p4reduce.workloads.bounds import ring_to_in_network
from p4reduce.workloads.counters import SENT_AGAIN
from p4reduce.workloads.hierarchy import threshold_k
from p4reduce.workloads.reporting import reading
from p4reduce.workloads.reporting.quantities import count, seconds, share, size, times
from p4reduce.workloads.reporting.reading import RINGS, name_of
from p4reduce.workloads.run_file import Result, Run
from p4reduce.workloads.strategies.names import (
    FLAT_RING,
    HIERARCHICAL,
    HIERARCHICAL_PHASES,
    IN_NETWORK,
    IN_THE_SWITCH,
)

# Below this, medians of a few rounds on a shared machine say nothing.
NOTICEABLE: Final = 1.05
# A replay of which gradients hold up less than this share is bound by computing.
_EXPOSED: Final = 0.1
# Links that could be done in this time leave the time to hops, wake-ups and the hosts.
_LATENCY_BOUND_S: Final = 0.005
_LATENCY_BOUND_BYTES: Final = 64_000
_MUCH_MORE: Final = 1.2  # times a tensor: headers and acknowledgements are less
_FAR_FROM_BOUND: Final = 0.8
_CARRIES_OVER: Final = "bytes, packets and ratios at equal link rates carry over, seconds do not"


class Pays(str, Enum):
    """The answer in a word."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Verdict:
    """The answer, its headline, the reasons, and cautions."""

    pays: Pays
    headline: str
    reasons: tuple[str, ...]
    cautions: tuple[str, ...]


def verdict(run: Run) -> Verdict:
    """Judge in-network aggregation by a run with at least one result."""
    cautions = _cautions(run)
    wrong = [result.strategy for result in run.results if result.verified is False]
    if wrong:
        names = " and ".join(name_of(strategy) for strategy in wrong)
        headline = f"Nothing can be said: sums were wrong with {names}."
        return Verdict(Pays.UNKNOWN, headline, ("Times of wrong sums do not count.",), cautions)
    switched = reading.switched_of(run)
    others = [result for result in run.results if result.strategy not in IN_THE_SWITCH]
    if switched is None or not others:
        return Verdict(Pays.UNKNOWN, *_nothing_to_compare(run, switched), cautions)
    ring = reading.ring_of(run)
    best = min(others, key=lambda result: result.median_s)
    rival = ring if ring is not None and best.median_s > ring.median_s / NOTICEABLE else best
    gain = rival.median_s / switched.median_s
    pays = Pays.YES if gain >= NOTICEABLE else Pays.NO
    return Verdict(
        pays, _headline(run, switched, rival, gain), _reasons(run, switched, rival, gain), cautions
    )


def _headline(run: Run, switched: Result, rival: Result, gain: float) -> str:
    name, workers = name_of(rival.strategy), switched.workers
    here = "here" if run.dtype is None else f"here for {run.dtype}"
    if gain >= NOTICEABLE:
        text = (
            f"In-network aggregation pays {here}: "
            f"{times(gain)} times as fast as {name} with {workers} workers"
        )
        bound = ring_to_in_network(workers)
        if rival.strategy in RINGS and workers > 2 and run.workload is None and not _latency_bound(switched):
            return f"{text}, where 2(N−1)/N = {times(bound)} is the most that saved bytes can give."
        return f"{text}."
    if gain <= 1 / NOTICEABLE:
        return f"In-network aggregation does not pay {here}: {name} takes {share(gain)} of its time."
    return f"In-network aggregation gains nothing {here}: it is as fast as {name} ({times(gain)} times)."


def _reasons(run: Run, switched: Result, rival: Result, gain: float) -> tuple[str, ...]:
    reasons = [
        *_workers_reason(switched),
        *_computing_reason(run, switched, rival, gain),
        *([] if _mostly_computes(run, rival) else _latency_reason(switched, rival)),
        *_bytes_reason(switched, rival, gain),
        *_distance_reason(switched),
        *_hierarchy_reason(run),
        *_others_reason(run, switched, rival),
    ]
    if gain < NOTICEABLE and not reasons:
        reasons.append("The figures do not show why: look at the links and at what was sent again.")
    return tuple(reasons)


def _workers_reason(switched: Result) -> list[str]:
    if switched.workers > 2:
        return []
    return [
        "Two workers have no bytes to save: 2(N−1)/N = 1, so a ring sends each tensor once too. "
        "Three workers would save a quarter of a ring's bytes, eight 43%."
    ]


def _computing_reason(run: Run, switched: Result, rival: Result, gain: float) -> list[str]:
    work = run.workload
    if work is None:
        return []
    computing = work.forward_s + work.backward_s
    exposed = _exposed_s(computing, rival)
    name = name_of(rival.strategy)
    if computing == 0:
        return ["No computing was played: an iteration is nothing but sums, the most that can be gained."]
    took = f"computing takes {seconds(computing)} of {name}'s {seconds(rival.median_s)} an iteration"
    most = rival.median_s / max(rival.median_s - exposed, 1e-9)
    if _mostly_computes(run, rival):
        return [
            f"It is bound by computing: {took}, and all but {seconds(exposed)} of its communication hides "
            f"behind that. Sums that took no time at all would be {times(most)} times as fast."
        ]
    reason = f"Workers wait {seconds(exposed)} for gradients with {name}: {took}."
    if switched.exposed_s is not None:
        reason = f"{reason[:-1]}; in-network leaves {seconds(switched.exposed_s)} of waiting."
    if gain < NOTICEABLE:
        return [reason]
    return (
        [f"{reason} Sums that took no time at all would be {times(most)} times as fast."]
        if most < 20
        else [reason]
    )


def _exposed_s(computing: float, result: Result) -> float:
    return result.exposed_s if result.exposed_s is not None else max(0.0, result.median_s - computing)


def _mostly_computes(run: Run, result: Result) -> bool:
    if run.workload is None:
        return False
    computing = run.workload.forward_s + run.workload.backward_s
    return computing > 0 and _exposed_s(computing, result) < _EXPOSED * result.median_s


def _latency_bound(result: Result) -> bool:
    if result.link_bound_s is None:
        return result.bytes <= _LATENCY_BOUND_BYTES
    return result.link_bound_s < _LATENCY_BOUND_S


def _latency_reason(switched: Result, rival: Result) -> list[str]:
    if not _latency_bound(switched):
        return []
    steps = ""
    if rival.strategy in RINGS:
        steps = (
            f" A ring takes 2(N−1) = {2 * (switched.workers - 1)} steps, in-network one "
            "(two for floats of more than a few kB, which agree on scales first)."
        )
    return [
        f"It is bound by latency, not by bytes: {size(switched.bytes)} would be over the links in "
        f"{_or_no_time(switched.link_bound_s)}, so the time goes into steps, wake-ups and hops.{steps}"
    ]


def _or_no_time(value: float | None) -> str:
    return seconds(value) if value is not None else "no time"


def _bytes_reason(switched: Result, rival: Result, gain: float) -> list[str]:
    if _latency_bound(switched) or switched.workers <= 2:
        return []
    few, many = reading.busiest(switched.bytes_per_link), reading.busiest(rival.bytes_per_link)
    if few is None or many is None or not few.bytes or not many.bytes:
        return []
    name = name_of(rival.strategy)
    resent = switched.retransmissions or 0
    if many.bytes < NOTICEABLE * few.bytes and resent and few.bytes > _MUCH_MORE * switched.bytes:
        return [
            f"The busiest link ({few.link}, {few.way}) carries {size(few.bytes)} in-network, with "
            f"{count(resent)} packets that were sent again, and {size(many.bytes)} with {name}: so no bytes "
            "are saved."
        ]
    if many.bytes < NOTICEABLE * few.bytes:
        return [
            f"The busiest link ({few.link}, {few.way}) carries {size(few.bytes)} in-network and "
            f"{size(many.bytes)} with {name}: no bytes are saved where it is narrow."
        ]
    reason = (
        f"The busiest link carries {size(few.bytes)} instead of {size(many.bytes)} with {name}: a host sends "
        "each gradient once, and the switch adds up"
    )
    if gain >= NOTICEABLE:
        return [f"{reason}."]
    mine, theirs = switched.link_bound_s, rival.link_bound_s
    if mine is not None and theirs is not None and mine * NOTICEABLE > theirs:
        least = f"{seconds(mine)} at least in-network, {seconds(theirs)} with {name}"
        return [f"{reason}; but these links take {least}."]
    return [f"{reason}; but links are not what holds this run up."]


def _distance_reason(switched: Result) -> list[str]:
    fraction = switched.fraction_of_link_bound
    if fraction is None or _latency_bound(switched) or switched.exposed_s is not None:
        return []
    reached = f"In-network reaches {share(fraction)} of what its links allow"
    if fraction >= _FAR_FROM_BOUND:
        return [f"{reached} ({seconds(switched.link_bound_s or 0.0)} at least)."]
    resent, most = switched.retransmissions or 0, reading.busiest(switched.bytes_per_link)
    cause = "the machine or the hosts are the limit"
    if resent:
        cause = f"{count(resent)} packets had to be sent again"
    elif most is not None and most.bytes > _MUCH_MORE * switched.bytes:
        cause = f"{most.link} carries {times(most.bytes / switched.bytes)} bytes for each of the tensor"
    return [f"{reached} only: {cause}."]


def _hierarchy_reason(run: Run) -> list[str]:
    """Compare the closed forms for several GPUs a host with the measurements."""
    shape, ring = reading.shape_of(run), reading.ring_of(run)
    if shape is None or ring is None or run.workload is not None:
        return []
    found = [
        f"{times(bound)} times as fast ({times(ring.median_s / result.median_s)} measured) with "
        f"{name_of(result.strategy)}"
        for result in run.results
        if result is not ring and (bound := reading.rate_bound(run, result)) is not None
    ]
    if not found:
        return []
    channel = "has no rate" if math.isinf(shape.k) else f"is k = {shape.k:g} times as fast as its link"
    from_k = threshold_k(HIERARCHICAL_PHASES, shape)
    sayings = [f"The channel inside a host {channel}. By formula sums are {'; '.join(found)}."]
    if not math.isinf(from_k):
        sayings.append(
            f"Phases one after the other beat the flat ring from k = {times(from_k)} on by formula, "
            "a pipeline at any k."
        )
    return sayings


def _others_reason(run: Run, switched: Result, rival: Result) -> list[str]:
    sayings = []
    ring = reading.ring_of(run)
    if ring is not None and ring is not rival:
        sayings.append(f"Against ring it is {times(ring.median_s / switched.median_s)} times as fast.")
    if ring is not None and _beyond_bytes(switched, ring):
        sayings.append(
            "Saved bytes give 2(N−1)/N at most; the rest is that ring reached only "
            f"{share(ring.fraction_of_link_bound or 0.0)} of what its links allow here."
        )
    faster = [
        result
        for result in run.results
        if result.strategy in IN_THE_SWITCH and result.median_s * NOTICEABLE < switched.median_s
    ]
    sayings += [
        f"{name_of(result.strategy)} is faster still: {seconds(result.median_s)}.".capitalize()
        for result in faster
    ]
    gloo = reading.result_of(run, "gloo")
    if gloo is not None and gloo is not rival:
        sayings.append(
            f"PyTorch's Gloo takes {times(gloo.median_s / switched.median_s)} times as long on these links."
        )
    return sayings


def _beyond_bytes(switched: Result, ring: Result) -> bool:
    bound = NOTICEABLE * ring_to_in_network(switched.workers)
    known = ring.fraction_of_link_bound is not None and not _latency_bound(switched)
    return known and ring.median_s / switched.median_s > bound


def _nothing_to_compare(run: Run, switched: Result | None) -> tuple[str, tuple[str, ...]]:
    if switched is None:
        why = run.skipped.get(IN_NETWORK)
        reason = f"In-network did not run: {why}" if why else _measure(run)
        return "Whether in-network aggregation pays is not known: it was not measured.", (reason,)
    return (
        "Whether in-network aggregation pays is not known: nothing was measured beside it.",
        (_measure(run),),
    )


def _measure(run: Run) -> str:
    several = run.topology.gpus_per_host > 1
    return f"Measure it with --strategies {f'{HIERARCHICAL},{FLAT_RING}' if several else 'in-network,ring'}."


def _cautions(run: Run) -> tuple[str, ...]:
    cautions = []
    if run.topology.rate_mbit is None:
        cautions.append(
            "The links had no rate: processors were the limit, and times compare programs on this machine, "
            "not networks."
        )
    if run.topology.target == "bmv2":
        cautions.append(f"BMv2 is slow, and its windows are small: {_CARRIES_OVER}.")
    resent = [result for result in run.results if result.retransmissions]
    if resent:
        counts = ", ".join(f"{name_of(each.strategy)} {count(each.retransmissions or 0)}" for each in resent)
        cautions.append(
            f"Packets were sent again: {counts}. {SENT_AGAIN}; 'p4reduce doctor' says what links lose."
        )
    noisy = [result for result in run.results if result.max_s > 1.25 * result.min_s]
    if noisy and run.workload is None:
        names = ", ".join(name_of(result.strategy) for result in noisy)
        cautions.append(f"Times spread by more than a quarter ({names}): the machine may have been busy.")
    return tuple(cautions)

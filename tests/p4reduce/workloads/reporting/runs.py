"""Runs as `compare` and `replay` write them, made up: bytes by what strategies send, times by rates."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Literal

from p4reduce.workloads.run_file import (
    Bucket,
    Host,
    LinkBytes,
    Result,
    Run,
    Sample,
    Span,
    Switch,
    Topology,
    Workload,
)

FRAMES = 1.0176  # headers of a frame of path MTU 4096
ALL = ("in-network", "ring", "halving-doubling", "parameter-server", "parameter-server-switch", "gloo")
RESNET_BYTES = 102_228_128


def rack(hosts: int, *, rate_mbit: float | None = 100.0) -> Topology:
    """Return `hosts` workers behind s1."""
    return Topology(
        kind="rack",
        target="embedded",
        path_mtu=4096,
        rate_mbit=rate_mbit,
        switches=[Switch(name="s1", role="leaf")],
        hosts=[Host(name=f"h{rank + 1}", switch="s1", rank=rank) for rank in range(hosts)],
        links=[f"h{rank + 1}:s1" for rank in range(hosts)],
    )


def spine_leaf(hosts: int, *, leaves: int = 2, spines: int = 2, rate_mbit: float | None = 100.0) -> Topology:
    """Return `hosts` workers, as many behind each leaf."""
    behind = [f"l{rank * leaves // hosts + 1}" for rank in range(hosts)]
    return Topology(
        kind="spine-leaf",
        target="embedded",
        path_mtu=4096,
        rate_mbit=rate_mbit,
        uplink_rate_mbit=rate_mbit,
        switches=[
            *(Switch(name=f"l{leaf + 1}", role="leaf") for leaf in range(leaves)),
            *(Switch(name=f"s{spine + 1}", role="spine") for spine in range(spines)),
        ],
        hosts=[Host(name=f"h{rank + 1}", switch=behind[rank], rank=rank) for rank in range(hosts)],
        links=[
            *(f"h{rank + 1}:{behind[rank]}" for rank in range(hosts)),
            *(f"l{leaf + 1}:s{spine + 1}" for leaf in range(leaves) for spine in range(spines)),
        ],
    )


def sent(topology: Topology, strategy: str, size: int) -> dict[str, LinkBytes]:
    """Return bytes on each link for tensors of `size` bytes."""
    workers = len(topology.hosts)
    ring = 2 * (workers - 1) / workers
    links = {}
    for host in topology.hosts:
        share = {"in-network": 1.0, "parameter-server": 1.0, "parameter-server-switch": 1.0}.get(
            strategy, ring
        )
        if strategy == "parameter-server" and host.rank == 0:
            share = workers - 1.0
        links[f"{host.name}:{host.switch}"] = _both(share * size)
    uplinks = [link for link in topology.links if link not in links]
    for link in uplinks:
        used = link.endswith(":s1") or strategy == "gloo"
        share = {"in-network": 1.0, "halving-doubling": 2.0, "parameter-server": workers / 2}.get(
            strategy, ring
        )
        links[link] = _both((share if used else 0.0004) * size / (2 if strategy == "gloo" else 1))
    return links


def compared(
    topology: Topology,
    *,
    size: int = 32_000_000,
    dtype: str | None = "float32",
    strategies: Sequence[str] = ALL,
    rounds: int = 5,
    efficiency: float = 0.98,
    overhead_s: float = 0.0005,
    sampled: bool = True,
    seed: int = 5,
) -> Run:
    """Return a run of `p4reduce compare`; `overhead_s`: what a step of a strategy takes besides bytes."""
    draw = random.Random(seed)
    workers = len(topology.hosts)
    rate = topology.rate_mbit or 700.0
    results, samples = [], {}
    for strategy in strategies:
        links = sent(topology, strategy, size)
        bound = max(max(each.up, each.down) for each in links.values()) / FRAMES * 8 / rate / 1e6
        steps = 1 if strategy == "in-network" else 2 * (workers - 1)
        slower = 0.93 if strategy == "gloo" else efficiency
        times = [bound / slower * draw.uniform(1, 1.03) + steps * overhead_s for _ in range(rounds)]
        results.append(_result(strategy, topology, size, times, links, bound))
        if sampled:
            samples[strategy] = _samples(topology, links, times, strategy=strategy, draw=draw)
    return Run(
        kind="compare",
        started="2026-11-21T18:00:00+00:00",
        machine="2 cores, AMD EPYC, Linux 6.18",
        command=f"p4reduce compare {topology.kind} --hosts {workers} --rate 100mbit --bytes {size}",
        versions={"p4reduce": "0.1.0", "python": "3.11.7", "torch": "2.9.0"},
        topology=topology,
        dtype=dtype,
        results=results,
        skipped={"gloo": "PyTorch is not installed"} if "gloo" not in strategies else {},
        samples=samples,
    )


def replayed(
    topology: Topology,
    *,
    name: str = "resnet-50",
    forward_s: float = 0.9,
    backward_s: float = 1.8,
    layers: int = 161,
    size: int = RESNET_BYTES,
    dtype: str | None = "float32",
    buckets: int = 5,
    iterations: int = 6,
    strategies: Sequence[str] = ("in-network", "ring"),
    rounds_seed: int = 5,
) -> Run:
    """Return a run of `p4reduce replay`: a bucket's sum starts when its gradients are there, one by one."""
    draw = random.Random(rounds_seed)
    rate = topology.rate_mbit or 700.0
    results, samples, timelines = [], {}, {}
    for strategy in strategies:
        links = sent(topology, strategy, size)
        bound = max(max(each.up, each.down) for each in links.values()) / FRAMES * 8 / rate / 1e6
        spans: list[Span] = []
        for rank in range(len(topology.hosts)):
            at = 0.0
            for iteration in range(iterations):
                at = _iteration(
                    spans,
                    rank,
                    iteration,
                    at,
                    (forward_s, backward_s),
                    2 * buckets,
                    buckets,
                    bound / 0.97,
                    draw,
                )
        times, exposed = _measured(spans, iterations)
        results.append(
            _result(strategy, topology, size, times, links, bound).model_copy(update={"exposed_s": exposed})
        )
        timelines[strategy] = spans
        samples[strategy] = _samples(topology, links, times, strategy=strategy, draw=draw)
    per_layer = layers // buckets
    return Run(
        kind="replay",
        started="2026-11-21T18:00:00+00:00",
        machine="2 cores, AMD EPYC, Linux 6.18",
        command=f"p4reduce replay {name} --iterations {iterations}",
        versions={"p4reduce": "0.1.0", "python": "3.11.7"},
        topology=topology,
        dtype=dtype,
        workload=Workload(
            name=name,
            source=f"bundled table {name}",
            layers=layers,
            gradient_bytes=size,
            forward_s=forward_s,
            backward_s=backward_s,
            buckets=[
                Bucket(bytes=size // buckets, first=k * per_layer, last=(k + 1) * per_layer - 1)
                for k in reversed(range(buckets))
            ],
        ),
        results=results,
        timelines=timelines,
        samples=samples,
    )


def _iteration(
    spans: list[Span],
    rank: int,
    iteration: int,
    start: float,
    computing: tuple[float, float],
    pieces: int,
    buckets: int,
    reducing_s: float,
    draw: random.Random,
) -> float:
    """Add one worker's iteration from `start` to `spans`, and return when it ends."""

    def add(kind: Literal["compute", "communicate", "wait"], what: str, begin: float, end: float) -> None:
        spans.append(Span(rank=rank, iteration=iteration, kind=kind, what=what, start_s=begin, end_s=end))

    at, free = start, start
    for piece in range(pieces):
        took = computing[0] / pieces * draw.uniform(0.98, 1.02)
        add("compute", f"forward layer{piece}", at, at + took)
        at += took
    per_bucket = pieces // buckets
    for done, piece in enumerate(reversed(range(pieces)), start=1):
        took = computing[1] / pieces * draw.uniform(0.98, 1.02)
        add("compute", f"backward layer{piece}", at, at + took)
        at += took
        if done % per_bucket == 0:
            begin = max(at, free)
            free = begin + reducing_s / buckets
            add("communicate", f"bucket {done // per_bucket - 1}", begin, free)
    if free > at:
        add("wait", "all gradients", at, free)
    return max(free, at)


def _measured(spans: Sequence[Span], iterations: int) -> tuple[list[float], float]:
    times, waits = [], []
    for iteration in range(iterations):
        own = [span for span in spans if span.iteration == iteration]
        times.append(max(span.end_s for span in own) - min(span.start_s for span in own))
        waits.append(sum(span.end_s - span.start_s for span in own if span.kind == "wait" and span.rank == 0))
    return times, sorted(waits)[len(waits) // 2]


def _result(
    strategy: str,
    topology: Topology,
    size: int,
    times: list[float],
    links: dict[str, LinkBytes],
    bound: float,
) -> Result:
    median = sorted(times)[len(times) // 2]
    rated = topology.rate_mbit is not None
    return Result(
        strategy=strategy,
        workers=len(topology.hosts),
        bytes=size,
        median_s=median,
        min_s=min(times),
        max_s=max(times),
        goodput_mbit_s=size * 8 / median / 1e6,
        bytes_per_link=links,
        fraction_of_link_bound=bound / median if rated else None,
        link_bound_s=bound if rated else None,
        seconds=times,
        retransmissions=None if strategy == "gloo" else 0,
        verified=True,
    )


def _samples(
    topology: Topology,
    links: dict[str, LinkBytes],
    times: Sequence[float],
    *,
    strategy: str,
    draw: random.Random,
) -> list[Sample]:
    whole = sum(times)
    in_switch = strategy in ("in-network", "parameter-server-switch")
    found: list[Sample] = []
    for tick in itertools.count():
        at = tick * 0.5
        if at > whole:
            return found
        share = at / whole * len(times)
        found.append(
            Sample(
                at_s=at,
                links={
                    name: LinkBytes(up=int(each.up * share), down=int(each.down * share))
                    for name, each in links.items()
                },
                slots_open=draw.randint(90, 128) if in_switch and tick else 0,
                slots_allocated=256 * len(topology.switches) if in_switch else 0,
            )
        )
    return found


def _both(size: float) -> LinkBytes:
    return LinkBytes(up=int(size * FRAMES), down=int(size * FRAMES))

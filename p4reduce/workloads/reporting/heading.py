"""The top of the page: the subject of the run, the verdict with its reasons, and the key figures."""

from __future__ import annotations

from typing import Final

from p4reduce.pages.markup import Markup, element
from p4reduce.workloads.bounds import ring_to_in_network
from p4reduce.workloads.reporting import reading
from p4reduce.workloads.reporting.quantities import count, rate, seconds, share, size, times
from p4reduce.workloads.reporting.reading import name_of
from p4reduce.workloads.reporting.verdict import Pays, Verdict
from p4reduce.workloads.run_file import Run

_ANSWERS: Final = {Pays.YES: "It pays", Pays.NO: "It does not pay", Pays.UNKNOWN: "Not known"}


def heading(run: Run, found: Verdict) -> Markup:
    """Make the header of the page."""
    reasons = [element("p", text) for text in found.reasons]
    cautions = [element("li", text) for text in found.cautions]
    return element(
        "header",
        element("p", subject(run), class_="subject"),
        element(
            "div",
            element("span", _ANSWERS[found.pays], class_=f"answer {found.pays.value}"),
            element("h1", found.headline),
            *reasons,
            element("ul", *cautions, class_="cautions") if cautions else None,
            class_="verdict",
        ),
        element("div", *_cards(run), class_="cards"),
    )


def subject(run: Run) -> str:
    """Describe what was summed, by how many workers, over which links."""
    first, fabric = run.results[0], run.topology
    what = f"all-reduce of {size(first.bytes)}"
    if run.workload is not None:
        work = run.workload
        what = f"{work.name}: {size(work.gradient_bytes)} of gradients in {work.layers} layers"
    if run.dtype is not None:
        what += f", {run.dtype}"
    where = "a rack"
    if fabric.kind == "spine-leaf":
        leaves = sum(switch.role == "leaf" for switch in fabric.switches)
        where = f"{leaves} racks, {len(fabric.switches) - leaves} spines"
    workers = f"{reading.workers(run)} workers"
    if fabric.gpus_per_host > 1:
        workers += f", {fabric.gpus_per_host} a host,"
    return f"{what} · {workers} in {where} · {rates(run)}, path MTU {fabric.path_mtu}"


def rates(run: Run) -> str:
    """Describe the links' rates: `links of 100 Mbit/s`."""
    host, uplink = run.topology.rate_mbit, run.topology.uplink_rate_mbit
    if host is None:
        return "links without a rate"
    between = f" (between switches {rate(uplink)})" if uplink is not None and uplink != host else ""
    if run.topology.intra_rate_mbit is not None:
        between += f" ({rate(run.topology.intra_rate_mbit)} between the GPUs of a host)"
    return f"links of {host:g} Mbit/s{between}" if host < 1e4 else f"links of {rate(host)}{between}"


def _cards(run: Run) -> list[Markup]:
    shown = reading.switched_of(run) or run.results[0]
    ring = reading.ring_of(run)
    name = name_of(shown.strategy)
    cards = []
    against = reading.speedup(run, shown)
    if against is not None and shown is not ring:
        bound = ring_to_in_network(shown.workers)
        cards.append(_card("against ring", f"{times(against)}×", f"2(N−1)/N = {times(bound)}"))
    what = "iteration" if run.workload is not None else "all-reduce"
    beside = f"ring {seconds(ring.median_s)}" if ring is not None and ring is not shown else name
    cards.append(_card(f"median {what}", seconds(shown.median_s), beside))
    if run.workload is not None and shown.exposed_s is not None:
        other = f"ring {seconds(ring.exposed_s)}" if ring is not None and ring.exposed_s is not None else ""
        cards.append(_card("waiting for gradients", seconds(shown.exposed_s), other))
    elif shown.fraction_of_link_bound is not None:
        least = f"{seconds(shown.link_bound_s)} at least" if shown.link_bound_s is not None else ""
        cards.append(_card("of what links allow", share(shown.fraction_of_link_bound), least))
    cards.append(_card("goodput per worker", rate(shown.goodput_mbit_s), rates(run)))
    most, rings = reading.busiest(shown.bytes_per_link), ring and reading.busiest(ring.bytes_per_link)
    if most is not None:
        beside = f"ring {size(rings.bytes)}" if rings and ring is not shown else f"{most.link} {most.way}"
        cards.append(_card("busiest link carries", size(most.bytes), beside))
    if shown.retransmissions is not None:
        cards.append(_card("packets sent again", count(shown.retransmissions), name))
    return cards


def _card(title: str, value: str, under: str) -> Markup:
    return element(
        "div",
        element("span", title, class_="what"),
        element("strong", value),
        element("span", under, class_="under"),
        class_="card",
    )

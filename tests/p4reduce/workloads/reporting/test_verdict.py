"""Verdicts on runs in which it is known whether in-network aggregation pays."""

from __future__ import annotations

import pytest

from p4reduce.workloads.reporting.verdict import Pays, verdict
from p4reduce.workloads.run_file import LinkBytes, Run
from p4reduce.workloads.strategies import names
from tests.p4reduce.workloads.reporting.runs import compared, rack, replayed, spine_leaf


def _changed(run: Run, strategy: str, **changes: object) -> Run:
    results = [
        result.model_copy(update=changes) if result.strategy == strategy else result for result in run.results
    ]
    return run.model_copy(update={"results": results})


@pytest.mark.parametrize(("workers", "ratio"), [(4, "1.50"), (8, "1.75")])
def test_it_pays_by_the_bytes_that_it_saves(workers: int, ratio: str) -> None:
    found = verdict(compared(rack(workers)))
    assert found.pays is Pays.YES
    assert f"times as fast as ring with {workers} workers" in found.headline
    assert f"2(N−1)/N = {ratio} is the most" in found.headline
    assert any("busiest link carries 32.6 MB instead of" in reason for reason in found.reasons)
    assert any("of what its links allow" in reason for reason in found.reasons)
    assert any("Gloo takes" in reason for reason in found.reasons)
    assert not found.cautions


def test_two_workers_gain_nothing() -> None:
    found = verdict(compared(rack(2)))
    assert found.pays is Pays.NO
    assert "gains nothing" in found.headline
    assert "Two workers have no bytes to save: 2(N−1)/N = 1" in found.reasons[0]


def test_a_model_that_mostly_computes_gains_nothing() -> None:
    found = verdict(replayed(rack(4), forward_s=20, backward_s=40))
    assert found.pays is Pays.NO
    assert "bound by computing: computing takes 60.0 s of ring's" in found.reasons[0]
    assert "no time at all would be 1.0" in found.reasons[0]


def test_a_model_that_waits_gains() -> None:
    found = verdict(replayed(rack(4)))
    assert found.pays is Pays.YES
    assert "Workers wait" in found.reasons[0]
    assert "in-network leaves" in found.reasons[0]
    assert "2(N−1)/N" not in found.headline  # which is no bound on iterations that compute too


def test_small_tensors_are_bound_by_latency() -> None:
    found = verdict(compared(rack(4), size=1000))
    assert found.pays is Pays.YES
    assert "bound by latency, not by bytes" in found.reasons[0]
    assert "A ring takes 2(N−1) = 6 steps" in found.reasons[0]
    assert "is the most that" not in found.headline  # steps are saved, not bytes


def test_what_is_slower_does_not_pay_and_says_what_was_seen() -> None:
    run = compared(rack(4))
    slow = _changed(run, "in-network", median_s=8.0, fraction_of_link_bound=0.32, retransmissions=1234)
    found = verdict(slow)
    assert found.pays is Pays.NO
    assert "does not pay" in found.headline
    assert any("32.0% of what its links allow only: 1,234 packets" in reason for reason in found.reasons)
    assert any("sent again: in-network 1,234" in caution for caution in found.cautions)


def test_bytes_that_a_type_takes_on_the_wire_are_what_holds_it_up() -> None:
    """Check the reason where nothing was sent again: the link carries more than the tensor."""
    run = compared(rack(8), dtype="bfloat16")
    doubled = {
        name: LinkBytes(up=2 * way.up, down=2 * way.down)
        for name, way in run.results[0].bytes_per_link.items()
    }
    found = verdict(
        _changed(run, "in-network", bytes_per_link=doubled, median_s=5.3, fraction_of_link_bound=0.48)
    )
    assert found.pays is Pays.NO
    assert "does not pay here for bfloat16" in found.headline
    assert any("h1:s1 carries 2.04 bytes for each of the tensor" in reason for reason in found.reasons)


def test_the_best_of_the_others_is_what_counts() -> None:
    found = verdict(_changed(compared(rack(4)), "halving-doubling", median_s=2.0))
    assert found.pays is Pays.NO
    assert "halving-doubling takes" in found.headline
    assert any("Against ring it is 1.5" in reason for reason in found.reasons)


def test_bytes_that_are_not_saved_where_it_is_narrow() -> None:
    run = compared(rack(4))
    crowded = _changed(run, "in-network", bytes_per_link=run.results[1].bytes_per_link)
    assert any("no bytes are saved" in reason for reason in verdict(crowded).reasons)


def test_uplinks_that_hold_it_up_are_said_to() -> None:
    run = _changed(compared(spine_leaf(8)), "in-network", median_s=5.2, link_bound_s=5.12)
    found = verdict(_changed(run, "in-network", fraction_of_link_bound=0.98))
    assert found.pays is Pays.NO
    assert any("these links take 5.12 s at least in-network, 4.48 s with ring" in r for r in found.reasons)
    assert not any("not what holds" in reason for reason in found.reasons)


def test_wrong_sums_make_all_void() -> None:
    found = verdict(_changed(compared(rack(4)), "ring", verified=False))
    assert found.pays is Pays.UNKNOWN
    assert "sums were wrong with ring" in found.headline


@pytest.mark.parametrize(
    "strategies", [("ring",), ("in-network",), ("in-network", "parameter-server-switch")]
)
def test_with_nothing_to_compare_nobody_knows(strategies: tuple[str, ...]) -> None:
    found = verdict(compared(rack(4), strategies=strategies))
    assert found.pays is Pays.UNKNOWN
    assert "--strategies in-network,ring" in found.reasons[0]


def test_why_it_was_skipped() -> None:
    run = compared(rack(4), strategies=("ring", "gloo"))
    found = verdict(run.model_copy(update={"skipped": {"in-network": "no free slots"}}))
    assert found.reasons == ("In-network did not run: no free slots",)


def test_cautions() -> None:
    run = compared(rack(4, rate_mbit=None))
    slow = run.model_copy(update={"topology": run.topology.model_copy(update={"target": "bmv2"})})
    texts = " ".join(verdict(_changed(slow, "ring", max_s=9.0)).cautions)
    assert "links had no rate" in texts
    assert "BMv2" in texts
    assert "spread by more than a quarter (ring)" in texts


def test_every_fabric_gets_an_answer() -> None:
    for run in (
        compared(spine_leaf(8)),
        replayed(spine_leaf(8)),
        compared(rack(3), strategies=("in-network", "gloo")),
    ):
        found = verdict(run)
        assert found.pays is Pays.YES
        assert found.reasons


def test_more_than_bytes_can_give_is_said_to_be_more() -> None:
    slow = _changed(compared(rack(4)), "ring", median_s=6.0, fraction_of_link_bound=0.64)
    slow = _changed(slow, "halving-doubling", median_s=7.0)
    (reason,) = (text for text in verdict(_changed(slow, "gloo", median_s=7.0)).reasons if "at most" in text)
    assert "ring reached only 64.0% of what its links allow" in reason


def test_without_computing_there_are_only_sums() -> None:
    found = verdict(replayed(rack(4), forward_s=0, backward_s=0))
    assert found.pays is Pays.YES
    assert "No computing was played" in found.reasons[0]


def test_what_mostly_computes_is_not_said_to_be_bound_by_latency_too() -> None:
    found = verdict(replayed(rack(4), size=12_000, forward_s=0.3, backward_s=0.6))
    assert "bound by computing" in found.reasons[0]
    assert not any("latency" in reason for reason in found.reasons)


def test_of_hosts_with_several_gpus_the_formulas_are_beside_what_was_measured() -> None:
    """The flat ring is the ring, the hierarchy what is in the network."""
    run = compared(rack(4), strategies=("in-network", "ring"))
    fabric = run.topology.model_copy(update={"gpus_per_host": 4, "intra_rate_mbit": 200.0})
    switched, ring = run.results
    bounds = {names.HIERARCHICAL: 2.56, names.HIERARCHICAL_PHASES: 4.48, names.FLAT_RING: 4.81}
    results = [
        (ring if name == names.FLAT_RING else switched).model_copy(
            update={"strategy": name, "workers": 16, "link_bound_s": bound, "median_s": 1.02 * bound}
        )
        for name, bound in bounds.items()
    ]
    found = verdict(run.model_copy(update={"topology": fabric, "results": results}))
    assert found.pays is Pays.YES
    assert "1.88 times as fast as flat ring with 16 workers" in found.headline
    (said,) = (reason for reason in found.reasons if "k = 2 times as fast" in reason)
    assert "1.88 times as fast (1.88 measured) with hierarchical; 1.07 times as fast (1.07 measured)" in said
    assert any("from k = 1.71 on by formula, a pipeline at any k" in reason for reason in found.reasons)
    alone = verdict(run.model_copy(update={"topology": fabric, "results": results[-1:]}))
    assert alone.reasons == ("Measure it with --strategies hierarchical,flat-ring.",)

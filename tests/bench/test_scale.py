"""bench.scale: its figures are simulated, and drawn; a claim holds up to where it says, and not beyond."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from bench import scale
from p4reduce.scale.sweep import run
from p4reduce.workloads.traffic.tables import MODELS


@pytest.fixture(scope="module")
def trained() -> list[scale.Trained]:
    return scale.iterations(None)


@pytest.mark.slow
def test_without_overlap_iterations_gain_what_the_formula_says(trained: list[scale.Trained]) -> None:
    assert len(trained) == len(MODELS) * len(scale.RATES_GBIT) * 2
    for one in trained:
        assert 0 < one.share < 1
        if not one.overlap:
            assert one.speedup == pytest.approx(one.formula, rel=0.02)
    by_model = [one.speedup for one in trained if one.model == "bert-base" and not one.overlap]
    assert by_model == sorted(by_model, reverse=True)  # the slower the links, the more


@pytest.mark.slow
def test_claims_hold_up_to_a_rate() -> None:
    found = list(scale.claims())
    assert {(claim.model, claim.speedup) for claim in found} == set(scale.CLAIMS.items())
    for claim in found:
        assert claim.up_to_gbit is not None
        for factor, holds in ((0.99, True), (1.01, False)):
            cells = scale._trained_cells(claim.model, claim.up_to_gbit * factor)
            ring, in_network = (run(cell) for cell in cells if cell.overlap == claim.overlap)
            assert (ring.seconds / in_network.seconds >= claim.speedup) == holds
        assert "simulated" in scale.sentence(claim)


def test_where_a_claim_holds_nowhere_it_says_so() -> None:
    nowhere = scale.Claim(model="gpt-2", speedup=1.9, overlap=True, up_to_gbit=None, share=None)
    assert (
        scale.sentence(nowhere) == "gpt-2, simulated, with overlap: 1.9 times as fast at none of these rates"
    )
    everywhere = scale.Claim(model="gpt-2", speedup=1.0, overlap=True, up_to_gbit=100.0, share=0.1)
    assert scale.sentence(everywhere).endswith("or more at all these rates")


@pytest.mark.slow
def test_the_figure_and_the_table_have_everything(trained: list[scale.Trained]) -> None:
    summed = scale.sums(None)
    assert {(one.gpus_per_host, one.bytes, one.gpus) for one in summed} == {
        (per_host, size, gpus) for per_host in (1, 8) for size in scale.SIZES for gpus in scale.GPUS
    }
    drawn = scale.figure(trained, summed)
    root = ElementTree.fromstring(drawn)
    assert len(root.findall(".//{*}circle")) == len(trained) + len(summed)
    assert drawn.count(">Simulated: ") == 1 + 3  # the document, and each panel
    table = scale.markdown(trained, summed, list(scale.claims()))
    assert all(f"| {model} |" in table for model in MODELS)
    assert table.count("\n| ") == len(MODELS) + 2 * len(scale.SIZES) + 3

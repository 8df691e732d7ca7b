"""The page as text: it loads nothing, what a schedule says is no markup, and nothing is missing in it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from p4reduce.oracle.rules import FIVE, RULES
from p4reduce.simulation.faults.drawing import draw
from tests.p4reduce.simulation.sequence.shown import NAMES, example, given, page_of

pytestmark = pytest.mark.slow

HOSTILE = "</script><script>document.title='owned'</script><img src=x onerror=alert(1)>"


def test_what_a_schedule_says_of_itself_is_no_markup() -> None:
    text = page_of(replace(example("plain-sum"), about=HOSTILE), HOSTILE)
    assert text.count("<script") == 2  # the data, the page's own
    assert "<img" not in text
    assert "&lt;img src=x" in text


def test_it_asks_no_network_for_anything() -> None:
    text = page_of(example("plain-sum"))
    assert "default-src 'none'" in text
    for word in ("<link", "src=", "@import", "url("):
        assert word not in text


@pytest.mark.parametrize("name", NAMES)
def test_all_numbers_in_it_lead_somewhere(name: str) -> None:
    run = given(page_of(example(name)))
    places = {actor["name"] for actor in run["actors"]}
    for source, target, sent, arrives, packet, *_ in run["arrows"]:
        assert {source, target} <= places
        assert sent <= arrives
        kind, label, layers = run["packets"][packet]
        assert kind
        assert label
        assert all(len(run["layers"][layer]) == len(values) for layer, values in layers)
    assert [step["t"] for step in run["steps"]] == sorted(step["t"] for step in run["steps"])
    for step in run["steps"]:
        assert step["said"]
        for arrow in [*step.get("left", ()), *([step["came"]] if "came" in step else [])]:
            assert arrow < len(run["arrows"])
        if "rule" in step:
            assert step["rule"] in run["rules"]
            columns = ("at", "brings", "holds", "sender", "writes", "sends")
            assert all(
                word in run["words"][column] for column, word in zip(columns, step["case"], strict=True)
            )


def test_rules_are_named_and_told_as_in_the_protocol() -> None:
    run = given(page_of(example("plain-sum")))
    assert list(run["rules"]) == [rule.name for rule in RULES]
    assert run["rules"]["2 complete"] == FIVE["2"]
    assert run["rules"]["late"] == ""
    assert all(run["words"]["holds"].values())


def test_a_rack_has_its_switch_in_the_middle_and_a_fabric_its_spines() -> None:
    def named(name: str) -> str:
        return " ".join(actor["name"] for actor in given(page_of(example(name)))["actors"])

    assert named("plain-sum") == "h1-1 h1-2 l1 h1-3"
    assert named("two-racks") == "h1-1 h1-2 l1 s1 l2 h2-1 h2-2"


def test_a_long_run_says_what_of_it_there_is() -> None:
    text = page_of(draw(17), most=100)
    assert "The page has 100 of 8" in text
    assert "--page-from SECONDS begins elsewhere" in text
    assert len(given(text)["steps"]) == 100
    assert "--page-from" not in page_of(draw(17))


def test_the_same_run_makes_the_same_page() -> None:
    assert page_of(draw(8)) == page_of(draw(8))


def test_a_page_is_small_enough_to_be_sent() -> None:
    assert all(len(page_of(example(name))) < 150_000 for name in NAMES)

"""Steps that a page has where a run has more than there is room for."""

from __future__ import annotations

from p4reduce.simulation.faults.drawing import draw
from p4reduce.simulation.sequence.steps import Part, Parts, Step
from tests.p4reduce.simulation.sequence.shown import observed


def made(count: int, fault: int | None = None) -> list[Step]:
    """Return steps at 0, 1, 2 … ns; each changes something."""
    steps = [Step(n, n, "note", changes={f"slot {n % 7}": {"n": n}}) for n in range(count)]
    if fault is not None:
        steps[fault].kind = "fault"
    return steps


def part_of(steps: list[Step], most: int, *, from_ns: int | None = None, failed: bool = False) -> Part:
    parts = Parts(most, from_ns)
    for step in steps:
        parts.add(step)
    return parts.chosen(failed=failed)


def test_all_of_a_short_run() -> None:
    part = part_of(made(10, fault=4), 10)
    assert [step.now_ns for step in part.steps] == list(range(10))
    assert (part.before, part.after) == (0, 0)


def test_the_first_where_nothing_goes_wrong() -> None:
    part = part_of(made(100), 10)
    assert [step.now_ns for step in part.steps] == list(range(10))
    assert (part.before, part.after) == (0, 90)


def test_those_around_the_first_fault() -> None:
    part = part_of(made(1000, fault=500), 40)
    assert [step.now_ns for step in part.steps] == list(range(490, 530))
    assert (part.before, part.after) == (490, 470)
    assert part.base == {f"slot {n % 7}": {"n": n} for n in range(483, 490)}


def test_nothing_is_left_out_for_a_fault_that_is_near_enough() -> None:
    part = part_of(made(100, fault=5), 40)
    assert (part.before, len(part.steps)) == (0, 40)


def test_the_last_of_a_run_that_failed() -> None:
    part = part_of(made(100, fault=5), 10, failed=True)
    assert [step.now_ns for step in part.steps] == list(range(90, 100))


def test_from_a_time_on() -> None:
    part = part_of(made(100, fault=5), 10, from_ns=60, failed=True)
    assert [step.now_ns for step in part.steps] == list(range(60, 70))
    assert (part.before, part.after) == (60, 30)
    assert not part_of(made(100), 10, from_ns=100).steps


def test_what_went_before_a_part_is_what_all_steps_before_it_come_to() -> None:
    _, whole = observed(draw(8))
    steps = whole.parts.chosen(failed=False).steps
    _, few = observed(draw(8), most=40, from_ns=list(steps)[len(steps) // 2].now_ns)
    part = few.parts.chosen(failed=False)
    assert part.before
    assert part.after
    assert len(part.steps) == 40
    before: dict[str, object] = {}
    for step in list(steps)[: part.before]:
        before.update(step.changes)
    assert part.base == before
    assert [step.said for step in part.steps] == [s.said for s in list(steps)[part.before : part.before + 40]]

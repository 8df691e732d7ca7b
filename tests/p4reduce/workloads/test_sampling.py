"""Looks at a fabric: what they say, and that whoever looks does not stop what is looked at."""

from __future__ import annotations

import itertools
import threading

from controller.api.errors import ControllerError
from p4reduce.workloads.run_file import LinkBytes
from p4reduce.workloads.sampling import MAX_SAMPLES, Look, Sampler, samples


def _look(at: float, up: int, slots_open: int = 0) -> Look:
    return Look(at=at, links={"h1:s1": LinkBytes(up=up, down=2 * up)}, slots_open=slots_open)


def test_times_and_bytes_count_from_the_beginning() -> None:
    looks = [_look(8.0, 100), _look(9.9, 150), _look(10.5, 250, slots_open=3), _look(11.0, 400)]
    found = samples(looks, began=10.0, slots_allocated=256)
    assert [(one.at_s, one.links["h1:s1"].up, one.links["h1:s1"].down) for one in found] == [
        (0.5, 100, 200),
        (1.0, 250, 500),
    ]
    assert [(one.slots_open, one.slots_allocated) for one in found] == [(3, 256), (0, 256)]
    assert samples(looks, began=12.0, slots_allocated=0) == []


def test_long_runs_are_thinned_out() -> None:
    looks = [_look(float(at), at) for at in range(10_000)]
    found = samples(looks, began=0.0, slots_allocated=0)
    assert len(found) == MAX_SAMPLES
    assert (found[0].at_s, found[-1].at_s) == (1.0, 9999.0)


def test_a_look_before_and_one_after() -> None:
    counted = itertools.count()
    looked = threading.Event()

    def look() -> dict[str, LinkBytes]:
        looked.set()
        return {"h1:s1": LinkBytes(up=next(counted), down=0)}

    with Sampler(look, None, interval_s=60.0) as sampler:
        assert looked.wait(20.0)
    assert [look.links["h1:s1"].up for look in sampler.looks] == [0, 1]


def test_a_controller_that_is_gone_stops_nothing() -> None:
    asked = threading.Event()

    def gone() -> int:
        asked.set()
        raise ControllerError("nobody answers")

    with Sampler(dict, gone, interval_s=0.001) as sampler:
        assert asked.wait(20.0)
    assert {look.slots_open for look in sampler.looks} == {0}

"""Elastic jobs of machines with several GPUs: they go on without whole machines, with one sum on all GPUs."""

from __future__ import annotations

import re
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from controller.api.messages import Mode
from host_agent.communicator import RingFallbackWarning
from host_agent.errors import CommunicatorError, MismatchError, UsageError
from host_agent.front import Collectives
from host_agent.machine.channel import SLOT_BYTES
from host_agent.membership import MembershipChange
from tests.host_agent.machine.machines import Machines

PIECES = 3 * SLOT_BYTES // 4 + 777  # elements of a tensor of four pieces
LOST = 2


@pytest.fixture
def machines() -> Iterator[Machines]:
    """Three with two GPUs each."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RingFallbackWarning)
        made = Machines(3, 2, elastic=True)
        yield made
        made.close()


def tensor(rank: int, size: int = PIECES) -> NDArray[np.int32]:
    return np.arange(size, dtype=np.int32) * (rank + 1)


def total(ranks: list[int], size: int = PIECES) -> NDArray[np.int32]:
    found: NDArray[np.int32] = np.add.reduce([tensor(rank, size) for rank in ranks], dtype=np.int32)
    return found


class Calls:
    """Each GPU's call, in a thread of its own, by how it joined."""

    def __init__(self, machines: Machines, work: Callable[[Collectives, int], Any]) -> None:
        self.results: dict[int, Any] = {}

        def call(rank: int, communicator: Collectives) -> None:
            try:
                self.results[rank] = work(communicator, rank)
            except Exception as error:  # noqa: BLE001  handed to the test, which looks at it
                self.results[rank] = error

        everybody = enumerate(machines.communicators)
        self.threads = [threading.Thread(target=call, args=(n, c)) for n, c in everybody]
        for thread in self.threads:
            thread.start()

    def of(self, *ranks: int) -> list[Any]:
        """Return the results of these ranks, when they have them."""
        for rank in ranks:
            self.threads[rank].join(30)
            assert not self.threads[rank].is_alive(), f"rank {rank} hangs"
        return [self.results[rank] for rank in ranks]


def wait_for(condition: Callable[[], bool]) -> None:
    for _ in range(3000):
        if condition():
            return
        threading.Event().wait(0.01)
    raise AssertionError("it never came")


def in_place(communicator: Collectives, rank: int) -> Any:
    array = tensor(rank)
    return communicator.all_reduce(array, out=array)


@pytest.mark.parametrize("mode", [Mode.IN_NETWORK, Mode.RING], ids=lambda mode: mode.name.lower())
@pytest.mark.parametrize(
    "work", [lambda c, rank: c.all_reduce(tensor(rank)), in_place], ids=["apart", "in place"]
)
def test_a_sum_that_one_plane_had_with_a_dead_machine_is_made_anew_without_it(
    machines: Machines, work: Callable[[Collectives, int], Any], mode: Mode
) -> None:
    """Kill a machine after the first GPUs' plane summed pieces with it, and the second GPUs' plane none."""
    plane, goes = machines.racks[1].communicators[LOST], threading.Event()
    submit = plane.submit

    def held(*args: Any, **how: Any) -> Any:
        goes.wait(30)
        return submit(*args, **how)

    plane.submit = held  # type: ignore[method-assign]
    calls = Calls(machines, work)
    wait_for(lambda: all(c.plane.statistics().collectives for c in machines.communicators[::2]))
    machines.kill(LOST)
    goes.set()
    machines.renew(mode, lost=[LOST])
    for result in calls.of(0, 1, 2, 3):
        np.testing.assert_array_equal(result, total([0, 1, 2, 3]))
    assert all(isinstance(error, CommunicatorError) for error in calls.of(4, 5))
    later = Calls(machines, lambda c, rank: c.all_reduce(tensor(rank, 5000)))
    for result in later.of(0, 1, 2, 3):
        np.testing.assert_array_equal(result, total([0, 1, 2, 3], 5000))


def test_steps_come_round_as_often_as_they_like(machines: Machines) -> None:
    for c in machines.communicators:
        for lane in (c._on.lane, c._on.results):
            lane.go_on_from(2**32 - 2)
    calls = Calls(machines, lambda c, rank: [c.all_reduce(tensor(rank, 9)) for _ in range(5)])
    for results in calls.of(*range(6)):
        for result in results:
            np.testing.assert_array_equal(result, total([*range(6)], 9))


def test_a_sum_that_some_gpu_has_finished_is_the_same_on_all(machines: Machines) -> None:
    """Check that it contains the dead machine's part, and that the next one does not."""
    slow, goes = machines.communicators[1], threading.Event()
    lane = slow._on.results
    rows = lane.rows

    def held(ahead: int = 0) -> Any:
        goes.wait(30)
        return rows(ahead)

    lane.rows = held  # type: ignore[method-assign]
    calls = Calls(machines, lambda c, rank: (c.all_reduce(tensor(rank, 999)), c.all_reduce(tensor(rank))))
    wait_for(lambda: machines.communicators[2].statistics().collectives == 1)
    wait_for(lambda: machines.communicators[3].statistics().collectives == 1)
    machines.kill(LOST)
    goes_later = threading.Timer(0.2, goes.set)
    goes_later.start()
    machines.renew(lost=[LOST])
    for result in calls.of(0, 1, 2, 3):
        assert not isinstance(result, Exception), result
        small, large = result
        np.testing.assert_array_equal(small, total([0, 1, 2, 3, 4, 5], 999))
        np.testing.assert_array_equal(large, total([0, 1, 2, 3]))


def test_a_machine_is_left_with_its_own_gpus(machines: Machines) -> None:
    machines.kill(0)
    machines.renew(lost=[0])
    machines.kill(2)
    machines.renew(Mode.RING, lost=[2])
    calls = Calls(machines, lambda c, rank: c.all_reduce(np.full(40_000, rank, np.float32), "avg"))
    for result in calls.of(2, 3):
        np.testing.assert_array_equal(result, np.full(40_000, 2.5, np.float32))


def test_ranks_close_up_and_users_hear_so(machines: Machines) -> None:
    changes: dict[int, list[MembershipChange]] = {}
    for rank, communicator in enumerate(machines.communicators):
        communicator.on_change(changes.setdefault(rank, []).append)
    machines.kill(0)
    machines.renew(lost=[0])
    left = machines.communicators[2:]
    assert [(c.rank, c.world_size, c.members) for c in left] == [(r, 4, (2, 3, 4, 5)) for r in range(4)]
    wait_for(lambda: all(changes[rank] for rank in (2, 3, 4, 5)))
    (change,) = changes[5]
    assert (change.old_rank, change.rank, change.lost) == (5, 3, (0, 1))
    assert (change.old_world_size, change.world_size) == (6, 4)

    def everything(c: Collectives, rank: int) -> Any:
        rows = c.all_gather(np.array([rank], np.int32))
        part = c.reduce_scatter(np.arange(8, dtype=np.int32))
        c.barrier()
        return rows, part, c.broadcast(np.array([rank], np.int32), root=3), c.reduce(tensor(rank, 9), root=0)

    for place, (rows, part, sent, reduced) in enumerate(Calls(machines, everything).of(2, 3, 4, 5)):
        np.testing.assert_array_equal(rows.reshape(-1), [2, 3, 4, 5])
        np.testing.assert_array_equal(part, 4 * np.arange(2 * place, 2 * place + 2))
        assert sent == [5]
        assert (reduced is None) == (place > 0)


def test_what_cannot_be_done_without_the_dead_is_refused_on_all(machines: Machines) -> None:
    """Broadcast from a dead root, then go on. The second plane sums the broadcast's one element."""

    def work(c: Collectives, rank: int) -> Any:
        try:
            c.broadcast(np.array([rank], np.int32), root=4)
        except UsageError as error:
            return str(error), c.all_reduce(tensor(rank, 40))
        raise AssertionError("it was done")

    goes = threading.Event()
    machines.racks[1].communicators[LOST].submit = lambda *args, **how: goes.wait(30)  # type: ignore
    calls = Calls(machines, work)
    wait_for(lambda: all(c._what for c in machines.communicators))
    machines.kill(LOST)
    machines.renew(lost=[LOST])
    goes.set()
    for why, result in calls.of(0, 1, 2, 3):
        assert "the worker that was the root has died" in why
        np.testing.assert_array_equal(result, total([0, 1, 2, 3], 40))


@pytest.mark.parametrize("not_started", [(2, 3), (3,), (2,), (0, 3)], ids=str)
def test_what_others_have_refused_is_begun_anew_by_who_missed_that_start(
    machines: Machines, not_started: tuple[int, ...]
) -> None:
    """Let some miss the Start after their root died, while the others have gone on to the next call."""

    def work(c: Collectives, rank: int) -> Any:
        with pytest.raises(UsageError, match="the worker that was the root has died"):
            c.broadcast(np.array([rank], np.int32), root=4)
        return c.all_reduce(tensor(rank, 40))

    goes = threading.Event()
    machines.racks[1].communicators[LOST].submit = lambda *args, **how: goes.wait(30)  # type: ignore
    calls = Calls(machines, work)
    wait_for(lambda: all(c._what for c in machines.communicators))
    machines.kill(LOST)
    machines.renew(lost=[LOST], not_started=not_started)
    if 0 not in not_started:
        wait_for(lambda: all(c._called == 2 for c in machines.of(0)))
    machines.renew()
    goes.set()
    for result in calls.of(0, 1, 2, 3):
        np.testing.assert_array_equal(result, total([0, 1, 2, 3], 40))


def test_rows_that_only_some_can_divide_are_told_apart(machines: Machines) -> None:
    """Check that no GPU refuses the call while the other of its machine waits for it."""
    machines.kill(LOST)
    machines.renew(lost=[LOST])
    shapes = {0: (4, 3), 1: (6, 2), 2: (4, 3), 3: (6, 2)}
    calls = Calls(machines, lambda c, rank: c.reduce_scatter(np.ones(shapes[rank], np.int32)))
    for result in calls.of(0, 1, 2, 3):
        assert isinstance(result, MismatchError), result
        assert re.search("int32 in 4 rows; rank .* int32 in 6 rows", str(result)), result


def test_what_has_no_rows_is_refused_and_harms_nobody(machines: Machines) -> None:
    def work(c: Collectives, rank: int) -> Any:
        with pytest.raises(UsageError, match=re.escape("the first dimension of shape () is not a multiple")):
            c.reduce_scatter(np.array(rank, np.int32))
        return c.all_reduce(tensor(rank, 40))

    for result in Calls(machines, work).of(*range(6)):
        np.testing.assert_array_equal(result, total([*range(6)], 40))


@pytest.mark.parametrize("early", [(2, 3, 4, 5), (2, 4), (3,)], ids=str)
def test_a_call_during_a_renewal_keeps_the_root_that_its_user_saw(
    machines: Machines, early: tuple[int, ...]
) -> None:
    """Check that whoever is rank 3 at the call gives the numbers. A later caller sees another one."""
    goes, later = threading.Event(), threading.Event()

    def work(c: Collectives, rank: int) -> Any:
        c.barrier()
        (goes if rank in early else later).wait(30)
        return c.broadcast(np.full(5, 42 if c.rank == 3 else 0, np.int32), root=3)

    calls = Calls(machines, work)
    wait_for(lambda: all(c._gang.step == 1 for c in machines.communicators))
    machines.kill(0)

    def meanwhile() -> None:
        goes.set()
        wait_for(lambda: all(machines.communicators[rank]._called == 2 for rank in early))

    machines.renew(lost=[0], meanwhile=meanwhile)
    later.set()
    for result in calls.of(2, 3, 4, 5):
        if len(early) == 4:
            np.testing.assert_array_equal(result, [42] * 5)
        else:
            assert isinstance(result, CommunicatorError)

"""Machines with several GPUs in one process: a simulated rack a plane, memory really shared."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Container, Sequence
from typing import Any

from controller.api.messages import Gang, Mode
from controller.jobs.serials import furthest
from host_agent.front import Collectives
from host_agent.machine.channel import REGION_BYTES
from host_agent.machine.communicator import MachineCommunicator
from host_agent.machine.meeting import Meeting, Who, meet
from p4reduce.simulation.faults.schedule import Rates
from tests.host_agent.fakes import FakeRack, on_all


def meetings(
    machines: int, gpus: int, *, region_bytes: int = REGION_BYTES, settings: str = ""
) -> list[Meeting]:
    """Return the meetings of all workers, by rank; each machine meets under a name of its own."""
    met: list[Any] = [None] * (machines * gpus)

    def come(machine: int, name: str, local_rank: int) -> None:
        rank = machine * gpus + local_rank
        who = Who(
            local_rank=local_rank, local_size=gpus, rank=rank, world_size=machines * gpus, settings=settings
        )
        met[rank] = meet(name, who, region_bytes=region_bytes, timeout_s=20)

    threads = []
    for machine in range(machines):
        name = str(uuid.uuid4())
        threads += [threading.Thread(target=come, args=(machine, name, local)) for local in range(gpus)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return met


class Machines:
    """`machines` with `gpus` each; `run` gives each rank its own thread. `racks`: by local rank.

    `sizes`: path MTU and packets a message of each plane.
    """

    def __init__(
        self,
        machines: int,
        gpus: int,
        *,
        mode: Mode = Mode.IN_NETWORK,
        timeout_s: float | None = 20.0,
        faults: Rates | None = None,
        pipeline: bool = True,
        intra_rate_bit_s: float | None = None,
        elastic: bool = False,
        sizes: Sequence[tuple[int, int]] = (),
    ) -> None:
        self.gpus = gpus
        self.racks = [
            FakeRack(
                machines,
                mode=mode,
                reason="no free slots" if mode is Mode.RING else "",
                faults=faults,
                gang=Gang("train", plane, gpus) if elastic else None,
                path_mtu=path_mtu,
                packets=packets,
            )
            for plane, (path_mtu, packets) in enumerate(sizes or [(1024, 4)] * gpus)
        ]
        self.meetings = meetings(machines, gpus)
        self.communicators = [
            MachineCommunicator(
                self.racks[rank % gpus].communicators[rank // gpus],
                meeting,
                pipeline=pipeline,
                intra_rate_bit_s=intra_rate_bit_s,
                timeout_s=timeout_s,
            )
            for rank, meeting in enumerate(self.meetings)
        ]

    def run(self, work: Callable[[Collectives], Any]) -> list[Any]:
        """Run `work` on every rank; return what each returned, or the exception it raised."""
        return on_all(self.communicators, work)

    def of(self, machine: int) -> list[MachineCommunicator]:
        """Return the communicators of a machine, as it joined."""
        return self.communicators[machine * self.gpus : (machine + 1) * self.gpus]

    def kill(self, machine: int) -> None:
        """Kill a machine: it sends nothing more, and no other machine hears of it."""
        for rack in self.racks:
            rack.memberships[machine].closed = True
        for rack in self.racks:
            rack.die(machine)

    def renew(
        self,
        mode: Mode = Mode.IN_NETWORK,
        *,
        lost: Sequence[int] = (),
        meanwhile: Callable[[], None] = lambda: None,
        not_started: Container[int] = (),
    ) -> None:
        """Renew all planes as the controller does, without machines, by how they joined.

        `meanwhile`: what happens when all have said where they stand. `not_started`: the GPUs, by the rank
        that they joined with, that do not hear Start.
        """
        for rack in self.racks:
            rack.begin_renewal("a machine died", lost=lost)
        answers = [rack.gather_answers() for rack in self.racks]
        finished = [said.gang_collective for of in answers for said in of.values()]
        assert None not in finished
        called = furthest([said.called for of in answers for said in of.values() if said.called is not None])
        over = max(said.over for of in answers for said in of.values())
        meanwhile()
        for rack, of in zip(self.racks, answers, strict=True):
            number, last = self.racks[0].renewals, max(finished)  # type: ignore[type-var]
            rack.say_renewed(
                of, mode, "no slots", gang_renewal=number, gang_collective=last, ranks_from=called, over=over
            )
        for plane, rack in enumerate(self.racks):
            rack.start_again(but=[m for m in rack.members if m * self.gpus + plane in not_started])

    def close(self) -> None:
        """End all: whoever has left has left."""
        self.run(lambda c: c.abort("the test is over"))

"""A controller without gRPC, connections without sockets: whole communicators in one process."""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Address
from typing import Any, TypeVar

from controller.api.messages import (
    Abort,
    Called,
    Compare,
    EndCause,
    Ended,
    Gang,
    Heartbeat,
    Held,
    HoldAt,
    JobSpec,
    Join,
    Leave,
    Mode,
    Moved,
    Pause,
    Paused,
    Ready,
    Renew,
    Renewed,
    Renewing,
    Start,
    Up,
    Worker,
)
from controller.jobs.effects import Tell
from controller.jobs.job import Job
from controller.jobs.missing import not_in_it
from controller.jobs.serials import furthest
from controller.jobs.specs import Member, Plan, Timing
from host_agent.communicator import Communicator
from host_agent.front import Collectives
from host_agent.membership import Answer, Request, error_of
from host_agent.runner import Alone, Link
from host_agent.transport import (
    Counters,
    Operation,
    Progress,
    ProtocolError,
    RetryLimitError,
    TransportClosedError,
    TransportConfig,
    TransportTimeoutError,
)
from host_agent.transport.events import EventType, FailureCode
from p4reduce.simulation.faults.schedule import Rates
from p4reduce.simulation.rack import GENERATION, JOB, configs
from tests.host_agent.rack import Simulation

C = TypeVar("C", bound=Collectives)
_TICK_S = 0.25
ALL_NAMES_S = 3.0  # how long a worker has to say what it has called


def running_job(world_size: int) -> Job:
    """Return a running job as a controller has it."""
    timing = Timing(
        heartbeat_interval_s=1e6, heartbeat_timeout_s=1e6, resume_timeout_s=1e6, lost_timeout_s=ALL_NAMES_S
    )
    job = Job(JobSpec(name="train", world_size=world_size), timing)
    for rank in range(world_size):
        ip = IPv4Address("10.0.0.1") + rank
        member = Member(
            rank=rank,
            mac="",
            ip=ip,
            qpn_out=0x100 + rank,
            psn_out=0,
            qpn_in=0x200 + rank,
            hostname=f"h{rank}",
        )
        job.join(member, world_size, 0.0)
    plan = Plan(job_id=JOB, generation=GENERATION, window=1, message_packets=1, path_mtu=1024, mode=Mode.RING)
    job.planned(plan, {rank: bytes([rank]) for rank in range(world_size)}, 0.0)
    for rank in range(world_size):
        job.hear(rank, Up(), 0.0)
    job.take_effects()
    return job


@dataclass
class FakeController:
    """State that all ranks' memberships share. Where calls differ, it does what a controller's job says."""

    world_size: int
    ended: Ended | None = None
    callbacks: list[Callable[[Ended], None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.leaving = threading.Barrier(self.world_size)
        self.lock = threading.Lock()
        self.listeners: dict[int, Callable[[Request], None]] = {}  # by the rank that each joined with
        self.answers: queue.Queue[tuple[str, int, int, int]] = queue.Queue()  # what, rank, move, number
        self.renew_answers: queue.Queue[tuple[int, Renewing]] = queue.Queue()
        self.ups: queue.Queue[int] = queue.Queue()
        self.counted: dict[int, tuple[int, int]] = {}
        self.job = running_job(self.world_size)
        self.ticking: threading.Thread | None = None

    def act(self, call: Callable[[Job, float], None]) -> None:
        """Let the job's state machine hear of something, and do what it asks for."""
        with self.lock:
            call(self.job, time.monotonic())
            effects = self.job.take_effects()
            if self.job.comparison is not None and self.ticking is None:
                self.ticking = threading.Thread(target=self._tick, daemon=True)
                self.ticking.start()
        for effect in effects:
            if isinstance(effect, Tell) and isinstance(effect.event, Compare):
                self.listeners[effect.rank](effect.event)
        for effect in effects:
            if isinstance(effect, Tell) and isinstance(effect.event, Ended):
                self.tell_end(effect.event)

    def _tick(self) -> None:
        while self.ended is None:
            time.sleep(_TICK_S)
            self.act(lambda job, now: job.tick(now))

    def say(self, step: Request) -> None:
        """Tell all ranks a step of a move."""
        for callback in self.listeners.values():
            callback(step)

    def gather(self, what: str, move: int, *, timeout_s: float = 20) -> dict[int, int]:
        """Return all ranks' answers to a step."""
        numbers: dict[int, int] = {}
        while len(numbers) < self.world_size:
            said, rank, of, number = self.answers.get(timeout=timeout_s)
            assert (said, of) == (what, move)
            numbers[rank] = number
        return numbers

    def hold(self, move: int) -> int:
        """Hold all ranks: the collective."""
        self.say(Pause(move))
        collective = max(self.gather("paused", move).values())
        self.say(HoldAt(move, collective))
        self.gather("held", move)
        return collective

    def end(self, reason: str, rank: int | None = None) -> None:
        """End the job because that rank is lost, or for another reason if None."""
        cause = EndCause.CANNOT_GO_ON if rank is None else EndCause.WORKER_LOST
        self.tell_end(Ended(reason=reason, cause=cause, rank=rank))

    def tell_end(self, ended: Ended) -> None:
        """Tell everybody, once."""
        with self.lock:
            if self.ended is not None:
                return
            self.ended = ended
        self.leaving.abort()
        for callback in self.callbacks:
            callback(ended)


class FakeMembership:
    """A `Membership` of one rank."""

    def __init__(self, controller: FakeController, rank: int) -> None:
        self.controller = controller
        self.rank = rank
        self.closed = False
        self.left = False

    def join(self, request: Join, *, timeout_s: float) -> Ready:
        raise NotImplementedError

    def up(self, *, timeout_s: float) -> None:
        raise NotImplementedError

    def on_ended(self, callback: Callable[[Ended], None]) -> None:
        self.controller.callbacks.append(callback)
        if self.controller.ended is not None:
            callback(self.controller.ended)

    def listen(self, callback: Callable[[Request], None]) -> None:
        self.controller.listeners[self.rank] = callback

    def say(self, answer: Answer) -> None:
        match answer:
            case Renewing():
                self.controller.renew_answers.put((self.rank, answer))
            case Up():
                self.controller.ups.put(self.rank)
            case Paused(move, number):
                self.controller.answers.put(("paused", self.rank, move, number))
            case Held(move):
                self.controller.answers.put(("held", self.rank, move, 0))
            case Called():
                self.controller.act(lambda job, now: job.hear(self.rank, answer, now))

    def confirm(self, *, timeout_s: float) -> bool:
        return True

    def who_is_missing(self, *, timeout_s: float) -> str:
        with self.controller.lock:
            workers = self.controller.job.workers
            collective = workers[self.rank].in_collective
            if collective is None:  # a renewal has come since it said so
                return ""
            return ", ".join(not_in_it(workers, collective, time.monotonic(), 1e6))

    def counted(self, generation: int, messages: int) -> None:
        self.controller.counted[self.rank] = generation, messages

    def runs(self, collective: int | None) -> None:
        def runs(job: Job, now: float) -> None:
            if self.rank in job.workers:
                generation, _ = self.controller.counted.get(self.rank, (0, 0))
                job.hear(self.rank, Heartbeat(generation=generation, running=collective), now)

        self.controller.act(runs)

    def abort(self, reason: str, mismatch: Called | None = None, plane: int | None = None) -> None:
        if not self.closed:
            self.controller.act(lambda job, now: job.hear(self.rank, Abort(reason, mismatch, plane), now))

    def leave(self, *, timeout_s: float, collectives: int | None = None) -> None:
        self.controller.act(lambda job, now: job.hear(self.rank, Leave(collectives), now))
        try:
            self.controller.leaving.wait(timeout_s)
        except threading.BrokenBarrierError:
            if self.controller.ended is None:
                raise
            raise error_of(self.controller.ended, own_rank=self.rank) from None
        self.left = True

    def close(self) -> None:
        self.closed = True


class SimulatedFabric:
    """A `Simulation` that threads drive: whoever waits moves it on.

    A timer fires when all ranks wait, or after `PATIENCE` looks at a fabric where nothing moves.
    """

    PATIENCE = 20

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.lock = threading.Lock()
        self.waiting = 0
        self.idle = 0

    def pump(self) -> None:
        """Let the frames under way arrive, or the next timer fire."""
        self.idle += 1
        while self.simulation.frames_under_way():
            self.simulation.step()
            self.idle = 0
        if self.idle > self.PATIENCE or self.waiting == len(self.simulation.workers):
            self.simulation.step()


class SimulatedLink:
    """A `Link` of one rank on a simulated fabric."""

    def __init__(self, fabric: SimulatedFabric, rank: int) -> None:
        self.fabric = fabric
        self.worker = fabric.simulation.workers[rank]
        self.rank = rank
        self.aborted: str | None = None
        self.closed = False

    def post(self, operation: Operation) -> int:
        with self.fabric.lock:
            op_id = self.worker.endpoint.post(operation, self.fabric.simulation.now_ns)
            self.fabric.simulation.flush(self.rank)
            return op_id

    def wait(
        self, op_id: int, *, timeout_s: float | None = None, until: EventType = EventType.RECEIVED
    ) -> None:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self.fabric.lock:
            self.fabric.waiting += 1
        try:
            while not self._poll(op_id, until):
                if deadline is not None and time.monotonic() >= deadline:
                    raise TransportTimeoutError(f"operation {op_id} is not done after {timeout_s} s")
                time.sleep(0.0005)  # others need the lock
        finally:
            with self.fabric.lock:
                self.fabric.waiting -= 1

    def _poll(self, op_id: int, until: EventType) -> bool:
        with self.fabric.lock:
            self.fabric.pump()
            self.worker.note()
            failure = self.worker.failure
            done = self.worker.received if until is EventType.RECEIVED else self.worker.completed
        if done >= op_id:
            return True
        if failure is not None:
            raise (
                RetryLimitError(failure)
                if failure.code is FailureCode.RETRY_LIMIT
                else ProtocolError(failure)
            )
        if self.aborted is not None:
            raise TransportClosedError(self.aborted)
        return False

    def abort(self, reason: str) -> None:
        with self.fabric.lock:
            self.aborted = self.aborted or reason
            self.worker.endpoint.halt()

    def counters(self) -> Counters:
        self._require_open()
        with self.fabric.lock:
            return self.worker.endpoint.counters()

    def progress(self) -> Progress:
        self._require_open()
        with self.fabric.lock:
            return self.worker.endpoint.progress()

    def _require_open(self) -> None:
        if self.closed:
            raise TransportClosedError(self.aborted or "the connection was closed")

    def close(self) -> None:
        self.closed = True


def ready_of(
    config: TransportConfig, *, mode: Mode = Mode.IN_NETWORK, reason: str = "", ring: tuple[int, ...] = ()
) -> Ready:
    """Return the Ready that the controller would send to this worker."""

    def neighbour(
        mac: str, ip: IPv4Address, *, rank: int = 0, qpn_out: int = 0, psn_out: int = 0, qpn_in: int = 0
    ) -> Worker:
        return Worker(rank=rank, mac=mac, ip=ip, qpn_out=qpn_out, psn_out=psn_out, qpn_in=qpn_in)

    ahead, behind = config.successor, config.predecessor
    return Ready(
        job_id=JOB,
        generation=GENERATION,
        window=config.window,
        message_packets=config.message_packets,
        path_mtu=config.path_mtu,
        mode=mode,
        mode_reason=reason,
        successor=neighbour(ahead.mac, ahead.ip, qpn_in=ahead.qpn_in),
        predecessor=neighbour(
            behind.mac,
            behind.ip,
            rank=config.predecessor_rank,
            qpn_out=behind.qpn_out,
            psn_out=behind.psn_out,
        ),
        heartbeat_interval_s=1.0,
        heartbeat_timeout_s=30.0,
        ring=ring,
    )


def on_all(communicators: Sequence[C], work: Callable[[C], Any]) -> list[Any]:
    """Run `work` in a thread for each; return what it returned, or the exception it raised."""
    results: list[Any] = [None] * len(communicators)

    def target(place: int) -> None:
        try:
            results[place] = work(communicators[place])
        except Exception as error:  # noqa: BLE001  handed to the test, which looks at it
            results[place] = error

    threads = [threading.Thread(target=target, args=(place,)) for place in range(len(results))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a rank hangs"
    return results


class FakeRack:
    """World-size communicators on one simulated fabric; `run` gives each its own thread.

    With `mode` RING, the switch knows nothing of the job until `move`. `gang`: it is its plane, elastic.
    `elastic`: so is the job, of which no controller grants a lease here.
    """

    def __init__(
        self,
        world_size: int,
        *,
        mode: Mode = Mode.IN_NETWORK,
        reason: str = "",
        timeout_s: float = 20.0,
        faults: Rates | None = None,
        ring: tuple[int, ...] = (),
        gang: Gang | None = None,
        path_mtu: int = 1024,
        packets: int = 4,
        elastic: bool = False,
    ) -> None:
        workers = configs(world_size, path_mtu=path_mtu, packets=packets, ring=ring)
        self.simulation = Simulation(workers, faults=faults, seed=1)
        self.fabric = SimulatedFabric(self.simulation)
        self.faults = faults
        self.moves = self.renewals = 0
        self.members = list(range(world_size))  # who lives, by the rank that each joined with
        if mode is Mode.RING:
            self.simulation.uninstall()
        self.controller = FakeController(world_size)
        self.memberships = [FakeMembership(self.controller, rank) for rank in range(world_size)]
        self.links = [SimulatedLink(self.fabric, rank) for rank in range(world_size)]
        self.communicators = [
            Communicator(
                rank=config.rank,
                world_size=world_size,
                ready=replace(
                    ready_of(config, mode=mode, reason=reason, ring=ring),
                    lease_s=1.0 if gang is not None or elastic else 0.0,
                ),
                link=self.links[config.rank],
                membership=self.memberships[config.rank],
                timeout_s=timeout_s,
                queue_pairs=FakeQueuePairs(self),
                gang=gang,
            )
            for config in workers
        ]

    def move(self, mode: Mode, reason: str = "") -> int:
        """Move the job while it runs, as the controller does; the first collective in the new mode."""
        self.moves += 1
        collective = self.controller.hold(self.moves)
        with self.fabric.lock:
            for worker in self.fabric.simulation.workers:
                progress = worker.endpoint.progress()
                assert progress.first_unacked_psn == progress.next_psn, "something is in flight"
            if mode is Mode.IN_NETWORK:
                self.simulation.install()
            else:
                self.simulation.uninstall()
        self.controller.say(Moved(self.moves, mode, reason))
        return collective

    def run(self, work: Callable[[Communicator], Any]) -> list[Any]:
        """Run `work` on every rank; return what each returned, or the exception it raised."""
        return on_all(self.communicators, work)

    def renew(
        self,
        mode: Mode = Mode.IN_NETWORK,
        reason: str = "switch l1 has restarted",
        *,
        lost: Sequence[int] = (),
    ) -> int:
        """Renew the job while it runs, as the controller does, without the workers that joined as `lost`.

        The collective that it goes on with.
        """
        self.begin_renewal(reason, lost=lost)
        answers = self.gather_answers()
        collective = self.say_renewed(answers, mode, reason)
        self.start_again()
        return collective

    def begin_renewal(self, reason: str, *, lost: Sequence[int] = ()) -> None:
        """Say Renew to all who live."""
        self.renewals += 1
        self.members = [member for member in self.members if member not in lost]
        for member in lost:
            self.controller.job.workers.pop(member, None)
        for member in self.members:
            self.controller.listeners[member](Renew(self.renewals, reason))

    def gather_answers(self) -> dict[int, Renewing]:
        """Return what all living members answer to the newest Renew."""
        answers: dict[int, Renewing] = {}
        while len(answers) < len(self.members):
            member, answer = self.controller.renew_answers.get(timeout=20)
            if answer.renewal == self.renewals:
                answers[member] = answer
        return answers

    def say_renewed(
        self,
        answers: dict[int, Renewing],
        mode: Mode,
        reason: str = "",
        *,
        gang_renewal: int = 0,
        gang_collective: int | None = None,
        ranks_from: int | None = None,
        over: int | None = None,
    ) -> int:
        """Set up the new generation, and tell everybody. `ranks_from`, `over`: of a gang, of all planes."""
        called = [answer.called for answer in answers.values() if answer.called is not None]
        counts = [answers[member].collective for member in self.members]
        collective = next(c for c in counts if all((other - c) % 2**32 <= 1 for other in counts))
        holder = next((rank for rank, count in enumerate(counts) if count != collective), None)
        size = len(self.members)
        workers = configs(size, path_mtu=1024, psns=[answers[member].psn_out for member in self.members])
        self.fabric = SimulatedFabric(Simulation(workers, faults=self.faults, seed=self.renewals))
        self.simulation = self.fabric.simulation
        if mode is Mode.RING:
            self.simulation.uninstall()
        if size != self.controller.leaving.parties:
            self.controller.leaving = threading.Barrier(size)
        for rank, member in enumerate(self.members):
            ready = ready_of(workers[rank], mode=mode, reason=reason if mode is Mode.RING else "")
            self.controller.listeners[member](
                Renewed(
                    renewal=self.renewals,
                    ready=replace(ready, rank=rank, world_size=size, generation=GENERATION + self.renewals),
                    collective=collective,
                    holder=holder,
                    members=tuple(self.members),
                    gang_renewal=gang_renewal,
                    gang_collective=gang_collective,
                    ranks_from=furthest(called) if ranks_from is None else ranks_from,
                    over=max(answer.over for answer in answers.values()) if over is None else over,
                )
            )
        return collective

    def start_again(self, *, but: Container[int] = ()) -> None:
        """Start when all are up; the sessions of members in `but` break before they hear it."""
        up: set[int] = set()
        while up != set(self.members):
            up.add(self.controller.ups.get(timeout=20))
        for member in self.members:
            if member not in but:
                self.controller.listeners[member](Start())

    def die(self, rank: int) -> None:
        """Let a worker die: it sends nothing more, and nobody hears of it."""
        self.communicators[rank]._execution._on_ended(Ended(reason="this worker was declared dead"))


class FakeQueuePairs:
    """Queue pairs on the fabric that the rack has when they are connected."""

    def __init__(self, rack: FakeRack) -> None:
        self.rack = rack
        qpn_out, psn_out, qpn_in = random.sample(range(0x100, 1 << 24), 3)
        ip = IPv4Address("10.0.0.1")
        self.worker = Worker(rank=0, mac="", ip=ip, qpn_out=qpn_out, psn_out=psn_out, qpn_in=qpn_in)

    def offer(self) -> FakeQueuePairs:
        return FakeQueuePairs(self.rack)

    def connect(self, ready: Ready) -> Link:
        if ready.world_size == 1:
            return Alone()
        return SimulatedLink(self.rack.fabric, ready.rank)

    def close(self) -> None:
        pass

"""A worker of a schedule: an `Agent` with a real endpoint and the real collectives, in simulated time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from controller.api.messages import (
    Abort,
    Ended,
    FromController,
    Heartbeat,
    Join,
    Mode,
    Ready,
    Resume,
    Up,
)
from controller.jobs.renewals import PLANNED
from host_agent.collectives.plan import Call, Disagreement, Steps, Strategy, Wait
from host_agent.joining import transport_config
from host_agent.member import Action as OnJob
from host_agent.member import Again, Connect, Cut, Drop, Offer, Repair, Settle, WentOn
from host_agent.membership import Request, View
from host_agent.recovery import Attempt, LinkCut, refusal, repair
from host_agent.session import Action, Break, Close, Open, Send, Session
from host_agent.transport import Endpoint, EventType, Operation
from host_agent.wire.aggregation import Kind, Reduction
from p4reduce.oracle.state import MOST_AGGREGATED
from p4reduce.simulation.cases import Case
from p4reduce.simulation.faults.agent import Agent, addresses
from p4reduce.simulation.faults.control import Conversation, HungUp
from p4reduce.simulation.faults.job import JobRun
from p4reduce.simulation.faults.links import Wire
from p4reduce.simulation.faults.lives import Lives
from p4reduce.simulation.faults.loop import NS
from p4reduce.simulation.faults.machine import InMachine
from p4reduce.simulation.faults.network import BackupNetwork, Network
from p4reduce.simulation.faults.scene import Scene
from p4reduce.simulation.faults.schedule import Work
from p4reduce.simulation.invariant import InvariantError
from p4reduce.simulation.nic import AnyEndpoint, NicEndpoint

BACKLOG = 64  # frames that wait for a process that is stopped; more are lost
JOIN_TIMEOUT_NS = 20 * NS
ASKING = Case("in_network", "all_reduce", np.dtype(np.int32), 1, Reduction.MAX)  # how a plane takes a call


class RefusedError(Exception):
    """A call cannot be done by the workers that are left, or by ring."""


class Worker(Agent):
    """One rank of a job."""

    def __init__(self, scene: Scene, network: Network, controller: Lives, job: JobRun, rank: int) -> None:
        super().__init__()
        self.scene = scene
        self.clock = scene.clock
        self.network = network
        self.controller = controller
        self.job = job
        self.joined_as = rank
        self.host = job.host_of(rank)
        self.wire: Wire | BackupNetwork = network.from_host(self.host)
        self.management_ns = scene.latency(f"management/{job.number}/{rank}", 50_000, 400_000)
        self.qpn_out, self.qpn_in = job.plan.qpns[rank], job.plan.qpns[rank] + 1
        self.psn_out = job.plan.psns[rank]
        # The session
        self.session = Session(self.request())
        self.conversation: Conversation | None = None
        self.cut_until_ns = 0
        self._due_ns: int | None = None  # when it has something to do
        # The connection and what runs on it
        self.endpoint: AnyEndpoint | None = None
        self._repair: Repair | None = None  # runs in its place
        self._steps: Steps[Any] | None = None  # of it or the collective, what runs on the connection
        self._waiting: Wait | None = None
        self._received = self._completed = self._last_op = 0
        self._settling: int | None = None  # a move
        self._thinking = self._restored = False
        self._root_member: int | None = None  # of what runs, as it joined
        self._refused: RefusedError | None = None  # why what runs is not done
        self._timer_ns: int | None = None
        self._module = ""
        self._array: Any = None
        self._out: Any = None
        # The process
        self.has_given_up = False
        self.mates: list[Worker] = []  # of its machine, in the other planes of its gang
        self._heard_early: tuple[str, int | None, bool] | None = None
        self.settings = 0, 0
        plane = job.gang
        self.machine = (
            None if plane is None else InMachine(self, plane.plane, plane.planes, elastic=job.plan.elastic)
        )
        self.stopped_until_ns = 0
        self.behind_ns = 0  # so much its clock has lost
        self._backlog: list[tuple[str, Any]] = []

    def __str__(self) -> str:
        return f"job {self.job.number}, rank {self.joined_as} ({self.host.name})"

    @property
    def now_ns(self) -> int:  # type: ignore[override]
        """The time by its own clock."""
        return self.clock.now_ns - self.behind_ns

    # The process: born, stopped, killed.

    def start(self) -> None:
        """Join; the session tries again while the controller cannot be reached. Give up after 20 s."""
        if self.state == "new":
            self.clock.after(JOIN_TIMEOUT_NS, self._give_up_joining)
            self._join()

    def _give_up_joining(self) -> None:
        if self.state in ("joining", "ready") and not self._is_stopped("_give_up_joining"):
            reason = f"rank {self.rank} could not start: not all workers came"
            self.say(Abort(reason))
            self._finish("ended", reason)

    def kill(self) -> None:
        """Kill it (SIGKILL): the kernel closes its connection with the controller."""
        if self.over:
            return
        self.scene.note(f"{self} is killed")
        self.state = "dead"
        self._close()
        self.job.worker_over()
        if self.conversation is not None:
            self.conversation.closed_by_worker()
        gang = self.job.gang
        if gang is not None:
            died = f"GPU {gang.plane} of machine {self.joined_as} ({self.host.name}) died"
            self._tell_mates(died, gang.plane)

    def stop(self, until_ns: int) -> None:
        """Stop it (SIGSTOP), and let it go on (SIGCONT) at `until_ns`."""
        if self.over or self.stopped_until_ns:
            return
        self.scene.note(f"{self} is stopped")
        self.stopped_until_ns = until_ns
        self.clock.at(until_ns, self._go_on)

    def suspend(self, until_ns: int) -> None:
        """Stop it until `until_ns` as a hypervisor does: its clock does not count that time."""
        if not self.over and not self.stopped_until_ns:
            self.stop(until_ns)
            self.behind_ns += until_ns - self.clock.now_ns

    def clock_jumps(self, by_ns: int) -> None:
        """Let its clock go on at once, as after a migration: what was to come meanwhile is due."""
        if self.over:
            return
        self.behind_ns -= by_ns
        if not self.stopped_until_ns:
            self._due_ns = None
            self._act()

    def _go_on(self) -> None:
        self.scene.note(f"{self} goes on")
        self.stopped_until_ns = 0
        backlog, self._backlog = self._backlog, []
        for kind, what in backlog:
            getattr(self, kind)(*what)
        self.flush()

    def _is_stopped(self, kind: str, *what: Any) -> bool:
        """Return whether it cannot act now; it will when it goes on."""
        if not self.stopped_until_ns:
            return False
        if kind != "receive" or sum(k == "receive" for k, _ in self._backlog) < BACKLOG:
            self._backlog.append((kind, what))
        return True

    def _close(self) -> None:
        """Drop its queue pairs."""
        self._steps = self._waiting = None
        if self.endpoint is not None:
            self.job.closes(self)
            self.network.close(self, self.endpoint.config)
            self.endpoint.close()
            self.endpoint = None

    def free(self) -> None:
        """Let go of the endpoint: the run is over."""
        if self.endpoint is not None:
            self.endpoint.close()
            self.endpoint = None

    def _finish(self, state: str, end: Ended | str | None = None) -> None:
        if not self.over:
            self.scene.note(f"{self}: {state}{'' if end is None else f', {end}'}")
            met = self.state == "running"
            super()._finish(state, end)
            self.job.worker_over()
            if state == "ended" and met:
                self._tell_mates(end.reason if isinstance(end, Ended) else str(end))

    # Its machine, whose workers hear at once of one that died or failed.

    def _tell_mates(self, reason: str, dead: int | None = None, *, differs: bool = False) -> None:
        for mate in self.mates:
            delay = self.scene.latency(f"machine/{self.job.number}/{self.joined_as}", 20_000, 500_000)
            self.clock.after(delay, mate.machine_failed, reason, dead, differs)

    def machine_failed(self, reason: str, dead: int | None, differs: bool) -> None:
        """Give up: another worker of this machine died or differs, or its plane ended."""
        if self.state in ("new", "joining", "ready"):  # its machine meets when it has joined
            self._heard_early = reason, dead, differs
            return
        if self.state != "running" or self._is_stopped("machine_failed", reason, dead, differs):
            return
        self.scene.note(f"{self} hears from its machine: {reason}")
        if differs:
            self.differ(reason)
        else:
            self._give_up(Abort(reason, plane=dead))

    def differ(self, reason: str) -> None:
        """Give up: workers of this machine have called different collectives."""
        if self.has_given_up:
            return
        self.scene.note(f"{self} differs: {reason}")
        number = self.in_job.next_collective
        self.in_job.calls.made(number, lambda: reason)
        self._give_up(Abort(reason, self.in_job.calls.of(number)))
        self._tell_mates(reason, differs=True)

    def _give_up(self, why: Abort) -> None:
        self.has_given_up = True
        self.say(why)
        if self.endpoint is not None:
            self.endpoint.halt()
        self._steps = self._waiting = None

    def wake_mates(self) -> None:
        """Let them see, after a moment, what this worker has put into its memory."""
        for mate in self.mates:
            self.clock.after(self.scene.latency(f"memory/{self.job.number}", 500, 20_000), mate.look)

    def look(self) -> None:
        """Look at what the mates have in their memory."""
        if self.machine is not None and self.member is not None and not self._is_stopped("look"):
            self.machine.look()

    def cancels(self, collective: int) -> bool:
        """Return whether its user cancels that call before its turn."""
        return self.job.plan.calls(self.joined_as, collective) is None

    @property
    def plan_size(self) -> int:
        """The number of workers that its job began with."""
        return self.job.plan_size

    @property
    def work(self) -> Work:
        """The user's call that runs, or is made next."""
        return self.job.plan.work[self.collective]

    def gathered(self, collective: int) -> None:
        """Check the results of all planes, which the machine has."""
        if self.work.is_empty:
            return  # its planes need not be up
        self.job.check_planes(self, [mate.job for mate in self.mates], collective)

    def nothing(self) -> Any:
        """Return the result of a call of no elements, which its planes do not see."""
        assert self.ready is not None
        return self.collective, self.ready.generation, self.work.case().output(self.in_job.view.world_size)

    def call_is_over(self, result: Any, refused: str | None) -> None:
        """Note that the gang's call is over; whether it was done is the same on all GPUs."""
        self.job.outcome(self, self.collective, "cancelled" if result is refused is None else refused or "")
        self.collective += 1
        self.wake_mates()
        if result is None:
            self.scene.note(f"{self}: collective {self.collective - 1} is not done: {refused}")
            self._think()
            return
        self._unreturned = result
        self._return()

    def _begin_anew(self) -> None:
        """Drop the collective that runs, or whose result of this plane is held: it is begun anew."""
        assert self.machine is not None
        self.scene.note(f"{self} begins collective {self.collective} anew")
        whole, self._whole = self._whole, None
        self._steps = self._waiting = None
        if whole is not None:
            whole.close()
            self.session.running = None
            self.in_job.ended()
        self.job.begins_anew(self, self.collective)
        self.machine.drop()

    # The session with the controller.

    def request(self) -> Join:
        """Return a join request, with the queue pairs that it has now."""
        plan = self.job.plan
        mac, ip = BackupNetwork.interface_of(self.host)
        return Join(
            job=self.job.name,
            world_size=self.job.plan_size,
            worker=addresses(self.host, self.joined_as, qpn=self.qpn_out, psn=self.psn_out),
            path_mtu_max=plan.path_mtu_of(self.joined_as),
            rnr_nak=self.joined_as in plan.adapters or self.joined_as in plan.rnr,
            elastic=plan.elastic,
            selective=plan.selective,
            gang=self.job.gang,
            backup_mac=mac if plan.backup else "",
            backup_ip=ip if plan.backup else None,
            backup_path_mtu=plan.path_mtu_of(self.joined_as) if plan.backup else 0,
        )

    def _act(self) -> None:
        super()._act()
        due = self.session.next_timeout()
        if due is not None and (self._due_ns is None or due < self._due_ns):
            self._due_ns = due
            self.clock.at(max(due + self.behind_ns, self.clock.now_ns), self._is_due, due)

    def _is_due(self, due_ns: int) -> None:
        if self._due_ns != due_ns or self.over or self._is_stopped("_is_due", due_ns):
            return
        self._due_ns = None
        self.session.timeout(self.now_ns)
        self._act()

    def _arrives(self, conversation: Conversation, first: Join | Resume) -> None:
        controller = self.controller.listening
        if controller is None or self.clock.now_ns < self.cut_until_ns:
            conversation.hang_up(HungUp("the controller cannot be reached"))
        elif conversation.open:
            controller.connect(conversation, first)

    def hung_up(self, conversation: Conversation, hung_up: HungUp) -> None:
        """Note that the session has ended."""
        if self.over or conversation is not self.conversation:
            return
        if self._is_stopped("hung_up", conversation, hung_up):
            return
        if hung_up.taken:  # as host_agent/joining.py
            self.qpn_out = self.network.fresh_qpn()
            self.qpn_in = self.qpn_out + 1
            self.session = Session(self.request())
        self._broken(hung_up)

    @property
    def ready(self) -> Ready | None:
        """The job as the controller has set it up last."""
        return self.session.ready

    @property
    def rank(self) -> int:
        """The rank in its generation."""
        return self.session.rank

    @property
    def members(self) -> tuple[int, ...]:
        """The workers in the job as its next call sees it, by the ranks that they joined with."""
        return self.in_job.view.members

    @property
    def is_leaving(self) -> bool:
        """True if it has nothing more to send."""
        return self.session.is_leaving

    def cut_session(self, until_ns: int) -> None:
        """Cut it off from the controller until `until_ns`: nothing gets there or back."""
        self.cut_until_ns = until_ns
        conversation = self.conversation
        if conversation is not None and conversation.open and not self.over:
            conversation.closed_by_worker()
            self.hung_up(conversation, HungUp("the connection broke"))

    def told(self, conversation: Conversation, event: FromController) -> None:
        """Hear something from the controller."""
        if self.over or conversation is not self.conversation:
            return
        if self._is_stopped("told", conversation, event):
            return
        if not isinstance(event, Heartbeat):
            self.scene.note(f"{self} hears {type(event).__name__}")
        self._heard(event)

    def _asked(self, request: Request) -> None:
        super()._asked(request)
        if self.session.has_begun:
            self._begin()
        self.go()

    def _set_up(self, ready: Ready) -> None:
        """Bring the queue pairs up."""
        self.state = "ready"
        self._enter(ready)
        self.settings = ready.path_mtu, ready.message_packets
        if self.job.gang is not None and self.job.plan.elastic:
            self.in_job.gang_collective = 0
        self._connect(ready)
        self.say(Up())

    def _connect(self, ready: Ready) -> None:
        self._received = self._completed = self._last_op = 0
        self._timer_ns = None
        self.job.connected(self, ready)
        if ready.world_size == 1:
            return
        request = self.session.join
        if ready.backup:
            mac, ip = BackupNetwork.interface_of(self.host)
            request = replace(request, worker=replace(request.worker, mac=mac, ip=ip))
        self.wire = self.network.backup if ready.backup else self.network.from_host(self.host)
        config = replace(
            transport_config(request, ready, retry_limit=0),
            first_message=self.job.first_message(ready.generation),
        )
        nic = self.joined_as in self.job.plan.adapters
        self.endpoint = NicEndpoint(config) if nic else Endpoint(config)
        self.network.open(self, self.job, config, ready)

    def _begin(self) -> None:
        """Begin to run: all are up for the first time."""
        if self.state == "ready":
            self.state = "running"
            self.job.runs()
            if self._heard_early is not None:
                self.machine_failed(*self._heard_early)
            self._think()

    # What the job wants of this worker

    @property
    def mode(self) -> Mode:
        """The mode of the next collective."""
        return Mode.RING if self.member is None else self.member.mode

    def _carry_out(self, action: Action | OnJob) -> None:
        """Do what either machine wants; what takes time takes some here, too."""
        later = self.clock.after
        match action:
            case Open(first):
                self.conversation = Conversation(self.clock, self.management_ns, self.told, self.hung_up)
                later(self.management_ns, self._arrives, self.conversation, first)
            case Send(message) if self.conversation is not None:
                self.conversation.say(message)
            case Break() if self.conversation is not None:
                self.conversation.closed_by_worker()
                self.hung_up(self.conversation, HungUp("the controller is silent"))
            case Close() if self.conversation is not None:
                self.conversation.closed_by_worker(told_end=isinstance(self.end, Ended))
            case Cut():
                self._cut()
            case Settle(move):
                self._settling = move
                self._perhaps_settled()
            case Offer(renewal):
                later(self._latency("renew", renewal), self._offer, renewal)
            case Connect(renewal, ready):
                later(self._latency("renewed", renewal), self._come_up, renewal, ready)
            case Repair():
                self._begin_repair(action)
            case WentOn(ready=ready):
                self.job.renewals += 1
                now = f"as rank {self.rank} of {ready.world_size}, generation {ready.generation}"
                self.scene.note(f"{self} goes on {now}")
                self._begin()
                if self.machine is not None:
                    if self.machine.is_dropped and self._whole is None:
                        self._begin_anew()
                    self.clock.after(0, self.look)
            case Drop():
                self._begin_anew()
            case Again():
                self._restored = self.in_job.replay_log.restored
                self._steps, self._waiting = self._whole, None
                self._advance(LinkCut())
                self.flush()

    def _latency(self, what: str, renewal: int) -> int:
        return self.scene.latency(f"{what}/{self.job.number}/{self.joined_as}/{renewal}", 0, 3_000_000)

    def _cut(self) -> None:
        self._require_held(self.in_job.renewal)
        self.job.newest = max(self.job.newest, self.in_job.renewal)
        self._repair = self._settling = None
        generation = self.in_job.generation
        self._close()
        if self._whole is not None:
            restored = self.in_job.replay_log.restored
            self.in_job.parked()
            if self.in_job.replay_log.restored and not restored:  # it had all but acknowledgements
                self.job.made(self, self.collective, generation, self._module, restored=False)
            self._act_on_job()

    def _require_held(self, renewal: int) -> None:
        """Require that a planned renewal cuts nothing."""
        controller = self.controller.current
        if controller is None or self._whole is None:
            return
        for running in controller.registry.jobs():
            of = running.job.renewal
            if of is not None and of.number == renewal and of.cause in PLANNED:
                raise InvariantError(f"{self} is in collective {self.collective}, which a move cuts")

    def _offer(self, renewal: int) -> None:
        if self.over or not self.in_job.wants(renewal) or self._is_stopped("_offer", renewal):
            return
        self.qpn_out = self.network.fresh_qpn()
        self.qpn_in = self.qpn_out + 1
        self.psn_out = self.scene.latency(f"psn/{self.qpn_out}", 0, 2**24 - 1)
        if self.joined_as % 2:
            self.psn_out = 2**24 - 1 - self.psn_out % 30
        self.in_job.offered(renewal, qpn_out=self.qpn_out, psn_out=self.psn_out, qpn_in=self.qpn_in)
        self._act_on_job()

    def _come_up(self, renewal: int, ready: Ready) -> None:
        if self.over or not self.in_job.wants(renewal) or self._is_stopped("_come_up", renewal, ready):
            return
        self._connect(ready)
        self.in_job.connected(renewal)
        self._act_on_job()

    def _begin_repair(self, wanted: Repair) -> None:
        """Begin a repair: all are up, and those who lack a result that somebody has get it."""
        view = wanted.view
        call = Call(rank=view.rank, world_size=view.world_size, collective=wanted.collective, ring=view.ring)
        self._repair = wanted
        self._steps = repair(self.in_job.replay_log, call, holder=wanted.holder, mode=wanted.mode)
        self._waiting = None
        self._advance()
        self.flush()

    def _is_acknowledged(self) -> bool:
        return self._completed >= self._last_op

    def _perhaps_settled(self) -> None:
        """Say that a move is settled, if nothing is in flight."""
        if self._settling is not None and self._is_acknowledged():
            move, self._settling = self._settling, None
            self.in_job.settled(move)
            self._act_on_job()

    # Collectives.

    def _think(self) -> None:
        """Compute for a while, then begin the next collective; leave after the last."""
        if self.collective >= len(self.job.plan.work):
            self._leave()
            return
        self._thinking = True
        delay = self.job.plan.work[self.collective].think_ns
        slow = self.scene.latency(f"think/{self.job.number}/{self.joined_as}/{self.collective}", 0, delay)
        self.clock.after(slow, self._thought, self.collective)

    def _thought(self, collective: int) -> None:
        if self.over or self._is_stopped("_thought", collective):
            return
        if self._thinking and collective == self.collective:
            self._thinking = False
            self.go()

    def go(self) -> None:
        """Make the call that is next, and begin in the job what is to run there, if it may."""
        if self._thinking or self.state != "running" or self.has_given_up:
            return
        if not self._whole is self._unreturned is None:
            return
        if self.machine is not None:
            self.machine.begin()
            if not self.machine.is_running or self._whole is not None:
                return
        if not self._start():
            return
        self._restored = False
        self._array = self.job.inputs(self.collective)[self.joined_as].copy()
        work = self.work
        self.scene.note(
            f"{self} calls {work.name} of {work.elements} {work.dtype}, collective {self.collective}"
        )
        self._steps, self._waiting = self._whole, None
        self._advance()
        self.flush()

    def _attempt(self) -> Attempt:
        work, view, mode = self.work, self.in_job.view, self._mode_now()
        size, case = view.world_size, work.case()
        if self.machine is not None and self.machine.is_asking:
            case = replace(ASKING, module=case.module)
            self._array = np.array([mode is Mode.RING], np.int32)
        if mode is Mode.RING and case.module != "ring":
            case = replace(case, module="ring")
        self._root_member, self._refused = None, None
        try:
            if case.name == "broadcast":
                case = replace(case, root=self._root(case.root, view))
            if work.strict and self.machine is None and mode is Mode.RING:
                raise RefusedError("no switch aggregates for this job")
        except RefusedError as error:
            self._refused = error
            call = case.call(view.rank, size, self._number, view.ring)
            strategy = Strategy.RING if mode is Mode.RING else Strategy.IN_NETWORK
            return Attempt(None, call, refusal(call, strategy))
        in_place = work.in_place and case.name == "all_reduce"
        self._out = self._array if in_place else case.output(size)
        self._module = case.module
        call = case.call(view.rank, size, self._number, view.ring)
        if self.machine is not None:
            call = call.named(Kind[case.name.upper()], self._array, root=case.root)
            assert call.signature is not None
            call = replace(call, signature=replace(call.signature, step=self.collective))
        return Attempt(self._array if in_place else None, call, case.steps(call, self._array, self._out))

    def _root(self, root: int, view: View) -> int:
        """Return the root's rank now: as its gang has found it, or as `Execution` finds it."""
        if self.machine is not None:
            place: int | None = self.machine.root
        else:
            asked, rank = self.in_job.view_at(self.collective), root % self.plan_size
            place = view.place_of(asked.members[rank]) if rank < asked.world_size else None
        if place is None:
            raise RefusedError("the worker that was the root has died, or there was none")
        self._root_member = view.members[place]
        return place

    def _mode_now(self) -> Mode:
        """Return the mode in which a collective of this generation runs that begins now."""
        assert self.ready is not None
        numbered = 0 if self.endpoint is None else self.endpoint.position().numbered
        self.session.counted = Heartbeat(generation=self.ready.generation, messages=numbered)
        mode = self.in_job.mode_of(numbered)
        if mode is Mode.IN_NETWORK and numbered >= MOST_AGGREGATED:
            raise InvariantError(f"{self} has {numbered} messages summed in one generation")
        return mode

    def _may_advance(self) -> bool:
        waiting = self._waiting
        if waiting is None:
            return False
        reached = self._received if waiting.until is EventType.RECEIVED else self._completed
        return reached >= waiting.op_id

    def _advance(self, thrown: Exception | None = None) -> None:
        """Run on until it waits for what is not there yet, or is done."""
        steps = self._steps
        assert steps is not None
        try:
            if thrown is not None:
                step = steps.throw(thrown)
            else:
                step = next(steps) if self._waiting is None else steps.send(0)
            while True:
                if isinstance(step, Wait):
                    self._waiting = step
                    if not self._may_advance():
                        return
                    step = steps.send(0)
                else:
                    self._waiting = None
                    step = steps.send(self._post(step))
        except StopIteration:
            self._steps = self._waiting = None
            if self._repair is not None:
                self._repaired(self._repair)
            else:
                self._has_result()
        except Disagreement as error:
            raise InvariantError(f"{self}: {error}") from error

    def _repaired(self, repair: Repair) -> None:
        self._repair = None
        self.in_job.repaired(repair.renewal)
        self._act_on_job()
        self._return()
        self.go()

    def _post(self, operation: Operation) -> int:
        assert self.endpoint is not None
        op_id = self.endpoint.post(operation, self.clock.now_ns)
        self._last_op = op_id
        assert self.ready is not None
        self.job.generations[self.ready.generation].deliveries.post(self.rank, op_id, operation)
        return op_id

    def _has_result(self) -> None:
        assert self.ready is not None
        self.session.running = None
        if self._refused is not None:
            self.job.outcome(self, self.collective, str(self._refused))
            self._done(self._refused)
            return
        if self._root_member is not None and not self._restored:
            self.job.takes_root(self, self.collective, self._root_member)
        generation = self.ready.generation
        if self.machine is None:
            self.job.made(self, self.collective, generation, self._module, restored=self._restored)
            self.job.outcome(self, self.collective, "")
            self._done((self.collective, generation, self._out))
            return
        result: Any = self._out
        if not self.machine.is_asking:
            self.job.made(self, self.collective, generation, self._module, restored=self._restored)
            result = self.collective, generation, self._out
        self._ends()
        self.machine.came_to(result)

    def _returned(self, result: Any) -> None:
        if isinstance(result, RefusedError):
            self.scene.note(f"{self}: collective {self.collective - 1} is not done: {result}")
            self._think()
            return
        self.job.finished(self, *result)
        self.scene.note(f"{self} has the result of collective {result[0]}")
        self._think()

    def _leave(self) -> None:
        if self.machine is not None:
            self.machine.leave()
        super()._leave()

    # Frames.

    def receive(self, frame: bytes) -> None:
        """Take a frame from the wire."""
        if self.endpoint is None or self._is_stopped("receive", frame):
            return
        self.endpoint.receive(frame, self.clock.now_ns)
        self.flush()

    def flush(self) -> None:
        """Send what the endpoint has to send; go on if what was waited for is there."""
        endpoint = self.endpoint
        if endpoint is None or self.stopped_until_ns:
            return
        now = self.clock.now_ns
        while True:
            while frames := endpoint.poll(now):
                for frame in frames:
                    self.wire.send(frame)
            for event in endpoint.events():
                if event.type is EventType.FAILED:
                    assert event.failure is not None
                    self._failed(f"{event.failure.code.name}: {event.failure.text}")
                    return
                self._delivered(event.type, event.op_id)
            if not self._may_advance():
                break
            self._advance()
            if self.endpoint is not endpoint:
                return
        self._perhaps_settled()
        self._return()
        if self.endpoint is not endpoint:
            return
        self.job.generations[endpoint.config.generation].check_windows(self)
        timer = endpoint.next_timeout_ns()
        if timer is not None and (self._timer_ns is None or timer < self._timer_ns):
            self._timer_ns = timer
            self.clock.at(max(timer, now), self._on_timer, endpoint, timer)

    def _delivered(self, kind: EventType, op_id: int) -> None:
        if op_id > self._received:
            assert self.ready is not None
            deliveries = self.job.generations[self.ready.generation].deliveries
            for number in range(self._received + 1, op_id + 1):
                deliveries.deliver(self.rank, number, str(self))
            self._received = op_id
        if kind is EventType.COMPLETED:
            self._completed = op_id

    def _on_timer(self, endpoint: AnyEndpoint, timer_ns: int) -> None:
        if self._timer_ns != timer_ns or endpoint is not self.endpoint:
            return
        self._timer_ns = None
        self.flush()

    def _failed(self, why: str) -> None:
        """Say that the endpoint gave up: the job ends for everybody."""
        self.scene.note(f"{self} fails: {why}")
        reason = f"rank {self.rank}: {why}"
        self.job.failures.append(f"{self}: {why}")
        self.say(Abort(reason))
        assert self.endpoint is not None
        self.endpoint.halt()
        self._steps = self._waiting = None

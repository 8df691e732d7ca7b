"""A worker: its process from joining to leaving, with a real endpoint, the real collectives and a session.

It does what `host_agent`'s communicator does with threads: a collective after the other, none while the job
is held, and what the controller says whenever it comes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from controller.api.messages import (
    Abort,
    Called,
    Compare,
    Ended,
    FromController,
    FromWorker,
    Heartbeat,
    Held,
    HoldAt,
    Join,
    Leave,
    Left,
    Mode,
    Moved,
    Pause,
    Paused,
    Ready,
    Renew,
    Renewed,
    Renewing,
    Resume,
    Resumed,
    Start,
    Up,
    Waiting,
)
from controller.api.messages import Worker as Addresses
from controller.renewals import PLANNED
from host_agent import numbering
from host_agent.collectives.plan import Call, Disagreement, Restored, Steps, Wait
from host_agent.joining import transport_config
from host_agent.recovery import Ledger, Window, is_consistent, repair
from host_agent.session import Break, Close, Open, Send, Session
from host_agent.transport import EventType, Operation
from simulation.faults.control import Conversation
from simulation.faults.deaths import Death
from simulation.faults.endpoints import AnyEndpoint, FastEndpoint, FastNicEndpoint
from simulation.faults.loop import NS
from simulation.rack import InvariantError
from simulation.switch.state import MOST_AGGREGATED

if TYPE_CHECKING:
    from simulation.faults.job import JobRun
    from simulation.faults.world import BackupNetwork, Wire, World

BACKLOG = 64  # frames that wait for a process that is stopped; more are lost
JOIN_TIMEOUT_NS = 20 * NS


class Worker:
    """`state`: "new", "joining", "ready", "running", "leaving", "left", "ended" (with `end`), "dead"."""

    def __init__(self, world: World, job: JobRun, rank: int) -> None:
        self.world = world
        self.job = job
        self.joined_as = rank
        self.rank = rank
        self.host = job.host_of(rank)
        self.wire: Wire | BackupNetwork = world.host_wire(self.host.name)
        self.state = "new"
        self.end: Ended | str | None = None
        self.management_ns = world.latency(f"management/{job.number}/{rank}", 50_000, 400_000)
        self.qpn_out, self.qpn_in = job.plan.qpns[rank], job.plan.qpns[rank] + 1
        self.psn_out = job.plan.psns[rank]
        # The session
        self.session = Session(self.request())
        self.conversation: Conversation | None = None
        self.cut_until_ns = 0
        self._due_ns: int | None = None  # when it has something to do
        self._asked: int | None = None  # what it has called as this collective
        self._unreturned: tuple[Any, ...] | None = None  # a result that waits for that
        # The connection and what runs on it
        self.endpoint: AnyEndpoint | None = None
        self.mode = Mode.RING
        self.collective = 0  # the one that runs, or runs next
        self.running = False
        self._steps: Steps[Any] | None = None
        self._waiting: Wait | None = None
        self._received = self._completed = self._last_op = 0
        self._thinking = False
        self._held_from: int | None = None
        self._move: int | None = None
        self._timer_ns: int | None = None
        self._module = ""
        self._array: Any = None
        self._out: Any = None
        # Its renewals, as host_agent/renewing.py has them
        self._ledger = Ledger(Window(1, 1, 256))
        self._renew: Renew | None = None  # the newest
        self._renewed: Renewed | None = None  # the answer to it
        self._standing: Renewing | None = None
        self._cut_steps: Steps[Any] | None = None
        self._renewing = self._parked = self._repairing = self._begun = False
        # The process
        self.stopped_until_ns = 0
        self._backlog: list[tuple[str, Any]] = []

    def __str__(self) -> str:
        return f"job {self.job.number}, rank {self.joined_as} ({self.host.name})"

    @property
    def over(self) -> bool:
        """It has nothing more to do."""
        return self.state in ("left", "ended", "dead")

    # The process: born, stopped, killed.

    def start(self) -> None:
        """Join, and again where the controller cannot be reached."""
        if self.state == "new":
            self.state = "joining"
            self.world.clock.after(JOIN_TIMEOUT_NS, self._give_up_joining)
            self.session.begin(self.world.clock.now_ns)
            self._act()

    def _give_up_joining(self) -> None:
        if self.state in ("joining", "ready") and not self._is_stopped("_give_up_joining"):
            reason = f"rank {self.rank} could not start: not all workers came"
            self.say(Abort(reason))
            self._finish("ended", reason)

    def kill(self) -> None:
        """SIGKILL: the kernel closes its connection with the controller."""
        if self.over:
            return
        self.world.note(f"{self} is killed")
        self.job.deaths.append(Death.of(self))
        self.state = "dead"
        self._close()
        self.job.worker_over(self)
        if self.conversation is not None:
            self.conversation.closed_by_worker()

    def stop(self, until_ns: int) -> None:
        """SIGSTOP, and SIGCONT then."""
        if self.over or self.stopped_until_ns:
            return
        self.world.note(f"{self} is stopped")
        self.stopped_until_ns = until_ns
        self.world.clock.at(until_ns, self._go_on)

    def _go_on(self) -> None:
        self.world.note(f"{self} goes on")
        self.stopped_until_ns = 0
        backlog, self._backlog = self._backlog, []
        for kind, what in backlog:
            getattr(self, kind)(*what)
        self.flush()

    def _is_stopped(self, kind: str, *what: Any) -> bool:
        """Whether it cannot act now; it will when it goes on."""
        if not self.stopped_until_ns:
            return False
        if kind != "receive" or sum(k == "receive" for k, _ in self._backlog) < BACKLOG:
            self._backlog.append((kind, what))
        return True

    def _close(self) -> None:
        """Its queue pairs are gone."""
        if self.endpoint is not None:
            self.job.closes(self)
            self.world.forget_qps(self)
            self.world.retransmitted += self.endpoint.counters().retransmitted_packets
            self.endpoint.close()
            self.endpoint = None
        self._steps = self._waiting = None

    def _finish(self, state: str, end: Ended | str | None = None) -> None:
        if self.over:
            return
        self.world.note(f"{self}: {state}{'' if end is None else f', {end}'}")
        self.state, self.end = state, end
        self._close()
        if isinstance(end, Ended):
            self.session.took_end()
        else:
            self.session.close()
        self._act()
        self.job.worker_over(self)

    # The session with the controller.

    def take_other_queue_pairs(self) -> None:
        """The controller says so: when joining again, as host_agent/joining.py."""
        self.qpn_out = self.world.fresh_qpn()
        self.qpn_in = self.qpn_out + 1
        self.session = Session(self.request())

    def request(self) -> Join:
        """With the queue pairs that it has now."""
        plan = self.job.plan
        mac, ip = self.world.backup_of(self.host)
        return Join(
            job=self.job.name,
            world_size=self.job.plan_size,
            worker=Addresses(
                rank=self.joined_as,
                mac=self.host.mac,
                ip=self.host.ip,
                qpn_out=self.qpn_out,
                psn_out=self.psn_out,
                qpn_in=self.qpn_in,
                hostname=self.host.name,
            ),
            path_mtu_max=plan.path_mtu,
            rnr_nak=self.joined_as in plan.adapters or self.joined_as in plan.rnr,
            elastic=plan.elastic,
            selective=plan.selective,
            backup_mac=mac if plan.backup else "",
            backup_ip=ip if plan.backup else None,
            backup_path_mtu=plan.path_mtu if plan.backup else 0,
        )

    def _act(self) -> None:
        """Do what the session wants."""
        for action in self.session.actions():
            match action:
                case Open(first):
                    self.conversation = Conversation(self.world, self)
                    self.world.clock.after(self.management_ns, self._arrives, self.conversation, first)
                case Send(message) if self.conversation is not None:
                    self.conversation.say(message)
                case Break() if self.conversation is not None:
                    self.conversation.closed_by_worker()
                    self.hung_up(self.conversation, "the controller is silent", True)
                case Close() if self.conversation is not None:
                    self.conversation.closed_by_worker(told_end=isinstance(self.end, Ended))
        due = self.session.next_timeout()
        if due is not None and (self._due_ns is None or due < self._due_ns):
            self._due_ns = due
            self.world.clock.at(max(due, self.world.clock.now_ns), self._is_due, due)

    def _is_due(self, due_ns: int) -> None:
        if self._due_ns != due_ns or self.over or self._is_stopped("_is_due", due_ns):
            return
        self._due_ns = None
        self.session.timeout(self.world.clock.now_ns)
        self._act()

    def _arrives(self, conversation: Conversation, first: Join | Resume) -> None:
        controller = self.world.controller
        cut = self.world.clock.now_ns < self.cut_until_ns
        if controller is None or not controller.listening or cut:
            conversation.hang_up("the controller cannot be reached")
        elif conversation.open:
            controller.connect(conversation, first)

    def hung_up(self, conversation: Conversation, why: str, gone: bool) -> None:
        """The session has ended."""
        if self.over or conversation is not self.conversation:
            return
        if self._is_stopped("hung_up", conversation, why, gone):
            return
        self.session.broken(why, self.world.clock.now_ns, final=not gone)
        if self.session.refused is not None:
            self._finish("ended", f"not taken in: {why}")
        elif self.session.ended is not None:
            self._finish("ended", self.session.ended.reason)
        self._act()

    @property
    def ready(self) -> Ready | None:
        """The job as the controller has set it up last."""
        return self.session.ready

    @property
    def is_leaving(self) -> bool:
        """It has nothing more to send."""
        return self.session.is_leaving

    def cut_session(self, until_ns: int) -> None:
        """Nothing gets from it to the controller or back, until then."""
        self.cut_until_ns = until_ns
        conversation = self.conversation
        if conversation is not None and conversation.open and not self.over:
            conversation.closed_by_worker()
            self.hung_up(conversation, "the connection broke", True)

    def say(self, what: FromWorker) -> None:
        """To the controller, if it hears."""
        self.session.say(what)
        self._act()

    def told(self, conversation: Conversation, event: FromController) -> None:
        """The controller says something."""
        if self.over or conversation is not self.conversation:
            return
        if self._is_stopped("told", conversation, event):
            return
        if self.world.tracing and not isinstance(event, Heartbeat):
            self.world.note(f"{self} hears {type(event).__name__}")
        self.session.heard(event, self.world.clock.now_ns)
        self._act()
        if isinstance(event, Heartbeat):
            self._return()
        elif isinstance(event, Ready):
            self._set_up(event)
        elif isinstance(event, Start):
            self._on_start()
        elif isinstance(event, Left):
            self._finish("left")
        elif isinstance(event, Ended):
            self._finish("ended", event)
        elif isinstance(event, (Pause, HoldAt, Moved)):
            self._on_move(event)
        elif isinstance(event, Renew):
            self._on_renew(event)
        elif isinstance(event, Renewed):
            self._on_renewed(event)
        elif isinstance(event, Compare):
            self._asked = event.collective
            self._say_called(event.collective)
        elif not isinstance(event, (Waiting, Resumed)):
            raise InvariantError(f"{self} does not know what {event} is")

    def _say_called(self, number: int) -> None:
        known = number < self.collective or (self.running and number == self.collective)
        self.say(Called(number, f"collective {number}" if known else ""))

    def _set_up(self, ready: Ready) -> None:
        """Bring the queue pairs up."""
        self.state = "ready"
        self._ledger = Ledger(Window(ready.window, ready.message_packets, ready.path_mtu))
        self._connect(ready)
        self.say(Up())

    def _connect(self, ready: Ready) -> None:
        self.rank = ready.rank
        self._received = self._completed = self._last_op = 0
        self._timer_ns = None
        self.job.connected(self, ready)
        if ready.world_size == 1:
            return
        request = self.session.join
        if ready.backup:
            mac, ip = self.world.backup_of(self.host)
            request = replace(request, worker=replace(request.worker, mac=mac, ip=ip))
        self.wire = self.world.backup_wire if ready.backup else self.world.host_wire(self.host.name)
        config = replace(
            transport_config(request, ready, retry_limit=0),
            first_message=self.job.first_message(ready.generation),
        )
        nic = self.joined_as in self.job.plan.adapters
        self.endpoint = FastNicEndpoint(config) if nic else FastEndpoint(config)
        self.world.know_qps(self)

    def _on_start(self) -> None:
        if not self.session.started:
            return
        if self.state == "ready":
            assert self.ready is not None
            self.mode = self.ready.mode
            self.state = "running"
            self.job.runs()
            self._think()
        elif self._renewing and self._renewed is not None and not self._repairing:
            self._repair()

    # Renewals: the job goes on under a new generation.

    def _on_renew(self, renew: Renew) -> None:
        """Nothing is sent any more; the controller is told where this worker stands."""
        if self._renew is not None and renew.renewal <= self._renew.renewal:
            if renew.renewal == self._renew.renewal and self._standing is not None:
                self.say(self._standing)
            return
        self._require_held(renew)
        self._renew, self._renewed, self._standing = renew, None, None
        self.job.newest = max(self.job.newest, renew.renewal)
        self._renewing = True
        self._move = self._held_from = None
        if self._repairing:
            self._repairing = False
            self._steps = self._waiting = None
        if self.running:
            self._parked = True
        self._drop_endpoint()
        delay = self.world.latency(f"renew/{self.job.number}/{self.joined_as}/{renew.renewal}", 0, 3_000_000)
        self.world.clock.after(delay, self._stand, renew)

    def _require_held(self, renew: Renew) -> None:
        """What was planned cuts nothing."""
        controller = self.world.controller
        if controller is None or not self.running:
            return
        for running in controller.registry.jobs():
            renewal = running.job.renewal
            if renewal is not None and renewal.number == renew.renewal and renewal.cause in PLANNED:
                raise InvariantError(f"{self} is in collective {self.collective}, which a move cuts")

    def _stand(self, renew: Renew) -> None:
        if self._renew is not renew or self.over or self._is_stopped("_stand", renew):
            return
        self.qpn_out = self.world.fresh_qpn()
        self.qpn_in = self.qpn_out + 1
        self.psn_out = self.world.latency(f"psn/{self.qpn_out}", 0, 2**24 - 1)
        if self.joined_as % 2:
            self.psn_out = 2**24 - 1 - self.psn_out % 30
        self._standing = Renewing(
            renewal=renew.renewal,
            qpn_out=self.qpn_out,
            psn_out=self.psn_out,
            qpn_in=self.qpn_in,
            collective=self._ledger.finished,
        )
        self.say(self._standing)

    def _on_renewed(self, renewed: Renewed) -> None:
        if self._renew is None or renewed.renewal != self._renew.renewal or self._standing is None:
            return
        if self._renewed is not None:
            return
        self._renewed, self._standing = renewed, None
        delay = self.world.latency(
            f"renewed/{self.job.number}/{self.joined_as}/{renewed.renewal}", 0, 3_000_000
        )
        self.world.clock.after(delay, self._come_up, renewed)

    def _come_up(self, renewed: Renewed) -> None:
        if self._renewed is not renewed or self.over or self._is_stopped("_come_up", renewed):
            return
        finished = self._ledger.finished
        if not is_consistent(finished, renewed.collective, held=renewed.holder is not None):
            raise InvariantError(
                f"{self}: the job goes on with collective {renewed.collective}, and {finished} are finished "
                "here"
            )
        self._connect(renewed.ready)
        self.say(Up())

    def _repair(self) -> None:
        """All are up: those who lack a result that somebody has get it."""
        renewed = self._renewed
        assert renewed is not None
        if renewed.holder is None:
            self._renewal_is_over()
            return
        ready = renewed.ready
        call = Call(
            rank=ready.rank,
            world_size=ready.world_size,
            collective=renewed.collective,
            ring=ready.ring,
        )
        self._repairing = True
        self._steps = repair(self._ledger, call, holder=renewed.holder, mode=ready.mode)
        self._waiting = None
        if ready.world_size == 1:
            raise InvariantError(f"{self} is alone, and is told to give its result to others")
        self._advance()
        self.flush()

    def _renewal_is_over(self) -> None:
        """The renewal is over."""
        ready = self.ready
        assert ready is not None
        self._renewing = self._repairing = False
        self._ledger.window = Window(ready.window, ready.message_packets, ready.path_mtu)
        self.mode = ready.mode
        self.job.renewals += 1
        if self.world.tracing:
            self.world.note(
                f"{self} goes on as rank {self.rank} of {ready.world_size}, generation {ready.generation}"
            )
        if not self._parked:
            self._go()
            return
        self._parked = False
        if self._ledger.restored:
            self._ledger.put_result()
            self._steps, self._waiting = self._cut_steps, None
            self._advance(restored=True)
        else:
            self._ledger.restore_input()
            self._attempt()
        self.flush()

    def _drop_endpoint(self) -> None:
        if self.running and self._steps is not None and not self._repairing:
            self._cut_steps = self._steps
        self._steps = self._waiting = None
        if self.endpoint is not None:
            self.job.closes(self)
            self.world.forget_qps(self)
            self.endpoint.close()
            self.endpoint = None

    # Moves between ring and switch.

    def _on_move(self, step: Pause | HoldAt | Moved) -> None:
        if isinstance(step, Pause):
            first = self.collective + self.running
            self._move, self._held_from = None, first  # it is held, and says so, when it hears where
            self.say(Paused(step.move, first))
        elif isinstance(step, HoldAt):
            self._move, self._held_from = step.move, step.collective
            self._go()
            self._perhaps_held()
        else:
            self.mode = step.mode
            self._move = self._held_from = None
            self._go()

    def _perhaps_held(self) -> None:
        """Tell the controller when nothing is in flight."""
        if self._move is None or self._held_from is None or self.running or self.endpoint is None:
            return
        if self._renewing:
            return
        if self.collective < self._held_from or self._completed < self._last_op:
            return
        self.say(Held(self._move))

    # Collectives.

    def _think(self) -> None:
        """Compute for a while, then begin the next collective; leave after the last."""
        if self.collective >= len(self.job.plan.work):
            self.state = "leaving"
            self.say(Leave(self.collective))
            self._perhaps_held()
            return
        self._thinking = True
        delay = self.job.plan.work[self.collective].think_ns
        slow = self.world.latency(f"think/{self.job.number}/{self.joined_as}/{self.collective}", 0, delay)
        self.world.clock.after(slow, self._thought, self.collective)

    def _thought(self, collective: int) -> None:
        if self.over or self._is_stopped("_thought", collective):
            return
        if self._thinking and collective == self.collective:
            self._thinking = False
            self._go()

    def _go(self) -> None:
        """Begin the collective that is next, unless the job is held before it."""
        held = self._held_from is not None and self.collective >= self._held_from
        if self.state != "running" or self.running or self._thinking or held or self._renewing:
            return
        if self._unreturned is not None:
            return
        self.running = True
        self.session.running = self.collective
        if self.collective == self._asked:
            self._say_called(self.collective)
        self._array = self.job.inputs(self.collective)[self.joined_as].copy()
        self._begun = False
        self._attempt()
        self.flush()

    def _attempt(self) -> None:
        """Run the collective, for the first time or anew."""
        assert self.ready is not None
        work = self.job.plan.work[self.collective]
        case, size = work.case(), self.ready.world_size
        if self._mode_now() is Mode.RING and case.module != "ring":
            case = replace(case, module="ring")
        in_place = work.in_place and case.name == "all_reduce"
        self._out = self._array if in_place else case.output(size)
        self._module = case.module
        if not self._begun:
            self._begun = True
            self._ledger.begin(self._array if in_place else None)
        call = case.call(self.rank, size, self.collective, self.ready.ring)
        self._ledger.attempt(call)
        self._steps = case.steps(call, self._array, self._out) if size > 1 else alone(self._array, self._out)
        self._waiting = None
        self._advance()

    def _mode_now(self) -> Mode:
        """What a collective of this generation runs in that begins now."""
        assert self.ready is not None
        numbered = 0 if self.endpoint is None else self.endpoint.position().numbered
        self.session.counted = Heartbeat(generation=self.ready.generation, messages=numbered)
        mode = numbering.mode_of(self.mode, numbered)
        if mode is Mode.IN_NETWORK and numbered >= MOST_AGGREGATED:
            raise InvariantError(f"{self} has {numbered} messages summed in one generation")
        return mode

    def _may_advance(self) -> bool:
        waiting = self._waiting
        if waiting is None:
            return False
        reached = self._received if waiting.until is EventType.RECEIVED else self._completed
        return reached >= waiting.op_id

    def _advance(self, *, restored: bool = False) -> None:
        """Run on until it waits for what is not there yet, or is done."""
        steps = self._steps
        assert steps is not None
        try:
            if restored:
                step = steps.throw(Restored())
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
            if self._repairing:
                self._steps = self._waiting = None
                self._renewal_is_over()
            else:
                self._done()
        except Disagreement as error:
            raise InvariantError(f"{self}: {error}") from error

    def _post(self, operation: Operation) -> int:
        assert self.endpoint is not None
        op_id = self.endpoint.post(operation, self.world.clock.now_ns)
        self._last_op = op_id
        assert self.ready is not None
        self.job.deliveries(self.ready.generation).post(self.rank, op_id, operation)
        return op_id

    def _done(self) -> None:
        """A collective has its result."""
        assert self.ready is not None
        self.running, self.session.running = False, None
        self._steps = self._waiting = None
        restored = self._ledger.restored
        self._ledger.finish()
        generation = self.ready.generation
        self.job.made(self, self.collective, generation, self._module, restored=restored)
        self._unreturned = (self.collective, generation, self._out)
        self.collective += 1
        if self._ledger.finished != self.collective:
            raise InvariantError(
                f"{self} counts {self._ledger.finished} collectives, and ran {self.collective}"
            )
        if not self._return() and self._move is not None:
            self._perhaps_held()

    def _return(self) -> bool:
        """The user gets a result that is there, unless an elastic job may go on without this worker."""
        if self._unreturned is None:
            return True
        assert self.ready is not None
        if not self.session.confirm(self.world.clock.now_ns):
            self._act()
            return False
        (collective, generation, out), self._unreturned = self._unreturned, None
        self.job.finished(self, collective, generation, out)
        self._think()
        return True

    # Frames.

    def receive(self, frame: bytes) -> None:
        """From the wire."""
        if self.endpoint is None or self._is_stopped("receive", frame):
            return
        self.endpoint.receive(frame, self.world.clock.now_ns)
        self.flush()

    def flush(self) -> None:
        """Send what the endpoint has to send; go on where what was waited for is there."""
        endpoint = self.endpoint
        if endpoint is None or self.stopped_until_ns:
            return
        now = self.world.clock.now_ns
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
        if self._move is not None:
            self._perhaps_held()
        self.job.check_windows(self)
        timer = endpoint.next_timeout_ns()
        if timer is not None and (self._timer_ns is None or timer < self._timer_ns):
            self._timer_ns = timer
            self.world.clock.at(max(timer, now), self._on_timer, endpoint, timer)

    def _delivered(self, kind: EventType, op_id: int) -> None:
        if op_id > self._received:
            assert self.ready is not None
            deliveries = self.job.deliveries(self.ready.generation)
            for number in range(self._received + 1, op_id + 1):
                deliveries.deliver(self.rank, number, str(self))
            self._received = op_id
            self.world.progress()
        if kind is EventType.COMPLETED:
            self._completed = op_id

    def _on_timer(self, endpoint: AnyEndpoint, timer_ns: int) -> None:
        if self._timer_ns != timer_ns or endpoint is not self.endpoint:
            return
        self._timer_ns = None
        self.flush()

    def _failed(self, why: str) -> None:
        """The endpoint gave up: the job ends for everybody."""
        self.world.note(f"{self} fails: {why}")
        reason = f"rank {self.rank}: {why}"
        self.job.failures.append(f"{self}: {why}")
        self.say(Abort(reason))
        assert self.endpoint is not None
        self.endpoint.halt()
        self._steps = self._waiting = None


def alone(array: Any, out: Any) -> Steps[Any]:
    """What a collective of one worker does."""
    if out.size == array.size:
        out[...] = array
    return
    yield

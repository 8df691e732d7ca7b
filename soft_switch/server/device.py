"""The device behind a P4Runtime server: its pipelines, and one lock that makes requests serial."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import grpc
from finsy.proto import p4r

from soft_switch.dataplane import DataPlane
from soft_switch.errors import ProgramError
from soft_switch.server.errors import P4RuntimeError, denied, invalid, not_found, unimplemented
from soft_switch.server.packet_io import decode_packet_in, encode_packet_out
from soft_switch.server.reconcile import carry_over
from soft_switch.server.roles import Access, entity_id, filter_entities
from soft_switch.server.sdn_types import adopt_names
from soft_switch.server.state import ForwardingState, PipelineConfig, parse_config

Results = list[P4RuntimeError | None]
Permit = Callable[[], Access | None]  # raises if the client is not primary; what its role may do


@dataclass
class Saved:
    """A pipeline after VERIFY_AND_SAVE: it takes writes on a data plane of its own, which no packet sees."""

    state: ForwardingState
    plane: DataPlane
    writes: list[p4r.Update] = field(default_factory=list)


class Device:
    """Pipelines and forwarding state on one data plane.

    `clock` gives nanoseconds and never goes back.
    """

    def __init__(self, plane: DataPlane, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._plane = plane
        self._clock = clock
        self._lock = threading.Lock()
        self._running: ForwardingState | None = None
        self._saved: Saved | None = None

    def close(self) -> None:
        """Give back what a saved pipeline takes."""
        with self._lock:
            self._forget_saved()

    def drain(self) -> None:
        """Wait until no write is in progress."""
        with self._lock:
            return

    def set_config(self, request: p4r.SetForwardingPipelineConfigRequest, permit: Permit) -> None:
        """Perform one of the five actions on a pipeline."""
        access = permit()
        if access is not None and not access.pipeline:
            raise denied(f"role {request.role!r} may not push a pipeline")
        action, given = request.action, request.HasField("config")
        name = p4r.SetForwardingPipelineConfigRequest.Action.Name
        actions = p4r.SetForwardingPipelineConfigRequest
        if action == actions.COMMIT:
            if given:
                raise invalid("COMMIT takes the saved config: leave the config out")
            with self._lock:
                permit()
                self._commit_saved()
            return
        if action not in (
            actions.VERIFY,
            actions.VERIFY_AND_SAVE,
            actions.VERIFY_AND_COMMIT,
            actions.RECONCILE_AND_COMMIT,
        ):
            raise invalid("the action is not set")
        if not given:
            raise invalid(f"{name(action)} needs a config")
        config = parse_config(request.config)
        if action in (actions.VERIFY, actions.VERIFY_AND_SAVE):
            self._try(config, permit, save=action == actions.VERIFY_AND_SAVE)
            return
        with self._lock:
            permit()
            if action == actions.VERIFY_AND_COMMIT:
                self._commit(config)
            else:
                self._reconcile(config)

    def get_config(self, response_type: int) -> p4r.ForwardingPipelineConfig | None:
        """Return the parts of the current config asked for, None when there is none."""
        with self._lock:
            state = self._current()
        if state is None:
            return None
        message, types = state.config.message, p4r.GetForwardingPipelineConfigRequest
        answer = p4r.ForwardingPipelineConfig()
        if response_type not in types.ResponseType.values():
            raise invalid(f"response type {response_type} does not exist")
        if response_type in (types.ALL, types.P4INFO_AND_COOKIE):
            answer.p4info.CopyFrom(message.p4info)
        if response_type in (types.ALL, types.DEVICE_CONFIG_AND_COOKIE):
            answer.p4_device_config = message.p4_device_config
        if message.HasField("cookie"):
            answer.cookie.CopyFrom(message.cookie)
        return answer

    def write(self, request: p4r.WriteRequest, permit: Permit) -> Results:
        """Apply a batch in order; return one result for each update."""
        with self._lock:
            access = permit()
            state = self._require()
            modes = p4r.WriteRequest
            if request.atomicity == modes.ROLLBACK_ON_ERROR:
                results = _write_or_roll_back(state, request.updates, access)
            elif request.atomicity == modes.CONTINUE_ON_ERROR or (
                request.atomicity == modes.DATAPLANE_ATOMIC and len(request.updates) <= 1
            ):
                results = [_attempt(state, update, access) for update in request.updates]
            elif request.atomicity == modes.DATAPLANE_ATOMIC:
                raise unimplemented(
                    f"a batch of {len(request.updates)} updates cannot be written between two packets: "
                    "atomicity DATAPLANE_ATOMIC is for batches of one"
                )
            else:
                raise invalid(f"there is no atomicity {request.atomicity}")
            if self._saved is not None:
                pairs = zip(request.updates, results, strict=True)
                self._saved.writes += [update for update, error in pairs if error is None]
        return results

    def read(
        self, requests: Iterable[p4r.Entity], access: Access | None = None
    ) -> tuple[list[p4r.Entity], Results]:
        """Return all entities a batch selects, as they are at one moment, and one result for each request.

        Entities that `access` does not cover are left out.
        """
        entities: list[p4r.Entity] = []
        results: Results = []
        with self._lock:
            state = self._require()
            for request in requests:
                try:
                    entities += filter_entities(access, state.read(request))
                except P4RuntimeError as error:
                    results.append(error)
                else:
                    results.append(None)
        return entities, results

    def packet_out(self, message: p4r.PacketOut) -> None:
        """Send a packet into the running pipeline."""
        running = self._running
        if running is None:
            raise no_pipeline()
        data = encode_packet_out(running.config.schema.packet_out, message)
        try:
            self._plane.packet_out(data)
        except ValueError as error:
            raise invalid(f"packet-out: {error}") from error
        except RuntimeError as error:
            raise P4RuntimeError(grpc.StatusCode.FAILED_PRECONDITION, f"packet-out: {error}") from error

    def packet_in(self, data: bytes) -> p4r.PacketIn:
        """Return the message for a packet that the running pipeline sent to the CPU port."""
        running = self._running
        if running is None:
            raise no_pipeline()
        return decode_packet_in(running.config.schema.packet_in, data)

    # What the data plane has to tell

    def digest(self, name: str, sample: tuple[int, ...]) -> p4r.DigestList | None:
        """Take a sample of the running pipeline; return a list when it is time to send one."""
        running = self._running
        return running.digests.learn(name, sample, self._clock()) if running is not None else None

    def acknowledge(self, message: p4r.DigestListAck) -> None:
        """Note that a controller has acted on a digest list."""
        running = self._running
        if running is None:
            raise no_pipeline()
        running.digests.acknowledge(message)

    def forget_digests(self) -> None:
        """Forget what the last primary got: there is another one, which has not seen it."""
        running = self._running
        if running is not None:
            running.digests.forget()

    def tick(self) -> tuple[list[p4r.DigestList], list[p4r.TableEntry]]:
        """Return digest lists that have waited long enough, and entries that were idle for their timeout.

        Also replaces, or puts back, members of groups and replicas whose port went down or came up.
        """
        with self._lock:
            running = self._running
            if running is None:
                return [], []
            now = self._clock()
            running.tables.profiles.check_ports(now)
            running.replication.check_ports(now)
            return running.digests.tick(now), running.tables.expired()

    def delay_ns(self) -> int | None:
        """Return how long until `tick` has something to do; None: not before the next write or sample."""
        with self._lock:
            running = self._running
            if running is None:
                return None
            tables = running.tables
            deadlines = (
                running.digests.deadline(),
                running.replication.deadline(),
                tables.idle.deadline(),
                tables.profiles.deadline(),
            )
        known = [deadline for deadline in deadlines if deadline is not None]
        return max(0, min(known) - self._clock()) if known else None

    def _current(self) -> ForwardingState | None:
        """Return the pipeline that reads and writes refer to: the saved one if there is one."""
        return self._saved.state if self._saved is not None else self._running

    def _require(self) -> ForwardingState:
        state = self._current()
        if state is None:
            raise no_pipeline()
        return state

    def _try(self, config: PipelineConfig, permit: Permit, *, save: bool) -> None:
        """Load a program into a spare data plane, and keep that one if it is to be saved."""
        with contextlib.ExitStack() as spare:
            plane = spare.enter_context(self._plane.spare())
            _load(plane, config)  # may take a compiler's time, so without the lock
            with self._lock:
                permit()
                if save:
                    self._forget_saved()
                    self._saved = Saved(ForwardingState(config, plane), plane)
                    spare.pop_all()

    def _forget_saved(self) -> None:
        saved, self._saved = self._saved, None
        if saved is not None:
            saved.plane.close()

    def _commit(self, config: PipelineConfig) -> None:
        """Load a program; on failure the running one stays."""
        _load(self._plane, config)
        if self._running is not None:
            self._running.clear_replication()
        self._running = ForwardingState(config, self._plane)
        self._forget_saved()

    def _commit_saved(self) -> None:
        """Load the saved program and replay what was written to it."""
        saved = self._saved
        if saved is None:
            raise not_found("there is no saved config: VERIFY_AND_SAVE one first")
        self._commit(saved.state.config)
        state = self._require()
        for update in saved.writes:
            state.write(update)

    def _reconcile(self, config: PipelineConfig) -> None:
        """Commit a pipeline and keep the forwarding state; if that is not possible, change nothing."""
        running = self._running
        if running is None:
            self._commit(config)
            return
        old = running.config.message
        same = old.p4_device_config == config.message.p4_device_config and old.p4info == config.message.p4info
        if same:
            running.config = config  # the cookie may be another
            self._forget_saved()
            return
        adopt_names(config.schema.translated, running.config.schema.translated)
        updates = carry_over(running, config)
        with self._plane.spare() as plane:
            _load(plane, config)
            trial = ForwardingState(config, plane)
            for update in updates:
                try:
                    trial.write(update)
                except P4RuntimeError as error:
                    raise invalid(f"the state cannot be kept: {error.message}") from error
        self._commit(config)
        state = self._require()
        for update in updates:
            state.write(update)


def no_pipeline() -> P4RuntimeError:
    """Return the error for any request that needs a pipeline before there is one."""
    return P4RuntimeError(
        grpc.StatusCode.FAILED_PRECONDITION,
        "No forwarding pipeline config set for this device: push one with SetForwardingPipelineConfig",
    )


def _load(plane: DataPlane, config: PipelineConfig) -> None:
    """Load a program; one that cannot be realized is the request's fault."""
    try:
        plane.load(config.device_config)
    except ProgramError as error:
        raise invalid(f"the program cannot be realized by this switch: {error}") from error


def _attempt(state: ForwardingState, update: p4r.Update, access: Access | None) -> P4RuntimeError | None:
    """Apply one update; return the error if it was refused."""
    try:
        if access is not None and not access.allows(update.entity):
            raise denied(f"{entity_id(update.entity):#010x} is not one of the role's")
        state.write(update)
    except P4RuntimeError as error:
        return error
    return None


def _write_or_roll_back(
    state: ForwardingState, updates: Sequence[p4r.Update], access: Access | None
) -> Results:
    """Apply all updates or none."""
    undo: list[list[p4r.Update]] = []  # for each update, what takes it back
    for number, update in enumerate(updates):
        before = state.undo(update)
        error = _attempt(state, update, access)
        if error is None:
            undo.append(before)
            continue
        for back in itertools.chain.from_iterable(reversed(undo)):
            try:
                state.write(back)
            except P4RuntimeError as fault:
                raise P4RuntimeError(
                    grpc.StatusCode.INTERNAL,
                    f"update number {number} failed ({error.message}) and the updates before it could not "
                    f"all be rolled back: {fault.message}",
                ) from fault
        aborted = P4RuntimeError(grpc.StatusCode.ABORTED, f"rolled back, as update number {number} failed")
        skipped = P4RuntimeError(grpc.StatusCode.ABORTED, f"not attempted, as update number {number} failed")
        return [*[aborted] * number, error, *[skipped] * (len(updates) - number - 1)]
    return [None] * len(updates)

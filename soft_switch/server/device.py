"""The device behind a P4Runtime server: its pipelines, and one lock that makes requests serial."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import grpc
from finsy.proto import p4r

from soft_switch.errors import ProgramError
from soft_switch.server.backend import Backend
from soft_switch.server.errors import P4RuntimeError, invalid, not_found, unimplemented
from soft_switch.server.packet_io import decode_packet_in, encode_packet_out
from soft_switch.server.shadow import Shadow
from soft_switch.server.state import ForwardingState, PipelineConfig, parse_config

Results = list[P4RuntimeError | None]


@dataclass
class Saved:
    """A pipeline after VERIFY_AND_SAVE: it takes writes, but no packet sees it before COMMIT."""

    state: ForwardingState
    writes: list[p4r.Update] = field(default_factory=list)


class Device:
    """Pipelines and forwarding state on one data plane.

    `verify` tells whether a program could be loaded, without touching the running one: it raises
    ProgramError like `Backend.load`.
    """

    def __init__(self, backend: Backend, verify: Callable[[bytes], None]) -> None:
        self._backend = backend
        self._verify = verify
        self._lock = threading.Lock()
        self._running: ForwardingState | None = None
        self._saved: Saved | None = None

    def drain(self) -> None:
        """Wait until no write is in progress."""
        with self._lock:
            return

    def set_config(self, request: p4r.SetForwardingPipelineConfigRequest, permit: Callable[[], None]) -> None:
        """Perform one of the five actions on a pipeline. `permit` raises if the client is not primary."""
        permit()
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
            _realize(self._verify, config)  # may take a compiler's time, so without the lock
        with self._lock:
            permit()
            if action == actions.VERIFY_AND_SAVE:
                self._saved = Saved(ForwardingState(config, Shadow(config.schema, config.program)))
            elif action == actions.VERIFY_AND_COMMIT:
                self._commit(config)
            elif action == actions.RECONCILE_AND_COMMIT:
                self._reconcile(config)

    def get_config(self, response_type: int) -> p4r.ForwardingPipelineConfig | None:
        """The parts of the current config asked for, None when there is none."""
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

    def write(self, request: p4r.WriteRequest, permit: Callable[[], None]) -> Results:
        """Apply a batch in order, each update whether or not others fail; one result for each."""
        results: Results = []
        with self._lock:
            permit()
            state = self._require()
            if request.atomicity != p4r.WriteRequest.CONTINUE_ON_ERROR:
                name = p4r.WriteRequest.Atomicity.Name(request.atomicity)
                raise unimplemented(f"atomicity {name} is not supported, only CONTINUE_ON_ERROR is")
            for update in request.updates:
                try:
                    state.write(update)
                except P4RuntimeError as error:
                    results.append(error)
                else:
                    results.append(None)
                    if self._saved is not None:
                        self._saved.writes.append(update)
        return results

    def read(self, requests: Iterable[p4r.Entity]) -> tuple[list[p4r.Entity], Results]:
        """All entities a batch selects, as they are at one moment, and one result for each request."""
        entities: list[p4r.Entity] = []
        results: Results = []
        with self._lock:
            state = self._require()
            for request in requests:
                try:
                    entities += state.read(request)
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
            self._backend.packet_out(data)
        except ValueError as error:
            raise invalid(f"packet-out: {error}") from error
        except RuntimeError as error:
            raise P4RuntimeError(grpc.StatusCode.FAILED_PRECONDITION, f"packet-out: {error}") from error

    def packet_in(self, data: bytes) -> p4r.PacketIn:
        """The message for a packet that the running pipeline sent to the CPU port."""
        running = self._running
        if running is None:
            raise no_pipeline()
        return decode_packet_in(running.config.schema.packet_in, data)

    def _current(self) -> ForwardingState | None:
        """The pipeline that reads and writes refer to: the saved one if there is one."""
        return self._saved.state if self._saved is not None else self._running

    def _require(self) -> ForwardingState:
        state = self._current()
        if state is None:
            raise no_pipeline()
        return state

    def _commit(self, config: PipelineConfig) -> None:
        """Load a program; on failure the running one stays."""
        _realize(self._backend.load, config)
        if self._running is not None:
            self._running.clear_replication()
        self._running = ForwardingState(config, self._backend)
        self._saved = None

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
        """Keep the forwarding state. That is possible for the program that runs already, and only for it."""
        running = self._running
        if running is None:
            self._commit(config)
            return
        old = running.config.message
        same = old.p4_device_config == config.message.p4_device_config and old.p4info == config.message.p4info
        if not same:
            raise unimplemented(
                "RECONCILE_AND_COMMIT keeps the forwarding state only for the config that runs already: "
                "use VERIFY_AND_COMMIT, which clears it"
            )
        running.config = config  # the cookie may be another
        self._saved = None


def no_pipeline() -> P4RuntimeError:
    """The error for any request that needs a pipeline before there is one."""
    return P4RuntimeError(
        grpc.StatusCode.FAILED_PRECONDITION,
        "No forwarding pipeline config set for this device: push one with SetForwardingPipelineConfig",
    )


def _realize(load: Callable[[bytes], None], config: PipelineConfig) -> None:
    """Load or verify a program; one that cannot be realized is the request's fault."""
    try:
        load(config.message.p4_device_config)
    except ProgramError as error:
        raise invalid(f"the program cannot be realized by this switch: {error}") from error

"""A data plane that only remembers, a P4Runtime server in front of it, and a plain gRPC client."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt
import pytest
from finsy.proto import U128, p4i, p4r, p4r_grpc, rpc_code, rpc_status
from google.protobuf import text_format

from soft_switch.dataplane import DataPlane
from soft_switch.description import Match, MeterConfig, Target
from soft_switch.errors import DuplicateEntry, ProgramError, TableFull, UnknownEntry, UnsupportedConstruct
from soft_switch.server import P4RuntimeServer

HERE = Path(__file__).parent
DEVICE_ID = 1
TIMEOUT_S = 10.0
CODES: dict[int, str] = {number: name for name, number in rpc_code.Code.items()}


class FakePlane(DataPlane):
    """A data plane without packets. What it was asked to do is in its dictionaries."""

    def __init__(self) -> None:
        self.loads = 0
        self.spares: list[FakePlane] = []
        self.entries: dict[str, dict[int, tuple[tuple[Match, ...], int, str | None, tuple[int, ...]]]] = {}
        self.closed = False
        self.defaults: dict[str, tuple[str, tuple[int, ...]] | None] = {}
        self.counters: dict[str, npt.NDArray[np.uint64]] = {}
        self.registers: dict[str, list[int]] = {}
        self.direct: dict[tuple[str, int], tuple[int, int]] = {}
        self.meters: dict[tuple[str, int], MeterConfig | None] = {}
        self.direct_meters: dict[tuple[str, int], MeterConfig | None] = {}
        self.value_sets: dict[str, list[tuple[Match, ...]]] = {}
        self.idle: dict[tuple[str, int], int] = {}  # in ns; 0 for one that is not there
        self.groups: dict[int, tuple[tuple[int, int], ...]] = {}
        self.sessions: dict[int, tuple[tuple[tuple[int, int], ...], int]] = {}
        self.members: dict[int, tuple[str, tuple[int, ...]]] = {}
        self.packets: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.send_up: Callable[[bytes], None] = lambda data: None
        self.learn: Callable[[str, tuple[int, ...]], None] = lambda name, values: None
        self.gate = threading.Event()  # cleared by a test that wants an insert to take its time
        self.gate.set()
        self.waiting = threading.Event()
        self._handles = 100

    def spare(self) -> FakePlane:
        self.spares.append(FakePlane())
        return self.spares[-1]

    def close(self) -> None:
        self.closed = True

    def load(self, program_json: bytes, *, optimise: bool = True, wait: bool = False) -> None:
        program = json.loads(program_json)
        if "unsupported" in program:
            raise UnsupportedConstruct(program["unsupported"])
        if "broken" in program:
            raise ProgramError(program["broken"])
        self.loads += 1
        tables = [table for pipe in program["pipelines"] for table in pipe["tables"]]
        self.entries = {table["name"]: {} for table in tables}
        self.sizes = {table["name"]: table["max_size"] for table in tables}
        self.program_handles = {
            (table["name"], handle) for table in tables for handle, _ in enumerate(table.get("entries", ()))
        }
        self.defaults = {}
        self.direct = {}
        self.meters = {}
        self.direct_meters = {}
        self.value_sets = {}
        self.idle = {}
        self.counters = {
            array["name"]: np.zeros((array["size"], 2), np.uint64)
            for array in program["counter_arrays"]
            if not array["is_direct"]
        }
        self.registers = {array["name"]: [0] * array["size"] for array in program["register_arrays"]}

    def insert(
        self,
        table: str,
        match: Sequence[Match],
        *,
        priority: int,
        action: str | None = None,
        params: Sequence[int] = (),
        target: Target | None = None,
    ) -> int:
        if not self.gate.is_set():
            self.waiting.set()
            self.gate.wait(TIMEOUT_S)
        if action == "ingress.count":
            raise RuntimeError("a defect in the data plane")
        entries = self.entries[table]
        if any(entry[:2] == (tuple(match), priority) for entry in entries.values()):
            raise DuplicateEntry(f"table {table} has it")
        if len(entries) >= self.sizes[table]:
            raise TableFull(f"table {table} is full: it holds {self.sizes[table]} entries")
        self._handles += 1
        entries[self._handles] = (tuple(match), priority, action, tuple(params))
        return self._handles

    def modify(
        self,
        table: str,
        handle: int,
        *,
        action: str | None = None,
        params: Sequence[int] = (),
        target: Target | None = None,
    ) -> None:
        if (table, handle) in self.program_handles:
            return
        match, priority, *_ = self.entries[table][handle]
        self.entries[table][handle] = (match, priority, action, tuple(params))

    def delete(self, table: str, handle: int) -> None:
        if (table, handle) in self.program_handles:
            self.program_handles.remove((table, handle))
            return
        if handle not in self.entries[table]:
            raise UnknownEntry(f"table {table} has no handle {handle}")
        del self.entries[table][handle]
        self.direct.pop((table, handle), None)
        self.direct_meters.pop((table, handle), None)
        self.idle.pop((table, handle), None)

    def set_default(self, table: str, action: str | None, params: Sequence[int] = ()) -> None:
        self.defaults[table] = None if action is None else (action, tuple(params))

    def profile_member_insert(self, profile: str, action: str, params: Sequence[int]) -> int:
        self._handles += 1
        self.members[self._handles] = (action, tuple(params))
        return self._handles

    def profile_member_modify(self, profile: str, member: int, action: str, params: Sequence[int]) -> None:
        self.members[member] = (action, tuple(params))

    def profile_member_delete(self, profile: str, member: int) -> None:
        del self.members[member]

    def profile_group_insert(self, profile: str, members: Sequence[int]) -> int:
        self._handles += 1
        return self._handles

    def profile_group_modify(self, profile: str, group: int, members: Sequence[int]) -> None:
        """Do nothing: groups are not looked at."""

    def profile_group_delete(self, profile: str, group: int) -> None:
        """Do nothing: groups are not looked at."""

    def idle_ns(self, table: str, handle: int) -> int:
        return self.idle.get((table, handle), 0)

    def port_is_up(self, port: int) -> bool | None:
        return True

    def counter_read(self, name: str, index: int) -> tuple[int, int]:
        packets, bytes_ = self.counters[name][index].tolist()
        return packets, bytes_

    def counter_read_all(self, name: str) -> npt.NDArray[np.uint64]:
        counts: npt.NDArray[np.uint64] = self.counters[name].copy()
        return counts

    def counter_write(self, name: str, index: int, packets: int, bytes_: int) -> None:
        self.counters[name][index] = (packets, bytes_)

    def direct_counter_read(self, table: str, handle: int) -> tuple[int, int]:
        return self.direct.get((table, handle), (0, 0))

    def direct_counter_write(self, table: str, handle: int, packets: int, bytes_: int) -> None:
        self.direct[table, handle] = (packets, bytes_)

    def register_read(self, name: str, index: int) -> int:
        return self.registers[name][index]

    def register_write(self, name: str, index: int, value: int) -> None:
        self.registers[name][index] = value

    def meter_read(self, name: str, index: int) -> MeterConfig | None:
        return self.meters.get((name, index))

    def meter_write(self, name: str, index: int, config: MeterConfig | None) -> None:
        self.meters[name, index] = config

    def direct_meter_read(self, table: str, handle: int) -> MeterConfig | None:
        return self.direct_meters.get((table, handle))

    def direct_meter_write(self, table: str, handle: int, config: MeterConfig | None) -> None:
        self.direct_meters[table, handle] = config

    def value_set_write(self, name: str, members: Sequence[Sequence[Match]]) -> None:
        self.value_sets[name] = [tuple(member) for member in members]

    def clone_set(self, session: int, replicas: Sequence[tuple[int, int]], packet_length: int = 0) -> None:
        self.sessions[session] = (tuple(replicas), packet_length)

    def clone_delete(self, session: int) -> None:
        del self.sessions[session]

    def on_digest(self, callback: Callable[[str, tuple[int, ...]], None]) -> None:
        self.learn = callback

    def multicast_set(self, group: int, replicas: Sequence[tuple[int, int]]) -> None:
        self.groups[group] = tuple(replicas)

    def multicast_delete(self, group: int) -> None:
        del self.groups[group]

    def packet_out(self, data: bytes) -> None:
        if data.endswith(b"no cpu port"):
            raise RuntimeError("the switch has no CPU port: start it with --cpu-port")
        self.packets.put(data)

    def on_packet_in(self, callback: Callable[[bytes], None]) -> None:
        self.send_up = callback


class Refusal(Exception):
    """An RPC ended with an error."""

    def __init__(self, error: grpc.RpcError) -> None:
        assert isinstance(error, grpc.Call)
        self.code: str = error.code().name
        self.message: str = error.details() or ""
        self.details: list[p4r.Error] = []
        for key, value in error.trailing_metadata() or ():
            if key == "grpc-status-details-bin":
                assert isinstance(value, bytes)
                status = rpc_status.Status.FromString(value)
                assert (status.code, status.message) == (error.code().value[0], self.message)
                for packed in status.details:
                    detail = p4r.Error()
                    assert packed.Unpack(detail)
                    self.details.append(detail)
        super().__init__(f"{self.code}: {self.message}")

    @property
    def codes(self) -> list[str]:
        """The canonical code of every element of the batch."""
        return [CODES[detail.canonical_code] for detail in self.details]


class Controller:
    """A P4Runtime client that does just what it is told."""

    def __init__(self, address: str, *, device_id: int = DEVICE_ID, role: str = "") -> None:
        self.device_id = device_id
        self.role = role
        self.election_id: int | None = None
        self.channel = grpc.insecure_channel(
            address,
            # A channel of its own: without it, controllers of one process would share a connection.
            options=(("grpc.use_local_subchannel_pool", 1), ("grpc.max_metadata_size", 64 << 10)),
        )
        self.stub = p4r_grpc.P4RuntimeStub(self.channel)
        self._outbox: queue.SimpleQueue[p4r.StreamMessageRequest | None] = queue.SimpleQueue()
        self._inbox: queue.SimpleQueue[p4r.StreamMessageResponse | Refusal | None] = queue.SimpleQueue()
        self.stream: Any = None

    # The stream

    def open_stream(self) -> None:
        self.stream = self.stub.StreamChannel(iter(self._outbox.get, None))
        threading.Thread(target=self._receive, daemon=True).start()

    def _receive(self) -> None:
        try:
            for message in self.stream:
                self._inbox.put(message)
        except grpc.RpcError as error:
            self._inbox.put(Refusal(error))
        else:
            self._inbox.put(None)

    def send(self, **update: Any) -> None:
        if self.stream is None:
            self.open_stream()
        self._outbox.put(p4r.StreamMessageRequest(**update))

    def receive(self) -> p4r.StreamMessageResponse:
        """Return the stream's next message. Raise Refusal if it ended with an error, EOFError if without."""
        message = self._inbox.get(timeout=TIMEOUT_S)
        if isinstance(message, Refusal):
            raise message
        if message is None:
            raise EOFError
        return message

    def ended(self) -> Refusal:
        """Return how the stream has ended, after an error."""
        message = self._inbox.get(timeout=TIMEOUT_S)
        assert isinstance(message, Refusal), message
        return message

    def quiet(self) -> bool:
        """Tell whether nothing has come. A request and its answer in between make sure that it would have."""
        self.stub.Capabilities(p4r.CapabilitiesRequest(), timeout=TIMEOUT_S)
        return self._inbox.empty()

    def half_close(self) -> None:
        self._outbox.put(None)

    def bid(self, election_id: int | None, **fields: Any) -> None:
        """Send a MasterArbitrationUpdate."""
        self.election_id = election_id
        message = p4r.MasterArbitrationUpdate(device_id=self.device_id, **fields)
        if election_id is not None:
            message.election_id.CopyFrom(U128.encode(election_id))
        if self.role:
            message.role.name = self.role
        self.send(arbitration=message)

    def verdict(self) -> tuple[str, int | None]:
        """Return the next arbitration notice: its code and the primary's election id."""
        message = self.receive()
        assert message.WhichOneof("update") == "arbitration", message
        notice = message.arbitration
        assert notice.device_id == self.device_id
        assert notice.role.name == self.role
        election_id = U128.decode(notice.election_id) if notice.HasField("election_id") else None
        return CODES[notice.status.code], election_id

    def become_primary(self, election_id: int = 1) -> None:
        self.bid(election_id)
        assert self.verdict() == ("OK", election_id)

    # Unary RPCs

    def refused(self, request: Callable[..., Any], *args: Any, **kwargs: Any) -> Refusal:
        """Return the error that a request is expected to end with."""
        try:
            request(*args, **kwargs)
        except Refusal as refusal:
            return refusal
        raise AssertionError("the request was accepted")

    def call(self, rpc: str, request: Any) -> Any:
        try:
            return getattr(self.stub, rpc)(request, timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            raise Refusal(error) from None

    def sign(self, request: Any) -> Any:
        request.device_id = self.device_id
        request.role = self.role
        if self.election_id is not None:
            request.election_id.CopyFrom(U128.encode(self.election_id))
        return request

    def write(self, *updates: p4r.Update, **fields: Any) -> None:
        self.call("Write", self.sign(p4r.WriteRequest(updates=updates, **fields)))

    def insert(self, **entity: Any) -> None:
        self.write(p4r.Update(type=p4r.Update.INSERT, entity=p4r.Entity(**entity)))

    def modify(self, **entity: Any) -> None:
        self.write(p4r.Update(type=p4r.Update.MODIFY, entity=p4r.Entity(**entity)))

    def delete(self, **entity: Any) -> None:
        self.write(p4r.Update(type=p4r.Update.DELETE, entity=p4r.Entity(**entity)))

    def read(self, *requests: p4r.Entity) -> list[p4r.Entity]:
        return [entity for response in self.read_responses(*requests) for entity in response.entities]

    def read_responses(self, *requests: p4r.Entity) -> list[p4r.ReadResponse]:
        request = p4r.ReadRequest(device_id=self.device_id, entities=requests)
        try:
            return list(self.stub.Read(request, timeout=TIMEOUT_S))
        except grpc.RpcError as error:
            raise Refusal(error) from None

    def set_config(
        self, action: str = "VERIFY_AND_COMMIT", config: p4r.ForwardingPipelineConfig | None = None
    ) -> None:
        request = p4r.SetForwardingPipelineConfigRequest(
            action=p4r.SetForwardingPipelineConfigRequest.Action.Value(action), config=config
        )
        self.call("SetForwardingPipelineConfig", self.sign(request))

    def get_config(self, response_type: str = "ALL") -> p4r.GetForwardingPipelineConfigResponse:
        types = p4r.GetForwardingPipelineConfigRequest.ResponseType
        request = p4r.GetForwardingPipelineConfigRequest(
            device_id=self.device_id, response_type=types.Value(response_type)
        )
        response: p4r.GetForwardingPipelineConfigResponse = self.call("GetForwardingPipelineConfig", request)
        return response

    def close(self) -> None:
        """Vanish: the stream is cancelled and the connection closed."""
        if self.stream is not None:
            self.stream.cancel()
        self._outbox.put(None)
        self.channel.close()


class Switch:
    """A server on a fake data plane, and the controllers of a test."""

    def __init__(self, *, promote: bool = True) -> None:
        self.plane = FakePlane()
        self.server = P4RuntimeServer(
            self.plane,
            device_id=DEVICE_ID,
            address="127.0.0.1:0",
            promote=promote,
        )
        self.server.start()
        self._controllers: list[Controller] = []

    def connect(self, **options: Any) -> Controller:
        controller = Controller(self.server.address, **options)
        self._controllers.append(controller)
        return controller

    def close(self) -> None:
        for controller in self._controllers:
            controller.close()
        self.server.stop(grace_s=0)


def program_json(**extra: Any) -> bytes:
    """Return the test program, with top-level members added."""
    program = json.loads((HERE / "program.json").read_text())
    return json.dumps({**program, **extra}).encode()


@pytest.fixture
def switch() -> Iterator[Switch]:
    """Yield a switch without a pipeline."""
    switch = Switch()
    yield switch
    switch.close()


@pytest.fixture
def strict_switch() -> Iterator[Switch]:
    """Yield a switch without a pipeline that promotes nobody."""
    switch = Switch(promote=False)
    yield switch
    switch.close()


@pytest.fixture
def p4info() -> p4i.P4Info:
    """Return the P4Info of the test program."""
    return text_format.Parse((HERE / "program.p4info.txtpb").read_text(), p4i.P4Info())


@pytest.fixture
def config(p4info: p4i.P4Info) -> p4r.ForwardingPipelineConfig:
    """Return the test program with the cookie 77."""
    return p4r.ForwardingPipelineConfig(
        p4info=p4info,
        p4_device_config=program_json(),
        cookie=p4r.ForwardingPipelineConfig.Cookie(cookie=77),
    )


@pytest.fixture
def with_extra(p4info: p4i.P4Info) -> Callable[..., p4r.ForwardingPipelineConfig]:
    """Return a maker of the test program with members added to its JSON."""

    def make(**extra: Any) -> p4r.ForwardingPipelineConfig:
        return p4r.ForwardingPipelineConfig(p4info=p4info, p4_device_config=program_json(**extra))

    return make


@pytest.fixture
def controller(switch: Switch, config: p4r.ForwardingPipelineConfig) -> Controller:
    """Return the primary of a switch that runs the test program."""
    controller = switch.connect()
    controller.become_primary()
    controller.set_config(config=config)
    return controller


@pytest.fixture
def connect() -> Callable[[str], Controller]:
    """Return a maker of controllers for a server of the test's own."""
    return Controller


@pytest.fixture
def plane(switch: Switch) -> FakePlane:
    """Return the data plane of `switch`."""
    return switch.plane


@pytest.fixture
def features() -> p4r.ForwardingPipelineConfig:
    """Return the program with meters, digests, value sets, clones and timeouts."""
    return p4r.ForwardingPipelineConfig(
        p4info=text_format.Parse((HERE / "features.p4info.txtpb").read_text(), p4i.P4Info()),
        p4_device_config=(HERE / "features.json").read_bytes(),
    )


@pytest.fixture
def learner(switch: Switch, features: p4r.ForwardingPipelineConfig) -> Controller:
    """Return the primary of a switch that runs `features`."""
    controller = switch.connect()
    controller.become_primary()
    controller.set_config(config=features)
    return controller

"""A switch of either kind in a namespace, its entries over P4Runtime, wires to its ports. Needs root."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
from finsy.proto import U128, p4i, p4r, p4r_grpc
from google.protobuf import text_format

from p4reduce.simulation import wires
from p4reduce.simulation.wires import Bench, Fence, wait_for
from soft_switch.dataplane import Exact, Lpm, Match, MeterConfig, Optional_, Range, Ternary
from tests.host_agent.transport.namespaces import inside, run

TIMEOUT_S = 20.0
MTU = 9200
BMV2 = shutil.which("simple_switch_grpc")

__all__ = ["Bench", "Fence", "wait_for"]


@contextmanager
def namespace(name: str, pairs: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Yield a namespace with veth pairs, all up, where the kernel itself says nothing."""
    try:
        run(f"ip netns add {name}")
        for setting in ("all", "default"):
            run(f"ip netns exec {name} sysctl -qw net.ipv6.conf.{setting}.disable_ipv6=1")
        run(f"ip -n {name} link set lo up")
        for one, other in pairs:
            add_veth(name, one, other)
        yield name
    finally:
        subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


def add_veth(name: str, one: str, other: str) -> None:
    """Add a veth pair inside a namespace, both ends up."""
    run(f"ip -n {name} link add {one} type veth peer name {other}")
    for end in (one, other):
        run(f"ip -n {name} link set {end} mtu {MTU} up")


class Wire(wires.Wire):
    """The far end of a port's veth in a namespace."""

    def __init__(self, name: str, interface: str) -> None:
        inside(name, lambda: super(Wire, self).__init__(interface))


class Controller:
    """The primary controller of a switch that listens at an address."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.channel = grpc.insecure_channel(address)
        try:
            grpc.channel_ready_future(self.channel).result(timeout=TIMEOUT_S)
        except grpc.FutureTimeoutError:
            self.channel.close()
            raise
        self.stub = p4r_grpc.P4RuntimeStub(self.channel)
        self.info = p4i.P4Info()
        arbitration = p4r.MasterArbitrationUpdate(device_id=0, election_id=U128.encode(1))
        self._done = threading.Event()

        def requests() -> Iterator[p4r.StreamMessageRequest]:
            yield p4r.StreamMessageRequest(arbitration=arbitration)
            self._done.wait()

        self._stream = self.stub.StreamChannel(requests())
        next(iter(self._stream))

    def close(self) -> None:
        """Leave the switch."""
        self._done.set()
        self.channel.close()

    def push(self, json: bytes, p4info: str) -> None:
        """Load a program."""
        self.info = text_format.Parse(p4info, p4i.P4Info())
        config = p4r.ForwardingPipelineConfig(p4info=self.info, p4_device_config=json)
        self.stub.SetForwardingPipelineConfig(
            p4r.SetForwardingPipelineConfigRequest(
                device_id=0,
                election_id=U128.encode(1),
                action=p4r.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT,
                config=config,
            ),
            timeout=60,
        )

    def _write(self, entity: p4r.Entity, kind: p4r.Update.Type.ValueType = p4r.Update.INSERT) -> None:
        update = p4r.Update(type=kind, entity=entity)
        request = p4r.WriteRequest(device_id=0, election_id=U128.encode(1), updates=[update])
        self.stub.Write(request, timeout=TIMEOUT_S)

    def insert(
        self, table: str, match: Sequence[Match], *, priority: int, action: str, params: Sequence[int]
    ) -> int:
        """Insert an entry, as `DataPlane.insert` takes it; fields that match everything are left out."""
        t = next(item for item in self.info.tables if item.preamble.name == table)
        a = next(item for item in self.info.actions if item.preamble.name == action)
        arguments = [
            p4r.Action.Param(param_id=p.id, value=shortest(value))
            for p, value in zip(a.params, params, strict=True)
        ]
        entry = p4r.TableEntry(
            table_id=t.preamble.id,
            match=field_matches(t, match),
            priority=priority,
            action=p4r.TableAction(action=p4r.Action(action_id=a.preamble.id, params=arguments)),
        )
        self._write(p4r.Entity(table_entry=entry))
        return 0

    def multicast_set(self, group: int, replicas: Sequence[tuple[int, int]]) -> None:
        """Create a multicast group: (egress port, instance)."""
        entry = p4r.MulticastGroupEntry(
            multicast_group_id=group,
            replicas=[p4r.Replica(egress_port=port, instance=instance) for port, instance in replicas],
        )
        engine = p4r.PacketReplicationEngineEntry(multicast_group_entry=entry)
        self._write(p4r.Entity(packet_replication_engine_entry=engine))

    def clone_set(self, session: int, replicas: Sequence[tuple[int, int]], packet_length: int = 0) -> None:
        """Create a clone session: (egress port, instance); clones of any length."""
        entry = p4r.CloneSessionEntry(
            session_id=session,
            replicas=[p4r.Replica(egress_port=port, instance=instance) for port, instance in replicas],
            packet_length_bytes=packet_length,
        )
        engine = p4r.PacketReplicationEngineEntry(clone_session_entry=entry)
        self._write(p4r.Entity(packet_replication_engine_entry=engine))

    def meter_write(self, name: str, index: int, config: MeterConfig) -> None:
        """Configure a meter cell."""
        meter = next(item for item in self.info.meters if item.preamble.name == name)
        entry = p4r.MeterEntry(
            meter_id=meter.preamble.id, index=p4r.Index(index=index), config=meter_config(config)
        )
        self._write(p4r.Entity(meter_entry=entry), p4r.Update.MODIFY)

    def direct_meter_write(self, table: str, match: Sequence[Match], config: MeterConfig) -> None:
        """Configure the meter of the entry with this match."""
        t = next(item for item in self.info.tables if item.preamble.name == table)
        entry = p4r.TableEntry(table_id=t.preamble.id, match=field_matches(t, match))
        direct = p4r.DirectMeterEntry(table_entry=entry, config=meter_config(config))
        self._write(p4r.Entity(direct_meter_entry=direct), p4r.Update.MODIFY)

    def counters(self) -> dict[str, list[tuple[int, int]]]:
        """Return all indexed counters: (packets, bytes) by index."""
        result = {}
        for counter in self.info.counters:
            entity = p4r.Entity(counter_entry=p4r.CounterEntry(counter_id=counter.preamble.id))
            values: dict[int, tuple[int, int]] = {}
            for response in self.stub.Read(
                p4r.ReadRequest(device_id=0, entities=[entity]), timeout=TIMEOUT_S
            ):
                for item in response.entities:
                    entry = item.counter_entry
                    values[entry.index.index] = (entry.data.packet_count, entry.data.byte_count)
            result[counter.preamble.name] = [value for _, value in sorted(values.items())]
        return result


class Switch(Controller):
    """A running switch process in a namespace, and the primary controller's connection to it."""

    def __init__(self, name: str, command: Sequence[str], address: str, log: Path) -> None:
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                ["ip", "netns", "exec", name, *command], stdout=file, stderr=subprocess.STDOUT
            )
        self.log = log
        try:
            super().__init__(address)
        except grpc.FutureTimeoutError:
            self._end()
            raise RuntimeError(f"the switch does not answer: {log.read_text()}") from None

    def stop(self) -> int:
        """Ask it to end; its exit code."""
        self.close()
        return self._end()

    def _end(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


def shortest(value: int) -> bytes:
    return value.to_bytes(max(1, -(-value.bit_length() // 8)), "big")


def meter_config(config: MeterConfig) -> p4r.MeterConfig:
    """Return a meter's configuration as P4Runtime has it."""
    return p4r.MeterConfig(cir=config.cir, cburst=config.cburst, pir=config.pir, pburst=config.pburst)


def field_matches(table: p4i.Table, match: Sequence[Match]) -> list[p4r.FieldMatch]:
    """Return a whole match; fields that match everything are left out."""
    return [
        wire
        for field, item in zip(table.match_fields, match, strict=True)
        if (wire := field_match(field, item)) is not None
    ]


def field_match(field: p4i.MatchField, match: Match) -> p4r.FieldMatch | None:
    """Return a match as P4Runtime has it; None for one that matches everything."""
    made = p4r.FieldMatch(field_id=field.id)
    match match:
        case Exact(value):
            made.exact.value = shortest(value)
        case Lpm(value, length):
            if length == 0:
                return None
            made.lpm.value, made.lpm.prefix_len = shortest(value), length
        case Ternary(value, mask):
            if mask == 0:
                return None
            made.ternary.value, made.ternary.mask = shortest(value), shortest(mask)
        case Range(low, high):
            if (low, high) == (0, (1 << field.bitwidth) - 1):
                return None
            made.range.low, made.range.high = shortest(low), shortest(high)
        case Optional_(None):
            return None
        case Optional_(value) if value is not None:
            made.optional.value = shortest(value)
        case _:
            raise NotImplementedError(match)
    return made


@contextmanager
def running(
    name: str, ports: dict[int, str], *, bmv2: bool = False, options: Sequence[str] = ()
) -> Iterator[Switch]:
    """Yield a switch without a program, on these interfaces of a namespace."""
    interfaces = [text for port, interface in ports.items() for text in ("-i", f"{port}@{interface}")]
    with tempfile.TemporaryDirectory(prefix="p4sw") as folder:
        address = f"unix:{folder}/p4rt"
        target = ["--grpc-server-addr", address, "--cpu-port", "255"]
        common = [*interfaces, "--no-p4", "--device-id", "0", *options]
        if bmv2:
            assert BMV2 is not None
            quiet = ["--log-console", "-L", "error", "--notifications-addr", f"ipc://{folder}/notify"]
            command = [BMV2, *common, *quiet, "--", *target]
        else:
            command = [sys.executable, "-m", "soft_switch", *common, "--log-console", "--", *target]
        switch = Switch(name, command, address, Path(folder, "log"))
        try:
            yield switch
        finally:
            switch.stop()


def unique(prefix: str) -> str:
    """Return a name for a namespace that nobody else uses."""
    return f"{prefix}{os.getpid()}x{next(_numbers)}"


_numbers = iter(range(1 << 30))


def arbitrate(stub: p4r_grpc.P4RuntimeStub, election: int) -> Any:
    """Open a controller's stream, which stays open, and read its first answer."""
    release = threading.Event()

    def requests() -> Iterator[p4r.StreamMessageRequest]:
        bid = p4r.MasterArbitrationUpdate(device_id=0, election_id=U128.encode(election))
        yield p4r.StreamMessageRequest(arbitration=bid)
        release.wait(60)

    stream = stub.StreamChannel(requests())
    next(iter(stream))
    return stream

"""The data plane: ports, a program, its tables. Packets are handled by native threads, never by Python."""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from soft_switch import native_api as api
from soft_switch.build import QUICK
from soft_switch.compiler.bounds import WORD_BITS, WORD_MASK, ones, words
from soft_switch.compiler.tables import TableLayout
from soft_switch.description import (
    Exact,
    Group,
    Lpm,
    Match,
    Member,
    MeterConfig,
    Optional_,
    Program,
    Range,
    Target,
    Ternary,
)
from soft_switch.engine import Engine
from soft_switch.errors import (
    DuplicateEntry,
    EntryInUse,
    ProgramError,
    TableError,
    TableFull,
    UnknownEntry,
    UnsupportedConstruct,
)
from soft_switch.fault_rules import FaultRules
from soft_switch.faults import DIRECTIONS, FaultKind
from soft_switch.links import interface_is_up
from soft_switch.loaded import LoadedProgram
from soft_switch.optimiser import Optimiser, first_library, mode
from soft_switch.translation import translate
from soft_switch.value_sets import pack_member

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = [
    "DataPlane",
    "DuplicateEntry",
    "EntryInUse",
    "Exact",
    "GlobalStats",
    "Group",
    "Lpm",
    "Match",
    "Member",
    "MeterConfig",
    "Optional_",
    "PortStats",
    "Program",
    "ProgramError",
    "Range",
    "TableError",
    "TableFull",
    "Target",
    "Ternary",
    "UnknownEntry",
    "UnsupportedConstruct",
]

EVENT_WAIT_MS = 1000
MAX_CLONE_SESSION = (1 << 15) - 1
PORTS = 1 << 9  # that a program can tell apart: 513 would be port 1 for it
MAX_WIRE_ENDS = 1 << 16
MAX_RATE = (1 << 63) - 1


@dataclass(frozen=True)
class PortStats:
    """Counts of a port; `lost` frames fell to `set_loss`, `dropped` ones to full queues.

    `up` is 1 while the interface has a carrier; `reopened` counts how often it came back.
    """

    interface: str
    rx_packets: int
    rx_bytes: int
    rx_dropped: int
    rx_oversize: int
    rx_lost: int
    tx_packets: int
    tx_bytes: int
    tx_dropped: int
    tx_errors: int
    tx_lost: int
    up: int
    reopened: int


@dataclass(frozen=True)
class GlobalStats:
    """Frames that no port counts: for a missing port, too long, and events that nobody took in time.

    `passes_dropped` are packets that were to go through the program again and found the queue full.
    """

    no_port: int
    too_long: int
    events_dropped: int
    failed_asserts: int
    passes_dropped: int


class DataPlane(AbstractContextManager["DataPlane"]):
    """A switch without control plane: load a program, attach interfaces, start.

    Methods may be called from any thread; operations on tables take effect between two packets.
    """

    def __init__(
        self,
        *,
        cpu_port: int | None = None,
        drop_port: int = 511,
        seed: int = 0,
        log: logging.Logger | None = None,
        priority_queues: int = 1,
    ) -> None:
        """Make a data plane. As BMv2, it drops packets whose priority is `priority_queues` or more."""
        self._cpu_port = cpu_port
        self._is_wires = False
        self._log = log or logging.getLogger(__name__)
        number = api.NO_PORT if cpu_port is None else cpu_port
        self._owned = Engine(number, drop_port, seed & WORD_MASK, priority_queues)
        self._loaded: LoadedProgram | None = None
        self._optimiser: Optimiser | None = None
        self._interfaces: dict[int, str] = {}
        self._packet_in: Callable[[bytes], None] | None = None
        self._digest: Callable[[str, tuple[int, ...]], None] | None = None
        self._control = threading.RLock()
        self.faults = FaultRules(self._owned, self._control)
        self._events = threading.Thread(target=self._drain_events, name="soft_switch events", daemon=True)

    def __exit__(self, *_: object) -> None:
        self.close()

    def spare(self) -> DataPlane:
        """Make a data plane to try a program on: it has no ports, but sees the links of this one's."""
        made = DataPlane(cpu_port=self._cpu_port)
        made._interfaces = self._interfaces
        return made

    @property
    def _native(self) -> ctypes.CDLL:
        return self._owned.library

    @property
    def _engine(self) -> int:
        """The engine, which lives as long as `_control` is held; RuntimeError when it is gone."""
        return self._owned.handle

    # The program

    def _host(self) -> int:
        """Return the host that programs call."""
        host: int = self._native.engine_host(self._engine)
        return host

    @property
    def program(self) -> Program | None:
        """The running program's description."""
        return None if self._loaded is None else self._loaded.compiled.program.description

    def load(self, program_json: bytes, *, optimise: bool = True, wait: bool = False) -> None:
        """Compile a BMv2 JSON and run it instead of the program before; ports and multicast groups stay.

        A big program that is not in the cache runs quickly compiled, until its optimised version is ready in
        the background and takes over between two packets; with `wait`, loading ends only then.
        Raises UnsupportedConstruct or ProgramError; the program before then keeps running.
        """
        compiled = translate(program_json, optimise=optimise)
        library, tier = first_library(compiled.source, wait=wait)
        with self._control:
            loaded = LoadedProgram(compiled, library, self._host())
            function = ctypes.cast(loaded.library.p4_process, ctypes.c_void_p)
            passes = ctypes.cast(loaded.library.p4_passes, ctypes.c_void_p)
            self._native.engine_set_program(self._engine, function, passes, loaded.state)
            before, self._loaded = self._loaded, loaded
            if self._events.ident is None:
                self._events.start()
            if before is not None:
                before.destroy()
            stopped, self._optimiser = self._optimiser, None
            if tier is QUICK and mode() != "quick":
                swap = functools.partial(self._swap, loaded)
                self._optimiser = Optimiser(compiled.source, swap, self._log)
                self._optimiser.start()
        if stopped is not None:
            stopped.cancel()

    def _swap(self, loaded: LoadedProgram, library: Path) -> None:
        """Go on with the optimised version of a program: same state, another function."""
        optimised = api.program_library(library)
        with self._control:
            if self._loaded is loaded:
                function = ctypes.cast(optimised.p4_process, ctypes.c_void_p)
                passes = ctypes.cast(optimised.p4_passes, ctypes.c_void_p)
                self._native.engine_set_program(self._engine, function, passes, loaded.state)
                self._log.info("the optimised program has taken over")

    def be_wires(self) -> None:
        """Forward without a program: frames at port 0 leave by port 1, and back; so for 2 and 3, ..."""
        self._is_wires = True
        with self._control:
            self._native.engine_set_wires(self._engine)

    def wait_optimised(self, timeout_s: float | None = None) -> bool:
        """Wait until the optimised version runs, or failed to compile; False if that takes too long."""
        optimiser = self._optimiser
        return optimiser is None or optimiser.wait(timeout_s)

    # Ports

    def attach(self, port: int, interface: str, *, pcap: Path | None = None) -> None:
        """Make an interface a port; `pcap` gets what goes in and out. OSError: no such interface."""
        if port == self._cpu_port:
            raise ValueError(f"port {port} is the CPU port")
        _check_port(port, MAX_WIRE_ENDS if self._is_wires else PORTS)
        with self._control:
            capture = None if pcap is None else os.fsencode(pcap)
            status = self._native.engine_attach(self._engine, port, interface.encode(), capture)
            if status < 0:
                raise OSError(-status, os.strerror(-status), interface)
            self._interfaces[port] = interface

    def detach(self, port: int) -> None:
        """Let go of a port's interface."""
        with self._control:
            if self._native.engine_detach(self._engine, port) < 0:
                raise UnknownEntry(f"there is no port {port}")
            del self._interfaces[port]
            self.faults.forget_port(port)

    def ports(self) -> dict[int, PortStats]:
        """Return the counts of each port so far."""
        result = {}
        with self._control:
            for port, interface in sorted(self._interfaces.items()):
                values = (ctypes.c_uint64 * 12)()
                if self._native.engine_stats(self._engine, port, values) == 0:
                    result[port] = PortStats(interface, *values)
        return result

    def port_is_up(self, port: int) -> bool | None:
        """Tell whether a port's interface has its link; None: there is no such port."""
        if port == self._cpu_port:
            return True
        interface = self._interfaces.get(port)
        return None if interface is None else interface_is_up(interface)

    def stats(self) -> GlobalStats:
        """Return the counts that belong to no port."""
        values = (ctypes.c_uint64 * 5)()
        with self._control:
            self._native.engine_globals(self._engine, values)
        return GlobalStats(*values)

    def struck(self, port: int) -> dict[tuple[str, FaultKind], int]:
        """Return how many frames of a port each kind of fault has struck, "in" and "out"."""
        return self.faults.struck(port)

    def set_loss(self, port: int, direction: str, probability: float, seed: int) -> None:
        """Lose frames of a port at random; direction is "in" or "out"."""
        if direction not in DIRECTIONS or not 0 <= probability <= 1:
            raise ValueError(f"loss of {probability} in direction {direction!r}: give 0..1 and 'in' or 'out'")
        if not self.faults.set_loss(port, direction, probability, seed & WORD_MASK):
            raise UnknownEntry(f"there is no port {port}")

    # Running

    def start(self) -> None:
        """Start moving packets between ports."""
        with self._control:
            status = self._native.engine_start(self._engine)
        if status < 0:
            raise OSError(-status, os.strerror(-status))

    def stop(self) -> None:
        """Stop moving packets."""
        with self._control:
            self._native.engine_stop(self._engine)

    def close(self) -> None:
        """Stop and give everything back; every later call raises RuntimeError."""
        with self._control:
            optimiser, self._optimiser = self._optimiser, None
        if optimiser is not None:
            optimiser.cancel()
        with self._control:
            if self._owned.is_gone:
                return
            listening = self._events.ident is not None
            if listening:
                self.stop()
                self._native.engine_close_events(self._engine)
        if listening and threading.current_thread() is not self._events:
            self._events.join()
        with self._control:
            engine = self._owned.take()
            if engine is None:
                return
            self._native.engine_set_program(engine, None, None, None)
            if self._loaded is not None:
                self._loaded.destroy()
                self._loaded = None
            self._native.engine_destroy(engine)

    # Tables

    def _table(self, name: str) -> tuple[LoadedProgram, TableLayout]:
        loaded = self._running()
        layout = loaded.compiled.tables.get(name)
        if layout is None:
            raise UnknownEntry(f"the program has no table {name}")
        return loaded, layout

    def _running(self) -> LoadedProgram:
        if self._loaded is None:
            raise RuntimeError("no program is loaded")
        return self._loaded

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
        """Insert an entry and give its handle. Greater priority wins; it counts only in tables with ternary,
        range or optional fields. An entry of a table with an action profile has a `target`, every other
        one an `action`. Raises TableFull, DuplicateEntry, UnknownEntry, TableError.
        """
        with self._control:
            loaded, layout = self._table(table)
            return loaded.insert(layout, match, priority, action, params, target)

    def modify(
        self,
        table: str,
        handle: int,
        *,
        action: str | None = None,
        params: Sequence[int] = (),
        target: Target | None = None,
    ) -> None:
        """Give an entry another action, or in a table with an action profile another target."""
        with self._control:
            loaded, layout = self._table(table)
            loaded.modify(layout, handle, action, params, target)

    def delete(self, table: str, handle: int) -> None:
        """Delete an entry."""
        with self._control:
            loaded, layout = self._table(table)
            if loaded.library.p4_delete(loaded.state, layout.index, handle) < 0:
                raise UnknownEntry(f"table {table} has no entry {handle}")

    def set_default(self, table: str, action: str | None, params: Sequence[int] = ()) -> None:
        """Set the action for packets that no entry matches; None stands for the program's own."""
        with self._control:
            loaded, layout = self._table(table)
            if action is None:
                loaded.restore_default(layout)
                return
            loaded.set_default(layout, action, params)

    def direct_counter_read(self, table: str, handle: int) -> tuple[int, int]:
        """Return the packets and bytes that an entry matched."""
        return self._direct_counter(table, handle, None)

    def direct_counter_write(self, table: str, handle: int, packets: int, bytes_: int) -> None:
        """Set the counts of an entry."""
        self._direct_counter(table, handle, (packets, bytes_))

    def _direct_counter(self, table: str, handle: int, value: tuple[int, int] | None) -> tuple[int, int]:
        with self._control:
            loaded, layout = self._table(table)
            if not layout.table.info.has_direct_counter:
                raise TableError(f"table {table} has no direct counter")
            pair = (ctypes.c_uint64 * 2)(*(value or ()))
            write = value is not None
            if loaded.library.p4_direct_counter(loaded.state, layout.index, handle, pair, write) < 0:
                raise UnknownEntry(f"table {table} has no entry {handle}")
            return pair[0], pair[1]

    def idle_ns(self, table: str, handle: int) -> int:
        """Return nanoseconds since an entry's last match, or its insertion. The table needs idle timeouts."""
        with self._control:
            loaded, layout = self._table(table)
            return loaded.idle_ns(layout, handle)

    # Action profiles

    def profile_member_insert(self, profile: str, action: str, params: Sequence[int]) -> int:
        """Insert a member and give its handle. There is no limit: P4Runtime's sizes are for its server."""
        with self._control:
            return self._running().profiles.set_member(profile, None, action, params)

    def profile_member_modify(self, profile: str, member: int, action: str, params: Sequence[int]) -> None:
        """Give a member another action."""
        with self._control:
            self._running().profiles.set_member(profile, member, action, params)

    def profile_member_delete(self, profile: str, member: int) -> None:
        """Delete a member that no entry and no group uses, EntryInUse otherwise."""
        with self._control:
            self._running().profiles.delete_member(profile, member)

    def profile_group_insert(self, profile: str, members: Sequence[int]) -> int:
        """Insert a group of different members, maybe of none, and give its handle."""
        with self._control:
            return self._running().profiles.set_group(profile, None, members)

    def profile_group_modify(self, profile: str, group: int, members: Sequence[int]) -> None:
        """Give a group other members."""
        with self._control:
            self._running().profiles.set_group(profile, group, members)

    def profile_group_delete(self, profile: str, group: int) -> None:
        """Delete a group that no entry uses, EntryInUse otherwise."""
        with self._control:
            self._running().profiles.delete_group(profile, group)

    # Counters and registers

    def counter_read(self, name: str, index: int) -> tuple[int, int]:
        """Return packets and bytes at an index of a counter."""
        values = self._counter(name, index, 1, None)
        return int(values[0, 0]), int(values[0, 1])

    def counter_read_all(self, name: str) -> npt.NDArray[np.uint64]:
        """Return all of a counter at one moment; shape (size, 2), packets and bytes."""
        return self._counter(name, 0, None, None)

    def counter_write(self, name: str, index: int, packets: int, bytes_: int) -> None:
        """Set a counter at an index."""
        self._counter(name, index, 1, (packets, bytes_))

    def _counter(
        self, name: str, first: int, count: int | None, value: tuple[int, int] | None
    ) -> npt.NDArray[np.uint64]:
        with self._control:
            loaded = self._running()
            number = loaded.compiled.counters.get(name)
            if number is None:
                raise UnknownEntry(f"the program has no indexed counter {name}")
            size = loaded.compiled.program.description.counters[name].size
            count = size if count is None else count
            if not 0 <= first <= size - count:
                raise UnknownEntry(f"counter {name} has {size} cells, there is no index {first}")
            import numpy as np  # here, because a switch whose counters nobody reads starts without it

            values = np.zeros((count, 2), np.uint64)
            if value is not None:
                values[0] = value
            pointer = values.ctypes.data_as(api.Words)
            loaded.library.p4_counter(loaded.state, number, first, count, pointer, value is not None)
            return values

    def register_read(self, name: str, index: int) -> int:
        """Return the value of a register cell."""
        return self._register(name, index, None)

    def register_write(self, name: str, index: int, value: int) -> None:
        """Set a register cell."""
        self._register(name, index, value)

    def _register(self, name: str, index: int, value: int | None) -> int:
        with self._control:
            loaded = self._running()
            number = loaded.compiled.registers.get(name)
            if number is None:
                raise UnknownEntry(f"the program has no register {name}")
            info = loaded.compiled.program.description.registers[name]
            if not 0 <= index < info.size:
                raise UnknownEntry(f"register {name} has {info.size} cells, there is no index {index}")
            if value is not None and not 0 <= value <= ones(info.width):
                raise TableError(f"register {name}: {value} does not fit {info.width} bits")
            count = words(info.width)
            data = api.to_words([(value or 0) >> (WORD_BITS * i) & WORD_MASK for i in range(count)])
            loaded.library.p4_register(loaded.state, number, index, data, value is not None)
            return sum(word << (WORD_BITS * i) for i, word in enumerate(data))

    # Meters

    def meter_read(self, name: str, index: int) -> MeterConfig | None:
        """Return the configuration of a meter cell; None: it has none, and every packet is green."""
        with self._control:
            loaded, number = self._meter(name, index)
            values = (ctypes.c_uint64 * 5)()
            loaded.library.p4_meter(loaded.state, number, index, values, False)
            return _from_words(values)

    def meter_write(self, name: str, index: int, config: MeterConfig | None) -> None:
        """Configure a meter cell; its buckets start full. None makes every packet green again."""
        values = _to_words(config)
        with self._control:
            loaded, number = self._meter(name, index)
            loaded.library.p4_meter(loaded.state, number, index, values, True)

    def direct_meter_read(self, table: str, handle: int) -> MeterConfig | None:
        """Return the configuration of an entry's meter; None: it has none, and every packet is green."""
        values = (ctypes.c_uint64 * 5)()
        self._direct_meter(table, handle, values, write=False)
        return _from_words(values)

    def direct_meter_write(self, table: str, handle: int, config: MeterConfig | None) -> None:
        """Configure an entry's meter; its buckets start full. None makes every packet green again."""
        self._direct_meter(table, handle, _to_words(config), write=True)

    def _meter(self, name: str, index: int) -> tuple[LoadedProgram, int]:
        loaded = self._running()
        number = loaded.compiled.meters.get(name)
        info = loaded.compiled.program.description.meters.get(name)
        if number is None or info is None or info.table is not None:
            raise UnknownEntry(f"the program has no indexed meter {name}")
        if not 0 <= index < info.size:
            raise UnknownEntry(f"meter {name} has {info.size} cells, there is no index {index}")
        return loaded, number

    def _direct_meter(
        self, table: str, handle: int, values: ctypes.Array[ctypes.c_uint64], *, write: bool
    ) -> None:
        with self._control:
            loaded, layout = self._table(table)
            if layout.table.direct_meter is None:
                raise UnknownEntry(f"table {table} has no direct meter")
            if loaded.library.p4_direct_meter(loaded.state, layout.index, handle, values, write) < 0:
                raise UnknownEntry(f"table {table} has no entry {handle}")

    # Value sets

    def value_set_write(self, name: str, members: Sequence[Sequence[Match]]) -> None:
        """Replace what a parser's value set holds; a member has a match for each component of the key.

        Raises UnknownEntry, TableError (a member that does not fit) or TableFull.
        """
        with self._control:
            loaded = self._running()
            number = loaded.compiled.value_sets.get(name)
            if number is None:
                raise UnknownEntry(f"the program has no value set {name}")
            info = loaded.compiled.program.description.value_sets[name]
            if len(members) > info.size:
                raise TableFull(f"value set {name} holds {info.size} members, {len(members)} were given")
            rows = [row for member in members for row in pack_member(info, member)]
            data = api.to_words([word for row in rows for word in row])
            loaded.library.p4_value_set(loaded.state, number, data, len(rows))

    # Replication and the control plane's packets

    def multicast_set(self, group: int, replicas: Sequence[tuple[int, int]]) -> None:
        """Create or replace a multicast group: (egress port, instance) of each copy."""
        flat = [number for replica in replicas for number in replica]
        array = (ctypes.c_uint32 * max(1, len(flat)))(*flat)
        with self._control:
            self._native.engine_multicast_set(self._engine, group, array, len(replicas))

    def multicast_delete(self, group: int) -> None:
        """Delete a multicast group."""
        with self._control:
            status = self._native.engine_multicast_delete(self._engine, group)
        if status < 0:
            raise UnknownEntry(f"there is no multicast group {group}")

    def clone_set(self, session: int, replicas: Sequence[tuple[int, int]], packet_length: int = 0) -> None:
        """Create or replace a clone session: (egress port, instance) of each copy.

        Clones leave with at most `packet_length` bytes; 0 is no limit.
        """
        if not 0 <= session <= MAX_CLONE_SESSION:
            raise TableError(f"clone session {session} is not within 0 and {MAX_CLONE_SESSION}")
        flat = [number for replica in replicas for number in replica]
        array = (ctypes.c_uint32 * max(1, len(flat)))(*flat)
        with self._control:
            self._native.engine_clone_set(self._engine, session, array, len(replicas), packet_length)

    def clone_delete(self, session: int) -> None:
        """Delete a clone session."""
        with self._control:
            if (
                not 0 <= session <= MAX_CLONE_SESSION
                or self._native.engine_clone_delete(self._engine, session) < 0
            ):
                raise UnknownEntry(f"there is no clone session {session}")

    def on_digest(self, callback: Callable[[str, tuple[int, ...]], None]) -> None:
        """Call `callback`, from a thread of the data plane, with each digest: its name and its values."""
        self._digest = callback

    def packet_out(self, data: bytes) -> None:
        """Process a packet as if it came in on the CPU port; what comes out is sent."""
        if self._cpu_port is None:
            raise RuntimeError("the switch has no CPU port")
        _check_frame(data)
        with self._control:
            self._running()
            self._native.engine_inject(self._engine, self._cpu_port, data, len(data))

    def on_packet_in(self, callback: Callable[[bytes], None]) -> None:
        """Call `callback`, from a thread of the data plane, with each packet that leaves on the CPU port."""
        self._packet_in = callback

    def process(self, port: int, data: bytes) -> list[tuple[int, bytes]]:
        """Return the packets that a packet on a port makes leave, as (port, packet), without sending them."""
        _check_frame(data)
        _check_port(port, PORTS)
        with self._control:
            self._running()
            collector = self._native.engine_process(self._engine, port, data, len(data))
            return list(api.collected(self._native, collector))

    def _drain_events(self) -> None:
        """Hand packet-ins and log lines from the native queue to Python."""
        data = (ctypes.c_uint8 * api.MAX_FRAME)()
        length, level = ctypes.c_uint32(), ctypes.c_uint32()
        while not self._owned.is_gone:  # after a callback that closed the data plane
            kind = self._native.engine_next_event(
                self._engine, EVENT_WAIT_MS, data, ctypes.byref(length), ctypes.byref(level)
            )
            if kind == api.EVENT_CLOSED:
                return
            if kind == api.EVENT_LOG:
                text = bytes(data[: length.value]).decode(errors="replace")
                self._log.log(logging.ERROR if level.value == api.LOG_ERROR else logging.INFO, "%s", text)
            elif kind == api.EVENT_PACKET_IN and self._packet_in is not None:
                try:
                    self._packet_in(bytes(data[: length.value]))
                except Exception:  # noqa: BLE001  (the callback is the user's; the thread has to live on)
                    self._log.exception("the packet-in callback failed")
            elif kind == api.EVENT_DIGEST and self._digest is not None:
                self._deliver_digest(level.value, bytes(data[: length.value]))

    def _deliver_digest(self, list_id: int, data: bytes) -> None:
        loaded = self._loaded
        item = None if loaded is None else loaded.compiled.program.learn_lists.get(list_id)
        widths = [] if item is None else [width for _, width in item.values]
        sizes = [words(width) * WORD_BITS // 8 for width in widths]
        if item is None or self._digest is None or len(data) != sum(sizes):
            return  # it is of the program before
        values, at = [], 0
        for size, width in zip(sizes, widths, strict=True):
            values.append(int.from_bytes(data[at : at + size], "little") & ones(width))
            at += size
        try:
            self._digest(item.name, tuple(values))
        except Exception:  # noqa: BLE001  (the callback is the user's; the thread has to live on)
            self._log.exception("the digest callback failed")


def _check_frame(data: bytes) -> None:
    if len(data) > api.MAX_FRAME - 4:
        raise ValueError(f"a packet of {len(data)} bytes is longer than {api.MAX_FRAME - 4}")


def _check_port(port: int, ports: int) -> None:
    if not 0 <= port < ports:
        raise ValueError(f"port {port} is not within 0 and {ports - 1}")


def _to_words(config: MeterConfig | None) -> ctypes.Array[ctypes.c_uint64]:
    values = (0, 0, 0, 0) if config is None else (config.cir, config.cburst, config.pir, config.pburst)
    if not all(0 <= value <= MAX_RATE for value in values):
        raise TableError(f"the rates and bursts of a meter are within 0 and {MAX_RATE}: {config}")
    if config is not None and config.cir > config.pir:
        raise TableError(f"the committed rate {config.cir} is above the peak rate {config.pir}")
    return (ctypes.c_uint64 * 5)(config is not None, *values)


def _from_words(values: ctypes.Array[ctypes.c_uint64]) -> MeterConfig | None:
    return MeterConfig(*values[1:]) if values[0] else None

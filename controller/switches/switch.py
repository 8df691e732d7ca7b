"""One switch under control: kept connected, with our program and base entries in it, written and read.

    start -> connecting -> primary? -> our program there? (pushed if not) -> guards, base entries -> connected
               ^                                                                                        |
               +---- stream ended, no answer to the poll, another primary, another program -------------+

One task goes round this circle until the switch is closed.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass

import grpc
from finsy.proto import p4r

from controller.api.errors import InvalidRequestError
from controller.config import SwitchConfig
from controller.entries import Entry, Key, key_of
from controller.fabric.flows import COUNTERS, of_jobs
from controller.security.files import TlsFiles
from controller.switches.difference import Difference, Stage, deleting_stages, difference, writing_stages
from controller.switches.p4rt import P4RuntimeClient, Role
from controller.switches.pipeline import (
    CONTROLLER_ELECTION_ID,
    Program,
    load,
    running_on,
    shipped_program,
    write_base,
)
from controller.switches.queries import OP_ECHO, OP_QUERY_SLOT, OP_SEND, SlotContent, SlotQueries
from controller.switches.updates import (
    ElectionIdTakenError,
    Failure,
    SwitchError,
    SwitchUnreachableError,
    Update,
    UpdateKind,
    WriteError,
)
from p4src import MAX_FLOWS, MAX_PORTS, MAX_SLOTS

LOG = logging.getLogger(__name__)

UNNAMED = "unnamed"
PORT_COUNTERS = {
    "port_rx": "SwitchIngress.port_rx",
    "port_tx": "SwitchEgress.port_tx",
    "no_route": "SwitchIngress.forward.no_route",
    UNNAMED: "SwitchIngress.edges.unnamed",
    "spoofed": "SwitchIngress.origin.spoofed",
    "no_job": "SwitchIngress.tree.no_job",
    "bad_echo": "SwitchIngress.bad_echo",
}
FIRST_RETRY_S = 0.2
LAST_RETRY_S = 2.0
POLL_INTERVAL_S = 3.0  # a switch that hangs, or whose program somebody replaced, does not end the stream


@dataclass(frozen=True)
class CounterCell:
    """One cell of a counter."""

    packets: int
    bytes: int


class Switch:
    """A P4Runtime switch. Errors are SwitchErrors; without a connection SwitchUnreachableErrors that say why.

    `base` entries are there whenever the switch is connected, whatever else comes and goes. `on_change` is
    called when `connected` has changed. `guards`, set by the writer of jobs, returns the guards that a switch
    that has lost its entries must have before it gets routes again; `base` may be set as well, if it changes
    with time. `on_found` is called with the entries of a switch with our program, before anything is written
    there. `on_echo` is called with the nonce of a probe that came back. With `tls`, its certificate has to be
    for the switch's name.
    """

    def __init__(
        self,
        config: SwitchConfig,
        base: Sequence[Entry],
        *,
        on_change: Callable[[Switch], None],
        program: Program | None = None,
        election_id: int = CONTROLLER_ELECTION_ID,
        poll_interval_s: float = POLL_INTERVAL_S,
        tls: TlsFiles | None = None,
    ) -> None:
        self.config = config
        self._tls = tls
        self.guards: Callable[[], Sequence[Entry]] = tuple
        self.base: Callable[[], Sequence[Entry]] = functools.partial(tuple, base)
        self.on_found: Callable[[Iterable[Entry]], None] = _ignore
        self.on_echo: Callable[[int], None] | None = None
        self._on_change = on_change
        self._program = program or shipped_program()
        self._election_id = election_id
        self._poll_interval_s = poll_interval_s
        self._label = f"switch {config.name} at {config.address}"
        self._state = "connecting"
        self._connected = False
        self._has_rival = self._is_outranked = False
        self._client: P4RuntimeClient | None = None
        self._open: P4RuntimeClient | None = None  # the same, also where we may only read
        self._was_ours = False  # when we became primary, it had entries that we had written before
        self._task: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()
        self._queries = SlotQueries(self._label)
        self._installed: set[Entry] = set()
        self._leftover: dict[Key, Entry] = {}  # should be gone, but could not be deleted yet

    # State

    @property
    def connected(self) -> bool:
        """True if we are primary and our program and base entries are in the switch."""
        return self._connected

    @property
    def state(self) -> str:
        """State in a few words for people: "connected", or why not."""
        return self._state

    @property
    def has_rival(self) -> bool:
        """True if another controller is primary with our election id: it has the same jobs, or a copy."""
        return self._has_rival

    @property
    def is_outranked(self) -> bool:
        """True if somebody else is primary, a rival or not."""
        return self._is_outranked

    @property
    def program_sha256(self) -> str:
        """SHA-256 of the BMv2 JSON that the switch runs when it is connected."""
        return self._program.sha256

    async def start(self) -> None:
        """Begin to connect, and to connect again for as long as it takes."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"switch {self.config.name}")

    async def close(self) -> None:
        """Leave the switch as it is. `on_change` is not called for this."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        self._connected = False
        self._state = "closed"

    # Entries

    async def adopt(self, wanted: Sequence[Entry]) -> None:
        """Make the switch hold `wanted` and its base entries and nothing else, touching only what differs.

        Changes made by hand while somebody else had the switch stay, except in entries that sums depend on.
        """
        async with self._writing:
            client = self._require()
            everything = {key_of(entry): entry for entry in (*self.base(), *wanted)}
            found = await client.read_entries()
            by_hand = self._by_hand(found)
            wrong = difference(_without(found, by_hand), _without(everything.values(), by_hand))
            await _apply(client, wrong, UpdateKind.DELETE, UpdateKind.MODIFY, UpdateKind.INSERT)
            self._installed = set(everything.values())
            self._leftover.clear()

    async def install(self, entries: Sequence[Entry]) -> None:
        """Write all entries or none. Raise SwitchError that names the one refused, and remove those written.

        Raise ValueError if two of the entries have the same key.
        """
        if len({key_of(entry) for entry in entries}) < len(entries):
            raise ValueError("two of the entries have the same key")
        async with self._writing:
            client = self._require()
            written: list[Entry] = []
            for stage in writing_stages(entries):
                try:
                    await client.write([Update(UpdateKind.INSERT, entry) for entry in stage])
                except asyncio.CancelledError:
                    self._remember_leftover([*written, *stage])
                    raise
                except SwitchError as error:
                    # What cannot be taken back now is when the switch is there again.
                    self._remember_leftover([*written, *_perhaps_written(stage, error)])
                    await self._tidy(client)
                    raise
                written += stage
            self._installed |= set(entries)
            self._forget_leftover(entries)

    async def remove(self, entries: Iterable[Entry]) -> None:
        """Delete entries, flows first and guards last, whatever their order here; gone already is fine.

        If the switch is not connected, raise SwitchUnreachableError, and delete them as soon as it is.
        """
        async with self._writing:
            base = set(self.base())
            entries = [entry for entry in entries if entry not in base]
            keys = {key_of(entry) for entry in entries}  # what they do may have changed since
            self._installed = {entry for entry in self._installed if key_of(entry) not in keys}
            self._remember_leftover(entries)
            await self._delete(self._require(), entries)

    async def read_entries(self) -> set[Entry]:
        """Return every entry in the switch, base entries too; also while another controller is primary."""
        return await self._require_open().read_entries()

    @property
    def written(self) -> dict[Key, Entry]:
        """Entries last written here and not deleted since, base entries too, and those yet to be deleted."""
        return {**self._leftover, **{key_of(entry): entry for entry in self._installed}}

    async def runs_our_program(self) -> bool:
        """Tell whether the whole pipeline config is ours; also while another controller is primary."""
        return self._program.is_in(await running_on(self._require_open(), self._program))

    async def write_batch(self, updates: Sequence[Update]) -> list[Failure]:
        """Apply updates with one request, in the order given, and return those refused.

        The others have been applied.
        """
        if not updates:
            return []
        async with self._writing:
            client = self._require()
            failures = await client.write_batch(updates)
            refused = {failure.update for failure in failures}
            done = [update for update in updates if update not in refused]
            keys = {key_of(update.entry) for update in done}
            self._installed = {entry for entry in self._installed if key_of(entry) not in keys}
            self._installed |= {update.entry for update in done if update.kind is not UpdateKind.DELETE}
            self._forget_leftover(update.entry for update in done)
        return failures

    async def send_frame(self, port: int, frame: bytes) -> None:
        """Send a whole frame out of a port."""
        await self._require().send_packet(frame, op=OP_SEND, port=port, index=0)

    # Counters and slots

    async def flow_counters(self, first: int, count: int) -> dict[str, list[CounterCell]]:
        """Return the counter cells of flow indexes first..first+count-1, by short name (`completed`, ...)."""
        client, flows = self._require(), _range("flow", first, count, MAX_FLOWS)
        found = await client.read_counters([(name, flow) for name in COUNTERS.values() for flow in flows])
        return {
            short: [CounterCell(*found[name, flow]) for flow in flows] for short, name in COUNTERS.items()
        }

    async def port_counters(
        self, ports: Iterable[int] = range(MAX_PORTS)
    ) -> dict[str, dict[int, CounterCell]]:
        """Return each of `PORT_COUNTERS` for these port numbers; asking for all, again and again, is a lot.

        Of `UNNAMED` return also other ports that counted something: nobody can know them before.
        """
        client, ports = self._require(), set(ports)
        cells: list[tuple[str, int | None]] = [(PORT_COUNTERS[UNNAMED], None)]
        cells += [(name, port) for short, name in PORT_COUNTERS.items() if short != UNNAMED for port in ports]
        counted: dict[str, dict[int, CounterCell]] = {name: {} for name in PORT_COUNTERS.values()}
        for (name, port), cell in (await client.read_counters(cells)).items():
            if port in ports or any(cell):
                counted[name][port] = CounterCell(*cell)
        return {short: counted[name] for short, name in PORT_COUNTERS.items()}

    async def reset_flow_counters(self, first: int, count: int) -> None:
        """Set the counters of flow indexes first..first+count-1 to zero."""
        client, flows = self._require(), _range("flow", first, count, MAX_FLOWS)
        await client.reset_counters([(name, flow) for name in COUNTERS.values() for flow in flows])

    async def slots(self, first: int, count: int, *, step: int = 1) -> list[SlotContent]:
        """Return the contents of slots first..first+count-1, or of each `step`-th of them."""
        client = self._require()
        _range("slot", first, count, MAX_SLOTS)

        async def send(index: int) -> None:
            await client.send_packet(b"", op=OP_QUERY_SLOT, port=0, index=index)

        return await self._queries.ask(first, count, send, step=step)

    # The program

    async def push(self) -> None:
        """Load the program again, read it back, write guards and base entries; no job has its flows then."""
        async with self._writing:
            await self._fill(self._require())

    # The circle

    async def _run(self) -> None:
        wait_s = FIRST_RETRY_S
        while True:
            was_connected = False
            try:
                await self._session()
            except SwitchError as error:
                was_connected = self.connected
                self._has_rival = self._is_outranked = isinstance(error, ElectionIdTakenError)
                self._change(connected=False, state=self._why(error))
            except Exception as error:
                # A defect of ours must not leave the switch without anybody who looks after it.
                LOG.exception("%s: trying again", self._label)
                self._change(connected=False, state=f"failed: {error}")
            wait_s = FIRST_RETRY_S if was_connected else min(2 * wait_s, LAST_RETRY_S)
            await asyncio.sleep(wait_s)

    async def _session(self) -> None:
        """Run a connection from its beginning to its end, which is always a SwitchError."""
        client = self._new_client()
        async with client:
            role = await client.open(self._election_id)
            self._open = client
            try:
                while True:
                    self._has_rival, self._is_outranked = False, not role.primary
                    if role.primary:
                        await self._prepare(client)
                        self._client = client
                        self._change(connected=True, state="connected")
                    else:
                        self._change(
                            connected=False,
                            state=f"another controller is primary (election id {role.election_id})",
                        )
                    role = await self._watch(client, role)
            finally:
                self._client = self._open = None

    async def _watch(self, client: P4RuntimeClient, role: Role) -> Role:
        """Wait until the role changes, and look now and then whether the program is still ours."""
        while True:
            try:
                new = await asyncio.wait_for(client.next_role(), self._poll_interval_s)
            except asyncio.TimeoutError:
                if role.primary:
                    await self._look_after(client)
                continue
            if new.vacant:
                new = await client.claim(max(new.election_id, self._election_id))
            if new.primary != role.primary:
                return new

    async def _look_after(self, client: P4RuntimeClient) -> None:
        """Check the program of a connected switch, and tidy up."""
        async with self._writing:
            if await client.cookie() != self._program.cookie:
                raise SwitchError(f"{self._label}: somebody has replaced its program")
            await self._tidy(client)

    async def _prepare(self, client: P4RuntimeClient) -> None:
        """Bring our program and base entries into a switch that we are primary of, whatever it holds."""
        async with self._writing:
            running = await running_on(client, self._program)
            if not self._program.is_in(running):
                restarted = "restarted: its program and entries are gone, " if self._installed else ""
                self._change(connected=False, state=f"{restarted}loading the program")
                if running is not None:
                    LOG.warning("%s runs another program, which is replaced", self._label)
                await self._fill(client)
                return
            found = await client.read_entries()
            self.on_found(found)
            self._was_ours = not self._installed.isdisjoint(found) and not self._is_half_filled(found)
            by_hand = self._by_hand(found)
            if by_hand:
                LOG.warning("%s has %d entries that were changed by hand", self._label, len(by_hand))
            lost = self._installed - found
            if lost:
                LOG.warning("%s has lost %d entries", self._label, len(lost))
                self._installed -= set(_without(lost, by_hand))
            there = {key_of(entry): entry for entry in found if of_jobs(key_of(entry))}
            # A guard that is there drops as well as another job's for the same QP: `adopt` says whose it is.
            needed = {key_of(entry): there.get(key_of(entry), entry) for entry in self.guards()}
            needed.update((key_of(entry), entry) for entry in self.base())
            wrong = difference(_without(found, by_hand), _without(needed.values(), by_hand))
            await _apply(client, wrong, UpdateKind.MODIFY, UpdateKind.INSERT)
            self._installed = {*_without(self._installed, needed), *needed.values()}
            await self._tidy(client)

    async def _fill(self, client: P4RuntimeClient) -> None:
        self._was_ours = False
        self._installed.clear()
        self._leftover.clear()
        await load(client, self._program)
        needed = (*self.guards(), *self.base())
        await write_base(client, needed)
        self._installed |= set(needed)

    def _change(self, *, connected: bool, state: str) -> None:
        if state != self._state:
            LOG.info("%s: %s", self._label, state)
        changed = connected != self.connected
        self._state, self._connected = state, connected
        if not connected:
            self._client = None
        if not changed:
            return
        try:
            self._on_change(self)
        except Exception:
            LOG.exception("%s: who is told of changes failed", self._label)

    # Inside

    def _new_client(self) -> P4RuntimeClient:
        """Return a connection that has not been opened; a simulation has its own."""
        return P4RuntimeClient(
            self.config.address,
            device_id=self.config.device_id,
            schema=self._program.schema,
            label=self._label,
            on_packet=self._packet_in,
            tls=self._tls,
            name=self.config.name,
        )

    def _require(self) -> P4RuntimeClient:
        if self._client is None or not self.connected:
            raise SwitchUnreachableError(f"{self._label} is not connected: {self._state}")
        return self._client

    def _require_open(self) -> P4RuntimeClient:
        """Return the open client for what any controller may do."""
        return self._open if self._open is not None else self._require()

    def _is_half_filled(self, found: Iterable[Entry]) -> bool:
        """Tell whether somebody else has loaded our program anew, without routes, which are the last."""
        *_, routes = writing_stages(self.base()) or ((),)
        return bool(routes) and set(routes).isdisjoint(found)

    def _by_hand(self, found: Iterable[Entry]) -> set[Key]:
        """Return the keys of entries that others changed meanwhile, and that sums do not depend on.

        `plan` shows these changes.
        """
        if not self._was_ours:
            return set()
        changed = {key_of(change.entry) for change in difference(found, self.written.values()).changes}
        return {key for key in changed - self._leftover.keys() if not of_jobs(key)}

    def _why(self, error: SwitchError) -> str:
        reason = str(error).removeprefix(self._label).lstrip(": ")
        if isinstance(error, SwitchUnreachableError):
            why = reason.removeprefix("cannot be reached")
            return f"unreachable{why}" if why != reason else f"unreachable: {reason}"
        if isinstance(error, ElectionIdTakenError):
            return f"another controller is primary: {reason}"
        return reason

    def _packet_in(self, message: p4r.PacketIn) -> None:
        fields = self._program.schema.packet_in(message)
        if fields.get("op") == OP_ECHO:
            if self.on_echo is not None:
                self.on_echo(fields["index"])
        else:
            self._queries.answer(fields)

    async def _tidy(self, client: P4RuntimeClient) -> None:
        """Delete entries that should be gone; those that cannot be now stay on the list."""
        if not self._leftover:
            return
        try:
            await self._delete(client, list(self._leftover.values()))
        except SwitchError as error:
            LOG.warning("%s still has %d entries too many: %s", self._label, len(self._leftover), error)

    def _remember_leftover(self, entries: Iterable[Entry]) -> None:
        self._leftover.update((key_of(entry), entry) for entry in entries)

    def _forget_leftover(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self._leftover.pop(key_of(entry), None)

    async def _delete(self, client: P4RuntimeClient, entries: Iterable[Entry]) -> None:
        for stage in deleting_stages(entries):
            try:
                await client.write([Update(UpdateKind.DELETE, entry) for entry in stage])
            except WriteError as error:
                if any(failure.code is not grpc.StatusCode.NOT_FOUND for failure in error.failures):
                    raise
            self._forget_leftover(stage)


def _ignore(found: Iterable[Entry]) -> None:
    """Do nothing."""


async def _apply(client: P4RuntimeClient, wrong: Difference, *kinds: UpdateKind) -> None:
    for kind in kinds:
        for stage in wrong.stages(kind):
            await client.write([Update(kind, entry) for entry in stage])


def _without(entries: Iterable[Entry], keys: Container[Key]) -> list[Entry]:
    return [entry for entry in entries if key_of(entry) not in keys]


def _perhaps_written(stage: Stage, error: SwitchError) -> list[Entry]:
    """Return the entries of a stage that may be in the switch after its batch has failed."""
    refused = {failure.update.entry for failure in error.failures} if isinstance(error, WriteError) else set()
    return [entry for entry in stage if entry not in refused]


def _range(what: str, first: int, count: int, limit: int) -> range:
    if first < 0 or count < 0 or first + count > limit:
        raise InvalidRequestError(f"{what}s {first}..{first + count - 1} are not within 0..{limit - 1}")
    return range(first, first + count)

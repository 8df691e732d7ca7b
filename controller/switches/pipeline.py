"""The program in a switch: pushed, read back and compared."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc
from google.protobuf import text_format

from controller.api.errors import InvalidRequestError
from controller.config import Config
from controller.entries import Entry
from controller.fabric.flows import removal_order
from controller.fabric.routes import base_entries
from controller.security.files import TlsFiles
from controller.switches.difference import difference, writing_stages
from controller.switches.p4rt import REQUEST_TIMEOUT_S, P4RuntimeClient, Pipeline, Role
from controller.switches.schema import Schema
from controller.switches.updates import ElectionIdTakenError, NotPrimaryError, SwitchError, Update, UpdateKind
from p4src import JSON_PATH, P4INFO_PATH

_READ_AGAIN = 5

# A guest's first claim is below the controller's: who only looks takes no switch from anybody.
GUEST_ELECTION_ID = 1
CONTROLLER_ELECTION_ID = 0x7034


@dataclass(frozen=True)
class Program:
    """A compiled program: p4c's output, and the names that tell it from others."""

    device_config: bytes
    schema: Schema
    sha256: str  # of the BMv2 JSON, in hexadecimal
    cookie: int  # of JSON and P4Info; P4Runtime's 64 bits for "which program is this"

    @classmethod
    def read(cls, json_path: Path = JSON_PATH, p4info_path: Path = P4INFO_PATH) -> Program:
        """Read the program in two files, by default p4src/build. Raise InvalidRequestError if it is none."""
        try:
            device_config, schema = json_path.read_bytes(), Schema.read(p4info_path)
        except OSError as error:
            raise InvalidRequestError(f"{error.filename} cannot be read: {error.strerror}") from error
        except (ValueError, text_format.ParseError) as error:
            raise InvalidRequestError(
                f"{p4info_path} is no P4Info in text form (p4c-bm2-ss --p4runtime-files FILE.txtpb): {error}"
            ) from error
        if json_path != JSON_PATH:  # a user's: parsing ours takes a while, and it is known to be one
            _require_bmv2_json(json_path, device_config)
        both = hashlib.sha256(device_config + schema.text.encode()).digest()
        return cls(
            device_config,
            schema,
            sha256=hashlib.sha256(device_config).hexdigest(),
            cookie=int.from_bytes(both[:8], "big") or 1,
        )

    def is_in(self, pipeline: Pipeline | None) -> bool:
        """Tell whether a switch runs this program; all of it is compared, not just the cookie."""
        return pipeline == Pipeline(self._p4info, self.device_config, self.cookie)

    def has_tables_of(self, pipeline: Pipeline | None) -> bool:
        """Tell whether a switch with this pipeline has the same tables as this program."""
        return pipeline is not None and pipeline.p4info == self._p4info

    @property
    def _p4info(self) -> bytes:
        return self.schema.p4info.SerializeToString(deterministic=True)


def _require_bmv2_json(path: Path, contents: bytes) -> None:
    try:
        whole = json.loads(contents)
    except ValueError as error:
        raise InvalidRequestError(f"{path} is no JSON: {error}") from error
    if not isinstance(whole, dict) or not {"parsers", "pipelines"} <= whole.keys():
        raise InvalidRequestError(
            f"{path} is no program for BMv2: it lacks parsers and pipelines (p4c-bm2-ss -o FILE.json)"
        )


@functools.cache
def shipped_program() -> Program:
    """Return the program that this package came with."""
    return Program.read()


@dataclass(frozen=True)
class PushResult:
    """Result of a push. `replaced`: the program before, in words; `entries`: the number written after it."""

    address: str
    device_id: int
    program_sha256: str
    cookie: int
    election_id: int
    replaced: str
    entries: int


async def running_on(client: P4RuntimeClient, program: Program) -> Pipeline | None:
    """Return the pipeline config of a switch; read again if only the cookie is that of `program`.

    The cookie is made from the contents, so other contents with it are a mistake: simple_switch_grpc mixes up
    what it reads back for two clients at a time.
    """
    running = await client.pipeline()
    for _ in range(_READ_AGAIN):
        if running is None or program.is_in(running) or running.cookie != program.cookie:
            break
        running = await client.pipeline()
    return running


async def load(client: P4RuntimeClient, program: Program) -> None:
    """Push a program and read it back. Raise SwitchError if the switch then has something else."""
    if await client.pipeline() is not None:
        # BMv2's replication engine outlives a program: groups written again would have each member twice.
        await client.write([Update(UpdateKind.DELETE, group) for group in await client.read_groups()])
    await client.set_pipeline(program.device_config, cookie=program.cookie)
    if not program.is_in(await running_on(client, program)):
        raise SwitchError(
            f"{client.label} took the program but reads back another one: somebody else pushes to it, or "
            "it does not keep what it is given",
            code=grpc.StatusCode.ABORTED,
        )


async def write_base(client: P4RuntimeClient, base: Sequence[Entry]) -> None:
    """Write base entries and guards, routes last, and read them back; the switch has just been loaded."""
    for stage in writing_stages(base):
        await client.write([Update(UpdateKind.INSERT, entry) for entry in stage])
    for change in difference(await client.read_entries(), base).changes:
        if change.after is not None:
            raise SwitchError(f"{client.label} took its base entries but does not read back {change.after}")


async def push_to(
    address: str,
    *,
    device_id: int = 1,
    force: bool = False,
    config: Config | None = None,
    program: Program | None = None,
    timeout_s: float = REQUEST_TIMEOUT_S,
    tls: TlsFiles | None = None,
) -> PushResult:
    """Push to a running P4Runtime switch, HOST:PORT or unix:PATH; with a config also the rack's entries.

    A switch that has a primary is left alone unless `force`: then a higher election id takes over for as long
    as the push takes, and the jobs that ran there lose their entries. With a config, the guards among them
    come back before the rack's routes do, unless the program that was there has other tables.

    Raise SwitchError that says what went wrong: NotPrimaryError if `force` is needed, SwitchUnreachableError
    if nothing answers there in `timeout_s` (which loading the program may exceed). `tls`: an operator's
    certificate for switches.
    """
    program = program or shipped_program()
    base = _base_of(config, address, device_id)
    client, role = await _enter(
        lambda: P4RuntimeClient(
            address, device_id=device_id, schema=program.schema, timeout_s=timeout_s, tls=tls
        ),
        force=force,
    )
    async with client:
        before = await client.pipeline()
        # Without routes nothing is forwarded, and who writes them later writes guards first.
        keeps_guards = base and program.has_tables_of(before)
        guards = removal_order(await client.read_entries())[1] if keeps_guards else []
        await load(client, program)
        await write_base(client, [*guards, *base])
    return PushResult(
        address=address,
        device_id=device_id,
        program_sha256=program.sha256,
        cookie=program.cookie,
        election_id=role.election_id,
        replaced=_in_words(before, program),
        entries=len(base) + len(guards),
    )


async def _enter(connect: Callable[[], P4RuntimeClient], *, force: bool) -> tuple[P4RuntimeClient, Role]:
    """Become primary: first with an id below every controller's, to see who is there, higher with force."""
    claim = GUEST_ELECTION_ID
    while True:
        client = connect()
        try:
            role = await client.open(claim)
            if not role.primary:
                if not force:
                    raise _taken(client.label, role.election_id)
                role = await client.claim(role.election_id + 1)
                if not role.primary:
                    raise _taken(client.label, role.election_id)
            return client, role
        except ElectionIdTakenError as error:  # another guest
            await client.close()
            if not force:
                raise _taken(client.label, claim) from error
            claim += 1
        except BaseException:
            await client.close()
            raise


def _taken(label: str, election_id: int) -> NotPrimaryError:
    return NotPrimaryError(
        f"{label} has a primary controller (election id {election_id}): stop it, or push with force, which "
        "takes the entries of its jobs away"
    )


def _base_of(config: Config | None, address: str, device_id: int) -> list[Entry]:
    if config is None:
        return []
    switch = next((switch for switch in config.switches if switch.address == address), None)
    if switch is None:
        known = ", ".join(switch.address for switch in config.switches)
        raise InvalidRequestError(f"the configuration has no switch at {address}; known are {known}")
    if switch.device_id != device_id:
        raise InvalidRequestError(
            f"the configuration has device id {switch.device_id} for {address}, asked for is {device_id}"
        )
    return base_entries(config, switch)


def _in_words(before: Pipeline | None, program: Program) -> str:
    if before is None:
        return "nothing"
    if program.is_in(before):
        return "the same program"
    return f"another program (cookie {before.cookie:#018x})"

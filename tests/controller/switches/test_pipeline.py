from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from ipaddress import IPv4Address
from pathlib import Path

import grpc
import pytest

from controller.api.errors import InvalidRequestError
from controller.config import Config, HostConfig, SwitchConfig
from controller.switches.p4rt import P4RuntimeClient
from controller.switches.pipeline import Program, load, push_to, shipped_program
from controller.switches.schema import Schema
from controller.switches.updates import (
    NotPrimaryError,
    SwitchError,
    SwitchUnreachableError,
    Update,
    UpdateKind,
)
from p4src import JSON_PATH, P4INFO_PATH
from tests.controller.running_switch import DEVICE_ID, HOSTS, RunningSwitch, free_port, run_async

pytestmark = pytest.mark.slow  # switch processes come and go


def client(process: RunningSwitch) -> P4RuntimeClient:
    return P4RuntimeClient(process.address, device_id=DEVICE_ID, schema=shipped_program().schema)


def other_program() -> Program:
    """Return the shipped program's code under another cookie."""
    shipped = shipped_program()
    return Program(shipped.device_config + b"\n", shipped.schema, "0" * 64, 0x1234)


def test_the_cookie_tells_programs_apart(tmp_path: Path) -> None:
    shipped = Program.read()
    assert shipped.cookie == Program.read().cookie != 0
    changed = tmp_path / "p4info.txtpb"
    changed.write_text(P4INFO_PATH.read_text() + "\n")
    assert Program.read(JSON_PATH, changed).cookie != shipped.cookie
    assert Program.read(JSON_PATH, changed).sha256 == shipped.sha256


async def test_push_replaces_what_was_there_and_says_what_it_was(switch_process: RunningSwitch) -> None:
    switch_process.restart()
    first = await push_to(switch_process.address)
    assert first.replaced == "nothing"
    assert (first.program_sha256, first.entries) == (shipped_program().sha256, 0)
    assert (await push_to(switch_process.address)).replaced == "the same program"
    await push_to(switch_process.address, program=other_program())
    again = await push_to(switch_process.address)
    assert again.replaced == "another program (cookie 0x0000000000001234)"
    async with client(switch_process) as reader:
        assert (await reader.open(1)).primary, "the push has left"
        assert shipped_program().is_in(await reader.pipeline())
        assert await reader.cookie() == again.cookie
        assert await reader.read_entries() == set()


async def test_push_with_a_config_writes_the_rack(switch_process: RunningSwitch) -> None:
    config = Config(switches=(switch_process.config,), hosts=HOSTS)
    for _ in range(2):
        result = await push_to(switch_process.address, config=config)
        assert result.entries == len(switch_process.base)
    async with client(switch_process) as reader:
        await reader.open(1)
        assert await reader.read_entries() == set(switch_process.base)


async def test_a_primary_is_only_taken_over_from_by_force(switch_process: RunningSwitch) -> None:
    entry = switch_process.base[0]
    async with client(switch_process) as controller:
        assert (await controller.open(1000)).primary
        await load(controller, shipped_program())
        await controller.write([Update(UpdateKind.INSERT, entry)])
        with pytest.raises(NotPrimaryError, match=r"election id 1000.*force"):
            await push_to(switch_process.address)
        assert await controller.read_entries() == {entry}
        assert (await push_to(switch_process.address, force=True)).election_id == 1001
        assert await controller.read_entries() == set()
        roles = [(await controller.next_role()).primary for _ in range(2)]
        assert roles == [False, True]


async def test_two_guests_with_one_election_id(switch_process: RunningSwitch) -> None:
    async with client(switch_process) as guest:
        assert (await guest.open(1)).primary
        with pytest.raises(NotPrimaryError, match="force"):
            await push_to(switch_process.address)
        assert (await push_to(switch_process.address, force=True)).election_id == 2


def test_a_wrong_device_id(switch_process: RunningSwitch) -> None:
    with pytest.raises(SwitchError, match="has no device id 77"):
        run_async(push_to(switch_process.address, device_id=77))


def test_a_program_that_the_switch_cannot_run(switch_process: RunningSwitch) -> None:
    broken = Program(b"{}", shipped_program().schema, "0" * 64, 1)
    # simple_switch_grpc takes it, and refuses what comes next.
    with pytest.raises(SwitchError, match=f"^switch at {switch_process.address} refused"):
        run_async(push_to(switch_process.address, program=broken))
    switch_process.restart()


class Forgetful(P4RuntimeClient):
    """Reads back another cookie than the one that was pushed."""

    async def set_pipeline(self, device_config: bytes, *, cookie: int) -> None:
        await super().set_pipeline(device_config, cookie=cookie + 1)


async def test_a_program_that_reads_back_differently_is_an_error(switch_process: RunningSwitch) -> None:
    schema = Schema.read(P4INFO_PATH)
    async with Forgetful(switch_process.address, device_id=DEVICE_ID, schema=schema) as switch:
        await switch.open(1)
        with pytest.raises(SwitchError, match="reads back another"):
            await load(switch, shipped_program())


def test_the_config_must_know_the_switch() -> None:
    known = SwitchConfig(name="s1", device_id=1, address="127.0.0.1:1")
    host = HostConfig(name="h", ip=IPv4Address("10.0.0.1"), mac="02:00:00:00:00:01", switch="s1", port=1)
    config = Config(switches=(known,), hosts=(host,))
    with pytest.raises(InvalidRequestError, match=r"no switch at 127.0.0.1:2; known are 127.0.0.1:1"):
        run_async(push_to("127.0.0.1:2", config=config))
    with pytest.raises(InvalidRequestError, match=r"device id 1 .* asked for is 2"):
        run_async(push_to("127.0.0.1:1", config=config, device_id=2))


# Ports where no P4Runtime switch is


def test_nothing_listens() -> None:
    port = free_port()
    with pytest.raises(SwitchUnreachableError, match=f"^switch at 127.0.0.1:{port} cannot be reached"):
        run_async(push_to(f"127.0.0.1:{port}"))


def test_something_listens_and_says_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(SwitchUnreachableError, match=r"did not answer within 0.5 s: check that"):
            run_async(push_to(f"127.0.0.1:{port}", timeout_s=0.5))


def test_a_web_server_listens() -> None:
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            with pytest.raises(SwitchError, match="no P4Runtime switch: an HTTP server"):
                run_async(push_to(f"127.0.0.1:{server.server_port}"))
        finally:
            server.shutdown()


def test_a_grpc_server_of_something_else_listens() -> None:
    server = grpc.server(ThreadPoolExecutor(max_workers=1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with pytest.raises(SwitchError, match="no P4Runtime switch: a gRPC server without that service"):
            run_async(push_to(f"127.0.0.1:{port}"))
    finally:
        server.stop(None)

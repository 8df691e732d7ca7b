"""TLS between the service, workers, operators and switches; what is said where it does not come about."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from finsy.proto import p4r, p4r_grpc

from controller.api import controller_pb2 as pb
from controller.api.admin import AdminClient
from controller.api.errors import ControllerError, UnreachableError
from controller.api.rpc import ControllerStub
from controller.config import ConfigError, parse_config
from controller.security import diagnosis
from controller.security.certificates import Wanted, make
from controller.security.channels import open_channel
from controller.security.files import TlsFiles
from controller.security.places import operator_directory, switch_directory, worker_directory
from controller.switches.p4rt import P4RuntimeClient
from controller.switches.pipeline import shipped_program
from controller.switches.updates import SwitchUnreachableError
from host_agent.controller_session import ControllerSession
from host_agent.errors import ControllerUnreachableError, JobRefusedError
from tests.controller.running_switch import free_port, run_async
from tests.controller.service.served import CONFIG, request_of
from tests.security.service import Service
from topologies.switches import tls_options

EVERYBODY = Wanted(
    controller=["controller.lan"],
    switches={"s1": ["127.0.0.1"], "s2": ["127.0.0.1"]},
    workers=[host.name for host in CONFIG.hosts],
    operators=["admin"],
)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("ours")
    make(root, EVERYBODY)
    return root


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates of another cluster."""
    root = tmp_path_factory.mktemp("others")
    make(root, EVERYBODY)
    return root


@pytest.fixture(scope="module")
def expired(ours: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ours, the authorities of which are the same, but whose time is over."""
    root = tmp_path_factory.mktemp("expired") / "certs"
    shutil.copytree(ours, root)
    make(root, EVERYBODY, force=True, days=0)
    return root


@pytest.fixture
def service(ours: Path, tmp_path: Path) -> Iterator[Service]:
    with Service(tmp_path, TlsFiles.of(ours / "controller")) as running:
        yield running


def refused(address: str, tls: TlsFiles | None, *, timeout_s: float = 10.0) -> str:
    """Return the error that a refused worker is told."""
    try:
        session = ControllerSession(address, tls=tls)
    except ControllerUnreachableError as error:
        return str(error)
    with pytest.raises((ControllerUnreachableError, JobRefusedError)) as told:
        session.join(request_of(0, size=1), timeout_s=timeout_s)
    session.close()
    return str(told.value)


def test_workers_and_operators_with_certificates_are_served(service: Service, ours: Path) -> None:
    session = ControllerSession(
        service.address, tls=TlsFiles.of(worker_directory(ours, CONFIG.hosts[0].name))
    )
    assert session.join(request_of(0, size=1), timeout_s=10).job_id
    session.up(timeout_s=10)
    with AdminClient(service.address, tls=TlsFiles.of(operator_directory(ours, "admin"))) as admin:
        assert [job.spec.name for job in admin.list_jobs()] == ["train"]
    session.leave(timeout_s=10)
    session.close()


def test_the_unix_socket_is_its_owners_and_needs_no_certificate(service: Service) -> None:
    with AdminClient(service.unix) as admin:
        assert admin.list_jobs() == []
    assert Path(service.unix.removeprefix("unix:")).stat().st_mode & 0o077 == 0


def test_a_worker_may_do_nothing_but_work(service: Service, ours: Path) -> None:
    tls = TlsFiles.of(worker_directory(ours, CONFIG.hosts[0].name))
    with AdminClient(service.address, tls=tls) as worker:
        for call in (
            lambda: worker.create_job("mine", 2),
            lambda: worker.delete_job("train"),
            lambda: worker.apply("{}"),
            lambda: worker.push(force=True),
            worker.rollback,
            worker.list_jobs,
            worker.status,
            worker.slots,
        ):
            with pytest.raises(ControllerError, match="takes the certificate of an operator") as error:
                call()
            assert "worker " in str(error.value)
    with AdminClient(service.unix) as admin:
        assert admin.list_jobs() == []


def test_an_operator_is_no_worker(service: Service, ours: Path) -> None:
    said = refused(service.address, TlsFiles.of(operator_directory(ours, "admin")))
    assert "takes the certificate of a worker, this is one of operator admin" in said


def test_a_worker_cannot_say_that_it_is_on_another_host(service: Service, ours: Path) -> None:
    said = refused(service.address, TlsFiles.of(worker_directory(ours, CONFIG.hosts[1].name)))
    assert f"certificate is of worker {CONFIG.hosts[1].name}" in said


@pytest.mark.parametrize("how", ["plain", "others", "expired", "missing"])
def test_who_is_not_let_in_is_told_why(
    service: Service, how: str, others: Path, expired: Path, tmp_path: Path
) -> None:
    name = CONFIG.hosts[0].name
    tls, words = {
        "plain": (None, "talks TLS only, and this side has no certificate: set P4REDUCE_TLS_DIR"),
        "others": (TlsFiles.of(worker_directory(others, name)), "is not signed by the authority"),
        "expired": (TlsFiles.of(worker_directory(expired, name)), "has expired on"),
        "missing": (TlsFiles.of(tmp_path / "nothing"), "cannot read"),
    }[how]
    assert words in refused(service.address, tls)
    with pytest.raises(UnreachableError) as error, AdminClient(service.address, tls=tls) as admin:
        admin.list_jobs()
    assert words in str(error.value)


def test_a_certificate_that_the_server_does_not_know_is_named(
    service: Service, ours: Path, others: Path
) -> None:
    """Show what another cluster's authority has signed, while the worker trusts the controller."""
    theirs = TlsFiles.of(worker_directory(others, CONFIG.hosts[0].name))
    mixed = replace(theirs, ca=ours / "authority" / "ca.pem")
    channel = grpc.secure_channel(
        service.address,
        grpc.ssl_channel_credentials(
            (mixed.ca or Path()).read_bytes(), mixed.key.read_bytes(), mixed.cert.read_bytes()
        ),
    )
    with channel, pytest.raises(grpc.RpcError) as error:
        ControllerStub(channel).ListJobs(pb.ListJobsRequest(), timeout=10)
    assert error.value.code() is grpc.StatusCode.UNAVAILABLE


def test_a_server_without_tls_is_named(ours: Path, tmp_path: Path) -> None:
    with Service(tmp_path, None) as plain:
        said = refused(plain.address, TlsFiles.of(worker_directory(ours, CONFIG.hosts[0].name)))
    assert "does not talk TLS, and this side is to" in said


def test_a_server_whose_time_is_over_does_not_start(expired: Path, tmp_path: Path) -> None:
    with (
        pytest.raises(Exception, match="has expired on"),
        Service(tmp_path, TlsFiles.of(expired / "controller")),
    ):
        pass


def test_a_name_that_the_certificate_does_not_have(service: Service, ours: Path) -> None:
    tls = TlsFiles.of(operator_directory(ours, "admin"))
    said = diagnosis.why(service.address, tls, what="the controller", name="elsewhere.lan")
    assert said is not None
    assert "the certificate of the controller is not for elsewhere.lan" in said
    assert diagnosis.why(service.address, tls, what="the controller", name="controller.lan") is None


def test_garbage_on_the_port_harms_nobody(service: Service, ours: Path) -> None:
    host, port = service.address.split(":")
    for garbage in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01" + bytes(512), b"\0" * 4096, b""):
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(garbage)
    with AdminClient(service.address, tls=TlsFiles.of(operator_directory(ours, "admin"))) as admin:
        assert admin.list_jobs() == []


def test_the_configuration_names_all_three_files() -> None:
    document = {
        "switches": [{"name": "s1", "device_id": 1, "address": "127.0.0.1:1"}],
        "hosts": [{"name": "h1", "ip": "10.0.0.1", "mac": "02:00:00:00:00:01", "port": 1}],
    }
    tls = {"ca": "/a", "cert": "/b", "key": "/c"}
    assert parse_config({**document, "tls": tls}).tls == TlsFiles(
        ca=Path("/a"), cert=Path("/b"), key=Path("/c")
    )
    with pytest.raises(ConfigError, match="has no 'ca': without it everybody would be let in"):
        parse_config({**document, "tls": {"cert": "/b", "key": "/c"}})
    with pytest.raises(ConfigError, match="switch_tls has no 'key'"):
        parse_config({**document, "switch_tls": {"ca": "/a", "cert": "/b"}})
    with pytest.raises(ConfigError, match=r"tls\.ca is 1, not the path of a file"):
        parse_config({**document, "tls": {**tls, "ca": 1}})


_BMV2 = pytest.param(
    "bmv2",
    marks=[
        pytest.mark.bmv2,
        pytest.mark.skipif(
            shutil.which("simple_switch_grpc") is None, reason="no simple_switch_grpc on the PATH"
        ),
    ],
)


# Switches: simple_switch_grpc and our own alike.


@pytest.fixture(scope="module", params=["embedded", _BMV2])
def switch(
    request: pytest.FixtureRequest, ours: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    address = f"127.0.0.1:{free_port()}"
    tls = tls_options(TlsFiles.of(switch_directory(ours, "s1")))
    directory = tmp_path_factory.mktemp("switch")
    command = [sys.executable, "-m", "soft_switch", "--no-p4", "--"]
    if request.param == "bmv2":
        notifications = f"ipc://{directory}/notifications.ipc"
        command = ["simple_switch_grpc", "-L", "off", "--no-p4", "--notifications-addr", notifications]
        command += ["--thrift-port", str(free_port()), "--"]
    log = directory / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--grpc-server-addr", address, *tls], stdout=output, stderr=output
        )
    channel = open_channel(
        address, TlsFiles.of(operator_directory(ours, "admin") / "switches"), options=(), name="s1"
    )
    with channel:
        grpc.channel_ready_future(channel).result(timeout=60)
    yield address
    process.terminate()
    process.wait()


def opened(address: str, tls: TlsFiles | None, *, name: str = "s1") -> None:
    async def session() -> None:
        client = P4RuntimeClient(
            address, device_id=0, schema=shipped_program().schema, label="switch s1", tls=tls, name=name
        )
        async with client:
            assert (await client.open(1)).primary
            assert await client.pipeline() is None

    run_async(session())


@pytest.mark.slow
def test_the_controller_and_operators_get_in(switch: str, ours: Path) -> None:
    opened(switch, TlsFiles.of(ours / "controller" / "switches"))
    opened(switch, TlsFiles.of(operator_directory(ours, "admin") / "switches"))


def test_a_workers_certificate_programs_no_switch(switch: str, ours: Path) -> None:
    worker = TlsFiles.of(worker_directory(ours, "h1"))
    with pytest.raises(SwitchUnreachableError, match="is not signed by the authority"):
        opened(switch, worker)
    # Not even where it takes the switch for what it is: the switch knows no worker.
    credentials = grpc.ssl_channel_credentials(
        (ours / "authority" / "switches-ca.pem").read_bytes(),
        worker.key.read_bytes(),
        worker.cert.read_bytes(),
    )
    with grpc.secure_channel(switch, credentials) as channel, pytest.raises(grpc.RpcError):
        p4r_grpc.P4RuntimeStub(channel).Capabilities(p4r.CapabilitiesRequest(), timeout=10)


def test_it_has_to_be_the_switch_that_was_meant(switch: str, ours: Path) -> None:
    with pytest.raises(SwitchUnreachableError, match="the certificate of switch s1 is not for s2"):
        opened(switch, TlsFiles.of(ours / "controller" / "switches"), name="s2")


def test_who_talks_no_tls_is_told(switch: str) -> None:
    with pytest.raises(SwitchUnreachableError, match="switch s1 talks TLS only"):
        opened(switch, None)


def test_a_switch_on_a_unix_socket_has_tls_too(ours: Path, tmp_path: Path) -> None:
    from soft_switch.dataplane import DataPlane
    from soft_switch.server import P4RuntimeServer, ServerTls

    tls = ServerTls(files=TlsFiles.of(switch_directory(ours, "s1")), client_certificates=True)
    plane = DataPlane()
    server = P4RuntimeServer(plane, address=f"unix:{tmp_path}/s1.sock", tls=tls)
    server.start()
    try:
        opened(server.address, TlsFiles.of(ours / "controller" / "switches"))
        with pytest.raises(SwitchUnreachableError, match="talks TLS only"):
            opened(server.address, None)
    finally:
        server.stop()
        plane.close()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--grpc-server-ssl"], "needs --grpc-server-cert and --grpc-server-key"),
        (["--grpc-server-cert", "x"], "P4Runtime would be served without TLS"),
        (["--grpc-server-with-client-auth"], "P4Runtime would be served without TLS"),
        (
            [
                "--grpc-server-ssl",
                "--grpc-server-cert=a",
                "--grpc-server-key=b",
                "--grpc-server-with-client-auth",
            ],
            "needs --grpc-server-cacert",
        ),
    ],
)
def test_half_of_the_options_is_refused(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from soft_switch.cli import parse_arguments

    with pytest.raises(SystemExit):
        parse_arguments(["--no-p4", *words])
    assert said in capsys.readouterr().err


def test_a_switch_whose_certificate_is_missing_does_not_start(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "soft_switch", "--no-p4", "--", "--grpc-server-addr", "127.0.0.1:0"),
            *tls_options(TlsFiles.of(tmp_path)),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert f"cannot read {tmp_path}/ca.pem" in done.stderr

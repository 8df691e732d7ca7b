"""Certificates: who gets which, that nothing is overwritten, what is said where files do not fit."""

from __future__ import annotations

import stat
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from controller.security.certificates import Wanted, make, show
from controller.security.channels import load
from controller.security.checking import read_certificate, signed_by
from controller.security.files import TlsError, TlsFiles, tls_files
from controller.security.places import operator_directory, switch_directory, worker_directory
from controller.security.roles import Identity, Role, identity_in
from p4reduce.cli.app import run

EVERYBODY = Wanted(
    controller=["10.9.9.9"], switches={"s1": ["10.0.0.1"]}, workers=["h1", "h2"], operators=["admin"]
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("certificates")
    make(root, EVERYBODY)
    return root


def test_each_machine_gets_files_that_fit_together(made: Path) -> None:
    for directory in (
        made / "controller",
        made / "controller" / "switches",
        switch_directory(made, "s1"),
        worker_directory(made, "h2"),
        operator_directory(made, "admin"),
        operator_directory(made, "admin") / "switches",
    ):
        assert load(TlsFiles.of(directory)).cert.startswith(b"-----BEGIN CERTIFICATE-----")
    owners = {str(shown.path.parent.relative_to(made)): shown.owner for shown in show(made)}
    assert owners["workers/h2"] == "worker h2"
    assert owners["switches/s1"] == "switch s1"
    assert owners["operators/admin/switches"] == "operator admin"


def test_no_worker_is_certified_by_the_authority_of_the_switches(made: Path) -> None:
    switches = read_certificate(made / "authority" / "switches-ca.pem")
    worker = read_certificate(worker_directory(made, "h1") / "cert.pem")
    assert not signed_by(worker, switches)
    assert signed_by(read_certificate(switch_directory(made, "s1") / "cert.pem"), switches)


def test_keys_are_for_their_owner_only(made: Path) -> None:
    keys = [*made.rglob("key.pem"), *(made / "authority").glob("*-key.pem")]
    assert len(keys) == 9
    for key in keys:
        assert stat.S_IMODE(key.stat().st_mode) == 0o600, key


def test_certificates_are_replaced_only_where_that_is_asked_for(tmp_path: Path) -> None:
    make(tmp_path, Wanted(workers=["h1"]))
    authority = (tmp_path / "authority" / "ca.pem").read_bytes()
    before = (tmp_path / "workers" / "h1" / "cert.pem").read_bytes()
    with pytest.raises(TlsError, match="workers/h1 already: --force"):
        make(tmp_path, Wanted(workers=["h2", "h1"]))
    assert not (tmp_path / "workers" / "h2").exists()
    make(tmp_path, Wanted(workers=["h2"]))
    make(tmp_path, Wanted(workers=["h1"]), force=True)
    assert (tmp_path / "workers" / "h1" / "cert.pem").read_bytes() != before
    assert (tmp_path / "authority" / "ca.pem").read_bytes() == authority


def test_files_that_do_not_fit_are_said_to_be(made: Path, tmp_path: Path) -> None:
    h1, h2 = TlsFiles.of(worker_directory(made, "h1")), TlsFiles.of(worker_directory(made, "h2"))
    with pytest.raises(TlsError, match=r"cannot read .*nothing/ca.pem: No such file.*p4reduce certs"):
        load(TlsFiles.of(tmp_path / "nothing"))
    with pytest.raises(TlsError, match=r"h2/key.pem is not the key of the certificate .*h1/cert.pem"):
        load(TlsFiles(ca=h1.ca, cert=h1.cert, key=h2.key))
    with pytest.raises(TlsError, match="is not signed by the authority"):
        load(TlsFiles(ca=made / "authority" / "switches-ca.pem", cert=h1.cert, key=h1.key))
    with pytest.raises(TlsError, match="holds no certificate in PEM"):
        load(TlsFiles(ca=h1.ca, cert=h1.key, key=h1.key))
    with pytest.raises(TlsError, match="is no private key"):
        load(TlsFiles(ca=h1.ca, cert=h1.cert, key=h1.cert))
    later = datetime.now(timezone.utc) + timedelta(days=400)
    with pytest.raises(
        TlsError, match=r"has expired on 20.* UTC: make new ones with 'p4reduce certs make --force'"
    ):
        load(h1, now=later)
    with pytest.raises(TlsError, match="check this machine's clock"):
        load(h1, now=later - timedelta(days=500))


def test_the_environment_says_which_certificate(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("P4REDUCE_TLS_DIR", raising=False)
    assert tls_files(None) is None
    monkeypatch.setenv("P4REDUCE_TLS_DIR", str(worker_directory(made, "h1")))
    assert tls_files(None) == TlsFiles.of(worker_directory(made, "h1"))
    assert tls_files("") is None


@pytest.mark.parametrize("name", ["", "a b", "../h1", "h1/x", "-h", "x" * 64])
def test_names_are_of_letters_digits_and_little_else(name: str, tmp_path: Path) -> None:
    with pytest.raises(TlsError, match="is no name for a worker"):
        make(tmp_path, Wanted(workers=[name]))
    assert not list(tmp_path.iterdir())


def test_who_a_certificate_is_of() -> None:
    worker = Identity(Role.WORKER, "h1")
    assert identity_in(["10.0.0.1", worker.uri]) == worker
    assert identity_in(["h1"]) is None
    assert identity_in(["spiffe://elsewhere/worker/h1"]) is None
    assert identity_in(["spiffe://p4reduce/root/h1"]) is None
    assert identity_in([worker.uri, Identity(Role.OPERATOR, "h1").uri]) is None


def test_the_command_makes_and_shows_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = str(tmp_path / "certs")
    words = [
        "certs",
        "make",
        directory,
        "--controller",
        "10.1.1.1",
        "--switch",
        "s1=10.2.2.2",
        "--worker",
        "h1",
    ]
    assert run(words) == 0
    assert run(words) == 1
    assert "already: --force makes new ones" in capsys.readouterr().err
    assert run(["certs", "show", directory]) == 0
    shown = capsys.readouterr().out
    assert "worker h1" in shown
    assert "10.2.2.2" in shown
    assert run(["certs", "show", str(tmp_path / "none")]) == 1
    assert "there are no certificates in" in capsys.readouterr().err

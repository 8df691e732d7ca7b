"""Reachability of package registries, asked of our own servers; nothing here leaves this machine."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from topologies.errors import TopologyError
from topologies.machines import registries
from topologies.machines.registries import MIRROR

pytestmark = pytest.mark.slow


class Registry(ThreadingHTTPServer):
    """Answers everything with `code`, and keeps what it was asked for."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.code = 200
        self.asked: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/debian"


class Answer(BaseHTTPRequestHandler):
    """The same one to everything."""

    server: Registry

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        self.send_response(self.server.code)
        self.send_header("Content-Type", "text/html")
        self.end_headers()

    def log_message(self, format: str, *words: object) -> None:
        """Say nothing."""


@pytest.fixture(autouse=True)
def _as_a_user_without_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX", MIRROR):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def registry() -> Iterator[Registry]:
    """A registry that runs."""
    with Registry() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))  # seconds until it sees its end
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def nowhere() -> str:
    """The address of a registry that is gone."""
    with Registry() as server:
        return server.url


_CODES = [(200, True), (404, True), (403, False), (407, False), (503, False)]


@pytest.mark.parametrize(("code", "reachable"), _CODES)
def test_a_debian_mirror(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, code: int, reachable: bool
) -> None:
    monkeypatch.setenv(MIRROR, registry.url)
    registry.code = code
    assert registries.debian_reachable("bookworm") is reachable
    assert registry.asked == ["/debian/dists/bookworm/InRelease"]


def test_a_debian_mirror_that_is_gone(nowhere: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for mirror in (nowhere, "http://no-such-host.invalid/debian", f"file://{tmp_path}"):
        monkeypatch.setenv(MIRROR, mirror)
        assert not registries.debian_reachable("bookworm")


@pytest.mark.parametrize(("code", "reachable"), _CODES)
def test_the_mirror_of_a_machine_that_has_none_is_debootstraps(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: int, reachable: bool
) -> None:
    monkeypatch.setattr(registries, "debian_mirror", list)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert registries.debian_reachable("bookworm")  # no debootstrap that could name one
    script = tmp_path / "debootstrap"
    script.write_text(f'#!/bin/sh\nDEF_MIRROR="{registry.url}"\nDEF_HTTPS_MIRROR="https://x.invalid"\n')
    script.chmod(0o755)
    registry.code = code
    assert registries.debian_reachable("bookworm") is reachable
    assert registry.asked == ["/debian/dists/bookworm/InRelease"]


def test_the_mirror_can_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MIRROR, "https://mirror.invalid/debian")
    assert registries.debian_mirror() == ["https://mirror.invalid/debian"]
    monkeypatch.setenv(MIRROR, "mirror.invalid")
    with pytest.raises(TopologyError, match=f"{MIRROR} is mirror.invalid: a mirror's URL starts with http"):
        registries.debian_mirror()


@pytest.mark.parametrize(("code", "reachable"), [(200, True), (404, True), (403, False)])
def test_pips_index(registry: Registry, monkeypatch: pytest.MonkeyPatch, code: int, reachable: bool) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", registry.url)
    registry.code = code
    assert registries.python_reachable() is reachable
    assert registry.asked == ["/debian/numpy/"]


def test_a_pip_index_that_is_gone(nowhere: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", nowhere)
    assert not registries.python_reachable()

"""Metrics over HTTP: where, what, and that nothing is left."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families

from controller.telemetry import address
from controller.telemetry.address import Address, MetricsError
from controller.telemetry.client import fetch
from controller.telemetry.server import MetricsServer


def seven() -> Iterator[Metric]:
    yield GaugeMetricFamily("p4reduce_seven", "Seven.", value=7)


def test_over_tcp() -> None:
    with MetricsServer("127.0.0.1:0", seven) as server:
        text = urllib.request.urlopen(f"http://{server.address}/metrics", timeout=5).read().decode()
        assert text == fetch(server.address)
    (family,) = text_string_to_metric_families(text)
    assert (family.name, family.type, family.samples[0].value) == ("p4reduce_seven", "gauge", 7)
    with pytest.raises(MetricsError, match="no metrics from"):
        fetch(server.address)


def test_over_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "m.sock"
    with MetricsServer(f"unix:{path}", seven) as server:
        assert "p4reduce_seven 7.0" in fetch(Address(path=path))
        with pytest.raises(MetricsError, match="Address already in use"):
            MetricsServer(f"unix:{path}", seven)
        assert "p4reduce_seven 7.0" in fetch(Address(path=path))
    server.close()
    assert not path.exists()


def test_a_socket_that_a_killed_process_left_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "m.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
        left.listen()
    with MetricsServer(f"unix:{path}", seven):
        assert "p4reduce_seven" in fetch(Address(path=path))


def test_a_port_in_use_is_refused() -> None:
    refused = pytest.raises(
        MetricsError, match=r"cannot serve metrics on 127\.0\.0\.1:\d+: Address .* in use;"
    )
    with MetricsServer("127.0.0.1:0", seven) as server, refused:
        MetricsServer(str(server.address), seven)


def test_the_process_itself() -> None:
    with MetricsServer("127.0.0.1:0", seven, process=True) as server:
        names = {family.name for family in text_string_to_metric_families(fetch(server.address))}
    assert {"p4reduce_process_cpu_seconds", "p4reduce_process_resident_memory_bytes"} <= names
    assert all(name.startswith("p4reduce_") for name in names)


def test_what_cannot_be_collected_is_an_error_of_the_request_only() -> None:
    answers = iter([MetricsError("the controller is busy"), None])

    def sometimes() -> Iterator[Metric]:
        error = next(answers)
        if error is not None:
            raise error
        yield from seven()

    with MetricsServer("127.0.0.1:0", sometimes) as server:
        with pytest.raises(MetricsError, match="503 the controller is busy"):
            fetch(server.address)
        assert "p4reduce_seven" in fetch(server.address)


def test_there_is_nothing_else() -> None:
    refused = pytest.raises(urllib.error.HTTPError, match="404")
    with MetricsServer("127.0.0.1:0", seven) as server, refused:
        urllib.request.urlopen(f"http://{server.address}/secrets", timeout=5)


def test_a_client_that_goes_away_harms_nobody() -> None:
    with MetricsServer("127.0.0.1:0", seven) as server:
        server.address.connect(1.0).close()
        assert "p4reduce_seven" in fetch(server.address)


@pytest.mark.parametrize(
    ("text", "shown"),
    [("127.0.0.1:9464", "127.0.0.1:9464"), ("[::1]:1", "[::1]:1"), ("unix:/a/b", "unix:/a/b")],
)
def test_addresses(text: str, shown: str) -> None:
    assert str(address.parse(text)) == shown


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("9464", "say HOST:PORT"),
        (":9464", "say HOST:PORT"),
        ("localhost:http", "say HOST:PORT"),
        ("localhost:65536", "say HOST:PORT"),
        ("unix:relative", "begins with /"),
        (f"unix:/{'x' * 107}", "at most 107 bytes"),
    ],
)
def test_no_addresses(text: str, why: str) -> None:
    with pytest.raises(MetricsError, match=why):
        address.parse(text)


def test_who_is_not_asked_imports_nothing() -> None:
    code = (
        "import sys; from controller.telemetry.server import MetricsServer\n"
        "s = MetricsServer('127.0.0.1:0', list);"
        "print([m for m in ('prometheus_client', 'http.server') if m in sys.modules]); s.close()"
    )
    path = str(Path(__file__).parents[3])
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.stdout.strip() == "[]"

"""The switch's metrics: every count of the engine once, under names that Prometheus takes."""

from __future__ import annotations

from dataclasses import fields
from typing import cast

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from controller.telemetry.server import registry
from soft_switch import cli
from soft_switch.dataplane import DataPlane, GlobalStats, PortStats
from soft_switch.faults import DIRECTIONS, FaultKind
from soft_switch.metrics import SwitchMetrics


class Plane:
    """A data plane with one port, whose counts are all different."""

    program = None

    def ports(self) -> dict[int, PortStats]:
        return {3: PortStats("s1-eth3", *range(101, 113))}

    def struck(self, port: int) -> dict[tuple[str, FaultKind], int]:
        places = [(direction, kind) for direction in DIRECTIONS for kind in FaultKind]
        return {place: 301 + number for number, place in enumerate(places)}

    def stats(self) -> GlobalStats:
        return GlobalStats(*range(201, 206))


def test_every_count_is_told_once() -> None:
    text = generate_latest(registry(SwitchMetrics(cast(DataPlane, Plane())).collect)).decode()
    samples = []
    for family in text_string_to_metric_families(text):
        assert family.name.startswith("p4reduce_switch_")
        assert family.documentation.endswith(".")
        for sample in family.samples:
            assert sample.name == family.name + ("_total" if family.type == "counter" else "")
            if "_port_" in sample.name and "no_port" not in sample.name:
                assert (sample.labels["port"], sample.labels["interface"]) == ("3", "s1-eth3")
            samples.append(sample)
    assert len(fields(PortStats)) - 1 + len(fields(GlobalStats)) == 17
    assert sorted(sample.value for sample in samples) == [
        0,
        *range(101, 113),
        *range(201, 206),
        *range(301, 311),
    ]
    reasons = {sample.labels["reason"]: sample.value for sample in samples if "reason" in sample.labels}
    assert reasons["queue_full"] == 108


def test_an_address_that_cannot_be(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--no-p4", "--grpc-server-addr", "127.0.0.1:0", "--metrics", "9464"]) == 2
    assert "soft_switch: '9464' is no address for metrics" in capsys.readouterr().err

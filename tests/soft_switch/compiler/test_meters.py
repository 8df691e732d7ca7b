"""Meters: the colors that a model of BMv2's two token buckets gives, by index and for entries of a table."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

import pytest

import soft_switch
from soft_switch.dataplane import DataPlane, Exact, MeterConfig
from soft_switch.errors import TableError, UnknownEntry
from tests.soft_switch.bits import pack, size, unpack
from tests.soft_switch.conftest import PlaneFactory
from tests.soft_switch.layouts import METERED

GREEN, YELLOW, RED = range(3)
TABLE = "TestIngress.entries"


class Model:
    """Two token buckets as in BMv2's meters.cpp: the peak's first, and what it lets pass is taken from it."""

    def __init__(self, config: MeterConfig) -> None:
        self.buckets = [
            [config.pir, config.pburst, config.pburst, 0],
            [config.cir, config.cburst, config.cburst, 0],
        ]

    def color(self, now_us: int, units: int) -> int:
        for bucket, color in zip(self.buckets, (RED, YELLOW), strict=True):
            rate, burst, tokens, seen = bucket
            made = int(float(now_us) * (rate / 1000000.0))
            bucket[2:] = min(tokens + made - seen, burst), made
            if bucket[2] < units:
                return color
            bucket[2] -= units
        return GREEN


def send(plane: DataPlane, rest: bytes = b"", **command: int) -> dict[str, int]:
    [(port, frame)] = plane.process(3, pack(METERED, command) + rest)
    assert port == 1
    return unpack(METERED, frame)


def test_colors_without_refill(plane_with: PlaneFactory) -> None:
    plane, chance = plane_with("meters"), random.Random(1)
    models = {}
    for name in ("by_packets", "by_bytes"):
        for index in range(0, 8, 2):
            burst = chance.randrange(2, 30) * (1 if name == "by_packets" else 60)
            config = MeterConfig(0, burst, 0, burst + burst // 2)
            plane.meter_write(f"TestIngress.{name}", index, config)
            models[name, index] = Model(config)
    seen = set()
    for _ in range(400):
        rest, index = bytes(chance.randrange(100)), chance.randrange(10)
        colors = send(plane, rest, index=index)
        for name in ("by_packets", "by_bytes"):
            model = models.get((name, index))
            units = 1 if name == "by_packets" else size(METERED) + len(rest)
            wanted = GREEN if model is None else model.color(0, units)
            color = colors["packets_color" if name == "by_packets" else "bytes_color"]
            assert color == wanted
            seen.add((name, color))
    assert len(seen) == 6


def test_a_rate_that_nothing_exceeds(plane_with: PlaneFactory) -> None:
    plane = plane_with("meters")
    plane.meter_write("TestIngress.by_bytes", 1, MeterConfig(10**15, 10**6, 10**15, 10**6))
    assert {send(plane, bytes(1000), index=1)["bytes_color"] for _ in range(2000)} == {GREEN}


def test_entries_have_meters_of_their_own(plane_with: PlaneFactory) -> None:
    plane = plane_with("meters")
    handles = [
        plane.insert(TABLE, [Exact(kind)], priority=0, action=f"TestIngress.{action}", params=[])
        for kind, action in ((1, "metered"), (2, "metered"), (3, "reset_color"))
    ]
    length = size(METERED)
    config = MeterConfig(0, 2 * length, 0, 3 * length)
    for handle in handles[1:]:
        plane.direct_meter_write(TABLE, handle, config)
    assert [plane.direct_meter_read(TABLE, handle) for handle in handles] == [None, config, config]
    colors = {kind: [send(plane, kind=kind)["entry_color"] for _ in range(4)] for kind in (1, 2, 3, 9)}
    assert colors == {1: [GREEN] * 4, 2: [GREEN, GREEN, YELLOW, RED], 3: [9] * 4, 9: [GREEN] * 4}
    plane.direct_meter_write(TABLE, handles[1], None)
    assert send(plane, kind=2)["entry_color"] == GREEN
    # Another entry in the same place starts without a meter.
    plane.delete(TABLE, handles[2])
    plane.insert(TABLE, [Exact(4)], priority=0, action="TestIngress.metered", params=[])
    assert {send(plane, kind=4)["entry_color"] for _ in range(5)} == {GREEN}
    with pytest.raises(UnknownEntry, match="no entry"):
        plane.direct_meter_read(TABLE, 77)


def test_configuration(plane_with: PlaneFactory) -> None:
    plane, name = plane_with("meters"), "TestIngress.by_packets"
    assert plane.program is not None
    described = {n: (m.size, m.unit, m.table) for n, m in plane.program.meters.items()}
    assert described == {
        name: (8, "packets", None),
        "TestIngress.by_bytes": (8, "bytes", None),
        "TestIngress.of_entry": (16, "bytes", TABLE),
    }
    config = MeterConfig(1, 2, 3, 4)
    plane.meter_write(name, 7, config)
    assert [plane.meter_read(name, index) for index in (6, 7)] == [None, config]
    plane.meter_write(name, 7, None)
    assert plane.meter_read(name, 7) is None
    with pytest.raises(TableError, match="above the peak"):
        plane.meter_write(name, 1, MeterConfig(10, 1, 9, 1))
    with pytest.raises(TableError, match="within 0"):
        plane.meter_write(name, 1, MeterConfig(-1, 1, 9, 1))
    with pytest.raises(UnknownEntry, match="8 cells"):
        plane.meter_read(name, 8)
    for missing in ("TestIngress.of_entry", "nothing"):
        with pytest.raises(UnknownEntry, match=missing):
            plane.meter_read(missing, 0)
    with pytest.raises(UnknownEntry, match="no direct meter"):
        plane_with("tables").direct_meter_read("TestIngress.exact_match", 0)


HARNESS = """
#include <cstdio>
#include "meter.h"
int main() {
    p4::Meter meter{};
    unsigned long long a[5], now, units;
    for (auto& word : a) if (std::scanf("%llu", &word) != 1) return 1;
    const uint64_t words[5] = {a[0], a[1], a[2], a[3], a[4]};
    meter.write(words);
    while (std::scanf("%llu %llu", &now, &units) == 2) std::printf("%u\\n", meter.execute(now, units));
}
"""


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a program that runs one meter at the times it is given."""
    folder = tmp_path_factory.mktemp("meter")
    source, binary = folder / "meter.cpp", folder / "meter"
    source.write_text(HARNESS)
    include = Path(soft_switch.__file__).parent / "native"
    compiler = shutil.which("g++")
    assert compiler is not None
    subprocess.run([compiler, "-std=c++17", "-I", str(include), str(source), "-o", str(binary)], check=True)
    return binary


@pytest.mark.parametrize("seed", range(16))
def test_colors_over_time(harness: Path, seed: int) -> None:
    chance = random.Random(seed)
    peak = chance.choice([1, 999, 10**6, 10**9, 2**63 - 1])
    config = MeterConfig(
        chance.randrange(peak + 1), chance.choice([1, 100, 5000]), peak, chance.choice([1, 300, 9000])
    )
    model, now, packets = Model(config), chance.randrange(10**12), []
    for _ in range(500):
        now += chance.choice([0, 1, 7, 1000, 10**6])
        packets.append((now, chance.choice([1, 60, 1500])))
    text = f"1 {config.cir} {config.cburst} {config.pir} {config.pburst}\n"
    text += "".join(f"{at} {units}\n" for at, units in packets)
    run = subprocess.run([harness], input=text, capture_output=True, text=True, check=True)
    assert [int(line) for line in run.stdout.split()] == [model.color(*packet) for packet in packets]

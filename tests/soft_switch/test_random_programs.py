"""Random P4 programs through p4c: the same frames through BMv2 and this switch give the same bytes."""

from __future__ import annotations

import shutil
import struct
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from soft_switch.dataplane import DataPlane
from tests.soft_switch.random_programs import RandomProgram

P4C, BMV2 = shutil.which("p4c-bm2-ss"), shutil.which("simple_switch")
FRAMES = 50  # a port's queue in BMv2 holds 64
TIMEOUT_S = 60.0
POLL_S = 0.2
PCAP_HEADER = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1)


def write_pcap(path: Path, frames: Sequence[bytes]) -> None:
    records = [struct.pack("<IIII", n, 0, len(f), len(f)) + f for n, f in enumerate(frames)]
    path.write_bytes(PCAP_HEADER + b"".join(records))


def read_pcap(path: Path) -> list[bytes]:
    """Return the complete frames in a file that may still be written."""
    data = path.read_bytes() if path.exists() else b""
    at, frames = len(PCAP_HEADER), []
    while at + 16 <= len(data):
        (size,) = struct.unpack_from("<I", data, at + 8)
        at += 16 + size
        if at <= len(data):
            frames.append(data[at - size : at])
    return frames


def through_bmv2(program: Path, frames: Sequence[bytes], folder: Path) -> list[bytes]:
    """Return what leaves port 1, one for each frame on port 0; BMv2 reads and writes files in `folder`."""
    for port, items in ((0, frames), (1, ())):
        write_pcap(folder / f"s{port}_in.pcap", items)
    out = folder / "s1_out.pcap"
    command = [str(BMV2), "--use-files", "0", "--thrift-port", "0", "-i", "0@s0", "-i", "1@s1", str(program)]
    got, deadline = list[bytes](), time.monotonic() + TIMEOUT_S
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=subprocess.STDOUT)
        try:
            while len(got) < len(frames) and time.monotonic() < deadline and process.poll() is None:
                time.sleep(POLL_S)
                got = read_pcap(out)
        finally:
            process.kill()
            process.wait()
    assert got, (folder / "log").read_text()
    return got


@pytest.mark.bmv2
@pytest.mark.p4c
@pytest.mark.slow
@pytest.mark.skipif(P4C is None or BMV2 is None, reason="p4c-bm2-ss and simple_switch are not on the PATH")
@pytest.mark.parametrize("seed", range(4))
def test_random_program(seed: int, tmp_path: Path) -> None:
    made = RandomProgram(seed)
    source, program = tmp_path / "random.p4", tmp_path / "random.json"
    source.write_text(made.source)
    subprocess.run(
        [str(P4C), "--std", "p4-16", "--Wdisable", str(source), "-o", str(program)],
        check=True,
        timeout=TIMEOUT_S,
    )
    frames = made.frames(FRAMES)
    with DataPlane() as plane:
        plane.load(program.read_bytes())
        got = [out for frame in frames for _, out in plane.process(0, frame)]
    assert got == through_bmv2(program, frames, tmp_path)

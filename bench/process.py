"""Processor time of a compiled program for a packet, without ports: python -m bench.process [--json FILE].

The program's function is called frame by frame on a host that throws away what leaves. The thread's own
processor time counts, and the best of some rounds. The rest of what bench.switch measures is the engine and
the kernel. Under `perf record` the symbols are those of the compiled program.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench import command
from bench.switch_frames import BURST, PACKETS, Job, crossing_packets, host_entries, router_entries
from controller.entries import Entry, Group
from host_agent.wire.aggregation import CHUNK_LANES, Op
from p4src import JSON_PATH
from soft_switch.build import build_program
from soft_switch.dataplane import DataPlane, Exact, Lpm

WARM_UP: Final = 32  # messages: every slot of the job has been used
MESSAGES: Final = 32
MESSAGE_AT: Final = slice(12, 16)  # of the aggregation header
OP_AT: Final = 17
SOURCE: Final = Path(__file__).parent / "native" / "process.cpp"
ROUTER: Final = Path(__file__).parents[1] / "tests" / "soft_switch" / "programs" / "l3.json"


class Sink:
    """A program on a host without ports."""

    def __init__(self, program_json: bytes, entries: Iterable[Entry]) -> None:
        self.native = ctypes.CDLL(str(build_program(SOURCE.read_text())))
        self.native.sink_create.restype = ctypes.c_void_p
        self.native.sink_run.restype = ctypes.c_uint64
        self.native.sink_run.argtypes = [
            *[ctypes.c_void_p] * 3,
            ctypes.c_char_p,
            ctypes.c_uint32,
            ctypes.c_void_p,
            ctypes.c_uint64,
            ctypes.c_void_p,
        ]
        self.native.sink_group.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t]
        self.host = self.native.sink_create()
        self.plane = DataPlane(cpu_port=255)
        # The program's host from its creation on.
        self.plane._host = lambda: self.host  # type: ignore[method-assign]
        self.plane.load(program_json, wait=True)
        self.loaded = self.plane._loaded
        for entry in entries:
            self._install(entry)

    def _install(self, entry: Entry) -> None:
        if isinstance(entry, Group):
            flat = np.array(entry.replicas, np.uint32)
            self.native.sink_group(self.host, entry.group, flat.ctypes.data, len(entry.replicas))
            return
        match = [Lpm(*value) if isinstance(value, tuple) else Exact(value) for _, value in entry.match]
        params = [value for _, value in entry.params]
        self.plane.insert(entry.table, match, priority=0, action=entry.action, params=params)

    def run(self, frames: Sequence[tuple[int, bytes]]) -> tuple[float, int]:
        """Return nanoseconds for a frame (port, bytes; all of one length), and how many frames left."""
        assert self.loaded is not None
        ports = np.array([port for port, _ in frames], np.uint32)
        left = ctypes.c_uint64()
        data = b"".join(frame for _, frame in frames)
        process = ctypes.cast(self.loaded.library.p4_process, ctypes.c_void_p)
        spent = self.native.sink_run(
            self.host,
            process,
            self.loaded.state,
            data,
            len(frames[0][1]),
            ports.ctypes.data,
            len(frames),
            ctypes.byref(left),
        )
        return spent / len(frames), left.value

    def close(self) -> None:
        """Give the program back; the host stays, as it is small."""
        self.plane.close()


def job_frames(job: Job, messages: range, chunks: int, op: Op = Op.SUM) -> list[tuple[int, bytes]]:
    """Return messages of all ranks in turns of BURST packets; lanes are random, halves below 2."""
    rng = np.random.default_rng(1)
    halves = rng.integers(0, 1 << 16, (PACKETS, 2 * chunks * CHUNK_LANES), dtype=np.uint16) & 0xBFFF
    lanes = halves.view(np.int32).astype(np.int64)
    frames: list[tuple[int, bytes]] = []
    for message in messages:
        rows = []
        for member in job.members:
            row = []
            for index, packet in enumerate(job._frames(member, lanes)):
                payload = bytearray(packet.payload)
                if index == 0:
                    payload[MESSAGE_AT] = message.to_bytes(4, "big")
                    payload[OP_AT] = op
                psn = (member.psn_out + message * PACKETS + index) & 0xFFFFFF
                made = replace(packet, payload=bytes(payload), bth=replace(packet.bth, psn=psn))
                row.append((member.rank + 1, made.build()))
            rows.append(row)
        for first in range(0, PACKETS, BURST):
            for row in rows:
                frames += row[first : first + BURST]
    return frames


def aggregate(ports: int, chunks: int, rounds: int, *, op: Op = Op.SUM) -> dict[str, Any]:
    """Measure a job's sums: every packet is checked and added, and one in `ports` makes `ports` leave."""
    job = Job(ports, 0)
    warm = job_frames(job, range(WARM_UP), chunks, op)
    timed = job_frames(job, range(WARM_UP, WARM_UP + MESSAGES), chunks, op)
    samples = []
    for _ in range(rounds):
        sink = Sink(JSON_PATH.read_bytes(), [*host_entries(ports), *job.entries()])
        sink.run(warm)
        spent, left = sink.run(timed)
        sink.close()
        if left != len(timed):
            raise RuntimeError(f"{left} frames left after {len(timed)} had come: nothing was summed")
        samples.append(spent)
    return {"program": "aggregate", "ports": ports, "chunks": chunks, "ns": round(min(samples), 1)}


def router(chunks: int, rounds: int) -> dict[str, Any]:
    """Measure the router of bench.switch."""
    sent = crossing_packets(chunks)
    frames = [(port, packet.build()) for port, row in enumerate(sent, 1) for packet in row] * 64
    sink = Sink(ROUTER.read_bytes(), router_entries())
    samples = []
    for _ in range(rounds + 1):
        spent, left = sink.run(frames)
        if left != len(frames):
            raise RuntimeError(f"{left} frames left after {len(frames)} had come: they were not routed")
        samples.append(spent)
    sink.close()
    return {"program": "l3", "ports": 2, "chunks": chunks, "ns": round(min(samples), 1)}


def main() -> None:
    """Measure and print."""
    parser = command.parser(__doc__)
    parser.add_argument("--chunks", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--ports", type=int, nargs="+", default=[4])
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    results = [router(chunks, arguments.rounds) for chunks in arguments.chunks]
    results += [
        aggregate(ports, chunks, arguments.rounds) for ports in arguments.ports for chunks in arguments.chunks
    ]
    for row in results:
        what = f"{row['program']:<10} {row['ports']} ports {row['chunks']:>2} chunks"
        print(f"{what} {row['ns']:>9,.1f} ns a packet")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()

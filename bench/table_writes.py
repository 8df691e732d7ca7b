"""Speed of P4Runtime's writes of table entries, and memory while entries come and go.

    .venv/bin/python -m bench.table_writes --json results.json

A switch and its controller run in one process, over a Unix socket, with the tables of
tests/soft_switch/programs/tables.p4 made large. First batches of entries are inserted, modified and deleted
in an exact, a longest prefix and a ternary table; CPU time is of the whole process, controller included. Then
`--churn` writes insert and delete entries in random order, half of them with a ternary mask of their own,
while about 2,000 are there: memory has to stay.
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

import grpc
from finsy.proto import U128, p4i, p4r, p4r_grpc
from google.protobuf import text_format

from bench import command
from soft_switch.dataplane import DataPlane
from soft_switch.server import P4RuntimeServer

PROGRAM: Final = Path(__file__).parents[1] / "tests" / "soft_switch" / "programs" / "tables.json"
SIZE: Final = 1 << 20
BATCH: Final = 500
LIVE: Final = 2000
KINDS: Final = {"insert": p4r.Update.INSERT, "modify": p4r.Update.MODIFY, "delete": p4r.Update.DELETE}
INFO: Final = text_format.Parse(PROGRAM.with_suffix(".p4info.txtpb").read_text(), p4i.P4Info())
TABLES: Final = {table.preamble.alias: table.preamble.id for table in INFO.tables}
ACTION: Final = next(action.preamble.id for action in INFO.actions if action.preamble.alias == "one")


class Controller:
    """The primary of a switch that runs the program."""

    def __init__(self, stub: p4r_grpc.P4RuntimeStub) -> None:
        self._stub = stub

    def write(self, kind: str, entries: Sequence[p4r.TableEntry]) -> None:
        """Write one batch."""
        updates = [p4r.Update(type=KINDS[kind], entity=p4r.Entity(table_entry=entry)) for entry in entries]
        self._stub.Write(p4r.WriteRequest(device_id=0, election_id=U128.encode(1), updates=updates))


@contextmanager
def controller() -> Iterator[Controller]:
    """Run a switch with large tables, and its controller."""
    program = json.loads(PROGRAM.read_text())
    for pipeline in program["pipelines"]:
        for table in pipeline["tables"]:
            table["max_size"] = SIZE if table["key"] else table["max_size"]
    requests: SimpleQueue[p4r.StreamMessageRequest | None] = SimpleQueue()
    with tempfile.TemporaryDirectory() as folder, DataPlane() as plane:
        server = P4RuntimeServer(plane, device_id=0, address=f"unix:{folder}/p4rt")
        server.start()
        with grpc.insecure_channel(server.address) as channel:
            stub = p4r_grpc.P4RuntimeStub(channel)
            stream: Any = stub.StreamChannel(iter(requests.get, None))
            arbitration = p4r.MasterArbitrationUpdate(device_id=0, election_id=U128.encode(1))
            requests.put(p4r.StreamMessageRequest(arbitration=arbitration))
            next(iter(stream))
            stub.SetForwardingPipelineConfig(
                p4r.SetForwardingPipelineConfigRequest(
                    election_id=U128.encode(1),
                    action=p4r.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT,
                    config=p4r.ForwardingPipelineConfig(
                        p4info=INFO, p4_device_config=json.dumps(program).encode()
                    ),
                )
            )
            yield Controller(stub)
            requests.put(None)
            stream.cancel()
        server.stop(grace_s=0)


def entry(table: str, *match: p4r.FieldMatch, priority: int = 0) -> p4r.TableEntry:
    """Return an entry whose action has one parameter."""
    param = p4r.Action.Param(param_id=1, value=b"\x05")
    action = p4r.TableAction(action=p4r.Action(action_id=ACTION, params=[param]))
    return p4r.TableEntry(table_id=TABLES[table], match=match, action=action, priority=priority)


def exact(number: int) -> p4r.TableEntry:
    """Return an entry of a table with two exact fields."""
    first, second = (p4r.FieldMatch.Exact(value=value) for value in (number.to_bytes(4, "big"), b"\x01"))
    return entry(
        "exact_match", p4r.FieldMatch(field_id=1, exact=first), p4r.FieldMatch(field_id=2, exact=second)
    )


def prefix(number: int) -> p4r.TableEntry:
    """Return a prefix of 20 to 32 bits, another for each number below a million."""
    length = 20 + number % 13
    value = (number // 13 << 32 - length) & 0xFFFFFFFF
    lpm = p4r.FieldMatch.LPM(value=value.to_bytes(4, "big"), prefix_len=length)
    return entry("longest_prefix", p4r.FieldMatch(field_id=1, lpm=lpm))


def ternary(number: int, mask: int | None = None) -> p4r.TableEntry:
    """Return an entry with one of 64 masks, or the given one."""
    mask = 0x1FFFF | (number % 64) << 20 if mask is None else mask
    value = (number * 0x9E3779B1) & mask
    match = p4r.FieldMatch.Ternary(value=value.to_bytes(4, "big"), mask=mask.to_bytes(4, "big"))
    return entry("ternary_match", p4r.FieldMatch(field_id=1, ternary=match), priority=1 + number)


def speed(switch: Controller, name: str, make: Callable[[int], p4r.TableEntry], count: int) -> dict[str, Any]:
    """Return the writes per second of one table, and the CPU time of each."""
    batches = [[make(number) for number in range(at, at + BATCH)] for at in range(0, count, BATCH)]
    result: dict[str, Any] = {"table": name, "entries": count}
    for kind in KINDS:
        wall, cpu = time.perf_counter(), time.process_time()
        for batch in batches:
            switch.write(kind, batch)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        result[kind] = {"per_s": round(count / wall), "cpu_us": round(cpu / count * 1e6, 1)}
        print(f"{name:8} {kind}: {count / wall:9,.0f} a second, {cpu / count * 1e6:5.1f} us of CPU time each")
    return result


def resident_mb() -> float:
    """Return the megabytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6


def churn(switch: Controller, writes: int) -> list[dict[str, float]]:
    """Return the memory after each tenth of the writes."""
    chance = random.Random(1)
    live: list[list[p4r.TableEntry]] = []
    marks: list[dict[str, float]] = []
    done = number = 0
    while done < writes:
        made = [exact(number + i) for i in range(BATCH // 2)]
        made += [ternary(number + i, chance.getrandbits(32) | 1) for i in range(BATCH // 2)]
        number += BATCH
        switch.write("insert", made)
        live.append(made)
        done += BATCH
        if len(live) * BATCH > LIVE:
            switch.write("delete", live.pop(chance.randrange(len(live))))
            done += BATCH
        if done * 10 // writes > len(marks):
            marks.append({"writes": done, "resident_mb": round(resident_mb(), 1)})
            print(f"{done:9,} writes: {resident_mb():.1f} MB in memory")
    return marks


def main() -> None:
    """Run the benchmark, show its results and write them."""
    parser = command.parser(__doc__)
    parser.add_argument("--entries", type=int, default=20_000, help="entries of each table")
    parser.add_argument("--churn", type=int, default=1_000_000, help="writes while memory is looked at")
    options = parser.parse_args()
    makers = {"exact": exact, "lpm": prefix, "ternary": ternary}
    with controller() as switch:
        speeds = [speed(switch, name, make, options.entries) for name, make in makers.items()]
        marks = churn(switch, options.churn)
    command.write(options.json, {"speed": speeds, "churn": marks})


if __name__ == "__main__":
    main()

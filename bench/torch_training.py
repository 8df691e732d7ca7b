"""PyTorch's DDP over p4reduce and over Gloo, in turns: time a step, and the part that is neither's.

    sudo .venv/bin/python -m bench.torch_training --rounds 3 --json FILE

Links of 100 Mbit/s, 4 and 8 hosts, path MTU 4096, the embedded switch: a perceptron of 8 million parameters,
bound by communication, in float32 and bfloat16, with buckets of several sizes; and a convolutional network.
`overhead`: the share of a step in which this backend's own Python code runs, on whichever thread. A trace of
torch.profiler is taken of the perceptron over p4reduce, and replayed on the same links.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import product
from pathlib import Path
from typing import Any, Final

from rich.table import Table

from bench import command
from host_agent.netinfo import find_interface
from p4reduce.workloads import replay
from p4reduce.workloads.strategies import names
from p4reduce.workloads.traffic.source import workload_of
from topologies.fabric import Fabric
from topologies.rack import RackOptions

Row = dict[str, Any]
RATE_MBIT: Final = 100.0
STEPS: Final = 4  # after one that makes the buckets, and one that is not counted
CASES: Final = (  # model, type, megabytes a bucket
    ("mlp", "float32", 1.0),
    ("mlp", "float32", 5.0),
    ("mlp", "float32", 25.0),
    ("mlp", "bfloat16", 5.0),
    ("mlp", "bfloat16", 25.0),
    ("cnn", "float32", 25.0),
)
TRACED: Final = ("mlp", "float32", 25.0)


def train(backend: str, trace: Path | None) -> list[Row]:
    """Run a host's part: each case with this backend. Rank 0 leaves a trace of the perceptron in `trace`."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    if backend == "gloo":  # on the links that the switch has, too
        interface = find_interface(controller=os.environ["P4REDUCE_CONTROLLER"])
        os.environ["GLOO_SOCKET_IFNAME"] = interface.name
    else:
        import p4reduce.torch  # noqa: F401 (PyTorch's autoload may be off)
    dist.init_process_group(backend)
    spent = _watch() if backend == "p4reduce" else [0.0]
    rows = [_case(*case, spent) for case in CASES]
    if trace is not None:
        _record(trace if dist.get_rank() == 0 else None)
    dist.destroy_process_group()
    return rows


def _trainer(model: str, dtype: str, bucket_mb: float) -> tuple[Any, Callable[[], None]]:
    """Return a replica, and a function that runs a step of it; the buckets have their final form."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(1)
    kind = getattr(torch, dtype)
    net = _MODELS[model]().to(kind)
    given = torch.randn(4, *_SHAPES[model]).to(kind)
    wanted = torch.randint(0, 10, (4,))
    ddp = DistributedDataParallel(net, bucket_cap_mb=bucket_mb)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(ddp(given).float(), wanted).backward()
        optimizer.step()

    for _ in range(2):
        step()
    return ddp, step


def _record(trace: Path | None) -> None:
    """Record a trace as docs/workloads.md describes; None: only take part."""
    import torch

    _, step = _trainer(*TRACED)
    profiler = None if trace is None else torch.profiler.profile(record_shapes=True)
    with profiler or nullcontext():
        for _ in range(3):
            step()
    if profiler is not None:
        profiler.export_chrome_trace(str(trace))


def _case(model: str, dtype: str, bucket_mb: float, spent: list[float]) -> Row:
    import torch.distributed as dist

    ddp, step = _trainer(model, dtype, bucket_mb)
    seconds, own = [], []
    for _ in range(STEPS):
        dist.barrier()
        before, began = spent[0], time.perf_counter()
        step()
        seconds.append(time.perf_counter() - began)
        own.append((spent[0] - before) / seconds[-1])
    with ddp.no_sync():
        began = time.perf_counter()
        step()
        computing = time.perf_counter() - began
    return {
        "model": model,
        "dtype": dtype,
        "bucket_mb": bucket_mb,
        "parameters": sum(p.numel() for p in ddp.parameters()),
        "seconds": statistics.median(seconds),
        "computing_s": computing,
        "overhead": statistics.median(own),
    }


def _watch() -> list[float]:
    """Count the seconds that this backend's code takes: calls, and leaving results."""
    from p4reduce.torch.process_group import P4ReduceProcessGroup
    from p4reduce.torch.work import Work

    spent = [0.0]

    def watched(function: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                spent[0] += time.perf_counter() - began

        return run

    for name in ("allreduce", "broadcast", "allgather"):
        setattr(P4ReduceProcessGroup, name, watched(getattr(P4ReduceProcessGroup, name)))
    for name in ("_end", "_tensors", "get_future"):
        setattr(Work, name, watched(getattr(Work, name)))
    return spent


def _mlp() -> Any:
    import torch.nn as nn

    return nn.Sequential(
        *(nn.Linear(784, 2000), nn.ReLU(), nn.Linear(2000, 2000), nn.ReLU()),
        *(nn.Linear(2000, 1200), nn.ReLU(), nn.Linear(1200, 10)),
    )


def _cnn() -> Any:
    import torch.nn as nn

    return nn.Sequential(
        *(nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(64, 128, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(128, 256, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(4)),
        *(nn.Flatten(), nn.Linear(4096, 256), nn.ReLU(), nn.Linear(256, 10)),
    )


_MODELS: Final = {"mlp": _mlp, "cnn": _cnn}
_SHAPES: Final = {"mlp": (784,), "cnn": (3, 32, 32)}


def rounds_of(workers: int, rounds: int) -> Iterator[Row]:
    """Run both backends in turns on one rack; yield each case's median."""
    found: dict[tuple[str, int], list[Row]] = {}
    options = RackOptions(name=f"bench-{os.getpid()}", hosts=workers, path_mtu=4096, rate_mbit=RATE_MBIT)
    with Fabric(options) as rack, tempfile.TemporaryDirectory() as directory:
        trace = Path(directory) / "trace.json"
        for number, backend in product(range(rounds), ("p4reduce", "gloo")):
            port = 29500 + 2 * number + (backend == "gloo")
            words = ["--trace", str(trace)] if (number, backend) == (0, "p4reduce") else []
            for case, row in enumerate(_one(rack, [backend, *words], port)):
                found.setdefault((backend, case), []).append(row)
        replayed_s = _replayed(rack, trace)
    for case, which in enumerate(CASES):
        ours, gloos = (
            statistics.median(row["seconds"] for row in found[backend, case])
            for backend in ("p4reduce", "gloo")
        )
        for backend, seconds in (("p4reduce", ours), ("gloo", gloos)):
            rows = found[backend, case]
            yield {
                **rows[0],
                "workers": workers,
                "backend": backend,
                "seconds": seconds,
                "spread": [min(row["seconds"] for row in rows), max(row["seconds"] for row in rows)],
                "computing_s": statistics.median(row["computing_s"] for row in rows),
                "overhead": statistics.median(row["overhead"] for row in rows),
                "gloo_takes": gloos / ours,
                "bound": 2 * (workers - 1) / workers,
                "replayed_s": replayed_s if (which, backend) == (TRACED, "p4reduce") else None,
            }


def _replayed(rack: Fabric, trace: Path) -> float:
    """Return the seconds of an iteration of the trace on the same links."""
    run = replay.run(
        rack.state,
        rack.state.hosts,
        workload_of(str(trace)),
        [names.IN_NETWORK],
        options=replay.ReplayOptions(iterations=STEPS, bucket_bytes=int(TRACED[2] * 2**20)),
        progress=lambda text: None,
        command="",
    )
    return run.results[0].median_s


def _one(rack: Fabric, words: list[str], port: int) -> list[Row]:
    """Return the rows that rank 0 measures."""
    state = rack.state
    rows: list[Row] = command.on_hosts(
        state,
        *("--train", *words),
        MASTER_ADDR=state.hosts[0].management_ip,
        MASTER_PORT=str(port),
        P4REDUCE_CONTROLLER=state.controller,
    )[0]
    return rows


def show(found: list[Row]) -> Table:
    """Return a table for a terminal."""
    return command.table(
        "Steps of training",
        ("workers", "model", "dtype", "bucket", "backend"),
        ("a step", "replayed", "computing", "Gloo takes", "bound", "overhead"),
        (
            (
                *(
                    str(row["workers"]),
                    row["model"],
                    row["dtype"],
                    f"{row['bucket_mb']:g} MB",
                    row["backend"],
                ),
                f"{row['seconds']:.3f} s",
                f"{row['replayed_s']:.3f} s" if row["replayed_s"] is not None else "",
                f"{row['computing_s'] * 1e3:.0f} ms",
                *(f"{row['gloo_takes']:.3f}", f"{row['bound']:.2f}", f"{row['overhead']:.2%}"),
            )
            for row in found
        ),
    )


def main() -> None:
    """Run all, show and write them; with --train, be a host's part of the benchmark."""
    parser = command.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="how often each backend runs")
    parser.add_argument("--workers", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--train", choices=["p4reduce", "gloo"], help=argparse.SUPPRESS)
    parser.add_argument("--trace", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.train:
        rows = train(arguments.train, arguments.trace)
        if os.environ["RANK"] == "0":
            print(json.dumps(rows))
        else:
            print("[]")
        return
    found = [row for workers in arguments.workers for row in rounds_of(workers, arguments.rounds)]
    command.console(140).print(show(found))
    command.write(arguments.json, {"rows": found})


if __name__ == "__main__":
    main()

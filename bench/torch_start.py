"""The way from the command to the first step of a training on four hosts, beside torchrun over Gloo.

    sudo .venv/bin/python -m bench.torch_start --rounds 3 --json FILE

Each round has all ways in turn: ranks that `p4reduce torch` forks, as it does by itself; ranks that it starts
anew; the same script by torchrun, without any fabric; and the fabric with a script that does nothing. Time of
processors is that of the command and of all that it has started and waited for.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rich.table import Table

from bench import command
from p4reduce.workloads.torch_runs.interpreter import ANEW

Row = dict[str, Any]
HOSTS: Final = 4
SCRIPT: Final = Path(__file__).parent / "torch_first_step.py"
_FIRST: Final = re.compile(r"first step at ([\d.]+)")


def ways(script: Path, nothing: Path) -> dict[str, tuple[list[str], dict[str, str]]]:
    """Name each way, with its words for Python and its variables.

    `script`: SCRIPT in a directory of its own, as `types.py` beside it here would have ranks start anew.
    `nothing`: a script that does nothing.
    """
    name = f"bench-{os.getpid()}"
    ours = ["-m", "p4reduce", "torch", "rack", "--hosts", str(HOSTS), "--cluster", name, "--"]
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(HOSTS)]
    return {
        "p4reduce torch": ([*ours, str(script)], {}),
        "p4reduce torch, ranks anew": ([*ours, str(script)], {ANEW: "1"}),
        "torchrun, Gloo": (
            [*torchrun, str(script), "--backend", "gloo"],
            {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        ),
        "p4reduce torch, nothing": ([*ours, str(nothing)], {}),
    }


def measure(words: Sequence[str], variables: Mapping[str, str]) -> tuple[float, float | None]:
    """Seconds of processors, and until the last rank's first step has ended."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(
        [sys.executable, *words],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"'{' '.join(words)}' failed:\n{done.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    ended = [float(at) for at in _FIRST.findall(done.stdout)]
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return spent, max(ended) - began if ended else None


def rounds_of(rounds: int) -> list[Row]:
    """Run all ways in turn, so often, and return each one's medians."""
    found: dict[str, list[tuple[float, float | None]]] = {}
    with tempfile.TemporaryDirectory() as directory:
        script = Path(shutil.copy(SCRIPT, directory))
        nothing = Path(directory) / "nothing.py"
        nothing.write_text("pass\n")
        for _ in range(rounds):
            for name, way in ways(script, nothing).items():
                found.setdefault(name, []).append(measure(*way))
    return [_row(name, samples) for name, samples in found.items()]


def _row(name: str, samples: Sequence[tuple[float, float | None]]) -> Row:
    spent, firsts = [one for one, _ in samples], [at for _, at in samples if at is not None]
    return {
        "way": name,
        "cpu_s": statistics.median(spent),
        "cpu_spread": [min(spent), max(spent)],
        "first_step_s": statistics.median(firsts) if firsts else None,
        "first_step_spread": [min(firsts), max(firsts)] if firsts else None,
    }


def show(found: Sequence[Row]) -> Table:
    """Return the table that people read."""
    return command.table(
        f"To the first step, {HOSTS} ranks",
        ("way",),
        ("processors", "least to most", "first step"),
        (
            (
                row["way"],
                f"{row['cpu_s']:.1f} s",
                "{:.1f} to {:.1f} s".format(*row["cpu_spread"]),
                "" if row["first_step_s"] is None else f"{row['first_step_s']:.1f} s",
            )
            for row in found
        ),
    )


def main() -> None:
    """Run all, show and write them."""
    parser = command.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="how often each way runs")
    arguments = parser.parse_args()
    found = rounds_of(arguments.rounds)
    command.console(120).print(show(found))
    command.write(arguments.json, {"rows": found})


if __name__ == "__main__":
    main()

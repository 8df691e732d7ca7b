"""Rank and job of this process, as its launcher says: torchrun, srun, mpirun, or a user.

This module does not need PyTorch.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

CONTROLLER: Final = "P4REDUCE_CONTROLLER"
JOB: Final = "P4REDUCE_JOB"
INTRA_RATE: Final = "P4REDUCE_INTRA_RATE"  # bit/s between GPUs of a machine; unset: unpaced
_NOT_IN_A_NAME: Final = re.compile(r"[^A-Za-z0-9_.:@/+-]")


@dataclass(frozen=True)
class Launcher:
    """A launcher, by the variables that it sets. Those of `job` together name the run."""

    name: str
    rank: str
    world_size: str
    local_rank: str
    local_size: str
    job: tuple[str, ...]
    address: str = ""  # of a node of the run, for the store


# The first whose rank is set counts. PyTorch's own names come first: what is set by hand wins.
LAUNCHERS: Final = (
    Launcher("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", ("TORCHELASTIC_RUN_ID",)),
    Launcher(
        "mpirun",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        ("PMIX_NAMESPACE",),
    ),
    Launcher(
        "srun",
        "SLURM_PROCID",
        "SLURM_NTASKS",
        "SLURM_LOCALID",
        "SLURM_NTASKS_PER_NODE",
        ("SLURM_JOB_ID", "SLURM_STEP_ID"),
        "SLURM_LAUNCH_NODE_IPADDR",
    ),
    Launcher("mpiexec", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", ("PMI_JOBID",)),
)


def launcher_of(environment: Mapping[str, str]) -> Launcher | None:
    """Return the launcher that has started this process as one of several; None if there is none."""
    for launcher in LAUNCHERS:
        if launcher.rank in environment and launcher.world_size in environment:
            return launcher
    return None


def adopt(environment: MutableMapping[str, str]) -> None:
    """Give PyTorch's `env://` the names that it knows, where another launcher than torchrun has set its own.

    What is set already stays. The store's address is the first node's, or, where all processes are on this
    machine, this one's; MASTER_ADDR and MASTER_PORT have to be set where neither is known.
    """
    launcher = launcher_of(environment)
    if launcher is None or launcher.rank == "RANK":
        return
    environment.setdefault("RANK", environment[launcher.rank])
    environment.setdefault("WORLD_SIZE", environment[launcher.world_size])
    for name, theirs in (("LOCAL_RANK", launcher.local_rank), ("LOCAL_WORLD_SIZE", launcher.local_size)):
        if theirs in environment:
            environment.setdefault(name, environment[theirs])
    address = environment.get(launcher.address) if launcher.address else None
    if address is None and environment.get("OMPI_COMM_WORLD_LOCAL_SIZE") == environment["WORLD_SIZE"]:
        address = "127.0.0.1"
    if address is not None:
        environment.setdefault("MASTER_ADDR", address)
    if run := run_of(environment):
        # The same on all its processes, and another one for the next run on this machine.
        environment.setdefault("MASTER_PORT", str(20000 + zlib.crc32(run.encode()) % 10000))


def gpus_per_machine(environment: Mapping[str, str]) -> int:
    """Return the number of the run's processes on each machine; one where the launcher does not say."""
    # DeepSpeed's launcher has torchrun's names but for this one.
    said = environment.get("LOCAL_WORLD_SIZE") or environment.get("LOCAL_SIZE", "1")
    return int(said) if said.isdigit() and int(said) > 0 else 1


def ranks_on_each(ranks: Sequence[int], gpus: int) -> int | None:
    """Return how many of these ranks each machine has, if machines have `gpus` consecutive ranks of the run.

    None where one has more than another, or where a machine's are not together in this order.
    """
    runs = [(machine, len(list(same))) for machine, same in groupby(rank // gpus for rank in ranks)]
    if len({machine for machine, _ in runs}) < len(runs) or len({count for _, count in runs}) != 1:
        return None
    return runs[0][1]


def run_of(environment: Mapping[str, str]) -> str:
    """Return the name of the run, the same on all its processes; empty if nothing names it."""
    for launcher in LAUNCHERS:
        words = [environment[name] for name in launcher.job if environment.get(name)]
        if words and words != ["none"]:  # torchrun's, of several machines, where no --rdzv-id was given
            return "-".join(words) + _restart(environment)
    return ""


def _restart(environment: Mapping[str, str]) -> str:
    """Return a suffix for a restart: torchrun may restart workers before their job knows of their end."""
    restarts = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
    return f".{restarts}" if restarts != "0" else ""


def job_of(environment: Mapping[str, str]) -> str:
    """Return the job's name from P4REDUCE_JOB, or from the run's name; empty where there is neither."""
    if named := environment.get(JOB, ""):
        return named + _restart(environment)
    run = run_of(environment)
    return f"torch-{_NOT_IN_A_NAME.sub('-', run)}"[:100] if run else ""

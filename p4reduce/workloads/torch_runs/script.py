"""A user's script, and the variables that torchrun would give each of its processes."""

from __future__ import annotations

import os
import secrets
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from p4reduce.workloads.errors import WorkloadError
from p4reduce.workloads.placement import gpus_of
from p4reduce.workloads.strategies.gloo import gloo_missing
from topologies import launch, namespaces
from topologies.state import ClusterState, HostState

CONTROLLER: Final = "P4REDUCE_CONTROLLER"
JOB: Final = "P4REDUCE_JOB"
INTRA_RATE: Final = "P4REDUCE_INTRA_RATE"
_THREADS: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_INTERFACES: Final = ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
MODULE: Final = "-m"


@dataclass(frozen=True)
class Script:
    """A script. `words`: a file or `-m module`, then its arguments. It starts in `directory`."""

    words: tuple[str, ...]
    directory: Path

    @classmethod
    def of(cls, words: Sequence[str], *, directory: Path | None = None) -> Script:
        """Return the script of `words` in `directory` (None: ours). WorkloadError where it cannot run."""
        directory = directory or _here()
        if not words or not words[0]:
            raise WorkloadError("there is no script to run: say '-- train.py ARGS' or '-- -m MODULE ARGS'")
        first, *rest = words
        if first == MODULE and not (rest and rest[0]):
            raise WorkloadError("-m needs the name of a module: say '-- -m package.train ARGS'")
        if first != MODULE:
            if first.startswith("-"):
                raise WorkloadError(f"{first!r} is no script: say '-- train.py ARGS' or '-- -m MODULE ARGS'")
            path = directory / first
            if path.is_dir() and not (path / "__main__.py").is_file():
                raise WorkloadError(f"{first} is a directory without __main__.py: name the script in it")
            if not path.exists():
                raise WorkloadError(f"there is no script {first} in {directory}")
        return cls(tuple(words), directory)

    @property
    def command(self) -> list[str]:
        """Command of each process: this Python, with unbuffered output."""
        return [sys.executable, "-u", *self.words]


@dataclass(frozen=True)
class Meeting:
    """Meeting point of a run's processes: the run's name, which is the job's too, and rank 0's store."""

    run: str
    address: str
    port: int

    @classmethod
    def at(cls, host: HostState, *, run: str = "") -> Meeting:
        """Return that of `run`, or of a new one, with rank 0 on `host` at a port that is free there now."""
        return cls(run or f"torch-{secrets.token_hex(4)}", host.management_ip, _free_port(host))


def environment(
    cluster: ClusterState, hosts: Sequence[HostState], rank: int, meeting: Meeting
) -> dict[str, str]:
    """Return the variables that torchrun sets for a process of a run, and those that p4reduce.torch reads."""
    size, gpus = len(hosts), gpus_of(cluster, hosts)
    rate = cluster.intra_rate_mbit
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(rank % gpus),
        "LOCAL_WORLD_SIZE": str(gpus),
        "GROUP_RANK": str(rank // gpus),
        "GROUP_WORLD_SIZE": str(size // gpus),
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(size),
        "ROLE_NAME": "default",
        "MASTER_ADDR": meeting.address,
        "MASTER_PORT": str(meeting.port),
        "TORCHELASTIC_RUN_ID": meeting.run,
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        CONTROLLER: cluster.controller,
        JOB: meeting.run,
        **({} if gpus == 1 or rate is None else {INTRA_RATE: f"{rate * 1e6:.0f}"}),
        **environment_of_all(),
        # Gloo, and TensorPipe of torch.distributed.rpc, take the address of the machine's name, which all
        # hosts share, unless told the interface.
        **{name: os.environ.get(name, hosts[rank].interface) for name in _INTERFACES},
    }


def environment_of_all() -> dict[str, str]:
    """Return the variables that are the same in all clusters and on all ranks."""
    return {
        **{name: os.environ.get(name, "1") for name in _THREADS},
        "PATH": launch.programs(),
        # A host has no name service: PyTorch's store warns that it knows no name for each client.
        "TORCH_CPP_LOG_LEVEL": os.environ.get("TORCH_CPP_LOG_LEVEL", "ERROR"),
    }


def require_torch(machines: Sequence[str] = ()) -> None:
    """Raise WorkloadError where a script has no PyTorch. `machines`: its hosts that are of kind roce."""
    if gloo_missing():
        raise WorkloadError(
            f"PyTorch is not installed for {sys.executable}: 'make gloo' installs it, or "
            "\"pip install 'p4reduce[torch]'\" there (a build of PyTorch for CPUs will do)"
        )
    if machines:
        raise WorkloadError(
            f"there is no PyTorch in the machines of RoCE hosts ({', '.join(machines)}): name other --hosts"
        )


def _here() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError as error:
        raise WorkloadError("the directory that you are in is gone: change to one that exists") from error


def _free_port(host: HostState) -> int:
    namespace = Path(f"/proc/{host.process.pid}/ns/net")
    with namespaces.entered(namespace), socket.socket() as probe:
        probe.bind((host.management_ip, 0))
        port: int = probe.getsockname()[1]
        return port

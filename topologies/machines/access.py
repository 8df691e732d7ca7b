"""Commands in machines: OpenSSH over the management network, with keys that are made with the cluster.

One connection to each machine is kept open (`ControlMaster`); a command is a session on it, so that it starts
without a key exchange. A command lives as long as its ssh client (see files/session.c). All paths in the
configuration are relative: ssh is started in the cluster's directory.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from topologies.errors import TopologyError
from topologies.machines.building import COMPILED_DIRECTORY, PACKAGES_DIRECTORY, SESSION, WHEELS_DIRECTORY
from topologies.namespaces import NETNS_DIRECTORY, run
from topologies.state import ClusterState, HostState

PYTHON: Final = "/usr/bin/python3"  # in a machine
HOST_FILES: Final = "/host"  # where a machine sees this host's file system
CONFIGURATION: Final = "ssh_config"
CLIENT_KEY: Final = "ssh_key"
SERVER_KEY: Final = "ssh_host_key"
_KNOWN_HOSTS: Final = "ssh_known_hosts"

_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_ENVIRONMENT: Final = {
    "PATH": _PATH,
    "PYTHONPATH": f"{PACKAGES_DIRECTORY}:{WHEELS_DIRECTORY}",
    "PYTHONPYCACHEPREFIX": COMPILED_DIRECTORY,
    "LANG": "C.UTF-8",
}
_OPTIONS: Final = """\
Host *
    User root
    IdentityFile {key}
    IdentitiesOnly yes
    BatchMode yes
    UserKnownHostsFile {known_hosts}
    GlobalKnownHostsFile /dev/null
    StrictHostKeyChecking yes
    CheckHostIP no
    PreferredAuthentications publickey
    KexAlgorithms curve25519-sha256
    Ciphers chacha20-poly1305@openssh.com
    ConnectTimeout 30
    ServerAliveInterval 15
    ServerAliveCountMax 4
    LogLevel ERROR
    ControlMaster no
    ControlPath %n.ssh
"""


def prepare(directory: Path) -> None:
    """Make a cluster's keys and the configuration of its ssh clients."""
    for name in (CLIENT_KEY, SERVER_KEY):
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "p4reduce", "-f", str(directory / name))
    server = (directory / f"{SERVER_KEY}.pub").read_text()
    (directory / _KNOWN_HOSTS).write_text(f"* {server}")
    (directory / CONFIGURATION).write_text(_OPTIONS.format(key=CLIENT_KEY, known_hosts=_KNOWN_HOSTS))


def add(directory: Path, host: HostState) -> None:
    """Add a machine to the configuration."""
    with (directory / CONFIGURATION).open("a") as configuration:
        configuration.write(f"Host {host.name}\n    HostName {host.management_ip}\n")


def client(cluster: ClusterState) -> list[str]:
    """Return the ssh command with the cluster's configuration, to be started in the cluster's directory."""
    return ["nsenter", f"--net={NETNS_DIRECTORY / cluster.namespace}", "--", "ssh", "-F", CONFIGURATION]


def command(
    cluster: ClusterState,
    host: HostState,
    words: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    directory: Path | None = None,
    terminal: bool = False,
) -> list[str]:
    """Return the command line that runs `words` in a machine; to be started in the cluster's directory.

    It starts in `directory` of this host (as the machine sees it), or in / if there is no such directory.
    """
    if host.machine is None or not host.machine.alive():
        raise TopologyError(f"the machine of host {host.name} is gone: take the cluster down and up again")
    return [
        *client(cluster),
        "-tt" if terminal else "-T",
        host.name,
        remote_command(words, env=env or {}, directory=directory),
    ]


def remote_command(words: Sequence[str], *, env: Mapping[str, str], directory: Path | None) -> str:
    """Return the command for the machine's shell."""
    where = "/" if directory is None else f"{HOST_FILES}{directory}"
    settings = (f"{name}={value}" for name, value in {**_ENVIRONMENT, **env}.items())
    return "exec " + shlex.join([SESSION, where, *settings, "--", *words])


def connect(cluster: ClusterState, host: HostState) -> subprocess.Popen[bytes]:
    """Open the connection that the sessions share, and keep it open."""
    return subprocess.Popen(
        [*client(cluster), "-o", "ControlMaster=yes", "-N", host.name],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        cwd=cluster.directory,
        start_new_session=True,
    )


def connection(cluster: ClusterState, host: HostState) -> Path:
    """Return the socket of that connection, which is there once it is open."""
    return cluster.directory / f"{host.name}.ssh"


def package_directories(names: Iterable[str]) -> list[Path]:
    """Return the directories of the project's packages on this host."""
    base = Path(__file__).resolve().parents[2]  # a machine sees no absolute link as we do
    return [base / name for name in names if (base / name).is_dir()]

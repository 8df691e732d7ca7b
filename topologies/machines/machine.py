"""A machine: a QEMU process in its host's network namespace, from its files to the moment it can be used."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from topologies.errors import TopologyError, UnsupportedError
from topologies.machines import access
from topologies.machines.building import PACKAGES_DIRECTORY
from topologies.machines.image import HOW, MAKE_TARGET, Image
from topologies.machines.network import Port
from topologies.processes import ProcessId
from topologies.state import ClusterState, HostState

QEMU: Final = "qemu-system-x86_64"
ACCELERATION: Final = "P4REDUCE_QEMU_ACCEL"
_SOFTWARE: Final = "tcg"
MEMORY_MB: Final = 1024
# NumPy's wheels need x86-64-v2, sshd a source of randomness; emulating more only costs time.
_EMULATED_PROCESSOR: Final = "Nehalem,+rdrand"
_NO_OFFLOADS: Final = ",".join(
    f"{name}=off"
    for name in (
        "csum",
        "gso",
        "guest_csum",
        "guest_tso4",
        "guest_tso6",
        "guest_ufo",
        "host_tso4",
        "host_tso6",
        "host_ufo",
    )
)  # a switch reads whole frames, with whole checksums
_KERNEL_COMMAND_LINE: Final = (
    "console=ttyS0 quiet rdinit=/init panic=-1 mitigations=off nokaslr init_on_alloc=0"
)
_PACKAGES: Final = (
    "p4src",
    "soft_switch",
    "controller",
    "host_agent",
    "topologies",
    "p4reduce",
)
_READY: Final = "P4REDUCE-READY"
_FAILED: Final = re.compile(r"P4REDUCE-FAILED (.*)")
_LAST_LINES: Final = 5
_WHEN_TOLD: Final = 'read -r _ && exec "$@" </dev/null'
_BETWEEN_TRIES_S: Final = 1.0


def require_programs() -> None:
    """Raise UnsupportedError if a program for booting machines is missing, or the kernel has no taps."""
    missing = [name for name in (QEMU, "ssh", "ssh-keygen") if shutil.which(name) is None]
    if missing:
        raise UnsupportedError(
            f"RoCE hosts need {', '.join(missing)}: run '{MAKE_TARGET}' (on Debian and Ubuntu; without this "
            "project's repository: apt-get install qemu-system-x86 openssh-client)"
        )
    if not Path("/dev/net/tun").exists():
        raise UnsupportedError("RoCE hosts need tap interfaces, and this kernel has none (/dev/net/tun)")


@dataclass(frozen=True, kw_only=True)
class MachineSettings:
    """Settings of a machine: `mtu` of its fabric link, `neighbours` as (IP, MAC) on the fabric."""

    host: HostState
    prefix_length: int
    management_prefix_length: int
    mtu: int
    neighbours: Sequence[tuple[str, str]]
    hosts: Mapping[str, str]

    def settings(self) -> str:
        """Return the settings that the machine's first process reads, as a shell does."""
        host = self.host
        return (
            f"name={host.name}\nfabric={host.interface}\nmanagement={host.management_ip}\n"
            f"packages={PACKAGES_DIRECTORY}\n"
        )

    def network(self) -> str:
        """Return commands for `ip -batch`: eth0 is on the fabric, eth1 on the management network."""
        host, management = self.host, f"{self.host.name}-mgmt"
        lines = [
            "link set dev lo up",
            f"link set dev eth0 name {host.interface}",
            f"link set dev eth1 name {management}",
            f"link set dev {host.interface} mtu {self.mtu} txqueuelen 4096 up",
            f"link set dev {management} up",
            f"address add {host.ip}/{self.prefix_length} dev {host.interface}",
            f"address add {host.management_ip}/{self.management_prefix_length} dev {management}",
        ]
        lines += [
            f"neigh replace {ip} lladdr {mac} dev {host.interface} nud permanent"
            for ip, mac in self.neighbours
        ]
        return "\n".join(lines) + "\n"

    def write(self, directory: Path, cluster_directory: Path) -> None:
        """Make the directory that the machine reads."""
        directory.mkdir(parents=True, exist_ok=True)
        packages = access.package_directories(_PACKAGES)
        names = "".join(f"{address} {name}\n" for name, address in self.hosts.items())
        (directory / "settings").write_text(self.settings())
        (directory / "network").write_text(self.network())
        (directory / "hosts").write_text(f"127.0.0.1 localhost\n{names}")
        (directory / "packages").write_text("".join(f"{path}\n" for path in packages))
        shutil.copy(cluster_directory / f"{access.CLIENT_KEY}.pub", directory / "authorized_keys")
        shutil.copy(cluster_directory / access.SERVER_KEY, directory / "host_key")


class Machine:
    """The machine of `host`, a RoCE host of `cluster`."""

    def __init__(self, cluster: ClusterState, host: HostState) -> None:
        self.cluster = cluster
        self.host = host
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: subprocess.Popen[bytes] | None = None
        self._complaint = ""  # the last connection's
        self._next_try = 0.0

    @property
    def console(self) -> Path:
        """Output of its kernel and first process."""
        return self.cluster.directory / f"{self.host.name}.console"

    def start(self, image: Image, settings: MachineSettings, ports: Sequence[Port]) -> ProcessId:
        """Make its process; `go` lets it go on as QEMU, once it is recorded.

        If we are killed before that, it sees its input end, and ends too: nobody would know of it.
        """
        shared = self.cluster.directory / "machines" / self.host.name
        settings.write(shared, self.cluster.directory)
        self.console.write_bytes(b"")
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    *("nsenter", f"--net=/proc/{self.host.process.pid}/ns/net", "--"),
                    *("sh", "-c", _WHEN_TOLD, "sh"),
                    *command_line(image, self.host.name, ports, console=self.console, shared=shared),
                ],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=self.cluster.directory,
                start_new_session=True,
            )
        return ProcessId.of(self._process.pid)

    def go(self) -> None:
        """Let it boot; it is not ready yet."""
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # it has ended: `check` says why
                self._process.stdin.write(b"\n")
                self._process.stdin.close()

    def booted(self) -> bool:
        """Tell whether its first process says that it is ready. Raise TopologyError if it never will be."""
        self.check()
        text = self.console.read_text(errors="replace")
        failed = _FAILED.search(text)
        if failed is not None:
            raise TopologyError(f"the machine of host {self.host.name} does not boot: {failed[1].strip()}")
        return _READY in text

    def reachable(self) -> bool:
        """Tell whether commands can be run in it. Open the connection for them if need be."""
        self.check()
        if self._connection is not None and self._connection.poll() is not None:
            said = b"" if self._connection.stderr is None else self._connection.stderr.read()
            self._complaint = f"it cannot be reached: {said.decode(errors='replace').strip()}"
            self._close_connection()
            self._next_try = time.monotonic() + _BETWEEN_TRIES_S
        if self._connection is None:
            if time.monotonic() < self._next_try:
                return False
            self._connection = access.connect(self.cluster, self.host)
        return access.connection(self.cluster, self.host).exists()

    def check(self) -> None:
        """Raise TopologyError if it has ended."""
        if self._process is not None and self._process.poll() is not None:
            raise TopologyError(f"the machine of host {self.host.name} has ended: {self.last_words()}")

    def last_words(self) -> str:
        """Return the complaint of ssh or QEMU, or the end of its console."""
        if self._complaint:
            return self._complaint
        for path in (self._log, self.console):
            lines = path.read_text(errors="replace").strip().splitlines() if path.exists() else []
            if lines:
                return " / ".join(line.strip() for line in lines[-_LAST_LINES:])
        return "nothing on its console"

    def processes(self) -> list[subprocess.Popen[bytes]]:
        """Return the processes started for it that are to be waited for."""
        return [process for process in (self._connection, self._process) if process is not None]

    def _close_connection(self) -> None:
        if self._connection is not None and self._connection.stderr is not None:
            self._connection.stderr.close()
        self._connection = None

    @property
    def _log(self) -> Path:
        return self.cluster.directory / f"{self.host.name}.qemu"


def accelerator() -> str:
    """Return QEMU's accelerator: software emulation, which works everywhere, unless another was chosen."""
    return os.environ.get(ACCELERATION) or _SOFTWARE


def hint(image: Image) -> str:
    """Say what to try if machines do not boot."""
    if accelerator() == _SOFTWARE:
        return f" (if the image is damaged: remove {image.directory}, then {HOW})"
    return f" (unset {ACCELERATION}, which is {accelerator()}: software emulation works everywhere)"


def command_line(image: Image, name: str, ports: Sequence[Port], *, console: Path, shared: Path) -> list[str]:
    """Return QEMU's command line."""
    acceleration = accelerator()
    processor = _EMULATED_PROCESSOR if acceleration == _SOFTWARE else "host"
    command = [
        *(QEMU, "-name", name, "-accel", acceleration, "-cpu", processor, "-m", str(MEMORY_MB), "-smp", "1"),
        *("-no-user-config", "-nodefaults", "-display", "none", "-no-reboot"),
        *("-kernel", str(image.kernel), "-initrd", str(image.initrd), "-append", _KERNEL_COMMAND_LINE),
        *("-chardev", f"file,id=console,path={_escaped(console)}", "-serial", "chardev:console"),
    ]
    for place, port in enumerate(ports):
        command += ["-netdev", f"tap,id=net{place},ifname={port.tap},script=no,downscript=no"]
        command += [
            "-device",
            f"virtio-net-pci,netdev=net{place},addr={4 + place:#x},mac={port.mac},romfile=,{_NO_OFFLOADS}",
        ]
    for place, (tag, path) in enumerate((("machine", shared), ("host", Path("/")))):
        options = f"path={_escaped(path)},security_model=none,readonly=on,multidevs=remap"
        command += ["-fsdev", f"local,id=files{place},{options}"]
        command += ["-device", f"virtio-9p-pci,fsdev=files{place},mount_tag={tag},addr={8 + place:#x}"]
    return command


def _escaped(path: Path) -> str:
    """Escape a path for an option of QEMU's, where a comma ends a value."""
    return str(path).replace(",", ",,")

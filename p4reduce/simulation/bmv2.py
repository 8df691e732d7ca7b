"""BMv2 with the compiled program, and a wire at each of its ports. Needs root, and simple_switch_grpc.

It runs in a network namespace without a name, and dies with the thread that started it: whatever ends this
process, nothing of it stays, and two of them know nothing of each other.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import subprocess
import tempfile
import time
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

from finsy.proto import p4r

from controller.entries import Entry, Key, key_of, table_entry
from controller.fabric.tables.edges import EDGE_PORT
from controller.fabric.tables.forward import ROUTE
from controller.switches.p4rt import P4RuntimeClient
from controller.switches.pipeline import load, shipped_program
from controller.switches.queries import OP_ECHO
from controller.switches.updates import SwitchError, Update, UpdateKind
from p4reduce.simulation.wires import Bench, Fence, SilentSwitchError, Wire
from p4src import CPU_PORT

T = TypeVar("T")
_CLONE_NEWNET = 0x40000000
_MTU = 9200
_START_S = 60.0
_ECHOES_S = 5.0
BATCH = 4  # its capture buffer holds 32 frames a port, and one that comes in may leave as several


# Frames of a veth wait in the queue of whichever processor sent them: steered into one, they stay in order.
_IN_ORDER = """\
mount -t sysfs sysfs /sys
for steering in /sys/class/net/*/queues/rx-0/rps_cpus; do
    [ ! -e $steering ] || echo 1 > $steering || exit
done
"""


class Bmv2Error(Exception):
    """BMv2 cannot be started, or does not do what it is asked for."""


class Bmv2(AbstractContextManager["Bmv2"]):
    """A running BMv2. `bench`: its wires; `echoes`: the nonces that it told the controller, in order."""

    def __init__(self, ports: Sequence[int]) -> None:
        self.ports = list(ports)
        self.echoes: list[int] = []
        self.is_fresh = False
        self._there: dict[Key, Entry] = {}
        self._loop = asyncio.new_event_loop()
        self._client: P4RuntimeClient | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  closed in `close`
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="bmv2")  # its namespace is that
        self.bench = Bench({}, Fence())
        try:
            with tempfile.TemporaryDirectory(prefix="p4reduce-bmv2-") as folder:
                # A signal may come while it starts: what was made by then is here, to be closed.
                self._thread.submit(self._make, Path(folder)).result()
                self._connect(Path(folder, "p4rt"))
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    def _make(self, folder: Path) -> None:
        if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNET) != 0:
            reason = os.strerror(ctypes.get_errno())
            raise Bmv2Error(f"cannot make a network namespace for BMv2: {reason}: run it again as root")
        for setting in ("all", "default"):
            Path(f"/proc/sys/net/ipv6/conf/{setting}/disable_ipv6").write_text("1")
        lines = ["link set lo up"]
        for port in self.ports:
            lines.append(f"link add w{port} mtu {_MTU} type veth peer name p{port} mtu {_MTU}")
            lines += [f"link set {end}{port} up" for end in "wp"]
        _run("ip", "-batch", "-", stdin="\n".join(lines))
        _run("unshare", "--mount", "sh", "-c", _IN_ORDER)
        self.bench = Bench({port: Wire(f"w{port}") for port in self.ports}, Fence())
        self._process = subprocess.Popen(
            [
                *("setpriv", "--pdeathsig", "KILL", "--", "simple_switch_grpc"),
                *(word for port in self.ports for word in ("-i", f"{port}@p{port}")),
                *("--no-p4", "--device-id", "0", "--log-console", "-L", "error"),
                *("--notifications-addr", f"ipc://{folder}/notify", "--"),
                *("--grpc-server-addr", f"unix:{folder}/p4rt", "--cpu-port", str(CPU_PORT)),
            ],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for us alone
        )

    def _connect(self, socket: Path) -> None:
        assert self._process is not None
        deadline = time.monotonic() + _START_S
        while self._client is None:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise Bmv2Error(f"BMv2 does not start: {self._last_words()}")
            time.sleep(0.02)
            if not socket.exists():
                continue
            client = P4RuntimeClient(
                f"unix:{socket}",
                device_id=0,
                schema=shipped_program().schema,
                label="BMv2",
                on_packet=self._packet_in,
            )
            try:
                self._do(client.open(1))
            except SwitchError:  # it listens a moment after there is a socket
                self._do(client.close())
            else:
                self._client = client

    @property
    def process_id(self) -> int:
        """The process id of simple_switch_grpc."""
        assert self._process is not None
        return self._process.pid

    def restart(self) -> None:
        """Load the program anew: no entries but those that forward fences, and empty registers."""
        if self.is_fresh:
            return
        self._do(load(self._p4runtime, shipped_program()))
        self._there.clear()
        self.write([entry for port in self.ports for entry in _way(port)], [])
        self.is_fresh = True

    def write(self, insert: Sequence[Entry], delete: Sequence[Entry]) -> None:
        """Take entries away; insert some, or change those with the same key."""
        self.is_fresh = False
        self._do(self._p4runtime.write([Update(UpdateKind.DELETE, entry) for entry in delete]))
        for entry in delete:
            del self._there[key_of(entry)]
        kinds = (UpdateKind.MODIFY if key_of(entry) in self._there else UpdateKind.INSERT for entry in insert)
        self._do(self._p4runtime.write([Update(*update) for update in zip(kinds, insert, strict=True)]))
        self._there |= {key_of(entry): entry for entry in insert}

    def play(self, frames: Sequence[tuple[int, bytes]]) -> dict[int, list[bytes]]:
        """Send frames into ports; return what came out of each port, in order."""
        self.is_fresh = False
        try:
            return self.bench.play(frames, batch=BATCH)
        except SilentSwitchError as error:
            assert self._process is not None
            code = self._process.poll()
            how = "does not forward any more" if code is None else f"ended with exit code {code}"
            raise Bmv2Error(f"BMv2 {how} ({error}): {self._last_words()}") from error

    def wait_for_echoes(self, count: int) -> None:
        """Wait until the controller was told of so many echoes, or 5 s; they take another way than frames."""
        deadline = time.monotonic() + _ECHOES_S
        while len(self.echoes) < count and time.monotonic() < deadline:
            self._do(asyncio.sleep(0.005))

    def read_counters(self, cells: Sequence[tuple[str, int | None]]) -> dict[tuple[str, int], int]:
        """Return the packets counted, by counter and index."""
        found = self._do(self._p4runtime.read_counters(cells))
        return {cell: packets for cell, (packets, _) in found.items()}

    def close(self) -> None:
        """End BMv2 and its wires."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        if self._client is not None:
            self._do(self._client.close())
        self._loop.close()
        self.bench.close()
        self._thread.shutdown()
        self._log.close()

    @property
    def _p4runtime(self) -> P4RuntimeClient:
        assert self._client is not None
        return self._client

    def _packet_in(self, message: p4r.PacketIn) -> None:
        fields = shipped_program().schema.packet_in(message)
        assert fields["op"] == OP_ECHO
        self.echoes.append(fields["index"])

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(work)

    def _last_words(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace").strip()[-500:] or "it said nothing"


def _run(*command: str, stdin: str = "") -> None:
    """Run a command in the network namespace of the calling thread."""
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Bmv2Error(f"cannot make veths for BMv2: {command[0]}: {done.stderr.strip()}")


def _way(port: int) -> tuple[Entry, Entry]:
    """Return the entries that forward fences by a port and to it.

    The entry of the port also names who is behind it, which the controller overwrites.
    """
    route = table_entry(
        ROUTE,
        {"dst_ip": (int(Fence.address(port)), 32)},
        "SwitchIngress.forward.next_hop",
        port=port,
        src_mac=1,
        dst_mac=2,
    )
    return table_entry(EDGE_PORT, {"ingress_port": port}, "SwitchIngress.edges.fabric_port"), route

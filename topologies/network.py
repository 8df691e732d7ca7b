"""Mininet's network with its own `iperf`: Mininet's waits for ever for output that iperf 2.1 lacks."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

from mininet.log import error, output
from mininet.net import Mininet

from topologies.processes import end, wait_until

_STARTING_S: Final = 10.0
_MORE_S: Final = 30.0  # than the test is to take
_LISTENS: Final = {"TCP": ("tcp", "0A"), "UDP": ("udp", "07")}  # /proc/net/*, and the state there


class FabricNet(Mininet):  # type: ignore[misc]
    """The network of a fabric's switches and hosts."""

    def iperf(  # Mininet's names
        self,
        hosts: list[Any] | None = None,
        l4Type: str = "TCP",
        udpBw: str = "10M",
        fmt: str | None = None,
        seconds: int = 5,
        port: int = 5001,
    ) -> list[str]:
        """Measure the throughput from the first host to the last; return the server's and client's results.

        For UDP, the requested rate comes first. Return nothing, with an error in Mininet's log, if nothing
        was measured.
        """
        client, server = hosts or [self.hosts[0], self.hosts[-1]]
        if shutil.which("iperf") is None:
            error("*** Iperf: there is no iperf on this machine: apt-get install iperf\n")
            return []
        output(f"*** Iperf: testing {l4Type} bandwidth between {client} and {server}\n")
        words = [
            "iperf",
            "-p",
            str(port),
            *(("-f", fmt) if fmt else ()),
            *(("-u",) if l4Type == "UDP" else ()),
        ]
        rate = ["-b", udpBw] if l4Type == "UDP" else []
        serving = server.popen([*words, "-s"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        try:
            ready = wait_until(
                lambda: serving.poll() is not None or _listens(serving.pid, port, l4Type),
                timeout_s=_STARTING_S,
            )
            if not ready or serving.poll() is not None:
                error(f"*** Iperf: its server does not come up on {server}, port {port}\n")
                return []
            calling = client.popen(
                [*words, "-c", server.IP(), "-t", str(seconds), *rate],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            try:
                said, _ = calling.communicate(timeout=seconds + _MORE_S)
            except subprocess.TimeoutExpired:
                end([calling])
                error(f"*** Iperf: {client} does not reach {server} ({server.IP()})\n")
                return []
            serving.terminate()
            heard, _ = serving.communicate()
        finally:
            end([serving])
        results = [_throughput(heard), _throughput(said)]
        if "" in results:
            error(f"*** Iperf: nothing was measured: {said.decode(errors='replace').strip()}\n")
            return []
        results = [udpBw, *results] if l4Type == "UDP" else results
        output(f"*** Results: {results}\n")
        return results


def _listens(pid: int, port: int, protocol: str) -> bool:
    """Tell whether a socket in the process's namespace listens on that port."""
    name, state = _LISTENS[protocol]
    lines: list[str] = []
    for table in (name, f"{name}6"):
        path = Path(f"/proc/{pid}/net/{table}")
        lines += path.read_text().splitlines()[1:] if path.exists() else []
    fields = [line.split() for line in lines]
    return any(of[1].endswith(f":{port:04X}") and of[3] == state for of in fields)


def _throughput(said: bytes) -> str:
    """Return the last figure that iperf has printed; empty if there is none."""
    found = re.findall(r"([\d.]+ \w*bits/sec)", said.decode(errors="replace"), re.IGNORECASE)
    return found[-1] if found else ""

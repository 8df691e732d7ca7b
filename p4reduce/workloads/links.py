"""Bytes over every link of a running cluster: hosts' links and those between switches.

The kernel counts them at the switches' ends, so the counts survive a switch that dies and starts again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from p4reduce.workloads.errors import WorkloadError
from p4reduce.workloads.run_file import LinkBytes
from topologies.state import ClusterState

_SETTLES, _SETTLED_S = 20, 0.05
LinkLook = Callable[[], dict[str, LinkBytes]]
_RX_BYTES, _TX_BYTES, _COLUMNS = 0, 8, 16  # of /proc/net/dev


def link_names(cluster: ClusterState) -> list[str]:
    """Return the links' names: `h1:s1` for each host, then `l1:s1` for each link between switches."""
    hosts = [f"{host.name}:{host.switch}" for host in cluster.hosts]
    return [*hosts, *(link.name for link in cluster.links)]


def link_bytes(cluster: ClusterState) -> dict[str, LinkBytes]:
    """Return the bytes over each link since it exists."""
    return link_look(cluster)()


def settled_link_bytes(cluster: ClusterState) -> dict[str, LinkBytes]:
    """Return `link_bytes` when nothing is under way any more, or after a second.

    A retransmission may still be in a link's queue when its sum is done. It must not count for the next sum,
    which another strategy makes.
    """
    look = link_look(cluster)
    found = look()
    for _ in range(_SETTLES):
        time.sleep(_SETTLED_S)
        if (now := look()) == found:
            break
        found = now
    return found


def link_look(cluster: ClusterState) -> LinkLook:
    """Make a function that returns the bytes over each link since it exists.

    It reads one file, which is cheap enough to do often.
    """
    process = cluster.controller_process
    if process is None:
        raise WorkloadError(f"cluster {cluster.name} has no controller to look for links beside")
    path = Path(f"/proc/{process.pid}/net/dev")  # of the network namespace that the switches are in
    ends = {
        f"{host.name}:{host.switch}": cluster.switch(host.switch).interfaces[host.port]
        for host in cluster.hosts
    }
    uplinks = {link.name: (link.a_interface, link.b_interface) for link in cluster.links}

    def look() -> dict[str, LinkBytes]:
        try:
            counted = decode(path.read_text())
        except OSError as error:
            raise WorkloadError(f"the controller of cluster {cluster.name} has ended: {error}") from error
        found = {}
        for name, interface in ends.items():
            received, sent = counted[interface]
            found[name] = LinkBytes(up=received, down=sent)
        for name, (leaf, spine) in uplinks.items():
            found[name] = LinkBytes(up=counted[leaf][1], down=counted[spine][1])
        return found

    return look


def decode(text: str) -> dict[str, tuple[int, int]]:
    """Decode /proc/net/dev: bytes received and sent by each interface."""
    found = {}
    for line in text.splitlines()[2:]:
        name, _, rest = line.partition(":")
        columns = rest.split()
        if len(columns) == _COLUMNS:
            found[name.strip()] = int(columns[_RX_BYTES]), int(columns[_TX_BYTES])
    return found


def since(now: Mapping[str, LinkBytes], earlier: Mapping[str, LinkBytes]) -> dict[str, LinkBytes]:
    """Return the bytes over each link between two looks."""
    return {
        name: LinkBytes(up=bytes_.up - earlier[name].up, down=bytes_.down - earlier[name].down)
        for name, bytes_ in now.items()
    }


def mean(looks: Sequence[Mapping[str, LinkBytes]], *, repeat: int = 1) -> dict[str, LinkBytes]:
    """Return the mean bytes of several looks, each of which covers `repeat` equal sums."""
    count = len(looks) * repeat
    return {
        name: LinkBytes(
            up=round(sum(look[name].up for look in looks) / count),
            down=round(sum(look[name].down for look in looks) / count),
        )
        for name in looks[0]
    }

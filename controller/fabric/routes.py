"""The base entries of a switch, by which hosts reach each other, whatever jobs there are."""

from __future__ import annotations

import math
from collections.abc import Iterable

from controller.config import Config, HostConfig, SwitchConfig
from controller.entries import Entry, Group
from controller.fabric.addresses import mac_number, switch_mac
from controller.fabric.graph import ALL_UP, Graph, Link, LinkState, spread
from controller.fabric.tables import edges, forward, tree_out
from controller.slots.allocator import FLOOD_GROUP
from p4src import AGAIN_GROUP, RID_BACK, RID_UP


def rack_entries(switch: SwitchConfig, hosts: Iterable[HostConfig]) -> list[Entry]:
    """Return routes, MACs and addresses of the hosts behind one switch; broadcasts go to all of these."""
    hosts = sorted(hosts, key=lambda host: host.port)
    entries: list[Entry] = [Group(FLOOD_GROUP, tuple((host.port, 1) for host in hosts))]
    for host in hosts:
        macs = {"src_mac": switch_mac(switch.device_id, host.port), "dst_mac": mac_number(host.mac)}
        entries += [
            forward.next_hop(host.ip, port=host.port, **macs),
            forward.to_port(host.mac, host.port),
            edges.host_port(host.port, host.ip),
        ]
    entries.append(forward.flood(FLOOD_GROUP))
    return entries


def base_entries(config: Config, switch: SwitchConfig, state: LinkState = ALL_UP) -> list[Entry]:
    """Return all entries that a switch needs without any job; `state` changes only `ecmp_member`."""
    graph = Graph.of(config)
    if switch.name in graph.spines:
        return _spine(config, graph, switch)
    entries = rack_entries(switch, config.hosts_of(switch.name))
    uplinks = graph.uplinks(switch.name)
    if uplinks:
        entries += _edges(config, switch, uplinks)
        entries += _remote(config, graph, switch, state)
    return entries


def _spine(config: Config, graph: Graph, switch: SwitchConfig) -> list[Entry]:
    entries: list[Entry] = []
    for link in graph.downlinks(switch.name):
        leaf = config.switch(link.leaf)
        entries.append(edges.fabric_port(link.spine_port))
        entries.append(tree_out.over(switch, link.spine_port, leaf, link.leaf_port))
        hop = _hop(switch, link.spine_port, leaf, link.leaf_port)
        entries += [forward.next_hop(host.ip, **hop) for host in _by_port(config, link.leaf)]
    return entries


def _edges(config: Config, leaf: SwitchConfig, uplinks: Iterable[Link]) -> list[Entry]:
    """Return the entries of a leaf's uplinks, with a group for each host's port and uplink.

    The group sends both ways: a partial sum goes up again, and its sender is answered with an RNR NAK.
    """
    entries: list[Entry] = []
    hosts = _by_port(config, leaf.name)
    for link in uplinks:
        entries.append(edges.fabric_port(link.leaf_port))
        entries.append(tree_out.over(leaf, link.leaf_port, config.switch(link.spine), link.spine_port))
        for host in hosts:
            replicas = sorted(((link.leaf_port, RID_UP), (host.port, RID_BACK)))
            entries.append(Group(AGAIN_GROUP + 4 * host.port + link.index, tuple(replicas)))
    return entries


def _remote(config: Config, graph: Graph, leaf: SwitchConfig, state: LinkState) -> list[Entry]:
    """Return the routes to hosts of other racks, over the spines that both leaves can use.

    A group has as many members as can be spread evenly over any number of the spines. So a failing link
    changes only members. If no spine can be used, all spines that are not drained stay in use.
    """
    entries: list[Entry] = []
    for number, remote in enumerate(graph.leaves, 1):
        spines = graph.common_spines((leaf.name, remote))
        if remote == leaf.name or not spines:
            continue
        usable = (
            graph.common_spines((leaf.name, remote), state)
            or graph.common_spines((leaf.name, remote), LinkState(drained=state.drained))
            or spines
        )
        members = spread(math.lcm(*range(1, len(spines) + 1)), spines, usable)
        for index, spine in enumerate(members):
            link = graph.link(leaf.name, spine)
            assert link is not None
            hop = _hop(leaf, link.leaf_port, config.switch(spine), link.spine_port)
            entries.append(forward.ecmp_member(number, index, **hop))
        entries += [
            forward.ecmp(host.ip, group=number, size=len(members)) for host in _by_port(config, remote)
        ]
    return entries


def _by_port(config: Config, switch: str) -> list[HostConfig]:
    return sorted(config.hosts_of(switch), key=lambda host: host.port)


def _hop(near: SwitchConfig, port: int, far: SwitchConfig, far_port: int) -> dict[str, int]:
    return {
        "port": port,
        "src_mac": switch_mac(near.device_id, port),
        "dst_mac": switch_mac(far.device_id, far_port),
    }

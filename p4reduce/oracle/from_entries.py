"""A switch model built from a controller's entries, which it reads as the P4 program does.

Entries that contradict each other fail an assertion: a bit that is not its worker's place, a replica without
its addresses, a region of two jobs.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Any

from controller.entries import Entry, Group, Key, TableEntry, key_of
from controller.fabric.tables.edges import EDGE_PORT
from controller.fabric.tables.emit import EMIT
from controller.fabric.tables.forward import ECMP_MEMBER, MAC, ROUTE
from controller.fabric.tables.membership import FLOW, MEMBER_QP
from controller.fabric.tables.tree import TREE_JOB
from controller.fabric.tables.tree_out import TREE_LINK
from controller.fabric.tables.up import UPLINK
from p4reduce.oracle.slot_rules import Role, SwitchModel
from p4reduce.oracle.state import BUCKETS, Flow, Job, LeafTree, Link, Route, Slot, SpineJob
from p4src import AGAIN_GROUP, RID_BACK, RID_UP

FLOWS_OF_A_JOB = 32
OF_A_JOB = ("all_ranks", "region", "window_mask", "packets_shift", "group")  # the same in all its entries
_ADDRESSES: dict[str, Callable[[int], Any]] = {"mac": lambda mac: mac.to_bytes(6, "big"), "ip": IPv4Address}


@dataclass(frozen=True)
class Row:
    """A table entry with its fields by name, and with MAC and IP addresses as such."""

    match: dict[str, Any]
    action: str
    params: dict[str, Any]

    @classmethod
    def of(cls, entry: TableEntry) -> Row:
        """Make a row of an entry that the controller writes."""
        params = {name: _ADDRESSES.get(name.split("_")[-1], int)(value) for name, value in entry.params}
        return cls(dict(entry.match), entry.action.rsplit(".", 1)[1], params)

    def named(self, *names: str) -> dict[str, Any]:
        """Return these parameters, and all addresses."""
        addresses = {name: value for name, value in self.params.items() if not isinstance(value, int)}
        return {**addresses, **{name: self.params[name] for name in names}}

    def require(self, like: Row | None = None, names: Iterable[str] = (), **params: int) -> None:
        """Assert that the row has these parameters, and those of `names` with the values that `like` has."""
        wanted = params | {name: like.params[name] for name in names if like is not None}
        assert {**self.params, **wanted} == self.params, f"{self}: not {wanted}"


class EntrySwitch(SwitchModel):
    """A switch that starts empty. `jobs`: by generation, while a flow or leaf of theirs has an entry."""

    def __init__(self) -> None:
        super().__init__([], {})
        self.entries: dict[Key, Entry] = {}
        self._rows: defaultdict[str, dict[Key, Row]] = defaultdict(dict)  # the same, by table
        self.registers: defaultdict[int, Slot] = defaultdict(Slot)
        self.jobs: dict[int, Job | SpineJob] = {}
        self.past: Counter[str] = Counter()  # what was counted for jobs that have gone
        self.nobody = Job(0, 0, 1, 1, ())  # whose flows have gone, or are not here

    def write(self, insert: Iterable[Entry] = (), *, delete: Iterable[Entry] = ()) -> None:
        """Take entries away; insert some, or change those with the same key."""
        for entry in delete:
            key = key_of(entry)
            del self.entries[key]
            if isinstance(entry, TableEntry):
                del self._rows[entry.table][key]
        for entry in insert:
            key = key_of(entry)
            self.entries[key] = entry
            if isinstance(entry, TableEntry):
                self._rows[entry.table][key] = Row.of(entry)
        self.rebuild()

    def restart(self) -> None:
        """Empty every register, and read the controller's entries again at once."""
        self.registers.clear()
        before, self.jobs = self.jobs, {}
        self.rebuild()
        self._retire(before)

    def rows(self, table: str, action: str = "") -> list[Row]:
        """Return a table's rows with that action, or with any action."""
        return [row for row in self._rows[table].values() if action in ("", row.action)]

    def copies(self, group: int) -> tuple[tuple[int, int], ...]:
        """Return a multicast group's replicas: (port, instance) each."""
        entry = self.entries["group", group]
        assert isinstance(entry, Group)
        return entry.replicas

    def replicas(self, group: int) -> dict[int, int]:
        """Return a group's ports by instance. Two replicas with the same instance fail an assertion."""
        ports = {instance: port for port, instance in self.copies(group)}
        assert len(ports) == len(self.copies(group)), f"group {group}: {self.copies(group)}"
        return ports

    def rebuild(self) -> None:
        """Make of the entries what the model works with; slots and records stay."""
        self._ports()
        self._routes()
        self.members, self.tree_jobs = {}, {}
        before, self.jobs = self.jobs, {}
        self._leaf_jobs(before)
        self._spine_jobs(before)
        owned = [id(slot) for job in self.jobs.values() for slot in job.slots]
        assert len(owned) == len(set(owned)), "two jobs have the same slots"
        self._retire(before)

    def counted(self) -> Counter[str]:
        """Return the counters of all jobs since the switch was started."""
        return sum((job.counters for job in self.jobs.values()), self.past + self.nobody.counters)

    def _retire(self, before: dict[int, Job | SpineJob]) -> None:
        for generation, job in before.items():
            if self.jobs.get(generation) is not job:
                self.past += job.counters

    def _ports(self) -> None:
        hosts, fabric = self.rows(EDGE_PORT, "host_port"), self.rows(EDGE_PORT, "fabric_port")
        self.host_ports = {row.match["ingress_port"]: row.params["ip"] for row in hosts}
        self.fabric_ports = frozenset(row.match["ingress_port"] for row in fabric)
        links = {row.match["egress_port"]: Link(**row.params) for row in self.rows(TREE_LINK)}
        self.links = {port: links[port] for port in self.fabric_ports if port in links}  # one by one

    def _routes(self) -> None:
        floods = [row.params["group"] for row in self.rows(MAC, "flood")]
        self.flood = tuple(port for group in floods for port, _ in self.copies(group))
        known = self.rows(MAC, "to_port")
        self.mac_ports = {row.match["dst_mac"].to_bytes(6, "big"): row.params["port"] for row in known}
        members = self.rows(ECMP_MEMBER)
        hops = {(row.match["group"], row.match["index"]): Route(**row.params) for row in members}
        self.routes = {}
        for row in self.rows(ROUTE):
            (ip, prefix), params = row.match["dst_ip"], row.params
            assert prefix == 32
            if row.action == "ecmp":
                assert params["group"] != 0  # for the program, there is one way only then
                self.routes[_packed(ip)] = tuple(hops[params["group"], k] for k in range(params["size"]))
            else:
                self.routes[_packed(ip)] = Route(**params)

    def _leaf_jobs(self, before: dict[int, Job | SpineJob]) -> None:
        by_generation: defaultdict[int, list[Row]] = defaultdict(list)
        for row in self.rows(FLOW, "data_flow"):
            by_generation[row.params["generation"]].append(row)
        emits = self._emits("to_flow")
        by_number: dict[int, tuple[Job, Flow]] = {}
        for generation, rows in by_generation.items():
            rows.sort(key=lambda row: row.params["rank_bit"])
            flows, tree = self._flows(rows, emits)
            job = before.get(generation)
            if not (isinstance(job, Job) and job.flows == flows):
                job = Job(rows[0].params["job"], generation, *_shape(rows[0]), flows)
            job.tree = tree
            self._take(job, rows[0])
            for row, flow in zip(rows, flows, strict=True):
                by_number[row.params["flow"]] = (job, flow)
                self.members[_key(row)] = (job, flow, Role.DATA)
            for port, row in self._trees(generation, "from_spine"):
                row.require(rows[-1], (*OF_A_JOB, "psn_shift", "flow"))
                self.tree_jobs[port, generation] = job
        for row in self.rows(FLOW, "ack_flow"):
            job, flow = by_number[row.params["flow"]]
            said = {
                "track": flow.rnr_syndrome != 0,
                "generation": job.generation,
                "first_psn": flow.first_psn,
            }
            assert row.params == {"flow": row.params["flow"], **said}
            self.members[_key(row)] = (job, flow, Role.ACK)
        for row in self.rows(FLOW, "pass_on"):
            self.members[_key(row)] = (self.nobody, Flow(), Role.PASSING)
        for row in self.rows(MEMBER_QP):
            owner = by_number.get(row.params["of_flow"], (self.nobody, Flow()))
            self.members[_packed(row.match["dst_ip"]), row.match["dest_qp"]] = (*owner, Role.GUARD)

    def _emits(self, action: str) -> dict[tuple[int, int], Row]:
        return {(row.match["group"], row.match["rid"]): row for row in self.rows(EMIT, action)}

    def _flows(
        self, rows: list[Row], emits: dict[tuple[int, int], Row]
    ) -> tuple[tuple[Flow, ...], LeafTree | None]:
        """Return the flows of a job's workers here, and its tree if it has workers in other racks.

        With a tree, the receiver of the last flow is in another rack.
        """
        first, last, flows = rows[0].params, len(rows) - 1, []
        group, number, two_level = first["group"], first["flow"], first["two_level"]
        self.check_icrc, ports = bool(first["check_icrc"]), self.replicas(group)
        assert (number % FLOWS_OF_A_JOB, first["all_ranks"]) == (0, (2 << last) - 1)
        assert len(ports) == len(rows)
        for place, row in enumerate(rows):
            row.require(rows[0], (*OF_A_JOB, "job", "two_level"), exit_psn_shift=8 * last * two_level)
            row.require(rank_bit=1 << place, psn_shift=8 * place, flow=number + place)
            emits[group, place + 1].require(psn_shift=8 * place)
            here, there = _sent(row), _emitted(emits[group, place + 1], ports[place + 1])
            if place < last or not two_level:
                assert {**here, **there} == {**there, **here}, "a flow is emitted with other addresses"
                here |= there
            flows.append(Flow(**here))
        return tuple(flows), LeafTree(Flow(**there), self._uplinks(group)) if two_level else None

    def _uplinks(self, group: int) -> list[int | None]:
        """Return the ports that lead to the spines, by bucket.

        Each uplink must have, for each host port, the group that sends up and answers the host at once.
        """
        ports: list[int | None] = [None] * BUCKETS
        for row in self.rows(UPLINK):
            if row.match["group"] == group:
                port = ports[row.match["bucket"]] = row.params["port"]
                assert port in self.links
                for host_port in self.host_ports:
                    both = self.replicas(AGAIN_GROUP + 4 * host_port + row.params["index"])
                    assert both == {RID_UP: port, RID_BACK: host_port}
        return ports

    def _trees(self, generation: int, action: str) -> list[tuple[int, Row]]:
        rows = [row for row in self.rows(TREE_JOB) if row.match["generation"] == generation]
        assert all(row.action == action for row in rows)
        return [(row.match["ingress_port"], row) for row in rows]

    def _spine_jobs(self, before: dict[int, Job | SpineJob]) -> None:
        emits = self._emits("to_leaf")
        for generation in sorted({row.match["generation"] for row in self.rows(TREE_JOB, "from_leaf")}):
            trees = sorted(self._trees(generation, "from_leaf"), key=lambda item: item[1].params["rank"])
            leaves, first = tuple(port for port, _ in trees), trees[0][1]
            group, number = first.params["group"], first.params["flow"]
            assert self.replicas(group) == dict(enumerate(leaves, 1))
            assert first.params["all_ranks"] == (1 << len(leaves)) - 1
            for k, (_, row) in enumerate(trees):
                row.require(first, OF_A_JOB, rank=k, rank_bit=1 << k, psn_shift=8 * k, flow=number + k)
                last = (k - 1) % len(leaves)
                expected = {"leaf_bit": 1 << k, "predecessor_bit": 1 << last, "psn_shift": 8 * last}
                assert emits[group, k + 1].params == expected
            job = before.get(generation)
            if not (isinstance(job, SpineJob) and job.leaves == leaves):
                job = SpineJob(0, generation, *_shape(first), leaves)
            self._take(job, first)
            self.tree_jobs.update(((port, generation), job) for port in leaves)

    def _take(self, job: Job | SpineJob, row: Row) -> None:
        base = row.params["region"]
        job.slots = [self.registers[base + n] for n in range(len(job.slots))]
        self.jobs[job.generation] = job


def _shape(row: Row) -> tuple[int, int]:
    """Return the window and the packets of a message."""
    return (row.params["window_mask"] + 1) // 2, 1 << row.params["packets_shift"]


def _packed(ip: int) -> bytes:
    return ip.to_bytes(4, "big")


def _key(row: Row) -> tuple[int, bytes, bytes, int]:
    match = row.match
    return match["ingress_port"], _packed(match["src_ip"]), _packed(match["dst_ip"]), match["dest_qp"]


def _sent(row: Row) -> dict[str, Any]:
    """Return the fields that a flow's entry on its sender's switch has."""
    port, src, dst, dst_qp = _key(row)
    ends = {"port": port, "src_ip": IPv4Address(src), "dst_ip": IPv4Address(dst), "dst_qp": dst_qp}
    return {**ends, "src_qp": row.params["ack_qp"], **row.named("rank", "first_psn", "rnr_syndrome")}


def _emitted(row: Row, port: int) -> dict[str, Any]:
    """Return the fields that a flow's entry has where its sums are emitted."""
    return {**row.named("rank", "udp_src_port"), "dst_port": port, "dst_qp": row.params["dest_qp"]}

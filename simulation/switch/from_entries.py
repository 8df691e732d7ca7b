"""The switch model with what a controller writes: its entries, read as the P4 program reads them.

Entries that contradict each other fail an assertion: a bit that is not its worker's place, a replica without
its addresses, a region of two jobs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Any

from controller.entries import Entry, Group, Key, TableEntry, key_of
from controller.flows import EMIT, FLOW, MEMBER_QP, TREE_JOB, UPLINK
from controller.routes import ECMP_MEMBER, EDGE_PORT, MAC, ROUTE, TREE_LINK
from p4src import AGAIN_GROUP, RID_BACK, RID_UP
from simulation.switch.slot_rules import Role, SwitchModel
from simulation.switch.state import BUCKETS, Flow, Job, LeafTree, Link, Route, Slot, SpineJob

FLOWS_OF_A_JOB = 32
ELSEWHERE = -1  # the port of who is in another rack


@dataclass(frozen=True)
class Row:
    """A table entry by names."""

    match: dict[str, Any]
    action: str
    params: dict[str, int]


class EntrySwitch(SwitchModel):
    """A switch that starts empty. `jobs`: by generation, as long as there is a flow or a leaf of theirs."""

    def __init__(self) -> None:
        super().__init__([], {})
        self.entries: dict[Key, Entry] = {}
        self._rows: dict[str, dict[Key, Row]] = {}  # the same, by table
        self.registers: dict[int, Slot] = {}
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
                action = entry.action.rsplit(".", 1)[1]
                row = Row(dict(entry.match), action, dict(entry.params))
                self._rows.setdefault(entry.table, {})[key] = row
        self.rebuild()

    def restart(self) -> None:
        """Every register is empty again; what the controller wrote is there at once."""
        self.registers.clear()
        before, self.jobs = self.jobs, {}
        self.rebuild()
        self._bury(before)

    def rows(self, table: str) -> list[Row]:
        return list(self._rows.get(table, {}).values())

    def replicas(self, group: int) -> dict[int, int]:
        """Ports by instance."""
        pairs = self.copies(group)
        ports = {instance: port for port, instance in pairs}
        assert len(ports) == len(pairs), f"group {group}: {pairs}"
        return ports

    def copies(self, group: int) -> tuple[tuple[int, int], ...]:
        """Ports and instances."""
        entry = self.entries["group", group]
        assert isinstance(entry, Group)
        return entry.replicas

    def rebuild(self) -> None:
        """Make of the entries what the model works with; slots and records stay."""
        self.routes = self._routes()
        edges = {row.match["ingress_port"]: row for row in self.rows(EDGE_PORT)}
        self.host_ports = {
            port: IPv4Address(row.params["ip"]) for port, row in edges.items() if row.action == "host_port"
        }
        links = {row.match["egress_port"]: _link(row.params) for row in self.rows(TREE_LINK)}
        self.fabric_ports = frozenset(port for port, row in edges.items() if row.action == "fabric_port")
        self.links = {port: links[port] for port in self.fabric_ports if port in links}  # one by one
        self.flood = tuple(
            port
            for row in self.rows(MAC)
            if row.action == "flood"
            for port, _ in self.copies(row.params["group"])
        )
        self.mac_ports = {
            row.match["dst_mac"].to_bytes(6, "big"): row.params["port"]
            for row in self.rows(MAC)
            if row.action == "to_port"
        }
        self.members, self.tree_jobs = {}, {}
        before, self.jobs = self.jobs, {}
        self._leaf_jobs(before)
        self._spine_jobs(before)
        self._owners_are_apart()
        self._bury(before)

    def counted(self) -> Counter[str]:
        """For all jobs since it was started."""
        return sum((job.counters for job in self.jobs.values()), self.past + self.nobody.counters)

    def _bury(self, before: dict[int, Job | SpineJob]) -> None:
        for generation, job in before.items():
            if self.jobs.get(generation) is not job:
                self.past += job.counters

    def _routes(self) -> dict[bytes, Route | tuple[Route, ...]]:
        """By packed address."""
        hops = {
            (row.match["group"], row.match["index"]): _route(row.params) for row in self.rows(ECMP_MEMBER)
        }
        routes: dict[bytes, Route | tuple[Route, ...]] = {}
        for row in self.rows(ROUTE):
            ip, prefix = row.match["dst_ip"]
            assert prefix == 32
            if row.action == "ecmp":
                group = row.params["group"]
                assert group != 0  # for the program, there is one way only then
                routes[_packed(ip)] = tuple(hops[group, k] for k in range(row.params["size"]))
            else:
                routes[_packed(ip)] = _route(row.params)
        return routes

    def _leaf_jobs(self, before: dict[int, Job | SpineJob]) -> None:
        rows = self.rows(FLOW)
        emits = {(row.match["group"], row.match["rid"]): row for row in self.rows(EMIT)}
        by_generation: dict[int, list[Row]] = {}
        for row in rows:
            if row.action == "data_flow":
                by_generation.setdefault(row.params["generation"], []).append(row)
        by_number: dict[int, tuple[Job, Flow]] = {}
        for generation, data in by_generation.items():
            data.sort(key=lambda row: row.params["rank_bit"])
            job = self._leaf_job(generation, data, emits, before.get(generation))
            self.jobs[generation] = job
            for row, flow in zip(data, job.flows, strict=True):
                by_number[row.params["flow"]] = (job, flow)
                self.members[_key(row)] = (job, flow, Role.DATA)
        for row in rows:
            if row.action == "ack_flow":
                job, flow = by_number[row.params["flow"]]
                assert row.params["track"] == (flow.rnr_syndrome != 0)
                assert (row.params["generation"], row.params["first_psn"]) == (job.generation, flow.first_psn)
                self.members[_key(row)] = (job, flow, Role.ACK)
            elif row.action == "pass_on":
                self.members[_key(row)] = (self.nobody, NOWHERE, Role.PASSING)
        for row in self.rows(MEMBER_QP):
            owner = by_number.get(row.params["of_flow"], (self.nobody, NOWHERE))
            self.members[_packed(row.match["dst_ip"]), row.match["dest_qp"]] = (*owner, Role.GUARD)

    def _leaf_job(
        self,
        generation: int,
        data: Sequence[Row],
        emits: dict[tuple[int, int], Row],
        known: Job | SpineJob | None,
    ) -> Job:
        first = data[0].params
        shared = ("job", "all_ranks", "region", "window_mask", "packets_shift", "group", "two_level")
        for place, row in enumerate(data):
            assert [row.params[name] for name in shared] == [first[name] for name in shared]
            assert (row.params["rank_bit"], row.params["psn_shift"]) == (1 << place, 8 * place)
            assert row.params["flow"] == first["flow"] + place
            assert row.params["exit_psn_shift"] == 8 * (len(data) - 1) * first["two_level"]
        assert first["all_ranks"] == (1 << len(data)) - 1
        assert first["flow"] % FLOWS_OF_A_JOB == 0
        self.check_icrc = bool(first["check_icrc"])
        ports = self.replicas(first["group"])
        emitted = [
            _emitted(emits[first["group"], place + 1].params, ports[place + 1]) for place in range(len(data))
        ]
        assert len(ports) == len(emitted)
        two_level = bool(first["two_level"])
        flows = []
        for place, (row, out) in enumerate(zip(data, emitted, strict=True)):
            assert emits[first["group"], place + 1].params["psn_shift"] == 8 * place
            flow = _flow(row, out if not two_level or place < len(data) - 1 else None)
            flows.append(flow)
        tree = LeafTree(emitted[-1], self._uplinks(first["group"])) if two_level else None
        if isinstance(known, Job) and known.flows == tuple(flows):
            known.tree = tree
            job = known
        else:
            job = Job(
                first["job"],
                generation,
                (first["window_mask"] + 1) // 2,
                1 << first["packets_shift"],
                tuple(flows),
                tree,
            )
        self._take(job, first["region"])
        for port, row in self._trees(generation):
            assert row.action == "from_spine"
            same = ("all_ranks", "region", "window_mask", "packets_shift", "group")
            assert [row.params[name] for name in same] == [first[name] for name in same]
            assert row.params["psn_shift"] == 8 * (len(data) - 1)
            assert row.params["flow"] == first["flow"] + len(data) - 1
            self.tree_jobs[port, generation] = job
        return job

    def _uplinks(self, group: int) -> list[int | None]:
        """By bucket; each with the groups that send up and answer at once, one for each host's port."""
        ports: list[int | None] = [None] * BUCKETS
        for row in self.rows(UPLINK):
            if row.match["group"] != group:
                continue
            port, index = row.params["port"], row.params["index"]
            assert port in self.links
            ports[row.match["bucket"]] = port
            for host_port in self.host_ports:
                both = self.replicas(AGAIN_GROUP + 4 * host_port + index)
                assert both == {RID_UP: port, RID_BACK: host_port}
        return ports

    def _trees(self, generation: int) -> list[tuple[int, Row]]:
        return [
            (row.match["ingress_port"], row)
            for row in self.rows(TREE_JOB)
            if row.match["generation"] == generation
        ]

    def _spine_jobs(self, before: dict[int, Job | SpineJob]) -> None:
        emits = {
            (row.match["group"], row.match["rid"]): row.params
            for row in self.rows(EMIT)
            if row.action == "to_leaf"
        }
        generations = {row.match["generation"] for row in self.rows(TREE_JOB) if row.action == "from_leaf"}
        for generation in sorted(generations):
            rows = sorted(self._trees(generation), key=lambda item: item[1].params["rank"])
            first, count = rows[0][1].params, len(rows)
            ports = self.replicas(first["group"])
            assert ports == {k + 1: port for k, (port, _) in enumerate(rows)}
            shared = ("all_ranks", "region", "window_mask", "packets_shift", "group")
            for k, (_, row) in enumerate(rows):
                assert [row.params[name] for name in shared] == [first[name] for name in shared]
                own = ("rank", "rank_bit", "psn_shift", "flow")
                assert [row.params[name] for name in own] == [k, 1 << k, 8 * k, first["flow"] + k]
                last = (k - 1) % count
                assert emits[first["group"], k + 1] == {
                    "leaf_bit": 1 << k,
                    "predecessor_bit": 1 << last,
                    "psn_shift": 8 * last,
                }
            assert first["all_ranks"] == (1 << count) - 1
            leaves = tuple(port for port, _ in rows)
            known = before.get(generation)
            if isinstance(known, SpineJob) and known.leaves == leaves:
                job = known
            else:
                window = (first["window_mask"] + 1) // 2
                job = SpineJob(0, generation, window, 1 << first["packets_shift"], leaves)
            self._take(job, first["region"])
            self.jobs[generation] = job
            for port in leaves:
                self.tree_jobs[port, generation] = job

    def _take(self, job: Job | SpineJob, base: int) -> None:
        registers = self.registers
        for number in range(base, base + len(job.slots)):
            if number not in registers:
                registers[number] = Slot()
        job.slots = [registers[base + n] for n in range(len(job.slots))]

    def _owners_are_apart(self) -> None:
        owned = [id(slot) for job in self.jobs.values() for slot in job.slots]
        assert len(owned) == len(set(owned)), "two jobs have the same slots"


def _packed(ip: int) -> bytes:
    return ip.to_bytes(4, "big")


def _number_to_mac(number: int) -> bytes:
    return number.to_bytes(6, "big")


def _route(params: dict[str, int]) -> Route:
    return Route(
        port=params["port"],
        src_mac=_number_to_mac(params["src_mac"]),
        dst_mac=_number_to_mac(params["dst_mac"]),
    )


def _link(params: dict[str, int]) -> Link:
    return Link(
        src_mac=_number_to_mac(params["src_mac"]),
        dst_mac=_number_to_mac(params["dst_mac"]),
        src_ip=IPv4Address(params["src_ip"]),
        dst_ip=IPv4Address(params["dst_ip"]),
    )


def _key(row: Row) -> tuple[int, bytes, bytes, int]:
    match = row.match
    return match["ingress_port"], _packed(match["src_ip"]), _packed(match["dst_ip"]), match["dest_qp"]


def _emitted(params: dict[str, int], port: int) -> Flow:
    """What is known of a flow where its sums are emitted."""
    return Flow(
        rank=params["rank"],
        port=ELSEWHERE,
        src_mac=_number_to_mac(params["src_mac"]),
        src_ip=IPv4Address(params["src_ip"]),
        src_qp=0,
        dst_port=port,
        dst_mac=_number_to_mac(params["dst_mac"]),
        dst_ip=IPv4Address(params["dst_ip"]),
        dst_qp=params["dest_qp"],
        udp_src_port=params["udp_src_port"],
    )


def _flow(row: Row, out: Flow | None) -> Flow:
    """A flow whose sender is here; `out`: as it is emitted, None where its receiver is in another rack."""
    port, src, dst, dst_qp = _key(row)
    src_ip, dst_ip = IPv4Address(src), IPv4Address(dst)
    if out is not None:
        assert (out.rank, out.src_ip, out.dst_ip, out.dst_qp) == (row.params["rank"], src_ip, dst_ip, dst_qp)
    return Flow(
        rank=row.params["rank"],
        port=port,
        src_mac=out.src_mac if out else bytes(6),
        src_ip=src_ip,
        src_qp=row.params["ack_qp"],
        dst_port=out.dst_port if out else ELSEWHERE,
        dst_mac=out.dst_mac if out else bytes(6),
        dst_ip=dst_ip,
        dst_qp=dst_qp,
        udp_src_port=out.udp_src_port if out else 0,
        first_psn=row.params["first_psn"],
        rnr_syndrome=row.params["rnr_syndrome"],
    )


NOWHERE = Flow(
    rank=0,
    port=ELSEWHERE,
    src_mac=bytes(6),
    src_ip=IPv4Address(0),
    src_qp=0,
    dst_port=ELSEWHERE,
    dst_mac=bytes(6),
    dst_ip=IPv4Address(0),
    dst_qp=0,
)

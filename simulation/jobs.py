"""A job in a simulated fabric: its placement, its endpoints, what its ranks run and what must come out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from controller.allocator import Region, SwitchAllocator
from controller.api.errors import NoResourcesError
from controller.api.messages import Mode
from controller.config import Config, HostConfig
from controller.entries import Entry, key_of
from controller.flows import removal_order
from controller.graph import LinkState
from controller.planning import switches_of
from controller.specs import Member, Plan
from controller.trees import Tree, entries_on
from host_agent.transport import Endpoint, Predecessor, Successor, TransportConfig
from simulation import rack
from simulation.cases import Case, program
from simulation.nic import NicEndpoint
from simulation.switch.from_entries import EntrySwitch


class Worker(rack.Worker):
    """One rank of a job, and when it is to be looked after."""

    def __init__(self, job: JobRun, rank: int, endpoint: Endpoint | NicEndpoint) -> None:
        super().__init__(endpoint)
        self.job = job
        self.rank = rank
        self.timer_ns: int | None = None
        self.retransmitted = 0  # packets, known when the job has ended

    def __str__(self) -> str:
        return f"job {self.job.plan.job_id}, rank {self.rank} at {self.endpoint.config.ip}"


@dataclass(kw_only=True)
class JobSettings:
    """What a job is like. `placement`: the host of each rank. `adapters`: ranks with RNR-NAK style NICs.

    `selective`: lost packets alone are sent again, which adapters cannot.
    """

    placement: Sequence[HostConfig]
    cases: Sequence[Case]
    window: int = 2
    packets: int = 4
    path_mtu: int = 256
    first_psns: Sequence[int] = ()
    adapters: frozenset[int] = frozenset()
    rnr_ranks: frozenset[int] = frozenset()  # others that want RNR NAKs
    selective: bool = False
    seed: int = 0


@dataclass
class JobRun:
    """One job; `number` is its id, its generation and what its queue pairs are numbered by."""

    config: Config
    number: int
    settings: JobSettings
    started: bool = False
    ended: bool = False
    regions: dict[str, Region] = field(default_factory=dict)
    entries: dict[str, list[Entry]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        chosen = self.settings
        psns = list(chosen.first_psns) or [1000 * (rank + 1) for rank in range(len(chosen.placement))]
        self.members = [
            Member(
                rank=rank,
                mac=host.mac,
                ip=host.ip,
                qpn_out=self._qpn(rank, 0),
                psn_out=psns[rank],
                qpn_in=self._qpn(rank, 1),
                hostname=host.name,
                host=host.name,
                rnr_nak=rank in chosen.adapters or rank in chosen.rnr_ranks,
            )
            for rank, host in enumerate(chosen.placement)
        ]
        self.plan = Plan(
            job_id=self.number,
            generation=self.number,
            window=chosen.window,
            message_packets=chosen.packets,
            path_mtu=chosen.path_mtu,
            mode=Mode.IN_NETWORK,
        )
        self.tree = Tree.of(self.config, self.members)
        self.workers = [self._worker(rank) for rank in range(len(self.members))]
        world_size = len(self.members)
        self.inputs = [case.inputs(world_size, chosen.seed + n) for n, case in enumerate(chosen.cases)]
        self.outputs = [[case.output(world_size) for _ in range(world_size)] for case in chosen.cases]
        self.program = program(chosen.cases, self.inputs, self.outputs, self.tree.ring)

    def _qpn(self, rank: int, incoming: int) -> int:
        return 0x100 + 2 * (self.number * 256 + rank) + incoming

    def _worker(self, rank: int) -> Worker:
        ring, members = self.tree.ring, self.members
        place = ring.index(rank)
        me, after, before = members[rank], members[ring[(place + 1) % len(ring)]], members[ring[place - 1]]
        config = TransportConfig(
            mac=me.mac,
            ip=me.ip,
            qpn_out=me.qpn_out,
            psn_out=me.psn_out,
            qpn_in=me.qpn_in,
            successor=Successor(mac=after.mac, ip=after.ip, qpn_in=after.qpn_in),
            predecessor=Predecessor(
                mac=before.mac, ip=before.ip, qpn_out=before.qpn_out, psn_out=before.psn_out, rank=before.rank
            ),
            path_mtu=self.plan.path_mtu,
            window=self.plan.window,
            message_packets=self.plan.message_packets,
            job_id=self.plan.job_id,
            generation=self.plan.generation,
            rank=rank,
            world_size=len(members),
            selective=self.settings.selective,
        )
        nic = rank in self.settings.adapters
        return Worker(self, rank, NicEndpoint(config) if nic else Endpoint(config))

    @property
    def switches(self) -> tuple[str, ...]:
        """Its leaves, then the spines that may add up for them."""
        return switches_of(self.tree)

    def successor(self, rank: int) -> Worker:
        """Who receives from a rank."""
        ring = self.tree.ring
        return self.workers[ring[(ring.index(rank) + 1) % len(ring)]]

    def allocate(self, allocators: Mapping[str, SwitchAllocator]) -> bool:
        """Take a region on each of its switches; False where one has no room, and nothing is taken."""
        try:
            for switch in self.switches:
                self.regions[switch] = allocators[switch].allocate(self.plan.slots)
        except NoResourcesError:
            for switch, region in self.regions.items():
                allocators[switch].release(region)
            self.regions.clear()
            return False
        return True

    def entries_on(self, switch: str, state: LinkState) -> list[Entry]:
        spines = self.tree.spines(state) or self.tree.spines(LinkState())
        self.entries[switch] = entries_on(
            self.config, self.tree, switch, self.plan, self.regions[switch], spines
        )
        return self.entries[switch]

    def remove(self, name: str, switch: EntrySwitch) -> None:
        """What a switch holds of it; a spine that has just restarted may hold nothing yet."""
        rest, guards = removal_order(self.entries[name])
        for entries in (rest, guards):
            switch.write(delete=[entry for entry in entries if key_of(entry) in switch.entries])

    def is_over(self) -> bool:
        return self.started and not self.ended and all(worker.is_over() for worker in self.workers)

    def check(self) -> None:
        """Every result is exact, on every rank."""
        for case, inputs, outputs in zip(self.settings.cases, self.inputs, self.outputs, strict=True):
            case.check(inputs, outputs)

"""Loss and lateness: the NIC's own retransmission recovers, exactly, and nobody's queue pair breaks."""

from __future__ import annotations

from collections import Counter
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from host_agent.wire.headers import Opcode
from tests.e2e.captures import captured_in, go_backs, require_roce_v2
from tests.e2e.conftest import all_reduce, rack
from tests.roce.conftest import hardware_counters, joined_machines, total_of
from tests.roce.needed import machines
from topologies.rack import Rack

pytestmark = [pytest.mark.emulation, pytest.mark.roce, machines]

_LATE_S = 10.0


def test_losses_on_both_sides_of_the_switch(captures: Path) -> None:
    """The switch loses packets of every kind, as they come in and as they go out."""
    with rack(3, host_kinds=("roce",) * 3, switch_loss=0.01, pcap=captures) as running:
        with joined_machines(running, 3) as team:
            for seed in range(3):
                (answer, *_) = all_reduce(team, elements=60_001, dtype="int32", seed=seed)
                assert answer["check"]["exact"]
            all_reduce(team, elements=20_001, dtype="float32", seed=3)
        running_hosts = running.state.hosts
        counted = total_of(hardware_counters(running, host.name) for host in running_hosts)
    # Requesters were told of gaps and went back; responders saw what they had, and what came too early.
    assert counted["rcvd_seq_err"] > 0
    assert counted["out_of_seq_request"] > 0
    assert counted["duplicate_request"] > 0
    assert counted["retry_exceeded_err"] == counted["retry_rnr_exceeded_err"] == 0
    # They began again in the middle of messages, because of a NAK and because of a timeout.
    backs = [
        back
        for host in running_hosts
        for back in go_backs(captures / f"s1-eth{host.port}.pcap", IPv4Address(host.ip))
    ]
    assert {back.told for back in backs if back.opcode == Opcode.SEND_MIDDLE} == {True, False}, backs
    opcodes: Counter[int] = Counter()
    for path in captured_in(captures):
        opcodes += require_roce_v2(path, scapy_every=50)
    assert {Opcode.SEND_FIRST, Opcode.SEND_MIDDLE, Opcode.SEND_LAST, Opcode.ACKNOWLEDGE} <= set(opcodes)


@pytest.mark.parametrize("late", [0, 2])
def test_a_late_worker_breaks_nobodys_queue_pair(mixed_rack: Rack, late: int) -> None:
    """Its peers' NICs time out and repeat; the switch answers them with RNR NAKs, and they wait."""
    peers = [host.name for rank, host in enumerate(mixed_rack.state.hosts[:3]) if rank != late]
    before = total_of(hardware_counters(mixed_rack, name) for name in peers)
    with joined_machines(mixed_rack, 3) as team:
        lateness = [{"late_s": _LATE_S if rank == late else 0.0} for rank in range(3)]
        answers = team.do(
            "all_reduce", per_rank=lateness, elements=60_001, dtype="int32", seed=1, verify=True
        )
        assert all(answer["check"]["exact"] for answer in answers)
        all_reduce(team, elements=60_001, dtype="float32", seed=2)
    after = total_of(hardware_counters(mixed_rack, name) for name in peers)
    assert after["rcvd_rnr_err"] > before["rcvd_rnr_err"]
    assert after["retry_exceeded_err"] == before["retry_exceeded_err"]

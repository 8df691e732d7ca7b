"""Loss: the NIC's own retransmission recovers, exactly."""

from __future__ import annotations

from collections import Counter
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from host_agent.wire.headers import Opcode
from tests.e2e.captures import GoBack, captured_in, go_backs, require_roce_v2
from tests.e2e.conftest import all_reduce, rack
from tests.roce.conftest import hardware_counters, joined_machines, total_of
from tests.roce.needed import machines

pytestmark = [pytest.mark.emulation, pytest.mark.roce, pytest.mark.timeout(900), machines]


@pytest.mark.long
def test_losses_on_both_sides_of_the_switch(captures: Path) -> None:
    """Lose packets of every kind in the switch, as they come in and as they go out."""
    with rack(3, host_kinds=("roce",) * 3, switch_loss=0.02, pcap=captures) as running:
        with joined_machines(running, 3) as team:
            for seed in range(5):
                (answer, *_) = all_reduce(team, elements=60_001, dtype="int32", seed=seed)
                assert answer["check"]["exact"]
            all_reduce(team, elements=20_001, dtype="float32", seed=5)
        running_hosts = running.state.hosts
        counted = total_of(hardware_counters(running, host.name) for host in running_hosts)
    # Requesters were told of gaps and went back; responders saw what they had, and what came too early.
    assert counted["rcvd_seq_err"] > 0
    assert counted["out_of_seq_request"] > 0
    assert counted["duplicate_request"] > 0
    assert counted["retry_exceeded_err"] == counted["retry_rnr_exceeded_err"] == 0
    # They went back into the middle of messages, and to where nobody had sent them: their timeouts did.
    backs = [
        back
        for host in running_hosts
        for back in go_backs(captures / f"s1-eth{host.port}.pcap", IPv4Address(host.ip))
    ]
    assert GoBack(Opcode.SEND_MIDDLE, told=True) in backs, backs
    assert not all(back.told for back in backs), backs
    opcodes: Counter[int] = Counter()
    for path in captured_in(captures):
        opcodes += require_roce_v2(path, scapy_every=50)
    assert {Opcode.SEND_FIRST, Opcode.SEND_MIDDLE, Opcode.SEND_LAST, Opcode.ACKNOWLEDGE} <= set(opcodes)

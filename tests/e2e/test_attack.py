"""A rack with TLS, in which a host that is no member attacks a job with all that it can know."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.api import controller_pb2 as pb
from controller.api.admin import AdminClient
from tests.e2e.conftest import TARGETS, all_reduce, joined, rack
from topologies import launch
from topologies.fabric import Fabric

pytestmark = [pytest.mark.emulation, pytest.mark.slow]

_ROOT = Path(__file__).parents[2]  # where `tests` is

# In the attacker's host: forged frames, as fast as it can, until it is ended. Told: JSON of each member.
_ATTACK = """
import itertools, json, random, socket, sys
from ipaddress import IPv4Address
from host_agent.wire.aggregation import AggregationHeader
from host_agent.wire.headers import Aeth, Bth, Ethernet, IPv4, RocePacket, Udp, parse_mac
from tests.security.attacks import cnp, disguises

members = [json.loads(line) for line in sys.argv[2:]]
out = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
out.bind((sys.argv[1], 0))
chance = random.Random(1)
for count in itertools.count():
    here = chance.choice(members)
    peer = members[here["before" if count % 2 else "after"]]
    psn = (here["psn"] + chance.choice([0, 1, 2, chance.randrange(4000), chance.randrange(1 << 24)])) % 2**24
    head = AggregationHeader(job=here["job"], generation=here["generation"], message=chance.randrange(300),
        rank=peer["rank"], op=chance.randrange(3), packets=1 + chance.randrange(16), element_type=1,
        elements=64, flags=chance.randrange(4))
    ack = count % 3 == 0
    packet = RocePacket(
        ethernet=Ethernet(dst=parse_mac(here["mac"]), src=parse_mac(peer["mac"])),
        ip=IPv4(src=IPv4Address(peer["ip"]), dst=IPv4Address(here["ip"]), total_length=0),
        udp=Udp(length=0),
        bth=Bth(opcode=0x11 if ack else chance.choice([0, 1, 2, 4]), psn=psn,
                dest_qp=here["qpn_out" if ack else "qpn_in"],
                reserved=0 if ack else 0x40 * chance.randrange(2)),
        aeth=Aeth(chance.choice([0x1f, 0x60, 0x2c, 0x62]), 0) if ack else None,
        payload=b"" if ack else head.pack() + bytes(256),
    )
    frame = packet.build()
    for sent in (frame, cnp(packet), chance.choice(list(disguises(frame, chance)))):
        if len(sent) <= 1200:
            out.send(sent)
    if count == 20:
        print("attacking", flush=True)
"""


@pytest.fixture(scope="module", params=TARGETS)
def guarded(request: pytest.FixtureRequest) -> Iterator[Fabric]:
    """Yield four hosts, with TLS, on each target."""
    with rack(4, target=request.param, tls=True) as running:
        yield running


def test_sums_are_right_while_another_host_attacks(guarded: Fabric) -> None:
    with joined(guarded, 3) as team:
        with AdminClient(f"unix:{guarded.state.control_socket}") as admin:
            (job,) = [job for job in admin.list_jobs() if job.spec.name == "e2e"]
        size = len(job.workers)
        members = [
            json.dumps(
                {
                    "ip": info.worker.ip,
                    "mac": info.worker.mac,
                    "rank": info.worker.rank,
                    "psn": info.worker.psn_out,
                    "qpn_in": info.worker.qpn_in,
                    "qpn_out": info.worker.qpn_out,
                    "job": job.job_id,
                    "generation": job.generation,
                    "before": (at - 1) % size,
                    "after": (at + 1) % size,
                }
            )
            for at, info in enumerate(job.workers)
        ]
        host = guarded.state.host("h4")
        attacker = launch.start(
            guarded.state,
            host,
            ["env", f"PYTHONPATH={_ROOT}", sys.executable, "-c", _ATTACK, host.interface, *members],
            stdout=subprocess.PIPE,
        )
        try:
            assert attacker.stdout is not None
            assert attacker.stdout.readline() == "attacking\n"
            for elements in (200, 20_011, 60_000):
                all_reduce(team, elements=elements, dtype="int32", seed=elements)
            counters = [answer["counters"] for answer in team.do("statistics")]
        finally:
            launch.stop(guarded.state, [attacker])
    # Nothing of it that could be taken for a packet arrived at a member's queue pair. (Later fragments do;
    # agents count them as malformed: without the first they are nothing.)
    for counted in counters:
        strange = {name: counted[name] for name in ("foreign", "icrc_errors", "rnr_naks_received")}
        assert not any(strange.values()), counted
    assert job.phase == pb.RUNNING

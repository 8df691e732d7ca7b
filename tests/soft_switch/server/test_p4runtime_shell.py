"""The server as p4runtime-shell sees it.

The shell pins an old protobuf, so it lives in an environment of its own; P4RUNTIME_SHELL_PYTHON is that
environment's interpreter.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.soft_switch.server.conftest import Switch

HERE = Path(__file__).parent
PYTHON = os.environ.get("P4RUNTIME_SHELL_PYTHON")

SESSION = """
import sys
import p4runtime_sh.shell as sh
from p4runtime_sh.p4runtime import P4RuntimeException, P4RuntimeWriteException

address, p4info, program = sys.argv[1:]
sh.setup(device_id=1, grpc_addr=address, election_id=(0, 1), config=sh.FwdPipeConfig(p4info, program))
assert sh.client.api_version() == "1.5.0"

def refused(request):
    try:
        request()
    except (P4RuntimeWriteException, P4RuntimeException) as error:
        return str(error)
    raise AssertionError("accepted")

route = sh.TableEntry("ingress.ipv4_lpm")(action="ingress.forward")
route.match["hdr.ipv4.dst"] = "10.0.0.0/8"
route.action["port"] = "1"
route.action["mac"] = "00:00:00:00:00:01"
route.insert()
assert "ALREADY_EXISTS, 'table ingress.ipv4_lpm has this entry already" in refused(route.insert)
route.action["port"] = "2"
route.modify()
(answer,) = sh.TableEntry("ipv4_lpm").read()
assert answer.msg() == route.msg()

rule = sh.TableEntry("acl")(action="drop", priority=10)
rule.match["standard_metadata.ingress_port"] = "1"
rule.match["hdr.ipv4.src"] = "10.0.0.0&&&0xff000000"
rule.match["hdr.udp.dst_port"] = "1..5"
rule.match["hdr.ipv4.protocol"] = "6"
rule.insert()
(answer,) = sh.TableEntry("acl").read()
assert {m.field_id for m in answer.msg().match} == {1, 2, 3, 4}
assert [entry.priority for entry in sh.TableEntry("classes").read()] == [2, 1]

default = sh.TableEntry("ipv4_lpm")(action="drop", is_default=True)
default.modify()
(answer,) = sh.TableEntry("ipv4_lpm")(is_default=True).read()
assert answer.action.action_name == "ingress.drop"

counter = sh.CounterEntry("per_port")(index=2, packet_count=5)
counter.modify()
assert [cell.packet_count for cell in sh.CounterEntry("per_port").read()] == [0, 0, 5, 0, 0, 0, 0, 0]
direct = sh.DirectCounterEntry("ipv4_counter")
direct.table_entry.match["hdr.ipv4.dst"] = "10.0.0.0/8"
direct.packet_count = 9
direct.modify()
(answer,) = sh.DirectCounterEntry("ipv4_counter").read()
assert answer.packet_count == 9

group = sh.MulticastGroupEntry(1).add(1, 1).add(2, 2)
group.insert()
(answer,) = sh.MulticastGroupEntry(1).read()
assert [(r.port, r.instance) for r in answer.replicas] == [(1, 1), (2, 2)]
group.delete()
assert "NOT_FOUND: there is no multicast group 1" in refused(lambda: list(sh.MulticastGroupEntry(1).read()))
clone = sh.CloneSessionEntry(1).add(1, 1)
assert "UNIMPLEMENTED, 'clone sessions are not supported" in refused(clone.insert)

packet = sh.PacketOut(b"payload", egress_port="3", queue="1")
packet.send()
(answer,) = sh.PacketIn().sniff(timeout=5) or [None]
assert answer.packet.payload == b"up"
assert answer.packet.metadata[0].value == b"\\x03"

for entry in (route, rule):
    entry.delete()
assert list(sh.TableEntry("ipv4_lpm").read()) == []
sh.teardown()
print("done")
"""


@pytest.mark.slow
@pytest.mark.skipif(PYTHON is None, reason="P4RUNTIME_SHELL_PYTHON is not set")
def test_a_session(switch: Switch) -> None:
    plane = switch.plane
    sent = plane.packets

    def echo(data: bytes) -> None:
        sent.put(data)
        plane.send_up(bytes([0x01, 0x80, 0, 0]) + b"up")

    plane.packet_out = echo  # type: ignore[method-assign]
    arguments = [switch.server.address, HERE / "program.p4info.txtpb", HERE / "program.json"]
    result = subprocess.run(
        [str(PYTHON), "-c", SESSION, *map(str, arguments)], capture_output=True, text=True, timeout=60
    )
    assert (result.returncode, result.stdout.splitlines()[-1:]) == (0, ["done"]), result.stderr
    assert sent.get_nowait() == bytes([0x01, 0x80, 0x01]) + b"payload"

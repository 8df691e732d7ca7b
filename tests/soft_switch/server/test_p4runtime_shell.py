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

BEGIN = """
import os
import sys
import traceback
import p4runtime_sh.shell as sh
from p4runtime_sh.p4runtime import P4RuntimeException, P4RuntimeWriteException

def failed(*error):  # the shell's threads would keep it alive
    traceback.print_exception(*error)
    sys.stderr.flush()
    os._exit(1)

sys.excepthook = failed
address, p4info, program = sys.argv[1:]
sh.setup(device_id=1, grpc_addr=address, election_id=(0, 1), config=sh.FwdPipeConfig(p4info, program))
assert sh.client.api_version() == "1.5.0"

def refused(request):
    try:
        request()
    except (P4RuntimeWriteException, P4RuntimeException) as error:
        return str(error)
    raise AssertionError("accepted")
"""

SESSION = """

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
clone.packet_length_bytes = 64
clone.insert()
(answer,) = sh.CloneSessionEntry(0).read()
assert (answer.packet_length_bytes, [r.port for r in answer.replicas]) == (64, [1])
clone.delete()

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


FEATURES = """
config = {"cir": 100, "cburst": 10, "pir": 200, "pburst": 20}
meter = sh.MeterEntry("per_port")(index=2, **config)
meter.modify()
answers = list(sh.MeterEntry("per_port").read())
assert [answer.msg().HasField("config") for answer in answers] == [False, False, True, False]
assert answers[2].cir == 100
assert "OUT_OF_RANGE" in refused(sh.MeterEntry("per_port")(index=4, **config).modify)

station = sh.TableEntry("stations")(action="forward")
station.match["hdr.ethernet.dst"] = "00:00:00:00:00:01"
station.action["port"] = "1"
station.meter_config.cir = 5
station.meter_config.pir = 6
station.counter_data.packet_count = 7
station.idle_timeout_ns = 20_000_000
station.insert()
question = sh.TableEntry("stations")
question.meter_config
question.counter_data
question.time_since_last_hit
(answer,) = question.read()
assert (answer.meter_config.pir, answer.counter_data.packet_count) == (6, 7)
assert answer.idle_timeout_ns == 20_000_000
assert answer.time_since_last_hit.elapsed_ns == 10**9
direct = sh.DirectMeterEntry("station_meter")
direct.table_entry.match["hdr.ethernet.dst"] = "00:00:00:00:00:01"
direct.cir = direct.pir = 9
direct.modify()
(answer,) = sh.DirectMeterEntry("station_meter").read()
assert answer.pir == 9
(notice, *_) = sh.IdleTimeoutNotification().sniff(timeout=5)
assert [entry.table_id for entry in notice.idle_timeout_notification.table_entry] == [0x02000001]

digest = sh.DigestEntry("learn_t")
digest.ack_timeout_ns = 10**15
digest.max_timeout_ns = 0
digest.max_list_size = 1
digest.insert()
(answer,) = sh.DigestEntry("learn_t").read()
assert answer.ack_timeout_ns == 10**15
lists = sh.DigestList()
for number in (1, 2):
    session = sh.CloneSessionEntry(number).add(1, 1)
    session.insert()  # the test makes it send a digest
    session.delete()
first, second = list(lists.sniff(timeout=5))
assert (first.digest.list_id, second.digest.list_id) == (1, 2)
assert first.digest.data[0].struct.members[1].bitstring == b"\\x03"
digest.delete()
assert "NOT_FOUND" in refused(digest.delete)
sh.teardown()
print("done")
os._exit(0)
"""


def run(session: str, switch: Switch, program: str) -> None:
    """Run a session of the shell on a switch."""
    arguments = [switch.server.address, HERE / f"{program}.p4info.txtpb", HERE / f"{program}.json"]
    result = subprocess.run(
        [str(PYTHON), "-c", BEGIN + session, *map(str, arguments)], capture_output=True, text=True, timeout=60
    )
    assert (result.returncode, result.stdout.splitlines()[-1:]) == (0, ["done"]), result.stderr


@pytest.mark.slow
@pytest.mark.skipif(PYTHON is None, reason="P4RUNTIME_SHELL_PYTHON is not set")
def test_a_session(switch: Switch) -> None:
    plane = switch.plane
    sent = plane.packets

    def echo(data: bytes) -> None:
        sent.put(data)
        plane.send_up(bytes([0x01, 0x80, 0, 0]) + b"up")

    plane.packet_out = echo  # type: ignore[method-assign]
    run(SESSION, switch, "program")
    assert sent.get_nowait() == bytes([0x01, 0x80, 0x01]) + b"payload"


@pytest.mark.slow
@pytest.mark.skipif(PYTHON is None, reason="P4RUNTIME_SHELL_PYTHON is not set")
def test_meters_digests_and_timeouts(switch: Switch) -> None:
    plane = switch.plane
    plane.idle_ns = lambda table, handle: 10**9  # type: ignore[method-assign]
    plane.clone_delete = lambda session: plane.learn("learn_t", (session, 3))  # type: ignore[method-assign]
    run(FEATURES, switch, "features")

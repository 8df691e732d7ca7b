"""Seeds of a campaign: input that is right, so that mutations get somewhere."""

from __future__ import annotations

import json
import struct
from pathlib import Path

from controller.api import controller_pb2 as pb
from tests.host_agent.transport.peer import Peer

ROOT = Path(__file__).parents[3]


def seeds(target: str) -> list[bytes]:
    """Return the seeds of a target, at least one."""
    if target in ("agent", "neighbour", "quantise"):
        plain = [bytes(range(256)), bytes(400), struct.pack("<8f", 1, -2, 3e38, 1e-40, 0.5, 7, 1e-3, -0.0)]
        return [*plain, *(b"\1" + data for data in plain)]  # agent, neighbour: selective
    if target == "wire":
        peer = Peer.of()
        frames = peer.message(2000, peer.header(0, 192), bytes(768))
        return [*frames, peer.header(0, 192).pack()]
    if target == "capture":
        link = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1)
        peer = Peer.of()
        frames = peer.message(2000, peer.header(0, 192), bytes(768))
        return [
            link + b"".join(struct.pack("<IIII", 1, n, len(f), len(f)) + f for n, f in enumerate(frames)),
            link,
        ]
    if target == "config":
        document = {
            "switches": [{"name": "s1", "device_id": 1, "address": "127.0.0.1:1", "target": "bmv2"}],
            "hosts": [{"name": "h1", "ip": "10.0.0.1", "mac": "02:00:00:00:00:01", "port": 1}],
            "quotas": {"tenants": {"red": {"weight": 2}}},
            "limits": {"sessions": 3},
            "tls": {"ca": "/a", "cert": "/b", "key": "/c"},
            "links": [],
        }
        return [json.dumps(document).encode()]
    if target == "document":
        page = (ROOT / "docs" / "configuration.md").read_text()
        examples = [part.split("```")[0] for part in page.split("```yaml\n")[1:]]
        return [example.encode() for example in examples] or [b"routes: []\n"]
    worker = pb.Worker(rank=0, ip="10.0.1.1", mac="02:00:0a:00:01:01", qpn_out=7, qpn_in=8)
    join = pb.Join(job="j", world_size=2, path_mtu_max=1024, worker=worker, tenant="red", join_token="x" * 20)
    said = [
        pb.WorkerMessage(join=join),
        pb.WorkerMessage(resume=pb.Resume(job="j", generation=1, token=bytes(16))),
        pb.WorkerMessage(abort=pb.Abort(reason="why")),
        pb.WorkerMessage(called=pb.Called(collective=4, what="barrier by ring")),
        pb.WorkerMessage(renewing=pb.Renewing(renewal=1, qpn_out=5)),
    ]
    return [
        *(message.SerializeToString() for message in said),
        pb.JobSpec(name="k", world_size=3).SerializeToString(),
    ]

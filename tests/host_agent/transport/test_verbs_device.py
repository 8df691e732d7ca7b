"""Finding a device in sysfs, choosing the transport, and what pyverbs is asked for."""

from __future__ import annotations

import logging
import os
import sys
from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from controller.api.messages import RcParameters
from host_agent import adapters
from host_agent.adapters import Transport, UserspaceAdapter, VerbsAdapter, choose_adapter
from host_agent.errors import InterfaceError
from host_agent.netinfo import Interface
from host_agent.transport import TransportError
from host_agent.transport.verbs import QueuePairs, RoceDevice, find_device, queue_pairs
from tests.host_agent.transport.fabric import ring_configs

IP = IPv4Address("10.1.0.2")
INTERFACE = Interface(name="h2-eth0", mac="02:00:00:00:00:02", ip=IP, mtu=9000)
DEVICE = RoceDevice(name="rxe0", port=1, gid_index=3, interface="h2-eth0")
EMPTY = "0000:0000:0000:0000:0000:0000:0000:0000"


def gid_of(ip: str) -> str:
    return "0000:0000:0000:0000:0000:ffff:" + "{:02x}{:02x}:{:02x}{:02x}".format(*map(int, ip.split(".")))


def add_port(sysfs: Path, device: str, port: int, gids: list[tuple[str, str, str]]) -> None:
    """Add a port in sysfs. `gids`: GID, type, network device."""
    base = sysfs / device / "ports" / str(port)
    for folder in ("gids", "gid_attrs/types", "gid_attrs/ndevs", "hw_counters"):
        (base / folder).mkdir(parents=True)
    for index, (gid, kind, interface) in enumerate(gids):
        (base / "gids" / str(index)).write_text(gid + "\n")
        if kind:
            (base / "gid_attrs/types" / str(index)).write_text(kind + "\n")
            (base / "gid_attrs/ndevs" / str(index)).write_text(interface + "\n")


def test_the_device_is_the_one_with_the_address_as_roce_v2_gid(tmp_path: Path) -> None:
    link_local = "fe80:0000:0000:0000:0000:00ff:fe00:0002"
    add_port(tmp_path, "mlx5_0", 1, [(link_local, "IB/RoCE v1", "h2-eth0"), (EMPTY, "", "")])
    wanted = gid_of("10.1.0.2")
    add_port(
        tmp_path,
        "mlx5_1",
        2,
        [
            (link_local, "RoCE v2", "h2-eth0"),
            (wanted, "IB/RoCE v1", "h2-eth0"),
            (wanted, "RoCE v2", "h2-eth1"),
            (wanted, "RoCE v2", "h2-eth0"),
        ],
    )
    found = find_device("h2-eth0", IP, sysfs=tmp_path)
    assert found == RoceDevice(name="mlx5_1", port=2, gid_index=3, interface="h2-eth0")
    assert found.hw_counters == Path("/sys/class/infiniband/mlx5_1/ports/2/hw_counters")
    assert find_device("h2-eth0", IPv4Address("10.1.0.3"), sysfs=tmp_path) is None
    assert find_device("h2-eth2", IP, sysfs=tmp_path) is None


def test_without_rdma_in_the_kernel_there_is_no_device(tmp_path: Path) -> None:
    assert find_device("h2-eth0", IP, sysfs=tmp_path / "infiniband") is None


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The machine as `choose_adapter` finds it: no device, pyverbs there."""
    found = SimpleNamespace(device=None, missing="", error=None, closed=0)

    class Pairs:
        qpn_out, qpn_in, path_mtu = 0x11, 0x12, 1024

        def __init__(self, device: RoceDevice) -> None:
            if found.error is not None:
                raise found.error

        def close(self) -> None:
            found.closed += 1

    monkeypatch.setattr(adapters, "find_device", lambda name, ip: found.device)
    monkeypatch.setattr(adapters, "pyverbs_missing", lambda: found.missing)
    monkeypatch.setattr(adapters, "QueuePairs", Pairs)
    return found


def test_without_a_device_auto_is_userspace(machine: SimpleNamespace) -> None:
    adapter = choose_adapter(Transport.AUTO, INTERFACE)
    assert isinstance(adapter, UserspaceAdapter)
    assert (adapter.path_mtu, adapter.rnr_nak) == (4096, False)
    assert 0x100 <= adapter.qpn_in != adapter.qpn_out >= 0x100


def test_with_a_device_auto_is_verbs(machine: SimpleNamespace) -> None:
    machine.device = DEVICE
    adapter = choose_adapter(Transport.AUTO, INTERFACE)
    assert isinstance(adapter, VerbsAdapter)
    assert (adapter.qpn_out, adapter.qpn_in, adapter.path_mtu, adapter.rnr_nak) == (0x11, 0x12, 1024, True)
    adapter.close()
    assert machine.closed == 1
    assert choose_adapter(Transport.AUTO, replace(INTERFACE, mtu=600)).path_mtu == 512


def test_userspace_is_what_was_asked_for_also_with_a_device(machine: SimpleNamespace) -> None:
    machine.device = DEVICE
    assert isinstance(choose_adapter(Transport.USERSPACE, INTERFACE), UserspaceAdapter)


def test_a_device_without_pyverbs_is_not_passed_over_in_silence(
    machine: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    machine.device, machine.missing = DEVICE, "pyverbs does not import: apt install python3-pyverbs"
    with caplog.at_level(logging.WARNING):
        assert isinstance(choose_adapter(Transport.AUTO, INTERFACE), UserspaceAdapter)
    assert "RDMA device rxe0 on h2-eth0 is not used" in caplog.text
    assert "apt install python3-pyverbs" in caplog.text


def test_verbs_without_a_device_is_refused(machine: SimpleNamespace) -> None:
    with pytest.raises(InterfaceError, match=r"no RDMA device is behind interface h2-eth0.*10\.1\.0\.2"):
        choose_adapter(Transport.VERBS, INTERFACE)


def test_a_device_that_does_not_open_is_an_error_of_the_interface(machine: SimpleNamespace) -> None:
    machine.device, machine.error = DEVICE, TransportError("RDMA device rxe0 cannot be opened")
    with pytest.raises(InterfaceError, match="rxe0 cannot be opened"):
        choose_adapter(Transport.AUTO, INTERFACE)


class PyverbsError(Exception):
    """A stand-in for pyverbs' exception of that name."""


class Rdma:
    """A stand-in for pyverbs: notes what is made and closed, and refuses what the test wants refused."""

    def __init__(self) -> None:
        self.opened: list[str] = []
        self.closed: list[str] = []
        self.refused = ""
        self.queue_pairs: list[Any] = []
        self.port = SimpleNamespace(state=4, active_mtu=3)

    def modules(self) -> dict[str, ModuleType]:
        rdma = self

        class Resource:
            buf, lkey, qp_num, event_file = 0x1000, 5, 0, -1

            def __init__(self, *arguments: Any, **named: Any) -> None:
                self.name, self.arguments, self.named = type(self).__name__, arguments, named
                if rdma.refused == self.name:
                    raise PyverbsError(f"Failed to create {self.name}. Errno: 12, Cannot allocate memory")
                rdma.opened.append(self.name)

            def close(self) -> None:
                if rdma.refused == f"close {self.name}":
                    raise PyverbsError(f"Failed to close {self.name}. Errno: 5, Input/output error")
                rdma.closed.append(self.name)

        class Context(Resource):
            def query_port(self, port: int) -> Any:
                return rdma.port

        class QP(Resource):
            def __init__(self, *arguments: Any) -> None:
                super().__init__(*arguments)
                self.qp_num = 0x10 + len(rdma.queue_pairs)
                self.posted: list[Any] = []
                self.states: list[Any] = []
                rdma.queue_pairs.append(self)

            def to_rts(self, attributes: Any) -> None:
                if rdma.refused == "to_rts":
                    raise PyverbsError("Failed to modify QP state to RTR. Errno: 110, Connection timed out")
                self.attributes = attributes

            def post_recv(self, request: Any) -> None:
                self.posted.append(request)

            def post_send(self, request: Any) -> None:
                if rdma.refused == "post_send":
                    raise PyverbsError("Failed to post send. Errno: 12")
                self.posted.append(request)

            def modify(self, attributes: Any, mask: int) -> None:
                self.states.append(attributes.qp_state)

        class CQ(Resource):
            def req_notify(self) -> None:
                rdma.opened.append("notify")

            def ack_events(self, count: int) -> None:
                rdma.opened.append(f"acknowledge {count}")

        class CompChannel(Resource):
            def get_cq_event(self, cq: Any) -> None:
                rdma.opened.append("get event")

        def fork_init() -> None:
            rdma.opened.append("fork_init")
            if rdma.refused == "fork_init":
                raise PyverbsError("Failed to init fork support. Errno: 22, Invalid argument")

        kinds = {kind: type(kind, (Resource,), {}) for kind in ("PD", "MR")}
        names: dict[str, dict[str, Any]] = {
            "device": {"Context": Context},
            "pd": {"PD": kinds["PD"]},
            "mr": {"MR": kinds["MR"]},
            "cq": {"CQ": CQ, "CompChannel": CompChannel},
            "fork": {"fork_init": fork_init},
            "qp": {
                "QP": QP,
                "QPCap": SimpleNamespace,
                "QPInitAttr": SimpleNamespace,
                "QPAttr": SimpleNamespace,
            },
            "wr": {
                "SGE": lambda address, length, key: (address, length, key),
                "RecvWR": SimpleNamespace,
                "SendWR": SimpleNamespace,
            },
            "addr": {"GID": str, "GlobalRoute": SimpleNamespace, "AHAttr": SimpleNamespace},
            "pyverbs_error": {"PyverbsError": PyverbsError},
        }
        modules = {"pyverbs": ModuleType("pyverbs")}
        for name, content in names.items():
            modules[f"pyverbs.{name}"] = module = ModuleType(f"pyverbs.{name}")
            module.__dict__.update(content)
        return modules


@pytest.fixture
def rdma(monkeypatch: pytest.MonkeyPatch) -> Rdma:
    rdma = Rdma()
    for name, module in rdma.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    files = iter(range(1000, 2000))
    seen: list[int] = []

    def event_files() -> set[int]:  # one more whenever something was made since
        while len(seen) < rdma.opened.count("Context") + rdma.opened.count("CompChannel"):
            seen.append(next(files))
        return set(seen)

    monkeypatch.setattr(queue_pairs, "_event_files", event_files)
    queue_pairs._prepare_for_forks.cache_clear()
    return rdma


def test_the_queue_pairs_exist_when_the_device_is_open(rdma: Rdma) -> None:
    pairs = QueuePairs(DEVICE)
    assert (pairs.qpn_out, pairs.qpn_in, pairs.path_mtu) == (0x10, 0x11, 1024)
    assert pairs.event_fd != pairs.completion_fd
    assert rdma.opened == ["fork_init", "Context", "PD", "CompChannel", "CQ", "QP", "QP", "notify"]
    pairs.close()
    pairs.close()
    assert rdma.closed == ["QP", "QP", "CQ", "CompChannel", "PD", "Context"]


def test_queue_pairs_with_other_numbers_are_made_beside_those_before_them(rdma: Rdma) -> None:
    pairs = QueuePairs(DEVICE)
    rdma.opened.clear()
    for first in (0x12, 0x14):
        pairs.exchange()
        assert (pairs.qpn_out, pairs.qpn_in) == (first, first + 1)
    assert (rdma.opened, rdma.closed) == (["QP"] * 4, []), "one device, one completion queue, for all of them"
    pairs.connect(ring_configs(2)[0], RcParameters(), slots=4, slot_bytes=2048)
    assert rdma.closed == ["QP"] * 4
    assert [hasattr(qp, "attributes") for qp in rdma.queue_pairs] == [False] * 4 + [True] * 2
    pairs.close()
    assert rdma.closed == ["QP"] * 4 + ["MR", "QP", "QP", "CQ", "CompChannel", "PD", "Context"]


def test_queue_pairs_that_no_others_were_had_for_are_all_closed(rdma: Rdma) -> None:
    adapter = VerbsAdapter(QueuePairs(DEVICE), INTERFACE)
    adapter.exchange()
    assert (adapter.qpn_out, adapter.qpn_in) == (0x12, 0x13)
    rdma.refused = "QP"
    with pytest.raises(InterfaceError, match=r"has no room for more queue pairs.*rdma resource"):
        adapter.exchange()
    adapter.close()
    assert rdma.closed == ["QP"] * 4 + ["CQ", "CompChannel", "PD", "Context"]


def test_forks_are_prepared_for_once(rdma: Rdma) -> None:
    for _ in range(2):
        QueuePairs(DEVICE).close()
    assert rdma.opened.count("fork_init") == 1


def test_a_pyverbs_without_fork_init_does(rdma: Rdma, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyverbs.fork", None)
    QueuePairs(DEVICE).close()
    assert rdma.opened[0] == "Context"


def test_memory_that_was_registered_before_is_warned_about(
    rdma: Rdma, caplog: pytest.LogCaptureFixture
) -> None:
    rdma.refused = "fork_init"
    QueuePairs(DEVICE).close()
    assert "when this process forks: Failed to init fork support" in caplog.text


def test_an_event_is_taken_and_acknowledged_before_the_next_is_asked_for(rdma: Rdma) -> None:
    pairs = QueuePairs(DEVICE)
    rdma.opened.clear()
    pairs.take_completion_event()
    assert rdma.opened == ["get event", "acknowledge 1", "notify"]


def test_both_queue_pairs_get_what_the_controller_handed_out(rdma: Rdma) -> None:
    config = ring_configs(3, path_mtu=512)[1]
    pairs = QueuePairs(DEVICE)
    rc = RcParameters(timeout=18, retry_count=6, rnr_retry=7, min_rnr_timer=11)
    pairs.connect(config, rc, slots=4, slot_bytes=2048)
    out, into = (qp.attributes for qp in rdma.queue_pairs)
    for attributes, peer in ((out, "10.1.0.3"), (into, "10.1.0.1")):
        assert (attributes.timeout, attributes.retry_cnt) == (18, 6)
        assert (attributes.rnr_retry, attributes.min_rnr_timer) == (7, 11)
        assert attributes.path_mtu == 2  # IBV_MTU_512
        assert attributes.ah_attr.gr.dgid == gid_of(peer)
        assert (attributes.ah_attr.gr.sgid_index, attributes.ah_attr.gr.hop_limit) == (3, 64)
    assert (out.dest_qp_num, out.sq_psn) == (config.successor.qpn_in, config.psn_out)
    assert (into.dest_qp_num, into.rq_psn) == (config.predecessor.qpn_out, config.predecessor.psn_out)
    receives = rdma.queue_pairs[1].posted
    assert [request.sg for request in receives] == [[(0x1000 + (4 + s) * 2048, 2048, 5)] for s in range(4)]


def test_a_send_takes_the_slot_s_start_and_its_request_is_made_once(rdma: Rdma) -> None:
    pairs = QueuePairs(DEVICE)
    pairs.connect(ring_configs(2)[0], RcParameters(), slots=4, slot_bytes=2048)
    for slot, length in ((1, 512), (1, 1024), (1, 512)):
        pairs.post_send(slot, length)
    first, second, third = rdma.queue_pairs[0].posted
    assert first is third is not second
    assert (first.wr_id, first.sg) == (1, [(0x1000 + 2048, 512, 5)])
    pairs.stop()
    assert [qp.states for qp in rdma.queue_pairs] == [[6], [6]]


@pytest.mark.parametrize(
    ("refused", "text"),
    [
        ("Context", "cannot be opened.*/dev/infiniband"),
        ("CQ", "no room for two queue pairs.*ulimit -l"),
        ("QP", "no room for two queue pairs.*rdma resource"),
    ],
)
def test_what_cannot_be_opened_says_why_and_leaves_nothing_open(rdma: Rdma, refused: str, text: str) -> None:
    rdma.refused = refused
    with pytest.raises(TransportError, match=f"RDMA device rxe0.*{text}") as caught:
        QueuePairs(DEVICE)
    assert "Cannot allocate memory" in str(caught.value)
    assert rdma.closed == [name for name in reversed(rdma.opened) if name not in ("notify", "fork_init")]


@pytest.mark.parametrize(
    ("refused", "text"),
    [
        ("MR", "cannot register buffers.*16384 bytes of locked memory"),
        ("to_rts", r"cannot connect to 10\.1\.0\.2.*ip neigh show 10\.1\.0\.2"),
    ],
)
def test_what_cannot_be_connected_says_why(rdma: Rdma, refused: str, text: str) -> None:
    pairs = QueuePairs(DEVICE)
    rdma.refused = refused
    with pytest.raises(TransportError, match=text):
        pairs.connect(ring_configs(2)[0], RcParameters(), slots=4, slot_bytes=2048)
    pairs.close()
    assert rdma.closed[-1] == "Context"


def test_what_does_not_close_is_logged_and_the_rest_is_closed(
    rdma: Rdma, caplog: pytest.LogCaptureFixture
) -> None:
    pairs = QueuePairs(DEVICE)
    rdma.refused = "close CQ"
    pairs.close()
    assert rdma.closed == ["QP", "QP", "CompChannel", "PD", "Context"]
    assert "RDMA device rxe0 does not let go of its CQ" in caplog.text


def test_a_refused_send_is_explained(rdma: Rdma) -> None:
    pairs = QueuePairs(DEVICE)
    pairs.connect(ring_configs(2)[0], RcParameters(), slots=4, slot_bytes=2048)
    rdma.refused = "post_send"
    with pytest.raises(TransportError, match="rxe0 refused a send: Failed to post send"):
        pairs.post_send(0, 512)


def test_a_port_that_is_down_is_said_to_be(rdma: Rdma) -> None:
    rdma.port = SimpleNamespace(state=1, active_mtu=3)
    with pytest.raises(TransportError, match=r"port 1 is not active.*ip link set h2-eth0 up"):
        QueuePairs(DEVICE)
    assert rdma.closed == ["Context"]


def test_without_pyverbs_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyverbs", None)
    monkeypatch.setitem(sys.modules, "pyverbs.device", None)
    with pytest.raises(TransportError, match=r"pyverbs does not import.*apt install python3-pyverbs"):
        QueuePairs(DEVICE)


def test_the_event_file_is_the_one_that_was_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that it is told by its name among the process's files; here an eventfd plays its part."""
    monkeypatch.setattr(queue_pairs, "_EVENT_FILE", "anon_inode:[eventfd]")
    other = os.eventfd(0)
    made, file = queue_pairs._with_event_file(lambda: SimpleNamespace(fd=os.eventfd(0)), "RDMA device rxe0")
    assert made.fd == file != other
    for descriptor in (other, file):
        os.close(descriptor)


def test_two_event_files_at_once_are_not_guessed_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_pairs, "_EVENT_FILE", "anon_inode:[eventfd]")

    class Two:
        def __init__(self) -> None:
            self.files = [os.eventfd(0), os.eventfd(0)]

        def close(self) -> None:
            for file in self.files:
                os.close(file)

    with pytest.raises(TransportError, match="RDMA device rxe0: cannot tell its events"):
        queue_pairs._with_event_file(Two, "RDMA device rxe0")

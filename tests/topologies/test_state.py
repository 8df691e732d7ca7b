"""Records of clusters, and the search for the running one."""

from __future__ import annotations

import string
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.topologies.states import GONE, host_state, myself
from topologies import state
from topologies.errors import TopologyError
from topologies.state import ClusterState, HostKind

Saved = Callable[..., ClusterState]


def test_a_state_is_read_as_it_was_written(saved: Saved) -> None:
    written = saved("c1", controller_process=myself())
    assert state.load("c1") == written


def test_a_machine_is_read_as_it_was_written(saved: Saved) -> None:
    machine = replace(host_state(1), kind=HostKind.ROCE, machine=myself())
    written = saved("c1", hosts=[machine, host_state(2)])
    found = state.load("c1")
    assert found == written
    assert [host.kind.value for host in found.hosts] == ["roce", "emulated"]


def test_changes_are_saved(saved: Saved) -> None:
    saved("c1", ready=False).with_(ready=True, path_mtu=4096)
    found = state.load("c1")
    assert found is not None
    assert (found.ready, found.path_mtu) == (True, 4096)


def test_no_state(state_directory: Path) -> None:
    assert state.load("c1") is None
    assert state.all_clusters() == []


def test_damaged_state(saved: Saved, state_directory: Path) -> None:
    saved("c1")
    (state_directory / "c1" / "cluster.json").write_text("{")
    with pytest.raises(TopologyError, match=r"cluster\.json is damaged .* remove"):
        state.load("c1")


@pytest.mark.parametrize("name", ["", "../etc", "a/b", "-x", "a" * 33, "a b", "."])
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(TopologyError, match="is no cluster name"):
        state.directory_of(name)


@given(st.text(string.ascii_letters + string.digits + "-_", min_size=1, max_size=32))
def test_a_name_never_leaves_the_state_directory(name: str) -> None:
    if not name.startswith(("-", "_")):
        assert state.directory_of(name).parent == state.root()


def test_the_only_running_cluster(saved: Saved) -> None:
    saved("dead", owner=GONE)
    saved("alive")
    assert state.running().name == "alive"
    assert [cluster.name for cluster in state.all_clusters()] == ["alive", "dead"]


def test_none_running(saved: Saved) -> None:
    saved("dead", owner=GONE)
    with pytest.raises(TopologyError, match="no running cluster: start one with 'p4reduce up rack"):
        state.running()
    with pytest.raises(TopologyError, match="cluster 'dead', it was killed: 'p4reduce down dead' rem"):
        state.running("dead")


def test_another_one_is_running(saved: Saved) -> None:
    with pytest.raises(TopologyError, match=r"no running cluster 'c1': start it with .*--cluster c1"):
        state.running("c1")
    saved("c2")
    with pytest.raises(TopologyError, match=r"no running cluster 'c1' \(but c2\): start it"):
        state.running("c1")


def test_more_than_one_running(saved: Saved) -> None:
    saved("a")
    saved("b")
    with pytest.raises(TopologyError, match=r"\(a, b\): say which with --cluster"):
        state.running()
    assert state.running("b").name == "b"


def test_still_coming_up(saved: Saved) -> None:
    saved("c1", ready=False)
    with pytest.raises(TopologyError, match="still coming up"):
        state.running()


def test_switch_by_name(saved: Saved) -> None:
    cluster = saved()
    assert cluster.switch("s1").device_id == 1
    with pytest.raises(TopologyError, match="no switch 's9', it has s1"):
        cluster.switch("s9")

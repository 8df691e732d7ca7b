"""The disk under the controller's database."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from topologies import cleanup, disk
from topologies.errors import UnsupportedError

pytestmark = pytest.mark.emulation


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Path]:
    made = tmp_path / "c1"
    made.mkdir()
    if disk.mount(made):
        pytest.skip("no tmpfs can be mounted here")
    yield made
    disk.unmount(made)


def test_full_and_freed(cluster: Path) -> None:
    database = disk.database(cluster)
    database.write_bytes(b"x" * 5000)
    assert 0 < disk.fill(cluster) <= disk.SIZE_MIB << 20
    with pytest.raises(OSError, match="No space left"):
        (disk.directory(cluster) / "more").write_bytes(b"y")
    assert disk.fill(cluster) == 0
    disk.free(cluster)
    disk.free(cluster)
    (disk.directory(cluster) / "more").write_bytes(b"y" * 100_000)
    assert database.read_bytes() == b"x" * 5000


def test_it_goes_with_what_a_killed_cluster_left(cluster: Path) -> None:
    with disk.database(cluster).open("wb") as held:
        held.write(b"x")
        cleanup.remove_leftover(cluster)
    assert not cluster.exists()
    assert str(cluster) not in Path("/proc/self/mounts").read_text()


def test_where_nothing_can_be_mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "mount is not installed" in disk.mount(tmp_path)
    assert os.listdir(disk.directory(tmp_path)) == []
    with pytest.raises(UnsupportedError, match="no disk of its own"):
        disk.fill(tmp_path)

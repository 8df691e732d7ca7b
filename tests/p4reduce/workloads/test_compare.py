"""Setting a comparison up and leaving nothing of it behind, without a fabric."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from controller.api.errors import ControllerError
from p4reduce.workloads import compare
from p4reduce.workloads.compare import Comparison
from p4reduce.workloads.errors import WorkloadError
from p4reduce.workloads.strategies import names
from tests.topologies.states import cluster_state


class FakeAdmin:
    """A controller that has no room for a third job."""

    jobs: ClassVar[list[str]] = []

    def __init__(self, address: str) -> None:
        """Ask no controller."""

    def __enter__(self) -> FakeAdmin:
        return self

    def __exit__(self, *_: object) -> None:
        """Close nothing."""

    def create_job(self, name: str, world_size: int, **_: Any) -> None:
        if len(self.jobs) == 2:
            raise ControllerError("there is no room")
        self.jobs.append(name)

    def delete_job(self, name: str) -> None:
        if name not in self.jobs:
            raise ControllerError(f"there is no job {name}")
        self.jobs.remove(name)


class FakeTeam:
    """Workers that do as they are told."""

    def __init__(self, *_: Any, **__: Any) -> None:
        """Start no workers."""

    def __enter__(self) -> FakeTeam:
        return self

    def __exit__(self, *_: object) -> None:
        """Stop no workers."""

    def join(self, job: str, **_: Any) -> list[dict[str, str]]:
        return [{"mode": "ring", "mode_reason": ""}]

    def do(self, command: str, **_: Any) -> None:
        """Do nothing."""


@pytest.mark.parametrize(
    ("dtype", "elements"), [("float32", 3), ("int32", 3), ("float16", 6), ("bfloat16", 6)]
)
def test_a_tensor_is_of_any_type_that_is_summed(dtype: str, elements: int) -> None:
    assert Comparison(bytes=12, strategies=(names.RING,), dtype=dtype).elements() == elements


@pytest.mark.parametrize("dtype", ["uint32", "int8"])
def test_a_tensor_is_of_no_other_type(dtype: str) -> None:
    asked = Comparison(bytes=16, strategies=(names.RING,), dtype=dtype)
    with pytest.raises(
        WorkloadError, match=f"'{dtype}' is no element type; there are int32, int64, float32, float64"
    ):
        asked.elements()


def test_jobs_of_pairs_go_also_where_not_all_could_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "AdminClient", FakeAdmin)
    monkeypatch.setattr(compare, "Team", FakeTeam)
    cluster = cluster_state("c1")
    seen: list[str] = []
    hosts = [*cluster.hosts, *cluster.hosts]
    assert len(hosts) == 4
    with (
        pytest.raises(ControllerError, match="no room"),
        compare.connected(cluster, hosts, (names.PARAMETER_SERVER,), progress=seen.append),
    ):
        pass
    assert seen[-1] == "connecting for parameter-server"
    assert FakeAdmin.jobs == []

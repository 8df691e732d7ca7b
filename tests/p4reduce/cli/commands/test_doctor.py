"""`p4reduce doctor`: what it prints beside what was found."""

from __future__ import annotations

from pathlib import Path

import pytest

from p4reduce.cli import app as cli
from p4reduce.doctor.facts import Said
from tests.p4reduce.doctor import made
from tests.p4reduce.live import clusters


@pytest.mark.parametrize("names", [("c1",), ("c1", "c2")])
@pytest.mark.parametrize("is_well", [True, False])
def test_which_cluster_its_advice_is_for_is_said_where_there_are_several(
    names: tuple[str, ...],
    is_well: bool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("P4REDUCE_STATE_DIR", str(tmp_path))
    monkeypatch.setattr("os.geteuid", lambda: 0)
    for name in names:
        cluster = clusters.fabric(name)
        cluster.directory.mkdir()
        cluster.save()
    workers = [made.worker(made.worker_status(rank)) for rank in made.RANKS]
    away = {} if is_well else {"status": Said(made.status(s1="unreachable"), "")}
    monkeypatch.setattr("p4reduce.doctor.observations.gather", lambda known: made.facts(workers, both=away))
    assert cli.run(["doctor", "--cluster", "c1"]) == (0 if is_well else 1)
    said = "More than one cluster is running: these commands take --cluster c1."
    assert (said in capsys.readouterr().out) == (len(names) > 1 and not is_well)

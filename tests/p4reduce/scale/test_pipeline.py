"""Pieces in three stages: what waits for what."""

from __future__ import annotations

import pytest

from p4reduce.scale.flows import Flow, Link
from p4reduce.scale.pipeline import MAX_PIECES, Stages, pieces_of, play
from p4reduce.workloads.errors import WorkloadError


def stages(pieces: int, *, planes: int = 2, inside_s: float = 0.0, network_s: float = 0.0) -> Stages:
    """Return stages: alone, a piece is 1 s inside and 4 s in the network (its planes share the NIC)."""
    return Stages(
        pieces=pieces,
        planes=planes,
        inside=lambda piece: Flow(size=10.0, loads={"channel": 1}),
        inside_s=inside_s,
        in_the_network=lambda piece, plane: Flow(size=20.0, loads={"NIC": 1}),
        in_the_network_s=network_s,
    )


CAPACITIES: dict[Link, float] = {"channel": 10.0, "NIC": 10.0}


def test_one_piece_is_phases() -> None:
    assert play(stages(1), CAPACITIES).seconds == pytest.approx(1 + 4 + 1)
    late = play(stages(1, inside_s=0.5, network_s=3.0), CAPACITIES, begin_s=10.0)
    assert late.seconds == pytest.approx(10 + 1.5 + 4 + 3 + 1.5)


def test_the_slowest_stage_never_waits() -> None:
    played = play(stages(5), CAPACITIES)
    assert played.seconds == pytest.approx(1 + 5 * 4 + 1)
    assert played.carried == {"channel": 2 * 50, "NIC": 2 * 100}


def test_a_way_through_the_network_holds_no_later_piece_up() -> None:
    assert play(stages(5, network_s=3.0), CAPACITIES).seconds == pytest.approx(1 + 5 * 4 + 3 + 1)


def test_stages_inside_share_the_channel() -> None:
    """Check that a slow channel carries scattering and gathering all the time, but for the ends."""
    slow = play(stages(20), {"channel": 2.0, "NIC": 1000.0})
    assert slow.seconds == pytest.approx(2 * 20 * 5, rel=0.01)


def test_pieces() -> None:
    assert pieces_of(100.0, 100) == [100.0]
    assert pieces_of(100.0, 40) == [100.0 / 3] * 3
    assert pieces_of(100.0, 20) == [2.5, 2.5, 5, 10, 20, 20, 20, 10, 5, 2.5, 2.5]
    most = pieces_of(MAX_PIECES * 1.0, 1)
    assert (len(most), sum(most)) == (MAX_PIECES + 6, MAX_PIECES)
    with pytest.raises(
        WorkloadError, match=r"4097 pieces of a plane are too many .* pieces of 2 bytes or more"
    ):
        pieces_of(MAX_PIECES + 1.0, 1)

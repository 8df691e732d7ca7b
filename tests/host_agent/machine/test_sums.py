"""Cuts of a tensor for the ways through a machine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from host_agent.machine.sums import Piece, block_starts, by_ring, pieces_of
from host_agent.quantisation import BFLOAT16, Blocks
from tests.host_agent.beyond import has_the_one_nan, nans

SIZES = st.integers(1, 5000)


@given(elements=SIZES, local_size=st.integers(1, 8), most=st.integers(1, 5000))
def test_each_element_is_in_one_workers_share_of_one_piece(elements: int, local_size: int, most: int) -> None:
    pieces = pieces_of(elements, local_size, most)
    seen = [element for piece in pieces for rank in range(local_size) for element in _elements(piece, rank)]
    assert seen == list(range(elements))
    assert all(0 < piece.end - piece.start <= most for piece in pieces)


@given(elements=SIZES, local_size=st.integers(1, 8))
def test_blocks_stay_whole(elements: int, local_size: int) -> None:
    starts = block_starts(elements, Blocks(message_elements=1000, block_elements=128))
    pieces = pieces_of(elements, local_size, 900, starts.tobytes())
    cuts = {cut for piece in pieces for cut in piece.cuts}
    assert cuts <= {*starts.tolist(), elements}
    assert [piece.start for piece in pieces] == [0, *(piece.end for piece in pieces[:-1])]
    assert pieces[-1].end == elements


@pytest.mark.parametrize("number", [1, 3, 4, 10])
def test_a_pipelines_ends_are_in_smaller_pieces(number: int) -> None:
    """Cut a tensor of so many pieces that it pays."""
    sizes = [piece.end - piece.start for piece in pieces_of(number * 800, 4, 800)]
    if number < 4:
        assert sizes == [800] * number
    else:
        assert sizes == [100, 100, 200, 400, *[800] * (number - 2), 400, 200, 100, 100]


@pytest.mark.parametrize("divisor", [1, 3])
@pytest.mark.parametrize("dtype", [np.dtype(np.float32), np.dtype(np.float16), BFLOAT16], ids=str)
def test_what_workers_add_for_themselves_has_one_nan(dtype: np.dtype[Any], divisor: int) -> None:
    """Add NaNs in different orders: workers may have other processors."""
    size = 21
    rows = np.ones((3, size), dtype)
    rows[0, :12] = np.resize(nans(dtype), 12)
    rows[2, 4:16] = np.resize(nans(dtype)[::-1], 12)
    rows[:2, 20] = np.inf, -np.inf
    found = [by_ring(rows[list(order)], divisor=divisor) for order in ([0, 1, 2], [2, 1, 0], [1, 2, 0])]
    assert np.isnan(found[0]).tolist() == [True] * 16 + [False] * 4 + [True]
    assert has_the_one_nan(found[0])
    assert [one.tobytes() for one in found] == [found[0].tobytes()] * 3


def _elements(piece: Piece, rank: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    share = piece.share(rank)
    assert piece.part(rank) == slice(share.start - piece.start, share.stop - piece.start)
    return np.arange(share.start, share.stop)

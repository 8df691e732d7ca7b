"""bench.accuracy: its sums are those of the code that ships, its errors those of a tensor made by hand."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from bench import accuracy, accuracy_rows
from bench.accuracy_tensors import CONSTRUCTED, WORKERS, as_type, constructed
from host_agent.quantisation import BFLOAT16
from p4reduce.simulation.cases import Case, same_bits
from p4reduce.simulation.rack import configs
from tests.host_agent.rack import Simulation, program

pytestmark = pytest.mark.slow

FLOATS = [np.dtype(np.float32), np.dtype(np.float16), BFLOAT16]


@pytest.mark.parametrize(
    ("module", "method"), [("ring", accuracy_rows.RING), ("in_network", accuracy_rows.IN_NETWORK)]
)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_sums_have_the_bits_of_a_simulated_job(dtype: np.dtype[Any], module: str, method: str) -> None:
    """Sum more than 8192 bytes, so that tensors do not travel whole."""
    ranks, case = 4, Case(module=module, name="all_reduce", dtype=dtype, elements=5003)
    inputs, outputs = case.inputs(ranks, 7), [case.output(ranks) for _ in range(ranks)]
    workers = configs(ranks, packets=accuracy.MESSAGE_PACKETS, path_mtu=accuracy.PATH_MTU)
    simulation = Simulation(workers)
    try:
        simulation.run(program([case], [inputs], [outputs], ()))
    finally:
        simulation.close()
    same_bits(accuracy.WAYS[method](inputs), outputs[0])


def test_errors_are_by_magnitude() -> None:
    """Add on three ranks; the second element has lost all of its bits in fixed point, and none by ring."""
    arrays = [np.array([1, 2.0**-40, 0.5], np.float32)] * 3
    rows = {
        (row.method, row.of, row.below): row
        for row in accuracy.measure([("one", [arrays])], np.dtype(np.float32), 3)
    }
    assert {key[1:] for key in rows} == {
        ("all", 0),
        *((of, k) for of in ("block", "tensor") for k in (0, 40)),
    }
    lost, kept = rows[accuracy_rows.IN_NETWORK, "block", 40], rows[accuracy_rows.RING, "block", 40]
    assert (lost.elements, lost.rms, lost.largest, lost.nearer, lost.farther) == (1, 3.0, 3.0, 0.0, 1.0)
    assert lost.largest_of_tensor == 3 * 2.0**-40
    assert (kept.elements, kept.rms, kept.farther) == (1, 0.0, 0.0)
    whole = rows[accuracy_rows.IN_NETWORK, "all", 0]
    assert (whole.elements, whole.rms, whole.largest) == (3, 3**0.5, 3.0)
    assert [row.method for row, _ in accuracy_rows.worse(list(rows.values()))] == [
        accuracy_rows.IN_NETWORK
    ] * 3


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_constructed_tensors_are_what_their_names_say(dtype: np.dtype[Any]) -> None:
    tensors = {name: arrays for name, (arrays,) in constructed(dtype)}
    assert tuple(tensors) == CONSTRUCTED
    assert all(len(arrays) == WORKERS and arrays[0].dtype == dtype for arrays in tensors.values())
    info: Any = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    assert max(np.abs(array.astype(np.float64)).max() for array in tensors["subnormals"]) < info.tiny
    assert len(np.unique(np.stack(tensors["all equal"]).astype(np.float64))) == 1
    for arrays in tensors.values():
        assert np.isfinite(np.sum(arrays, axis=0, dtype=np.float64)).all()
        assert np.isfinite(accuracy.ring(arrays).astype(np.float64)).all()


def test_tables_and_figure_have_every_type_and_way() -> None:
    rows: list[accuracy_rows.Row] = []
    for dtype in FLOATS:
        made = [(name, [[array[::64] for array in arrays]]) for name, (arrays,) in constructed(dtype)]
        rows += accuracy.measure(made, dtype, 8)
        rows += accuracy.measure([("trained", made[0][1])], dtype, 8, together=accuracy_rows.REAL)
    table = accuracy_rows.markdown(rows)
    assert all(f"| {name} |" in table for name in (*CONSTRUCTED, "trained", accuracy_rows.REAL))
    drawn = ElementTree.fromstring(accuracy_rows.figure(rows))
    texts = ["".join(one.itertext()) for one in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert set(accuracy_rows.METHODS) <= set(texts)


def test_float16_is_scaled_into_its_range() -> None:
    (small,) = as_type(np.array([[2.0**-60, 2.0**-70]]), np.dtype(np.float16))
    assert small.tolist() == [2.0**8, 2.0**-2]


def test_numbers_read_as_powers_of_ten() -> None:
    assert accuracy_rows.power_of_ten(4.12e-8) == "4.1·10⁻⁸"
    assert accuracy_rows.power_of_ten(3.4) == "3.4"
    assert accuracy_rows.power_of_ten(0) == "0"

"""How a soak's workers compare two ways to the same sum."""

from __future__ import annotations

import numpy as np
import pytest

from p4reduce.workloads.errors import VerificationError
from p4reduce.workloads.soak.summing import _require_close
from p4reduce.workloads.tensors import dtype_of

CASE = {"reduction": "sum"}


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("value", [np.nan, np.inf, 100.0])
def test_sums_that_are_apart(dtype: str, value: float) -> None:
    expected = np.ones(8, dtype_of(dtype))
    found = expected.copy()
    _require_close(found, expected, CASE, size=4)
    found[3] = value
    with pytest.raises(VerificationError, match="apart"):
        _require_close(found, expected, CASE, size=4)

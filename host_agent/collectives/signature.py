"""Signature of a call: every message of a collective carries it, and it has to be the same on all ranks.

The switch compares it between the ranks of a message that it sums. A ring compares it at each receiver, with
that rank's own call: every phase has N - 1 steps, each sent only when the one before has come and was the
same. So a rank that has had the last step knows of every rank (docs/protocol.md).
"""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from host_agent.quantisation import ELEMENT_TYPES
from host_agent.wire.aggregation import ElementType, Kind, Reduction

_PLAIN: Final = (
    *(np.bool_, np.int8, np.uint8, np.int16, np.uint16, np.uint32, np.int64, np.uint64),
    *(np.float64, np.complex64, np.complex128),
)
_TYPES: Final[dict[np.dtype[Any], ElementType]] = {
    **ELEMENT_TYPES,
    **{np.dtype(kind): ElementType[np.dtype(kind).name.upper()] for kind in _PLAIN},
}


@dataclass(frozen=True)
class Signature:
    """A call. `root`: 0 where there is none. `tensor_elements`: of each rank's array, or see `signature`.

    `step`: of a part of a call of all GPUs, the number of that call, in place of the part's own.
    """

    kind: Kind
    root: int
    element_type: ElementType
    reduction: Reduction
    tensor_elements: int
    step: int | None = None


@functools.lru_cache(maxsize=256)
def signature(kind: Kind, root: int, reduction: Reduction, dtype: np.dtype[Any], elements: int) -> Signature:
    """Return the signature of `kind` on arrays of so many elements.

    A byte names the plain types. There are too many others (text, dates, records): there a digest of the type
    and the number of elements takes the place of that number. The messages' own sizes are compared as well.
    """
    element_type = _TYPES.get(dtype, ElementType.OTHER)
    if element_type is ElementType.OTHER:
        digest = hashlib.sha256(f"{elements} {described(dtype)}".encode()).digest()
        elements = int.from_bytes(digest[:4], "big")
    return Signature(kind, root, element_type, reduction, elements)


def described(dtype: np.dtype[Any]) -> str:
    """Return a type in words that are the same in every process and release."""
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return f"{described(base)}{list(shape)}"
    if dtype.fields is not None:
        places = {name: dtype.fields[name] for name in dtype.names or ()}
        # Names are quoted: they may hold what stands between them here.
        fields = (f"{name!a}@{place[1]}:{described(place[0])}" for name, place in places.items())
        return f"{dtype.itemsize}{{{','.join(fields)}}}"
    # Of types that others have added (ml_dtypes), several have one code.
    return f"{dtype.str} {dtype.name}"

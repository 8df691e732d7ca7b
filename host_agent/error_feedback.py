"""Error feedback: the rounding errors of a 16-bit wire are added to a worker's next gradients."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from host_agent.collectives import in_network, ring
from host_agent.collectives.plan import Array, Call, Steps, Strategy, Wire
from host_agent.errors import UsageError
from host_agent.execution import Begun, Execution
from host_agent.float_mode import default_float_mode
from host_agent.membership import View

_FLOAT32 = np.dtype(np.float32)


class ErrorFeedback:
    """Debt of this worker to the sums of one tensor that is all-reduced again and again.

    Each worker rounds its float32s to 11 bits, and those far below the largest of their block to fewer. The
    difference stays here, a float32 an element, and goes into the next call with the same handle (Seide et
    al., 2014; Karimireddy et al., 2019). It does not make up for the rounding of the sum itself.

    Give each tensor its own handle. A collective that fails loses the debt, and so does one whose result
    another worker gave (in a renewal of the job). The handle belongs to the communicator that used it first,
    until that has left its job or failed, or until `reset`.
    """

    def __init__(self) -> None:
        self._owed: NDArray[np.float32] | None = None
        self._given = False  # into a collective that has not ended
        self._user: weakref.ref[Execution] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_owed": self.owed, "_given": False, "_user": None}

    @property
    def owed(self) -> NDArray[np.float32]:
        """A copy, flat; empty before the first call, zeros while a collective uses it or after one failed."""
        if self._owed is None:
            return np.empty(0, np.float32)
        return np.zeros_like(self._owed) if self._given else self._owed.copy()

    def reset(self) -> None:
        """Owe nothing any more, and take tensors of any size. Not while a collective uses the handle."""
        self._owed, self._given, self._user = None, False, None

    def require(self, array: Array, user: Execution) -> None:
        """Raise UsageError if this communicator cannot use the handle for tensors like this one."""
        if array.dtype != _FLOAT32:
            raise UsageError(f"error feedback is for float32, not for {array.dtype}")
        if self._owed is not None and self._owed.size not in (0, array.size):
            raise UsageError(
                f"this ErrorFeedback is of tensors of {self._owed.size} elements, not of {array.size}: give "
                "each tensor its own, or call its reset()"
            )
        last = None if self._user is None else self._user()
        if last is not None and last is not user and not last.is_over:
            raise UsageError(
                "this ErrorFeedback is in use by another communicator: give each its own, or call its reset()"
            )

    def begin(self, array: Array, result: Array, user: Execution) -> Callable[[View], Begun]:
        """Return a function that runs the collective on a flat `array`."""
        contribution: list[Array] = []  # made when it starts, and once: it may begin anew

        def begin(view: View) -> Begun:
            if not contribution:
                contribution.append(self._contribution(array, user))
            (given,) = contribution

            def steps(call: Call, strategy: Strategy) -> Steps[bool] | Steps[None]:
                travels = self._switched if strategy is Strategy.IN_NETWORK else self._by_ring
                return travels(call, given, result.reshape(-1))

            return Begun(steps, result, given)

        return begin

    def _contribution(self, array: Array, user: Execution) -> Array:
        """Return what to send: the handle's own buffer, in which the collective then leaves what is owed."""
        self.require(array, user)
        self._user = weakref.ref(user)
        if self._owed is None or self._owed.size != array.size:
            self._owed = np.zeros(array.size, np.float32)
        elif self._given:  # the collective before has failed
            self._owed[...] = 0
        self._given = True
        with np.errstate(all="ignore"), default_float_mode():
            return np.add(array, self._owed, out=self._owed)

    def _switched(self, call: Call, given: Array, out: Array) -> Steps[bool]:
        half = replace(call, wire=Wire.HALF, residual=True)
        switched = yield from in_network.all_reduce(half, given, out)
        self._given = False
        return switched

    def _by_ring(self, call: Call, given: Array, out: Array) -> Steps[None]:
        """Run the all-reduce by ring, where floats travel unchanged: nothing is owed then."""
        yield from ring.all_reduce(call, given, out)
        given[...] = 0
        self._given = False

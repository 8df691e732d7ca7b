"""Each collective, type, operation and layout: bit for bit what is right, sums of floats within their bound.

Gloo shows what is right where tensors lie in memory order; where it refuses, p4reduce may, too, with a
sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial, reduce
from typing import Any, Final, TypeAlias

import ml_dtypes
import torch
import torch.distributed as dist

from host_agent.quantisation import error_bound
from host_agent.wire.aggregation import Reduction
from tests.torch_suite.beside_gloo import Check, Pair
from tests.torch_suite.beside_gloo.tensors import EXPANDED, LAYOUTS, LONG, SHAPES, TYPES, Make, elements

Tensors: TypeAlias = list[torch.Tensor]
Call: TypeAlias = Callable[[Any, Make, torch.dtype, Any], Tensors]

OPERATIONS: Final = {
    name: getattr(dist.ReduceOp, name)
    for name in ("SUM", "AVG", "MAX", "MIN", "PRODUCT", "BAND", "BOR", "BXOR")
}
_NUMPY: Final = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: ml_dtypes.bfloat16}
_ROOT: Final = 1
_SENTENCE: Final = 20  # characters


def _mine(make: Make, dtype: torch.dtype) -> torch.Tensor:
    return make(dtype, dist.get_rank() + 1)


def _blank(like: torch.Tensor) -> torch.Tensor:
    """Return a tensor to be filled: as large, contiguous, and with other bytes than are right."""
    return torch.ones(like.shape, dtype=like.dtype)


# Each runs a collective in a group, and gives the tensors that it fills on this rank.


def _all_reduce(group: Any, make: Make, dtype: torch.dtype, op: Any) -> Tensors:
    tensor = _mine(make, dtype)
    dist.all_reduce(tensor, op, group)
    return [tensor]


def _all_reduce_coalesced(group: Any, make: Make, dtype: torch.dtype, op: Any) -> Tensors:
    tensors = [_mine(make, dtype), elements(9, dtype, dist.get_rank() + 50)]
    dist.all_reduce_coalesced(tensors, op, group)
    return tensors[:1]


def _reduce(group: Any, make: Make, dtype: torch.dtype, op: Any) -> Tensors:
    tensor = _mine(make, dtype)
    dist.reduce(tensor, _ROOT, op, group)
    return [tensor] if dist.get_rank() == _ROOT else []


def _reduce_scatter(group: Any, make: Make, dtype: torch.dtype, op: Any) -> Tensors:
    output = _blank(_mine(make, dtype))
    dist.reduce_scatter(output, [_part(make, dtype, dist.get_rank(), to) for to in _ranks()], op, group)
    return [output]


def _reduce_scatter_tensor(group: Any, make: Make, dtype: torch.dtype, op: Any) -> Tensors:
    parts = [_part(make, dtype, dist.get_rank(), to) for to in _ranks()]
    output = _blank(parts[0])
    # Gloo itself crashes where the two have not as many dimensions.
    into = output if group is dist.group.WORLD else output.reshape(-1)
    dist.reduce_scatter_tensor(into, torch.cat([part.reshape(-1) for part in parts]), op, group)
    return [output]


def _broadcast(group: Any, make: Make, dtype: torch.dtype, _: Any) -> Tensors:
    tensor = _mine(make, dtype)
    dist.broadcast(tensor, _ROOT, group)
    return [tensor]


def _all_gather(group: Any, make: Make, dtype: torch.dtype, _: Any) -> Tensors:
    tensor = _mine(make, dtype)
    outputs = [_blank(tensor) for _ in _ranks()]
    dist.all_gather(outputs, tensor, group)
    return outputs


def _all_gather_into(group: Any, make: Make, dtype: torch.dtype, _: Any) -> Tensors:
    tensor = _mine(make, dtype)
    output = torch.ones(tensor.numel() * dist.get_world_size(), dtype=dtype)
    dist.all_gather_into_tensor(output, tensor, group)
    return [part.reshape(tensor.shape) for part in output.chunk(dist.get_world_size())] if len(output) else []


def _gather(group: Any, make: Make, dtype: torch.dtype, _: Any) -> Tensors:
    tensor = _mine(make, dtype)
    outputs = [_blank(tensor) for _ in _ranks()] if dist.get_rank() == _ROOT else []
    dist.gather(tensor, outputs or None, _ROOT, group)
    return outputs


def _scatter(group: Any, make: Make, dtype: torch.dtype, _: Any) -> Tensors:
    output = _blank(_mine(make, dtype))
    at_root = dist.get_rank() == _ROOT
    dist.scatter(
        output, [_part(make, dtype, _ROOT, to) for to in _ranks()] if at_root else None, _ROOT, group
    )
    return [output]


def _all_to_all(group: Any, make: Make, dtype: torch.dtype, _: Any) -> Tensors:
    parts = [_part(make, dtype, dist.get_rank(), to) for to in _ranks()]
    outputs = [_blank(part) for part in parts]
    dist.all_to_all(outputs, parts, group)
    return outputs


def _all_to_all_single(group: Any, make: Make, dtype: torch.dtype, _: Any) -> Tensors:
    joined = torch.cat([_part(make, dtype, dist.get_rank(), to).reshape(-1) for to in _ranks()])
    output = torch.ones_like(joined)
    dist.all_to_all_single(output, joined, group=group)
    return [output]


def _around(group: Any, make: Make, dtype: torch.dtype, _: Any) -> Tensors:
    """Send each rank's tensor to the next one, by send and recv."""
    tensor, rank, size = _mine(make, dtype), dist.get_rank(), dist.get_world_size()
    output = _blank(tensor)
    sending = dist.isend(tensor, (rank + 1) % size, group)
    dist.recv(output, (rank - 1) % size, group)
    sending.wait()
    return [output]


REDUCING: Final[dict[str, Call]] = {
    "all_reduce": _all_reduce,
    "all_reduce_coalesced": _all_reduce_coalesced,
    "reduce": _reduce,
    "reduce_scatter": _reduce_scatter,
    "reduce_scatter_tensor": _reduce_scatter_tensor,
}
COPYING: Final[dict[str, Call]] = {
    "broadcast": _broadcast,
    "all_gather": _all_gather,
    "all_gather_into_tensor": _all_gather_into,
    "gather": _gather,
    "scatter": _scatter,
    "all_to_all": _all_to_all,
    "all_to_all_single": _all_to_all_single,
    "send_recv": _around,
}


def _ranks() -> range:
    return range(dist.get_world_size())


def _part(make: Make, dtype: torch.dtype, sender: int, receiver: int) -> torch.Tensor:
    """Return what a rank has for another one."""
    return make(dtype, 100 + 10 * sender + receiver)


def _summands(name: str, make: Make, dtype: torch.dtype) -> Tensors:
    """Return all ranks' inputs of what this rank gets."""
    if name.startswith("reduce_scatter"):
        return [_part(make, dtype, sender, dist.get_rank()) for sender in _ranks()]
    return [make(dtype, rank + 1) for rank in _ranks()]


def _copies(name: str, make: Make, dtype: torch.dtype) -> Tensors:
    """Return what this rank has to get, where nothing is added."""
    rank, size = dist.get_rank(), dist.get_world_size()
    alone = {
        "broadcast": lambda: [make(dtype, _ROOT + 1)],
        "scatter": lambda: [_part(make, dtype, _ROOT, rank)],
        "send_recv": lambda: [make(dtype, (rank - 1) % size + 1)],
        "gather": lambda: [make(dtype, one + 1) for one in _ranks()] if rank == _ROOT else [],
        "all_to_all": lambda: [_part(make, dtype, one, rank) for one in _ranks()],
        "all_to_all_single": lambda: [
            torch.cat([_part(make, dtype, one, rank).reshape(-1) for one in _ranks()])
        ],
    }
    if name in alone:
        return alone[name]()
    return [make(dtype, one + 1) for one in _ranks() if make(dtype, 1).numel() or name == "all_gather"]


def _right(operation: str, summands: Tensors) -> torch.Tensor:
    """Reduce floats in 64 bits, others by the type's own arithmetic; an average of integers is cut off."""
    dtype = summands[0].dtype
    floats = dtype.is_floating_point or dtype.is_complex
    wide = {True: torch.complex128 if dtype.is_complex else torch.float64, False: dtype}[floats]
    stack = torch.stack([one.to(wide) for one in summands])
    if operation == "AVG":
        total = stack.sum(0)
        return (
            total / len(summands)
            if floats
            else torch.div(total, len(summands), rounding_mode="trunc").to(dtype)
        )
    if operation in ("SUM", "PRODUCT"):
        return (stack.sum(0) if operation == "SUM" else stack.prod(0)).to(wide)
    if operation in ("MAX", "MIN"):
        return (stack.amax(0) if operation == "MAX" else stack.amin(0)).to(dtype)
    bitwise = {"BAND": torch.bitwise_and, "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor}[operation]
    return reduce(bitwise, stack)


def _is_exact(operation: str, dtype: torch.dtype) -> bool:
    return operation in ("", "MAX", "MIN") or not (dtype.is_floating_point or dtype.is_complex)


def _wrong_number(operation: str, summands: Tensors, found: torch.Tensor) -> str:
    """Return why `found` is further from what is right than it may be; empty if it is not."""
    dtype = summands[0].dtype
    right = _right(operation, summands)
    if found.shape != right.shape:
        return f"has the shape {found.shape}, not {right.shape}"
    if dtype.is_complex:
        summands, right, found = (
            [torch.view_as_real(one) for one in summands],
            torch.view_as_real(right),
            torch.view_as_real(found),
        )
    largest = max((float(one.abs().max()) for one in summands if one.numel()), default=0.0)
    numbers = _NUMPY.get(summands[0].dtype)
    if numbers is None or operation == "PRODUCT":  # by Gloo, which rounds after each rank
        most = float(right.abs().max()) if right.numel() else 0.0
        bound = 4 * len(summands) * torch.finfo(dtype).eps * max(largest, most)
    else:
        bound = error_bound(largest, world_size=len(summands), dtype=numbers, reduction=Reduction[operation])
    away = (found.double() - right).abs()
    worst = float(away.max()) if away.numel() else 0.0
    return "" if worst <= bound else f"{worst:g} away from what is right, more than {bound:g}"


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Tell whether both are the same to the bit."""
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return False
    if a.dtype == torch.bool:  # Gloo adds them up as bytes
        return bool(torch.equal(a, b))
    return bool(torch.equal(_bytes(a), _bytes(b)))


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _attempt(call: Call, group: Any, make: Make, dtype: torch.dtype, op: Any) -> Tensors | Exception:
    try:
        return call(group, make, dtype, op)
    except (RuntimeError, TypeError, ValueError) as error:
        return error


def _wrong(pair: Pair, name: str, operation: str, shape: str, make: Make, dtype: torch.dtype) -> str:
    """Return what is wrong with p4reduce's result; empty if nothing is."""
    call = {**REDUCING, **COPYING}[name]
    ours, gloos = (
        _attempt(call, group, make, dtype, OPERATIONS.get(operation))
        for group in (dist.group.WORLD, pair.gloo)
    )
    by_gloo = "refuses" if isinstance(gloos, Exception) else _not_right(name, operation, make, dtype, gloos)
    if by_gloo and shape in SHAPES and not isinstance(gloos, Exception):
        return f"the test has it that Gloo is wrong: {by_gloo}"  # as it is where tensors have gaps
    if isinstance(ours, Exception):
        if not by_gloo:
            return f"refused, which Gloo does: {ours}"
        kind, _, said = str(ours).partition(": ")
        sentence = (
            isinstance(ours, TypeError | ValueError) and name.startswith(kind) and len(said) > _SENTENCE
        )
        as_gloo_says = isinstance(gloos, Exception) and _first_line(ours) == _first_line(gloos)
        return "" if sentence or as_gloo_says else f"refused without a sentence: {ours!r} (Gloo: {gloos!r})"
    wrong = _not_right(name, operation, make, dtype, ours)
    return f"{wrong} (Gloo: {by_gloo or 'right'})" if wrong else ""


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _not_right(name: str, operation: str, make: Make, dtype: torch.dtype, found: Tensors) -> str:
    if name == "reduce" and dist.get_rank() != _ROOT:
        return ""
    if not operation:
        right = _copies(name, make, dtype)
    elif _is_exact(operation, dtype):
        right = [_right(operation, _summands(name, make, dtype))]
    else:
        return _wrong_number(operation, _summands(name, make, dtype), found[0])
    if len(found) == len(right) and all(map(_same, found, right)):
        return ""
    return f"gave {_brief(found)}, where {_brief(right)} is right"


def _brief(tensors: Tensors) -> str:
    return str([one.reshape(-1)[:4].tolist() for one in tensors[:4]])


def _cases(name: str) -> Iterator[tuple[str, str, Make]]:
    """Yield the operation, what the layout is called, and the tensors."""
    expanded = {} if name in ("all_reduce", "all_reduce_coalesced", "reduce", "broadcast") else EXPANDED
    for operation in OPERATIONS if name in REDUCING else ("",):
        for shape, make in {**SHAPES, **LAYOUTS, **expanded}.items():
            if shape not in LONG or operation in ("", "SUM", "MAX", "PRODUCT"):
                yield operation, shape, make


def cases(name: str) -> int:
    """Return how many cases there are, of each type."""
    return sum(1 for _ in _cases(name))


def _check(pair: Pair, *, name: str, dtype: torch.dtype) -> None:
    found = {
        f"{operation} {shape}".strip(): wrong
        for operation, shape, make in _cases(name)
        if (wrong := _wrong(pair, name, operation, shape, make, dtype))
    }
    assert not found, "\n".join(f"{case}: {wrong}" for case, wrong in found.items())


def _sparse(pair: Pair) -> None:
    """Check that they are refused with a sentence that says what to do."""
    for call in (
        *(dist.all_reduce, partial(dist.broadcast, src=0), partial(dist.reduce, dst=0)),
        lambda sparse: dist.gather(sparse, [sparse] * pair.size if pair.rank == 0 else None),
        lambda sparse: dist.scatter(sparse, [sparse] * pair.size if pair.rank == 0 else None),
        lambda sparse: dist.all_to_all([sparse] * pair.size, [sparse] * pair.size),
        partial(dist.send, dst=(pair.rank + 1) % pair.size),
        partial(dist.recv, src=(pair.rank + 1) % pair.size),
    ):
        try:
            call(torch.eye(4).to_sparse())
        except TypeError as error:
            said = str(error)
        else:
            said = "it was taken"
        assert "to_dense()" in said, said


def _inf_and_nan(pair: Pair) -> None:
    """Check that they are as Gloo has them: an Inf or NaN of one rank is everybody's."""
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for operation in ("SUM", "AVG", "MAX", "MIN"):
            results = []
            for group in (dist.group.WORLD, pair.gloo):
                tensor = elements(3000, dtype, pair.rank)
                if pair.rank == 2:
                    tensor[[1, 1500, 2999]] = torch.tensor([float("inf"), float("-inf"), float("inf")]).to(
                        dtype
                    )
                if pair.rank == 3 and operation in ("SUM", "AVG"):  # Gloo's MAX of a NaN depends on the order
                    tensor[[2, 1500]] = torch.tensor([float("nan"), float("inf")]).to(dtype)
                dist.all_reduce(tensor, OPERATIONS[operation], group)
                results.append(tensor)
            ours, gloos = results
            case = f"{dtype} {operation}"
            assert torch.equal(ours.isnan(), gloos.isnan()), f"{case}: other NaNs than Gloo's"
            assert torch.equal(ours.isposinf(), gloos.isposinf()), f"{case}: other Infs than Gloo's"
            assert torch.equal(ours.isneginf(), gloos.isneginf()), f"{case}: other -Infs than Gloo's"


CHECKS: Final[dict[str, Check]] = {
    **{
        f"{name} {word}": partial(_check, name=name, dtype=dtype)
        for name in (*REDUCING, *COPYING)
        for word, dtype in TYPES.items()
    },
    "sparse tensors": _sparse,
    "Inf and NaN": _inf_and_nan,
}

"""Tables of the outcomes, as Markdown for the documentation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from tests.torch_suite.known import KNOWN
from tests.torch_suite.results import Outcome, Result

# PyTorch's tests by what their names begin with; the first that fits.
_SORTS: Final = (
    ("all_reduce", ("test_all_reduce", "test_sparse_all_reduce", "test_allreduce")),
    ("reduce, reduce_scatter", ("test_reduce",)),
    ("all_gather", ("test_all_gather", "test_allgather")),
    ("broadcast", ("test_broadcast",)),
    ("gather, scatter", ("test_gather", "test_scatter")),
    ("all_to_all", ("test_all_to_all",)),
    ("barrier, monitored_barrier", ("test_barrier", "test_monitored_barrier")),
    (
        "send, receive, in batches too",
        ("test_batch_isend", "test_isend", "test_irecv", "test_send", "test_recv"),
    ),
    (
        "groups",
        (
            "test_get_",
            "test_backend",
            "test_new_sub",
            "test_destroy",
            "test_group",
            "test_different_",
            "test_new_",
        ),
    ),
    (
        "DistributedDataParallel",
        (
            *(
                "test_ddp",
                "test_Distributed",
                "test_Sync",
                "test_grad",
                "test_static",
                "test_verify",
                "test_undefined",
            ),
            *(
                "test_find_unused",
                "test_stateless",
                "test_invalid_static",
                "test_output_unused",
                "test_detect_ddp",
            ),
        ),
    ),
    ("averaging of models", ("test_average", "test_periodic", "test_hierarchical", "test_post_local")),
)
_OTHERS: Final = "others"
# Why PyTorch skips a test, by a word of its reason.
_SKIPPED: Final = (
    ("multi-gpu", "several GPUs are needed"),
    ("no_cuda", "a GPU is needed"),
    ("CUDA", "a GPU is needed"),
    ("cuda", "a GPU is needed"),
    ("GPU", "a GPU is needed"),
    ("gpu", "a GPU is needed"),
    ("small_worldsize", "more GPUs or ranks are needed"),
    ("https://github.com/pytorch", "PyTorch has switched it off"),
    ("nccl", "it is of NCCL alone"),
    ("NCCL", "it is of NCCL alone"),
    ("Nccl", "it is of NCCL alone"),
    ("torchvision", "torchvision is needed"),
)


def table(outcomes: Mapping[str, Sequence[Outcome]]) -> str:
    """Return the tables of runs by name.

    PyTorch's tests come by sort, with why some were skipped and what is known to fail; then ours by sort.
    """
    gloo, ours = outcomes.get("upstream gloo", []), outcomes.get("upstream p4reduce", [])
    return "\n".join([*_upstream(gloo, ours), *_skips(ours), *_known(ours), *_beside(outcomes)]) + "\n"


def _upstream(gloo: Sequence[Outcome], ours: Sequence[Outcome]) -> list[str]:
    if not ours:
        return []
    lines = [
        "| PyTorch's tests | pass with Gloo | of these with p4reduce | skipped |",
        "| --- | ---: | ---: | ---: |",
    ]
    passed = {one.name for one in gloo if one.result is Result.PASSED}
    total = [0, 0, 0]
    for sort in (*(name for name, _ in _SORTS), _OTHERS):
        of_it = [one for one in ours if _sort(one.name) == sort]
        counts = [
            sum(one.name in passed for one in of_it),
            sum(one.name in passed and one.result is Result.PASSED for one in of_it),
            sum(one.result is Result.SKIPPED for one in of_it),
        ]
        total = [a + b for a, b in zip(total, counts, strict=True)]
        lines.append(f"| {sort} | {counts[0]} | {counts[1]} | {counts[2]} |")
    return [*lines, f"| together | {total[0]} | {total[1]} | {total[2]} |", ""]


def _sort(name: str) -> str:
    return next((sort for sort, starts in _SORTS if name.startswith(starts)), _OTHERS)


def _skips(ours: Sequence[Outcome]) -> list[str]:
    counted = Counter(_why(one.reason) for one in ours if one.result is Result.SKIPPED)
    if not counted:
        return []
    rows = [f"| {reason} | {count} |" for reason, count in counted.most_common()]
    return ["| Skipped, because | tests |", "| --- | ---: |", *rows, ""]


def _why(reason: str) -> str:
    return next((why for word, why in _SKIPPED if word in reason), reason)


def _known(ours: Sequence[Outcome]) -> list[str]:
    failing = [one.name for one in ours if one.name in KNOWN and one.result is not Result.PASSED]
    if not failing:
        return []
    rows = [f"| `{name}` | {KNOWN[name]} |" for name in failing]
    return ["| Passes with Gloo alone | because |", "| --- | --- |", *rows, ""]


def _beside(outcomes: Mapping[str, Sequence[Outcome]]) -> list[str]:
    found = outcomes.get("beside_gloo p4reduce", [])
    if not found:
        return []
    from tests.torch_suite.beside_gloo import collectives
    from tests.torch_suite.beside_gloo.tensors import TYPES

    per_type = {
        name: [one for one in found if one.name.rpartition(" ")[0] == name]
        for name in (*collectives.REDUCING, *collectives.COPYING)
    }
    rows = [
        f"| {name} | {_passed(checks)} of {len(TYPES)} types | {collectives.cases(name)} |"
        for name, checks in per_type.items()
    ]
    rest = {one.name for checks in per_type.values() for one in checks}
    others = [one for one in found if one.name not in rest]
    rows += [f"| {one.name} | {one.result.value} | |" for one in others]
    return ["| Beside Gloo | outcome | cases of each type |", "| --- | --- | ---: |", *rows, ""]


def _passed(checks: Sequence[Outcome]) -> int:
    return sum(one.result is Result.PASSED for one in checks)

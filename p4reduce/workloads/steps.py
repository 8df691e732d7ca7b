"""The steps of one job's workers, and the result of each iteration."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from p4reduce.workloads.allreduce import switch_counters
from p4reduce.workloads.cluster_file import AllReduce, Job, Step, Train
from p4reduce.workloads.team import Team
from p4reduce.workloads.training import compare

Result = dict[str, Any]
Progress = Callable[[str], None]


def run_steps(
    team: Team, job: Job, steps: tuple[Step, ...], *, timeout_s: float, progress: Progress
) -> Result:
    """Join, run every step, leave. Errors are raised; a wrong sum is noted in the result."""
    joined = team.join(job.name, timeout_s=timeout_s, elastic=job.elastic)[0]
    done: list[Result] = []
    for step in steps:
        if step.all_reduce is not None:
            for size, dtype in _kinds(step.all_reduce):
                progress(f"job {job.name}: {step.all_reduce.iterations} x {size} bytes of {dtype}")
                done.append(
                    _all_reduces(
                        team,
                        step.all_reduce,
                        size=size,
                        dtype=dtype,
                        timeout_s=timeout_s,
                        elastic=job.elastic,
                    )
                )
        elif step.train is not None:
            progress(f"job {job.name}: {step.train.steps} steps of training, {step.train.dtype}")
            done.append(_training(team, step.train, timeout_s=timeout_s))
    wire = [answer["statistics"] for answer in team.do("statistics", timeout_s=timeout_s)]
    counters = switch_counters(team.cluster, team.jobs)
    team.do("leave", timeout_s=timeout_s)
    return {
        **{key: joined[key] for key in ("job_id", "generation", "window", "message_packets", "path_mtu")},
        "mode_at_join": joined["mode"].replace("_", "-"),
        "mode_reason": joined["mode_reason"],
        "ring_reason": wire[0]["ring_reason"],  # at join or since, the last one
        "collectives_in_network": wire[0]["in_network"],
        "collectives_by_ring": wire[0]["ring"],
        "retransmissions": sum(worker["retransmissions"] for worker in wire),
        "bytes_sent_per_host": max(worker["bytes_sent"] for worker in wire),
        "counters": counters,
        "workers_left": team.size - len(team.lost),
        "renewals": max(worker["renewals"] for worker in wire),
        "steps": done,
    }


def exact(result: Result) -> bool:
    """Return whether every sum of a job that was checked was right, with the same bits on all ranks."""
    return all(one["right"] is not False for step in result["steps"] for one in step["iterations"])


def _kinds(step: AllReduce) -> Iterator[tuple[int, str]]:
    return ((size, dtype) for size in step.bytes for dtype in step.dtype)


def _all_reduces(
    team: Team, step: AllReduce, *, size: int, dtype: str, timeout_s: float, elastic: bool
) -> Result:
    from p4reduce.workloads.tensors import dtype_of

    iterations = []
    for number in range(step.iterations):
        answers = team.do(
            "all_reduce",
            per_rank=[
                {"verify": rank == 0 or elastic, "late_s": step.late_s.get(rank, 0.0)}
                for rank in range(team.size)
            ],
            elements=size // dtype_of(dtype).itemsize,
            dtype=dtype,
            op=step.op,
            strategy=None if step.strategy == "auto" else step.strategy,
            wire=step.wire,
            seed=step.seed + number,
            racks=None if elastic else team.racks,
            timeout_s=timeout_s,
        )
        check = answers[0]["check"]
        equal = len({answer["digest"] for answer in answers}) == 1
        iterations.append(
            {
                "seconds": max(answer["seconds"][0] for answer in answers),
                "bytes_sent_per_host": round(max(answer["bytes_sent"] for answer in answers)),
                "retransmissions": sum(answer["retransmissions"] for answer in answers),
                "ranks_bitwise_equal": equal,
                "right": equal and check["passed"],
                "workers": answers[0]["workers"],
                **{key: check[key] for key in ("exact", "largest_error", "bound")},
            }
        )
    asked = {"bytes": size, "dtype": dtype, "op": step.op, "wire": step.wire}
    return {"all_reduce": asked, "iterations": iterations}


def _training(team: Team, step: Train, *, timeout_s: float) -> Result:
    with tempfile.TemporaryDirectory() as scratch:
        record = Path(scratch) / "sums.npy"
        answers = team.do(
            "train",
            steps=step.steps,
            seed=step.seed,
            dtype=step.dtype,
            wire=step.wire,
            record=str(record),
            timeout_s=timeout_s,
        )
        whole = all(answer["workers"] == team.size for answer in answers)
        # Without a dead worker's examples, one process can not tell what came out.
        ringed = any(answer["by_ring"] for answer in answers)
        reference = (
            compare(
                record,
                world_size=team.size,
                seed=step.seed,
                dtype=step.dtype,
                wire=step.wire,
                by_ring=ringed,
            )
            if whole
            else None
        )
    equal = len({answer["digest"] for answer in answers}) == 1
    slowest = [max(times) for times in zip(*(answer["seconds"] for answer in answers), strict=True)]
    return {
        "train": {
            "steps": step.steps,
            "dtype": step.dtype,
            "wire": step.wire,
            "gradient_bytes": answers[0]["bytes"],
        },
        "accuracy": answers[0]["accuracy"],
        "reference": None if reference is None else asdict(reference),
        # The sums of all steps are compared together, at the end.
        "iterations": [
            {
                "seconds": seconds,
                "ranks_bitwise_equal": equal,
                "right": equal and (reference is None or reference.within_bound),
                "workers": answers[0]["workers"],
            }
            for seconds in slowest
        ],
    }

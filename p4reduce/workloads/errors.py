"""Errors of workloads: what was wrong, on which worker, and what to do."""

from __future__ import annotations


class WorkloadError(Exception):
    """A workload cannot run, or a worker failed."""


class WorkerFailedError(WorkloadError):
    """A worker reported an error: `kind` is the exception's name there, `rank` says whose it was."""

    def __init__(self, rank: int, kind: str, text: str) -> None:
        super().__init__(f"worker {rank}: {text}")
        self.rank = rank
        self.kind = kind
        self.text = text


class VerificationError(WorkloadError):
    """A result was wrong."""

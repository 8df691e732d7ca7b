"""The file in which rank 0 notes when its steps end, and their losses. JSON, a line a step."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

RECORD: Final = "P4REDUCE_TORCH_RECORD"  # the file's name; p4reduce.torch_recording writes it
INSTEAD: Final = "P4REDUCE_TORCH_INSTEAD"  # "gloo": p4reduce.torch makes a process group of Gloo's alone
FOR: Final = "P4REDUCE_TORCH_FOR"  # "gloo": scripts that ask for Gloo, or for nothing, get p4reduce
GLOO: Final = "gloo"


@dataclass(frozen=True)
class Record:
    """Notes of a script.

    `ended`: the time of each step's end, on the machine's monotonic clock. `losses`: the last one before each
    step's end; None where there was none. `backend`: the one that was made instead of p4reduce.
    """

    ended: list[float] = field(default_factory=list)
    losses: list[float | None] = field(default_factory=list)
    backend: str = ""

    @property
    def seconds(self) -> list[float]:
        """Seconds that each step took but the first, whose beginning is not recorded."""
        return [later - earlier for earlier, later in zip(self.ended, self.ended[1:], strict=False)]


def read(path: Path) -> Record:
    """Read the file; the record is empty where the script has not written any."""
    ended, losses, backend = [], [], ""
    for line in path.read_text().splitlines() if path.exists() else ():
        noted = json.loads(line)
        backend = noted.get("backend", backend)
        if "ended" in noted:
            ended.append(noted["ended"])
            losses.append(noted["loss"])
    return Record(ended, losses, backend)

"""The process in a host: runs checks one after the other, as all ranks do, and agrees on what came out.

    python -m tests.torch_suite.host SUITE BACKEND --directory DIR --start N --only REGEX

Of a check that fails on any rank nothing stays: the process group is made anew. Where a check takes longer
than `LIMIT_S`, the process writes its threads' stacks and ends; `rack.py` goes on behind it.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import re
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Protocol
from unittest import SkipTest

from tests.torch_suite.results import Outcome, Result, worst

LIMIT_S: Final = 120
PROGRESS: Final = "progress.jsonl"
_GROUP_TIMEOUT: Final = timedelta(seconds=30)  # of collectives that another rank's failure leaves alone
_STORE_TIMEOUT: Final = timedelta(seconds=LIMIT_S)
_REASON: Final = 2000  # characters


class Suite(Protocol):
    """Checks with names; all ranks run the same ones."""

    def names(self) -> list[str]: ...

    def open(self, store: Any, timeout: timedelta) -> None:
        """Make the process group."""

    def run(self, name: str) -> bool:
        """Run a check; return whether the process group is as good as new. Raise SkipTest or the failure."""

    def close(self) -> None:
        """Undo `open`, whatever a failed check has left."""


class _Ranks:
    """Words that all ranks tell each other beside the process group under test."""

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self._store, self._rank, self._size = store, rank, size
        self._count = 0

    def all_say(self, word: str) -> list[str]:
        """Return all ranks' words, by rank, when all have said theirs: a barrier, too."""
        self._count += 1
        self._store.set(f"{self._count}/{self._rank}", word)
        return [bytes(self._store.get(f"{self._count}/{rank}")).decode() for rank in range(self._size)]


def _suite(name: str, backend: str) -> Suite:
    if name == "upstream":
        from tests.torch_suite.upstream import Upstream

        return Upstream(backend)
    from tests.torch_suite.beside_gloo import BesideGloo

    return BesideGloo()


def _run(suite: Suite, name: str) -> tuple[Result, str, bool]:
    """Run a check; return what came of it on this rank, and whether the process group can stay."""
    try:
        as_new = suite.run(name)
    except SkipTest as skipped:
        return Result.SKIPPED, str(skipped), True
    except Exception as error:  # noqa: BLE001 (it is the outcome)
        traceback.print_exc()
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(last.filename).name}:{last.lineno}: {last.line}"
        return Result.FAILED, f"{type(error).__name__}: {error}"[:_REASON] + f" ({place})", False
    return Result.PASSED, "", as_new


def main() -> None:
    """Run the checks from `--start` on, and write each one's outcome into the directory."""
    parser = argparse.ArgumentParser()
    parser.add_argument("suite", choices=("upstream", "beside_gloo"))
    parser.add_argument("backend", choices=("gloo", "p4reduce"))
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--only", type=re.compile, default=re.compile(""))
    given = parser.parse_args()
    faulthandler.enable()
    faulthandler.dump_traceback_later(LIMIT_S, exit=True)

    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(address, port, size, rank == 0, timeout=_STORE_TIMEOUT)
    ranks = _Ranks(dist.PrefixStore("outcomes", store), rank, size)
    suite = _suite(given.suite, given.backend)
    names = [name for name in suite.names() if given.only.search(name)]
    groups = 0
    as_new = False
    progress = (given.directory / PROGRESS).open("a") if rank == 0 else None

    def tell(**what: Any) -> None:
        if progress is not None:
            print(json.dumps(what), file=progress, flush=True)

    for index in range(given.start, len(names)):
        faulthandler.dump_traceback_later(LIMIT_S, exit=True)
        began = time.monotonic()
        tell(index=index, name=names[index])
        if not as_new:
            if groups:
                suite.close()
            groups += 1
            ranks.all_say("closed")
            suite.open(dist.PrefixStore(f"group {groups}", store), _GROUP_TIMEOUT)
            ranks.all_say("opened")
        print(f"-- {names[index]}", file=sys.stderr, flush=True)
        result, reason, as_new = _run(suite, names[index])
        said = [json.loads(word) for word in ranks.all_say(json.dumps([result.value, reason, as_new]))]
        as_new = all(each for _, _, each in said)
        result, reason = worst([(Result(one), why) for one, why, _ in said])
        outcome = Outcome(name=names[index], result=result, reason=reason, seconds=time.monotonic() - began)
        tell(index=index, outcome=vars(outcome))
    if groups:
        suite.close()
    ranks.all_say("over")
    tell(over=True)
    sys.stdout.flush()
    sys.stderr.flush()
    time.sleep(0.2 if rank == 0 else 0)  # the others read the store, which is rank 0's
    os._exit(0)  # what the last test may have left is not waited for


if __name__ == "__main__":
    main()

"""pytest beside a load: `python -m tests.beside_load [--compilers N] [--times N] [WHAT PYTEST TAKES]`.

N compilers (by default one more than there are processors) compile the switch's engine again and again, into
nothing, while the tests run. A test that fails here and nowhere else waits for too short a time, or has found
a race. Exit code: pytest's first that is not 0. How long each run took is printed.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parent.parent
COMPILE = (
    "g++",
    "-std=c++17",
    "-O3",
    "-c",
    "-o",
    os.devnull,
    str(ROOT / "soft_switch" / "native" / "engine.cpp"),
)


class Compiler(threading.Thread):
    """Compiles until it is stopped."""

    def __init__(self) -> None:
        super().__init__(name="compiler")
        self.runs = 0
        self.error = ""
        self._stopping = False
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def run(self) -> None:
        while True:
            with self._lock:
                if self._stopping:
                    return
                self._process = subprocess.Popen(
                    COMPILE, stderr=subprocess.PIPE, text=True, start_new_session=True
                )
            _, said = self._process.communicate()
            if self._process.returncode > 0:
                self.error = said
                return
            self.runs += 1

    def stop(self) -> None:
        """End it, and what it has started: g++ starts others, in a process group of their own."""
        with self._lock:
            self._stopping = True
            if self._process is not None and self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGTERM)
        self.join()


@contextmanager
def load(compilers: int) -> Iterator[Sequence[Compiler]]:
    """Run so many compilers for as long as this lasts."""
    running = [Compiler() for _ in range(compilers)]
    try:
        for compiler in running:
            compiler.start()
        yield running
    finally:
        for compiler in running:
            compiler.stop()


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.beside_load", description=__doc__)
    parser.add_argument("--compilers", type=int, default=(os.cpu_count() or 1) + 1)
    parser.add_argument("--times", type=int, default=1)
    options, pytest = parser.parse_known_args(arguments)
    command = [sys.executable, "-m", "pytest", *pytest]
    for number in range(1, options.times + 1):
        started = time.monotonic()
        with load(options.compilers) as running:
            code = subprocess.run(command, cwd=ROOT, check=False).returncode
            errors = {compiler.error for compiler in running if compiler.error}
        print(
            f"== run {number} of {options.times} beside {options.compilers} compilers: exit code {code}, "
            f"{time.monotonic() - started:.0f} s ({shlex.join(command[1:])})",
            flush=True,
        )
        if errors:
            print(f"The compilers did not run: {errors.pop()}", file=sys.stderr)
            return 1
        if code:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

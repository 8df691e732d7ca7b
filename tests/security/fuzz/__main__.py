"""A campaign: `python -m tests.security.fuzz TARGET... --runs N`, all targets if none is named.

With atheris (pip install atheris) it follows coverage; without, inputs are mutated at random. The input of a
finding is printed, and goes into `--reproduce HEX`.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.security.fuzz.seeds import seeds

_INSIDE = "P4REDUCE_FUZZ_INSIDE"
_NAMES = ("agent", "neighbour", "wire", "quantise", "capture", "config", "document", "messages")


def main() -> int:
    """Fuzz the targets; return 1 if some target failed."""
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(_NAMES))
    parser.add_argument("--runs", type=int, default=20_000, help="of each target (default 20000)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--without-atheris", action="store_true")
    parser.add_argument("--reproduce", metavar="HEX", help="run the one target with this input")
    options = parser.parse_args()
    names = options.targets or list(_NAMES)
    if unknown := set(names) - set(_NAMES):
        parser.error(f"{', '.join(unknown)}: there are {', '.join(_NAMES)}")
    logging.disable(logging.CRITICAL)
    if options.reproduce is not None:
        return at_random(names[0], [bytes.fromhex(options.reproduce)])
    failed = 0
    for name in names:
        start = time.monotonic()
        if _INSIDE in os.environ:
            with_atheris(name, options.runs, options.seed)  # does not come back
        if options.without_atheris or not _has_atheris():
            code = at_random(name, mutations(name, options.runs, options.seed))
        else:
            code = in_a_process(name, options.runs, options.seed)
        took = time.monotonic() - start
        print(f"{name}: {'FAILED' if code else 'ok'}, {options.runs} runs in {took:.0f} s", flush=True)
        failed |= code != 0
    return failed


def mutations(name: str, runs: int, seed: int) -> list[bytes]:
    """Return inputs near the seeds, and wild ones."""
    chance = random.Random(f"{name} {seed}")
    known = seeds(name)
    return [*known, *(mutated(chance.choice(known), chance) for _ in range(runs))]


def mutated(data: bytes, chance: random.Random) -> bytes:
    """Turn over, replace, take out or repeat bits, bytes and pieces; now and then return something wild."""
    if chance.random() < 0.1:
        return chance.randbytes(chance.randrange(1, 600))
    changed = bytearray(data)
    for _ in range(chance.randint(1, 8)):
        at = chance.randrange(len(changed) + 1)
        kind = chance.randrange(5)
        if kind == 0 and at < len(changed):
            changed[at] ^= 1 << chance.randrange(8)
        elif kind == 1 and at < len(changed):
            changed[at] = chance.choice([0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)])
        elif kind == 2:
            del changed[at : at + chance.randrange(16)]
        elif kind == 3:
            changed[at:at] = changed[at : at + chance.randrange(32)]
        else:
            changed[at:at] = chance.randbytes(chance.randrange(1, 9))
    return bytes(changed)


def at_random(name: str, inputs: list[bytes]) -> int:
    """Return 1 for a finding, which is printed."""
    from tests.security.fuzz.targets import TARGETS

    for data in inputs:
        try:
            TARGETS[name](data)
        except Exception:  # noqa: BLE001 (that is what is looked for)
            import traceback

            traceback.print_exc()
            print(f"python -m tests.security.fuzz {name} --reproduce {data.hex()}", flush=True)
            return 1
    return 0


def in_a_process(name: str, runs: int, seed: int) -> int:
    """Run Atheris in a process of its own, as it ends the process that it runs in."""
    with tempfile.TemporaryDirectory() as corpus:
        for number, data in enumerate(seeds(name)):
            (Path(corpus) / f"seed{number}").write_bytes(data)
        done = subprocess.run(
            [sys.executable, "-m", "tests.security.fuzz", name, "--runs", str(runs), "--seed", str(seed)],
            env={**os.environ, _INSIDE: corpus},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode != 0:
        print((done.stdout + done.stderr)[-6000:], flush=True)
    return done.returncode


def with_atheris(name: str, runs: int, seed: int) -> None:
    """Fuzz in this process, until it ends."""
    import atheris

    with atheris.instrument_imports(include=["host_agent", "controller", "p4reduce"]):
        from tests.security.fuzz.targets import TARGETS
    arguments = [f"-runs={runs}", f"-seed={seed}", "-max_len=4096", "-artifact_prefix=/tmp/"]
    atheris.Setup([sys.argv[0], *arguments, os.environ[_INSIDE]], TARGETS[name])
    atheris.Fuzz()


def _has_atheris() -> bool:
    with contextlib.suppress(ImportError):
        import atheris  # noqa: F401

        return True
    return False


if __name__ == "__main__":
    sys.exit(main())

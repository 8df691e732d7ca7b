"""A target's harness, compiled with sanitizers, and runs of it."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from soft_switch.build import NATIVE
from tests.soft_switch.fuzz.targets import Frames, Target

HERE = Path(__file__).parent
COMMON = ("-std=c++17", "-g1", "-pthread", "-w", "-fno-omit-frame-pointer")
UNDEFINED = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
BUILDS = {
    "g++": ("g++", ("-march=native", *UNDEFINED)),
    "libfuzzer": ("clang++", ("-march=native", "-fsanitize=fuzzer", *UNDEFINED, "-DLIBFUZZER")),
    "valgrind": ("g++", ()),  # bytes that nobody wrote; it knows no AVX-512
}
VALGRIND = ("valgrind", "--quiet", "--error-exitcode=1", "--track-origins=yes", "--leak-check=full")
OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=1:abort_on_error=0:allocator_may_return_null=0",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}
LONGEST_INPUT = 1 << 17


@dataclass(frozen=True)
class Outcome:
    """Result of a run; `report` is the harness's last line."""

    exit_code: int
    report: str
    log: str


def available(driver: str) -> bool:
    """Tell whether this machine has the commands that the driver needs."""
    needed = [BUILDS[driver][0], *(["valgrind"] if driver == "valgrind" else [])]
    return all(shutil.which(command) for command in needed)


def build(target: Target, driver: str, folder: Path, *, optimise: bool = True) -> Path:
    """Build the harness in the folder, which also gets the corpus. Not optimised, it compiles sooner."""
    compiler, flags = BUILDS[driver]
    program, entries = folder / "program.cpp", folder / "entries.inc"
    program.write_text(target.source)
    entries.write_text(target.entries)
    corpus = folder / "corpus"
    corpus.mkdir(exist_ok=True)
    for number, frames in enumerate(target.corpus):
        (corpus / f"{number:05d}").write_bytes(encode(frames))
    harness = folder / f"harness-{driver}"
    command = [compiler, *COMMON, "-O1" if optimise else "-O0", *flags, f"-I{NATIVE}"]
    command += [f'-DPROGRAM="{program}"', f'-DENTRIES="{entries}"', "-o", str(harness)]
    subprocess.run([*command, str(HERE / "harness.cpp")], check=True, cwd=folder)
    return harness


def encode(frames: Frames) -> bytes:
    """Encode a sequence of frames as the harness reads it."""
    return b"".join(bytes([port]) + len(frame).to_bytes(2, "little") + frame for port, frame in frames)


def run(harness: Path, *, frames: int, seed: int, timeout_s: float) -> Outcome:
    """Feed the harness until it has processed so many frames."""
    folder = harness.parent
    command = [str(harness), str(folder / "corpus"), str(seed)]
    if harness.name.endswith("valgrind"):
        command = [*VALGRIND, *command]
    elif harness.name.endswith("libfuzzer"):
        found = folder / "found"
        found.mkdir(exist_ok=True)
        command = [str(harness), str(found), str(folder / "corpus"), f"-seed={seed}"]
        command += [f"-max_len={LONGEST_INPUT}", "-print_final_stats=1", "-rss_limit_mb=4096", "-timeout=20"]
    environment = {**os.environ, **OPTIONS, "FUZZ_FRAMES": str(frames)}
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        timeout=timeout_s,
        check=False,
    )
    lines = [line for line in done.stdout.decode(errors="replace").splitlines() if line.startswith("frames ")]
    log = (done.stdout + done.stderr).decode(errors="replace")
    return Outcome(done.returncode, lines[-1] if lines else "", log)

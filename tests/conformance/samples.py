"""p4c's sample programs that have an STF script, selected and compiled as p4c's own build does.

`backends/bmv2/CMakeLists.txt` of p4c says which programs are tests for simple_switch and with which options,
`backends/bmv2/run-bmv2-test.py` how they are compiled.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from soft_switch.build import user_cache
from tests.p4c import P4C, WITHOUT_P4C, without_p4_14

COMPILE_TIMEOUT_S = 120.0
RECIPE = Path("backends", "bmv2", "CMakeLists.txt")
SAMPLES = Path("testdata", "p4_16_samples")
V1MODEL = re.compile(r"include.*v1model.p4")
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)


class CompileError(Exception):
    """p4c refuses a program."""


@dataclass(frozen=True)
class Sample:
    """A program and its script; `name` is unique, `xfail` where p4c itself expects its test to fail."""

    name: str
    program: Path
    options: tuple[str, ...] = ()
    xfail: bool = False

    @property
    def why_not(self) -> str | None:
        """Why this p4c cannot compile it, whatever it says; None if it may."""
        return without_p4_14() if "p4-14" in self.options else None

    @property
    def script(self) -> Path:
        """The STF file."""
        return self.program.with_suffix(".stf")


def sources() -> Path | None:
    """Return the checkout of p4c that $P4C_SOURCES names."""
    root = os.environ.get("P4C_SOURCES")
    return None if not root or not Path(root, RECIPE).is_file() else Path(root).absolute()


def missing() -> str | None:
    """Return why the samples cannot be run here; None if they can."""
    if P4C is None:
        return WITHOUT_P4C
    if sources() is None:
        return "P4C_SOURCES does not name a checkout of p4c (of the version of p4c-bm2-ss)"
    return None


@functools.cache
def yardstick(root: Path) -> tuple[Sample, ...]:
    """Return `testdata/p4_16_samples/*-bmv2.stf` for v1model, by name; p4c plays the others on psa_switch."""
    recipe = _Recipe(root)
    programs = sorted((root / SAMPLES).glob("*-bmv2.p4"))
    return tuple(
        recipe.sample(path) for path in programs if path.with_suffix(".stf").is_file() and _is_v1model(path)
    )


@functools.cache
def more(root: Path) -> tuple[Sample, ...]:
    """Return p4c's other programs with scripts for simple_switch: in P4_14, and for inlined parsers."""
    recipe = _Recipe(root)
    found = [recipe.sample(path, "--std", "p4-14") for path in (root / "testdata/p4_14_samples").glob("*.p4")]
    for path in (root / SAMPLES / "parser-inline").glob("*.p4"):
        found += [recipe.sample(path), recipe.sample(path, "--parser-inline-opt")]
    return tuple(sorted((s for s in found if s.script.is_file()), key=lambda s: s.name))


@functools.cache
def programs_below(root: Path) -> tuple[Sample, ...]:
    """Return all programs for v1model below a folder, of which p4c need not take each."""
    paths = sorted(path for path in root.rglob("*.p4") if _is_v1model(path))
    return tuple(Sample(path.relative_to(root).as_posix(), path.absolute()) for path in paths)


def other_architectures(root: Path) -> tuple[str, ...]:
    """Return programs with an STF script that are for another architecture than v1model."""
    programs = sorted((root / SAMPLES).glob("*-bmv2.p4"))
    return tuple(p.stem for p in programs if p.with_suffix(".stf").is_file() and not _is_v1model(p))


def _is_v1model(program: Path) -> bool:
    return any(V1MODEL.search(line) for line in program.read_text(errors="replace").splitlines())


class _Recipe:
    """Options and expected failures of single programs, by p4c's CMakeLists.txt."""

    def __init__(self, root: Path) -> None:
        self.root = root
        text = (root / RECIPE).read_text()
        xfail = re.search(r"set \(XFAIL_TESTS(.*?)\n\s*\)", text, re.DOTALL)
        lines = xfail[1].splitlines() if xfail else []
        self.xfail = {line.strip() for line in lines if line.strip().startswith("testdata/")}
        self.options: dict[str, tuple[str, ...]] = {}
        for program, arguments in re.findall(
            r'p4c_add_test_with_args *\([^)]*?"(testdata/[^"]+)"\s*"-a=(\S+)', text
        ):
            self.options[program] = (arguments,)

    def sample(self, program: Path, *options: str) -> Sample:
        path = program.relative_to(self.root).as_posix()
        name = path.removeprefix("testdata/").removeprefix("p4_16_samples/").removesuffix(".p4")
        if "--parser-inline-opt" in options:
            name += "+opt"
        return Sample(name, program, (*options, *self.options.get(path, ())), path in self.xfail)


def compiled(sample: Sample) -> tuple[bytes, str]:
    """Return a sample's BMv2 JSON and P4Info text, from the cache if p4c and its sources are the same."""
    assert P4C is not None
    digest = hashlib.sha256(f"{_version()}\0{sample.options}\0{sample.program}\0".encode())
    _add_source(sample.program, digest, set())
    folder = user_cache() / "p4c-samples"
    folder.mkdir(parents=True, exist_ok=True)
    output = folder / f"{sample.program.stem}-{digest.hexdigest()[:24]}.json"
    info = output.with_suffix(".p4info.txtpb")
    if not output.is_file():
        partial = output.with_suffix(f".{os.getpid()}.json")
        _run(sample, partial, ("--p4runtime-files", str(info)))
        partial.replace(output)
    return output.read_bytes(), info.read_text() if info.is_file() else ""


def _run(sample: Sample, output: Path, info: tuple[str, ...]) -> None:
    """Compile a sample, without P4Info where p4c cannot make it: its own tests want none."""
    assert P4C is not None
    for options in (info, ()):
        command = [P4C, "-o", str(output), *sample.options, *options, str(sample.program)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S, check=False)
        if done.returncode == 0:
            return
    output.unlink(missing_ok=True)
    errors = [line for line in done.stderr.splitlines() if "error" in line.lower()]
    raise CompileError(errors[0] if errors else f"p4c ended with {done.returncode}")


def _add_source(path: Path, digest: hashlib._Hash, seen: set[Path]) -> None:
    """Hash a file and what it includes with quotes."""
    if path in seen or not path.is_file():
        return
    seen.add(path)
    content = path.read_bytes()
    digest.update(content)
    for name in INCLUDE.findall(content.decode(errors="replace")):
        _add_source((path.parent / name).resolve(), digest, seen)


@functools.cache
def _version() -> str:
    assert P4C is not None
    return subprocess.run([P4C, "--version"], capture_output=True, text=True, check=True).stdout

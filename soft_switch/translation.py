"""BMv2 JSONs as C++, kept in the user's cache: translating a big program takes longer than opening it."""

from __future__ import annotations

import functools
import hashlib
import os
import pickle
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from soft_switch.bmv2.program import Bmv2Program
from soft_switch.bmv2.reader import read_program
from soft_switch.build import cache_directory, read_sealed, seal
from soft_switch.compiler import CompiledProgram, compile_program

PACKAGE = Path(__file__).parent
PARTS = ("bmv2/*.py", "compiler/*.py", "description.py", "errors.py")


@functools.lru_cache(maxsize=2)
def translate(program_json: bytes, *, optimise: bool = True) -> CompiledProgram:
    """Return `compile_program(read_program(program_json))`, without the code of actions and parser states.

    Raises UnsupportedConstruct or ProgramError.
    """
    path = _path(program_json, optimise)
    kept = _find(path)
    if kept is not None:
        return kept
    compiled = _without_code(compile_program(read_program(program_json), optimise=optimise))
    _keep(path, seal(pickle.dumps(compiled, pickle.HIGHEST_PROTOCOL)))
    return compiled


def describe(program_json: bytes) -> Bmv2Program:
    """Return `read_program(program_json)`, with or without the code of actions and parser states."""
    kept = _find(_path(program_json, True))
    return read_program(program_json) if kept is None else kept.program


def _path(program_json: bytes, optimise: bool) -> Path:
    digest = hashlib.sha256(_version() + bytes([optimise]) + program_json).hexdigest()
    return cache_directory() / f"translated-{digest[:32]}.pickle"


def _find(path: Path) -> CompiledProgram | None:
    kept = read_sealed(path)
    if kept is None:
        return None
    compiled: CompiledProgram = pickle.loads(kept)
    return compiled


def _without_code(compiled: CompiledProgram) -> CompiledProgram:
    program = compiled.program
    actions = {number: replace(action, primitives=()) for number, action in program.actions.items()}
    return replace(compiled, program=replace(program, actions=actions, parser_states={}))


def _keep(path: Path, content: bytes) -> None:
    """Put a file into the cache. Ignore a cache that cannot be written: compiling says what is wrong."""
    unfinished: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        number, name = tempfile.mkstemp(dir=path.parent)
        unfinished = Path(name)
        with os.fdopen(number, "wb") as file:
            file.write(content)
        unfinished.replace(path)
    except OSError:
        if unfinished is not None:
            unfinished.unlink(missing_ok=True)


@functools.cache
def _version() -> bytes:
    """Return a digest of everything that a translation depends on besides the program."""
    digest = hashlib.sha256(sys.version.encode())
    for pattern in PARTS:
        for path in sorted(PACKAGE.glob(pattern)):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.digest()

"""Compiles the program into build/, when one of the P4 files has changed: python p4src/compile.py

Needs p4c-bm2-ss on the PATH. The output does not depend on where the sources are.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from p4src import BUILD, JSON_PATH, P4INFO_PATH, ROOT, SOURCES_PATH, sources_hash

COMPILER = "p4c-bm2-ss"
PROGRAM = "p4reduce.p4"


class CompileError(Exception):
    """The program could not be compiled; the message holds what the compiler said."""


def compile_program(output: Path) -> None:
    """Write the program, its P4Info and sources.json into `output`. CompileError on any warning."""
    compiler = shutil.which(COMPILER)
    if compiler is None:
        raise CompileError(f"{COMPILER} is not on the PATH: install p4c (https://github.com/p4lang/p4c)")
    output.mkdir(parents=True, exist_ok=True)
    json_path, p4info_path = output / JSON_PATH.name, output / P4INFO_PATH.name
    arguments = [
        *("--arch", "v1model"),
        *("--p4runtime-files", str(p4info_path)),
        # LocalCopyPropagation would put the expression that a variable was given in the place of each of its
        # uses. EliminateTuples would copy each field that is hashed to a variable of its own: a thousand, and
        # BMv2 clears all variables for each packet, and copies them for each replica (a third of its time).
        *("--excludeMidendPasses", "P4::LocalCopyPropagation,EliminateTuples"),
        *("-o", str(json_path)),
        PROGRAM,
    ]
    # Run in p4src/, so that the file names in the output are relative to it.
    run = subprocess.run([compiler, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    if run.returncode != 0 or "warning" in run.stderr:
        raise CompileError(f"{COMPILER} did not take {PROGRAM} without a complaint:\n{run.stderr}")
    program = _without_paths(json.loads(json_path.read_text()))
    program["program"] = PROGRAM
    json_path.write_text(json.dumps(program, indent=1, sort_keys=False) + "\n")
    record = {"sources_sha256": sources_hash(), "p4c_version": compiler_version(compiler)}
    (output / SOURCES_PATH.name).write_text(json.dumps(record, indent=2) + "\n")


def compiler_version(compiler: str = COMPILER) -> str:
    """Version and commit as p4c names itself."""
    run = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True)
    text = run.stdout + run.stderr  # where it goes differs between versions of p4c
    match = re.search(r"Version\s+(\S+)(?:\s+\(SHA:\s*(\w+))?", text)
    if match is None:
        raise CompileError(f"{compiler} --version says {text!r}, which holds no version")
    return f"{match[1]} ({match[2]})" if match[2] else match[1]


def _without_paths(value: Any) -> Any:
    """Source positions name files relative to p4src/; the compiler's own headers lose their folder."""
    if isinstance(value, dict):
        return {
            key: _file_name(item) if key == "filename" else _without_paths(item)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [_without_paths(item) for item in value]
    return value


def _file_name(name: str) -> str:
    path = Path(name)
    if not path.is_absolute():
        return path.as_posix()
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name


def main() -> int:
    """Compile into build/, or into the folder given with --output."""
    parser = argparse.ArgumentParser(description="Compile the P4 program.")
    parser.add_argument(
        "--output", type=Path, default=BUILD, help="folder to write to (default: p4src/build)"
    )
    try:
        compile_program(parser.parse_args().output)
    except CompileError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Translation of P4 source to BMv2 JSON, with the user's p4c."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from soft_switch.errors import ProgramError

COMPILER = "p4c-bm2-ss"
TIMEOUT_S = 300.0


def read_program_file(path: Path) -> bytes:
    """Return the BMv2 JSON of a file: its content, or p4c's output if its name ends in .p4.

    Raises OSError if it cannot be read, ProgramError if p4c is missing or refuses it.
    """
    return _compiled(path) if path.suffix == ".p4" else path.read_bytes()


def _compiled(path: Path) -> bytes:
    path.open("rb").close()  # what is wrong with the file is said as of any other
    compiler = shutil.which(COMPILER)
    if compiler is None:
        raise ProgramError(f"{COMPILER} is not on the PATH: install p4c, or give the JSON that it makes")
    with tempfile.TemporaryDirectory(prefix="p4c") as scratch:
        output = Path(scratch, "program.json")
        command = [compiler, "--std", "p4-16", "-o", str(output), str(path)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ProgramError(f"{compiler} does not work: {error}") from error
        if done.returncode != 0 or not output.exists():
            raise ProgramError(f"{COMPILER} refuses it:\n{done.stderr.strip()}")
        return output.read_bytes()

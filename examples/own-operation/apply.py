"""Makes a copy of this checkout that has the switch operation OR, ready to run.

python examples/own-operation/apply.py /tmp/with-or [--compile]

Applies bitwise-or.patch to the files that git knows, puts the program that p4c made of them in its place, and
builds the native parts. --compile runs p4c instead, and keeps what it makes beside the patch: whoever changes
the P4 program does that.
"""

from __future__ import annotations

import argparse
import gzip
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[1]
PATCH = HERE / "bitwise-or.patch"
COMPILED = HERE / "compiled"  # what p4src/build has, each packed
NAMES = ("p4reduce.json", "p4reduce.p4info.txtpb", "sources.json")


def copy_and_patch(target: Path) -> None:
    """Copy the files that git knows to a new folder, and apply the patch to them."""
    target.mkdir(parents=True)
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (CHECKOUT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(CHECKOUT / name, target / name)
    # Of its own: else git would take the paths for those of a repository that the folder lies in.
    subprocess.run(["git", "init", "--quiet"], cwd=target, check=True)
    subprocess.run(["git", "apply", str(PATCH)], cwd=target, check=True)


def install_program(target: Path) -> None:
    """Install the program with OR in place of the one without."""
    for name in NAMES:
        (target / "p4src" / "build" / name).write_bytes(
            gzip.decompress((COMPILED / f"{name}.gz").read_bytes())
        )


def keep_program(target: Path) -> None:
    COMPILED.mkdir(exist_ok=True)
    for name in NAMES:
        made = (target / "p4src" / "build" / name).read_bytes()
        (COMPILED / f"{name}.gz").write_bytes(gzip.compress(made, mtime=0))


def python(target: Path, *words: str) -> None:
    subprocess.run([sys.executable, *words], cwd=target, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("target", type=Path, help="a folder that is not there yet")
    parser.add_argument("--compile", action="store_true", help="with p4c, and keep what it makes")
    chosen = parser.parse_args()
    if chosen.target.exists():
        parser.error(f"{chosen.target} is there already: name a new folder")
    copy_and_patch(chosen.target)
    if chosen.compile:
        python(chosen.target, "-m", "p4src.compile")
        keep_program(chosen.target)
    else:
        install_program(chosen.target)
    python(chosen.target, "setup.py", "--quiet", "build_ext", "--inplace")


if __name__ == "__main__":
    main()

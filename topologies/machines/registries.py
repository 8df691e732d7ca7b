"""Where the image's packages come from, and whether that can be reached."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import Final
from urllib.error import HTTPError
from urllib.request import urlopen

from topologies.errors import TopologyError

MIRROR: Final = "P4REDUCE_DEBIAN_MIRROR"
PIP: Final = (sys.executable, "-m", "pip", "--disable-pip-version-check")
_AS_DEBOOTSTRAP_CAN: Final = ("http:", "https:", "file:")
_TIMEOUT_S: Final = 20.0
# A registry, or a proxy before it, that answers but serves nobody: forbidden, proxy authentication, too many.
_TURNED_AWAY: Final = (403, 407, 429)
_ANY_PACKAGE: Final = "numpy"
_PIP_COULD_NOT: Final = "Could not fetch URL"  # says pip, and goes on with the next one
_NOT_FOUND: Final = "404 Client Error"  # an answer: that index lacks it

Reachable = Callable[[], bool]


def debian_mirror() -> list[str]:
    """The chosen one, or where this machine's Debian packages come from; nothing where it is no Debian."""
    chosen = os.environ.get(MIRROR)
    if chosen:
        if not chosen.startswith(_AS_DEBOOTSTRAP_CAN):
            raise TopologyError(f"{MIRROR} is {chosen}: a mirror's URL starts with http:, https: or file:")
        return [chosen]
    done = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(ORIGIN)|$(LABEL)|$(REPO_URI)", "Created-By: Packages"],
        capture_output=True,
        text=True,
        check=False,
    )
    words = (line.split("|") for line in done.stdout.splitlines() if line.count("|") == 2)
    mirrors = [uri for origin, label, uri in words if (origin, label) == ("Debian", "Debian")]
    return [uri for uri in mirrors if uri.startswith(_AS_DEBOOTSTRAP_CAN)][:1]


def debian_reachable(suite: str) -> bool:
    """Whether the mirror answers when it is asked for the first file that debootstrap asks it for.

    Where nobody knows which one that is, nobody can say that it does not.
    """
    mirrors = debian_mirror() or _debootstraps_own()
    if not mirrors:
        return True
    (mirror,) = mirrors
    try:
        with urlopen(f"{mirror.rstrip('/')}/dists/{suite}/InRelease", timeout=_TIMEOUT_S):
            return True
    except HTTPError as error:
        return error.code < 500 and error.code not in _TURNED_AWAY
    except (OSError, HTTPException):
        return False


def _debootstraps_own() -> list[str]:
    """The mirror that debootstrap takes when it is told none: it is a shell script, and says so in itself."""
    program = shutil.which("debootstrap")
    text = "" if program is None else Path(program).read_text(errors="replace")
    return re.findall(r'^DEF_MIRROR="([^"]+)"', text, re.MULTILINE)[:1]


def python_reachable() -> bool:
    """Whether every index of pip's, as it is configured here, answers when it is asked for a package."""
    done = subprocess.run(
        [*PIP, "index", "versions", "-vv", "--no-cache-dir", "--retries", "1", _ANY_PACKAGE],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    return not any(
        _PIP_COULD_NOT in line and _NOT_FOUND not in line for line in (done.stdout + done.stderr).splitlines()
    )

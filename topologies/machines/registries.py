"""Sources of the image's packages, and whether they can be reached."""

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
    """Return the chosen mirror, or that of this machine's Debian packages; nothing if it is no Debian."""
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
    """Tell whether the mirror answers a request for the first file that debootstrap asks for.

    If the mirror is not known, say that it does.
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
    """Return debootstrap's default mirror, which is written in its shell script."""
    program = shutil.which("debootstrap")
    text = "" if program is None else Path(program).read_text(errors="replace")
    return re.findall(r'^DEF_MIRROR="([^"]+)"', text, re.MULTILINE)[:1]


def python_reachable() -> bool:
    """Tell whether every index of pip's, as configured here, answers when asked for a package."""
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

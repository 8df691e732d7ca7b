"""What all tests have in common."""

from __future__ import annotations

import os

# Which version of a program runs must not depend on how fast this machine compiles.
os.environ.setdefault("SOFT_SWITCH_COMPILE", "wait")

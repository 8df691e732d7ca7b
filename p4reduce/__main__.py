"""`python -m p4reduce` is `p4reduce`."""

from __future__ import annotations

from p4reduce.cli import main

main()

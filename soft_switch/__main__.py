"""Entry point of `python -m soft_switch`."""

from __future__ import annotations

import sys

from soft_switch.cli import main

if __name__ == "__main__":
    sys.exit(main())

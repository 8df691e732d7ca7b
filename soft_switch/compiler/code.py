"""C++ text as it grows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class Code:
    """Lines of C++ with their indentation; hands out names that are unique within it."""

    def __init__(self, indent: int = 0) -> None:
        self.lines: list[str] = []
        self._indent = indent
        self._names = 0

    def __call__(self, line: str = "") -> None:
        """Add a line (or several, separated by newlines)."""
        for part in line.split("\n"):
            self.lines.append("    " * self._indent + part if part else "")

    def label(self, name: str) -> None:
        """Add a label."""
        self.lines.append(f"{name}:;")

    @contextmanager
    def block(self, head: str = "", tail: str = "") -> Iterator[None]:
        """Put braces around what is added inside."""
        self(f"{head} {{".lstrip())
        self._indent += 1
        yield
        self._indent -= 1
        self("}" + tail)

    def name(self, prefix: str = "t") -> str:
        """Return a new local name."""
        self._names += 1
        return f"{prefix}{self._names}"

    def text(self) -> str:
        """Return everything added so far."""
        return "\n".join(self.lines)


def word(value: int) -> str:
    """Return a 64-bit constant; with a shorter one, `~` and `-` of constants would have fewer bits."""
    return f"{value}ull" if value < 10 else f"0x{value:X}ull"


def comment(text: str) -> str:
    """Return text from the program as a one-line comment."""
    return "// " + text.replace("\n", " ").replace("\\", "/")


def string(text: str) -> str:
    """Return a C++ string literal."""
    escaped = "".join(
        chr(byte) if 32 <= byte < 127 and byte not in b'"\\?' else f"\\{byte:03o}"
        for byte in text.encode(errors="replace")
    )
    return f'"{escaped}"'

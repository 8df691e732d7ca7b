"""Canonical bytes of any objects: the same for states that do the same from here on.

The walk follows whatever it is given, so that it needs to know nothing of the classes that it finds: records,
queues, locks, tasks and where each of them waits. Two references to one object stay references to one. A
moment is told apart from other moments by how far it is from now, in `grain`s. What is skipped, because it
decides nothing or is the same in all states, is named below.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import sqlite3
import types
import weakref
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, is_dataclass
from enum import Enum
from hashlib import blake2b
from ipaddress import IPv4Address
from typing import Any

_PLAIN = (bool, str, bytes, type(None), IPv4Address)
_SKIPPED = (asyncio.AbstractEventLoop, logging.Logger, types.ModuleType, type, weakref.ReferenceType)
_FAR = 1 << 62
_KEPT = 20_000
_KEPT_DATABASES = 2000


@dataclass(frozen=True)
class Moments:
    """The numbers that are moments: those of type `kind` within `reach` of `now`.

    `grain`: the unit in which they count; `past`: the number of grains after which all past moments are
    alike.
    """

    kind: type
    now: float
    reach: float
    grain: float
    past: int

    def __contains__(self, value: object) -> bool:
        return type(value) is self.kind and abs(float(value) - self.now) < self.reach  # type: ignore[arg-type]

    def away(self, value: Any) -> int:
        """Return how far a moment is from now, in grains."""
        return max(-self.past, round(float(value - self.now) / self.grain))


class Canon:
    """A maker of digests. `skipped`: classes whose objects decide nothing, or are the same in all states."""

    def __init__(self, skipped: Iterable[str] = ()) -> None:
        self._skipped = frozenset(skipped)
        self._frozen: dict[int, tuple[Any, str]] = {}  # what cannot change, by id
        self._stored: dict[int, tuple[sqlite3.Connection, int, str]] = {}  # by id, as they were last

    def digest(self, roots: Iterable[Any], moments: Moments) -> bytes:
        """Return the digest of all that can be reached from `roots`."""
        if len(self._frozen) > _KEPT:
            self._frozen.clear()
        walk = _Walk(self, moments)
        for root in roots:
            walk.take(root)
        return blake2b("\x1f".join(walk.out).encode("utf-8", "backslashreplace"), digest_size=16).digest()

    def is_skipped(self, value: Any) -> bool:
        return isinstance(value, _SKIPPED) or type(value).__name__ in self._skipped

    def frozen(self, value: Any) -> str | None:
        """Return the text of a record that cannot change and has no moments; None if that is not known."""
        known = self._frozen.get(id(value))
        if known is not None:
            return known[1]
        if (text := _text(value)) is not None:
            self._frozen[id(value)] = (value, text)
        return text

    def stored(self, db: sqlite3.Connection) -> str:
        """Return the contents of a database."""
        known = self._stored.get(id(db))
        if known is not None and known[:2] == (db, db.total_changes):
            return known[2]
        names = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        rows = [(name, sorted(map(repr, db.execute(f"SELECT * FROM {name}")))) for name in sorted(names)]
        text = repr(rows)
        if len(self._stored) > _KEPT_DATABASES:
            self._stored.clear()
        self._stored[id(db)] = (db, db.total_changes, text)
        return text


def _text(value: Any) -> str | None:
    """Return the text of a record that cannot change and has no moments, secrets included; None otherwise."""
    kind = type(value)
    if isinstance(value, (int, *_PLAIN, Enum)) or (kind is float and value < 1e6):
        return repr(value)
    if isinstance(value, (tuple, frozenset)):
        name, fields = "", list(map(_text, value))
    elif is_dataclass(kind) and kind.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        name, fields = kind.__qualname__, [_text(getattr(value, n)) for n in kind.__dataclass_fields__]
    else:
        return None
    texts = [text for text in fields if text is not None]
    if isinstance(value, frozenset):
        return f"<{' '.join(sorted(texts))}>" if len(texts) == len(fields) else None
    return f"{name}({' '.join(texts)})" if len(texts) == len(fields) else None


class _Walk:
    def __init__(self, canon: Canon, moments: Moments) -> None:
        self.canon = canon
        self.moments = moments
        self.out: list[str] = []
        self.met: dict[int, int] = {}
        self.alive: list[Any] = []  # nothing new gets the id of what is met

    def take(self, value: Any) -> None:
        out = self.out
        if value is None or isinstance(value, _PLAIN):
            out.append(repr(value))
        elif value in self.moments:
            out.append(f"@{self.moments.away(value)}")
        elif isinstance(value, (int, float)):
            out.append(repr(value))
        elif isinstance(value, Enum):
            out.append(str(value))
        elif type(value) in (tuple, list, deque):
            self._each("[", value)
        elif isinstance(value, Mapping):
            self._mapping(value)
        elif isinstance(value, (set, frozenset)):
            self._set(value)
        elif self.canon.is_skipped(value):
            out.append(type(value).__name__)
        elif (text := self.canon.frozen(value)) is not None:
            out.append(text)
        elif (number := self.met.get(id(value))) is not None:
            out.append(f"#{number}")
        else:
            self.met[id(value)] = len(self.met)
            self.alive.append(value)
            self._object(value)

    def _each(self, sign: str, values: Iterable[Any]) -> None:
        self.out.append(sign)
        for value in values:
            self.take(value)
        self.out.append("]")

    def _mapping(self, value: Mapping[Any, Any]) -> None:
        self.out.append("{")
        for key, held in value.items():  # in their order, by which they may be gone through
            self.take(key)
            self.take(held)
        self.out.append("}")

    def _set(self, value: Iterable[Any]) -> None:
        known, others = [], []
        for one in value:
            text = self.canon.frozen(one)
            if text is None:
                others.append(one)
            else:
                known.append(text)
        self.out.append("<" + " ".join(sorted(known)))
        for one in sorted(others, key=self._rough):
            self.take(one)
        self.out.append(">")

    def _rough(self, value: Any) -> tuple[int, str]:
        """Return a sort key for members of a set: when they were met, and their type."""
        if isinstance(value, asyncio.Task):
            return self.met.get(id(value), _FAR), getattr(value.get_coro(), "__qualname__", "")
        return self.met.get(id(value), _FAR), type(value).__qualname__

    def _object(self, value: Any) -> None:
        out = self.out
        if isinstance(value, sqlite3.Connection):
            out.append(self.canon.stored(value))
        elif isinstance(value, functools.partial):
            self._each("partial", (value.func, value.args, value.keywords))
        elif isinstance(value, types.MethodType):
            out.append(value.__func__.__qualname__)
            self.take(value.__self__)
        elif isinstance(value, types.FunctionType):
            out.append(value.__qualname__)
            self._each("closure", (cell.cell_contents for cell in value.__closure__ or ()))
        elif isinstance(value, (types.BuiltinFunctionType, types.BuiltinMethodType)):
            out.append(value.__qualname__)
        elif isinstance(value, asyncio.Task):
            self._task(value)
        elif isinstance(value, asyncio.Future):
            self._future(value)
        elif isinstance(value, types.CoroutineType):
            self._frame(value.__qualname__, value.cr_frame, value.cr_await)
        elif isinstance(value, types.GeneratorType):
            self._frame(value.__qualname__, value.gi_frame, value.gi_yieldfrom)
        elif isinstance(value, asyncio.Queue):  # but for how much there has been in it
            queue: Any = value
            self._each("queue", (queue._queue, queue._getters, queue._putters))
        elif isinstance(value, asyncio.Handle):
            if not value.cancelled():
                handle: Any = value
                self._each("handle", (handle._callback, handle._args))
        elif isinstance(value, BaseException):
            out.append(repr(value))
        elif hasattr(value, "__dict__"):
            out.append(type(value).__qualname__)
            fields = vars(value)
            for name in fields:
                held = fields[name]
                out.append(name)
                self.take(held)
        elif hasattr(value, "tobytes"):
            out.append(repr(value.tobytes()))
        else:
            out.append(type(value).__qualname__)

    def _task(self, task: asyncio.Task[Any]) -> None:
        if task.done():
            self._future(task)
            return
        self.out.append("task")
        self.take(task.get_coro())
        self.take(task._fut_waiter)  # type: ignore[attr-defined]

    def _future(self, future: asyncio.Future[Any]) -> None:
        if not future.done():
            self.out.append("waits")
            self._each("children", getattr(future, "_children", ()))
        elif future.cancelled():
            self.out.append("cancelled")
        elif (error := future.exception()) is not None:
            self.out.append(repr(error))
        else:
            self.take(future.result())

    def _frame(self, name: str, frame: types.FrameType | None, awaits: Any) -> None:
        self.out.append(name)
        if frame is None:
            return
        self.out.append(str(frame.f_lasti))
        self._mapping(frame.f_locals)
        if isinstance(awaits, (types.CoroutineType, types.GeneratorType, asyncio.Future)):
            self.take(awaits)

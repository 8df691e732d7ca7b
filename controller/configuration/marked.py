"""YAML (or JSON) in which every value knows its line and its key.

Scalars stay text: the reader decides what `1:20`, `on` or `010` mean, not YAML.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

import yaml

from controller.api.errors import InvalidRequestError

_NULL = ("", "~", "null", "Null", "NULL")
_MOST_BY_ALIASES = 10_000  # values; aliases of aliases make billions of a few lines


class DocumentError(InvalidRequestError):
    """Mistakes in a document, a line for each: "line 3, entries.s1[0].table: ...".

    `line`: the line of the only mistake, from 1.
    """

    def __init__(self, message: str, *, line: int = 0) -> None:
        super().__init__(message)
        self.line = line


@dataclass(frozen=True)
class Marked:
    """A value of the document; `path` is its key as people write it, empty for the whole document."""

    node: yaml.Node
    path: str = ""

    @property
    def line(self) -> int:
        """Line number, from 1."""
        return int(self.node.start_mark.line) + 1

    @property
    def where(self) -> str:
        """Line and key, for messages."""
        return f"line {self.line}{', ' if self.path else ''}{self.path}"

    def wrong(self, why: str) -> DocumentError:
        """Return the error to raise about this value."""
        return DocumentError(f"{self.where}: {why}", line=self.line)

    @property
    def is_null(self) -> bool:
        """True if nothing is given: an empty value, `~` or `null`."""
        return self._is_plain and self.node.value in _NULL

    @property
    def is_mapping(self) -> bool:
        """True if it has keys."""
        return isinstance(self.node, yaml.MappingNode)

    def mapping(
        self, known: tuple[str, ...] | None = None, *, note: Callable[[DocumentError], None] | None = None
    ) -> dict[str, Marked]:
        """Return keys and values; null counts as an empty mapping. With `known`, any other key is an error.

        With `note`, leave out wrong keys, pass each error to it, and check all other keys.
        """
        if self.is_null:
            return {}
        if not isinstance(self.node, yaml.MappingNode):
            raise self.wrong(f"must be a mapping (key: value), not {self._kind}")
        values: dict[str, Marked] = {}
        for key_node, value_node in self.node.value:
            key = Marked(key_node, self.path)
            name = key.text()
            error = None
            if name in values:
                error = key.wrong(f"{name!r} is given twice")
            elif known is not None and name not in known:
                error = key.wrong(f"{name!r} is not known here; known are {', '.join(known)}")
            if error is not None and note is not None:
                note(error)
                continue
            if error is not None:
                raise error
            values[name] = Marked(value_node, f"{self.path}.{name}" if self.path else name)
        return values

    def items(self) -> list[Marked]:
        """Return the elements of a list; null counts as an empty list."""
        if self.is_null:
            return []
        if not isinstance(self.node, yaml.SequenceNode):
            raise self.wrong(f"must be a list, not {self._kind}")
        return [Marked(node, f"{self.path}[{i}]") for i, node in enumerate(self.node.value)]

    def text(self) -> str:
        """Return a scalar as it is written."""
        if not isinstance(self.node, yaml.ScalarNode):
            raise self.wrong(f"must be a single value, not {self._kind}")
        return str(self.node.value)

    def number(self, least: int, most: int) -> int:
        """Return a whole number from `least` to `most`, decimal or 0x..."""
        text = self.text()
        try:
            value = int(text, 0)
        except ValueError:
            raise self.wrong(f"{text!r} is no whole number") from None
        if not least <= value <= most:
            raise self.wrong(f"{text} is not within {least}..{most}")
        return value

    def positive(self) -> float:
        """Return a number above 0."""
        text = self.text()
        try:
            value = float(text)
        except ValueError:
            raise self.wrong(f"{text!r} is no number") from None
        if not 0 < value < float("inf"):
            raise self.wrong(f"{text} is not above 0, or no number to count with")
        return value

    def flag(self) -> bool:
        """Return true or false."""
        text = self.text()
        if text not in ("true", "false"):
            raise self.wrong(f"{text!r} is neither true nor false")
        return text == "true"

    @property
    def _is_plain(self) -> bool:
        return isinstance(self.node, yaml.ScalarNode) and self.node.style is None

    @property
    def _kind(self) -> str:
        if isinstance(self.node, yaml.MappingNode):
            return "a mapping"
        return "a list" if isinstance(self.node, yaml.SequenceNode) else f"{self.node.value!r}"


class _Loader(yaml.SafeLoader):
    """A loader that refuses aliases that stand for too many values, or are part of what they stand for."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._values = self._by_aliases = 0  # so far, each alias written out
        self._sizes: dict[str, int] = {}  # in values, of what anchors name

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event: yaml.NodeEvent = self.peek_event()  # type: ignore[no-untyped-call]
        before, anchor = self._values, event.anchor
        if isinstance(event, yaml.AliasEvent) and anchor in self.anchors:
            assert anchor is not None
            assert event.start_mark is not None
            self._count_alias(anchor, event.start_mark.line + 1)
            return super().compose_node(parent, index)
        self._values += 1
        node = super().compose_node(parent, index)
        if anchor is not None:
            self._sizes[anchor] = self._values - before
        return node

    def _count_alias(self, alias: str, line: int) -> None:
        size = self._sizes.get(alias)
        if size is None:
            raise DocumentError(
                f"line {line}: alias *{alias} is part of what it stands for: write out what is meant",
                line=line,
            )
        self._values += size
        self._by_aliases += size
        if self._by_aliases > _MOST_BY_ALIASES:
            raise DocumentError(
                f"line {line}: with alias *{alias}, aliases stand for {self._by_aliases} values; a "
                f"document may have {_MOST_BY_ALIASES} by aliases: write out what is meant",
                line=line,
            )


def read(text: str) -> Marked:
    """Read the document and return its top value; an empty document is null.

    Raise DocumentError if it is neither YAML nor JSON, or if its aliases stand for too many values.
    """
    if _is_json(text):
        text = text.replace("\t", " ")  # YAML knows no tabs between tokens, JSON has none within strings
    try:
        node = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f"line {mark.line + 1}: " if mark is not None else ""
        why = ", ".join(part for part in (error.context, error.problem) if part)
        raise DocumentError(f"{line}not YAML: {why}") from error
    except yaml.YAMLError as error:  # a character that no document may have
        raise DocumentError(f"not YAML: {str(error).splitlines()[0]}") from error
    except RecursionError as error:
        raise DocumentError("not for people: it is nested too deeply") from error
    if node is None:
        mark = yaml.Mark("", 0, 0, 0, None, 0)
        node = yaml.ScalarNode("tag:yaml.org,2002:null", "", start_mark=mark, end_mark=mark)
    return Marked(node)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True

"""Validation of YAML against a model, with errors that name file, line, key and the allowed values."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from controller.configuration.marked import DocumentError, Marked, read
from p4reduce.workloads.errors import WorkloadError

Location = Sequence[int | str]
Mistake = tuple[Location, str]
Model = TypeVar("Model", bound=BaseModel)
_UNKNOWN = "extra_forbidden"
_QUOTE = "'"
_MAPPING, _LIST = "a mapping (key: value)", "a list"
_SHAPES = {
    **dict.fromkeys(("model_type", "model_attributes_type", "dict_type"), _MAPPING),
    **dict.fromkeys(("list_type", "tuple_type"), _LIST),
    "string_type": "a single value",
    "path_type": "the name of a file",
}


class ClusterFileError(WorkloadError):
    """Mistakes in a cluster file, a line for each: "c.yaml, line 3, topology.leaves: ..."."""


class Part(BaseModel):
    """A mapping of the file. Unknown keys are mistakes."""

    model_config = ConfigDict(extra="forbid", frozen=True, str_strip_whitespace=True)


class Document:
    """A file's text, with the line of each value for errors."""

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        try:
            self._top = read(text)
        except DocumentError as error:
            raise ClusterFileError(f"{path}, {error}") from error

    @classmethod
    def load(cls, path: Path) -> Document:
        """Read a file."""
        try:
            return cls(path, path.read_text())
        except OSError as error:
            raise ClusterFileError(f"cannot read {path}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise ClusterFileError(f"{path} is not UTF-8 text: {error}") from error

    def as_(self, model: type[Model]) -> Model:
        """Return the document as a model; ClusterFileError lists every mistake."""
        try:
            value = _plain(self._top)
        except DocumentError as error:
            raise ClusterFileError(f"{self.path}, {error}") from error
        try:
            return model.model_validate({} if value is None else value)
        except ValidationError as error:
            details = [
                detail
                for found in error.errors(include_url=False)
                for detail in (found, *_behind_tag(found, model))
            ]
            places = [(self._place(detail), _why(detail, model)) for detail in details]
            raise self._wrong(places) from error

    def wrong(self, mistakes: Sequence[Mistake]) -> ClusterFileError:
        """Return the error to raise about some locations."""
        return self._wrong([(self._at(location), why) for location, why in mistakes])

    def _wrong(self, places: Sequence[tuple[Marked, str]]) -> ClusterFileError:
        ordered = sorted(dict.fromkeys(places), key=lambda place: place[0].line)
        return ClusterFileError("\n".join(f"{self.path}, {place.where}: {why}" for place, why in ordered))

    def _place(self, detail: ErrorDetails) -> Marked:
        return self._at(detail["loc"], of_key=detail["type"] == _UNKNOWN)

    def _at(self, location: Location, *, of_key: bool = False) -> Marked:
        """Return the value at a location, or the one around it; skip pydantic's own words in a location.

        With `of_key`, return the mark of the last key.
        """
        here = self._top
        for word in location:
            inner = _children(here).get(word)
            if inner is not None:
                here = inner
        if of_key and location:
            around = self._at(location[:-1])
            for key, _ in around.node.value if around.is_mapping else ():
                if key.value == location[-1]:
                    return Marked(key, here.path)
        return here


def _children(marked: Marked) -> dict[int | str, Marked]:
    found: dict[int | str, Marked] = {}
    if marked.is_mapping:
        found.update((key, value) for key, value in marked.mapping().items())
    elif _is_list(marked):
        found.update(enumerate(marked.items()))
    return found


def _is_list(marked: Marked) -> bool:
    return isinstance(marked.node, yaml.SequenceNode)


def _plain(marked: Marked) -> Any:
    """Convert to mappings, lists and texts; a null is None. The model gives texts their meaning."""
    if marked.is_null:
        return None
    if marked.is_mapping:
        return {key: _plain(value) for key, value in marked.mapping().items()}
    if _is_list(marked):
        return [_plain(value) for value in marked.items()]
    return marked.text()


def _why(detail: ErrorDetails, model: type[BaseModel]) -> str:
    kind, message = detail["type"], detail["msg"]
    if kind == "missing":
        return f"{detail['loc'][-1]!r} is missing"
    if kind == "union_tag_not_found":
        return f"{detail['ctx']['discriminator']} is missing"
    if kind == "union_tag_invalid":
        name, tag, known = (detail["ctx"][key] for key in ("discriminator", "tag", "expected_tags"))
        return f"{str(name).strip(_QUOTE)} {tag!r} is not known; known are {known}"
    if kind == _UNKNOWN:
        key, known = str(detail["loc"][-1]), _known_at(model, detail["loc"][:-1])
        near = get_close_matches(key, known, n=1)
        meant = f"did you mean {near[0]!r}? " if near else ""
        return f"{key!r} is not known here; {meant}known here are {', '.join(known)}"
    if kind == "string_pattern_mismatch":
        return f"{detail['input']!r} is no name: letters, digits, '-' and '_', at most 32, first no sign"
    if kind in _SHAPES:
        return f"this must be {_SHAPES[kind]}"
    message = message.removeprefix("Value error, ").replace("Input", "it", 1)
    given = detail["input"]
    said = message.startswith(repr(given)) or not isinstance(given, str | int | float)
    return message if said else f"{given!r}: {message}"


def _behind_tag(detail: ErrorDetails, model: type[BaseModel]) -> list[ErrorDetails]:
    """Find the other mistakes in a mapping whose kind is wrong, read as the kind with most of its keys."""
    if detail["type"] not in ("union_tag_invalid", "union_tag_not_found") or not isinstance(
        detail["input"], dict
    ):
        return []
    given, tag = detail["input"], str(detail["ctx"]["discriminator"]).strip(_QUOTE)
    parts = [part for part in _parts_at(model, detail["loc"]) if tag in part.model_fields]
    if not parts:
        return []
    part = max(parts, key=lambda one: len(given.keys() & one.model_fields.keys()))
    (kind,) = get_args(_type(part, tag))
    try:
        part.model_validate({**given, tag: kind})
    except ValidationError as error:
        return [
            {**found, "loc": (*detail["loc"], kind, *found["loc"])}
            for found in error.errors(include_url=False)
        ]
    return []


def _known_at(model: type[BaseModel], location: Location) -> list[str]:
    """Return the known keys of the mapping at a location."""
    return list(dict.fromkeys(key for part in _parts_at(model, location) for key in part.model_fields))


def _parts_at(model: type[BaseModel], location: Location) -> list[type[BaseModel]]:
    """Return the models that a mapping at a location may have. Indices and tags of unions lead no deeper."""
    here = [model]
    for word in location:
        deeper = [found for part in here if word in part.model_fields for found in _models(_type(part, word))]
        tagged = [
            part for part in here if "kind" in part.model_fields and word in get_args(_type(part, "kind"))
        ]
        here = deeper or tagged or here
    return here


def _type(model: type[BaseModel], key: int | str) -> Any:
    return model.model_fields[str(key)].annotation


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for inner in get_args(annotation) for found in _models(inner)]

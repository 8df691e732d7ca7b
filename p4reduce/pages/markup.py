"""HTML from Python: text is escaped unless it is markup already."""

from __future__ import annotations

import html

_VOID = frozenset({"input", "meta", "br", "rect", "line", "path"})


class Markup(str):
    """Text that is HTML (or SVG): made here, of escaped parts."""

    __slots__ = ()


Child = str | None


def element(tag: str, /, *children: Child, **attributes: str | float | bool | None) -> Markup:
    """Return `<tag …>children</tag>`. `class_` is class, `data_x` data-x; None and False are left out."""
    words = [tag]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        attribute = key.rstrip("_").replace("_", "-")
        words.append(attribute if value is True else f'{attribute}="{html.escape(_text(value))}"')
    opening = " ".join(words)
    if tag in _VOID:
        return Markup(f"<{opening}/>")
    return Markup(f"<{opening}>{joined(*children)}</{tag}>")


def joined(*children: Child) -> Markup:
    """Join children one after the other; escape those that are plain text."""
    return Markup(
        "".join(child if isinstance(child, Markup) else html.escape(child) for child in children if child)
    )


def _text(value: str | float) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)

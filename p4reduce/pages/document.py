"""A whole page: its content, styles, data and scripts in one file that loads nothing."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Final

from p4reduce.pages.markup import Markup, element

_ASSETS: Final = files("p4reduce.pages") / "assets"


def document(
    title: str,
    body: Markup,
    *,
    styles: Sequence[str] = (),
    data: Mapping[str, object],
    scripts: Sequence[str],
) -> str:
    """Return the HTML of a page.

    `styles` come behind what all pages have; `data` is JSON by the id of the element that a script finds it
    in. Styles and scripts are trusted; titles and data need not be.
    """
    looks = "".join([(_ASSETS / "page.css").read_text(encoding="utf-8"), *styles])
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_policy(scripts)}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            element("title", f"{title} – p4reduce"),
            f"<style>{looks}</style>",
            "</head>",
            "<body>",
            body,
            *(
                f'<script type="application/json" id="{name}">{embedded(value)}</script>'
                for name, value in data.items()
            ),
            *(f"<script>{script}</script>" for script in scripts),
            "</body>",
            "</html>\n",
        ]
    )


def _policy(scripts: Iterable[str]) -> str:
    """Return a Content-Security-Policy by which the page loads nothing and runs these scripts alone."""
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return f"default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; script-src {allowed}"


def embedded(value: object) -> str:
    """Return the value as JSON that cannot end the element it stands in."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")

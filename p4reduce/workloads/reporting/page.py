"""The report: one HTML page with everything in it, Plotly's program too; it asks no network for anything."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path
from typing import Final

from p4reduce.workloads.errors import WorkloadError
from p4reduce.workloads.reporting import reading
from p4reduce.workloads.reporting.heading import heading
from p4reduce.workloads.reporting.markup import element, joined
from p4reduce.workloads.reporting.sections import Charts, sections
from p4reduce.workloads.reporting.verdict import verdict
from p4reduce.workloads.run_file import Run

_ASSETS: Final = files("p4reduce.workloads.reporting") / "assets"


def write(run: Run, path: Path) -> None:
    """Write the page of a run. WorkloadError where its parts do not fit or the file cannot be written."""
    text = page(run)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise WorkloadError(f"cannot write {path}: {error.strerror}") from error


def page(run: Run) -> str:
    """The HTML page of a run, about 5 MB, nearly all of it Plotly's."""
    from plotly.offline import get_plotlyjs  # not before somebody wants a page

    reading.checked(run)
    found = verdict(run)
    charts = Charts(run)
    body = joined(
        heading(run, found),
        element("main", *sections(run, charts), id="report"),
        element("footer", f"p4reduce report · {run.kind} of {run.started}"),
    )
    # Both are trusted; the data between them is not, and JSON in which no tag can end.
    scripts = [get_plotlyjs(), (_ASSETS / "page.js").read_text(encoding="utf-8")]
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_policy(scripts)}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            element("title", f"{found.headline} – p4reduce"),
            f"<style>{(_ASSETS / 'page.css').read_text(encoding='utf-8')}</style>",
            "</head>",
            "<body>",
            body,
            f'<script type="application/json" id="charts">{_embedded(charts.as_json())}</script>',
            *(f"<script>{script}</script>" for script in scripts),
            "</body>",
            "</html>\n",
        ]
    )


def _policy(scripts: Iterable[str]) -> str:
    """Nothing is loaded, and no script runs but these."""
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return f"default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; script-src {allowed}"


def _embedded(value: object) -> str:
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")

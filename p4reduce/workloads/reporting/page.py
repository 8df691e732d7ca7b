"""The report: one HTML page that contains everything, Plotly's program too, and needs no network."""

from __future__ import annotations

from importlib.resources import files
from typing import Final

from p4reduce.pages.document import document
from p4reduce.pages.markup import element, joined
from p4reduce.workloads.errors import WorkloadError
from p4reduce.workloads.reporting import reading
from p4reduce.workloads.reporting.heading import heading
from p4reduce.workloads.reporting.sections import Charts, sections
from p4reduce.workloads.reporting.verdict import verdict
from p4reduce.workloads.run_file import Run

_ASSETS: Final = files("p4reduce.workloads.reporting") / "assets"


def page(run: Run) -> str:
    """Make the HTML page of a run, about 5 MB, nearly all of it Plotly's. WorkloadError: parts do not fit."""
    try:
        from plotly.offline import get_plotlyjs  # not before somebody wants a page
    except ModuleNotFoundError as error:
        raise WorkloadError("pages of runs need Plotly: pip install 'p4reduce[reports]'") from error

    reading.checked(run)
    found = verdict(run)
    charts = Charts(run)
    body = joined(
        heading(run, found),
        element("main", *sections(run, charts), id="report"),
        element("footer", f"p4reduce report · {run.kind} of {run.started}"),
    )
    return document(
        found.headline,
        body,
        styles=[(_ASSETS / "report.css").read_text(encoding="utf-8")],
        data={"charts": charts.as_json()},
        scripts=[get_plotlyjs(), (_ASSETS / "report.js").read_text(encoding="utf-8")],
    )

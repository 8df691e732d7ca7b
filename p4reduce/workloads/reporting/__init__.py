"""What a run looks like to people: a page with charts, tables, and whether in-network aggregation paid.

`verdict.py` answers in sentences. `page.py` makes the page of what `heading.py` and `sections.py` put into
it: charts are in `figures.py`, `timeline.py` and `sampled.py`, the fabric in `drawing.py`. `exports.py` makes
CSV and JSON, `tables.py` what a terminal shows. What they all ask a run is in `reading.py`.
"""

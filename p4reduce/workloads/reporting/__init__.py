"""A run for people: a page with charts, tables, and the answer to whether in-network aggregation paid.

`verdict.py` answers in sentences. `page.py` makes the page from what `heading.py` and `sections.py` give it:
charts are in `figures.py`, `timeline.py` and `sampled.py`, the fabric in `drawing.py`. `exports.py` makes CSV
and JSON, `tables.py` makes a terminal's tables. Figures that they share are in `reading.py`.
"""

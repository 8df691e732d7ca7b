"""Meters: the colors that a model of BMv2's two token buckets gives, by index and for entries of a table."""

from __future__ import annotations

METERED = {
    "kind": 8,
    "index": 32,
    "packets_color": 8,
    "bytes_color": 8,
    "entry_color": 8,
    "hit": 8,
}

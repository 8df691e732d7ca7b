"""Uplinks (Up): the spine that a job's partial sums go to."""

from __future__ import annotations

from controller.entries import Entry, TableEntry, table_entry

UPLINK = "SwitchIngress.up.uplink"


def to_spine(group: int, bucket: int, *, port: int, index: int) -> TableEntry:
    """Return the entry for the partial sums of the messages in one bucket."""
    return table_entry(
        UPLINK, {"group": group, "bucket": bucket}, "SwitchIngress.up.to_spine", port=port, index=index
    )


def is_uplink(entry: Entry) -> bool:
    """Tell whether an entry chooses the spine; such entries change while a job runs."""
    return entry.table == UPLINK

"""Up: which spine a job's partial sums go to."""

from __future__ import annotations

from controller.entries import Entry, TableEntry, table_entry

UPLINK = "SwitchIngress.up.uplink"


def to_spine(group: int, bucket: int, *, port: int, index: int) -> TableEntry:
    """Those of the messages in one bucket."""
    return table_entry(
        UPLINK, {"group": group, "bucket": bucket}, "SwitchIngress.up.to_spine", port=port, index=index
    )


def is_uplink(entry: Entry) -> bool:
    """Whether an entry says which spine is used: what changes while a job runs."""
    return entry.table == UPLINK

"""A running cluster: what was asked of it, its meaning, and how `p4reduce top` shows it."""

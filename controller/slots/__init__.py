"""Slots of switches: their owners, and the jobs that get some next. No I/O."""

"""Benchmarks: each compares side by side, in one run, on this machine. `python -m bench.rack --help`."""

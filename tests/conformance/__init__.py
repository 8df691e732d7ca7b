"""p4c's own STF tests for BMv2, played against this switch.

`stf` reads the scripts, `samples` finds and compiles the programs as p4c's own runner does, `player` plays a
script through a `control`, `running` makes a verdict of it, `expectations` holds what docs/conformance.md
says of failures. `python -m tests.conformance` runs all.
"""

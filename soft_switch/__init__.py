"""A software switch that runs p4c's BMv2 JSON as native code.

The way of a program: `bmv2` reads the JSON, `compiler` turns it into C++ for exactly that program,
`build` compiles it (cached), `dataplane` loads it beside the engine in `native/` that moves the packets.
"""

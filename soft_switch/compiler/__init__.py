"""Compilation of a BMv2 program to C++ that does exactly what that program says.

`layout` decides where fields live, `bounds` which values expressions can have; `expressions`, `parser`,
`actions`, `tables`, `hashes` and `deparser` each write one part, `program` puts them together.

Two passes leave out what g++ cannot: `liveness` finds (by `effects` and `flow`) which metadata need not be
cleared or follow replicas. Each pass has to pay in time a packet (`python -m bench.process`).
`compile_program(optimise=False)` does without, to test against.
"""

from soft_switch.compiler.program import CompiledProgram, compile_program

__all__ = ["CompiledProgram", "compile_program"]

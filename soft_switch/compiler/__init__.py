"""From a BMv2 program to C++ that does exactly what that program says.

`layout` decides where fields live, `bounds` what values expressions can have; `expressions`, `parser`,
`actions`, `tables`, `hashes` and `deparser` each write one part, `program` puts them together.

What g++ cannot see for itself is left out before: `liveness` finds (by `effects` and `flow`) what metadata
need not be cleared or follow replicas. Each pass earns its keep in time a packet (`python -m bench.process`).
`compile_program(optimise=False)` does without, to test against.
"""

from soft_switch.compiler.program import CompiledProgram, compile_program

__all__ = ["CompiledProgram", "compile_program"]

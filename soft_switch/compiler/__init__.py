"""From a BMv2 program to C++ that does exactly what that program says.

`layout` decides where fields live, `bounds` what values expressions can have; `expressions`, `parser`,
`actions`, `tables`, `hashes` and `deparser` each write one part, `program` puts them together.
"""

from soft_switch.compiler.program import CompiledProgram, compile_program

__all__ = ["CompiledProgram", "compile_program"]

"""A whole program as C++: one translation unit with a C interface (see native/program_api.h)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from soft_switch.bmv2.program import Bmv2Program
from soft_switch.compiler.actions import Actions, Primitives
from soft_switch.compiler.bounds import words
from soft_switch.compiler.code import Code, comment
from soft_switch.compiler.deparser import DeparserWriter
from soft_switch.compiler.expressions import Constants, ExpressionWriter
from soft_switch.compiler.fixed import fixed_entries
from soft_switch.compiler.hashes import Calculations
from soft_switch.compiler.layout import Layout, c_type
from soft_switch.compiler.liveness import everything, find_liveness
from soft_switch.compiler.packing import declare_codecs
from soft_switch.compiler.parser import ParserExpressionWriter, ParserWriter
from soft_switch.compiler.passes import PassWriter
from soft_switch.compiler.standard_metadata import StandardMetadata
from soft_switch.compiler.tables import (
    PipelineWriter,
    ProfileLayout,
    TableLayout,
    is_call,
    lay_out,
    lay_out_profiles,
)
from soft_switch.errors import ProgramError


@dataclass(frozen=True)
class CompiledProgram:
    """C++ source and what it takes to talk to the compiled program."""

    program: Bmv2Program
    source: str
    tables: Mapping[str, TableLayout]
    counters: Mapping[str, int]
    registers: Mapping[str, int]
    profiles: Mapping[str, ProfileLayout]
    value_sets: Mapping[str, int]
    meters: Mapping[str, int]


def compile_program(program: Bmv2Program, *, optimise: bool = True) -> CompiledProgram:
    """Translate a program; UnsupportedConstruct names what cannot be done and where the P4 source has it.

    Without `optimise` all metadata is cleared and follows replicas: to test against.
    """
    try:
        return _Compiler(program, optimise=optimise).compile()
    except KeyError as error:
        raise ProgramError(f"the program refers to {error}, which it does not define") from error
    except (TypeError, ValueError, IndexError, AttributeError, RecursionError) as error:
        raise ProgramError(
            f"the program has something that p4c does not write (or soft_switch has a bug): {error!r}"
        ) from error


class _Compiler:
    def __init__(self, program: Bmv2Program, *, optimise: bool) -> None:
        self.program = program
        liveness = find_liveness(program) if optimise else everything(program)
        self.layout = Layout(program, liveness)
        self.constants = Constants()
        self.calculations = Calculations(self.layout, list(program.calculations.values()))
        self.standard = StandardMetadata(program, self.layout, liveness.read)
        self.passes = PassWriter(program, self.layout, self.standard)
        self.primitives = Primitives(program, self.calculations)
        self.actions = Actions(program, self.layout, self.constants, self.primitives, fuse=optimise)
        tables = [table for pipeline in program.pipelines.values() for table in pipeline.tables]
        self.profiles = lay_out_profiles(program)
        self.tables = {
            table.info.name: lay_out(program, table, index, self.profiles)
            for index, table in enumerate(tables)
        }
        self.fixed = fixed_entries(program, self.tables) if optimise else {}
        self.value_sets = list(program.description.value_sets.values())
        self.registers = list(program.description.registers.values())
        self.counters = [c for c in program.description.counters.values() if c.table is None]
        self.meters = list(program.description.meters.values())

    def compile(self) -> CompiledProgram:
        body = self._functions()  # first: it finds out which constants there are
        out = Code()
        out(comment(f"Made from the BMv2 JSON of {self.program.name or 'a P4 program'}."))
        out('#include "runtime.h"')
        self.passes.includes(out)
        out()
        out("namespace p4 {\nnamespace {\n")
        self.constants.declare(out)
        self._structs(out)
        out.lines += body.lines
        out("}  // namespace\n}  // namespace p4\n")
        out('#include "program_api.h"')
        return CompiledProgram(
            self.program,
            out.text() + "\n",
            self.tables,
            {counter.name: index for index, counter in enumerate(self.counters)},
            {register.name: index for index, register in enumerate(self.registers)},
            self.profiles,
            {item.name: index for index, item in enumerate(self.value_sets)},
            {meter.name: index for index, meter in enumerate(self.meters)},
        )

    def _structs(self, out: Code) -> None:
        self.layout.declare(out, self.program)
        seen = set()
        types = [h.type for h in self.program.header_instances.values() if not h.metadata]
        for header_type in [*types, *(stack.type for stack in self.program.stacks.values())]:
            if header_type.name not in seen:
                seen.add(header_type.name)
                declare_codecs(out, self.layout, header_type)
        with out.block("struct Program : ProgramBase", ";"):
            for layout in self.tables.values():
                if is_call(layout.table, self.program):
                    continue
                info = layout.table.info
                out(f"{layout.kind} t{layout.index}{{{info.size}}};  {comment(info.name)}")
            for profile in self.profiles.values():
                out(f"ActionProfile a{profile.index}{{{profile.param_words}}};  {comment(profile.info.name)}")
            for index, register in enumerate(self.registers):
                kind, name = c_type(register.width), comment(register.name)
                out(f"{kind}* const r{index} = array<{kind}>({register.size});  {name}")
            for index, counter in enumerate(self.counters):
                name = comment(counter.name)
                out(f"uint64_t* const c{index} = array<uint64_t>(2 * size_t({counter.size}));  {name}")
            sizes = [sum(words(field.width) for field in item.fields) for item in self.value_sets]
            sets = ", ".join(f"ValueSet({size})" for size in [*sizes, 0])
            out(f"ValueSet value_sets[{len(sizes) + 1}] = {{{sets}}};")
            for index, meter in enumerate(self.meters):
                out(f"Meter* const m{index} = array<Meter>({meter.size});  {comment(meter.name)}")
            self.passes.members(out)
            with out.block("explicit Program(Host& host) : ProgramBase(host)"):
                for name in self.passes.cleared():
                    out(f"std::memset(static_cast<void*>(&{name}), 0, sizeof {name});")
                for layout in self.tables.values():
                    if layout.profile is not None:
                        out(f"t{layout.index}.use(a{layout.profile});")

    def _functions(self) -> Code:
        out = Code()
        self.calculations.declare(out)
        writer = ExpressionWriter(self.layout, self.constants, out)
        pipelines = PipelineWriter(
            self.program, self.actions, writer, self.tables, self.profiles, self.calculations, self.fixed
        )
        parts = [self.program.pipelines["ingress"], self.program.pipelines["egress"]]
        self.actions.declare(out, pipelines.used_actions(parts))
        ParserWriter(
            self.program, ParserExpressionWriter(self.layout, self.constants, out), self.primitives
        ).write()
        self.passes.write_output(out)
        DeparserWriter(self.program, writer, self.calculations, self.primitives).write()
        for pipeline in parts:
            pipelines.write(pipeline)
        self.passes.write(out)
        self._dispatch(out)
        return out

    def _dispatch(self, out: Code) -> None:
        """Write the functions of the C interface that find objects by number."""

        def by_number(head: str, cases: Iterable[tuple[int, str]]) -> None:
            with out.block(f"static {head}(Program& g, uint32_t number)"):
                with out.block("switch (number)"):
                    for number, item in cases:
                        out(f"case {number}: return {item};")
                    out("default: break;")
                out("(void)g;\nreturn {};")

        tables = [layout.index for layout in self.tables.values() if not is_call(layout.table, self.program)]
        direct = [(n, m.table) for n, m in enumerate(self.meters) if m.table is not None]
        by_number("TableCore* table_at", ((n, f"&g.t{n}") for n in tables))
        by_number("ActionProfile* profile_at", ((p.index, f"&g.a{p.index}") for p in self.profiles.values()))
        by_number("uint64_t* counter_array", ((n, f"g.c{n}") for n in range(len(self.counters))))
        by_number("Meter* meter_array", ((n, f"g.m{n}") for n in range(len(self.meters))))
        by_number("Meter* direct_meters", ((self.tables[table].index, f"g.m{n}") for n, table in direct))
        cells = ((n, f"{{g.r{n}, sizeof *g.r{n}}}") for n in range(len(self.registers)))
        by_number("Cells register_at", cells)

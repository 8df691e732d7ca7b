"""The deparser: checksums, then the valid headers in order, then what the parser left."""

from __future__ import annotations

from soft_switch.bmv2.program import Bmv2Program, Checksum
from soft_switch.bmv2.syntax import Header
from soft_switch.compiler.actions import Primitives
from soft_switch.compiler.code import Code, comment
from soft_switch.compiler.expressions import ExpressionWriter
from soft_switch.compiler.hashes import Calculations
from soft_switch.compiler.layout import HeaderPlace, Place
from soft_switch.errors import UnsupportedConstruct


class DeparserWriter:
    """Writer of `verify_checksums`, `update_checksums` and `deparse`."""

    def __init__(
        self,
        program: Bmv2Program,
        writer: ExpressionWriter,
        calculations: Calculations,
        primitives: Primitives,
    ) -> None:
        self._program = program
        self._primitives = primitives
        self._write = writer
        self._calculations = calculations
        self._out: Code = writer.out

    def write(self) -> None:
        """Write the functions."""
        out = self._out
        with out.block("static bool verify_checksums(Phv& p, const Context& c)"):
            out("bool good = true;")
            for item in self._program.checksums:
                if item.verify:
                    self._verify(item)
            out("(void)p, (void)c;\nreturn good;")
        with out.block("static void update_checksums(Phv& p, const Context& c)"):
            for item in self._program.checksums:
                if item.update:
                    self._update(item)
            out("(void)p, (void)c;")
        if self._program.deparser_primitives:
            self._statements()
        self._deparse()

    def _statements(self) -> None:
        """Write the statements that the deparser runs before it emits headers."""
        out = self._out
        with out.block("static void deparser_statements(Program& g, Phv& p, Context& c)"):
            for call in self._program.deparser_primitives:
                with out.block():
                    self._primitives.write(call, self._write)
            out("(void)g, (void)p, (void)c;")

    def _condition(self, item: Checksum) -> str:
        return "true" if item.condition is None else self._write.boolean(item.condition)

    def _verify(self, item: Checksum) -> None:
        out = self._out
        with out.block():
            place = self._write.place(item.target)
            header = self._write.header(item.target.header)
            valid = header.valid or "true"
            test = f"{self._calculations.call(item.calculation)} != {self._write.value(item.target, 1)}"
            condition = self._condition(item)
            out(f"if ({valid} && {condition} && {test}) good = false;")
            if place.width > 64:
                raise UnsupportedConstruct(f"checksum {item.name} of {place.width} bits")

    def _update(self, item: Checksum) -> None:
        out = self._out
        with out.block(), out.block(f"if ({self._condition(item)})"):
            result = out.name()
            out(f"const uint64_t {result} = {self._calculations.call(item.calculation)};")
            self._write.assign(item.target, Place(result, 64, False))

    def _deparse(self) -> None:
        out = self._out
        headers = [self._header(name) for name in self._program.deparser_order]
        # The function says false where a statement gave the packet up.
        with out.block("static bool deparse(Program& g, Phv& p, const Context& c, uint32_t port)"):
            if self._program.deparser_primitives:
                out("Context inner = c;\ndeparser_statements(g, p, inner);\nif (inner.aborted) return false;")
            out("uint32_t length = c.payload_length;")
            for header in headers:
                out(f"if ({header.valid}) length += {header.size};")
            out("uint8_t* const frame = room(g, c, port, length);\nif (!frame) return true;")
            out("uint8_t* q = frame;")
            for header in headers:
                out(f"if ({header.valid}) q = emit(q, {header.text});  {comment(header.name or '')}")
            out("std::memcpy(q, c.payload, c.payload_length);")
            out("leave(g, c, length);\n(void)p;\nreturn true;")

    def _header(self, name: str) -> HeaderPlace:
        header = self._write.header(Header(name))
        if header.valid is None:
            raise UnsupportedConstruct(f"emitting metadata {name}")
        return header

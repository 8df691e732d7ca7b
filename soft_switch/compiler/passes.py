"""The passes of a frame up to its copies on ports, as in targets/simple_switch/simple_switch.cpp.

At the end of ingress, in this order: clone, digest, resubmit, multicast, drop, unicast. At the end of egress:
clone, drop, deparser, recirculate. Code is generated only for what a program uses.
"""

from __future__ import annotations

from soft_switch.bmv2.program import Bmv2Program
from soft_switch.bmv2.syntax import Const, Field, Header
from soft_switch.compiler.bounds import words
from soft_switch.compiler.code import Code, comment, word
from soft_switch.compiler.effects import EffectsFinder
from soft_switch.compiler.layout import Layout, Place
from soft_switch.compiler.standard_metadata import StandardMetadata
from soft_switch.errors import UnsupportedConstruct

# Values of standard_metadata.instance_type (targets/simple_switch/simple_switch.h).
NORMAL, INGRESS_CLONE, EGRESS_CLONE, RECIRCULATED, REPLICATION, RESUBMITTED = 0, 1, 2, 4, 5, 6
# Passes that a packet's followers get at once; what then still waits shares its turns with other packets.
AT_ONCE = 16
MAX_DIGEST_BYTES = 8192


class PassWriter:
    """Writer of `process` and of what it needs."""

    def __init__(self, program: Bmv2Program, layout: Layout, standard: StandardMetadata) -> None:
        self._program = program
        self._layout = layout
        self._standard = standard
        calls = [call for action in program.actions.values() for call in action.primitives]
        parsed = [op for state in program.parser_states.values() for op in state.ops]
        calls += [op.primitive for op in parsed if op.primitive is not None]
        ops = {call.op for call in calls}
        self._ingress_clone = "clone_ingress_pkt_to_egress" in ops
        self._egress_clone = "clone_egress_pkt_to_egress" in ops
        self._clone = self._ingress_clone or self._egress_clone
        self._digest = "generate_digest" in ops
        self._resubmit = "resubmit" in ops
        self._recirculate = "recirculate" in ops
        self._waits = self._clone or self._resubmit or self._recirculate
        self._asks = self._waits or self._digest or "truncate" in ops
        finder = EffectsFinder(program)
        written = set().union(*(finder.targets(call) for call in calls))
        written |= set().union(
            *(finder.variables(op.target) for op in parsed if isinstance(op.target, Field))
        )
        metered = [table.direct_meter for pipe in program.pipelines.values() for table in pipe.tables]
        written |= set().union(*(finder.variables(meter.target) for meter in metered if meter is not None))
        self._priority = standard.is_written("priority", written)

    def includes(self, out: Code) -> None:
        """Write the includes beyond those of every program."""
        if self._waits:
            out('#include "passes.h"')

    def members(self, out: Code) -> None:
        """Write the members that the program has to remember."""
        out("Phv phv, copy_phv;")
        if self._clone:
            out("Phv clone_phv;")
        if self._waits:
            out("Passes<Phv> passes;")

    def cleared(self) -> list[str]:
        """Return the members that start with zeros."""
        return ["phv", "copy_phv", *(["clone_phv"] if self._clone else [])]

    def write_output(self, out: Code) -> None:
        """Write where the deparser puts a packet, and what happens then."""
        with out.block(
            "static P4_INLINE uint8_t* room(Program& g, const Context& c, uint32_t port, uint32_t length)"
        ):
            if self._recirculate:
                out("if (c.recirculate) return g.passes.room(length);")
            out("(void)c;\nreturn g.host.reserve(port, length);")
        with out.block("static P4_INLINE void leave(Program& g, const Context& c, uint32_t length)"):
            if self._recirculate:
                out("if (c.recirculate) return;")
            out("g.host.commit(length < c.truncate ? length : c.truncate);")

    def write(self, out: Code) -> None:
        """Write the functions."""
        if self._waits:
            self._carry(out)
        if self._clone:
            self._forget(out)
            self._clone_from_egress(out)
        self._egress(out)
        if self._clone:
            self._clone_from_ingress(out)
        if self._digest:
            self._learn(out)
        self._ingress(out)
        if self._waits:
            self._resume(out)
        self._run_waiting(out)
        self._process(out)

    # Pieces

    def _carry(self, out: Code) -> None:
        """Write the function that carries over the fields of a field list."""
        with out.block("static void carry(Phv& to, const Phv& p, uint32_t list)"):
            with out.block("switch (list)"):
                for number, fields in self._program.field_lists.items():
                    if not fields:
                        continue
                    out(f"case {number}:")
                    for field in dict.fromkeys(fields):
                        text = self._place(field).text
                        out(f"    {text.replace('p.', 'to.', 1)} = {text};")
                    out("    break;")
                out("default: break;")
            out("(void)to, (void)p;")

    def _place(self, field: Field) -> Place:
        if not isinstance(field.header, Header):
            raise UnsupportedConstruct("a stack element at a computed index in a field list")
        return self._layout.field(self._layout.headers[field.header.name], field.field)

    @staticmethod
    def _forget(out: Code) -> None:
        """Write the function that sets all metadata to zero."""
        with out.block("static void forget(Phv& p)"):
            for member in ("kept", "cleared", "copied"):
                out(f"std::memset(&p.{member}, 0, sizeof p.{member});")

    def _clone_from_egress(self, out: Code) -> None:
        with out.block("static void clone_egress(Program& g, const Phv& p, Context& c)"):
            out("const CloneSession session = g.host.clone_session(c.clone & CLONE_SESSION);")
            with out.block("for (size_t i = 0; i < session.replicas.count; i++)"):
                with out.block("if (g.passes.copies.size() == g.passes.CAPACITY)"):
                    out("g.host.passes_dropped++;\ncontinue;")
                out("const uint8_t* const payload = c.payload;")
                out("g.passes.copies.push_back({{payload, payload + c.payload_length}, g.passes.take_phv(),")
                out("                           c.copy(), session.replicas.list[i].port});")
                out("auto& item = g.passes.copies.back();\nPhv& q = *item.phv;")
                out("item.payload.push_back(0);  // never empty, so that there is an address")
                out("item.context.payload = item.payload.data();")
                out("item.context.truncate = session.packet_length;")
                out("copy(q, p);\nforget(q);\ncarry(q, p, c.clone_list);")
                self._set(out, "instance_type", str(EGRESS_CLONE), "q")
                self._set(out, "egress_rid", "session.replicas.list[i].instance", "q")
            out("c.clone = 0;")

    def _egress(self, out: Code) -> None:
        std = self._standard
        with out.block("static void finish(Program& g, Phv& p, Context c, uint32_t port)"):
            if self._priority:
                with out.block(f"if ({std.get('priority')} >= g.host.priority_queues)"):
                    out('static const char text[] = "priority out of range, packet dropped";')
                    out("g.host.log(LOG_ERROR, text, sizeof text - 1);\nreturn;")
            std.set(out, "enq_timestamp", "g.host.now_us()")
            for name in ("enq_qdepth", "deq_timedelta", "deq_qdepth"):
                std.set(out, name, "0")
            std.set(out, "qid", std.get("priority") if self._priority else "0")
            std.set(out, "egress_global_timestamp", "g.host.now_us()")
            std.set(out, "egress_port", "port")
            # mark_to_drop in egress sets egress_spec to the drop port: start with anything else.
            std.set(out, "egress_spec", "g.host.drop_port + 1")
            std.set(out, "packet_length", "c.packet_length")
            out("egress(g, p, c);\nc.exit = false;\nif (c.aborted) return;")
            if self._clone:
                out("if (c.clone) clone_egress(g, p, c);")
            out(f"if ({std.get('egress_spec')} == g.host.drop_port) return;")
            out("update_checksums(p, c);\nif (!deparse(g, p, c, port)) return;")
            if self._recirculate:
                self._ask_round(out, "recirculate", RECIRCULATED, "g.passes.together()", "c.source")

    def _ask_round(self, out: Code, what: str, kind: int, bytes_: str, port: str) -> None:
        with out.block(f"if (c.{what})"):
            fits = "!g.passes.fits() || " if what == "recirculate" else ""
            with out.block(f"if ({fits}g.passes.rounds.size() == g.passes.CAPACITY)"):
                out("g.host.passes_dropped++;\nreturn;")
            out(f"auto kept = g.passes.take_phv();\ncarry(*kept, p, c.{what});")
            out(f"g.passes.rounds.push_back({{{bytes_}, std::move(kept), {port}, {kind}, c.{what}}});")
            if what == "recirculate":
                out("g.passes.rounds.back().bytes.pop_back();")
            out("return;")

    def _clone_from_ingress(self, out: Code) -> None:
        """Write the clone of the packet as it came in, parsed once more; only then is metadata reset."""
        with out.block("static void clone_ingress(Program& g, const Phv& p, Context& c)"):
            out("const CloneSession session = g.host.clone_session(c.clone & CLONE_SESSION);")
            out("const uint32_t list = c.clone_list;\nc.clone = c.clone_list = 0;")
            out("if (session.replicas.count == 0) return;")
            out("Phv& q = g.clone_phv;\nContext d(c.frame, c.length);\nd.source = c.source;\nreset(q);")
            self._set(out, "ingress_port", "c.source", "q")
            out("parse(g, q, d);\nif (d.aborted) return;\nd.exit = false;")
            out("d.truncate = session.packet_length;\nforget(q);\ncarry(q, p, list);")
            self._set(out, "instance_type", str(INGRESS_CLONE), "q")
            self._replicate(out, "session.replicas", "q", "d")

    def _replicate(self, out: Code, replicas: str, phv: str, context: str) -> None:
        with out.block(f"for (size_t i = 0; i < {replicas}.count; i++)"):
            self._set(out, "egress_rid", f"{replicas}.list[i].instance", phv)
            out(f"const bool last = i + 1 == {replicas}.count;")
            out(f"if (!last) copy(g.copy_phv, {phv});")
            out(f"finish(g, last ? {phv} : g.copy_phv, {context}, {replicas}.list[i].port);")

    def _set(self, out: Code, name: str, value: str, phv: str) -> None:
        """Write a field of standard_metadata in another header vector than p."""
        inner = Code()
        self._standard.set(inner, name, value)
        for line in inner.lines:
            out(line.replace("p.", f"{phv}.", 1))

    def _learn(self, out: Code) -> None:
        """Write the function that sends a digest's values as they are when ingress ends."""
        with out.block("static void learn(Program& g, const Phv& p, uint32_t list)"):
            with out.block("switch (list)"):
                for number, item in self._program.learn_lists.items():
                    size = sum(words(width) for _, width in item.values)
                    if 8 * size > MAX_DIGEST_BYTES:
                        raise UnsupportedConstruct(
                            f"digest {item.name} of more than {MAX_DIGEST_BYTES} bytes"
                        )
                    with out.block(f"case {number}:", f"  {comment(item.name)}"):
                        out(f"uint64_t values[{max(1, size)}];")
                        at = 0
                        for value, width in item.values:
                            self._learn_value(out, value, width, at)
                            at += words(width)
                        out(f"g.host.digest({number}, values, {size});\nbreak;")
                out("default: break;")
            out("(void)g, (void)p;")

    def _learn_value(self, out: Code, value: Field | Const, width: int, at: int) -> None:
        count = words(width)
        if isinstance(value, Const):
            for i in range(count):
                out(f"values[{at + i}] = {word(value.value >> (64 * i) & ((1 << 64) - 1))};")
        elif width > 64:
            out(f"std::memcpy(&values[{at}], &{self._place(value).text}, {8 * count});")
        else:
            out(f"values[{at}] = uint64_t({self._place(value).text});")

    def _ingress(self, out: Code) -> None:
        std = self._standard
        with out.block("static void run(Program& g, Phv& p, Context& c)"):
            out("parse(g, p, c);\nif (c.aborted) return;")
            std.set(out, "parser_error", "c.error")
            if std.reads("checksum_error"):
                std.set(out, "checksum_error", "!verify_checksums(p, c)")
            else:
                out("(void)verify_checksums;")
            out("ingress(g, p, c);\nif (c.aborted) return;\nc.exit = false;")
            if self._clone:
                out("if (c.clone) clone_ingress(g, p, c);")
            if self._digest:
                out("if (c.digest) learn(g, p, c.digest);")
            if self._resubmit:
                frame = "{c.frame, c.frame + c.length}"
                self._ask_round(out, "resubmit", RESUBMITTED, frame, "c.source")
            if std.has("mcast_grp"):
                with out.block(f"if (const uint32_t group = uint32_t({std.get('mcast_grp')}))"):
                    std.set(out, "instance_type", str(REPLICATION))
                    out("const Replicas replicas = g.host.multicast(group);")
                    self._replicate(out, "replicas", "p", "c.copy()" if self._asks else "c")
                    out("return;")
            out(f"const uint32_t out = uint32_t({std.get('egress_spec')});")
            out("if (out == g.host.drop_port) return;")
            std.set(out, "instance_type", str(NORMAL))
            out("finish(g, p, c, out);")

    def _resume(self, out: Code) -> None:
        """Write the start of another pass: of all metadata a packet has its kept fields, kind and length."""
        with out.block("static void resume(Program& g, const typename Passes<Phv>::Round& item)"):
            out("Phv& p = g.phv;\nContext c(item.bytes.data(), uint32_t(item.bytes.size()));")
            out("c.source = item.port;\nreset(p);\ncarry(p, *item.kept, item.list);")
            self._standard.set(out, "instance_type", "item.instance_type")
            self._standard.set(out, "packet_length", "c.length")
            out("run(g, p, c);")

    def _run_waiting(self, out: Code) -> None:
        with out.block("static void run_waiting(Program& g, int budget)"):
            if not self._waits:
                out("(void)g, (void)budget;")
                return
            out("auto& passes = g.passes;")
            out("if (budget < 0) g.host.passes_dropped += passes.clear();")
            with out.block("for (; budget > 0 && !passes.empty(); budget--)"):
                with out.block("if (passes.copy_is_next())"):
                    out("auto item = std::move(passes.copies.front());\npasses.copies.pop_front();")
                    out("finish(g, *item.phv, item.context, item.port);")
                    out("passes.give_back(std::move(item.phv));\ncontinue;")
                out("auto item = std::move(passes.rounds.front());\npasses.rounds.pop_front();")
                out("resume(g, item);\npasses.give_back(std::move(item.kept));")
            out("g.host.waiting = !passes.empty();")

    def _process(self, out: Code) -> None:
        std = self._standard
        head = "static void process(Program& g, const uint8_t* frame, uint32_t length, uint32_t port)"
        with out.block(head):
            out("Phv& p = g.phv;\nContext c(frame, length);\nreset(p);")
            if self._waits:
                out("c.source = port;")
            std.set(out, "ingress_port", "port")
            std.set(out, "packet_length", "length")
            std.set(out, "ingress_global_timestamp", "g.host.now_us()")
            out("run(g, p, c);")
            if self._waits:
                out(f"if (!g.passes.empty()) run_waiting(g, {AT_ONCE});")

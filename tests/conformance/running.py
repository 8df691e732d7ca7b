"""A sample from P4 to verdict, in a process of its own: whatever it does, the others still run."""

from __future__ import annotations

import multiprocessing
import traceback
from contextlib import ExitStack
from dataclasses import dataclass

import grpc

from soft_switch.bmv2.reader import read_program
from soft_switch.errors import ProgramError, TableError, UnknownEntry, UnsupportedConstruct
from tests.conformance import stf
from tests.conformance.p4runtime import refused
from tests.conformance.player import Mismatch, Player
from tests.conformance.samples import CompileError, Sample, compiled
from tests.conformance.ways import WAYS

TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Verdict:
    """Result of a sample.

    `stage` is "passed", or where it failed: p4c, script, load, control, packets, crash.
    """

    sample: str
    stage: str
    reason: str = ""

    @property
    def passed(self) -> bool:
        return self.stage == "passed"


def judge(sample: Sample, way: str = "direct") -> Verdict:
    """Compile, load and play a sample in a process of its own."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_judge, args=(sample, way, there))
    process.start()
    there.close()
    try:
        if not here.poll(TIMEOUT_S):
            return Verdict(sample.name, "crash", f"no end after {TIMEOUT_S:.0f} s")
        verdict = here.recv()
        assert isinstance(verdict, Verdict)
        return verdict
    except EOFError:
        process.join()
        return Verdict(sample.name, "crash", f"the process ended with {process.exitcode}")
    finally:
        process.kill()
        process.join()
        here.close()


def _judge(sample: Sample, way: str, connection) -> None:  # type: ignore[no-untyped-def]
    try:
        verdict = play(sample, way)
    except Exception:  # noqa: BLE001  (whatever it is, it is this sample's verdict)
        verdict = Verdict(sample.name, "crash", traceback.format_exc().strip())
    connection.send(verdict)
    connection.close()


def play(sample: Sample, way: str) -> Verdict:
    """Compile, load and play a sample."""

    def failed(stage: str, error: Exception) -> Verdict:
        return Verdict(sample.name, stage, f"{type(error).__name__}: {error}")

    try:
        program, p4info = compiled(sample)
    except CompileError as error:
        return failed("p4c", error)
    try:
        script = stf.parse(sample.script.read_text())
    except stf.StfError as error:
        return failed("script", error)
    with ExitStack() as stack:
        try:
            description = read_program(program).description
            switch = stack.enter_context(WAYS[way](program, p4info))
        except (UnsupportedConstruct, ProgramError) as error:
            return failed("load", error)
        try:
            Player(description, switch.control, switch.send).play(script)
        except (TableError, UnknownEntry, UnsupportedConstruct, LookupError) as error:
            return failed("control", error)
        except grpc.RpcError as error:
            return Verdict(sample.name, "control", refused(error))
        except Mismatch as error:
            return failed("packets", error)
    return Verdict(sample.name, "passed")

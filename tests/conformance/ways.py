"""The switches that a script can be played on: this one in process or over P4Runtime, and BMv2."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from soft_switch.dataplane import DataPlane
from soft_switch.server import P4RuntimeServer
from tests.conformance.bmv2 import running_bmv2
from tests.conformance.control import Control, Direct
from tests.conformance.p4runtime import OverP4Runtime
from tests.conformance.player import Send
from tests.soft_switch.switches import Controller


@dataclass(frozen=True)
class Switch:
    """A switch that runs a program: its control plane, and how a packet goes through."""

    control: Control
    send: Send


@contextmanager
def direct(program: bytes, p4info: str) -> Iterator[Switch]:
    """Yield the data plane in this process, by its own methods."""
    with DataPlane() as plane:
        plane.load(program)
        yield Switch(Direct(plane), plane.process)


@contextmanager
def over_p4runtime(program: bytes, p4info: str) -> Iterator[Switch]:
    """Yield the data plane in this process, its control plane over P4Runtime."""
    with DataPlane() as plane, served(plane) as controller:
        controller.push(program, p4info)
        yield Switch(OverP4Runtime(controller), plane.process)


@contextmanager
def bmv2(program: bytes, p4info: str) -> Iterator[Switch]:
    """Yield simple_switch_grpc."""
    with running_bmv2() as switch:
        switch.controller.push(program, p4info)
        yield Switch(OverP4Runtime(switch.controller), lambda port, data: switch.process([(port, data)])[0])


@contextmanager
def served(plane: DataPlane) -> Iterator[Controller]:
    """Yield a P4Runtime server for a data plane, and its primary controller."""
    with tempfile.TemporaryDirectory(prefix="p4rt") as folder:
        server = P4RuntimeServer(plane, address=f"unix:{folder}/p4rt")
        server.start()
        try:
            controller = Controller(server.address)
            try:
                yield controller
            finally:
                controller.close()
        finally:
            server.stop()


WAYS: dict[str, Callable[[bytes, str], AbstractContextManager[Switch]]] = {
    "direct": direct,
    "p4runtime": over_p4runtime,
    "bmv2": bmv2,
}

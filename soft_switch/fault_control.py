"""The socket over which faults are told to a running switch or wire, and listed: a JSON line each way.

    {"do": "add", "places": [{"port": 1, "direction": "in"}], "fault": {"kind": "loss"}}
    {"ok": {"number": 3}}
    {"do": "list"}
    {"ok": [{"number": 3, "port": 1, "direction": "in", "fault": {...}, "matched": 7, "struck": 7}]}
    {"do": "clear", "number": 3}     (without a number: all)
    {"ok": {"cleared": 1}}

A request that cannot be done is answered with {"error": "a sentence"}.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

from controller.telemetry import sockets
from controller.telemetry.sockets import Serving
from soft_switch.errors import FaultError
from soft_switch.fault_rules import FaultRules
from soft_switch.faults import FaultRule, PlacedFault

MAX_LINE: Final = 1 << 20
CLIENT_S: Final = 5.0


class FaultControl(AbstractContextManager["FaultControl"]):
    """Server of the faults of `rules`, at a Unix socket that only its owner may use. A context manager."""

    def __init__(self, address: str, rules: FaultRules) -> None:
        """Listen. `address` is unix:/PATH; FaultError if that cannot be used."""
        self.path = parse_address(address)
        self._rules = rules
        self._serving = Serving(
            _listen(self.path),
            self._converse,
            what=f"faults at {self.path}",
            thread="faults",
            client_s=CLIENT_S,
        )
        self._serving.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop serving. Idempotent."""
        self._serving.close()

    def _converse(self, connection: socket.socket, _: object) -> None:
        with connection.makefile(
            "rw", encoding="utf-8", errors="replace"
        ) as lines:  # what is no text is no JSON
            while not self._serving.is_closed and (line := lines.readline(MAX_LINE)):
                lines.write(json.dumps(self.answer(line)) + "\n")
                lines.flush()

    def answer(self, line: str) -> dict[str, Any]:
        """Answer a line."""
        try:
            request = json.loads(line)
        except (json.JSONDecodeError, RecursionError):
            return {"error": "that is no JSON: send one object a line"}
        commands: Mapping[str, Callable[[dict[str, Any]], Any]] = {
            "add": self._add,
            "list": self._list,
            "clear": self._clear,
        }
        name = request.get("do") if isinstance(request, dict) else None
        if not isinstance(name, str) or name not in commands:
            return {"error": f"say what to do: {', '.join(commands)}"}
        try:
            return {"ok": commands[name](request)}
        except FaultError as error:
            return {"error": str(error)}

    def _add(self, request: dict[str, Any]) -> dict[str, Any]:
        rule = FaultRule.decode(request.get("fault"))
        places = request.get("places")
        if not isinstance(places, list) or not places:
            raise FaultError("a fault needs places: a list of {port, direction}")
        return {"number": self._rules.add([_place(one) for one in places], rule, number=_number(request))}

    def _list(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        return [encode(fault) for fault in self._rules.all()]

    def _clear(self, request: dict[str, Any]) -> dict[str, Any]:
        number = _number(request)
        cleared = self._rules.remove(number)
        if number is not None and not cleared:
            raise FaultError(f"there is no fault {number}")
        return {"cleared": cleared}


def ask(path: Path, request: Mapping[str, Any], *, timeout_s: float = CLIENT_S) -> Any:
    """Ask the faults' socket at `path`; return the answer. FaultError: refused; OSError: no answer."""
    with (
        sockets.connected(path, timeout_s) as connection,
        connection.makefile("rw", encoding="utf-8") as lines,
    ):
        lines.write(json.dumps(request) + "\n")
        lines.flush()
        line = lines.readline()
    if not line:
        raise ConnectionResetError(f"{path} gave no answer")
    answer = json.loads(line)
    if "error" in answer:
        raise FaultError(answer["error"])
    return answer["ok"]


def encode(fault: PlacedFault) -> dict[str, Any]:
    """Return a rule at a port, for JSON."""
    return {
        "number": fault.number,
        "port": fault.port,
        "direction": fault.direction,
        "fault": fault.rule.encode(),
        "matched": fault.matched,
        "struck": fault.struck,
    }


def parse_address(text: str) -> Path:
    """Return the path of unix:/PATH; FaultError says what is wrong with it."""
    try:
        return sockets.unix_path(text)
    except ValueError as error:
        raise FaultError(f"{text!r} is no place for the faults' socket: {error}") from error


def _listen(path: Path) -> socket.socket:
    try:
        return sockets.listen_at(path, mode=0o600)
    except OSError as error:
        raise FaultError(f"no faults' socket at {path}: {error.strerror}") from error


def _place(raw: Any) -> tuple[int, str]:
    if not isinstance(raw, dict) or set(raw) != {"port", "direction"}:
        raise FaultError(f"{raw!r} is no place: give a port and a direction")
    port, direction = raw["port"], raw["direction"]
    if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port < 65536:
        raise FaultError(f"port {port!r} is no port number")
    if not isinstance(direction, str):
        raise FaultError(f"{direction!r} is no direction: give 'in' or 'out'")
    return port, direction


def _number(request: dict[str, Any]) -> int | None:
    number = request.get("number")
    if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 1):
        raise FaultError(f"{number!r} is no fault's number")
    return number

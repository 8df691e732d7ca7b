"""The process of `p4reduce shell`: the shell's own interpreter runs this file.

It imports nothing of p4reduce, which is not in that environment. Arguments: a JSON object of a switch's name,
an election id or null, a script or null; then p4runtime-shell's own options.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import traceback
from typing import Any

from p4runtime_sh import p4runtime, shell

_INVALID_ARGUMENT = 3  # code.proto: what both targets answer to an election id that somebody has
_FREE_IDS = range(1, 17)  # neither target has more controllers than 16
_ANSWER_S = 30.0  # beside a busy machine's other work
_PIPE_CLOSED = 128 + 13  # as shells report SIGPIPE

_set_up_stream = p4runtime.P4RuntimeClient.set_up_stream
_get_stream_packet = p4runtime.P4RuntimeClient.get_stream_packet


class _Refusals(logging.Handler):
    """Handler that keeps why the switch ended the stream, which p4runtime-shell only logs."""

    def __init__(self) -> None:
        super().__init__()
        self.last: Any = None

    def emit(self, record: logging.LogRecord) -> None:
        self.last = getattr(record.msg, "grpc_error", self.last)


def _claim(client: Any, switch: str, wanted: int | None) -> None:
    """Open the client's stream under the election id that was asked for, or the first that is free."""
    for election_id in _FREE_IDS if wanted is None else (wanted,):
        client.election_id = (0, election_id)
        refusals = _Refusals()
        logging.root.handlers = [refusals]
        try:
            with contextlib.redirect_stdout(sys.stderr):  # "You are not the primary client": not the script's
                _set_up_stream(client)
        except SystemExit:
            if refusals.last is None:
                sys.exit(f"p4reduce: {switch} did not answer within {_ANSWER_S:.0f} s")
            if refusals.last.code().value[0] != _INVALID_ARGUMENT:
                sys.exit(f"p4reduce: {switch} takes no shell: {refusals.last.details()}")
        else:
            if wanted is None and election_id > 1:
                print(
                    f"this shell has election id {election_id}: other shells have those before",
                    file=sys.stderr,
                )
            return
        finally:
            logging.root.handlers = []
    sys.exit(
        f"p4reduce: election id {wanted} of {switch} is another controller's: without --election-id, "
        "the shell takes one that is free"
        if wanted is not None
        else f"p4reduce: {switch} has as many shells as it takes: leave one"
    )


def _adapt(switch: str, wanted: int | None, script: str | None) -> None:
    def listed(objects: Any) -> str:
        return "\n".join(objects._names)

    def wait(client: Any, kind: str, timeout: float = 1) -> Any:
        return _get_stream_packet(client, kind, _ANSWER_S if kind == "arbitration" else timeout)

    def run(user_ns: dict[str, Any], **_: Any) -> None:
        assert script is not None
        try:
            exec(script, user_ns)
        except Exception as error:
            if isinstance(error, BrokenPipeError):
                raise
            traceback.print_exc()
            sys.exit(1)

    p4runtime.P4RuntimeClient.set_up_stream = lambda client: _claim(client, switch, wanted)
    p4runtime.P4RuntimeClient.get_stream_packet = wait
    shell.P4Objects.__repr__ = listed
    if script is not None:
        shell.start_ipython = run


def _main() -> int:
    told = json.loads(sys.argv.pop(1))
    _adapt(**told)
    try:
        shell.main()
        sys.stdout.flush()
    except BrokenPipeError:
        return _PIPE_CLOSED
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BaseException:  # noqa: BLE001 (the process ends here)
        traceback.print_exc()
        return 1
    return 0


def _end() -> None:
    """End the process at once: the thread that listens to the switch would keep it and its election id."""
    code = 1
    try:
        code = _main()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    except BrokenPipeError:
        code = _PIPE_CLOSED
    finally:
        os._exit(code)


if __name__ == "__main__":
    _end()

"""The session with the controller over gRPC."""

from __future__ import annotations

from collections.abc import Callable

from host_agent.membership import Ended, JoinRequest, Ready


class ControllerSession:
    """A Membership; see there."""

    def __init__(self, controller: str) -> None:
        self.controller = controller

    def join(self, request: JoinRequest, *, timeout_s: float) -> Ready:
        raise NotImplementedError

    def up(self, *, timeout_s: float) -> None:
        raise NotImplementedError

    def on_ended(self, callback: Callable[[Ended], None]) -> None:
        raise NotImplementedError

    def abort(self, reason: str) -> None:
        raise NotImplementedError

    def leave(self, *, timeout_s: float) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

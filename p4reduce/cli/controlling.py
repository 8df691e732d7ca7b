"""A client of the controller for commands, which say so, as doctor does, if it is stopped or dead."""

from __future__ import annotations

from typing import Any, TypeVar

from controller.api.admin import AdminClient
from controller.api.errors import TimedOutError, UnreachableError
from topologies.state import ClusterState

_T = TypeVar("_T")


class ClusterAdmin(AdminClient):
    """A client that raises UnreachableError, with what to do, if the controller's process cannot answer."""

    def __init__(self, cluster: ClusterState, *, timeout_s: float = 60.0) -> None:
        super().__init__(f"unix:{cluster.control_socket}", timeout_s=timeout_s)
        self._cluster = cluster

    def _call(self, kind: type[_T], method: Any, request: object) -> _T:
        self._require_controller()
        try:
            return super()._call(kind, method, request)
        except (UnreachableError, TimedOutError):  # it may have been stopped, or have died, meanwhile
            self._require_controller()
            raise

    def _require_controller(self) -> None:
        from p4reduce.doctor import control, machine  # late: most commands never need what comes with it

        known = self._cluster.controller_process
        if known is None:
            return
        finding = control.away(self._cluster, machine.process(known))
        if finding is not None:
            raise UnreachableError(f"{finding.says}; {finding.do[0]}")

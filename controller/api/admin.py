"""The command line's client of the controller: one method a request, errors as in `errors.py`."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, TypeVar

import grpc

from controller.api import controller_pb2 as pb
from controller.api.errors import InvalidRequestError, UnreachableError, from_status
from controller.api.rpc import ControllerStub
from controller.security import diagnosis
from controller.security.channels import is_unix, open_channel
from controller.security.files import TlsError, TlsFiles

# The management network is never behind a web proxy, whatever the environment says.
_OPTIONS = (("grpc.enable_http_proxy", 0), ("grpc.max_receive_message_length", 64 << 20))
_MODES = {"": pb.MODE_UNSPECIFIED, "in-network": pb.IN_NETWORK, "ring": pb.RING}

_T = TypeVar("_T")


class AdminClient(AbstractContextManager["AdminClient"]):
    """Client of the controller at "unix:/path" or "host:port". Every method raises ControllerErrors.

    `tls`: an operator's certificate (None: the one that P4REDUCE_TLS_DIR names, and never one for Unix
    sockets).
    """

    def __init__(self, target: str, *, timeout_s: float = 60.0, tls: TlsFiles | None = None) -> None:
        self.target = target
        self.timeout_s = timeout_s
        self._tls = tls or (None if is_unix(target) else TlsFiles.from_environment())
        try:
            self._channel = open_channel(target, self._tls, options=_OPTIONS)
        except TlsError as error:
            raise UnreachableError(str(error)) from error
        self._stub = ControllerStub(self._channel)

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; idempotent."""
        self._channel.close()

    def create_job(
        self,
        name: str,
        world_size: int,
        *,
        mode: str = "",
        path_mtu: int | None = None,
        window: int | None = None,
        message_packets: int | None = None,
        tenant: str = "",
        elastic: bool = False,
        min_workers: int = 0,
        selective: bool | None = None,
        join_token: str = "",
        gpus_per_host: int = 1,
    ) -> pb.JobInfo:
        """Create a job that workers may join. `mode`: "in-network", "ring", or "" for whatever is possible.

        `join_token`: the token that workers have to present (empty: none). `gpus_per_host`: with more than
        one, create a gang of as many planes; `world_size` then counts the workers of all planes.
        """
        if mode not in _MODES:
            raise InvalidRequestError(f"mode {mode!r} is neither 'in-network' nor 'ring'")
        for what, value in (
            ("world size", world_size),
            ("path MTU", path_mtu),
            ("window", window),
            ("packets a message", message_packets),
            ("least number of workers", min_workers),
            ("number of GPUs a machine", gpus_per_host),
        ):
            if value is not None and not 0 <= value < 1 << 32:
                raise InvalidRequestError(f"job {name}: {what} {value} is not possible")
        spec = pb.JobSpec(
            name=name,
            world_size=world_size,
            mode=_MODES[mode],
            path_mtu=path_mtu,
            window=window,
            message_packets=message_packets,
            tenant=tenant,
            elastic=elastic,
            min_workers=min_workers,
            selective=selective,
            join_token=join_token,
            gang=pb.Gang(name=name, planes=gpus_per_host) if gpus_per_host != 1 else None,
        )
        return self._call(pb.JobInfo, self._stub.CreateJob, spec)

    def list_jobs(self) -> list[pb.JobInfo]:
        """Return the last job of each name, sorted by name; of a gang, its planes."""
        return list(self._call(pb.JobList, self._stub.ListJobs, pb.ListJobsRequest()).jobs)

    def show_job(self, name: str) -> pb.JobInfo:
        """Return one job, or a gang by its name with its planes."""
        return self._call(pb.JobInfo, self._stub.ShowJob, pb.JobName(name=name))

    def delete_job(self, name: str) -> pb.JobInfo:
        """End a job, or a gang by its name, if it runs, and forget it. Return its last state."""
        return self._call(pb.JobInfo, self._stub.DeleteJob, pb.JobName(name=name))

    def flows(self, job: str = "") -> list[pb.Flow]:
        """Return the flows of one job, or of all."""
        return list(self._call(pb.FlowList, self._stub.ListFlows, pb.FlowsRequest(job=job)).flows)

    def slots(self, job: str = "", *, all: bool = False) -> list[pb.Slot]:
        """Return the contents of the slots of one job, or of all; with `all`, also slots without its data."""
        return list(self._call(pb.SlotList, self._stub.ListSlots, pb.SlotsRequest(job=job, all=all)).slots)

    def counters(self, job: str = "") -> list[pb.FlowCounters]:
        """Return the switches' counters for one job, or for all, by rank."""
        return list(self._call(pb.CounterList, self._stub.ListCounters, pb.CountersRequest(job=job)).flows)

    def ports(self) -> list[pb.Port]:
        """Return the switches' counters by port."""
        return list(self._call(pb.PortList, self._stub.ListPorts, pb.PortsRequest()).ports)

    def links(self) -> list[pb.Link]:
        """Return the links between switches."""
        return list(self._call(pb.LinkList, self._stub.ListLinks, pb.LinksRequest()).links)

    def plan(self, document: str = "") -> pb.PlanReport:
        """Return the changes that `apply` would make.

        With an empty document, return the differences from the document that was applied last.
        """
        return self._call(pb.PlanReport, self._stub.Plan, pb.PlanRequest(document=document))

    def apply(self, document: str = "") -> pb.PlanReport:
        """Make the switches hold the entries of a document (YAML or JSON).

        The report is not `applied` if a switch refused a part.
        """
        return self._call(pb.PlanReport, self._stub.Apply, pb.ApplyRequest(document=document))

    def rollback(self, revision: int | None = None) -> pb.PlanReport:
        """Go back to the document that was applied last, or to a revision."""
        return self._call(pb.PlanReport, self._stub.Rollback, pb.RollbackRequest(revision=revision))

    def revisions(self) -> list[pb.Revision]:
        """Return the revisions that were applied, oldest first."""
        return list(self._call(pb.RevisionList, self._stub.ListRevisions, pb.RevisionsRequest()).revisions)

    def push(self, switch: str = "", *, force: bool = False) -> list[pb.SwitchInfo]:
        """Load the program again into one switch, or into all. With `force`, jobs that run there end."""
        return list(
            self._call(pb.PushReport, self._stub.Push, pb.PushRequest(switch=switch, force=force)).switches
        )

    def status(self) -> pb.Status:
        """Return the controller's status."""
        return self._call(pb.Status, self._stub.GetStatus, pb.StatusRequest())

    def _call(self, kind: type[_T], method: Any, request: object) -> _T:
        """Call the method and return its answer, which is of that kind."""
        try:
            answer: _T = method(request, timeout=self.timeout_s)
            return answer
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                why = diagnosis.why(self.target, self._tls, what=f"the controller at {self.target}")
                if why is not None:
                    raise UnreachableError(why) from error
            raise from_status(error.code(), error.details() or "", address=self.target) from error

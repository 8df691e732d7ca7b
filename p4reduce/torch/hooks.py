"""DDP's gradients alone through the network, for those who keep Gloo or NCCL for all else.

    model = DistributedDataParallel(net)
    model.register_comm_hook(InNetwork(), in_network_hook)

PyTorch looks at the hooks' annotations, which therefore are no strings here.
"""

import operator
import weakref
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from host_agent.error_feedback import ErrorFeedback
from host_agent.errors import UsageError
from p4reduce.torch.group import Group, Options


class InNetwork:
    """A hook's state: the job that sums the gradients of `group`'s ranks (None: the default group's).

    It is joined with the first bucket, by the options or environment variables that `init_process_group`
    would take. One can serve several models.
    """

    def __init__(self, group: dist.ProcessGroup | None = None, *, options: Options | None = None) -> None:
        self._of = group
        self._options = options or Options()
        self._group: Group | None = None
        self._feedback: dict[int, _Feedback] = {}  # by the id of a bucket's first parameter

    @property
    def group(self) -> Group:
        """The job's group. The first access makes it, on all ranks alike."""
        if self._group is None:
            of = self._of or dist.group.WORLD
            if of is None:
                raise UsageError(
                    "call init_process_group() before a hook is used: its ranks are those of the job"
                )
            self._group = Group(
                dist.PrefixStore(
                    f"p4reduce/gradients/{of.group_name}", dist.distributed_c10d._get_default_store()
                ),
                rank=of.rank(),
                size=of.size(),
                timeout=_timeout_of(of),
                name=f"gradients-{of.group_name}",
                ranks=dist.get_process_group_ranks(of),
                options=self._options,
            )
        return self._group

    def feedback(self, bucket: dist.GradBucket) -> ErrorFeedback:
        """Return the feedback for these parameters in this order: DDP regroups them after its first step."""
        parameters = bucket.parameters()
        known = self._feedback.get(id(parameters[0]))
        if known is None or not known.is_of(parameters):
            taken = set(map(id, parameters))
            self._feedback = {key: kept for key, kept in self._feedback.items() if not kept.touches(taken)}
            known = self._feedback[id(parameters[0])] = _Feedback(parameters)
        return known.feedback

    def close(self) -> None:
        """Leave the job, with all others; else that happens when the process ends."""
        if self._group is not None:
            self._group.leave()


class _Feedback:
    """A bucket's error feedback. Once a parameter is gone, another may have its id."""

    def __init__(self, parameters: list[torch.Tensor]) -> None:
        self.feedback = ErrorFeedback()
        self._parameters = [weakref.ref(one) for one in parameters]

    def is_of(self, parameters: list[torch.Tensor]) -> bool:
        """Tell whether it is for exactly these parameters, in this order."""
        known = [ref() for ref in self._parameters]
        return len(known) == len(parameters) and all(map(operator.is_, known, parameters))

    def touches(self, ids: set[int]) -> bool:
        """Tell whether one of its parameters has one of these ids, or is gone."""
        return any((one := ref()) is None or id(one) in ids for ref in self._parameters)


def in_network_hook(state: InNetwork, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average the ranks' gradients in their own type."""
    return _average(state, bucket, wire=None, feedback=None)


def in_network_16bit_hook(state: InNetwork, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average as `in_network_hook`, float32 in half the bytes; rounding errors go into the next step."""
    halved = bucket.buffer().dtype == torch.float32
    feedback = state.feedback(bucket) if halved else None
    return _average(state, bucket, wire="16bit" if halved else None, feedback=feedback)


def _timeout_of(group: dist.ProcessGroup) -> timedelta:
    """Return the time-out that the group was given, or the default where no backend tells."""
    for device in group._device_types:
        options = getattr(group._get_backend(device), "options", None)
        if options is not None:
            return timedelta(seconds=options._timeout.total_seconds())
    return timedelta(
        seconds=dist.distributed_c10d._get_default_timeout(dist.get_backend(group)).total_seconds()
    )


def _average(
    state: InNetwork, bucket: dist.GradBucket, *, wire: str | None, feedback: ErrorFeedback | None
) -> torch.futures.Future[torch.Tensor]:
    if not isinstance(state, InNetwork):
        raise TypeError(f"the hook's state has to be p4reduce.torch.InNetwork(), not {state!r}")
    tensor, group = bucket.buffer(), state.group
    work: Any = group.all_reduce([tensor], dist.ReduceOp.AVG, wire=wire, feedback=feedback)
    if work is not None:
        return work.get_future().then(lambda future: future.value()[0])
    tensor.div_(group.size)  # of a type that no switch adds
    work = group.gloo.allreduce([tensor], dist.AllreduceOptions())
    return work.get_future().then(lambda future: future.value()[0])

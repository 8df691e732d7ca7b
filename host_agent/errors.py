"""The errors that users of a Communicator see: what was wrong, where, and what to do."""

from __future__ import annotations


class CommunicatorError(RuntimeError):
    """Base of all errors that a Communicator raises on purpose; RuntimeErrors, as in PyTorch's backends."""


class UsageError(CommunicatorError, ValueError):
    """A dtype, operation, shape or rank that cannot be right. The communicator stays usable."""


class JobRefusedError(CommunicatorError):
    """The controller did not take this worker into the job."""


class QueuePairTakenError(JobRefusedError):
    """Another worker on this host has or had a queue pair's number: joining again takes others."""


class ControllerUnreachableError(CommunicatorError):
    """The controller cannot be reached at the address, or the session with it broke."""


class InterfaceError(CommunicatorError):
    """The network interface is missing, ambiguous, has no address, or cannot carry the path MTU."""


class JobEndedError(CommunicatorError):
    """The controller ended the job. `plane`: that in which `rank` is, where it is another than ours."""

    def __init__(
        self,
        reason: str,
        *,
        rank: int | None = None,
        host: str = "",
        first_message: int | None = None,
        plane: int | None = None,
    ) -> None:
        super().__init__(reason)
        self.plane = plane
        self.reason = reason
        self.rank = rank
        self.host = host
        self.first_message = first_message


class WorkerLostError(JobEndedError):
    """Another worker died, lost its heartbeat or aborted; `rank` says which, `host` where it ran.

    `first_message`: the first message that it did not contribute to, of those that others wait for (None:
    nobody waits for one, or it is not known).
    """


class MismatchError(CommunicatorError):
    """The workers called different collectives, or the same with another size, element type or operation."""


class NotAggregatedError(CommunicatorError):
    """A message came through without having been summed by a switch. Its data was not used."""


class ConnectionFailedError(CommunicatorError):
    """The RoCE connection to a neighbour failed: out of retries, or a packet that cannot be."""


class RetryExceededError(ConnectionFailedError):
    """The connection got no acknowledgement after the configured number of retransmissions."""


class CollectiveTimeoutError(CommunicatorError, TimeoutError):
    """A collective made no progress for `timeout_s`.

    The error names the first message without a result, and who is missing if known.
    """


class CommunicatorClosedError(CommunicatorError):
    """The communicator was left, or failed earlier; `__cause__` is the first error."""


class RingFallbackWarning(UserWarning):
    """The job's sums are made by the workers, not by the switch."""

"""All-reduce inside the network: the `p4reduce` command, and the names a user imports."""

from __future__ import annotations

from host_agent.collectives.plan import Strategy
from host_agent.communicator import Communicator, RingFallbackWarning, Statistics
from host_agent.errors import CommunicatorError, WorkerLostError
from host_agent.membership import MembershipChange
from host_agent.wire.aggregation import Reduction

__all__ = [
    "Communicator",
    "CommunicatorError",
    "MembershipChange",
    "Reduction",
    "RingFallbackWarning",
    "Statistics",
    "Strategy",
    "WorkerLostError",
]

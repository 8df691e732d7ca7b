"""All-reduce inside the network: the `p4reduce` command, and the names a user imports.

The names are imported when they are used: most commands do without the agent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from host_agent.collectives.plan import Strategy
    from host_agent.communicator import Communicator, RingFallbackWarning
    from host_agent.error_feedback import ErrorFeedback
    from host_agent.errors import CommunicatorError, WorkerLostError
    from host_agent.machine.communicator import MachineCommunicator
    from host_agent.membership import MembershipChange
    from host_agent.metrics import Statistics
    from host_agent.wire.aggregation import Reduction
else:
    _MODULES = {
        "Communicator": "host_agent.communicator",
        "CommunicatorError": "host_agent.errors",
        "ErrorFeedback": "host_agent.error_feedback",
        "MachineCommunicator": "host_agent.machine.communicator",
        "MembershipChange": "host_agent.membership",
        "Reduction": "host_agent.wire.aggregation",
        "RingFallbackWarning": "host_agent.communicator",
        "Statistics": "host_agent.metrics",
        "Strategy": "host_agent.collectives.plan",
        "WorkerLostError": "host_agent.errors",
    }

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import importlib

        found = globals()[name] = getattr(importlib.import_module(_MODULES[name]), name)
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})


__all__ = [
    "Communicator",
    "CommunicatorError",
    "ErrorFeedback",
    "MachineCommunicator",
    "MembershipChange",
    "Reduction",
    "RingFallbackWarning",
    "Statistics",
    "Strategy",
    "WorkerLostError",
]

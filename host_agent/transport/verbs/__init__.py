"""RoCE v2 by an RDMA device (rdma-core's verbs): the device cuts messages and repeats what is lost.

Needs pyverbs, rdma-core's Python binding, which is imported only where a device is opened. Debian and
Ubuntu have it as `python3-pyverbs`, for the system's Python (a virtual environment sees it with
--system-site-packages). Elsewhere `pip install p4reduce[verbs]` builds it from source, which needs
rdma-core's headers (`libibverbs-dev`, `librdmacm-dev`) and a C compiler. The user needs access to
/dev/infiniband and enough locked memory (ulimit -l).
"""

from __future__ import annotations

from host_agent.transport.verbs.discovery import RoceDevice, find_device, pyverbs_missing
from host_agent.transport.verbs.link import VerbsLink
from host_agent.transport.verbs.queue_pairs import QueuePairs

__all__ = ["QueuePairs", "RoceDevice", "VerbsLink", "find_device", "pyverbs_missing"]

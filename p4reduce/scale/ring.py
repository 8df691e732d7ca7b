"""Duration of a ring's steps if its hops differ.

In each step a rank sends one part. It sends the next part when it has received that from its predecessor and
has sent the one before. So ranks are not in step: a slow hop's cost is paid once if rates bound the ring, and
its latency once a round if latencies do. Rates within a step are those of all hops sending at once.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def ring_s(sends_s: NDArray[np.float64], latencies_s: NDArray[np.float64], *, steps: int) -> float:
    """Return when the last rank has its last part.

    By rank: `sends_s` is how long sending a part takes, `latencies_s` how long it is under way then.
    """
    if steps == 0:
        return 0.0
    if np.ptp(sends_s) == 0 and np.ptp(latencies_s) == 0:
        return float(steps * (sends_s[0] + latencies_s[0]))
    ready = np.zeros_like(sends_s)  # when a rank may send its next part
    sent, arrived = np.empty_like(ready), np.empty_like(ready)
    for _ in range(steps):
        np.add(ready, sends_s, out=sent)
        np.add(sent, latencies_s, out=arrived)  # at the next rank
        np.maximum(sent[1:], arrived[:-1], out=ready[1:])
        ready[0] = max(sent[0], arrived[-1])
    return float(arrived.max())

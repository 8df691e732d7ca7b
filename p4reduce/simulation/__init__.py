"""Jobs, switches and bad links in one process on a simulated clock: everything follows from a seed.

`switch/` is the oracle: what a switch has to do with every packet. `faults/` is the world, in which jobs live
from joining to leaving; `exhaustive/` goes through every order of a small one. The endpoints are the real
ones (`host_agent.transport`), a switch's entries the controller's own.
"""

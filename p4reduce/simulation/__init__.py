"""Jobs, switches and bad links in one process on a simulated clock: everything follows from a seed.

`faults/` is the world, in which jobs live from joining to leaving; `exhaustive/` goes through every order of
a small one; `sequence/` draws a run. The switches are the oracle (`p4reduce.oracle`) with the controller's
own entries, and the endpoints are the real ones (`host_agent.transport`).
"""

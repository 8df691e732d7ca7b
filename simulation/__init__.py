"""Jobs, switches and bad links in one process on a simulated clock: everything follows from a seed.

`switch/` is the oracle: what a switch has to do with every packet. `rack` has N workers and one of them,
`fabric` leaves, spines and several jobs, `scenarios` draws both and what happens to them. The endpoints are
the real ones (`host_agent.transport`), a switch's entries the controller's own.
"""

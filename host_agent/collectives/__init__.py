"""Collectives as generators: they yield transport operations and what to wait for, and do no I/O.

`plan.py` holds what they share, `in_network.py` the ones that a switch sums, `ring.py` the ones that pass
data around the ring. The communicator runs them on a real connection; tests run them on simulated ones.
"""

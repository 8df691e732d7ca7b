"""Several workers on one machine, a GPU each, behind one NIC: sums inside the machine, then between machines.

`meeting.py` brings the workers of a machine together, `channel.py` is the memory that they share, `sums.py`
has the ways to add up, and `communicator.py` what a user calls. Between machines go *planes*: local rank g
of all machines is a job of its own, an ordinary one, so that the switch knows nothing of machines.
"""

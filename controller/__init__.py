"""The controller: pipeline, routes, slots and jobs of the P4 switches, over P4Runtime.

    api/           the gRPC service that agents join, and the clients of it
    service.py     requests and sessions to calls, exceptions to statuses
    registry.py    jobs, and what their state machines ask for
    sessions.py    one worker's connection  views.py    what there is, as messages
    jobs.py        one job as a state machine without I/O
    planning.py    what a job may ask for and what it gets
    setup.py       from joined workers to a plan and entries on a switch
    fabric.py      a switch, its slots, and whether it is ready for jobs
    allocator.py   who owns which slots, flow indexes and groups of a switch
    flows.py       a job's entries          routes.py   a rack's entries
    switch.py      one switch under control: connected, written, read
    recovery.py    the switch as found against the switch as wanted
    push.py        the program into a switch
    p4rt.py        P4Runtime                schema.py   entries to its messages and back
    store.py       what must survive a restart

Started with `python -m controller --config FILE --db FILE --listen HOST:PORT`.
"""

from __future__ import annotations

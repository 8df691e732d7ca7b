"""The controller: pipeline, routes, slots and jobs of the P4 switches, over P4Runtime.

    api/           the gRPC service that agents join, and the clients of it
                   messages.py what is said in a session, codec.py that to protobuf and back
    service.py     requests and sessions to calls, exceptions to statuses; guarding.py who may call what
    registry.py    jobs, and what their state machines ask for; running.py one of them
    sessions.py    one worker's connection: how it begins, and what it says
    views.py       jobs, switches, what they hold and count, and plans as messages
    jobs.py        one job as a state machine without I/O; moves.py its way between ring and switch
                   specs.py what it is, events.py what has to be done;
                   jobstate.py who is in it, renewable.py how it goes on under a new generation
    renewer.py     begins that and writes it; renewals.py its steps, mourning.py what the dead had sent
    planning.py    what a job may ask for and what it gets; setup.py from joined workers to that
    admission.py   quotas, and whose turn it is; waitlist.py the jobs that wait
    keeper.py      the registry's half that has to do with switches:
      places.py    what jobs hold on them, given all or none
      links.py     which links and spines can be used, with probes.py
      upkeep.py    routes and trees moved to what can
    fabric.py      a switch, its slots, and whether it is ready for jobs
    allocator.py   who owns which slots, flow indexes and groups of a switch
    graph.py       leaves, spines, links    routes.py   a switch's own entries
    trees.py       a job's racks and ring, its entries on each switch; flows.py those of its connections
    switch.py      one switch under control: connected, written, read
    difference.py  the switch as found against the switch as wanted, and in which order entries come and go
    push.py        the program into a switch
    p4rt.py        P4Runtime                schema.py   entries to its messages and back
    store.py       what must survive a restart    serials.py   numbers modulo 2^32
    configuration.py  documents planned, applied, rolled back; desired.py what they mean (marked.py: with
                   lines, vocabulary.py: in P4Info's names), revisions.py

Started with `python -m controller --config FILE --db FILE --listen HOST:PORT`.
"""

from __future__ import annotations

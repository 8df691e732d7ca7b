"""The controller: pipeline, routes, slots and jobs of the P4 switches, over P4Runtime.

Each folder imports only from those below it:

    service/         the gRPC service, what it shows, metrics
    configuration/   an operator's document: planned, applied, rolled back
    orchestration/   what jobs ask for, carried out: registry.py puts the parts together
    database/        what must survive a restart
    switches/        one switch over P4Runtime: what it holds, what is to be changed, its program
    fabric/          leaves, spines and links, a job's racks and ring, and the entries for all that
    jobs/            one job as a state machine without I/O: states.py has the table
    slots/           who owns which slots of a switch, and who is to have some next
    api/             what agents and the command line say to the controller, and clients for it
    config.py        what the controller is told about the network; entries.py: a switch's entries as values

Started with `python -m controller --config FILE --db FILE --listen HOST:PORT`.
"""

from __future__ import annotations

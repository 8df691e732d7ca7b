"""The controller: pipeline, routes, slots and jobs of the P4 switches, over P4Runtime.

Each folder imports only from those below it:

    service/         the gRPC service, what it shows, metrics
    configuration/   an operator's document: planned, applied, rolled back
    orchestration/   carries out what jobs ask for: registry.py puts the parts together
    database/        what must survive a restart
    switches/        one switch over P4Runtime: its entries, changes to them, its program
    fabric/          leaves, spines and links, a job's racks and ring, and the entries for all of these
    jobs/            one job as a state machine without I/O: states.py has the table
    slots/           which job owns which slots of a switch, and which gets some next
    api/             the gRPC messages of agents and the command line, and clients for them
    config.py        the configuration: switches, hosts, defaults; entries.py: a switch's entries as values

Started with `python -m controller --config FILE --db FILE --listen HOST:PORT`.
"""

from __future__ import annotations

"""P4Runtime 1.x over gRPC for the embedded switch: a drop-in for that of `simple_switch_grpc`.

A request goes through these modules in this order:

    server.py       address, threads
    service.py      the six RPCs, streams, who is told what
    arbitration.py  who is primary
    roles.py        what a role may do
    device.py       pipelines: running, saved; one request at a time
    state.py        an entity to its handler
    tables.py, action_profiles.py, arrays.py, meters.py, value_sets.py, digests.py, replication.py
                    the entities, checked and kept

`ticker.py` wakes what has to happen by itself: idle timeouts (`idle.py`), digests that have waited, ports
that are watched. `rollback.py` takes an update back, `reconcile.py` carries the state to another pipeline.

`schema.py` reads P4Info, `program.py` what P4Info leaves out of the program, `keys.py` and `bytestrings.py`
turn values into messages and back, `packet_io.py` does so for packet-in and packet-out. `sdn_types.py` has
the types of values that controllers see in another form than packets, `sdn_keys.py` the matches of these.
"""

from __future__ import annotations

from soft_switch.server.server import DEFAULT_ADDRESS, MAX_REQUEST_BYTES, P4RuntimeServer, ServerTls

__all__ = ["DEFAULT_ADDRESS", "MAX_REQUEST_BYTES", "P4RuntimeServer", "ServerTls"]

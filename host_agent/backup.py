"""The interface on which workers reach each other without the switches: that which leads to the controller.

A rack's only switch carries everything of RoCE. When it is away for long, the job can go on by ring
all-reduce on the management network, over which all workers reach the controller anyway.
"""

from __future__ import annotations

import logging
import socket

from host_agent.errors import InterfaceError
from host_agent.netinfo import Interface, interface_towards, path_mtu_for

_LOG = logging.getLogger(__name__)


def find_backup(controller: str, roce: Interface) -> Interface | None:
    """The interface that leads to `controller` ("host:port"); None where it cannot stand in for `roce`.

    It has to be another one, an Ethernet interface, with room for the smallest path MTU, on which this
    process may send raw frames.
    """
    interface = interface_towards(controller)
    if interface is None or interface.name == roce.name:
        return None
    try:
        path_mtu_for(interface.mtu)
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as probe:
            probe.bind((interface.name, 0))
    except (InterfaceError, OSError) as error:
        _LOG.debug("%s is no backup for %s: %s", interface.name, roce.name, error)
        return None
    return interface

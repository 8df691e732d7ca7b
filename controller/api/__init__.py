"""The controller's gRPC service: messages, the agents' client, the command line's client."""

from __future__ import annotations

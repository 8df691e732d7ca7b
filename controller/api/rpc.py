"""The gRPC service, as controller.proto describes it: a client's methods, and a server's handlers."""

from __future__ import annotations

from typing import Any, Final

import grpc

from controller.api import controller_pb2 as pb

_SERVICE: Final = pb.DESCRIPTOR.services_by_name["Controller"]


class ControllerStub:
    """The client's side of the service: each method under its own name."""

    def __init__(self, channel: grpc.Channel) -> None:
        for method in _SERVICE.methods:
            make = channel.stream_stream if method.client_streaming else channel.unary_unary
            call = make(
                f"/{_SERVICE.full_name}/{method.name}",
                request_serializer=getattr(pb, method.input_type.name).SerializeToString,
                response_deserializer=getattr(pb, method.output_type.name).FromString,
            )
            setattr(self, method.name, call)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the controller has no method {name!r}")


def add_to_server(service: object, server: grpc.Server | grpc.aio.Server) -> None:
    """Register the methods that `service` implements with the server; the others stay UNIMPLEMENTED."""
    handlers = {}
    for method in _SERVICE.methods:
        handler = (
            grpc.stream_stream_rpc_method_handler
            if method.client_streaming
            else grpc.unary_unary_rpc_method_handler
        )
        if (behaviour := getattr(service, method.name, None)) is not None:
            handlers[method.name] = handler(
                behaviour,
                request_deserializer=getattr(pb, method.input_type.name).FromString,
                response_serializer=getattr(pb, method.output_type.name).SerializeToString,
            )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE.full_name, handlers),))

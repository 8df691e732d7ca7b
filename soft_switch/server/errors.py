"""Errors as P4Runtime gives them: one status for an RPC, one `p4.v1.Error` for each element of a batch."""

from __future__ import annotations

from collections.abc import Sequence

import grpc
from finsy.proto import p4r, rpc_status
from google.protobuf.any_pb2 import Any

# Named in every p4.v1.Error, so that a controller can tell whose words the message is.
ERROR_SPACE = "soft_switch"
# A receiver takes 8 KB of trailing metadata by default and drops all of it when there is more (P4Runtime
# spec, "gRPC Metadata Maximum Size"), so a batch with many failures keeps its codes and sheds its messages.
MAX_MESSAGE_BYTES = 4096


class P4RuntimeError(Exception):
    """A request that cannot be served: the gRPC code a client acts on and a sentence for its user."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    @property
    def number(self) -> int:
        """The code as `google.rpc.Code` counts it."""
        return code_number(self.code)


def code_number(code: grpc.StatusCode) -> int:
    """Return the number of a gRPC code in `google.rpc.Code`."""
    number: int = code.value[0]
    return number


def invalid(message: str) -> P4RuntimeError:
    """Return the error of a request that is malformed, whatever state the switch is in."""
    return P4RuntimeError(grpc.StatusCode.INVALID_ARGUMENT, message)


def malformed(error: P4RuntimeError, what: str) -> P4RuntimeError:
    """Name the value that an error inside an entry is about; one that does not fit is INVALID_ARGUMENT."""
    code = grpc.StatusCode.INVALID_ARGUMENT if error.code == grpc.StatusCode.OUT_OF_RANGE else error.code
    return P4RuntimeError(code, f"{what}{error.message}")


def not_found(message: str) -> P4RuntimeError:
    """Return the error of a missing entity, device or role."""
    return P4RuntimeError(grpc.StatusCode.NOT_FOUND, message)


def already_exists(message: str) -> P4RuntimeError:
    """Return the error of an INSERT of what is there already."""
    return P4RuntimeError(grpc.StatusCode.ALREADY_EXISTS, message)


def denied(message: str) -> P4RuntimeError:
    """Return the error of a client that may not do this: not primary, or the entity is constant."""
    return P4RuntimeError(grpc.StatusCode.PERMISSION_DENIED, message)


def unimplemented(message: str) -> P4RuntimeError:
    """Return the error of a part of P4Runtime that this switch does not have."""
    return P4RuntimeError(grpc.StatusCode.UNIMPLEMENTED, message)


def exhausted(message: str) -> P4RuntimeError:
    """Return the error of a lack of room."""
    return P4RuntimeError(grpc.StatusCode.RESOURCE_EXHAUSTED, message)


def out_of_range(message: str) -> P4RuntimeError:
    """Return the error of a number beyond the array or the bits it is meant for."""
    return P4RuntimeError(grpc.StatusCode.OUT_OF_RANGE, message)


def batch_status(rpc: str, results: Sequence[P4RuntimeError | None]) -> rpc_status.Status | None:
    """Return the status of a batch, None when all went well.

    The overall code is UNKNOWN and `details` has one `p4.v1.Error` for each element, in the order of the
    request, OK for those that succeeded (P4Runtime spec, "Error Reporting").
    """
    failed = [(index, error) for index, error in enumerate(results) if error is not None]
    if not failed:
        return None
    first, error = failed[0]
    status = rpc_status.Status(
        code=code_number(grpc.StatusCode.UNKNOWN),
        message=f"{rpc} failure: {len(failed)} of {len(results)} failed, "
        f"first number {first}: {error.code.name}: {error.message}",
    )
    room = MAX_MESSAGE_BYTES
    for result in results:
        detail = Any()
        if result is None:
            detail.Pack(p4r.Error())
        else:
            room -= len(result.message)
            message = result.message if room >= 0 else ""
            detail.Pack(p4r.Error(canonical_code=result.number, message=message, space=ERROR_SPACE))
        status.details.append(detail)
    return status

"""Both neighbours of one endpoint, played by hand: frames built and read by the Python wire formats."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from host_agent.transport import ElementType, Endpoint, Failure, Operation, SwitchOp, TransportConfig
from host_agent.wire.aggregation import CHUNK_BYTES, SUMMED_BIT, AggregationHeader, Flags, Reduction
from host_agent.wire.headers import (
    ACK_SYNDROME,
    NAK_SEQUENCE_ERROR,
    RNR_NAK_SYNDROME,
    Aeth,
    Bth,
    Ethernet,
    IPv4,
    Opcode,
    RocePacket,
    Udp,
    parse_mac,
)
from tests.host_agent.transport.fabric import ring_configs

MS = 1_000_000


def sum_of(
    send: NDArray[np.int32], receive: NDArray[np.int32] | None = None, *, collective: int = 1
) -> Operation:
    """Return an int32 SUM, into `receive` or back into `send`."""
    return Operation(
        switch_op=SwitchOp.SUM,
        send=send,
        receive=send if receive is None else receive,
        element_type=ElementType.INT32,
        reduction=Reduction.SUM,
        collective=collective,
        total_elements=send.size,
    )


def passing(
    send: NDArray[np.uint8] | None,
    receive: NDArray[np.uint8] | None,
    *,
    collective: int = 1,
    cut_elements: int | None = None,
) -> Operation:
    """Return an operation that passes raw bytes to the successor while others come from the predecessor."""
    return Operation(
        switch_op=SwitchOp.PASS,
        send=send,
        receive=receive,
        element_type=ElementType.RAW,
        reduction=Reduction.NONE,
        collective=collective,
        total_elements=0,
        cut_elements=cut_elements,
    )


@dataclass
class Peer:
    """An endpoint of rank 0 of 2, and the time."""

    endpoint: Endpoint
    now: int = MS

    @classmethod
    def of(cls, **changes: object) -> Peer:
        """Return a peer of two ranks, path MTU 256, P = 4, W = 2 unless changed; see `ring_configs`."""
        return cls(Endpoint(ring_configs(2, **changes)[0]))  # type: ignore[arg-type]

    @property
    def config(self) -> TransportConfig:
        return self.endpoint.config

    def poll(self, max_frames: int = 64) -> list[RocePacket]:
        """Return what the endpoint sends now, each packet with a right ICRC."""
        packets = [RocePacket.parse(frame) for frame in self.endpoint.poll(self.now, max_frames)]
        assert all(packet.icrc_ok() for packet in packets)
        return packets

    def psns(self) -> list[int]:
        """Return the PSNs of the data packets that the endpoint sends now."""
        return [packet.bth.psn for packet in self.poll() if packet.aeth is None]

    def answers(self) -> list[tuple[int, int]]:
        """Return (syndrome, PSN) of each acknowledgement that the endpoint sends now."""
        return [(packet.aeth.syndrome, packet.bth.psn) for packet in self.poll() if packet.aeth is not None]

    def give(self, *frames: bytes) -> None:
        for frame in frames:
            self.endpoint.receive(frame, self.now)

    def until_timer(self) -> int:
        """Go on to the next timer's time, and return how long that takes in ns."""
        timeout = self.endpoint.next_timeout_ns()
        assert timeout is not None
        waited, self.now = timeout - self.now, timeout
        return waited

    def acknowledge(self, syndrome: int, psn: int, *, msn: int = 0, run: int = 0) -> None:
        config = self.config
        self.give(
            RocePacket(
                ethernet=Ethernet(dst=parse_mac(config.mac), src=parse_mac(config.successor.mac)),
                ip=IPv4(src=config.successor.ip, dst=config.ip, total_length=0),
                udp=Udp(length=0),
                bth=Bth(opcode=Opcode.ACKNOWLEDGE, dest_qp=config.qpn_out, psn=psn, reserved=run),
                aeth=Aeth(syndrome=syndrome, msn=msn),
            ).build()
        )

    def ack(self, psn: int) -> None:
        self.acknowledge(ACK_SYNDROME, psn)

    def nak(self, psn: int) -> None:
        self.acknowledge(NAK_SEQUENCE_ERROR, psn)

    def selective_nak(self, psn: int, arrived: int, *, run: int = 0) -> None:
        """Give a selective NAK: `psn` is missing, `arrived` and `run` packets right before it are there."""
        self.acknowledge(NAK_SEQUENCE_ERROR, psn, msn=arrived, run=run)

    def rnr(self, psn: int, timer: int) -> None:
        self.acknowledge(RNR_NAK_SYNDROME | timer, psn)

    def data(
        self,
        psn: int,
        payload: bytes,
        *,
        opcode: Opcode = Opcode.SEND_ONLY,
        ack_req: bool = True,
        summed: bool = True,
    ) -> bytes:
        """Return a frame of the predecessor's flow, made by a switch (`summed`) or by the predecessor."""
        config = self.config
        return RocePacket(
            ethernet=Ethernet(dst=parse_mac(config.mac), src=parse_mac(config.predecessor.mac)),
            ip=IPv4(src=config.predecessor.ip, dst=config.ip, total_length=0),
            udp=Udp(length=0),
            bth=Bth(
                opcode=opcode,
                dest_qp=config.qpn_in,
                psn=psn,
                ack_req=ack_req,
                reserved=SUMMED_BIT if summed else 0,
            ),
            payload=payload,
        ).build()

    def message(self, psn: int, header: AggregationHeader, data: bytes) -> list[bytes]:
        """Return the frames of one message of the predecessor's flow, from PSN `psn` on."""
        mtu = self.config.path_mtu
        payload = header.pack() + data + bytes(-len(data) % CHUNK_BYTES)
        parts = [payload[start : start + mtu] for start in range(0, len(payload), mtu)]
        frames = []
        for index, part in enumerate(parts):
            first, last = index == 0, index == len(parts) - 1
            opcode = {
                (True, True): Opcode.SEND_ONLY,
                (True, False): Opcode.SEND_FIRST,
                (False, False): Opcode.SEND_MIDDLE,
                (False, True): Opcode.SEND_LAST,
            }[first, last]
            frames.append(self.data((psn + index) % 2**24, part, opcode=opcode, ack_req=last))
        return frames

    def header(self, message: int, elements: int, **changes: object) -> AggregationHeader:
        """Return the header of a result of `sum_of` from the predecessor's flow; one message a tensor."""
        mtu = self.config.path_mtu
        payload = CHUNK_BYTES + -(-4 * elements // CHUNK_BYTES) * CHUNK_BYTES
        header = AggregationHeader(
            job=self.config.job_id,
            generation=self.config.generation,
            message=message,
            rank=(self.config.rank - 1) % self.config.world_size,
            op=SwitchOp.SUM,
            packets=max(-(-payload // mtu), 2 if mtu == CHUNK_BYTES else 1),
            element_type=ElementType.INT32,
            reduction=Reduction.SUM,
            elements=elements,
            collective=1,
            tensor_elements=elements,
            flags=Flags.RESULT,
        )
        return replace(header, **changes)  # type: ignore[arg-type]

    def failure(self) -> Failure:
        """Return the failure among what happened since the last call."""
        failure = self.failure_if_any()
        assert failure is not None
        return failure

    def failure_if_any(self) -> Failure | None:
        """Return the same, or None if there was none."""
        return next((event.failure for event in self.endpoint.events() if event.failure), None)

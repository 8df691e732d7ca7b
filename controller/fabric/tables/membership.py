"""Membership: the packets from hosts that belong to a job, and the senders allowed to its queue pairs."""

from __future__ import annotations

from controller.entries import Entry, TableEntry, table_entry
from controller.fabric.tables.tree import sums
from controller.jobs.specs import Member, Plan
from controller.slots.allocator import Region

FLOW = "SwitchIngress.membership.flow"
MEMBER_QP = "SwitchIngress.membership.member_qp"
RNR_NAK = 0x20  # AETH syndrome, with a timer in the lower five bits


def data_flow(
    port: int,
    sender: Member,
    receiver: Member,
    plan: Plan,
    region: Region,
    *,
    count: int,
    position: int,
    check_icrc: bool,
    rnr_timer: int,
    exit_position: int | None,
) -> TableEntry:
    """Return the entry for data of one of `count` workers.

    `exit_position`: the position of the worker whose flow leaves the rack.
    """
    return table_entry(
        FLOW,
        _key(port, sender, receiver, receiver.qpn_in),
        "SwitchIngress.membership.data_flow",
        flow=region.flow(position),
        job=plan.job_id,
        generation=plan.generation,
        rank=sender.rank,
        rank_bit=1 << position,
        **sums(plan, region, count=count, position=position),
        check_icrc=int(check_icrc),
        first_psn=sender.psn_out,
        ack_qp=sender.qpn_out,
        rnr_syndrome=RNR_NAK | rnr_timer if sender.rnr_nak else 0,
        two_level=int(exit_position is not None),
        exit_psn_shift=8 * (exit_position or 0),
    )


def ack_flow(port: int, sender: Member, receiver: Member, plan: Plan, flow: int) -> TableEntry:
    """Return the entry for ACKs from `receiver` of packets from `sender`."""
    return table_entry(
        FLOW,
        _key(port, receiver, sender, sender.qpn_out),
        "SwitchIngress.membership.ack_flow",
        flow=flow,
        generation=plan.generation,
        track=int(sender.rnr_nak),
        first_psn=sender.psn_out,
    )


def pass_on(port: int, sender: Member, receiver: Member, *, acks: bool = False) -> TableEntry:
    """Return the entry for data that enters the rack, or for its ACKs, which leave.

    The flow itself is on the sender's own leaf.
    """
    ends = (receiver, sender, sender.qpn_out) if acks else (sender, receiver, receiver.qpn_in)
    return table_entry(FLOW, _key(port, *ends), "SwitchIngress.membership.pass_on")


def guards(flow: int, sender: Member, receiver: Member) -> list[Entry]:
    """Return the entries by which both QPs of a flow take packets only from its two ends."""
    return [
        table_entry(
            MEMBER_QP,
            {"dst_ip": int(ip), "dest_qp": qpn},
            "SwitchIngress.membership.not_from_its_peer",
            of_flow=flow,
        )
        for ip, qpn in ((receiver.ip, receiver.qpn_in), (sender.ip, sender.qpn_out))
    ]


def _key(port: int, source: Member, destination: Member, qpn: int) -> dict[str, int | tuple[int, int]]:
    return {
        "ingress_port": port,
        "src_ip": int(source.ip),
        "dst_ip": int(destination.ip),
        "dest_qp": qpn,
    }

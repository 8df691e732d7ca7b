"""Arbitration: who is primary, who is told, what a stream ends with. Over gRPC, with real streams."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
from finsy.proto import p4r, rpc_code
from google.protobuf.any_pb2 import Any

from soft_switch.server.service import MAX_STREAMS

if TYPE_CHECKING:
    from tests.soft_switch.server.conftest import Controller, Switch

HIGH = 1 << 64  # an election id that needs the upper half of its 128 bits


def test_the_first_controller_is_primary(switch: Switch) -> None:
    controller = switch.connect()
    controller.bid(HIGH + 5)
    assert controller.verdict() == ("OK", HIGH + 5)


def test_a_lower_election_id_is_backup_and_the_primary_is_not_told(switch: Switch) -> None:
    first, second = switch.connect(), switch.connect()
    first.become_primary(HIGH)
    second.bid(HIGH - 1)
    assert second.verdict() == ("ALREADY_EXISTS", HIGH)
    assert first.quiet()


def test_a_higher_election_id_takes_over_and_both_are_told(switch: Switch) -> None:
    first, second = switch.connect(), switch.connect()
    first.become_primary(1)
    second.bid(2)
    assert first.verdict() == ("ALREADY_EXISTS", 2)
    assert second.verdict() == ("OK", 2)


def test_the_same_controller_can_raise_its_id(switch: Switch) -> None:
    first, second = switch.connect(), switch.connect()
    first.become_primary(1)
    second.become_primary(2)
    assert first.verdict() == ("ALREADY_EXISTS", 2)
    first.bid(3)
    assert first.verdict() == ("OK", 3)
    assert second.verdict() == ("ALREADY_EXISTS", 3)


def test_an_unset_election_id_is_never_primary(switch: Switch) -> None:
    controller = switch.connect()
    controller.bid(None)
    assert controller.verdict() == ("NOT_FOUND", None)
    other = switch.connect()
    other.become_primary(0)
    assert controller.verdict() == ("ALREADY_EXISTS", 0)


def test_several_controllers_without_an_election_id_can_be_live(switch: Switch) -> None:
    for _ in range(2):
        controller = switch.connect()
        controller.bid(None)
        assert controller.verdict() == ("NOT_FOUND", None)


def test_an_election_id_in_use_ends_the_stream(switch: Switch) -> None:
    first, second = switch.connect(), switch.connect()
    first.become_primary(7)
    second.bid(7)
    refusal = second.ended()
    assert refusal.code == "INVALID_ARGUMENT"
    assert refusal.message.startswith("Election id already exists: 7 is used by another live controller")


def test_a_new_election_id_in_use_ends_the_stream_and_the_session(switch: Switch) -> None:
    first, second = switch.connect(), switch.connect()
    first.become_primary(7)
    second.become_primary(8)
    assert first.verdict() == ("ALREADY_EXISTS", 8)
    second.bid(7)
    assert second.ended().code == "INVALID_ARGUMENT"
    assert first.verdict() == ("OK", 7)


def test_repeating_the_same_election_id_is_no_conflict(switch: Switch) -> None:
    controller = switch.connect()
    controller.become_primary(7)
    controller.become_primary(7)


def test_an_unknown_device_ends_the_stream(switch: Switch) -> None:
    controller = switch.connect(device_id=9)
    controller.bid(1)
    refusal = controller.ended()
    assert (refusal.code, refusal.message) == ("NOT_FOUND", "there is no device 9 here, this is device 1")


def test_another_device_later_ends_the_stream(switch: Switch) -> None:
    controller = switch.connect()
    controller.become_primary()
    controller.device_id = 9
    controller.bid(1)
    refusal = controller.ended()
    assert (refusal.code, refusal.message[:18]) == ("FAILED_PRECONDITION", "Invalid device id:")


def test_another_role_later_ends_the_stream(switch: Switch) -> None:
    controller = switch.connect()
    controller.become_primary()
    controller.role = "other"
    controller.bid(1)
    refusal = controller.ended()
    assert (refusal.code, refusal.message) == (
        "FAILED_PRECONDITION",
        "this stream has role '', it cannot change to 'other': open another",
    )


def test_roles_have_primaries_of_their_own(switch: Switch, config: p4r.ForwardingPipelineConfig) -> None:
    default, named = switch.connect(), switch.connect(role="routes")
    default.become_primary(5)
    named.become_primary(5)
    assert default.quiet()
    named.set_config(config=config)
    default.write()
    named.election_id = 4
    refusal = named.refused(named.write)
    assert refusal.code == "PERMISSION_DENIED"
    assert refusal.message.startswith("Not primary of role 'routes'")


def test_a_write_for_a_role_nobody_has_taken_is_not_found(controller: Controller) -> None:
    controller.role = "nobody"
    refusal = controller.refused(controller.write)
    assert refusal.code == "NOT_FOUND"
    assert refusal.message.startswith("there is no role 'nobody'")


def test_when_the_primary_leaves_the_next_is_promoted(switch: Switch) -> None:
    controllers = [switch.connect() for _ in range(3)]
    for number, controller in enumerate(controllers):
        controller.become_primary(number)
        for earlier in controllers[:number]:
            assert earlier.verdict() == ("ALREADY_EXISTS", number)
    controllers[2].close()
    assert controllers[0].verdict() == ("ALREADY_EXISTS", 1)
    assert controllers[1].verdict() == ("OK", 1)
    controllers[1].half_close()
    assert controllers[0].verdict() == ("OK", 0)


def test_a_backup_that_leaves_is_not_announced(switch: Switch) -> None:
    first, second = switch.connect(), switch.connect()
    first.become_primary(2)
    second.bid(1)
    assert second.verdict() == ("ALREADY_EXISTS", 2)
    second.half_close()
    with pytest.raises(EOFError):
        second.receive()
    assert first.quiet()


def test_an_election_id_is_free_again_when_its_controller_has_left(switch: Switch) -> None:
    first = switch.connect()
    first.become_primary(3)
    first.half_close()
    with pytest.raises(EOFError):
        first.receive()
    switch.connect().become_primary(3)


def test_strictly_nobody_is_promoted(strict_switch: Switch) -> None:
    first, second, third = (strict_switch.connect() for _ in range(3))
    first.become_primary(2)
    second.bid(1)
    assert second.verdict() == ("ALREADY_EXISTS", 2)
    first.close()
    assert second.verdict() == ("NOT_FOUND", 2)
    second.bid(2)  # the highest id ever seen is enough
    assert second.verdict() == ("OK", 2)
    third.bid(1)
    assert third.verdict() == ("ALREADY_EXISTS", 2)


def test_strictly_a_primary_can_step_down(strict_switch: Switch) -> None:
    first, second = strict_switch.connect(), strict_switch.connect()
    first.become_primary(5)
    second.bid(4)
    assert second.verdict() == ("ALREADY_EXISTS", 5)
    first.bid(3)
    assert first.verdict() == ("NOT_FOUND", 5)
    assert second.verdict() == ("NOT_FOUND", 5)


def test_too_many_controllers_in_a_role(switch: Switch) -> None:
    for number in range(16):
        switch.connect().become_primary(number)
    late = switch.connect()
    late.bid(99)
    refusal = late.ended()
    assert (refusal.code, refusal.message) == (
        "RESOURCE_EXHAUSTED",
        "Too many connections: 16 controllers are live",
    )


def test_too_many_streams(switch: Switch) -> None:
    opened = []
    for number in range(MAX_STREAMS):
        controller = switch.connect(role=f"role {number}")
        controller.become_primary()
        opened.append(controller)
    late = switch.connect()
    late.bid(1)
    refusal = late.ended()
    assert (refusal.code, refusal.message) == (
        "RESOURCE_EXHAUSTED",
        f"Too many connections: {MAX_STREAMS} streams are open",
    )
    opened[0].half_close()
    with pytest.raises(EOFError):
        opened[0].receive()
    again = switch.connect()
    again.become_primary(1)


def test_only_the_primary_may_write(switch: Switch, controller: Controller) -> None:
    backup = switch.connect()
    backup.bid(0)
    assert backup.verdict() == ("ALREADY_EXISTS", 1)
    refusal = backup.refused(backup.write)
    assert refusal.code == "PERMISSION_DENIED"
    assert refusal.message.startswith("Not primary: election id 0 is not that of")
    backup.election_id = None
    refusal = backup.refused(backup.write)
    assert refusal.code == "PERMISSION_DENIED"
    assert refusal.message.startswith("Not primary: the request has no election id")


def test_without_a_primary_nobody_may_write(switch: Switch) -> None:
    stranger = switch.connect()
    stranger.election_id = 1
    refusal = stranger.refused(stranger.write)
    assert refusal.code == "PERMISSION_DENIED"
    assert refusal.message.startswith("Not primary: there is no primary")


def test_a_new_primary_waits_for_the_old_ones_write(switch: Switch, controller: Controller) -> None:
    """The old primary is told at once; the new one when the write in progress is done, and not before."""
    entry = p4r.TableEntry(
        table_id=0x02000001, action=p4r.TableAction(action=p4r.Action(action_id=0x01000002))
    )
    switch.plane.gate.clear()
    writer = threading.Thread(target=controller.insert, kwargs={"table_entry": entry})
    writer.start()
    assert switch.plane.waiting.wait(10)
    successor = switch.connect()
    successor.bid(2)
    assert controller.verdict() == ("ALREADY_EXISTS", 2)
    assert successor.quiet()
    switch.plane.gate.set()
    assert successor.verdict() == ("OK", 2)
    writer.join()
    assert len(successor.read(p4r.Entity(table_entry=p4r.TableEntry()))) > 0
    assert controller.refused(controller.write).code == "PERMISSION_DENIED"


def test_takeover_under_load_loses_no_write(switch: Switch, controller: Controller) -> None:
    """Two controllers take turns being primary and insert all the time: what was acknowledged is there."""
    other = switch.connect()
    other.bid(0)
    assert other.verdict() == ("ALREADY_EXISTS", 1)
    written: set[int] = set()
    denied: list[str] = []

    def insert_many(client: Controller, numbers: range) -> None:
        for number in numbers:
            match = [
                p4r.FieldMatch(field_id=1, exact=p4r.FieldMatch.Exact(value=number.to_bytes(2, "big"))),
                p4r.FieldMatch(field_id=2, exact=p4r.FieldMatch.Exact(value=b"\1")),
            ]
            action = p4r.TableAction(action=p4r.Action(action_id=0x01445B37))
            entry = p4r.TableEntry(table_id=0x02000002, match=match, action=action)
            update = p4r.Update(type=p4r.Update.INSERT, entity=p4r.Entity(table_entry=entry))
            try:
                client.write(update)
            except Exception as refusal:  # noqa: BLE001 - Refusal lives in conftest
                denied.append(str(refusal))
            else:
                written.add(number)

    threads = [
        threading.Thread(target=insert_many, args=(controller, range(150))),
        threading.Thread(target=insert_many, args=(other, range(150, 300))),
    ]
    for thread in threads:
        thread.start()
    for election_id in range(2, 20):
        (other if election_id % 2 else controller).bid(election_id)
    for thread in threads:
        thread.join()
    entries = controller.read(p4r.Entity(table_entry=p4r.TableEntry(table_id=0x02000002)))
    numbers = {
        int.from_bytes(match.exact.value, "big")
        for entity in entries
        for match in entity.table_entry.match
        if match.field_id == 1
    }
    assert numbers == written
    assert len(written) + len(denied) == 300
    assert all(text.startswith("PERMISSION_DENIED: Not primary") for text in denied)
    assert len(switch.plane.entries["ingress.vlans"]) == len(written)


def test_garbage_on_the_stream_is_answered(controller: Controller) -> None:
    controller.send()
    error = controller.receive().error
    assert (error.canonical_code, error.message) == (rpc_code.INVALID_ARGUMENT, "the stream message is empty")
    controller.send(other=Any(type_url="type.googleapis.com/x.Y"))
    error = controller.receive().error
    assert error.canonical_code == rpc_code.UNIMPLEMENTED
    assert error.other.other.type_url == "type.googleapis.com/x.Y"
    controller.send(digest_ack=p4r.DigestListAck(digest_id=1, list_id=2))
    error = controller.receive().error
    assert error.canonical_code == rpc_code.INVALID_ARGUMENT
    assert error.digest_list_ack.digest_list_ack.list_id == 2
    assert error.message.startswith("there is no digest with id 0x00000001")

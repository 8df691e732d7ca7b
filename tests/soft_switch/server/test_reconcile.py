"""RECONCILE_AND_COMMIT with another program: what is kept, and when that is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from finsy.proto import p4d, p4r

from tests.soft_switch.server.features import MIRRORS, STATIONS, call, mirror, station
from tests.soft_switch.server.written import BEFORE, DEFAULT, WILDCARDS

if TYPE_CHECKING:
    from tests.soft_switch.server.conftest import Controller, FakePlane

    MakeConfig = Callable[..., p4r.ForwardingPipelineConfig]

ROUTES, PRESET, DROP = 0x02000001, 0x02000006, 0x01000002
EVERYTHING = [*WILDCARDS, p4r.Entity(table_entry=p4r.TableEntry(is_default_action=True))]


def again(config: p4r.ForwardingPipelineConfig) -> p4r.ForwardingPipelineConfig:
    """Return another program, which differs in nothing but a remark."""
    other = p4r.ForwardingPipelineConfig()
    other.CopyFrom(config)
    other.p4_device_config = json.dumps({**json.loads(config.p4_device_config), "remark": 1}).encode()
    return other


def without_table(config: p4r.ForwardingPipelineConfig, table_id: int) -> p4r.ForwardingPipelineConfig:
    other = again(config)
    kept = [table for table in config.p4info.tables if table.preamble.id != table_id]
    del other.p4info.tables[:]
    other.p4info.tables.extend(kept)
    return other


def test_everything_a_controller_wrote_is_kept(
    learner: Controller, plane: FakePlane, features: p4r.ForwardingPipelineConfig
) -> None:
    learner.write(*BEFORE, p4r.Update(type=p4r.Update.MODIFY, entity=p4r.Entity(table_entry=DEFAULT)))
    before = learner.read(*EVERYTHING)
    learner.set_config("RECONCILE_AND_COMMIT", again(features))
    assert plane.loads == 2
    assert learner.read(*EVERYTHING) == before
    assert {len(entries) for entries in plane.entries.values()} == {0, 2}
    assert plane.groups.keys() == plane.sessions.keys() == {1}
    assert len(plane.value_sets["parse.tagged"]) == 1


def test_preinitialized_entries_counters_and_registers(
    controller: Controller, config: p4r.ForwardingPipelineConfig
) -> None:
    preset = p4r.Entity(table_entry=p4r.TableEntry(table_id=PRESET))
    first, second = (entity.table_entry for entity in controller.read(preset))
    controller.delete(table_entry=first)
    second.action.CopyFrom(
        p4r.TableAction(
            action=p4r.Action(action_id=0x01000005, params=[p4r.Action.Param(param_id=1, value=b"\7")])
        )
    )
    controller.modify(table_entry=second)
    controller.insert(
        table_entry=p4r.TableEntry(
            table_id=ROUTES, action=call(DROP), counter_data=p4r.CounterData(packet_count=3)
        )
    )
    register = p4r.RegisterEntry(register_id=0x16000002, data=p4d.P4Data(bitstring=b"\xff"))
    controller.modify(register_entry=register)
    counter = p4r.CounterEntry(counter_id=0x12000001, data=p4r.CounterData(byte_count=9))
    controller.modify(counter_entry=counter)
    before = controller.read(*EVERYTHING)
    controller.set_config("RECONCILE_AND_COMMIT", again(config))
    assert controller.read(*EVERYTHING) == before


def refused(controller: Controller, config: p4r.ForwardingPipelineConfig) -> str:
    return str(controller.refused(controller.set_config, "RECONCILE_AND_COMMIT", config))


def test_a_table_that_is_gone(
    learner: Controller, plane: FakePlane, features: p4r.ForwardingPipelineConfig
) -> None:
    learner.insert(table_entry=station(1))
    learner.insert(table_entry=mirror(1, 1))
    text = "INVALID_ARGUMENT: the state cannot be kept: the new program has no table ingress.mirrors"
    assert refused(learner, without_table(features, MIRRORS)) == text
    assert plane.loads == 1
    found = learner.read(p4r.Entity(table_entry=p4r.TableEntry()))
    assert [entity.table_entry for entity in found] == [station(1), mirror(1, 1)]
    learner.delete(table_entry=mirror(1, 1))
    learner.set_config("RECONCILE_AND_COMMIT", without_table(features, MIRRORS))
    found = learner.read(p4r.Entity(table_entry=p4r.TableEntry()))
    assert [entity.table_entry for entity in found] == [station(1)]


def shrink(config: p4r.ForwardingPipelineConfig) -> None:
    program = json.loads(config.p4_device_config)
    (table,) = [
        table
        for pipeline in program["pipelines"]
        for table in pipeline["tables"]
        if table["name"] == "ingress.stations"
    ]
    table["max_size"] = 1
    config.p4_device_config = json.dumps(program).encode()


def rename(config: p4r.ForwardingPipelineConfig) -> None:
    for table in config.p4info.tables:
        if table.preamble.id in (STATIONS, MIRRORS):
            table.preamble.id ^= STATIONS ^ MIRRORS


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (shrink, "the state cannot be kept: table ingress.stations is full: it holds 1 entries"),
        (rename, "the state cannot be kept: id 0x02000001 is table ingress.stations in the running pipeline, "
                 "table ingress.mirrors in the new one"),
    ],
)  # fmt: skip
def test_what_does_not_fit_changes_nothing(
    learner: Controller,
    plane: FakePlane,
    features: p4r.ForwardingPipelineConfig,
    change: Callable[[p4r.ForwardingPipelineConfig], None],
    text: str,
) -> None:
    learner.insert(table_entry=station(1))
    learner.insert(table_entry=station(2))
    other = again(features)
    change(other)
    if change is rename:  # the JSON names tables, so the ids may be anybody's
        del other.p4info.direct_meters[:]
        del other.p4info.direct_counters[:]
    assert refused(learner, other) == f"INVALID_ARGUMENT: {text}"
    assert plane.loads == 1
    found = learner.read(p4r.Entity(table_entry=p4r.TableEntry()))
    assert [entity.table_entry for entity in found] == [station(1), station(2)]


def test_digests_go_on(learner: Controller, plane: FakePlane, features: p4r.ForwardingPipelineConfig) -> None:
    (digest,) = [digest for digest in features.p4info.digests if digest.preamble.name == "learn_t"]
    learner.insert(digest_entry=p4r.DigestEntry(digest_id=digest.preamble.id))
    learner.set_config("RECONCILE_AND_COMMIT", again(features))
    plane.learn("learn_t", (1, 1))
    assert learner.receive().digest.digest_id == digest.preamble.id

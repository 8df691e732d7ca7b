"""Meters: their configurations, of arrays and of table entries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from finsy.proto import p4i, p4r

from soft_switch.description import MeterConfig
from tests.soft_switch.server.features import METER, MIRRORS, STATIONS, station, why

if TYPE_CHECKING:
    from tests.soft_switch.server.conftest import Controller, FakePlane

NAME = "ingress.per_port"
CONFIG = p4r.MeterConfig(cir=100, cburst=10, pir=200, pburst=20)
STORED = MeterConfig(100, 10, 200, 20)


def cell(index: int | None = None, **fields: Any) -> p4r.MeterEntry:
    entry = p4r.MeterEntry(meter_id=METER, **fields)
    if index is not None:
        entry.index.index = index
    return entry


def read(controller: Controller, **entity: Any) -> list[Any]:
    kind = next(iter(entity))
    return [getattr(answer, kind) for answer in controller.read(p4r.Entity(**entity))]


def test_one_cell(learner: Controller, plane: FakePlane) -> None:
    learner.modify(meter_entry=cell(2, config=CONFIG))
    assert plane.meters == {(NAME, 2): STORED}
    assert read(learner, meter_entry=cell(2)) == [cell(2, config=CONFIG)]
    learner.modify(meter_entry=cell(2))
    assert plane.meters == {(NAME, 2): None}
    assert read(learner, meter_entry=cell(2)) == [cell(2)]


def test_all_cells(learner: Controller, plane: FakePlane) -> None:
    learner.modify(meter_entry=cell(config=CONFIG))
    assert plane.meters == {(NAME, index): STORED for index in range(4)}
    learner.modify(meter_entry=cell(1))
    configs = [CONFIG, None, CONFIG, CONFIG]
    expected = [cell(index, config=config) for index, config in enumerate(configs)]
    assert read(learner, meter_entry=cell()) == expected
    assert read(learner, meter_entry=p4r.MeterEntry()) == expected


def test_minus_one_is_the_default_as_in_simple_switch_grpc(learner: Controller, plane: FakePlane) -> None:
    learner.modify(meter_entry=cell(0, config=p4r.MeterConfig(cir=-1, cburst=-1, pir=-1, pburst=-1)))
    assert plane.meters == {(NAME, 0): None}


def test_a_meter_that_lets_nothing_pass(learner: Controller, plane: FakePlane) -> None:
    learner.modify(meter_entry=cell(0, config=p4r.MeterConfig()))
    assert plane.meters == {(NAME, 0): MeterConfig(0, 0, 0, 0)}
    assert read(learner, meter_entry=cell(0)) == [cell(0, config=p4r.MeterConfig())]


def broken(**fields: int) -> p4r.MeterEntry:
    config = p4r.MeterConfig()
    config.CopyFrom(CONFIG)
    for name, value in fields.items():
        setattr(config, name, value)
    return cell(0, config=config)


@pytest.mark.parametrize(
    ("kind", "entry", "text"),
    [
        ("insert", cell(0), "INVALID_ARGUMENT: meter ingress.per_port: cells are always there"),
        ("delete", cell(0), "INVALID_ARGUMENT: meter ingress.per_port: cells are always there"),
        ("modify", cell(4), "OUT_OF_RANGE: meter ingress.per_port has 4 cells, index 4"),
        ("modify", cell(-1), "INVALID_ARGUMENT: meter ingress.per_port: index -1 is negative"),
        ("modify", broken(cir=-1), "INVALID_ARGUMENT: meter ingress.per_port: cir is -1, it cannot"),
        ("modify", broken(pburst=-2), "INVALID_ARGUMENT: meter ingress.per_port: pburst is -2, it cannot"),
        ("modify", broken(pir=99), "INVALID_ARGUMENT: meter ingress.per_port: pir 99 is less than cir 100"),
        ("modify", broken(eburst=1), "INVALID_ARGUMENT: meter ingress.per_port has no excess burst"),
        ("modify", cell(0, counter_data=p4r.MeterCounterData()), "UNIMPLEMENTED: meters do not count"),
        ("modify", p4r.MeterEntry(), "INVALID_ARGUMENT: the meter id is missing"),
        (
            "modify",
            p4r.MeterEntry(meter_id=STATIONS),
            "INVALID_ARGUMENT: id 0x02000001 is not a meter, it is",
        ),
        (
            "modify",
            p4r.MeterEntry(meter_id=0x14FFFFFF),
            "INVALID_ARGUMENT: there is no meter with id 0x14fff",
        ),
        ("modify", p4r.MeterEntry(meter_id=0x15000001), "INVALID_ARGUMENT: id 0x15000001 is not a meter, it"),
    ],
)
def test_a_bad_write(
    learner: Controller, plane: FakePlane, kind: str, entry: p4r.MeterEntry, text: str
) -> None:
    assert why(learner, kind, meter_entry=entry).startswith(text)
    assert plane.meters == {}


def test_a_bad_read(learner: Controller) -> None:
    refusal = learner.refused(
        learner.read,
        p4r.Entity(meter_entry=cell(4)),
        p4r.Entity(meter_entry=p4r.MeterEntry(meter_id=1)),
        p4r.Entity(meter_entry=cell(0, counter_data=p4r.MeterCounterData())),
        p4r.Entity(meter_entry=cell(0)),
    )
    assert refusal.codes == ["OUT_OF_RANGE", "INVALID_ARGUMENT", "UNIMPLEMENTED", "OK"]


@pytest.mark.parametrize(
    ("kind", "config", "code"),
    [
        ("SINGLE_RATE_TWO_COLOR", p4r.MeterConfig(cir=5, cburst=6, pir=5, pburst=6), None),
        ("SINGLE_RATE_TWO_COLOR", p4r.MeterConfig(cir=5, cburst=6, pir=6, pburst=6), "INVALID_ARGUMENT"),
        ("SINGLE_RATE_TWO_COLOR", p4r.MeterConfig(cir=5, cburst=6, pir=5, pburst=6, eburst=1),
         "INVALID_ARGUMENT"),
        ("SINGLE_RATE_THREE_COLOR", p4r.MeterConfig(cir=5, cburst=6, pir=5, pburst=6), None),
        ("SINGLE_RATE_THREE_COLOR", p4r.MeterConfig(cir=5, cburst=6, pir=5, pburst=7), "INVALID_ARGUMENT"),
        ("SINGLE_RATE_THREE_COLOR", p4r.MeterConfig(cir=5, cburst=6, pir=5, pburst=6, eburst=7),
         "UNIMPLEMENTED"),
    ],
)  # fmt: skip
def test_single_rate_meters(
    learner: Controller,
    features: p4r.ForwardingPipelineConfig,
    kind: str,
    config: p4r.MeterConfig,
    code: str | None,
) -> None:
    features.p4info.meters[0].spec.type = p4i.MeterSpec.Type.Value(kind)
    learner.set_config(config=features)
    if code is None:
        learner.modify(meter_entry=cell(0, config=config))
        assert read(learner, meter_entry=cell(0)) == [cell(0, config=config)]
    else:
        assert why(learner, "modify", meter_entry=cell(0, config=config)).startswith(code)


# Direct meters


def default(table_id: int, **fields: Any) -> p4r.TableEntry:
    return p4r.TableEntry(table_id=table_id, is_default_action=True, **fields)


def direct(**fields: Any) -> p4r.DirectMeterEntry:
    return p4r.DirectMeterEntry(table_entry=station(1, action=None), **fields)


def test_with_the_entry(learner: Controller, plane: FakePlane) -> None:
    learner.insert(table_entry=station(1, meter_config=CONFIG))
    assert list(plane.direct_meters.values()) == [STORED]
    question = p4r.TableEntry(table_id=STATIONS, meter_config=p4r.MeterConfig())
    assert read(learner, table_entry=question) == [station(1, meter_config=CONFIG)]
    assert read(learner, table_entry=p4r.TableEntry(table_id=STATIONS)) == [station(1)]
    learner.modify(table_entry=station(1, port=2))  # full state: no configuration is the default
    assert read(learner, table_entry=question) == [station(1, port=2)]
    learner.modify(table_entry=station(1, meter_config=CONFIG))
    assert read(learner, table_entry=question) == [station(1, meter_config=CONFIG)]


def test_by_itself(learner: Controller, plane: FakePlane) -> None:
    learner.insert(table_entry=station(1))
    learner.insert(table_entry=station(2))
    learner.modify(direct_meter_entry=direct(config=CONFIG))
    answers = [direct(config=CONFIG), p4r.DirectMeterEntry(table_entry=station(2, action=None))]
    for table in (STATIONS, 0):
        selector = p4r.DirectMeterEntry(table_entry=p4r.TableEntry(table_id=table))
        assert read(learner, direct_meter_entry=selector) == answers
    assert read(learner, direct_meter_entry=direct()) == answers[:1]
    learner.modify(direct_meter_entry=direct())
    assert read(learner, direct_meter_entry=direct()) == [direct()]
    learner.delete(table_entry=station(1))
    assert list(plane.direct_meters.values()) == []


@pytest.mark.parametrize(
    ("kind", "entry", "text"),
    [
        ("insert", direct(), "INVALID_ARGUMENT: a direct meter lives and dies with its table entry"),
        ("delete", direct(), "INVALID_ARGUMENT: a direct meter lives and dies with its table entry"),
        ("modify", direct(), "NOT_FOUND: table ingress.stations has no entry with this match key"),
        ("modify", p4r.DirectMeterEntry(), "INVALID_ARGUMENT: a direct meter is named by its table entry"),
        ("modify", direct(counter_data=p4r.MeterCounterData()), "UNIMPLEMENTED: meters do not count"),
        ("modify", p4r.DirectMeterEntry(table_entry=p4r.TableEntry(table_id=MIRRORS)),
         "INVALID_ARGUMENT: table ingress.mirrors has no direct meter"),
        ("modify", p4r.DirectMeterEntry(table_entry=default(STATIONS)),
         "UNIMPLEMENTED: table ingress.stations: direct meters hang on entries"),
    ],
)  # fmt: skip
def test_a_bad_direct_write(
    learner: Controller, plane: FakePlane, kind: str, entry: p4r.DirectMeterEntry, text: str
) -> None:
    assert why(learner, kind, direct_meter_entry=entry).startswith(text)


def test_a_bad_direct_read(learner: Controller) -> None:
    refusal = learner.refused(
        learner.read,
        p4r.Entity(direct_meter_entry=direct()),
        p4r.Entity(direct_meter_entry=p4r.DirectMeterEntry(table_entry=p4r.TableEntry(table_id=MIRRORS))),
        p4r.Entity(direct_meter_entry=p4r.DirectMeterEntry()),
    )
    assert refusal.codes == ["NOT_FOUND", "INVALID_ARGUMENT", "OK"]
    for fields in ({"meter_config": CONFIG}, {"meter_counter_data": p4r.MeterCounterData()}):
        assert why(learner, "modify", table_entry=default(MIRRORS, **fields)) == (
            "INVALID_ARGUMENT: table ingress.mirrors has no direct meter"
        )

"""Every sample with entries at random: both switches take the same of them, and the same packets leave.

The samples are p4c's, and with P4_GUIDE_SOURCES the v1model programs of a checkout of jafingerhut/p4-guide.
"""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from tests.conformance import expectations, stf
from tests.conformance.alike import difference, variations
from tests.conformance.bmv2 import BMV2
from tests.conformance.drawing import Drawing
from tests.conformance.pairs import BothRefuse, Pair, pair_with
from tests.conformance.samples import (
    CompileError,
    Sample,
    compiled,
    missing,
    more,
    programs_below,
    sources,
    yardstick,
)
from tests.soft_switch.fuzz.entries import GROUPS, PORTS
from tests.soft_switch.fuzz.packets import PacketMaker

WHY_NOT = missing() or (None if BMV2 else "simple_switch_grpc is not on the PATH")
KNOWN = expectations.known_failures()
Frame = tuple[int, bytes]
SEED, FRAMES = 1, 60
SESSIONS = range(1, 6)
# What each switch has values of its own of.
OPEN = (
    *("ingress_global_timestamp", "egress_global_timestamp"),
    *("enq_timestamp", "enq_qdepth", "deq_timedelta", "deq_qdepth"),
    *("modify_field_rng_uniform", "execute_meter"),
)

pytestmark = [pytest.mark.long, pytest.mark.bmv2, pytest.mark.p4c]


def all_samples() -> list[Sample]:
    root, guide = sources(), os.environ.get("P4_GUIDE_SOURCES", "")
    if WHY_NOT is not None or root is None:
        return []
    return [*yardstick(root), *more(root), *(programs_below(Path(guide)) if guide else ())]


@pytest.mark.parametrize(
    "sample",
    all_samples()
    or [pytest.param(None, id="none", marks=pytest.mark.skip(reason=WHY_NOT or "there are no samples"))],
    ids=lambda sample: getattr(sample, "name", None),
)
def test_entries_at_random(sample: Sample) -> None:
    if sample.why_not is not None or sample.name in KNOWN:
        pytest.skip(sample.why_not or KNOWN[sample.name])
    try:
        program = compiled(sample)
        document = json.loads(program[0])
        if which := _open(document):
            pytest.skip(f"it depends on {which}, which is not the same in both switches")
        frames = _frames(sample, document)
        with pair_with(program) as pair:
            _fill(pair, document)
            differing = _play(pair, frames)
        for frame in differing:
            # Fields of invalid headers may be what an earlier packet left there: now there is none.
            with pair_with(program) as pair:
                _fill(pair, document)
                again = _play(pair, [frame])
            assert not again, again[frame]
    except CompileError as error:
        pytest.skip(f"p4c refuses it: {error}")
    except BothRefuse as error:
        pytest.skip(f"both switches refuse it: {error}")


def _open(document: dict[str, Any]) -> str | None:
    """Find what a program reads or does that the switches need not have in common."""
    read = json.dumps(
        [document[part] for part in ("parsers", "deparsers", "actions", "pipelines", "calculations")]
    )
    return next((name for name in OPEN if f'"{name}"' in read), None)


def _fill(pair: Pair, document: dict[str, Any]) -> None:
    """Write entries, groups and sessions."""
    chance = random.Random(SEED)
    for kind, entity in Drawing(pair.ours.info, chance).updates():
        pair.both(lambda control: control.write(kind, entity))  # noqa: B023
    names = [alias for alias, _ in document.get("field_aliases", ())]
    if "intrinsic_metadata.egress_rid" not in names:
        return  # a packet for a group, or a clone, ends BMv2
    for number in GROUPS:
        replicas = [(chance.choice(PORTS), instance) for instance in range(chance.randrange(5))]
        pair.both(lambda control: control.multicast_set(number, replicas))  # noqa: B023
    for number in SESSIONS:
        replicas = [(chance.choice(PORTS), instance) for instance in range(chance.randrange(1, 3))]
        pair.both(lambda control: control.clone_set(number, replicas))  # noqa: B023


def _frames(sample: Sample, document: dict[str, Any]) -> list[Frame]:
    """Draw frames: half of them of the sample's script, changed, and half as its parser takes them."""
    chance = random.Random(SEED)
    script = stf.parse(sample.script.read_text()) if sample.script.is_file() else []
    maker = PacketMaker(document, chance)
    frames = variations(script, chance, FRAMES // 2)
    frames += [(chance.randrange(8), maker.packet()) for _ in range(FRAMES // 2)]
    chance.shuffle(frames)
    return frames


def _play(pair: Pair, frames: list[Frame]) -> dict[Frame, str]:
    """Send frames one by one, so that none waits for another; give those of which something else leaves.

    Random entries may let a packet go round without end, which keeps BMv2 from all others: that is the last.
    """
    differing = {}
    for frame in frames:
        dropped = pair.plane.stats().passes_dropped
        ours = pair.plane.process(*frame)
        if pair.plane.stats().passes_dropped > dropped:
            break
        (theirs,) = pair.theirs.process([frame])
        if told := difference(frame, ours, theirs, in_order=False):
            differing[frame] = told
    return differing

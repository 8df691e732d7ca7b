"""The page of a run: the observed run as JSON, and the script and styles that draw it."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from typing import Any, Final

from controller.config import Config
from p4reduce.oracle.rules import FIVE, RULES, At, Brings, Holds, Sender, Sends, Writes
from p4reduce.pages.document import document
from p4reduce.pages.markup import Markup, element, joined
from p4reduce.simulation.faults.loop import NS
from p4reduce.simulation.faults.playing import Outcome
from p4reduce.simulation.faults.schedule import Schedule
from p4reduce.simulation.sequence.observing import SequenceObserver
from p4reduce.simulation.sequence.packets import LAYERS
from p4reduce.simulation.sequence.steps import Arrow, Part, Step

_ASSETS: Final = files("p4reduce.simulation.sequence") / "assets"
_COLUMNS: Final = {"at": At, "brings": Brings, "holds": Holds, "sender": Sender}
_DOES: Final = {"writes": Writes, "sends": Sends}


def page(title: str, outcome: Outcome, observer: SequenceObserver) -> str:
    """Return the HTML page of a run that has been observed to its end."""
    part, schedule = observer.parts.chosen(failed=bool(outcome.error)), outcome.schedule
    heading = schedule.about or "Every packet of the run, where it went and what the switch did with it."
    verdict = (
        element("span", "went wrong", class_="answer no")
        if outcome.error
        else element("span", "all checks held", class_="answer yes")
    )
    body = joined(
        element(
            "header",
            element(
                "p",
                f"p4reduce simulate-faults · {title} · simulated, {outcome.packets:,} packets",
                class_="subject",
            ),
            element(
                "div",
                element("h1", title, verdict),
                element("p", heading),
                element("p", outcome.error, class_="error") if outcome.error else None,
                element("p", _range(part), class_="range") if part.before or part.after else None,
                element(
                    "details",
                    element("summary", "What runs, and what goes wrong"),
                    element("pre", schedule.in_words()),
                ),
                class_="verdict",
            ),
        ),
        element("main", Markup((_ASSETS / "sequence.html").read_text(encoding="utf-8"))),
    )
    return document(
        title,
        body,
        styles=[(_ASSETS / "sequence.css").read_text(encoding="utf-8")],
        data={"run": _Document(observer, part).as_json()},
        scripts=[(_ASSETS / "sequence.js").read_text(encoding="utf-8")],
    )


def _range(part: Part) -> str:
    total = part.before + len(part.steps) + part.after
    first_s, last_s = part.steps[0].now_ns / NS, part.steps[-1].now_ns / NS
    return (
        f"The page has {len(part.steps):,} of {total:,} steps, from {first_s:.6f} to {last_s:.6f} s: "
        f"--page-from SECONDS begins elsewhere."
    )


class _Document:
    """The data of a page: each packet and arrow once, numbered in the order in which steps name them."""

    def __init__(self, observer: SequenceObserver, part: Part) -> None:
        self._observer = observer
        self._part = part
        self._packets: dict[Any, int] = {}
        self._arrows: dict[int, int] = {}  # by object
        self._drawn: list[list[Any]] = []

    def as_json(self) -> dict[str, Any]:
        """Return all that the script needs."""
        steps = [self._step(step) for step in self._part.steps]
        return {
            "actors": list(_actors(self._observer.config)),
            "layers": {name: list(fields) for name, fields in LAYERS.items()},
            "rules": {rule.name: FIVE.get(rule.name[0], "") for rule in RULES},
            "words": {
                name: {word.value: word.says for word in kind} for name, kind in {**_COLUMNS, **_DOES}.items()
            },
            "packets": [[kind, label, layers] for kind, label, layers in self._packets],
            "arrows": self._drawn,
            "base": self._part.base,
            "steps": steps,
            "marks": [
                {"from": mark.from_ns, "to": mark.until_ns, "kind": mark.kind, "at": mark.where}
                for mark in self._observer.marks
            ],
        }

    def _step(self, step: Step) -> dict[str, Any]:
        found: dict[str, Any] = {"t": step.now_ns, "kind": step.kind, "where": step.where, "said": step.said}
        if step.came is not None:
            found["came"] = self._arrow(step.came)
        if step.left:
            found["left"] = [self._arrow(arrow) for arrow in step.left]
        if step.rule is not None and step.case is not None:
            words = [word.value for word in (*step.case, step.rule.writes, step.rule.sends)]
            found["rule"], found["case"], found["touched"] = step.rule.name, words, step.touched
        if step.mark:
            found["mark"] = step.mark
        if step.counts:
            found["counts"] = step.counts
        if step.changes:
            found["changes"] = step.changes
        if step.is_fault:
            found["fault"] = True
        return found

    def _arrow(self, arrow: Arrow) -> int:
        known = self._arrows.get(id(arrow))
        if known is None:
            known = self._arrows[id(arrow)] = len(self._drawn)
            packet = arrow.packet
            key = packet.kind, packet.label, packet.layers
            number = self._packets.setdefault(key, len(self._packets))
            times = arrow.sent_ns, arrow.arrives_ns
            self._drawn.append(
                [
                    *(arrow.source, arrow.target, *times, number),
                    *(list(arrow.strikes), arrow.late_ns, int(arrow.again), arrow.lost),
                ]
            )
        return known


def _actors(config: Config) -> Iterator[dict[str, str]]:
    """Yield the actors from left to right.

    Hosts stand beside their leaf, and half of the leaves on either side of the spines.
    """
    with_hosts = {host.switch for host in config.hosts}
    leaves = [switch.name for switch in config.switches if switch.name in with_hosts]
    spines = [switch.name for switch in config.switches if switch.name not in with_hosts]

    def hosts(of: str) -> list[dict[str, str]]:
        return [{"name": host.name, "kind": "host"} for host in config.hosts if host.switch == of]

    def one(name: str, kind: str) -> dict[str, str]:
        return {"name": name, "kind": kind}

    if not spines and len(leaves) == 1:
        behind = hosts(leaves[0])
        middle = (len(behind) + 1) // 2
        yield from [*behind[:middle], one(leaves[0], "switch"), *behind[middle:]]
        return
    half = (len(leaves) + 1) // 2
    for leaf in leaves[:half]:
        yield from [*hosts(leaf), one(leaf, "leaf")]
    yield from (one(spine, "spine") for spine in spines)
    for leaf in leaves[half:]:
        yield from [one(leaf, "leaf"), *hosts(leaf)]


def named(schedule: Schedule, path: str | None) -> str:
    """Return a page's title: the name of the schedule's file, or the seed."""
    return f"Seed {schedule.seed}" if path is None else path.replace("-", " ").capitalize()

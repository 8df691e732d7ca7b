"""The fabric as a graph: leaves, spines, the links between them, and which of these can be used. No I/O."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, replace

from controller.config import Config


@dataclass(frozen=True)
class Link:
    """Link between a leaf and a spine. `index`: its number among the leaf's uplinks, from 0."""

    leaf: str
    leaf_port: int
    spine: str
    spine_port: int
    index: int

    @property
    def name(self) -> str:
        """Name of the link, as "l1:s2"."""
        return f"{self.leaf}:{self.spine}"

    def __str__(self) -> str:
        return f"link {self.leaf} port {self.leaf_port} to {self.spine} port {self.spine_port}"


@dataclass(frozen=True)
class LinkState:
    """The links and spines that cannot or shall not be used.

    `down`: names of links that do not answer; `lost`: names of spines that are away; `drained`: names of
    either.
    """

    down: frozenset[str] = frozenset()
    lost: frozenset[str] = frozenset()
    drained: frozenset[str] = frozenset()

    def usable(self, link: Link) -> bool:
        """Tell whether new traffic may use the link."""
        return not self.why_not(link)

    def why_not(self, link: Link) -> str:
        """Say why the link cannot be used; return "" if it can."""
        if link.spine in self.drained:
            return f"{link.spine} is drained"
        if link.name in self.drained:
            return "drained"
        if link.spine in self.lost:
            return f"{link.spine} is away"
        if link.name in self.down:
            return "no answer"
        return ""

    def draining(self, drained: Iterable[str]) -> LinkState:
        """Return the same state with something else drained."""
        return replace(self, drained=frozenset(drained))


ALL_UP = LinkState()


@dataclass(frozen=True)
class Graph:
    """The fabric of a configuration; without links, racks that know nothing of each other."""

    leaves: tuple[str, ...]
    spines: tuple[str, ...]
    links: tuple[Link, ...]

    @classmethod
    def of(cls, config: Config) -> Graph:
        """Return the graph of a configuration. A leaf's uplinks are numbered in the order of the spines."""
        leaves, spines = config.leaves, config.spines
        links: list[Link] = []
        for leaf in leaves:
            up = sorted(
                (link for link in config.links if link.a == leaf), key=lambda link: spines.index(link.b)
            )
            links += [Link(link.a, link.a_port, link.b, link.b_port, i) for i, link in enumerate(up)]
        return cls(leaves, spines, tuple(links))

    def uplinks(self, leaf: str) -> tuple[Link, ...]:
        """Return a leaf's links, by index; none in a single rack."""
        return tuple(link for link in self.links if link.leaf == leaf)

    def downlinks(self, spine: str) -> tuple[Link, ...]:
        """Return a spine's links, by leaf."""
        return tuple(link for link in self.links if link.spine == spine)

    def link(self, leaf: str, spine: str) -> Link | None:
        """Return the link between the two, if there is one."""
        return next((link for link in self.links if (link.leaf, link.spine) == (leaf, spine)), None)

    def common_spines(self, leaves: Iterable[str], state: LinkState = ALL_UP) -> tuple[str, ...]:
        """Return the spines that all of these leaves have a usable link to."""
        leaves = list(leaves)
        found = []
        for spine in self.spines:
            links = [self.link(leaf, spine) for leaf in leaves]
            if all(link is not None and state.usable(link) for link in links):
                found.append(spine)
        return tuple(found)

    def parted(self, before: LinkState, after: LinkState) -> tuple[str, str] | None:
        """Return two leaves that a spine joins before, but none after; None if there are no such two."""
        for pair in itertools.combinations(self.leaves, 2):
            if self.common_spines(pair, before) and not self.common_spines(pair, after):
                return pair
        return None

    def why_apart(self, leaves: Iterable[str], state: LinkState) -> str:
        """Say why no spine joins these leaves."""
        leaves = list(leaves)
        reasons = []
        for spine in self.spines:
            for leaf in leaves:
                link = self.link(leaf, spine)
                reason = f"no link {leaf}:{spine}" if link is None else state.why_not(link)
                if reason:
                    if reason in ("drained", "no answer"):
                        reason = f"{leaf}:{spine}: {reason}"
                    reasons.append(reason)
                    break
        return f"no spine joins {', '.join(leaves)} ({'; '.join(reasons) or 'there is none'})"


def spread(count: int, spines: Iterable[str], usable: Iterable[str]) -> tuple[str, ...]:
    """Spread `count` buckets as evenly as possible over the usable ones of these spines; none if none is.

    A bucket stays with its own spine (its number modulo the number of spines) while that is usable, whatever
    happens to others.
    """
    order, good = tuple(spines), set(usable)
    if not good:
        return ()
    owner = [order[i % len(order)] for i in range(count)]
    load = {spine: owner.count(spine) for spine in order if spine in good}
    for i, spine in enumerate(owner):
        if spine not in good:
            owner[i] = min(load, key=lambda name: load[name])
            load[owner[i]] += 1
    return tuple(owner)

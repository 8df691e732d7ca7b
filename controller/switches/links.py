"""State of links and spines: by probes, connections to spines, and what an operator drained."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping

from controller.config import Config
from controller.fabric.graph import Graph, Link, LinkState
from controller.fabric.probes import Prober, echo_request
from controller.switches.managed_switch import ManagedSwitch
from controller.switches.updates import SwitchError

logger = logging.getLogger(__name__)

_PRESUMED_S = 3.0  # a spine that was not seen yet after a start is there for so long


class LinkWatch:
    """Watch on all links. Calls `on_change` when `state` has changed; the owner calls `probe` repeatedly.

    `broken`: the links and spines that could not be used when the controller stopped. They stay so until they
    are seen to work.

    A spine counts as away while the controller has no connection with it. So the controller notices a
    restarted program at once; nothing is lost if traffic takes another spine meanwhile.
    """

    def __init__(
        self,
        config: Config,
        switches: Mapping[str, ManagedSwitch],
        *,
        clock: Callable[[], float],
        on_change: Callable[[], None],
        broken: Iterable[str] = (),
    ) -> None:
        self.graph = Graph.of(config)
        self.drained: frozenset[str] = frozenset()
        self._config = config
        self._switches = switches
        self._clock = clock
        self._on_change = on_change
        self._started_at = clock()
        # Spines that were there since the start, or were not when all of this was last known.
        self._seen = {spine for spine in self.graph.spines if spine in broken}
        self._prober = Prober(
            self.graph.links,
            interval_s=config.probe_interval_s,
            lost=config.probe_lost,
            found=config.probe_found,
            down=broken,
        )
        self._known = self.state
        for link in self.graph.links:
            switches[link.leaf].switch.on_echo = self._answered

    @property
    def broken(self) -> frozenset[str]:
        """The links and spines that cannot be used."""
        return self.state.down | self.state.lost

    @property
    def state(self) -> LinkState:
        """The links and spines that are down, away or drained."""
        lost = frozenset(spine for spine in self.graph.spines if self._is_lost(spine))
        return LinkState(down=self._prober.down, lost=lost, drained=self.drained)

    def words(self, link: Link) -> str:
        """Return "up", or say what is the matter with a link."""
        reason = self.state.why_not(link)
        if reason != "no answer":
            return reason or "up"
        silent_s = self._prober.silent_for(link.name, self._clock())
        return "no answer" if silent_s is None else f"no answer for {silent_s:.0f} s"

    def probe(self) -> list[tuple[Link, int]]:
        """Return the probes to send now; `send` sends them."""
        probes = self._prober.due(self._clock(), lambda link: self._switches[link.leaf].ready)
        self.refresh()
        return probes

    async def send(self, probes: Iterable[tuple[Link, int]]) -> None:
        """Send probes, those of each leaf one after the other."""
        by_leaf: dict[str, list[tuple[Link, int]]] = {}
        for link, nonce in probes:
            by_leaf.setdefault(link.leaf, []).append((link, nonce))
        await asyncio.gather(*(self._send_from(leaf, its) for leaf, its in by_leaf.items()))

    async def _send_from(self, leaf: str, probes: Iterable[tuple[Link, int]]) -> None:
        for link, nonce in probes:
            frame = echo_request(
                link,
                leaf_id=self._config.switch(leaf).device_id,
                spine_id=self._config.switch(link.spine).device_id,
                nonce=nonce,
            )
            try:
                await self._switches[leaf].switch.send_frame(link.leaf_port, frame)
            except SwitchError as error:
                self._prober.not_sent(nonce)
                logger.debug("%s: no probe: %s", link, error)

    def refresh(self) -> None:
        """Compare with the last known state, and report changes."""
        state, before = self.state, self._known
        if state == before:
            return
        self._known = state
        for spine in self.graph.spines:
            if spine in state.lost - before.lost:
                logger.warning("spine %s is away: %s", spine, self._switches[spine].switch.state)
            elif spine in before.lost - state.lost:
                logger.info("spine %s is back", spine)
        for link in self.graph.links:
            if link.spine in state.lost:
                continue
            if link.name in state.down - before.down:
                logger.warning("%s is down: %d probes without an answer", link, self._config.probe_lost)
            elif link.name in before.down - state.down:
                logger.info("%s is up again", link)
        self._on_change()

    def _answered(self, nonce: int) -> None:
        self._prober.answer(nonce, self._clock())

    def _is_lost(self, spine: str) -> bool:
        if self._switches[spine].ready:
            self._seen.add(spine)
            return False
        return spine in self._seen or self._clock() - self._started_at > _PRESUMED_S

"""Flows in SimGrid, for `test_against_simgrid`: runs in the system's Python, and prints seconds.

simgrid_flows.py ring RANKS BYTES_PER_S PART_BYTES LATENCY_S
simgrid_flows.py flows a=BYTES_PER_S ... ab:BYTES:AT_S ...
"""

from __future__ import annotations

import sys

from simgrid import Actor, Engine, LinkInRoute, Mailbox, NetZone, this_actor

# Whole rates, no latency that TCP's window would be of, no traffic the other way.
CONFIGURATION = [
    "--cfg=network/crosstraffic:0",
    "--cfg=network/bandwidth-factor:1",
    "--cfg=network/latency-factor:1",
    "--cfg=network/weight-S:0",
    "--cfg=network/TCP-gamma:0",
    "--log=root.thresh:critical",
]


def ring(ranks: int, rate: float, part: float, latency: float) -> None:
    """Run a ring with a link to each next rank; each step sends `part` bytes."""
    zone = NetZone.create_full_zone("all")
    hosts = [zone.create_host(f"h{rank}", 1e9) for rank in range(ranks)]
    for rank, host in enumerate(hosts):
        link = zone.create_link(f"l{rank}", rate).set_latency(latency).seal()
        following = hosts[(rank + 1) % ranks]
        zone.add_route(host.netpoint, following.netpoint, None, None, [LinkInRoute(link)], False)
    zone.seal()
    ends: list[float] = []

    def worker(rank: int) -> None:
        own, following = Mailbox.by_name(f"m{rank}"), Mailbox.by_name(f"m{(rank + 1) % ranks}")
        for _ in range(2 * (ranks - 1)):
            sending = following.put_async(b"part", int(part))
            own.get()
            sending.wait()
        ends.append(Engine.clock)

    for rank, host in enumerate(hosts):
        Actor.create(f"w{rank}", host, worker, rank)
    Engine.instance.run()
    print(max(ends))


def flows(words: list[str]) -> None:
    """Run flows, each over its links from its moment on, and print when each ends; flows may share links."""
    zone = NetZone.create_full_zone("all")
    rates = dict(word.split("=") for word in words if "=" in word)
    links = {name: zone.create_link(name, float(rate)).set_latency(0).seal() for name, rate in rates.items()}
    given = [word.split(":") for word in words if ":" in word]
    ends: dict[int, float] = {}
    pairs = []
    for number, (names, _, _) in enumerate(given):
        here, there = zone.create_host(f"from{number}", 1e9), zone.create_host(f"to{number}", 1e9)
        route = [LinkInRoute(links[name]) for name in names]
        zone.add_route(here.netpoint, there.netpoint, None, None, route, False)
        pairs.append((here, there))
    zone.seal()

    def send(number: int, size: float, at: float) -> None:
        this_actor.sleep_for(at)
        Mailbox.by_name(f"m{number}").put(b"flow", int(size))

    def take(number: int) -> None:
        Mailbox.by_name(f"m{number}").get()
        ends[number] = Engine.clock

    for number, (_, size, at) in enumerate(given):
        Actor.create(f"s{number}", pairs[number][0], send, number, float(size), float(at))
        Actor.create(f"t{number}", pairs[number][1], take, number)
    Engine.instance.run()
    for number in sorted(ends):
        print(ends[number])


if __name__ == "__main__":
    engine = Engine([sys.argv[0], *CONFIGURATION])
    if sys.argv[1] == "ring":
        ring(int(sys.argv[2]), *map(float, sys.argv[3:]))
    else:
        flows(sys.argv[2:])

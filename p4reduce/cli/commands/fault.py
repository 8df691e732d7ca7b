"""`p4reduce fault`: making a running cluster fail, at a chosen place, repeatably."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any

import typer

from p4reduce.cli import output
from p4reduce.cli.loading import group
from p4reduce.cli.options import ClusterOption, JsonFlag, complete_switch
from p4reduce.cli.output import Column
from soft_switch.faults import FaultKind, Packets
from topologies import state
from topologies.faults import ClusterFaults, PacketFault
from topologies.packet_faults import DIRECTIONS

app = group(
    no_args_is_help=True,
    help="Make the cluster fail on purpose, repeatably: packets, links, processes, the disk.",
)

Direction = Enum("Direction", {name: name for name in DIRECTIONS}, type=str)  # type: ignore[misc]


class UpDown(str, Enum):
    """The state that a link is to have."""

    DOWN = "down"
    UP = "up"


class WorkerFault(str, Enum):
    """The faults of a worker."""

    KILL = "kill"
    PAUSE = "pause"
    RESUME = "resume"


class ProcessFault(str, Enum):
    """The faults of a switch or the controller."""

    KILL = "kill"
    RESTART = "restart"
    PAUSE = "pause"
    RESUME = "resume"


class DiskFault(str, Enum):
    """The faults of the disk."""

    FILL = "fill"
    FREE = "free"


LinkName = Annotated[
    str,
    typer.Argument(metavar="LINK", help="A host's link (h1 or h1:s1), one between switches (l1:s2), or '*'."),
]
OneLink = Annotated[
    str, typer.Argument(metavar="LINK", help="A host's link (h1 or h1:s1), or one between switches (l1:s2).")
]
FAULTS = (
    Column("number", "fault", right=True),
    Column("link", "link"),
    Column("direction", "direction"),
    Column("kind", "kind"),
    Column("packets", "packets"),
    Column("which", "which"),
    Column("how", "how"),
    Column("seed", "seed", right=True),
    Column("struck", "struck", right=True),
)


@app.command("packets")
def packets(
    link: LinkName,
    kind: Annotated[
        FaultKind, typer.Argument(metavar="KIND", help="loss, duplicate, reorder, delay or corrupt.")
    ],
    direction: Annotated[
        Direction,
        typer.Option(help="to-switch or to-host of hosts' links, a-to-b or b-to-a of LINK a:b, both."),
    ] = Direction.both,  # type: ignore[attr-defined]
    probability: Annotated[float, typer.Option(help="That a packet which is meant is struck.")] = 1.0,
    which: Annotated[
        Packets,
        typer.Option(
            "--packets",
            metavar="WHICH",
            help="Which are meant: any, roce, tcp; send, of which are first, middle, last and only (of a "
            "message); ack, nak, rnr; result (of a switch); tree, of which are partial, tree-result and ask "
            "(between switches).",
        ),
    ] = Packets.ANY,
    message: Annotated[
        int | None,
        typer.Option(metavar="N", help="Only of the message with this number, and its acknowledgements."),
    ] = None,
    psn: Annotated[
        int | None, typer.Option(metavar="N", help="Only with this packet sequence number.")
    ] = None,
    qpn: Annotated[int | None, typer.Option(metavar="N", help="Only to this queue pair.")] = None,
    skip: Annotated[int, typer.Option(metavar="N", help="The first N that are meant pass.")] = 0,
    count: Annotated[int | None, typer.Option(metavar="N", help="Strike N at most, in each place.")] = None,
    delay_ms: Annotated[
        float,
        typer.Option(
            help="delay, reorder: how long it is held back (reorder, 0: until the next has passed); "
            "duplicate: how much later each copy comes."
        ),
    ] = 0.0,
    copies: Annotated[int, typer.Option(metavar="N", help="duplicate: how many copies.")] = 1,
    bits: Annotated[int, typer.Option(metavar="N", help="corrupt: how many bits are flipped.")] = 1,
    seed: Annotated[int, typer.Option(metavar="N", help="What decides all chance.")] = 0,
    cluster: ClusterOption = None,
    json: JsonFlag = False,
) -> None:
    """Lose, double, reorder, delay or damage packets of a link, from now on until 'fault clear'.

    The third packet of message 7 that h2 sends, lost once:
    p4reduce fault packets h2 loss --direction to-switch --packets middle --message 7 --skip 1 --count 1
    """
    running = state.running(cluster)
    fault = PacketFault(
        link=link,
        direction=str(direction.value),
        kind=kind,
        probability=probability,
        packets=which,
        message=message,
        psn=psn,
        qpn=qpn,
        skip=skip,
        count=count,
        delay_ms=delay_ms,
        copies=copies,
        bits=bits,
        seed=seed,
    )
    number = ClusterFaults(running).add(fault)
    if json:
        output.say_json({"number": number, **fault.encode()})
    else:
        output.say(f"fault {number}: {fault}; 'p4reduce fault clear {number}' ends it")


@app.command("list")
def show(cluster: ClusterOption = None, json: JsonFlag = False) -> None:
    """List the packet faults there are, and how many packets each has struck."""
    rows: list[dict[str, Any]] = []
    for number, fault, struck in ClusterFaults(state.running(cluster)).faults():
        row = {"number": number, **fault.encode(), "struck": struck}
        rows.append(row if json else {**row, "which": fault.which, "how": fault.how})
    output.show_rows(
        rows, FAULTS, title="packet faults", as_json=json, hint=" ('p4reduce fault packets' begins with one)"
    )


@app.command("clear")
def clear(
    number: Annotated[
        int | None, typer.Argument(metavar="[FAULT]", help="Its number; all if not given.")
    ] = None,
    cluster: ClusterOption = None,
) -> None:
    """End a packet fault, or all. Frames that are held back still go on when they are due."""
    ClusterFaults(state.running(cluster)).clear(number)
    output.say("no packet faults any more" if number is None else f"fault {number}: cleared")


@app.command("link")
def link(
    what: Annotated[UpDown, typer.Argument(metavar="down|up")], name: OneLink, cluster: ClusterOption = None
) -> None:
    """Take a link down, or up again. A host keeps its address, as when a cable is pulled."""
    ClusterFaults(state.running(cluster)).set_link(name, up=what is UpDown.UP)
    output.say(f"link {name}: {what.value}")


@app.command("worker")
def worker(
    what: Annotated[WorkerFault, typer.Argument(metavar="kill|pause|resume")],
    job: Annotated[str, typer.Argument(metavar="JOB", help="The job's name.")],
    rank: Annotated[int, typer.Argument(metavar="RANK", help="Which of its workers.", min=0)],
    cluster: ClusterOption = None,
) -> None:
    """Kill a worker of a job (SIGKILL), stop it where it is (SIGSTOP), or let it go on (SIGCONT)."""
    _inject(cluster, what, "worker", job, rank, whom=f"job {job}, rank {rank}")


@app.command("switch")
def switch(
    what: Annotated[ProcessFault, typer.Argument(metavar="kill|restart|pause|resume")],
    name: Annotated[
        str, typer.Argument(metavar="SWITCH", help="Its name: s1, l2.", autocompletion=complete_switch)
    ],
    cluster: ClusterOption = None,
) -> None:
    """Kill a switch, start it anew with empty registers, stop it where it is, or let it go on."""
    _inject(cluster, what, "switch", name, whom=f"switch {name}")


@app.command("controller")
def controller(
    what: Annotated[ProcessFault, typer.Argument(metavar="kill|restart|pause|resume")],
    cluster: ClusterOption = None,
) -> None:
    """Kill the controller, start it again on its database, stop it where it is, or let it go on."""
    _inject(cluster, what, "controller", whom="controller")


@app.command("disk")
def disk(
    what: Annotated[DiskFault, typer.Argument(metavar="fill|free")], cluster: ClusterOption = None
) -> None:
    """Fill the small disk that has the controller's database, to the last byte, or free it again."""
    faults = ClusterFaults(state.running(cluster))
    if what is DiskFault.FILL:
        output.say(
            f"the disk under the controller's database is full ({faults.fill_disk()} bytes more on it)"
        )
    else:
        faults.free_disk()
        output.say("the disk under the controller's database has room again")


_DONE = {"kill": "killed", "restart": "restarted", "pause": "paused", "resume": "goes on"}


def _inject(
    cluster: str | None, what: WorkerFault | ProcessFault, kind: str, *which: object, whom: str
) -> None:
    """Inject it by the method of `ClusterFaults` of that name: kill_switch, pause_worker."""
    getattr(ClusterFaults(state.running(cluster)), f"{what.value}_{kind}")(*which)
    output.say(f"{whom}: {_DONE[what.value]}")

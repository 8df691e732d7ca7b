"""`p4reduce scale`: sums and iterations on more GPUs than any machine emulates, on a simulated clock."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Final

import typer

from p4reduce.cli import output
from p4reduce.cli.executors import executor_of, require_workers
from p4reduce.cli.failing import ending_on_signals
from p4reduce.cli.options import JsonFile, parse_bytes, parse_rate
from p4reduce.cli.runs import command_line, refuse_given

if TYPE_CHECKING:
    from p4reduce.scale.fabric import Fabric
    from p4reduce.workloads.traffic.model import Workload

_OF_A_MODEL: Final = ("batch", "teraflops", "dtype", "overlap")
_UNITS: Final = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_MOST_CELLS: Final = 100_000


def scale(
    context: typer.Context,
    *,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL,...",
            help="Iterations of these: alexnet, vgg-16, resnet-50, bert-base, gpt-2, or files as "
            "'p4reduce replay' takes them.",
        ),
    ] = None,
    size: Annotated[
        str | None,
        typer.Option(
            "--bytes", "-b", metavar="SIZE,...", help="Single sums of these sizes instead: 64K,1M,32M."
        ),
    ] = None,
    gpus: Annotated[
        str, typer.Option(metavar="N,...", help="How many in all, several by comma: 32,64,...,1024.")
    ] = "32,64,...,1024",
    gpus_per_host: Annotated[int, typer.Option(min=1, max=8, help="GPUs behind one NIC.")] = 8,
    leaf_hosts: Annotated[int, typer.Option(min=1, help="Machines in a rack.")] = 16,
    spines: Annotated[int, typer.Option(min=1, help="Where there are several racks.")] = 4,
    oversubscription: Annotated[
        float, typer.Option(help="A rack's machines send so many times what its uplinks carry.")
    ] = 1.0,
    rate: Annotated[str, typer.Option(help="Of a machine's NIC, each way.")] = "100gbit",
    intra_rate: Annotated[
        str, typer.Option(help="Of each GPU's channel inside its machine, each way.")
    ] = "1200gbit",
    alpha: Annotated[str, typer.Option(metavar="TIME", help="Latency of a hop: 3us.")] = "1us",
    path_mtu: Annotated[int, typer.Option("--mtu", "--path-mtu", help="RoCE's path MTU.")] = 4096,
    window: Annotated[int, typer.Option(help="Messages of 16 packets that a worker has in flight.")] = 8,
    strategies: Annotated[
        str,
        typer.Option(
            metavar="NAME,NAME...|all",
            help="hierarchical (in the network, in a pipeline), hierarchical-phases (without), "
            "hierarchical-ring, flat-ring, reduce-broadcast, in-network.",
        ),
    ] = "all",
    pipeline: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE|off",
            help="Of hierarchical: pieces of a plane that go one behind the other; off: hierarchical-phases "
            "instead. A window, or 1 MiB of the tensor if that is more, where not given.",
        ),
    ] = None,
    overlap: Annotated[
        bool,
        typer.Option(
            "--overlap/--no-overlap", help="Buckets are summed while layers before them still compute."
        ),
    ] = True,
    batch: Annotated[int | None, typer.Option(min=1, help="Of a bundled model: samples a GPU.")] = None,
    teraflops: Annotated[
        float | None, typer.Option(help="Of a bundled model: 10^12 operations a second that a GPU does.")
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(metavar="TYPE", help="Gradients are float32 (if not given), float16 or bfloat16."),
    ] = None,
    workers: Annotated[
        str,
        typer.Option(
            metavar="N|dask://HOST:PORT", help="Processes that simulate, or a Dask scheduler's workers."
        ),
    ] = "2",
    json: JsonFile = None,
) -> None:
    """Simulate sums on up to thousands of GPUs, flow by flow: racks, spines, several GPUs a machine.

    Nothing is brought up and nothing is measured; every table says "simulated". docs/scale.md has what is
    modelled and what is not.
    """
    from p4reduce.scale import findings, tables
    from p4reduce.scale.fabric import Fabric, Framing
    from p4reduce.scale.sweep import Cell, run_all
    from p4reduce.workloads.errors import WorkloadError

    output.require_writable(json)
    require_workers(workers)
    if (model is None) == (size is None):
        raise typer.BadParameter("give one of --model bert-base and --bytes 64K,1M")
    if model is None:
        refuse_given(context, _OF_A_MODEL, "is of a --model")
    if not 0 < oversubscription < math.inf:
        raise typer.BadParameter(
            f"--oversubscription {oversubscription:g} is none: take 1, or 2 for half the uplinks"
        )
    nic = _rate("--rate", rate)
    base = Fabric(
        hosts=2,
        gpus_per_host=gpus_per_host,
        leaf_hosts=leaf_hosts,
        spines=spines,
        rate=nic,
        intra_rate=_rate("--intra-rate", intra_rate),
        uplink_rate=leaf_hosts * nic / spines / oversubscription,
        alpha_s=_seconds(alpha),
        framing=Framing(path_mtu=path_mtu, window=window),
    )
    fabrics = [_of_gpus(base, number) for number in _numbers(gpus)]
    what = _workloads(model, batch, teraflops, dtype) if model is not None else _sizes(size or "")
    chosen, piece = _chosen(strategies, pipeline)
    cells = [
        Cell(what=one, strategy=strategy, fabric=fabric, piece=piece, overlap=overlap)
        for one in what
        for fabric in fabrics
        for strategy in chosen
    ]
    if len(cells) > _MOST_CELLS:
        raise WorkloadError(f"{len(cells)} simulations are too many: take fewer sizes or numbers of GPUs")
    with ending_on_signals(), output.progress() as progress, executor_of(workers) as executor:
        progress(f"simulating: {len(cells)} cells")
        found = run_all(cells, executor)
    output.result(
        findings.as_json(found, command=command_line(context)), tables.tables(found), json_file=json
    )


def _chosen(strategies: str, pipeline: str | None) -> tuple[tuple[str, ...], int | None]:
    """Return the strategies, and the bytes of a piece (None: not given).

    `--pipeline off` replaces `hierarchical` by `hierarchical-phases`, which it is then.
    """
    from p4reduce.workloads.hierarchy import ALL
    from p4reduce.workloads.strategies.names import HIERARCHICAL, HIERARCHICAL_PHASES, strategies_of

    chosen = strategies_of(strategies, ALL)
    if pipeline is None:
        return chosen, None
    if pipeline.lower() == "off":
        instead = (HIERARCHICAL_PHASES if one == HIERARCHICAL else one for one in chosen)
        return tuple(dict.fromkeys(instead)), None
    piece = parse_bytes(pipeline)
    if piece == 0:
        raise typer.BadParameter("--pipeline 0 is no piece: say off, or a size such as 1M")
    return chosen, piece


def _of_gpus(base: Fabric, gpus: int) -> Fabric:
    hosts, rest = divmod(gpus, base.gpus_per_host)
    if rest:
        more = (hosts + 1) * base.gpus_per_host
        raise typer.BadParameter(
            f"{gpus} GPUs do not fill machines of {base.gpus_per_host}: take {more}, or another "
            "--gpus-per-host"
        )
    return replace(base, hosts=hosts)


def _numbers(text: str) -> list[int]:
    """Parse `32,64`; `32,64,...,1024` goes on as the first two do, by a factor or else by a step."""
    words = [word.strip() for word in text.replace("…", "...").split(",")]
    numbers: list[int] = []
    for place, word in enumerate(words):
        if word == "..." and 2 <= place == len(words) - 2 and re.fullmatch(r"\d{1,9}", words[-1], re.ASCII):
            numbers += _between(numbers[-2], numbers[-1], int(words[-1]))
        elif re.fullmatch(r"0*[1-9]\d{0,8}", word, re.ASCII):
            numbers.append(int(word))
        else:
            raise typer.BadParameter(f"--gpus {text!r} is no list of numbers: say 32,64 or 32,64,...,1024")
    if sorted(set(numbers)) != numbers:
        raise typer.BadParameter(f"--gpus {text!r}: name each number once, the smallest first")
    return numbers


def _between(first: int, second: int, last: int) -> list[int]:
    """Return the numbers between `second` and `last`, without these two."""
    if first < second < last:
        factor = second // first
        if factor * first == second:
            found, number = [], second * factor
            while number < last:
                found.append(number)
                number *= factor
            if number == last:
                return found
        if (last - second) % (second - first) == 0:
            return list(range(2 * second - first, last, second - first))[:_MOST_CELLS]
    raise typer.BadParameter(f"--gpus {first},{second},... does not come to {last}: name each number")


def _workloads(
    text: str, batch: int | None, teraflops: float | None, dtype: str | None
) -> list[Workload | int]:
    from p4reduce.workloads.traffic.source import workload_of

    names = [name.strip() for name in text.split(",")]
    found = [workload_of(name, batch=batch, teraflops=teraflops, dtype=dtype) for name in names]
    if len({workload.name for workload in found}) < len(found):
        raise typer.BadParameter(f"--model {text!r} names one twice: each once, and files by different names")
    return list(found)


def _sizes(text: str) -> list[Workload | int]:
    sizes = [parse_bytes(word) for word in text.split(",")]
    if 0 in sizes or len(set(sizes)) < len(sizes):
        raise typer.BadParameter(f"--bytes {text!r}: name each size once, and none of 0")
    return list(sizes)


def _rate(option: str, text: str) -> float:
    """Parse the rate of a simulated link; return bit/s."""
    mbit = None if re.fullmatch(r"0+(\.0*)?\D*", text.strip()) else parse_rate(text)
    if mbit is None:
        raise typer.BadParameter(f"{option} {text}: a simulated link has a rate, say 100gbit")
    return mbit * 1e6


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?|\.\d+)\s*(s|ms|us|µs|ns)", text.strip().lower())
    if match is None:
        raise typer.BadParameter(f"--alpha {text!r} is no time: say 3us, 500ns or 1ms")
    return float(match[1]) * _UNITS[match[2]]

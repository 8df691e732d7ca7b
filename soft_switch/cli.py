"""The command line of the switch, which takes what `simple_switch_grpc` takes.

    p4reduce-switch --device-id 1 -i 1@eth1 -i 2@eth2 --no-p4 -- --grpc-server-addr 0.0.0.0:9559

simple_switch_grpc keeps its target's options behind a "--"; here every option may stand on either side of it.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from controller.security.files import TlsError, TlsFiles
from controller.telemetry.address import MetricsError
from controller.telemetry.server import MetricsServer
from soft_switch.build import INTERRUPTION, Stopped
from soft_switch.commands import CommandError, run_commands
from soft_switch.dataplane import PORTS, DataPlane
from soft_switch.errors import FaultError, ProgramError
from soft_switch.fault_control import FaultControl
from soft_switch.metrics import SwitchMetrics
from soft_switch.p4c import read_program_file
from soft_switch.server import DEFAULT_ADDRESS, MAX_REQUEST_BYTES, P4RuntimeServer, ServerTls

LOG = logging.getLogger("soft_switch")

EXIT_ERROR = 2  # as argparse uses for a command line that is wrong
LEVELS = {
    "trace": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "error": logging.ERROR,
    "off": logging.CRITICAL + 1,
}
# What scripts for simple_switch_grpc give (p4lang/tutorials, for instance): taken and not used.
UNUSED = (
    "--dump-packet-data",
    "--log-file-max-files",
    "--log-file-max-size",
    "--max-l1-entries",
    "--max-l2-entries",
    "--max-mc-groups",
    "--max-port-count",
    "--nanolog",
    "--notifications-addr",
)


class StartError(Exception):
    """The switch cannot start; the message is one line for the user."""


@contextlib.contextmanager
def until_signal() -> Iterator[Callable[[], None]]:
    """Let SIGTERM and SIGINT end compilations and the wait, whose function is yielded.

    This holds for a signal that another thread gets, or that comes while the wait begins. Python's handlers
    run in the main thread only, and not while it waits for a lock or reads. The read ends with the byte that
    the interpreter itself writes when a signal comes.
    """
    read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    os.set_blocking(read, True)
    before = signal.set_wakeup_fd(write, warn_on_full_buffer=False)

    def on_signal(*_: object) -> None:
        INTERRUPTION.requested = True

    def wait() -> None:
        while not INTERRUPTION.requested:
            os.read(read, 1)

    handlers = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield wait
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(before)
        os.close(write)
        os.close(read)
        INTERRUPTION.requested = False


@dataclass(frozen=True)
class Port:
    """A port number and the interface behind it."""

    number: int
    interface: str


@dataclass(frozen=True)
class Loss:
    """Packets to lose on purpose: port, direction ("in" or "out") and probability."""

    port: int
    direction: str
    probability: float


def main(argv: Sequence[str] | None = None) -> int:
    """Run the switch until SIGTERM or SIGINT; return exit code 0 then, 2 if it could not start."""
    options = parse_arguments(sys.argv[1:] if argv is None else argv)
    with until_signal() as wait:
        try:
            _configure_logging(options)
            _run(options, wait)
        except Stopped:
            return 0
        except (StartError, ProgramError) as error:
            print(f"soft_switch: {error}", file=sys.stderr)
            return EXIT_ERROR
    return 0


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Return the options of a command line; exit with 2 and a sentence if they are wrong."""
    parser = _parser()
    options = parser.parse_args(_normalise(argv))
    if options.json is None and not options.no_p4:
        parser.error("give a program (BMv2 JSON or P4), or --no-p4 to wait for one over P4Runtime")
    if options.json is not None and options.no_p4:
        parser.error("--no-p4 means to start without a program, but there is one on the command line")
    if options.entries is not None and options.no_p4:
        parser.error("--entries needs a program to have them")
    if options.log_console and options.log_file is not None:
        parser.error("--log-console and --log-file exclude each other")
    if options.cpu_port == 0:
        parser.error("--cpu-port: 0 is not a valid CPU port")
    if options.cpu_port is not None and options.cpu_port == options.drop_port:
        parser.error(f"port {options.cpu_port} is the drop port: choose another --cpu-port or --drop-port")
    numbers = [port.number for port in options.interface]
    for number in (*numbers, options.cpu_port or 0, options.drop_port):
        if number >= PORTS:
            parser.error(
                f"port {number}: ports are numbered from 0 to {PORTS - 1}, as programs have 9 bits for them "
                f"and would take this one for port {number % PORTS}"
            )
    for port in options.interface:
        if numbers.count(port.number) > 1:
            parser.error(f"port {port.number} is given twice")
        if [other.interface for other in options.interface].count(port.interface) > 1:
            parser.error(f"interface {port.interface} is given twice: each of its frames would come in twice")
        if port.number in (options.cpu_port, options.drop_port):
            parser.error(f"port {port.number} is the CPU or drop port, no interface can have it")
    for loss in options.loss:
        if loss.port not in numbers:
            parser.error(f"--loss names port {loss.port}, which has no interface")
    if (wrong := _wrong_tls(options)) is not None:
        parser.error(wrong)
    if options.pcap is not None and not options.pcap.is_dir():
        parser.error(f"--pcap: there is no directory {options.pcap}")
    return options


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="soft_switch",
        description="A P4 switch: runs p4c's BMv2 JSON as native code, controlled by P4Runtime.",
    )
    add = parser.add_argument
    add(
        "json",
        nargs="?",
        type=Path,
        metavar="PROGRAM",
        help="the program to start with: JSON of p4c-bm2-ss, or P4 source (.p4) where that is on the PATH",
    )
    add("--no-p4", action="store_true", help="start without a program and wait for one over P4Runtime")
    add("--device-id", type=_number, default=0, metavar="N", help="P4Runtime device id (default 0)")
    add(
        "-i",
        "--interface",
        type=_port,
        action="append",
        default=[],
        metavar="PORT@IFACE",
        help="attach an interface as port PORT; may be repeated",
    )
    add(
        "--grpc-server-addr",
        default=DEFAULT_ADDRESS,
        metavar="ADDR",
        help=f"where to serve P4Runtime: HOST:PORT or unix:PATH (default {DEFAULT_ADDRESS}; 0: any port)",
    )
    add(
        "--grpc-max-request-bytes",
        type=_number,
        default=MAX_REQUEST_BYTES,
        metavar="N",
        help=f"largest request over P4Runtime, programs are ones (default {MAX_REQUEST_BYTES >> 20} MiB)",
    )
    add("--grpc-server-ssl", action="store_true", help="serve P4Runtime with TLS")
    for name, what in (
        ("cacert", "the authority that clients have to be certified by"),
        ("cert", "the certificate of this switch"),
        ("key", "its key"),
    ):
        add(f"--grpc-server-{name}", type=Path, metavar="FILE", help=f"with TLS: {what}, PEM")
    add(
        "--grpc-server-with-client-auth",
        action="store_true",
        help="with TLS: take only clients that have a certificate",
    )
    add(
        "--metrics",
        metavar="ADDR",
        help="where to serve Prometheus metrics: HOST:PORT or unix:/PATH (default: nowhere)",
    )
    add(
        "--entries",
        type=Path,
        metavar="FILE",
        help="entries, groups and clone sessions to start with, as commands of simple_switch_CLI",
    )
    add("--cpu-port", type=_number, metavar="N", help="port of packet-in and packet-out (default: none)")
    add("--drop-port", type=_number, default=511, metavar="N", help="egress port that drops (default 511)")
    add(
        "--priority-queues",
        type=_number,
        default=1,
        metavar="N",
        help="drop packets whose standard_metadata.priority is N or more (default 1)",
    )
    add(
        "--pcap",
        type=Path,
        metavar="DIR",
        help="write each port's packets to pcap files, --pcap=DIR says where (default: here)",
    )
    add("--seed", type=_number, default=0, metavar="N", help="seed of random() and of --loss (default 0)")
    add(
        "--loss",
        type=_loss,
        action="append",
        default=[],
        metavar="PORT:DIR:PROB",
        help="lose packets of a port: DIR is in or out, PROB within 0 and 1; may be repeated",
    )
    add(
        "--faults",
        metavar="ADDR",
        help="where faults on purpose can be told and listed: unix:/PATH (default: nowhere)",
    )
    add(
        "--strict-arbitration",
        action="store_true",
        help="when the primary controller leaves, wait for a claim as the P4Runtime specification says, "
        "instead of promoting the next as simple_switch_grpc does",
    )
    add("--log-file", type=Path, metavar="FILE", help="append the log to FILE")
    add("--log-console", action="store_true", help="log to standard output")
    add("-L", "--log-level", choices=LEVELS, default="info", help="default: info")
    add("--log-flush", action="store_true", help="accepted: the log is always flushed")
    add("--thrift-port", type=_number, metavar="N", help="accepted and not used: there is no Thrift server")
    add("--disable-swap", action="store_true", help=argparse.SUPPRESS)
    for name in UNUSED:
        add(name, metavar="ARG", help=argparse.SUPPRESS)
    add(
        "-v",
        "--version",
        action=_Version,
        nargs=0,
        default=argparse.SUPPRESS,
        help="show the version and exit",
    )
    return parser


def _wrong_tls(options: argparse.Namespace) -> str | None:
    """Say what is wrong with the options of TLS; None if they are right.

    Options with which simple_switch_grpc would serve without TLS are wrong, too.
    """
    files = (options.grpc_server_cacert, options.grpc_server_cert, options.grpc_server_key)
    if not options.grpc_server_ssl:
        if any(file is not None for file in files) or options.grpc_server_with_client_auth:
            return "certificates are given, but not --grpc-server-ssl: P4Runtime would be served without TLS"
        return None
    if options.grpc_server_cert is None or options.grpc_server_key is None:
        return "--grpc-server-ssl needs --grpc-server-cert and --grpc-server-key"
    if options.grpc_server_with_client_auth and options.grpc_server_cacert is None:
        return "--grpc-server-with-client-auth needs --grpc-server-cacert"
    return None


def _tls(options: argparse.Namespace) -> ServerTls | None:
    if not options.grpc_server_ssl:
        return None
    files = TlsFiles(
        ca=options.grpc_server_cacert, cert=options.grpc_server_cert, key=options.grpc_server_key
    )
    return ServerTls(files=files, client_certificates=options.grpc_server_with_client_auth)


def _normalise(argv: Sequence[str]) -> list[str]:
    """Drop "--", and give --pcap the value boost would: its own "=DIR", a directory behind it, or here."""
    arguments = [argument for argument in argv if argument != "--"]
    for index, argument in enumerate(arguments):
        if argument == "--pcap":
            following = arguments[index + 1] if index + 1 < len(arguments) else ""
            if following and Path(following).is_dir():
                arguments[index : index + 2] = [f"--pcap={following}"]
            else:
                arguments[index] = "--pcap=."
            break
    return arguments


def _number(text: str) -> int:
    try:
        value = int(text, 0)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if value < 0:
        raise argparse.ArgumentTypeError(f"{value} is negative")
    return value


def _port(text: str) -> Port:
    match = re.fullmatch(r"(\d+)@(\S+)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not PORT@IFACE, for instance 1@eth1")
    return Port(int(match[1]), match[2])


def _loss(text: str) -> Loss:
    match = re.fullmatch(r"(\d+):(in|out):(\d*\.?\d+)", text)
    if match is None or not 0 <= float(match[3]) <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not PORT:DIR:PROB, for instance 2:in:0.01")
    return Loss(int(match[1]), match[2], float(match[3]))


class _Version(argparse.Action):
    """Version option as argparse's own, which looks the version up only when it is used."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        import importlib.metadata

        try:
            version = importlib.metadata.version("p4reduce")
        except importlib.metadata.PackageNotFoundError:
            version = "(not installed)"
        print(f"soft_switch {version}")
        parser.exit()


def _configure_logging(options: argparse.Namespace) -> None:
    handler: logging.Handler
    if options.log_file is not None:
        try:
            handler = logging.FileHandler(options.log_file)
        except OSError as error:
            raise StartError(f"cannot log to {options.log_file}: {error.strerror}") from error
    elif options.log_console:
        handler = logging.StreamHandler(sys.stdout)
    else:
        handler = logging.StreamHandler(sys.stderr)
        handler.setLevel(logging.WARNING)
    logging.basicConfig(
        level=LEVELS[options.log_level],
        handlers=[handler],
        format="%(asctime)s.%(msecs)03d %(levelname)s %(name)s: %(message)s",
        datefmt="%Y-%m-%d %H:%M:%S",
    )


def _run(options: argparse.Namespace, wait: Callable[[], None]) -> None:
    """Bring the switch up, serve until told to stop, take it down."""
    if options.thrift_port is not None:
        LOG.warning("--thrift-port %d is not used: there is no Thrift server", options.thrift_port)
    plane = DataPlane(
        cpu_port=options.cpu_port,
        drop_port=options.drop_port,
        seed=options.seed,
        log=LOG,
        priority_queues=options.priority_queues,
    )
    with contextlib.ExitStack() as stack:
        stack.enter_context(closing(plane))
        if options.json is not None:
            _load(plane, options.json)
        if options.entries is not None:
            _fill(plane, options.entries)
        for port in options.interface:
            _attach(plane, port, options.pcap)
        for loss in options.loss:
            plane.set_loss(loss.port, loss.direction, loss.probability, options.seed)
        server = P4RuntimeServer(
            plane,
            device_id=options.device_id,
            address=options.grpc_server_addr,
            promote=not options.strict_arbitration,
            tls=_tls(options),
            max_request_bytes=options.grpc_max_request_bytes,
        )
        try:
            if options.metrics is not None:
                metrics = MetricsServer(options.metrics, SwitchMetrics(plane).collect, process=True)
                stack.enter_context(metrics)
            if options.faults is not None:
                stack.enter_context(FaultControl(options.faults, plane.faults))
            plane.start()
            server.start()
        except Stopped:
            raise
        except (OSError, MetricsError, FaultError, ProgramError, TlsError) as error:
            raise StartError(str(error)) from error
        print(f"listening on {server.address}", flush=True)
        LOG.info("device %d is up, P4Runtime on %s", options.device_id, server.address)
        wait()
        LOG.info("stopping")
        server.stop()


def _load(plane: DataPlane, path: Path) -> None:
    try:
        program = read_program_file(path)
    except OSError as error:
        raise StartError(f"cannot read the program {path}: {error.strerror}") from error
    except ProgramError as error:
        raise StartError(f"cannot compile {path}: {error}") from error
    try:
        plane.load(program)
    except Stopped:
        raise
    except ProgramError as error:
        raise StartError(f"cannot run {path}: {error}") from error


def _fill(plane: DataPlane, path: Path) -> None:
    try:
        count = run_commands(plane, path)
    except OSError as error:
        raise StartError(f"cannot read the entries {path}: {error.strerror}") from error
    except CommandError as error:
        raise StartError(str(error)) from error
    LOG.info("%d commands of %s", count, path)


def _attach(plane: DataPlane, port: Port, pcap: Path | None) -> None:
    capture = None if pcap is None else pcap / f"{port.interface}.pcap"
    try:
        plane.attach(port.number, port.interface, pcap=capture)
    except (OSError, ValueError) as error:
        text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise StartError(f"cannot attach {port.interface} as port {port.number}: {text}") from error

"""`python -m controller`: read the configuration, take the switches over, serve until SIGTERM or SIGINT."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

import grpc

from controller.config import Config, ConfigError, read_config
from controller.configuration.configuration import Configuration
from controller.database.revisions import Revisions
from controller.database.store import Store, StoreError
from controller.fabric.routes import base_entries
from controller.orchestration.registry import Registry
from controller.security.channels import load
from controller.security.files import TlsError
from controller.service.metrics import ControllerMetrics
from controller.service.service import AddressError, ControllerService, make_server
from controller.switches.managed_switch import ManagedSwitch
from controller.switches.switch import Switch
from controller.telemetry.address import MetricsError
from controller.telemetry.server import MetricsServer

logger = logging.getLogger("controller")

_GRACE_S = 0.2
_LOADING = "loading the program"  # in Switch.state
_LOADING_S = 150.0
_RESUMING = 0.2  # of the time that workers have to resume in: to wait for switches at most
_DRAIN_S = 5.0  # what is under way with a switch; the rest is found at the next start


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the controller and return its exit status."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(
        level=options.log_level.upper(), format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr
    )
    try:
        config = read_config(options.config)
        with Store(options.db) as store:
            asyncio.run(serve(config, store, options.listen, metrics=options.metrics))
    except (ConfigError, StoreError, AddressError, MetricsError, TlsError) as error:
        print(f"controller: {error}", file=sys.stderr)
        return 1
    return 0


async def serve(
    config: Config, store: Store, addresses: Sequence[str], *, metrics: str | None = None
) -> None:
    """Run a controller until a signal comes. `metrics`: the address to serve metrics at (None: nowhere).

    Raise StoreError, AddressError, MetricsError or TlsError.
    """
    for tls in (config.tls, config.switch_tls):
        if tls is not None:
            load(tls)  # before anything is touched
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    switches = [
        Switch(
            switch,
            base_entries(config, switch),
            on_change=lambda changed: registry.manager.on_switch_change(changed.config.name),
            tls=config.switch_tls,
        )
        for switch in config.switches
    ]
    registry = Registry(config, store, [ManagedSwitch(switch) for switch in switches])
    registry.load()
    configuration = Configuration(registry, Revisions(store.connection))
    configuration.load()
    server: grpc.aio.Server | None = None
    told: MetricsServer | None = None
    background = asyncio.create_task(registry.run())
    try:
        await _until_stopped(stop, _connect(registry, switches))
        if not stop.is_set():
            # Not before: an address that takes connections says that the controller is ready.
            service = ControllerService(registry, configuration=configuration)
            server, bound = make_server(service, addresses, tls=config.tls)
            if metrics is not None:
                collector = ControllerMetrics(service, asyncio.get_running_loop())
                told = MetricsServer(metrics, collector.collect, process=True)
            await server.start()
            registry.listens()
            logger.info("listening on %s%s", ", ".join(bound), " with TLS" if config.tls is not None else "")
            await stop.wait()
    finally:
        registry.stop()
        if told is not None:
            await asyncio.to_thread(told.close)  # not here: a request under way may wait for this loop
        if server is not None:
            await server.stop(_GRACE_S)
        background.cancel()
        await asyncio.gather(background, return_exceptions=True)
        await asyncio.gather(*(switch.close() for switch in switches))
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(registry.drain(), _DRAIN_S)
    logger.info("stopped; jobs that run go on")


async def _connect(registry: Registry, switches: Sequence[Switch]) -> None:
    """Wait until the switches are ready, but not for ever: without, jobs run by ring."""
    timeout_s, loading_s = patience(registry)
    await asyncio.gather(*(switch.start() for switch in switches))
    waits = [_wait_ready(registry.switches[switch.config.name], timeout_s, loading_s) for switch in switches]
    for switch, ready in zip(switches, await asyncio.gather(*waits), strict=True):
        if not ready:
            logger.warning(
                "switch %s at %s is not there after %g s, jobs behind it run by ring: %s",
                *(switch.config.name, switch.config.address, timeout_s, switch.state),
            )


def patience(registry: Registry) -> tuple[float, float]:
    """Return for how many seconds to wait for a switch that is away, and for one that loads the program.

    The wait is shorter if workers want to resume: they wait for the same, even for a single dead switch.
    """
    config = registry.config
    if any(running.job.live and running.job.workers for running in registry.jobs()):
        timeout_s = min(config.switch_timeout_s, _RESUMING * config.resume_timeout_s)
        return timeout_s, timeout_s
    return config.switch_timeout_s, _LOADING_S


async def _wait_ready(switch: ManagedSwitch, timeout_s: float, loading_s: float) -> bool:
    """Tell whether the switch is ready in time; wait longer for one that still loads the program."""
    if await switch.wait_ready(timeout_s):
        return True
    return _LOADING in switch.switch.state and await switch.wait_ready(max(0.0, loading_s - timeout_s))


async def _until_stopped(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """Do `work`, unless the signal to stop comes first."""
    tasks: list[asyncio.Task[Any]] = [asyncio.create_task(work), asyncio.create_task(stop.wait())]
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    for task in done:
        task.result()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m controller", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="switches and hosts, JSON")
    parser.add_argument("--db", type=Path, required=True, metavar="FILE", help="SQLite, survives a restart")
    parser.add_argument(
        "--listen",
        action="append",
        required=True,
        metavar="ADDRESS",
        help="HOST:PORT for agents, or unix:/path; may be given more than once",
    )
    parser.add_argument(
        "--metrics",
        metavar="ADDRESS",
        help="where to serve Prometheus metrics: HOST:PORT or unix:/path (default: nowhere)",
    )
    parser.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"))
    return parser


if __name__ == "__main__":
    sys.exit(main())

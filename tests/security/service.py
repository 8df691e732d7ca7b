"""A controller's service with TLS, or without."""

from __future__ import annotations

from pathlib import Path

from controller.config import Config
from controller.fabric.routes import rack_entries
from controller.security.files import TlsFiles
from tests.controller.fake_switch import FakeSwitch
from tests.controller.service.served import CONFIG, Served


class Service(Served):
    """The controller's service while it is entered."""

    def __init__(self, directory: Path, tls: TlsFiles | None, config: Config = CONFIG) -> None:
        switch = FakeSwitch(config.switches[0], rack_entries(config.switches[0], config.hosts))
        super().__init__(directory / "c.db", switch, tls=tls, config=config)

    def __enter__(self) -> Service:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

"""The controller's configuration of the network: switches, hosts, defaults."""

from __future__ import annotations

import dataclasses
import json
import re
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from controller.security.files import TlsFiles
from controller.security.limits import Limits
from p4src import CPU_PORT, DROP_PORT, MAX_MESSAGE_PACKETS, MAX_PORTS, MAX_RANKS, MAX_WINDOW, PATH_MTUS

MAX_LEAVES = 8
MAX_SPINES = 4
_MOST_MESSAGES = 2**30
_MAX_DEVICE_ID = 0xFFFF  # of switches with links: it is in their MAC and IP addresses there

# InfiniBand's encodings (specification, volume 1, 9.7.5.2.8 and 9.9.2.1), and what is no use to us.
_RC_LIMITS = (
    ("rc_timeout", 1, 31, "4.096 us * 2^timeout; 0 would mean that a lost packet is never sent again"),
    ("rc_retry_count", 0, 7, "a number of 3 bits"),
    ("rc_rnr_retry", 0, 7, "a number of 3 bits, 7 is for ever"),
    ("rc_min_rnr_timer", 0, 31, "a code of 5 bits, 12 is 0.64 ms"),
    ("straggler_rnr_timer", 0, 31, "a code of 5 bits, 24 is 40.96 ms"),
)
MAC = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}")


class ConfigError(Exception):
    """Error in the configuration file; the message says where."""


class Spread(str, Enum):
    """Unit that is spread over the spines: whole jobs, or each job's messages.

    Messages on several paths overtake each other. A reliable connection resends packets that arrive out of
    order (docs/benchmarks.md has figures), so `MESSAGES` is for receivers that accept any order.
    """

    JOBS = "jobs"
    MESSAGES = "messages"


class Target(str, Enum):
    """The kind of switch; everything but the defaults is the same for both."""

    EMBEDDED = "embedded"
    BMV2 = "bmv2"


# Window and packets a message. BMv2's capture buffer holds 32 frames a port.
TARGET_DEFAULTS = {Target.EMBEDDED: (8, 16), Target.BMV2: (4, 4)}


@dataclass(frozen=True, kw_only=True)
class SwitchConfig:
    """One switch. `max_burst`: frames that a port takes back to back (None: any number)."""

    name: str
    device_id: int
    address: str
    target: Target = Target.EMBEDDED
    max_burst: int | None = None

    def defaults(self) -> tuple[int, int]:
        """Return the window and packets a message for jobs that ask for none.

        At most half of `max_burst` is in flight (at least 2 packets).
        """
        window, packets = TARGET_DEFAULTS[self.target]
        while self.max_burst is not None and window * packets > max(2, self.max_burst // 2):
            if packets > 2:
                packets //= 2
            else:
                window //= 2
        return window, packets


def _mac(value: Any, where: str) -> str:
    text = str(value).lower()
    if MAC.fullmatch(text) is None:
        raise ConfigError(f"{where} is {value!r}, not a MAC such as 02:00:00:00:00:01")
    return text


@dataclass(frozen=True, kw_only=True)
class HostConfig:
    """One host: its address in the fabric, and the switch port its link ends at."""

    name: str
    ip: IPv4Address
    mac: str = field(metadata={"read": _mac})
    switch: str
    port: int


@dataclass(frozen=True, kw_only=True)
class LinkConfig:
    """A link between a leaf, `a`, and a spine, `b`."""

    a: str
    a_port: int
    b: str
    b_port: int

    @property
    def name(self) -> str:
        """Name of the link, as "l1:s2"."""
        return f"{self.a}:{self.b}"


@dataclass(frozen=True, kw_only=True)
class Config:
    """The whole configuration. Times in seconds, path MTU in bytes.

    Switches that links lead to from others are spines, all others leaves. A probe goes over each link every
    `probe_interval_s` (0: none); the link is down after `probe_lost` in a row without an answer, and up again
    after `probe_found` in a row with one. `spread`: the unit that is spread over the spines.
    slots/admission.py reads `quotas`.

    After `renumber_messages` in the network a job goes on under a new generation (docs/protocol.md, "How many
    messages").

    `limits`: the limits on one peer's requests to the service.

    The service shows `tls` to workers and operators (None: it serves without TLS). The controller shows
    `switch_tls` to switches (None: they serve P4Runtime without TLS).

    RDMA devices bring their queue pairs up with `rc_*`. The switch's RNR NAKs ask them to wait for
    `straggler_rnr_timer`. Both are in InfiniBand's encodings (docs/protocol.md, "Ordinary NICs").
    """

    switches: tuple[SwitchConfig, ...]
    hosts: tuple[HostConfig, ...]
    links: tuple[LinkConfig, ...] = ()
    path_mtu: int = 4096
    window: int | None = None
    message_packets: int | None = None
    check_icrc: bool = True
    auto_create: bool = True
    heartbeat_interval_s: float = 1.0
    heartbeat_timeout_s: float = 15.0
    lost_timeout_s: float = 5.0
    resume_timeout_s: float = 30.0
    switch_timeout_s: float = 10.0
    renumber_messages: int = 2**28
    rc_timeout: int = 16
    rc_retry_count: int = 7
    rc_rnr_retry: int = 7
    rc_min_rnr_timer: int = 12
    straggler_rnr_timer: int = 24
    probe_interval_s: float = 0.5
    probe_lost: int = 4
    probe_found: int = 3
    spread: Spread = Spread.JOBS
    quotas: Mapping[str, Any] = field(default_factory=dict)
    limits: Limits = Limits()  # noqa: RUF009 (it is frozen)
    tls: TlsFiles | None = None
    switch_tls: TlsFiles | None = None
    by_ip: dict[IPv4Address, HostConfig] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_ip", {host.ip: host for host in self.hosts})
        if mistake := next(_mistakes(self), ""):
            raise ConfigError(mistake)

    def switch(self, name: str) -> SwitchConfig:
        """Return the switch of that name, which the checks have seen to exist."""
        return next(switch for switch in self.switches if switch.name == name)

    @property
    def spines(self) -> tuple[str, ...]:
        """The switches between racks, in the order of `switches`."""
        above = {link.b for link in self.links}
        return tuple(switch.name for switch in self.switches if switch.name in above)

    @property
    def leaves(self) -> tuple[str, ...]:
        """The switches that have hosts behind them, or could have."""
        above = {link.b for link in self.links}
        return tuple(switch.name for switch in self.switches if switch.name not in above)

    def role(self, switch: str) -> str:
        """Return "leaf" or "spine"."""
        return "spine" if any(link.b == switch for link in self.links) else "leaf"

    def hosts_of(self, switch: str) -> tuple[HostConfig, ...]:
        """Return the hosts behind a switch."""
        return tuple(host for host in self.hosts if host.switch == switch)


def read_config(path: Path) -> Config:
    """Read a JSON file with the fields above. Raise ConfigError."""
    try:
        return parse_config(json.loads(path.read_text()))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from error
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def parse_config(document: Any) -> Config:
    """Make a Config from JSON's objects and lists; a host without `switch` is behind the only one."""
    top = _object(document, "the configuration")
    switches = _list(SwitchConfig, top, "switches")
    only = {"switch": switches[0].name} if len(switches) == 1 else {}
    parts = {
        "switches": switches,
        "hosts": _list(HostConfig, top, "hosts", **only),
        "links": _list(LinkConfig, top, "links") if top.get("links", []) != [] else (),
    }
    return _build(Config, {**top, **parts}, "the configuration")


_T = TypeVar("_T")


def _list(kind: type[_T], top: dict[str, Any], name: str, **defaults: Any) -> tuple[_T, ...]:
    items = top.get(name)
    if not isinstance(items, list) or not items:
        raise ConfigError(f"{name!r} must be a list with at least one element")
    named = [(f"{name}[{i}]", item) for i, item in enumerate(items)]
    return tuple(_build(kind, {**defaults, **_object(item, where)}, where) for where, item in named)


def _build(kind: type[_T], values: dict[str, Any], where: str) -> _T:
    """Make a dataclass from a JSON object; each field has its declared type."""
    fields = {f.name: f for f in dataclasses.fields(kind) if f.init}  # type: ignore[arg-type]
    unknown = sorted(set(values) - set(fields))
    if unknown:
        raise ConfigError(f"{where} has a field {unknown[0]!r}; known are {', '.join(fields)}")
    if kind is TlsFiles and values.get("ca") is None:
        raise ConfigError(f"{where} has no 'ca': without it everybody would be let in")
    for name, f in fields.items():
        if f.default is f.default_factory is dataclasses.MISSING and name not in values:
            raise ConfigError(f"{where} has no {name!r}")
    hints = get_type_hints(kind)
    read = {
        name: fields[name].metadata.get("read") or partial(_read, hints[name], str(fields[name].type))
        for name in values
    }
    try:
        return kind(**{name: read[name](value, f"{where}.{name}") for name, value in values.items()})
    except ValueError as error:  # of Limits
        raise ConfigError(str(error)) from error


def _read(hint: Any, declared: str, value: Any, where: str) -> Any:
    """Return a field's value. `declared`: its type in words."""
    if isinstance(hint, types.UnionType):
        if value is None:
            return None
        (hint,) = (part for part in get_args(hint) if part is not types.NoneType)
    if get_origin(hint) is tuple:
        return value  # read already
    if get_origin(hint) is Mapping:
        return _object(value, where)
    if dataclasses.is_dataclass(hint):
        made: Any = hint
        return _build(made, _object(value, where), where)
    if issubclass(hint, Enum):
        known = [member.value for member in hint]
        if value not in known:
            raise ConfigError(f"{where} is {value!r}, not one of {', '.join(known)}")
        return hint(value)
    if hint is IPv4Address:
        try:
            return IPv4Address(value)
        except ValueError as error:
            raise ConfigError(f"{where} is {value!r}, not an IPv4 address") from error
    if hint is Path:
        if not isinstance(value, str) or not value:
            raise ConfigError(f"{where} is {value!r}, not the path of a file")
        return Path(value)
    is_flag_for_number = isinstance(value, bool) and hint is not bool
    if is_flag_for_number or not isinstance(value, (int, float) if hint is float else hint):
        raise ConfigError(f"{where} is {value!r}, not of type {declared}")
    return value


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{where} is {type(value).__name__}, not an object")
    return value


def _mistakes(config: Config) -> Iterator[str]:
    """Yield breaches of the rules on several fields; each rule may rely on the checks before it."""
    if not 1 <= config.renumber_messages <= _MOST_MESSAGES:
        yield (
            f"renumber_messages is {config.renumber_messages}, not between 1 and 2^30: a switch sums "
            "the first 2^31 messages of a generation, and some time must be left to begin another"
        )
    for what, values in (
        ("switch name", [s.name for s in config.switches]),
        ("switch address", [s.address for s in config.switches]),
        ("host name", [h.name for h in config.hosts]),
        ("host IP", [str(h.ip) for h in config.hosts]),
        ("host MAC", [h.mac for h in config.hosts]),
        ("switch port", [f"{h.switch} port {h.port}" for h in config.hosts]),
    ):
        yield from (f"{what} {twice} is given twice" for twice in _twice(values))
    names = [switch.name for switch in config.switches]
    for host in config.hosts:
        if host.switch not in names:
            yield f"host {host.name} is behind switch {host.switch!r}; known are {', '.join(names)}"
        yield from _wrong_port(host.port, f"host {host.name}")
    yield from _wrong_links(config)
    if config.path_mtu not in PATH_MTUS:
        yield f"path_mtu {config.path_mtu} is not one of {', '.join(map(str, PATH_MTUS))}"
    try:
        check_window(config.window, config.message_packets)
    except ValueError as error:
        yield str(error)
    if not 0 < config.heartbeat_interval_s < config.heartbeat_timeout_s:
        yield "heartbeat_interval_s must be above 0 and below heartbeat_timeout_s"
    yield from _wrong_absences(config)
    if config.probe_interval_s < 0 or config.probe_lost < 1 or config.probe_found < 1:
        yield "probe_interval_s must not be below 0, probe_lost and probe_found not below 1"
    for name, least, most, meaning in _RC_LIMITS:
        value = getattr(config, name)
        if not least <= value <= most:
            yield f"{name} {value} is not within {least}..{most}: {meaning}"


def _twice(values: Sequence[Any]) -> list[Any]:
    return sorted({value for value in values if values.count(value) > 1})


def _wrong_absences(config: Config) -> Iterator[str]:
    """Check that no worker is dropped during its lease, which is shorter than both of the times below."""
    if not config.lost_timeout_s > 0:
        yield (
            f"lost_timeout_s is {config.lost_timeout_s:g}, and has to be above 0: a worker whose connection "
            "breaks has so long to come back"
        )
    name = min("lost_timeout_s", "heartbeat_timeout_s", key=lambda name: float(getattr(config, name)))
    least = getattr(config, name)
    if not config.resume_timeout_s >= least:
        yield (
            f"resume_timeout_s is {config.resume_timeout_s:g}, and has to be at least {name}, {least:g} s: "
            "after a restart of the controller a worker of an elastic job would be given up while it still "
            "returns results"
        )


def _wrong_port(port: int, where: str) -> Iterator[str]:
    if not 0 <= port < MAX_PORTS or port in (CPU_PORT, DROP_PORT):
        yield f"{where}: port {port} is the CPU or drop port, or beyond 0..{MAX_PORTS - 1}"


def _wrong_links(config: Config) -> Iterator[str]:
    """Check that there are two levels, hosts only behind leaves, and no second link between two switches."""
    if not config.links:
        return
    spines, ids = config.spines, {switch.name: switch.device_id for switch in config.switches}
    used = {(host.switch, host.port): f"host {host.name}" for host in config.hosts}
    for i, link in enumerate(config.links):
        where = f"links[{i}] ({link.name})"
        for end, name, port in (("a", link.a, link.a_port), ("b", link.b, link.b_port)):
            if name not in ids:
                yield f"{where}: {end} is {name!r}; known switches are {', '.join(ids)}"
            if not 0 <= ids[name] <= _MAX_DEVICE_ID:
                yield f"{where}: {name} has device id {ids[name]}, links need 0..{_MAX_DEVICE_ID}"
            yield from _wrong_port(port, f"{where}: {end}_port")
            other = used.setdefault((name, port), where)
            if other != where:
                yield f"{where}: {name} port {port} is taken by {other}"
        if link.a in spines:
            yield (
                f"{where}: {link.a} is a spine, as other links have it as b: a is always the leaf, and there "
                "are two levels"
            )
        if link.name in [before.name for before in config.links[:i]]:
            yield f"{where} is given twice: one link between two switches"
    for host in config.hosts:
        if host.switch in spines:
            yield f"host {host.name} is behind {host.switch}, which is a spine: links lead to it"
    for number in _twice(list(ids.values())):
        yield f"device id {number} is given twice: addresses between switches are made of it"
    for leaf in config.leaves:
        if not any(link.a == leaf for link in config.links):
            yield f"switch {leaf} has no link to any spine, but other leaves have"
        hosts = len(config.hosts_of(leaf))
        if hosts > MAX_RANKS:
            yield f"switch {leaf} has {hosts} hosts: at most {MAX_RANKS} where leaves have links"
    for what, names, most in (("leaves", config.leaves, MAX_LEAVES), ("spines", config.spines, MAX_SPINES)):
        if len(names) > most:
            yield f"there are {len(names)} {what}, {most} are possible"


def check_window(window: int | None, packets: int | None) -> None:
    """Raise ValueError unless the program supports that many messages and packets a message."""
    if window is not None and (window not in (1, 2, 4, 8) or window > MAX_WINDOW):
        raise ValueError(f"a window of {window} messages is not possible: 1, 2, 4 or {MAX_WINDOW}")
    if packets is not None and (packets not in (2, 4, 8, 16, 32, 64) or packets > MAX_MESSAGE_PACKETS):
        raise ValueError(
            f"{packets} packets a message are not possible: a power of two from 2 to {MAX_MESSAGE_PACKETS}"
        )

"""Checks and plans of jobs: sizes, path MTU, in the network or by ring. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from ipaddress import IPv4Address

from controller.api import controller_pb2 as pb
from controller.api.codec import from_proto
from controller.api.errors import InvalidRequestError, NotFoundError, NotPossibleError
from controller.api.messages import MAX_PLANES, Gang, JobSpec, Join, Mode
from controller.config import MAC, Config, HostConfig, check_window
from controller.fabric.graph import ALL_UP
from controller.fabric.trees import Tree
from controller.jobs.specs import Backup, Member
from controller.orchestration.callers import token_hash
from p4src import MAX_RANKS, MAX_SLOTS, PATH_MTUS

MAX_WORLD_SIZE = 256  # ranks have 8 bits in the aggregation header
_FIRST_QPN = 2  # 0 and 1 are management QPs (InfiniBand specification, volume 1, 3.5.3)
_24_BITS = 1 << 24
_LONGEST_HOSTNAME = 253  # of the DNS (RFC 1035)
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@/+-]{0,127}")


def check_spec(config: Config, spec: JobSpec) -> None:
    """Raise InvalidRequestError if the job could never run as it is asked for."""
    if _NAME.fullmatch(spec.name) is None:
        raise InvalidRequestError(
            f"{spec.name!r} is no job name: 1 to 128 letters, digits and . _ : @ / + -, beginning with a "
            "letter, digit or _"
        )
    where = f"job {spec.name}"
    _check_gang(spec.name, spec.gang)
    if not 1 <= spec.world_size <= MAX_WORLD_SIZE:
        raise InvalidRequestError(
            f"{where}: a world size of {spec.world_size} is not possible: 1 to {MAX_WORLD_SIZE}"
        )
    most = min(MAX_RANKS * len(config.leaves), MAX_WORLD_SIZE) if config.links else MAX_RANKS
    if spec.mode is Mode.IN_NETWORK and not 1 < spec.world_size <= most:
        what = "a fabric of this size" if config.links else "a switch"
        raise InvalidRequestError(
            f"{where}: {what} adds up for 2 to {most} workers, not {spec.world_size}: ask for "
            "ring mode, or leave the mode open"
        )
    if spec.min_workers and not spec.elastic:
        raise InvalidRequestError(
            f"{where}: only an elastic job goes on with fewer workers: ask for that, or leave out min_workers"
        )
    if not 0 <= spec.min_workers <= spec.world_size:
        raise InvalidRequestError(
            f"{where}: {spec.min_workers} is no least number of its {spec.world_size} workers"
        )
    if spec.path_mtu is not None:
        _check_path_mtu(spec.path_mtu, where)
        if spec.path_mtu > config.path_mtu:
            raise InvalidRequestError(
                f"{where}: path MTU {spec.path_mtu} is too large, this network "
                f"carries {config.path_mtu} at most"
            )
    slots = 2 * (spec.window or 1) * (spec.message_packets or 1)
    if slots > MAX_SLOTS:
        raise InvalidRequestError(
            f"{where} needs {slots} slots (2 x window {spec.window or 1} x {spec.message_packets or 1} "
            f"packets a message), a switch has {MAX_SLOTS}: ask for a window of at most 8, 64 packets at most"
        )
    try:
        check_window(spec.window, spec.message_packets)
    except ValueError as error:
        raise InvalidRequestError(f"{where}: {error}") from error


def planes_of(spec: JobSpec) -> list[JobSpec]:
    """Split a request for a gang by its name into its planes. Raise InvalidRequestError.

    The request's world size and least number of workers count all GPUs; a machine goes on whole or not at
    all.
    """
    gang = spec.gang
    if gang is None or spec.name != gang.name:
        return [spec]
    if not 1 <= gang.planes <= MAX_PLANES:
        raise InvalidRequestError(gang.wrong_with(gang.job_of(gang.plane)))
    if spec.world_size < gang.planes or spec.world_size % gang.planes:
        raise InvalidRequestError(
            f"gang {gang.name}: {spec.world_size} workers cannot be {gang.planes} on each machine: the "
            f"number has to be a multiple of {gang.planes}"
        )
    return [
        replace(
            spec,
            name=gang.job_of(plane),
            world_size=spec.world_size // gang.planes,
            min_workers=-(-spec.min_workers // gang.planes),
            gang=replace(gang, plane=plane),
        )
        for plane in range(gang.planes)
    ]


def _check_gang(job: str, gang: Gang | None) -> None:
    if gang is not None and (wrong := gang.wrong_with(job)):
        raise InvalidRequestError(wrong)


def spec_from(message: pb.JobSpec) -> JobSpec:
    """Return the request of CreateJob. Raise InvalidRequestError for an unknown mode."""
    if message.mode not in (pb.MODE_UNSPECIFIED, pb.IN_NETWORK, pb.RING):
        raise InvalidRequestError(f"job {message.name[:128]!r}: there is no mode {message.mode}")
    return replace(from_proto(JobSpec, message), token_hash=token_hash(message.join_token))


def member_from(config: Config, join: Join) -> Member:
    """Return the worker that asks to join. Raise InvalidRequestError or NotFoundError if it cannot be one."""
    worker = join.worker
    who = f"job {join.job}, rank {worker.rank} ({worker.hostname or worker.ip})"
    if len(worker.hostname) > _LONGEST_HOSTNAME or not worker.hostname.isprintable():
        raise InvalidRequestError(
            f"job {join.job[:128]!r}, rank {worker.rank}: {worker.hostname[:64]!r} is no host name"
        )
    _check_gang(join.job, join.gang)
    host = _host(config, worker.ip, who)
    if worker.mac.lower() != host.mac:
        raise InvalidRequestError(
            f"{who}: host {host.name} has the MAC {host.mac} in the controller's configuration, the worker "
            f"says {worker.mac!r}: use the interface that is connected to the switch"
        )
    check_qps(who, qpn_out=worker.qpn_out, psn_out=worker.psn_out, qpn_in=worker.qpn_in)
    _check_path_mtu(join.path_mtu_max, who)
    return Member(
        rank=worker.rank,
        mac=host.mac,
        ip=worker.ip,
        qpn_out=worker.qpn_out,
        psn_out=worker.psn_out,
        qpn_in=worker.qpn_in,
        hostname=worker.hostname,
        host=host.name,
        path_mtu_max=join.path_mtu_max,
        rnr_nak=join.rnr_nak,
        selective=join.selective,
        backup=_backup(join, who),
        plane=None if join.gang is None else join.gang.plane,
    )


def check_qps(who: str, *, qpn_out: int, psn_out: int, qpn_in: int) -> None:
    """Raise InvalidRequestError if these cannot be a worker's QPs."""
    for what, number, least in (
        ("qpn_out", qpn_out, _FIRST_QPN),
        ("qpn_in", qpn_in, _FIRST_QPN),
        ("psn_out", psn_out, 0),
    ):
        if not least <= number < _24_BITS:
            raise InvalidRequestError(f"{who}: {what} {number} is not within {least}..{_24_BITS - 1}")
    if qpn_out == qpn_in:
        raise InvalidRequestError(f"{who}: both QPs have the number {qpn_in}")


def _backup(join: Join, who: str) -> Backup | None:
    if join.backup_ip is None:
        if join.backup_mac:
            raise InvalidRequestError(f"{who}: backup_mac {join.backup_mac!r} comes without a backup_ip")
        return None
    mac = join.backup_mac.lower()
    if MAC.fullmatch(mac) is None:
        raise InvalidRequestError(
            f"{who}: backup_mac {join.backup_mac!r} is not a MAC such as 02:00:00:00:00:01"
        )
    _check_path_mtu(join.backup_path_mtu, f"{who}: backup interface")
    return Backup(mac=mac, ip=join.backup_ip, path_mtu=join.backup_path_mtu)


def path_mtu(config: Config, spec: JobSpec, members: Sequence[Member], *, backup: bool = False) -> int:
    """Return the largest path MTU that every link carries, or the job's own, which `Job.check` has compared.

    With `backup`, return the largest that every backup interface carries, and no larger than asked for.
    """
    if backup:
        carried = min(member.backup.path_mtu for member in members if member.backup is not None)
        return min(spec.path_mtu or carried, carried)
    return spec.path_mtu or min(config.path_mtu, *(member.path_mtu_max for member in members))


def sizes(config: Config, spec: JobSpec, switches: Iterable[str]) -> tuple[int, int]:
    """Return window and packets a message: the job's, else the configuration's, else its switches' least."""
    defaults = [config.switch(switch).defaults() for switch in switches]
    return (
        spec.window or config.window or min(window for window, _ in defaults),
        spec.message_packets or config.message_packets or min(packets for _, packets in defaults),
    )


def switches_of(tree: Tree) -> tuple[str, ...]:
    """Return the switches that a job may need: its leaves, and all spines that join them."""
    return (*tree.leaves, *tree.spines(ALL_UP))


def why_ring(config: Config, spec: JobSpec, members: Sequence[Member]) -> str:
    """Say why switches cannot sum the job, even with enough room; return "" if they can."""
    if spec.mode is Mode.RING:
        return "the job was created with ring mode"
    if len(members) == 1:
        return "a job of one worker has nothing to add up"
    tree = Tree.of(config, members)
    crowded = next((rack for rack in tree.racks if len(rack.members) > MAX_RANKS), None)
    if crowded is not None:
        where = f"{len(crowded.members)} behind {crowded.leaf}" if tree.two_level else f"{len(members)}"
        return f"a switch adds up for {MAX_RANKS} workers at most, the job has {where}"
    if tree.two_level and not tree.spines(ALL_UP):
        names = ", ".join(sorted(tree.leaves))
        joined = "that no spine joins" if config.links else "that are not linked"
        return f"the workers are behind different switches {joined}: {names}"
    return ""


def selective(spec: JobSpec, members: Sequence[Member]) -> bool:
    """Tell whether only lost packets are resent: no worker asks for go-back-N or is on an RDMA device."""
    return False not in _asked(spec, members) and _on_a_device(members) is None


def require_selective(spec: JobSpec, members: Sequence[Member]) -> None:
    """Raise NotPossibleError if selective retransmission is asked for and not possible."""
    device = _on_a_device(members)
    if device is not None and True in _asked(spec, members):
        raise NotPossibleError(
            f"selective retransmission was asked for, but {device} is on an RDMA device, which goes back to "
            "what was lost: leave 'selective' out, or let all workers use the transport 'userspace'"
        )


def _asked(spec: JobSpec, members: Sequence[Member]) -> tuple[bool | None, ...]:
    return (spec.selective,) if spec.selective is not None else tuple(member.selective for member in members)


def _on_a_device(members: Sequence[Member]) -> Member | None:
    return next((member for member in members if member.rnr_nak), None)


def _host(config: Config, ip: IPv4Address, who: str) -> HostConfig:
    host = config.by_ip.get(ip)
    if host is None:
        known = ", ".join(f"{h.name} {h.ip}" for h in config.hosts[:4]) + (
            ", ..." if config.hosts[4:] else ""
        )
        raise NotFoundError(f"{who}: {ip} is no host of this network, known are {known}")
    return host


def _check_path_mtu(value: int, where: str) -> None:
    if value not in PATH_MTUS:
        raise InvalidRequestError(f"{where}: path MTU {value} is none of {', '.join(map(str, PATH_MTUS))}")

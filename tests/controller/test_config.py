"""Queue pairs and links in the configuration: they are checked before anybody joins."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from controller.config import ConfigError, Spread, parse_config
from controller.jobs.specs import Timing
from tests.controller.bench import RACK, fabric

DOCUMENT: dict[str, Any] = {
    "switches": [{"name": "s1", "device_id": 1, "address": "127.0.0.1:1"}],
    "hosts": [{"name": "h1", "ip": "10.0.0.1", "mac": "02:00:00:00:00:01", "port": 1}],
}
RC = {
    "rc_timeout": (16, 1, 31),
    "rc_retry_count": (7, 0, 7),
    "rc_rnr_retry": (7, 0, 7),
    "rc_min_rnr_timer": (12, 0, 31),
    "straggler_rnr_timer": (24, 0, 31),
}


@pytest.mark.parametrize("name", RC)
def test_queue_pair_parameters_have_defaults_and_limits(name: str) -> None:
    default, least, most = RC[name]
    assert getattr(parse_config(DOCUMENT), name) == default
    for value in (least, most):
        assert getattr(parse_config({**DOCUMENT, name: value}), name) == value
    for value in (least - 1, most + 1):
        with pytest.raises(ConfigError, match=rf"{name} {value} is not within {least}..{most}: .{{15}}"):
            parse_config({**DOCUMENT, name: value})
    with pytest.raises(ConfigError, match=rf"{name} is 'long', not of type int"):
        parse_config({**DOCUMENT, name: "long"})


def test_the_same_is_checked_without_a_file() -> None:
    with pytest.raises(ConfigError, match="0 would mean that a lost packet is never sent again"):
        replace(RACK, rc_timeout=0)


def test_a_restart_of_the_controller_gives_nobody_up_within_its_lease() -> None:
    for config, shorter in (
        (RACK, "lost_timeout_s, 5 s"),
        (replace(RACK, lost_timeout_s=20.0), "heartbeat_timeout_s, 15 s"),
        (replace(RACK, heartbeat_timeout_s=2.0), "heartbeat_timeout_s, 2 s"),
    ):
        least = min(config.lost_timeout_s, config.heartbeat_timeout_s)
        lease_s = Timing(
            heartbeat_interval_s=config.heartbeat_interval_s,
            heartbeat_timeout_s=config.heartbeat_timeout_s,
            resume_timeout_s=least,
            lost_timeout_s=config.lost_timeout_s,
        ).lease_s
        assert lease_s < replace(config, resume_timeout_s=least).resume_timeout_s
        for value in (least - 0.01, 0.0, -1.0, float("nan")):
            with pytest.raises(
                ConfigError, match=rf"resume_timeout_s is {value:g}, and has to be at least {shorter}"
            ):
                replace(config, resume_timeout_s=value)


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan")])
def test_without_any_time_nobody_could_come_back(value: float) -> None:
    with pytest.raises(ConfigError, match=rf"lost_timeout_s is {value:g}, and has to be above 0"):
        replace(RACK, lost_timeout_s=value)


FABRIC: dict[str, Any] = {
    "switches": [
        {"name": name, "device_id": number, "address": f"127.0.0.1:{number}"}
        for name, number in (("l1", 1), ("l2", 2), ("s1", 101), ("s2", 102))
    ],
    "hosts": [
        {"name": f"h{n}", "ip": f"10.0.{n}.1", "mac": f"02:00:00:00:00:0{n}", "switch": f"l{n}", "port": 1}
        for n in (1, 2)
    ],
    "links": [
        {"a": f"l{leaf}", "a_port": 100 + spine, "b": f"s{spine}", "b_port": leaf}
        for leaf in (1, 2)
        for spine in (1, 2)
    ],
    "quotas": {"job_slots": 128, "tenants": {"team": {"weight": 2.0}}},
}


def test_who_is_leaf_and_who_is_spine_follows_from_the_links() -> None:
    config = parse_config(FABRIC)
    assert (config.leaves, config.spines) == (("l1", "l2"), ("s1", "s2"))
    assert (config.role("l2"), config.role("s1")) == ("leaf", "spine")
    assert [link.name for link in config.links] == ["l1:s1", "l1:s2", "l2:s1", "l2:s2"]
    rack = parse_config(DOCUMENT)
    assert (rack.leaves, rack.spines, rack.role("s1")) == (("s1",), (), "leaf")
    assert parse_config({**DOCUMENT, "links": []}) == rack


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"links": [{"a": "l1", "a_port": 1}]}, r"links\[0\] has no 'b'"),
        ({"links": "l1"}, "'links' must be a list"),
        (
            {"links": [{"a": "l9", "a_port": 9, "b": "s1", "b_port": 1}]},
            r"links\[0\] \(l9:s1\): a is 'l9'; known",
        ),
        (
            {"links": [*FABRIC["links"], {"a": "s1", "a_port": 9, "b": "l1", "b_port": 9}]},
            "l1 is a spine, as other links have it as b: a is always the leaf",
        ),
        (
            {"links": [*FABRIC["links"], {"a": "l1", "a_port": 9, "b": "s1", "b_port": 9}]},
            r"links\[4\] \(l1:s1\) is given twice",
        ),
        (
            {"links": [*FABRIC["links"][1:], {"a": "l1", "a_port": 1, "b": "s1", "b_port": 1}]},
            "l1 port 1 is taken by host h1",
        ),
        (
            {"links": [*FABRIC["links"][1:], {"a": "l1", "a_port": 9, "b": "s1", "b_port": 2}]},
            r"s1 port 2 is taken by links\[1\]",
        ),
        (
            {"links": [*FABRIC["links"][1:], {"a": "l1", "a_port": 255, "b": "s1", "b_port": 1}]},
            "a_port: port 255 is the CPU or drop port",
        ),
        ({"links": FABRIC["links"][:2]}, "switch l2 has no link to any spine, but other leaves have"),
        (
            {"hosts": [{**FABRIC["hosts"][0], "switch": "s1", "port": 7}, FABRIC["hosts"][1]]},
            "host h1 is behind s1, which is a spine",
        ),
        (
            {"switches": [*FABRIC["switches"][:3], {**FABRIC["switches"][3], "device_id": 1}]},
            "device id 1 is given twice",
        ),
        (
            {"switches": [*FABRIC["switches"][:3], {**FABRIC["switches"][3], "device_id": 70000}]},
            "s2 has device id 70000, links need 0..65535",
        ),
        ({"quotas": 3}, "quotas is int, not an object"),
        ({"probe_interval_s": -1}, "probe_interval_s must not be below 0"),
        ({"probe_lost": 0}, "probe_lost and probe_found not below 1"),
    ],
)
def test_what_is_wrong_with_a_fabric_is_said(change: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        parse_config({**FABRIC, **change})


def test_a_fabric_has_limits() -> None:
    with pytest.raises(ConfigError, match="switch l1 has 33 hosts: at most 32"):
        fabric((33, 1), spines=1)
    with pytest.raises(ConfigError, match="there are 9 leaves, 8 are possible"):
        fabric((1,) * 9, spines=1)
    with pytest.raises(ConfigError, match="there are 5 spines, 4 are possible"):
        fabric((1, 1), spines=5)
    fabric((8,) * 8, spines=4)


def test_what_is_spread_over_spines() -> None:
    assert parse_config(DOCUMENT).spread is Spread.JOBS
    assert parse_config({**DOCUMENT, "spread": "messages"}).spread is Spread.MESSAGES
    for wrong in ("packets", ["jobs"]):
        with pytest.raises(ConfigError, match=r"spread is .*, not one of jobs, messages"):
            parse_config({**DOCUMENT, "spread": wrong})

"""What the configuration says of queue pairs is checked before anybody joins."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from controller.config import ConfigError, parse_config
from tests.controller.test_registry import CONFIG

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
        replace(CONFIG, rc_timeout=0)

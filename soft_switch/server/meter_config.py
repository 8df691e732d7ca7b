"""Configurations of meters, between their messages and the data plane's.

Source: P4Runtime specification, section "MeterEntry & DirectMeterEntry". As in simple_switch_grpc, -1 for
all four numbers means the default: every packet is green.
"""

from __future__ import annotations

from finsy.proto import p4i, p4r

from soft_switch.description import MeterConfig
from soft_switch.server.errors import invalid, unimplemented
from soft_switch.server.schema import Meter

COUNTERS_TEXT = "meters do not count packets by color on this switch: leave the counter data out"


def parse_config(meter: Meter, message: p4r.MeterConfig) -> MeterConfig | None:
    """Return the configuration of a cell; INVALID_ARGUMENT says what the meter's type does not allow."""
    config = MeterConfig(message.cir, message.cburst, message.pir, message.pburst)
    rates = {"cir": config.cir, "cburst": config.cburst, "pir": config.pir, "pburst": config.pburst}
    if set(rates.values()) == {-1} and message.eburst == 0:
        return None
    for name, value in rates.items():
        if value < 0:
            raise invalid(f"meter {meter.name}: {name} is {value}, it cannot be negative")
    if message.eburst and meter.type != p4i.MeterSpec.SINGLE_RATE_THREE_COLOR:
        raise invalid(f"meter {meter.name} has no excess burst: eburst is for single-rate three-color meters")
    if meter.type == p4i.MeterSpec.TWO_RATE_THREE_COLOR:
        if config.pir < config.cir:
            raise invalid(f"meter {meter.name}: pir {config.pir} is less than cir {config.cir}")
        return config
    if (config.pir, config.pburst) != (config.cir, config.cburst):
        raise invalid(f"meter {meter.name} has a single rate: pir and pburst must equal cir and cburst")
    if message.eburst:
        raise unimplemented(f"meter {meter.name}: single-rate meters with an excess burst are not supported")
    return config


def format_config(config: MeterConfig) -> p4r.MeterConfig:
    """Return the message of a configuration."""
    return p4r.MeterConfig(cir=config.cir, cburst=config.cburst, pir=config.pir, pburst=config.pburst)

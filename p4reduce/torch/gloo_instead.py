"""Gloo where a script asks for p4reduce: the other side of `p4reduce torch --compare gloo`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch.distributed as dist

from host_agent.netinfo import find_interface
from p4reduce import torch_environment, torch_recording
from p4reduce.workloads.torch_runs.record import GLOO, INSTEAD


def wanted(variables: Mapping[str, str]) -> bool:
    """Tell whether the environment asks for Gloo."""
    return variables.get(INSTEAD, "") == GLOO


def create(given: Any) -> dist.ProcessGroupGloo:
    """Create Gloo's group, over TCP on the interface that the job's data would take."""
    options = dist.ProcessGroupGloo._Options()
    options._timeout = given.timeout
    interface = find_interface(controller=os.environ[torch_environment.CONTROLLER]).name
    options._devices = [dist.ProcessGroupGloo.create_device(interface=interface)]
    torch_recording.note(backend=GLOO)
    return dist.ProcessGroupGloo(given.store, given.group_rank, given.group_size, options)

"""PyTorch's `distributed_test`: its checks for Gloo, with Gloo or with p4reduce in its place."""

from __future__ import annotations

import os
import traceback
import unittest
from datetime import timedelta
from typing import Any, Final

import torch.distributed as dist

from tests.torch_suite.gloo import SOCKET_INTERFACE, on_the_data_interface

# Before it is imported: what it runs depends on that.
os.environ["BACKEND"] = "gloo"
os.environ["INIT_METHOD"] = f"file://{os.environ['TEMP_DIR']}/init_dir/file"
os.environ["PYTORCH_PRINT_REPRO_ON_FAILURE"] = "0"

from torch.testing._internal.common_distributed import TEST_SKIPS
from torch.testing._internal.common_utils import TestCase
from torch.testing._internal.distributed import distributed_test

_BARRIER_S: Final = 60  # by files; a busy machine is slow
_SKIPS: Final = {skip.exit_code: name for name, skip in TEST_SKIPS.items()}


class _Tests(TestCase, distributed_test.DistributedTest._DistTestBase):  # type: ignore[misc]
    """PyTorch's tests, as methods, with what the class that starts a process for each would give them."""

    rank = int(os.environ["RANK"])
    world_size = os.environ["WORLD_SIZE"]
    init_method = os.environ["INIT_METHOD"]
    file_name = os.path.join(os.environ["TEMP_DIR"], "init_dir", "file")
    skip_return_code_checks: Final[list[Any]] = []

    def _should_stop_test_suite(self) -> bool:
        return False


class Upstream:
    """PyTorch's tests with `backend` where they say Gloo; a second group that asks for Gloo gets it."""

    def __init__(self, backend: str) -> None:
        self._backend = backend
        if backend == "p4reduce":
            import p4reduce.torch  # noqa: F401 (registers itself)
        else:
            os.environ[SOCKET_INTERFACE] = os.environ["DATA_INTERFACE"]
        self._init, self._new_group = dist.init_process_group, dist.new_group
        for module in (dist, dist.distributed_c10d):
            module.init_process_group = self._init_process_group
        distributed_test.dist.new_group = self._make_group
        distributed_test.Barrier.sync.__func__.__defaults__ = (None, _BARRIER_S)

    def _init_process_group(self, backend: str | None = None, *arguments: Any, **named: Any) -> None:
        self._init(self._backend if backend == "gloo" else backend, *arguments, **named)

    def _make_group(self, *arguments: Any, **named: Any) -> Any:
        if named.get("backend") == "gloo":
            with on_the_data_interface():
                return self._new_group(*arguments, **named)
        return self._new_group(*arguments, **named)

    def names(self) -> list[str]:
        return list(unittest.TestLoader().getTestCaseNames(_Tests))

    def open(self, store: Any, timeout: timedelta) -> None:
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self._init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timeout)
        distributed_test.Barrier.barrier_id = 0
        if rank == 0:
            distributed_test.Barrier.init()

    def close(self) -> None:
        if dist.is_initialized():
            try:
                dist.destroy_process_group()
            except Exception:  # noqa: BLE001 (a check broke it; the second time, nobody is asked any more)
                traceback.print_exc()
                dist.destroy_process_group()

    def run(self, name: str) -> bool:
        test = _Tests(name)
        method = getattr(test, name)
        if getattr(method, "__unittest_skip__", False):
            raise unittest.SkipTest(method.__unittest_skip_why__)
        try:
            test.setUp()
            try:
                method()
            finally:
                test.tearDown()
                test.doCleanups()
        except SystemExit as end:  # its way of skipping, in the process that it starts for a test
            raise unittest.SkipTest(_SKIPS.get(end.code, f"exit code {end.code}")) from None
        # A time-out that Gloo was made to have breaks its connections.
        return dist.is_initialized() and "timeout" not in name

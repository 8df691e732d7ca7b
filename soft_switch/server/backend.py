"""What the P4Runtime server asks of a data plane.

`soft_switch.dataplane.DataPlane` is the one that moves packets. `soft_switch.server.shadow.Shadow` keeps
forwarding state only: it stands in for a pipeline that is saved but not yet committed, and in the tests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from soft_switch.description import Match, MeterConfig, Target

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class ForwardingBackend(Protocol):
    """Tables, arrays and value sets of the running program, by their P4 names, and packet replication."""

    def insert(
        self,
        table: str,
        match: Sequence[Match],
        *,
        priority: int,
        action: str | None = None,
        params: Sequence[int] = (),
        target: Target | None = None,
    ) -> int: ...

    def modify(
        self,
        table: str,
        handle: int,
        *,
        action: str | None = None,
        params: Sequence[int] = (),
        target: Target | None = None,
    ) -> None: ...

    def delete(self, table: str, handle: int) -> None: ...

    def set_default(self, table: str, action: str | None, params: Sequence[int] = ()) -> None: ...

    def idle_ns(self, table: str, handle: int) -> int: ...

    def port_is_up(self, port: int) -> bool | None: ...

    def profile_member_insert(self, profile: str, action: str, params: Sequence[int]) -> int: ...

    def profile_member_modify(
        self, profile: str, member: int, action: str, params: Sequence[int]
    ) -> None: ...

    def profile_member_delete(self, profile: str, member: int) -> None: ...

    def profile_group_insert(self, profile: str, members: Sequence[int]) -> int: ...

    def profile_group_modify(self, profile: str, group: int, members: Sequence[int]) -> None: ...

    def profile_group_delete(self, profile: str, group: int) -> None: ...

    def counter_read(self, name: str, index: int) -> tuple[int, int]: ...

    def counter_read_all(self, name: str) -> npt.NDArray[np.uint64]: ...

    def counter_write(self, name: str, index: int, packets: int, bytes_: int) -> None: ...

    def direct_counter_read(self, table: str, handle: int) -> tuple[int, int]: ...

    def direct_counter_write(self, table: str, handle: int, packets: int, bytes_: int) -> None: ...

    def register_read(self, name: str, index: int) -> int: ...

    def register_write(self, name: str, index: int, value: int) -> None: ...

    def meter_read(self, name: str, index: int) -> MeterConfig | None: ...

    def meter_write(self, name: str, index: int, config: MeterConfig | None) -> None: ...

    def direct_meter_read(self, table: str, handle: int) -> MeterConfig | None: ...

    def direct_meter_write(self, table: str, handle: int, config: MeterConfig | None) -> None: ...

    def value_set_write(self, name: str, members: Sequence[Sequence[Match]]) -> None: ...

    def multicast_set(self, group: int, replicas: Sequence[tuple[int, int]]) -> None: ...

    def multicast_delete(self, group: int) -> None: ...

    def clone_set(
        self, session: int, replicas: Sequence[tuple[int, int]], packet_length: int = 0
    ) -> None: ...

    def clone_delete(self, session: int) -> None: ...


class Backend(ForwardingBackend, Protocol):
    """A forwarding backend that also loads programs and exchanges packets and digests with the controller."""

    def load(self, program_json: bytes) -> None: ...

    def packet_out(self, data: bytes) -> None: ...

    def on_packet_in(self, callback: Callable[[bytes], None]) -> None: ...

    def on_digest(self, callback: Callable[[str, tuple[int, ...]], None]) -> None: ...

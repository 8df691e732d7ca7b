"""Properties of any sequence of arbitration requests."""

from __future__ import annotations

import pytest
from finsy.proto import U128, p4r, rpc_code
from hypothesis import given
from hypothesis import strategies as st

from soft_switch.server.arbitration import Arbiter
from soft_switch.server.errors import P4RuntimeError

pytestmark = pytest.mark.slow

bids = st.tuples(st.integers(1, 5), st.sampled_from(["", "r"]), st.none() | st.integers(0, 6))
leaves = st.integers(1, 5)


@given(st.lists(bids | leaves, max_size=40), st.booleans())
def test_what_a_controller_heard_last_is_true(
    events: list[tuple[int, str, int | None] | int], promote: bool
) -> None:
    """Check that a role has at most one primary, the right one, and every controller knows whether it is."""
    arbiter = Arbiter(1, promote=promote)
    live: dict[str, dict[int, int | None]] = {"": {}, "r": {}}
    highest: dict[str, int | None] = {"": None, "r": None}
    heard: dict[int, p4r.MasterArbitrationUpdate] = {}
    for event in events:
        session = event if isinstance(event, int) else event[0]
        try:
            if isinstance(event, int):
                raise EOFError
            _, name, election_id = event
            message = p4r.MasterArbitrationUpdate(device_id=1, role=p4r.Role(name=name))
            if election_id is not None:
                message.election_id.CopyFrom(U128.encode(election_id))
            notices = arbiter.update(session, message)
        except (P4RuntimeError, EOFError):  # a refused update ends the stream
            notices = arbiter.leave(session)
            for members in live.values():
                members.pop(session, None)
            heard.pop(session, None)
        else:
            live[name][session] = election_id
            if election_id is not None:
                highest[name] = max(election_id, highest[name] or 0)
        for receiver, notice in notices:
            heard[receiver] = notice
        primaries = []
        for name, members in live.items():
            ids = {election_id: member for member, election_id in members.items() if election_id is not None}
            assert len(ids) == sum(election_id is not None for election_id in members.values())
            top = max(ids, default=None)
            primary = ids[top] if top is not None and (promote or top == highest[name]) else None
            if primary is not None:
                primaries.append(primary)
            for member in members:
                code = heard[member].status.code
                assert arbiter.is_primary(member) == (member == primary)
                if primary is None:
                    assert code == rpc_code.NOT_FOUND
                else:
                    assert code == (rpc_code.OK if member == primary else rpc_code.ALREADY_EXISTS)
                    assert U128.decode(heard[member].election_id) == top
        assert sorted(arbiter.primaries()) == sorted(primaries)

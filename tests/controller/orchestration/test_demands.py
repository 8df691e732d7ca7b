"""Tenants of jobs: who may say that a job is of a tenant, whose quota it counts against."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller.api.errors import NotAllowedError, UnreachableError
from controller.api.messages import Gang, JobSpec, Resumed
from controller.slots.admission import Quotas, parse_quotas
from tests.controller.bench import Bench
from tests.controller.told import heard

RED = parse_quotas({"tenants": {"red": {"hosts": ["h1", "h2"]}}})


@pytest.fixture
def owned(b: Bench) -> Bench:
    """A rack of which two hosts are tenant red's."""
    b.registry.waitlist.set_quotas(RED)
    return b


async def test_a_worker_says_the_tenant_of_its_host_and_no_other(owned: Bench) -> None:
    for host, tenant in ((2, "red"), (0, ""), (0, "blue")):
        with pytest.raises(NotAllowedError, match=f"host h{host + 1} does not belong to tenant"):
            await owned.join("train", (host,), tenant=tenant)
        assert "train" not in owned.registry.book.by_name
    await owned.run_job("train", (0, 1), tenant="red")
    await owned.run_job("other", (2, 3), tenant="blue")


async def test_neither_does_a_worker_that_comes_second_nor_that_of_another_plane(owned: Bench) -> None:
    first = owned.registry.sessions.join("train", 2, owned.member(0, 0, qp=0x900), "red")
    with pytest.raises(NotAllowedError, match="host h3 does not belong to tenant red, it has h1, h2"):
        owned.registry.sessions.join("train", 2, owned.member(1, 2, qp=0x900), "red")
    assert first.is_current
    await owned.join("gang/0", (0, 1), tenant="red", gang=Gang("gang", 0, 2))
    with pytest.raises(NotAllowedError, match="host h3"):
        await owned.join("gang/1", (2, 3), tenant="red", gang=Gang("gang", 1, 2))


async def test_an_operator_may_create_a_job_of_any_tenant_for_any_hosts(owned: Bench) -> None:
    owned.registry.create_job(JobSpec(name="train", world_size=2, tenant="red"))
    await owned.run_job("train", (2, 3))
    owned.registry.create_job(JobSpec(name="other", world_size=2, tenant="blue"))
    await owned.run_job("other", (0, 1), tenant="blue")


@pytest.mark.parametrize("created", [False, True])
async def test_workers_that_tell_of_a_job_say_no_other_tenant_either(b: Bench, created: bool) -> None:
    known = [replace(one, spec=replace(one.spec, tenant="red")) for one in await b.run_known(3)]
    await b.restart_on_a_new_database()
    b.registry.waitlist.set_quotas(RED)
    if created:  # an operator says so
        b.registry.create_job(JobSpec(name="train", world_size=3, tenant="red"))
        back = b.all_tell(known)
        assert all(Resumed() in heard(session) for session in back)
        return
    for one in known[:2]:
        with pytest.raises(UnreachableError):
            b.tell(one)
    for one in known[::-1]:
        with pytest.raises(NotAllowedError, match="host h3 does not belong to tenant red"):
            b.tell(one)
    b.registry.waitlist.set_quotas(Quotas())
    assert b.tell(known[0]).is_current

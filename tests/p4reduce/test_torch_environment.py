"""Launchers' variables: who a process is, and of which job."""

from __future__ import annotations

import pytest

from p4reduce.torch_environment import adopt, gpus_per_machine, job_of, run_of

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "TORCHELASTIC_RUN_ID": "7f2c"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "2",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "PMIX_NAMESPACE": "912@prterun",
}
SLURM = {
    "SLURM_PROCID": "5",
    "SLURM_NTASKS": "6",
    "SLURM_LOCALID": "0",
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "2",
    "SLURM_LAUNCH_NODE_IPADDR": "10.9.0.1",
}


@pytest.mark.parametrize(
    ("environment", "rank", "size", "address"),
    [(OPEN_MPI, "2", "4", "127.0.0.1"), (SLURM, "5", "6", "10.9.0.1")],
    ids=["mpirun", "srun"],
)
def test_pytorchs_names_are_set_from_the_launchers(
    environment: dict[str, str], rank: str, size: str, address: str
) -> None:
    found = dict(environment)
    adopt(found)
    assert (found["RANK"], found["WORLD_SIZE"], found["MASTER_ADDR"]) == (rank, size, address)
    assert 1024 < int(found["MASTER_PORT"]) < 65536
    again = {**environment}
    adopt(again)
    assert again["MASTER_PORT"] == found["MASTER_PORT"]  # as on the run's other processes
    assert {name: found[name] for name in environment} == environment


def test_runs_have_ports_of_their_own() -> None:
    ports = set()
    for number in range(200):
        found = {**SLURM, "SLURM_JOB_ID": str(481_516 + number)}
        adopt(found)
        ports.add(found["MASTER_PORT"])
    assert len(ports) > 190


def test_a_restart_is_another_job_whoever_named_it() -> None:
    again = {**TORCHRUN, "TORCHELASTIC_RESTART_COUNT": "2"}
    assert (job_of(again), job_of({**again, "P4REDUCE_JOB": "mine"})) == ("torch-7f2c.2", "mine.2")
    assert job_of({**TORCHRUN, "P4REDUCE_JOB": "mine", "TORCHELASTIC_RESTART_COUNT": "0"}) == "mine"


def test_ranks_of_mpich_agree() -> None:
    ranks = [{"PMI_RANK": rank, "PMI_SIZE": "2", "PMI_ID": rank, "PMI_JOBID": "kvs_7"} for rank in "01"]
    for found in ranks:
        adopt(found)
    assert ranks[0]["MASTER_PORT"] == ranks[1]["MASTER_PORT"]
    assert run_of(ranks[0]) == run_of(ranks[1])


def test_what_is_set_stays() -> None:
    found = {**SLURM, "MASTER_ADDR": "node7", "MASTER_PORT": "29500", "WORLD_SIZE": "3"}
    adopt(found)
    assert (found["MASTER_ADDR"], found["MASTER_PORT"], found["WORLD_SIZE"]) == ("node7", "29500", "3")
    rank = {**SLURM, "RANK": "1"}
    adopt(rank)
    assert (rank["RANK"], rank["WORLD_SIZE"]) == ("1", "6")
    torchrun = dict(TORCHRUN)
    adopt(torchrun)
    assert torchrun == TORCHRUN
    nobody: dict[str, str] = {"HOME": "/root"}
    adopt(nobody)
    assert nobody == {"HOME": "/root"}


def test_processes_on_several_machines_need_to_be_told_the_address() -> None:
    found = {**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
    adopt(found)
    assert "MASTER_ADDR" not in found


@pytest.mark.parametrize(
    ("environment", "run", "job"),
    [
        (TORCHRUN, "7f2c", "torch-7f2c"),
        ({**TORCHRUN, "TORCHELASTIC_RESTART_COUNT": "2"}, "7f2c.2", "torch-7f2c.2"),
        ({**TORCHRUN, "TORCHELASTIC_RUN_ID": "none"}, "", ""),
        (SLURM, "4711-2", "torch-4711-2"),
        ({**SLURM, "TORCHELASTIC_RUN_ID": "none"}, "4711-2", "torch-4711-2"),
        (OPEN_MPI, "912@prterun", "torch-912@prterun"),
        ({**OPEN_MPI, "PMIX_NAMESPACE": "a b;c"}, "a b;c", "torch-a-b-c"),
        ({**TORCHRUN, "P4REDUCE_JOB": "mine"}, "7f2c", "mine"),
        ({}, "", ""),
    ],
)
def test_a_jobs_name(environment: dict[str, str], run: str, job: str) -> None:
    assert run_of(environment) == run
    assert job_of(environment) == job


@pytest.mark.parametrize(
    ("environment", "gpus"),
    [
        ({"LOCAL_WORLD_SIZE": "4"}, 4),
        ({"LOCAL_WORLD_SIZE": "4", "LOCAL_SIZE": "2"}, 4),
        ({"RANK": "1", "LOCAL_RANK": "1", "LOCAL_SIZE": "2"}, 2),  # DeepSpeed's launcher
        ({"LOCAL_SIZE": "many"}, 1),
        ({}, 1),
    ],
)
def test_processes_of_a_machine_share_its_link(environment: dict[str, str], gpus: int) -> None:
    assert gpus_per_machine(environment) == gpus

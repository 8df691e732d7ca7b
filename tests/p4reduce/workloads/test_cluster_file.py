"""Cluster files: what they mean, and that every mistake is said with file, line and key."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.config import Target
from p4reduce.workloads.cluster_file import ClusterFile
from p4reduce.workloads.cluster_reading import hosts_of, read, with_jobs
from p4reduce.workloads.torch_runs import script
from p4reduce.workloads.validation import ClusterFileError
from topologies.options import FabricOptions
from topologies.rack import RackOptions
from topologies.spine_leaf import SpineLeafOptions

EXAMPLES = Path(__file__).parents[3] / "examples"
RACK = "topology: {kind: rack, hosts: 3}\n"


def parse(tmp_path: Path, text: str, *, name: str = "c.yaml") -> ClusterFile:
    path = tmp_path / name
    path.write_text(dedent(text))
    return read(path)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_examples(path: Path) -> None:
    found = read(path)
    assert all(found.workload_of(job) for job in found.jobs)
    assert found.fabric_options().name == path.stem
    assert path.read_text().startswith("# ")  # what it shows


def test_the_file_in_the_documentation(tmp_path: Path) -> None:
    pages = (EXAMPLES.parent / "docs/cli.md").read_text()
    (text,) = re.findall(r"\n## run\n.*?```yaml\n(.*?)```", pages, re.DOTALL)
    found = parse(tmp_path, text)
    assert [len(hosts_of(found, job)) for job in found.jobs] == [3, 2]
    assert all(found.workload_of(job) for job in found.jobs)


def test_the_least() -> None:
    assert len(sorted(EXAMPLES.glob("*.yaml"))) >= 2


def test_a_script_is_beside_the_file_and_its_arguments_are_texts(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    found = parse(
        tmp_path,
        """\
        topology: {kind: rack, hosts: 3}
        jobs:
          - {name: a, workload: [{torch: {script: train.py, args: [--steps, 30]}}]}
          - {name: b, workload: [{torch: {module: package.train, args: -x}}]}
          - {name: c, workload: [{train: {}}]}
        """,
    )
    assert found.directory == tmp_path
    told = [found.script_of(job) for job in found.jobs]
    assert told[0] is not None
    assert told[1] is not None
    assert told[0].words == ("train.py", "--steps", "30")
    assert told[1].words == ("-m", "package.train", "-x")
    assert told[2] is None


def test_a_script_needs_pytorch_and_hosts_that_have_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = RACK + "jobs: [{name: a, hosts: [h1, h3]}]\nworkload:\n  - torch: {module: b}\n"
    monkeypatch.setattr(FabricOptions, "validate", lambda options: None)  # there may be no QEMU here
    with pytest.raises(ClusterFileError) as caught:
        parse(tmp_path, text.replace("hosts: 3", "hosts: 3, host_kind: [emulated, roce, roce]"))
    assert "line 4, workload[0].torch: there is no PyTorch in the machines of RoCE hosts (h3)" in str(
        caught.value
    )
    monkeypatch.setattr(script, "gloo_missing", lambda: "it is not there")
    with pytest.raises(ClusterFileError) as caught:
        parse(tmp_path, text)
    assert "line 4, workload[0].torch: PyTorch is not installed for " in str(caught.value)


def test_all_jobs_elastic_is_none_for_scripts(tmp_path: Path) -> None:
    found = parse(tmp_path, RACK + "jobs: [{name: a}]\nworkload: [{torch: {module: b}}]\n")
    with pytest.raises(ClusterFileError, match=r"line 3, .*: a script ends when a worker dies"):
        with_jobs(found, elastic=True)


def test_a_rack(tmp_path: Path) -> None:
    found = parse(
        tmp_path,
        """\
        name: small
        topology: {kind: rack, hosts: 3, rate: 1gbit, path_mtu: 4096}
        switch: {target: embedded, loss: 0.01}
        controller: {window: 4, heartbeat_timeout_s: 9, check_icrc: false}
        """,
    )
    options = found.fabric_options()
    assert isinstance(options, RackOptions)
    assert (options.name, options.hosts, options.path_mtu, options.rate_mbit) == ("small", 3, 4096, 1000.0)
    assert (options.switch, options.switch_loss) == (Target.EMBEDDED, 0.01)
    assert options.controller_options == {"window": 4, "heartbeat_timeout_s": 9.0, "check_icrc": False}
    assert found.fabric_options(name="other").name == "other"


def test_a_spine_leaf_fabric(tmp_path: Path) -> None:
    found = parse(
        tmp_path,
        """\
        topology:
          kind: spine-leaf
          spines: 3
          leaves: 2
          hosts: [3, 1]
          rate: 100
          uplink_rate: none
        controller:
          quotas:
            job_slots: 128
            tenants: {red: {weight: 2, slots: 512}, blue: {hosts: [h1]}}
            preemption: true
        jobs:
          - {name: a, placement: [2, 1]}
          - {name: b, hosts: [h4, h2], window: 2, message_packets: 4, mode: ring, tenant: red}
          - {name: c, workers: 3, placement: spread, start_after_s: 0.5}
        """,
        name="my fabric.yaml",
    )
    options = found.fabric_options()
    assert isinstance(options, SpineLeafOptions)
    assert (options.name, options.spines, options.hosts_per_leaf) == ("my-fabric", 3, (3, 1))
    assert (options.link_shape.rate_mbit, options.uplink_shape.rate_mbit) == (100.0, None)
    assert options.controller_options["quotas"]["tenants"] == {
        "red": {"weight": 2.0, "slots": 512},
        "blue": {"hosts": ["h1"]},
    }
    assert [hosts_of(found, job) for job in found.jobs] == [
        ["h1", "h2", "h4"],
        ["h4", "h2"],
        ["h1", "h4", "h2"],
    ]


def test_a_workload(tmp_path: Path) -> None:
    found = parse(
        tmp_path,
        RACK
        + """\
jobs:
  - name: own
    workload: [{train: {steps: 3}}, {train: {dtype: BFloat16}}]
  - name: common
workload:
  - all_reduce: {bytes: [4K, 12], dtype: [INT32, float32], op: MAX, iterations: 2, late_s: {2: 0.5}}
""",
    )
    own, common = found.jobs
    step, other = found.workload_of(own)
    assert step.train is not None
    assert other.train is not None
    assert (step.train.steps, step.train.dtype) == (3, "float32")
    assert (other.train.steps, other.train.dtype) == (50, "bfloat16")
    (step,) = found.workload_of(common)
    assert step.all_reduce is not None
    assert (step.all_reduce.bytes, step.all_reduce.dtype) == ((4096, 12), ("int32", "float32"))
    assert (step.all_reduce.op, step.all_reduce.late_s) == ("max", {2: 0.5})


MISTAKES: list[tuple[str, int, str, str]] = [
    ("", 1, "", "'topology' is missing"),
    ("jobs: []\n", 1, "", "'topology' is missing"),
    ("- 1\n", 1, "", "this must be a mapping (key: value)"),
    (RACK + "jobs: 3\n", 2, "jobs", "this must be a list"),
    (RACK + "jobs:\n  - name: [a]\n", 3, "jobs[0].name", "this must be a single value"),
    ("topology: {kind: rack\n", 2, "", "not YAML"),
    ("topology: {hosts: 3}\n", 1, "topology", "'kind' is missing"),
    ("topology: {kind: torus}\n", 1, "topology", "'torus' is not known; known are 'rack', 'spine-leaf'"),
    (RACK + "topology: {kind: rack}\n", 2, "", "'topology' is given twice"),
    (RACK + "topolgy: {}\n", 2, "topolgy", "did you mean 'topology'? known here are name, topology"),
    ("topology:\n  kind: rack\n  hosts: 33\n", 3, "topology.hosts", "less than or equal to 32"),
    ("topology:\n  kind: rack\n  hosts: many\n", 3, "topology.hosts", "'many': it should be a valid integer"),
    ("topology:\n  kind: rack\n  spines: 2\n", 3, "topology.spines", "known here are rate, gpus_per_host"),
    ("topology:\n  kind: rack\n  rate: fast\n", 3, "topology.rate", "'fast' is no rate: say 100mbit"),
    ("topology:\n  kind: rack\n  path_mtu: 1500\n", 3, "topology.path_mtu", "256, 512, 1024, 2048, 4096"),
    ("topology:\n  kind: rack\n  loss: 1\n", 3, "topology.loss", "less than 1"),
    ("topology:\n  kind: rack\n  host_kind: tofu\n", 3, "topology.host_kind", "'emulated' or 'roce'"),
    (
        "topology:\n  kind: rack\n  hosts: 3\n  host_kind: [emulated, emulated]\n",
        *(4, "topology.host_kind", "2 kinds of host for 3 hosts"),
    ),
    ("topology:\n  kind: spine-leaf\n  leaves: 9\n", 3, "topology.leaves", "less than or equal to 8"),
    ("topology:\n  kind: spine-leaf\n  spines: 0\n", 3, "topology.spines", "greater than or equal to 1"),
    ("topology:\n  kind: spine-leaf\n  hosts: [3, 2, 1]\n", 3, "topology.hosts", "do not fit 2 leaves"),
    ("topology:\n  kind: spine-leaf\n  hosts: [33, 1]\n", 3, "topology.hosts", "leaf l1 has 1 to 32 hosts"),
    ("topology:\n  kind: spine-leaf\n  leaves: 4\n  hosts: 3\n", 4, "topology.hosts", "leaf l4 has 1 to 32"),
    (RACK + "switch:\n  target: tofino\n", 3, "switch.target", "'embedded' or 'bmv2'"),
    (RACK + "controller:\n  windw: 4\n", 3, "controller.windw", "did you mean 'window'?"),
    (RACK + "controller:\n  spread: widely\n", 3, "controller.spread", "'jobs' or 'messages'"),
    (RACK + "controller:\n  window: 3\n", 3, "controller.window", "3 messages is not possible: 1, 2, 4 or 8"),
    (RACK + "controller:\n  rc_timeout: 0\n", 3, "controller.rc_timeout", "not within 1..31"),
    (RACK + "controller:\n  window: 8\n  probe_lost: 0\n", 4, "controller.probe_lost", "not below 1"),
    (
        RACK + "controller:\n  quotas:\n    tenants:\n      red: {weight: 0}\n",
        *(5, "controller.quotas.tenants.red.weight", "greater than 0"),
    ),
    (
        RACK + "controller:\n  quotas:\n    tenants:\n      red: {slot: 3}\n",
        *(5, "controller.quotas.tenants.red.slot", "did you mean 'slots'?"),
    ),
    (RACK + "jobs:\n  - tenant: red\n", 3, "jobs[0]", "'name' is missing"),
    (RACK + "jobs:\n  - name: a b\n", 3, "jobs[0].name", "'a b'"),
    (RACK + "jobs:\n  - name: a\n    tenant: a b\n", 4, "jobs[0].tenant", "is no tenant's name: 1 to 64"),
    (RACK + "jobs:\n  - name: a\n  - name: a\n", 4, "jobs[1].name", "another job is called 'a' already"),
    (RACK + "jobs:\n  - name: a\n    hosts: [h1, h4]\n", 4, "jobs[0].hosts", "no host 'h4', there are h1"),
    (RACK + "jobs:\n  - name: a\n    hosts: [h1, h1]\n", 4, "jobs[0].hosts", "h1 is named twice"),
    (RACK + "jobs:\n  - name: a\n    workers: 4\n", 4, "jobs[0].workers", "4 workers do not fit 3 hosts"),
    (
        RACK + "jobs:\n  - name: a\n    placement: near\n",
        4,
        "jobs[0].placement",
        "say packed, spread, or how",
    ),
    (RACK + "jobs:\n  - name: a\n    placement: [1, 1]\n", 4, "jobs[0].placement", "2 do not fit 1 leaf"),
    (RACK + "jobs:\n  - name: a\n    window: 3\n", 4, "jobs[0].window", "1, 2, 4 or 8"),
    (RACK + "jobs:\n  - name: a\n    message_packets: 3\n", 4, "jobs[0].message_packets", "power of two"),
    (RACK + "jobs:\n  - name: a\n    path_mtu: 4096\n", 4, "jobs[0].path_mtu", "more than the links' 1024"),
    (RACK + "jobs:\n  - name: a\n    start_after_s: -1\n", 4, "jobs[0].start_after_s", "or equal to 0"),
    (RACK + "workload:\n  - all_reduce: {bytes: 1X}\n", 3, "workload[0].all_reduce.bytes", "say 4096, 64K"),
    (RACK + "workload:\n  - all_reduce: {}\n", 3, "workload[0].all_reduce", "'bytes' is missing"),
    (
        RACK + "workload:\n  - all_reduce: {bytes: 6}\n",
        3,
        "workload[0].all_reduce",
        "6 bytes are not a whole",
    ),
    (
        RACK + "workload:\n  - all_reduce:\n      bytes: 8\n      dtype: [int32, int31]\n",
        *(5, "workload[0].all_reduce.dtype", "'int31' is no element type; there are int32, int64, float32"),
    ),
    (
        RACK + "workload:\n  - all_reduce: {bytes: 8, op: mul}\n",
        3,
        "workload[0].all_reduce.op",
        "there are sum",
    ),
    (
        RACK + "workload:\n  - train: {dtype: int32}\n",
        *(3, "workload[0].train.dtype", "gradients cannot be 'int32'; there are float32, float16, bfloat16"),
    ),
    (RACK + "workload:\n  - train: {dtype: [float16]}\n", 3, "workload[0].train.dtype", "a single value"),
    (RACK + "workload:\n  - {}\n", 3, "workload[0]", "a step is one of all_reduce, train and torch"),
    (RACK + "workload:\n  - torch: {}\n", 3, "workload[0].torch", "a script is one of script (a file) and"),
    (RACK + "workload:\n  - torch: {script: a.py, module: b}\n", 3, "workload[0].torch", "is one of script"),
    (
        RACK + "workload:\n  - torch: {module: b, arg: 1}\n",
        3,
        "workload[0].torch.arg",
        "did you mean 'args'?",
    ),
    (
        RACK + "jobs: [{name: a}]\nworkload:\n  - torch: {script: no.py}\n",
        *(4, "workload[0].torch.script", "there is no script no.py in "),
    ),
    (
        RACK + "jobs:\n  - name: a\n    workload:\n      - train: {}\n      - torch: {module: b}\n",
        *(6, "jobs[0].workload[1].torch", "a script is all that a job does: give job a no other steps"),
    ),
    (
        RACK + "jobs:\n  - name: a\n    elastic: true\n    workload: [{torch: {module: b}}]\n",
        *(5, "jobs[0].workload[0].torch", "a script ends when a worker dies: job a cannot be elastic"),
    ),
    (
        RACK + "jobs: [{name: a}]\nworkload:\n  - all_reduce: {bytes: 8, late_s: {3: 1}}\n",
        *(4, "workload[0].all_reduce.late_s", "job a has no rank 3: its 3 workers are 0 to 2"),
    ),
    (
        RACK + "jobs: [{name: a, mode: ring}]\nworkload: [{all_reduce: {bytes: 8, strategy: in-network}}]\n",
        *(3, "workload[0].all_reduce.strategy", "job a runs by ring (its mode)"),
    ),
    (RACK + "timeout_s: 0\n", 2, "timeout_s", "greater than 0"),
    (RACK + "results: [x]\n", 2, "results", "this must be the name of a file"),
]


@pytest.fixture(autouse=True)
def _pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that PyTorch is there, wherever this runs."""
    monkeypatch.setattr(script, "gloo_missing", lambda: "")


@pytest.mark.parametrize(("text", "line", "key", "why"), MISTAKES, ids=range(len(MISTAKES)))
def test_mistakes(text: str, line: int, key: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    with pytest.raises(ClusterFileError) as caught:
        parse(tmp_path, text)
    (said,) = str(caught.value).splitlines()
    assert said.startswith(f"{path}, line {line}{f', {key}' if key else ''}: "), said
    assert why in said


def test_all_mistakes_are_said_in_the_order_of_their_lines(tmp_path: Path) -> None:
    text = RACK + "jobs:\n  - name: a b\n    window: 3\n    host: h1\n  - workers: 0\ntimeout_s: x\n"
    with pytest.raises(ClusterFileError) as caught:
        parse(tmp_path, text)
    lines = [line.split(": ")[0].partition(", ")[2] for line in str(caught.value).splitlines()]
    assert lines == [
        "line 3, jobs[0].name",
        "line 4, jobs[0].window",
        "line 5, jobs[0].host",
        "line 6, jobs[1]",
        "line 6, jobs[1].workers",
        "line 7, timeout_s",
    ]


@pytest.mark.parametrize("kind", ["spine_leaf", ""])
def test_a_wrong_kind_of_fabric_hides_nothing(kind: str, tmp_path: Path) -> None:
    text = f"topology:\n  kind: {kind}\n  leaves: 9\n  rate: 100mbps\n  hots: 3\ntimeout_s: 0\n"
    with pytest.raises(ClusterFileError) as caught:
        parse(tmp_path, text)
    found = str(caught.value).splitlines()
    expected = ("kind", "leaves", "rate", "'hots' is not known here; did you mean 'hosts'?", "timeout_s")
    assert len(found) == len(expected)
    for line, mistake in zip(found, expected, strict=True):
        assert mistake in line


def test_all_that_does_not_fit_is_said_at_once(tmp_path: Path) -> None:
    text = (
        RACK
        + "jobs:\n  - {name: a, hosts: [h1, h9]}\n  - {name: a, workers: 4}\n  - {name: b, path_mtu: 4096}\n"
    )
    with pytest.raises(ClusterFileError) as caught:
        parse(tmp_path, "controller: {window: 8, rc_timeout: 0}\n" + text)
    lines = [line.split(": ")[0].partition(", ")[2] for line in str(caught.value).splitlines()]
    assert lines == [
        "line 1, controller.rc_timeout",
        "line 4, jobs[0].hosts",
        "line 5, jobs[1].name",
        "line 5, jobs[1].workers",
        "line 6, jobs[2].path_mtu",
    ]


def test_a_value_is_said_once(tmp_path: Path) -> None:
    with pytest.raises(ClusterFileError) as caught:
        parse(tmp_path, "topology: {kind: rack, rate: fast}\n")
    assert str(caught.value).endswith("topology.rate: 'fast' is no rate: say 100mbit, 1gbit or none")
    with pytest.raises(ClusterFileError, match="topology: kind 'torus' is not known"):
        parse(tmp_path, "topology: {kind: torus}\n")


def test_a_switch_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ClusterFileError, match=r"line 3, switch: .*use the embedded switch"):
        parse(tmp_path, RACK + "switch:\n  target: bmv2\n")
    with pytest.raises(ClusterFileError, match=r"line 2, switch: BMv2 loses no packets on request"):
        parse(tmp_path, RACK + "switch: {target: bmv2, loss: 0.1}\n")


def test_aliases_that_multiply_are_refused_before_they_are_written_out(tmp_path: Path) -> None:
    lines = ["extra: &a0 [x]"]
    lines += [f"extra{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 7)]
    with pytest.raises(ClusterFileError, match=r"c\.yaml, line 6: with alias \*a3, aliases stand for \d+ "):
        parse(tmp_path, RACK + "\n".join(lines))


def test_one_workload_of_several_jobs_may_be_an_anchor(tmp_path: Path) -> None:
    found = parse(
        tmp_path,
        """\
        topology: {kind: rack, hosts: 4}
        jobs:
          - {name: a, workers: 2, workload: &sums [{all_reduce: {bytes: 1M}}]}
          - {name: b, workers: 2, workload: *sums}
        """,
    )
    assert found.workload_of(found.jobs[0]) == found.workload_of(found.jobs[1])


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ClusterFileError, match=r"cannot read .*/none\.yaml: No such file"):
        read(tmp_path / "none.yaml")
    (tmp_path / "c.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(ClusterFileError, match="is not UTF-8 text"):
        read(tmp_path / "c.yaml")


_SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 5000), st.sampled_from(("rack", "h1", "1M", "x"))
)
_KEYS = st.sampled_from(("kind", "topology", "hosts", "jobs", "name", "workload", "all_reduce", "bytes", "0"))
_VALUES: st.SearchStrategy[Any] = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(_KEYS, _VALUES, max_size=5))
def test_whatever_it_holds_it_is_taken_or_refused_with_a_line(
    tmp_path_factory: pytest.TempPathFactory, document: dict[str, Any]
) -> None:
    import yaml

    path = tmp_path_factory.mktemp("files") / "c.yaml"
    path.write_text(yaml.safe_dump({"topology": {"kind": "rack"}, **document}))
    said = ""
    try:
        read(path)
    except ClusterFileError as error:
        said = str(error)
    assert all(line.startswith(f"{path}, line ") for line in said.splitlines())

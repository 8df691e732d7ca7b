"""The bundled models have the shapes, and the multiply-adds, that their references have."""

from __future__ import annotations

import pytest

from p4reduce.workloads.errors import WorkloadError
from p4reduce.workloads.traffic.tables import MODELS, bundled, table


def _macs(model: str) -> int:
    return sum(parameter.forward_macs for parameter in table(model).parameters)


@pytest.mark.parametrize(
    ("model", "numel", "tensors"),
    [
        # Parameters as in the documentation of torchvision's weights (num_params).
        ("alexnet", 61_100_840, 16),
        ("vgg-16", 138_357_544, 32),
        ("resnet-50", 25_557_032, 161),
        # As num_parameters() of transformers' BertModel and GPT2LMHeadModel with their default configuration.
        ("bert-base", 109_482_240, 199),
        ("gpt-2", 124_439_808, 148),
    ],
)
def test_every_parameter_is_there(model: str, numel: int, tensors: int) -> None:
    assert bundled(model).numel == numel
    assert len(table(model).parameters) == len(bundled(model).layers) == tensors


@pytest.mark.parametrize(
    ("model", "parameter", "shape"),
    [
        ("alexnet", "features.0.weight", (64, 3, 11, 11)),
        ("alexnet", "classifier.1.weight", (4096, 9216)),
        ("vgg-16", "features.28.weight", (512, 512, 3, 3)),
        ("vgg-16", "classifier.0.weight", (4096, 25088)),
        ("resnet-50", "conv1.weight", (64, 3, 7, 7)),
        ("resnet-50", "layer3.0.downsample.0.weight", (1024, 512, 1, 1)),
        ("resnet-50", "layer4.2.conv2.weight", (512, 512, 3, 3)),
        ("resnet-50", "fc.bias", (1000,)),
        ("bert-base", "embeddings.word_embeddings.weight", (30522, 768)),
        ("bert-base", "encoder.layer.11.intermediate.dense.weight", (3072, 768)),
        ("bert-base", "pooler.dense.weight", (768, 768)),
        ("gpt-2", "transformer.wte.weight", (50257, 768)),
        ("gpt-2", "transformer.h.11.attn.c_attn.weight", (768, 2304)),
        ("gpt-2", "transformer.ln_f.bias", (768,)),
    ],
)
def test_shapes(model: str, parameter: str, shape: tuple[int, ...]) -> None:
    shapes = {entry.name: entry.shape for entry in table(model).parameters}
    assert shapes[parameter] == shape


def _transformer_macs(*, blocks: int, width: int, tokens: int) -> int:
    """Count MACs. A token, a block: 12 width² in weights (attention 4, MLP 8), 2 tokens·width in scores."""
    return blocks * tokens * (12 * width**2 + 2 * tokens * width)


@pytest.mark.parametrize(
    ("model", "billions"),
    [
        # As published with torchvision's weights (_ops; multiply-adds of one 224 x 224 image).
        ("alexnet", 0.714),
        ("vgg-16", 15.47),
        ("resnet-50", 4.089),
        ("bert-base", (_transformer_macs(blocks=12, width=768, tokens=128) + 768**2) / 1e9),
        ("gpt-2", (_transformer_macs(blocks=12, width=768, tokens=1024) + 1024 * 768 * 50257) / 1e9),
    ],
)
def test_multiply_adds_of_a_sample(model: str, billions: float) -> None:
    assert _macs(model) / 1e9 == pytest.approx(billions, rel=1e-3)


@pytest.mark.parametrize("model", MODELS)
def test_a_table_says_where_it_is_from(model: str) -> None:
    assert table(model).reference.startswith("https://github.com/")
    assert table(model).reference in bundled(model).source
    assert f"batch of {table(model).batch}, each {table(model).sample}" in bundled(model).source


@pytest.mark.parametrize("model", MODELS)
def test_times_follow_from_the_multiply_adds(model: str) -> None:
    workload = bundled(model, batch=4, teraflops=2.0)
    seconds = 2 * _macs(model) * 4 / 2e12
    assert workload.forward_ns == pytest.approx(seconds * 1e9, abs=len(workload.layers))
    assert workload.backward_ns == 2 * workload.forward_ns
    twice = bundled(model, batch=8, teraflops=2.0)
    assert twice.forward_ns == pytest.approx(2 * workload.forward_ns, abs=len(workload.layers))


def test_the_time_of_a_module_is_at_its_last_tensor() -> None:
    """Check that no tensor of a module is ready, or needed, before the others."""
    layers = bundled("alexnet").layers
    # A linear layer's bias is ready first, a convolution's weight.
    assert [layer.name for layer in layers[:2]] == ["features.0.bias", "features.0.weight"]
    assert [layer.name for layer in layers[-2:]] == ["classifier.6.weight", "classifier.6.bias"]
    for first, last in (layers[:2], layers[-2:]):
        assert first.forward_ns == first.backward_ns == 0
        assert last.forward_ns > 0


def test_what_is_refused() -> None:
    with pytest.raises(WorkloadError, match="no bundled model: there are alexnet"):
        table("lenet")
    with pytest.raises(WorkloadError, match="batch of 0"):
        bundled("alexnet", batch=0)
    with pytest.raises(WorkloadError, match="positive number"):
        bundled("alexnet", teraflops=0)

"""Layers of torch.nn, called in all ways, become files that compute what eager does, with each recipe."""

import hashlib
import json

import pytest
import torch
from pteforge.configs.recipe_lookup import load_preset
from pteforge.tasks.export.rewriting import rewrite
from pteforge.tests.lowering import PORTABLE, XNNPACK
from pteforge.tests.zoo.layers import CASES, build

# Of torch, as about weights that torch.nn.utils.prune assigns, and of torchao about norms over tokens.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

STATIC, DYNAMIC = (
    json.loads(load_preset(f"xnnpack-int8-{scales}").recipe.model_dump_json(exclude_unset=True))
    for scales in ("static", "dynamic")
)


def source(name):
    return {"builder": "layers:build", "kwargs": {"name": name}}


def operators(program):
    return {str(node.target) for node in program.graph.nodes if node.op == "call_function"}


@pytest.mark.parametrize(
    ("name", "left_out"),
    [
        ("ZeroPad cropping 2d, ", "aten.pad.default"),
        ("pad crops and reflects, 2", ""),
        ("ConstantPad 2d, ", ""),
        ("check made", "aten._is_all_true.default"),
        ("Linear of one dimension, 2", ""),
        ("BatchNorm of its input 1d, linear", "aten.batch_norm.default"),
        ("Bilinear, 2", "aten.bilinear.default"),
        ("Conv same, even 2d, , no batch", "aten.conv2d.padding"),
        ("ConvTranspose 1d, , no batch", ""),
        ("AdaptiveMaxPool to 2 2d, , no batch", "aten.adaptive_max_pool2d.default"),
        ("Conv same, even 3d, , no batch", "aten.conv3d.default"),
        ("MaxPool 3d, ", "aten.max_pool3d.default"),
        ("AdaptiveAvgPool to 2 3d, , no batch", "aten.adaptive_avg_pool3d.default"),
        ("Linear pruned, 2", "aten.mul.Tensor"),
        ("Linear weight_norm, 2", "aten._weight_norm.default"),
        ("tril_indices made", "aten.tril_indices.default"),
        ("hamming_window made", "aten.hamming_window.default"),
        ("fftfreq made", "aten.fft_fftfreq.default"),
        ("inverse made", "aten.linalg_inv.default"),
        ("dct made", "aten.fft_fft.default"),
    ],
)
def test_rewritten_programs_compute_what_eager_does(name, left_out):
    """Without the operator that upstream refuses, a program computes what the model does."""
    module, inputs = build(name)
    with torch.no_grad():
        program = torch.export.export(module, inputs)
        rewrite(program, alone=True)
        assert left_out not in operators(program)
        torch.testing.assert_close(program.module()(*inputs), module(*inputs))
    program.run_decompositions({})  # which checks the signature


@pytest.mark.slow
@pytest.mark.parametrize(
    "module",
    [
        torch.nn.Conv3d(4, 8, 3),
        torch.nn.Conv3d(4, 8, (2, 3, 1), stride=(3, 1, 2), padding=(1, 0, 2), groups=2, bias=False),
        torch.nn.Conv3d(4, 8, 2, stride=2, padding=1, dilation=(2, 1, 2), groups=4),
        torch.nn.Conv3d(4, 8, 3, padding=1, padding_mode="circular"),
        torch.nn.AvgPool3d((1, 2, 3), (2, 1, 3), (0, 1, 1), ceil_mode=True, count_include_pad=False),
        torch.nn.AvgPool3d(3, 2, 1, ceil_mode=True, divisor_override=5),
        torch.nn.MaxPool3d(3, (2, 1, 3), (0, 1, 1), dilation=(1, 2, 1), ceil_mode=True),
    ],
    ids=str,
)
def test_volumes_are_computed_as_images(module):
    """Convolutions and pooling in three dimensions, of batches of any size, one among them, and of no batch."""
    batch, shape = torch.export.Dim("batch", max=4), (4, 7, 9, 8)
    for size, others in ((None, [None]), (2, [1, 2, 4])):
        shapes = [shape if other is None else (other, *shape) for other in [size, *others]]
        first, *inputs = map(torch.randn, shapes)
        dynamic = None if size is None else ({0: batch},)
        program = torch.export.export(module.eval(), (first,), dynamic_shapes=dynamic)
        rewrite(program, alone=True)
        assert not any("3d" in operator for operator in operators(program))
        for x in inputs:
            torch.testing.assert_close(program.module()(x), module(x))


@pytest.mark.parametrize("name", ["Linear, 2", "kron made", "linspace made", "Conv 2d, "])
def test_other_programs_stay_the_same(name):
    """Programs that upstream lowers are not touched."""
    module, inputs = build(name)
    program = torch.export.export(module, inputs)
    before = program.graph_module.code
    rewrite(program, alone=True)
    assert program.graph_module.code == before


class Sharing(torch.nn.Module):
    """A layer whose weight is that of another one and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.register = torch.nn.Linear(256, 256), self.register_buffer("mask", torch.ones(256, 256))

    def forward(self, x):
        return torch.nn.functional.linear(self.table(x), self.table.weight * self.mask)


@pytest.mark.parametrize("alone", [True, False])
def test_weights_are_computed_only_where_files_do_not_grow(alone):
    """A weight of 256 KiB stays computed where the parameter is needed anyway, or other methods may change the mask."""
    program = torch.export.export(Sharing().eval(), (torch.randn(2, 256),))
    rewrite(program, alone=alone)
    assert ("aten.mul.Tensor" in operators(program)) is not alone


@pytest.mark.parametrize("name", ["pixel_shuffle of NHWC", "reflect of NHWC", "pixel_unshuffle of NHWC"])
def test_portable_kernels_get_one_layout(lower, name):
    """Channels-last values that operators lay out in other ways are copied before kernels that take one layout."""
    assert lower(source(name), PORTABLE).figures


def test_numbers_are_no_calls_outside_of_xnnpack(lower):
    """`hardsigmoid` adds 3 and divides by 6, which XNNPACK gets as floating point numbers."""
    lowered = lower(source("squeeze and excite, "), XNNPACK)
    left = operators(lowered.program("partition/forward"))
    assert not any("to_dim_order_copy" in operator for operator in left), left


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Linear pruned, 2", "BatchNorm 1d, linear", "BatchNorm plain 1d, linear"])
def test_xnnpack_computes_what_eager_does(lower, name):
    """Weights that are computed, and batch norms after linear layers of sequences."""
    assert lower(source(name), XNNPACK).figures


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "recipe"),
    [("Conv depthwise 3d, ", PORTABLE), ("AvgPool 3d, , no batch", PORTABLE), ("Conv 3d, ", XNNPACK)],
)
def test_files_with_volumes(lower, name, recipe):
    """Kernels and XNNPACK compute them."""
    assert lower(source(name), recipe).figures


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["BatchNorm 1d, linear", "float64, 2", "Linear of one dimension, 2"])
def test_int8_leaves_others_alone(lower, name):
    """Batch norms between linear layers, float64, and rows."""
    assert lower(source(name), STATIC).figures


REFUSED = ("ConvTranspose 3d", "RReLU", "sort", "unique", "combinations", "LocalResponseNorm")
"""Parts of the names of cases for which ExecuTorch has no kernels."""
RECIPES = {"portable": PORTABLE, "xnnpack": XNNPACK, "dynamic": DYNAMIC}
PARTS = 12


def drawn():
    """A twelfth of all cases, each with one of the recipes."""
    for name in CASES:
        number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4])
        kind = list(RECIPES)[number // PARTS % len(RECIPES)]
        quantizes = any(layer in f"{name}, {CASES[name][2]}" for layer in ("inear", "conv", "Conv"))
        if number % PARTS == 0 and not any(part in name for part in REFUSED) and (quantizes or kind != "dynamic"):
            yield pytest.param(name, RECIPES[kind], id=f"{name}, {kind}")


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "recipe"), [*drawn()])
def test_layers_compute_what_eager_does(lower, name, recipe):
    """Each case is right; `CASES` has all."""
    assert lower(source(name), recipe).figures

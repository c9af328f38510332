"""What quantization reached: every weight in floating point has the reason that applies, and no other."""

import warnings

import pytest

with warnings.catch_warnings():  # these modules warn when they are imported
    warnings.simplefilter("ignore")
    import torch
    from pteforge.tasks.quantize.module_transforms import transform_copy
    from pteforge.tasks.quantize.pt2e import quantize
    from pteforge.tasks.quantize.reached import Asked, quantization_of
    from pteforge.tasks.quantize.torchao_configs import TorchaoParams
    from pteforge.tasks.targets import TargetParams
    from pteforge.tests.zoo.networks import FunctionOfLayers
    from torch import nn

pytestmark = pytest.mark.filterwarnings("ignore")

DYNAMIC = {"dynamic": True, "per_channel": True}
STATIC = {"per_channel": True}
LINEAR = {"module_type": "torch.nn.modules.linear.Linear"}


def reached(module, *inputs, options=DYNAMIC, exclude=(), quantizer="xnnpack"):
    """What a quantizer reaches of a module."""
    torch.manual_seed(0)
    asked = Asked((TargetParams(name=quantizer, options=options),), exclude=exclude)
    program = torch.export.export(module.eval(), inputs)
    quantized, *_ = quantize(program, inputs, [inputs], asked.quantizers, exclude=exclude)
    return quantization_of(quantized, program, asked)


def reasons(*args, **kwargs):
    return {weight.name: weight.why for weight in reached(*args, **kwargs).left}


class Weights(nn.Module):
    """Products with weights in many forms, all of which a linear layer computes."""

    def __init__(self):
        super().__init__()
        shapes = {"plain": (8, 6), "heads": (8, 2, 3), "joins": (2, 3, 8), "left": (6, 8), "twice": (8, 5)}
        for name, shape in shapes.items():
            setattr(self, name, nn.Parameter(torch.randn(shape) / 3))
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        """Of (batch, rows, 8)."""
        heads = torch.einsum("btd, dhk -> bhtk", x, self.heads)
        return (
            torch.einsum("de,btd->ebt", self.plain, x),
            torch.einsum("bhtk,hkd->btd", heads, self.joins),
            torch.tensordot(x, self.plain, dims=1),
            self.left @ x.mT,
            x @ self.twice.mT.mT,
            nn.functional.linear(x, self.twice.t()),
            self.attention(x, x, x)[0],
        )


@pytest.mark.parametrize("options", [DYNAMIC, STATIC], ids=["dynamic", "static"])
@pytest.mark.parametrize("batch", [2, 3])
def test_products(options, batch):
    """Products in all these forms are quantized, for any batch, and compute about what they did."""
    torch.manual_seed(0)
    module, inputs = Weights().eval(), (torch.randn(2, 4, 8),)
    sizes = ({0: torch.export.Dim("batch", min=2, max=4)},)
    program = torch.export.export(module, inputs, dynamic_shapes=sizes)
    asked = Asked((TargetParams(name="xnnpack", options=options),))
    quantized, *_ = quantize(program, inputs, [inputs], asked.quantizers)
    assert quantization_of(quantized, program, asked).left == ()
    given = (inputs[0][:1].expand(batch, -1, -1).contiguous(),)
    for made, expected in zip(quantized.module()(*given), module(*given), strict=True):
        assert (made - expected).abs().max() < 0.06 * expected.abs().max()


def test_products_that_are_no_linear_layers():
    """A weight for each item of a batch, and a diagonal, stay in floating point."""
    layers = {"last": nn.Linear(8, 8)}
    module = FunctionOfLayers(
        lambda net, x: net.last(torch.einsum("hbd,hde->hbe", x, net.each) + torch.einsum("hbd,dd->hbd", x, net.square)),
        **layers,
    )
    module.each, module.square = nn.Parameter(torch.randn(2, 8, 8)), nn.Parameter(torch.randn(8, 8))
    found = reasons(module, torch.randn(2, 4, 8))
    assert found == dict.fromkeys(("each", "square"), "the quantizer of xnnpack does not take aten.einsum")


def convolutions(dimensions: int, *sizes, before=None, **options):
    kinds = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d, -1: nn.ConvTranspose1d, -2: nn.ConvTranspose2d}
    return nn.Sequential(*([before] if before else []), kinds[dimensions](*sizes, **options), nn.ReLU())


@pytest.mark.parametrize("options", [DYNAMIC, STATIC], ids=["dynamic", "static"])
@pytest.mark.parametrize(
    ("dimensions", "options_of_layer"),
    [
        (1, {"stride": 2, "dilation": 2}),
        (1, {"groups": 2, "padding": 1}),
        (2, {}),
        (-1, {"stride": 2, "output_padding": 1}),
        (-2, {"stride": 2}),
    ],
)
def test_convolutions(dimensions, options_of_layer, options):
    """Those in one and two dimensions are quantized, also before a ReLU, and compute about what they did."""
    torch.manual_seed(0)
    module, x = convolutions(dimensions, 4, 4, 3, **options_of_layer), torch.randn(2, 4, *[9] * abs(dimensions))
    program = torch.export.export(module.eval(), (x,))
    asked = Asked((TargetParams(name="xnnpack", options=options),))
    quantized, *_ = quantize(program, (x,), [(x,)], asked.quantizers)
    assert quantization_of(quantized, program, asked).share == 1
    made, expected = quantized.module()(x), module(x)
    assert made.shape == expected.shape
    assert (made - expected).abs().max() < 0.06 * expected.abs().max()


@pytest.mark.parametrize(
    ("layer", "options", "why"),
    [
        (convolutions(1, 8, 8, 3, groups=8), DYNAMIC, "one input channel in a group"),
        (convolutions(2, 8, 8, 3, groups=8), DYNAMIC, "one input channel in a group"),
        (convolutions(2, 8, 8, 3, groups=8), STATIC, ""),
        (convolutions(-2, 8, 8, 3, groups=2), DYNAMIC, "transposed convolutions with groups"),
        (convolutions(-1, 8, 8, 3, groups=2), STATIC, "transposed convolutions with groups"),
        (convolutions(2, 8, 8, 3, groups=2), DYNAMIC, ""),
    ],
)
def test_reasons_of_convolutions(layer, options, why):
    """What XNNPACK does not have is said of what it does not have."""
    dimensions = layer[0].weight.dim() - 2
    module = FunctionOfLayers(lambda net, x: (net.layer(x), net.last(x)), layer=layer, last=nn.Linear(9, 4))
    found = reasons(module, torch.randn(2, 8, *[9] * dimensions), options=options)
    if why:
        assert found.keys() == {"layer.0.weight"}
        assert why in found["layer.0.weight"]
    else:
        assert found == {}


def test_reasons_of_users():
    """What the recipe leaves out is said to be left out by it, and only that."""
    layers = {"first": nn.Linear(8, 8), "table": nn.Embedding(16, 8), "last": nn.Linear(8, 8)}
    module = FunctionOfLayers(lambda net, ids: net.last(net.first(net.table(ids))), **layers)
    ids = torch.arange(6)
    table = reasons(module, ids)["table.weight"]
    assert "embeddings; the `source_transforms` of xnnpack-int8-dynamic-embedding-int8" in table
    assert reasons(module, ids) == {"table.weight": table}
    excluded = "`quantize.exclude` leaves it out"
    assert reasons(module, ids, exclude=("last",)) == {"table.weight": table, "last.weight": excluded}
    assert reasons(module, ids, exclude=("table",)) == {"table.weight": excluded}
    rules = {**DYNAMIC, "only_rules": True, "rules": [{"module": "first", **DYNAMIC}]}
    left = "the quantizer's `rules` leave it out"
    assert reasons(module, ids, options=rules) == {"table.weight": table, "last.weight": left}


def test_reasons_of_excluded_products():
    """A weight that is stored transposed has its own reason."""
    module = FunctionOfLayers(lambda net, x: net.last(net.inner(x)), inner=nn.Linear(8, 8), last=nn.Linear(8, 8))
    module.inner = FunctionOfLayers(lambda net, x: x @ net.weight)
    module.inner.weight = nn.Parameter(torch.randn(8, 8))
    found = reasons(module, torch.randn(2, 8), exclude=("inner",))
    assert list(found.values()) == ["`quantize.exclude` leaves it out"]


def test_tied_tables():
    """A table that is also the weight of a layer is in int8 for the layer, and in floating point for lookups."""
    module = FunctionOfLayers(
        lambda net, ids: nn.functional.linear(net.table(ids), net.table.weight), table=nn.Embedding(16, 8)
    )
    made = reached(module, torch.arange(6))
    assert made.sizes == {"float32": 512, "int8": 128}
    assert [(weight.name, weight.operators) for weight in made.left] == [("table.weight", ("aten.embedding",))]
    assert "embeddings" in made.left[0].why


def test_layers_in_branches():
    """Layers in the branches of `torch.cond` stay in floating point, since quantizers do not look there."""
    layers = {"first": nn.Linear(8, 8), "one": nn.Linear(8, 8)}
    module = FunctionOfLayers(
        lambda net, x: torch.cond(net.first(x).sum() > 0, net.one, lambda y: y + 1, (x,)), **layers
    )
    assert reasons(module, torch.randn(2, 8)) == {"one.weight": "quantizers do not look into branches and loops"}


def weights_only(dtype="int8", **choice):
    """A transform to weights of one data type."""
    return TorchaoParams(
        config="IntxWeightOnlyConfig", fields={"weight_dtype": dtype, "granularity": {"per_axis": 0}}, **choice
    )


class Transformed(nn.Module):
    """Layers that torchao takes, and some that it does not."""

    def __init__(self):
        super().__init__()
        self.table, self.first, self.last = nn.Embedding(16, 32), nn.Linear(32, 32), nn.Linear(32, 8)
        self.attention, self.convolution = nn.MultiheadAttention(32, 2, batch_first=True), nn.Conv1d(32, 32, 1)

    def forward(self, ids):
        """Of (batch, rows)."""
        values = self.first(self.table(ids))
        values = self.attention(values, values, values)[0] + self.convolution(values.mT).mT
        return self.last(values)


OTHERS = {
    "attention.in_proj_weight": "torchao takes layers of their own only, and this is part of another one",
    "attention.out_proj.weight": "torchao takes layers of their own only, and this is part of another one",
    "convolution.weight": "torchao takes linear layers and embeddings only",
}
NO_TABLES = {"table.weight": "no transform has `layers: [embedding]`"}
UNMATCHED = "no transform's `filter` matches it"
EXCLUDED = "a transform's `filter_fn` or `exclude` leaves it out"


@pytest.mark.parametrize(
    ("transforms", "kept", "left", "sizes"),
    [
        ([weights_only()], (), NO_TABLES, {"int8": 40 * 32}),
        ([weights_only("int4")], (), NO_TABLES, {"int4": 20 * 32}),
        ([weights_only(layers=("linear", "embedding"))], (), {}, {"int8": 56 * 32}),
        (
            [weights_only(include=("last", "table"), layers=("linear", "embedding"))],
            ("table",),
            {
                "first.weight": UNMATCHED,
                "table.weight": "the model also uses it in another way than layers do",
            },
            {"int8": 8 * 32},
        ),
        ([weights_only(exclude=("first",))], (), {**NO_TABLES, "first.weight": EXCLUDED}, {"int8": 8 * 32}),
    ],
)
def test_transforms(transforms, kept, left, sizes):
    """Weights that torchao's transforms leave have the reason that applies; those with fewer bits count as such."""
    torch.manual_seed(0)
    module, _ = transform_copy(Transformed().eval(), transforms, kept)
    program = torch.export.export(module, (torch.arange(6).reshape(2, 3),))
    made = quantization_of(program, program, Asked(transforms=transforms, kept=kept))
    unmatched = {} if transforms[0].include == ("*",) else {name: UNMATCHED for name in OTHERS if "attention" in name}
    assert {weight.name: weight.why for weight in made.left} == OTHERS | unmatched | left
    assert {dtype: size for dtype, size in made.sizes.items() if dtype != "float32"} == sizes

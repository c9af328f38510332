"""Models that are no modules, half precision, and exir's managers of models with several methods."""

from __future__ import annotations

import copy
import io

import pteforge
import pytest
import torch
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import XNNPACKQuantizer, get_symmetric_quantization_config
from pteforge.tests.lowering import checked_recipe
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

pytestmark = pytest.mark.slow


def test_a_quantized_graph_module(net, example, store):
    """The result of PT2E's `convert_pt2e` is lowered unchanged: the backend gets quantized operators."""
    quantizer = XNNPACKQuantizer().set_global(get_symmetric_quantization_config())
    prepared = prepare_pt2e(torch.export.export(copy.deepcopy(net).eval(), example).module(), quantizer)
    prepared(*example)
    recipe = checked_recipe("xnnpack", verify={"min_sqnr_db": 30})
    result = pteforge.export(convert_pt2e(prepared), example, recipe=recipe, name="quantized", store=store)
    (delegation,) = result.delegation()
    counts = [row.not_delegated for row in delegation.operators if "quantize" in row.operator]
    assert set(counts) == {0}


def test_managers_of_several_methods(builders, store):
    """Managers have all methods and constants, and write the file that the stages made."""
    result = pteforge.export(builders.two_methods(), recipe="xnnpack-fp32", store=store)
    edge, emitted = result.edge_manager(), result.executorch_manager()
    for manager in (edge, emitted):
        assert manager.methods == {"forward", "encode"}
        assert manager.config_methods == {"version", "sample_rate"}
    written = io.BytesIO()
    emitted.write_to_file(written)
    assert written.getvalue() == emitted.buffer == result.pte
    assert [delegate["name"] for delegate in emitted.delegate_map["forward"].values()] == ["XnnpackBackend"]
    assert emitted.debug_handle_map["encode"]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision(store, dtype):
    """Models in 16 bits pass the bounds of shipped recipes, which are relaxed for these types."""
    torch.manual_seed(0)
    kind = getattr(torch, dtype)
    module = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8)).to(kind)
    result = pteforge.export(module, (torch.randn(3, 32).to(kind),), recipe="portable-fp32", store=store)
    assert result.run_method()[0].dtype == kind
    assert result.figures.overall.rounded_to == dtype


def test_keyword_inputs(builders, store):
    """Keywords alone, or after positional ones; the file takes them in the order of the example."""
    net = builders.networks.Attention()
    hidden, memory, mask = torch.randn(1, 3, 8), torch.randn(1, 5, 8), torch.ones(1, 5)
    keywords = {"memory": memory, "mask": mask}
    mixed = pteforge.export(net, (hidden,), example_kwarg_inputs=keywords, recipe="portable-fp32", store=store)
    torch.testing.assert_close(mixed.run_method(inputs=(hidden, memory, mask))[0], net(hidden, **keywords))
    alone = pteforge.export(
        net, example_kwarg_inputs=[{"hidden": hidden, **keywords}] * 2, recipe="portable-fp32", store=store
    )
    torch.testing.assert_close(alone.run_method(inputs=(hidden, memory, mask))[0], net(hidden, **keywords))
    assert "forward" not in vars(net)
    assert type(net) is builders.networks.Attention


def test_keyword_inputs_by_method(builders, store):
    """Each method has its own; dynamic shapes go by name."""
    net, words = builders.networks.Attention(), torch.export.Dim("words", min=2, max=16)
    hidden, memory = torch.randn(1, 3, 8), torch.randn(1, 5, 8)
    result = pteforge.export(
        {"cross": net, "own": net},
        {"own": (hidden,)},
        example_kwarg_inputs={"cross": {"memory": memory, "hidden": hidden}},
        dynamic_shapes={"cross": {"memory": {1: words}, "hidden": None}},
        recipe="xnnpack-fp32",
        store=store,
    )
    longer = torch.randn(1, 9, 8)
    torch.testing.assert_close(
        result.run_method("cross", inputs=(longer, hidden))[0], net(hidden, memory=longer), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"other": torch.ones(1)}, "does not take its own example inputs"),
        ({"hidden": torch.ones(1)}, "has 'hidden' by position and by keyword"),
        (torch.ones(1), "example_kwarg_inputs of method 'forward' is a Tensor; give a mapping of keyword arguments"),
        ([{"memory": torch.ones(1)}] * 2, "has 1 example_inputs and 2 example_kwarg_inputs"),
    ],
)
def test_wrong_keyword_inputs(builders, store, given, message):
    """The error says which method has what."""
    with pytest.raises(pteforge.PteforgeError, match=message):
        pteforge.export(
            builders.networks.Attention(),
            (torch.randn(1, 3, 8),),
            example_kwarg_inputs=given,
            recipe="portable-fp32",
            store=store,
        )

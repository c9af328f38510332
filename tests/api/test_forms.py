"""Forms that models come in besides modules, and exir's managers of models with several methods."""

from __future__ import annotations

import copy
import io

import pteforge
import pytest
from pteforge.configs import Recipe

pytestmark = pytest.mark.slow


def test_a_quantized_graph_module(net, example, store):
    """What PT2E's `convert_pt2e` gave is lowered as it is: quantized operators go to the backend."""
    import torch
    from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
        XNNPACKQuantizer,
        get_symmetric_quantization_config,
    )
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    quantizer = XNNPACKQuantizer().set_global(get_symmetric_quantization_config())
    prepared = prepare_pt2e(torch.export.export(copy.deepcopy(net).eval(), example).module(), quantizer)
    prepared(*example)
    recipe = Recipe.model_validate({"specializations": [{"target": "xnnpack"}], "verify": {"min_sqnr_db": 30}})
    result = pteforge.export(convert_pt2e(prepared), example, recipe=recipe, name="quantized", store=store)
    (delegation,) = result.delegation()
    counts = {each.operator: each.not_delegated for each in delegation.operators if "quantize" in each.operator}
    assert counts
    assert not any(counts.values())


def test_managers_of_several_methods(nets, store):
    """They name all methods and constants, and write the file that the stages gave."""
    result = pteforge.export(nets.conversation(), recipe="xnnpack-fp32", name="conversation", store=store)
    edge, emitted = result.edge_manager(), result.executorch_manager()
    for manager in (edge, emitted):
        assert manager.methods == {"encode", "decode"}
        assert manager.config_methods == {"vocabulary", "scale", "label"}
    written = io.BytesIO()
    emitted.write_to_file(written)
    assert written.getvalue() == emitted.buffer == result.pte
    assert [each["name"] for each in emitted.delegate_map["decode"].values()] == ["XnnpackBackend"]
    assert emitted.debug_handle_map["encode"]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision(store, dtype):
    """Models in 16 bits pass with the shipped recipes, as far as such types can hold what eager computes."""
    import torch

    torch.manual_seed(0)
    kind = getattr(torch, dtype)
    module = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8)).to(kind)
    result = pteforge.export(module, (torch.randn(3, 32).to(kind),), recipe="portable-fp32", store=store)
    assert result.run_method()[0].dtype == kind
    assert result.figures.overall.rounded_to == dtype

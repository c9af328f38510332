"""What debug mode makes beside a payload, of programs that ExecuTorch's own tools have trouble with."""

from __future__ import annotations

import json

import pytest


@pytest.fixture
def debugged(stages):
    """An ETRecord, read by ExecuTorch, and the sources of the debug handles, of a lowered model."""
    from executorch.devtools.etrecord import parse_etrecord

    def made(builder, **more):
        recipe = {"specializations": [{"target": "xnnpack"}], "debug": True, **more}
        outputs = stages.lower(builder, recipe).outputs["compile/tested"]
        record = parse_etrecord(str(stages.store.path(outputs["etrecord"].root)))
        return record, json.loads(stages.store.read_artifact(outputs["debug_sources"]))

    return made


@pytest.mark.slow
def test_branches(debugged):
    """Scalars in branches are no trouble to the record, and operators there have sources."""
    import torch

    record, sources = debugged("control_flow_models:nested")
    program = record.edge_dialect_program
    inner = [module for module in program.graph_module.modules() if isinstance(module, torch.fx.GraphModule)]
    targets = [getattr(node.target, "__name__", "") for module in inner for node in module.graph.nodes]
    assert targets.count("aten.full.default") == 2  # of `w - 3` and `w * 3`
    told = [source for listed in sources["forward"].values() for source in listed]
    assert sum(source["operator"] == "aten.mul.Tensor" for source in told) == 2
    assert all("control_flow_models.py" in source["line"] or "eval_with_key" in source["line"] for source in told)


@pytest.mark.slow
def test_several_methods(debugged):
    """Each method has a program in the record, and sources."""
    record, sources = debugged("chain_models:two_methods")
    assert set(record.edge_dialect_program) == set(sources)
    assert all(sources.values())


@pytest.mark.slow
def test_quantized(debugged):
    """Operators of a quantized program lead to lines of the model as others do."""
    _, sources = debugged("chain_models:conv_net", quantize={}, verify={"min_sqnr_db": None})
    told = [source for listed in sources["forward"].values() for source in listed]
    lines = {source["operator"]: source["line"].partition(":")[0] for source in told if source["line"]}
    assert {"aten.linear.default", "aten.relu.default", "aten.convolution.default"} <= set(lines)
    assert set(lines.values()) == {"chain_models.py"}

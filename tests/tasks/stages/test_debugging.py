"""What debug mode makes along with a payload, of programs that ExecuTorch's own tools have trouble with."""

import pytest
import torch
from pteforge.tests.lowering import recipe

pytestmark = pytest.mark.slow


@pytest.fixture
def debugged(lower):
    """An ETRecord, read by ExecuTorch, and the sources of the debug handles, of a lowered model."""
    from executorch.devtools.etrecord import parse_etrecord

    def made(builder, **more):
        lowered = lower(builder, recipe("xnnpack", debug=True, **more))
        record = parse_etrecord(str(lowered.store.path(lowered.outputs["compile"]["etrecord"].root)))
        return record, lowered.json("compile", "debug_sources")

    return made


def test_branches(debugged):
    """Scalars in branches are no trouble to the record, and operators there have sources."""
    record, sources = debugged("builders:nested_branches")
    program = record.edge_dialect_program
    inner = [module for module in program.graph_module.modules() if isinstance(module, torch.fx.GraphModule)]
    targets = [getattr(node.target, "__name__", "") for module in inner for node in module.graph.nodes]
    assert targets.count("aten.full.default") == 2  # of `w - 3` and `w * 3`
    found = [source for listed in sources["forward"].values() for source in listed]
    assert sum(source["operator"] == "aten.mul.Tensor" for source in found) == 2
    assert all("networks.py" in source["line"] or "eval_with_key" in source["line"] for source in found)


def test_several_methods(debugged):
    """Each method has a program in the record, and sources."""
    record, sources = debugged("builders:two_methods")
    assert set(record.edge_dialect_program) == set(sources)
    assert all(sources.values())


def test_quantized(debugged):
    """Operators of a quantized program lead to lines of the model as others do."""
    _, sources = debugged("builders:conv_net", quantize={}, verify={"min_sqnr_db": None})
    found = [source for listed in sources["forward"].values() for source in listed]
    lines = {source["operator"]: source["line"].partition(":")[0] for source in found if source["line"]}
    assert {"aten.linear.default", "aten.relu.default", "aten.convolution.default"} <= set(lines)
    assert set(lines.values()) == {"networks.py"}

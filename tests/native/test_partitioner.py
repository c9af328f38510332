"""What NativePartitioner claims, keeps whole and refuses."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from typing import Any

import pytest
from pteforge.errors import TargetError


@pytest.fixture
def partitioned() -> Callable[..., Any]:
    """The edge program of a module, with the partitioner's tags; nothing is lowered."""
    import torch
    from executorch.exir import to_edge_transform_and_lower
    from pteforge.native import NativePartitioner

    def partitioned(module: Any, *inputs: Any, shapes: Any = None) -> Any:
        exported = torch.export.export(module, inputs, dynamic_shapes=shapes)
        edge = to_edge_transform_and_lower(exported).exported_program()
        NativePartitioner().partition(edge)
        return edge

    return partitioned


def tags(graph: Any) -> dict[str, str | None]:
    """Tag by name of what is called."""
    return {
        getattr(node.target, "__name__", str(node.target)): node.meta.get("delegation_tag")
        for node in graph.nodes
        if node.op == "call_function"
    }


def test_specializations():
    """They travel as canonical JSON in one compile spec: the same whichever way they were written."""
    from pteforge.native import NativePartitioner, NfatBackend, Specialization

    written = [
        NativePartitioner(["xnnpack"]),
        NativePartitioner((Specialization(target="xnnpack", options={}),)),
    ]
    first, second = (each.delegation_spec for each in written)
    assert first.backend_id == NfatBackend.__name__ == "NfatBackend"
    assert [(each.key, each.value) for each in first.compile_specs] == [
        (each.key, each.value) for each in second.compile_specs
    ]
    (spec,) = first.compile_specs
    assert json.loads(spec.value)["specializations"][0]["target"] == "xnnpack"


@pytest.mark.parametrize(
    ("specializations", "problem"),
    [
        (["vulcan"], "unknown target 'vulcan'; did you mean 'vulkan'.*installed targets: .*coreml.*xnnpack"),
        (["xnnpack", "xnnpack"], "two specializations are called 'xnnpack'; give one of them another `name`"),
        (["portable"], "'portable' is what the fallback is called, which is always there"),
        ([{"target": "portable", "name": "mine"}], "target 'portable' delegates nothing"),
        ([{"target": "xnnpack", "options": {"speed": 1}}], "options of target 'xnnpack': speed: .*per_operator"),
        (["samsung"], "target 'samsung' is not available here: "),
    ],
)
def test_specializations_that_cannot_be(specializations, problem):
    """Unknown, doubled, idle, absent or wrongly set up ones are refused by name when the partitioner is made."""
    from pteforge.native import NativePartitioner, Specialization

    given = [each if isinstance(each, str) else Specialization(**each) for each in specializations]
    with pytest.raises(TargetError, match=problem):
        NativePartitioner(given)


def test_one_name():
    """One specialization is a list of one; a bare name is a mistake that says so."""
    from pteforge.native import NativePartitioner

    with pytest.raises(TypeError, match="'xnnpack' has to be in a list"):
        NativePartitioner("xnnpack")


@pytest.mark.parametrize(
    ("operator", "problem"),
    [
        ("aten.softsine", "unknown operator 'aten.softsine'; write it as"),
        ("aten.relu_", r"operator aten.relu_.default cannot be kept whole: .*writes to what it takes"),
        ("aten.reshape", r"operator aten.reshape.default cannot be kept whole: .*view of it"),
    ],
)
def test_operators_that_cannot_be_kept(operator, problem):
    """Operators to keep have to exist, and to be functions of what they take."""
    from pteforge.native import NativePartitioner

    with pytest.raises(TargetError, match=problem):
        NativePartitioner(preserve_operators=[operator])


def test_two_backends_of_one_name():
    """ExecuTorch finds backends by the name of their class: a second NfatBackend is an error and no silent choice."""
    from executorch.exir.backend.backend_details import BackendDetails
    from pteforge.native import NativePartitioner

    other = type("NfatBackend", (BackendDetails,), {})
    with pytest.raises(TargetError, match=r"classes of that name: pteforge.native.backend, .*there must be one"):
        NativePartitioner()
    del other
    gc.collect()
    NativePartitioner()


@pytest.mark.slow
def test_kept_whole():
    """Kept are listed operators, those given, and those that a specialization wants; none of a lowered program."""
    import torch
    from executorch.exir import to_edge_transform_and_lower
    from pteforge.native import NativePartitioner

    class Several(torch.nn.Module):
        def forward(self, x, weight):
            y = torch.nn.functional.linear(x, weight)
            return torch.nn.functional.hardswish(y), torch.nn.functional.mish(y), y.reshape(-1)

    exported = torch.export.export(Several(), (torch.ones(4, 4), torch.ones(4, 4)))

    def kept(partitioner: NativePartitioner, program: Any = exported) -> list[str]:
        operators, keeps = partitioner.ops_to_not_decompose(program)
        assert keeps is None
        return [str(operator) for operator in operators]

    assert kept(NativePartitioner()) == ["aten.linear.default"]
    assert kept(NativePartitioner(["xnnpack"])) == ["aten.linear.default", "aten.hardswish.default"]
    assert kept(NativePartitioner(preserve_operators=["aten.mish"])) == ["aten.linear.default", "aten.mish.default"]
    lowered = to_edge_transform_and_lower(exported, partitioner=[NativePartitioner()]).exported_program()
    assert kept(NativePartitioner(["xnnpack"]), lowered) == []
    assert NativePartitioner().partition(lowered).partition_tags == {}


def test_sizes_from_data(partitioned):
    """What depends on sizes that come out of data stays outside, the operators that it would keep included."""
    import torch
    from pteforge.native import NativePartitioner

    class Found(torch.nn.Module):
        def forward(self, x, weight):
            found = torch.nonzero(x[:, 0]).squeeze(1)
            return torch.nn.functional.linear(x.index_select(0, found), weight), x.sin()

    inputs = torch.ones(4, 4), torch.ones(4, 4)
    assert NativePartitioner().ops_to_not_decompose(torch.export.export(Found(), inputs))[0] == []
    by_name = tags(partitioned(Found(), *inputs).graph)
    assert by_name["aten.sin.default"] == "nfat0"
    assert by_name["aten.nonzero.default"] is None
    assert by_name["aten.index_select.default"] is None
    assert by_name["aten.mm.default"] is None


def test_numbers_stay_inside(partitioned):
    """Sizes are computed in the partition that uses them. What needs the same size in two partitions stays outside."""
    import torch

    class Halves(torch.nn.Module):
        def forward(self, x):
            one = x.cos().view(x.shape[0] * 2, 2)
            return one * one.min() if self.training else one

    class Both(torch.nn.Module):
        def forward(self, x):
            rows = x.shape[0] * 2
            one = x.cos().view(rows, 2)
            return (one - one.min()).sin().view(rows * 2, 1)

    batch = torch.export.Dim("batch", min=2, max=8)
    inside = tags(partitioned(Halves().eval(), torch.ones(3, 4), shapes=({0: batch},)).graph)
    assert set(inside.values()) == {"nfat0"}
    crossing = tags(partitioned(Both(), torch.ones(3, 4), shapes=({0: batch},)).graph)
    assert crossing["aten.cos.default"] == "nfat0"
    assert crossing["aten.sin.default"] == "nfat1"
    assert crossing["mul"] is crossing["aten.view_copy.default"] is crossing["aten.min.default"] is None


@pytest.mark.slow
def test_branches(partitioned, zoo):
    """A cond is claimed as a whole, or else its branches are looked into."""
    import torch

    whole = partitioned(zoo.Branches(), torch.ones(3, 4))
    assert set(tags(whole.graph).values()) == {"nfat0"}
    outside = partitioned(zoo.Outside(), torch.ones(3, 4))
    assert tags(outside.graph)["cond"] is None
    inner = [tags(module.graph) for name, module in outside.graph_module.named_children() if "submodule" in name]
    assert [each["aten.addmm.default"] for each in inner] == ["nfat2", "nfat3"]
    assert inner[0]["aten.min.default"] is None
    tagged = {node.name for node in outside.graph.nodes if node.op == "placeholder" and "delegation_tag" in node.meta}
    assert tagged == set()


def test_state_is_left_outside(partitioned, zoo):
    """A buffer that the program changes belongs to no partition; what computes its value does."""
    import torch

    program = partitioned(zoo.Counter(), torch.ones(3, 4))
    constants = {node.name: node.meta.get("delegation_tag") for node in program.graph.nodes if node.op == "placeholder"}
    assert constants["b_total"] is None
    assert constants["p_layer_weight"] == "nfat0"

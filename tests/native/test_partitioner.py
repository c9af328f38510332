"""What NativePartitioner claims, preserves and refuses, and what its README shows."""

import gc
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pteforge
import pytest
import torch
from executorch.exir import to_edge_transform_and_lower
from executorch.exir.backend.backend_details import BackendDetails
from pteforge.errors import TargetError
from pteforge.native import NativePartitioner, NfatBackend, Specialization
from torch.nn import functional

NATIVE = Path(pteforge.__file__).parent / "native"
README = (NATIVE / "README.md").read_text(encoding="utf-8")


@pytest.fixture
def partitioned() -> Callable[..., Any]:
    """The edge program of a module, with the partitioner's tags; nothing is lowered."""

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
    """A name and an equal specialization make the same compile spec, as canonical JSON."""
    written = [["xnnpack"], (Specialization(target="xnnpack", options={}),)]
    first, second = (NativePartitioner(specializations).delegation_spec for specializations in written)
    assert first.backend_id == NfatBackend.__name__ == "NfatBackend"
    ((key, value),), again = ([(spec.key, spec.value) for spec in each.compile_specs] for each in (first, second))
    assert [(key, value)] == again
    assert json.loads(value)["specializations"][0]["target"] == "xnnpack"


@pytest.mark.parametrize(
    ("specializations", "problem"),
    [
        (["vulcan"], "unknown target 'vulcan'; did you mean 'vulkan'.*installed targets: .*coreml.*xnnpack"),
        (["xnnpack", "xnnpack"], "two specializations are called 'xnnpack'; give one of them another `name`"),
        (["portable"], "'portable' is the name of the fallback, which is always there"),
        ([{"target": "portable", "name": "mine"}], "target 'portable' delegates nothing"),
        ([{"target": "xnnpack", "options": {"speed": 1}}], "options of target 'xnnpack': speed: .*per_operator"),
        (["samsung"], "target 'samsung' is not available here: "),
    ],
)
def test_specializations_that_cannot_be(specializations, problem):
    """Unknown, duplicate, useless, unavailable or misconfigured ones are refused by name, as is a bare name."""
    given = [each if isinstance(each, str) else Specialization(**each) for each in specializations]
    with pytest.raises(TargetError, match=problem):
        NativePartitioner(given)
    with pytest.raises(TypeError, match=r"'xnnpack' .*in a list"):
        NativePartitioner("xnnpack")


@pytest.mark.parametrize(
    ("operator", "problem"),
    [
        ("aten.softsine", "unknown operator 'aten.softsine'; write it as"),
        ("aten.relu_", r"operator aten.relu_.default cannot be kept whole: .*writes to"),
        ("aten.reshape", r"operator aten.reshape.default cannot be kept whole: .*view of an argument"),
    ],
)
def test_operators_that_cannot_be_preserved(operator, problem):
    """Operators to preserve have to exist, and to be functional."""
    with pytest.raises(TargetError, match=problem):
        NativePartitioner(preserve_operators=[operator])


def test_two_backends_of_one_name():
    """ExecuTorch looks backends up by class name, so a second NfatBackend is an error."""
    other = type("NfatBackend", (BackendDetails,), {})
    with pytest.raises(TargetError, match=r"classes .*: pteforge.native.backend, .*must be one"):
        NativePartitioner()
    del other
    gc.collect()
    NativePartitioner()


@pytest.mark.slow
def test_preserved_operators(networks):
    """Default operators, given ones and those of specializations are preserved, but none of a lowered program."""

    def several(x, weight):
        y = functional.linear(x, weight)
        return functional.hardswish(y), functional.mish(y), y.reshape(-1)

    exported = torch.export.export(networks.Function(several), (torch.ones(4, 4), torch.ones(4, 4)))

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


def test_sizes_from_data(partitioned, networks):
    """Operators with data-dependent sizes are neither claimed nor preserved."""

    def select(x, weight):
        found = torch.nonzero(x[:, 0]).squeeze(1)
        return torch.nn.functional.linear(x.index_select(0, found), weight), x.sin()

    inputs = torch.ones(4, 4), torch.ones(4, 4)
    assert NativePartitioner().ops_to_not_decompose(torch.export.export(networks.Function(select), inputs))[0] == []
    by_name = tags(partitioned(networks.Function(select), *inputs).graph)
    assert by_name["aten.sin.default"] == "nfat0"
    assert all(by_name[f"aten.{name}.default"] is None for name in ("nonzero", "index_select", "mm"))


def test_sizes_stay_inside(partitioned, networks):
    """Sizes are computed in the partition that uses them; a size that two partitions use is not claimed."""

    def in_both(x):
        rows = x.shape[0] * 2
        one = x.cos().view(rows, 2)
        return (one - one.min()).sin().view(rows * 2, 1)

    def tags_of(function):
        batch = ({0: torch.export.Dim("batch", min=2, max=8)},)
        return tags(partitioned(networks.Function(function), torch.ones(3, 4), shapes=(batch,)).graph)

    assert set(tags_of(lambda x: x.cos().view(x.shape[0] * 2, 2)).values()) == {"nfat0"}
    crossing = tags_of(in_both)
    assert crossing["aten.cos.default"] == "nfat0"
    assert crossing["aten.sin.default"] == "nfat1"
    assert crossing["mul"] is crossing["aten.view_copy.default"] is crossing["aten.min.default"] is None


@pytest.mark.slow
def test_branches(partitioned, zoo):
    """A cond is claimed as a whole, or else its branches are partitioned."""
    whole = partitioned(zoo.branches(), torch.ones(3, 4))
    assert set(tags(whole.graph).values()) == {"nfat0"}
    outside = partitioned(zoo.outside(), torch.ones(3, 4))
    assert tags(outside.graph)["cond"] is None
    inner = [tags(module.graph) for name, module in outside.graph_module.named_children() if "submodule" in name]
    assert [each["aten.addmm.default"] for each in inner] == ["nfat2", "nfat3"]
    assert inner[0]["aten.min.default"] is None
    tagged = {node.name for node in outside.graph.nodes if node.op == "placeholder" and "delegation_tag" in node.meta}
    assert tagged == set()


def test_state_is_left_outside(partitioned, zoo):
    """A mutated buffer belongs to no partition, but the computation of its value does."""
    program = partitioned(zoo.counter(), torch.ones(3, 4))
    constants = {node.name: node.meta.get("delegation_tag") for node in program.graph.nodes if node.op == "placeholder"}
    assert constants["b_total"] is None
    assert constants["p_layer_weight"] == "nfat0"


@pytest.mark.slow
def test_example(zoo, containers, tmp_path, monkeypatch):
    """The code of native/README.md lowers a program with state, and the delegates have the payloads that it names."""
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    exec(code, {"programs": torch.export.export(zoo.counter(), (torch.ones(3, 4),))})  # noqa: S102 - our own README
    (container,) = containers((tmp_path / "model.pte").read_bytes())
    assert [payload.name for payload in container.payloads] == ["vulkan", "xnnpack", "portable"]


def test_files_are_listed():
    """The table of native/README.md names each file of the folder, and no other."""
    listed = set(re.findall(r"`(\w+\.py)`", README.partition("## Files")[2]))
    assert listed == {path.name for path in NATIVE.glob("*.py")} - {"__init__.py"}

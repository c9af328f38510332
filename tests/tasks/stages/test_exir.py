"""The chain of stages gives what ExecuTorch's public functions give; its private parts are as we use them."""

import pytest
import torch
from pteforge.errors import TargetError
from pteforge.formats.pte.reader import read_pte
from pteforge.tests.lowering import PORTABLE, XNNPACK, recipe

LSTM = "executorch.examples.models.lstm.model:LSTMModel"


AS_EXPORTED = {"fold_batch_norms": False}  # ExecuTorch leaves folding to backends


def xnnpack(**options):
    return recipe({"target": "xnnpack", "options": options})


@pytest.mark.parametrize("recipe", [PORTABLE, XNNPACK], ids=["portable", "xnnpack"])
@pytest.mark.parametrize(
    "builder",
    [
        *("builders:conv_net", "builders:mlp", "builders:two_methods", "builders:counter"),
        pytest.param("builders:two_partitions", marks=pytest.mark.slow),
        pytest.param("builders:branches", marks=pytest.mark.slow),
        pytest.param(LSTM, marks=pytest.mark.slow),
    ],
)
def test_chain_equals_upstream(builder, recipe, lower, upstream):
    """Every stage's output was stored and loaded on the way, and yet the file is the one that one call makes."""
    assert lower(builder, recipe | AS_EXPORTED).payloads[""] == upstream(builder, recipe)


KEEP = {"edge": {"preserve_operators": ["aten.pixel_shuffle.default"]}}
SKIP_DIM_ORDER = {"edge": {"skip_dim_order": True}}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("builder", "usual", "options"),
    [
        pytest.param("conv_net", XNNPACK, xnnpack(per_operator=True), id="per operator"),
        pytest.param("conv_net", XNNPACK, xnnpack(precisions=["static_quant", "dynamic_quant"]), id="no fp32"),
        pytest.param("mlp", XNNPACK, xnnpack(force_non_static_weights_for_f32_linear=True), id="weights as inputs"),
        pytest.param("to_double", PORTABLE, PORTABLE | SKIP_DIM_ORDER, id="dim order portable"),
        pytest.param("to_double", XNNPACK, XNNPACK | SKIP_DIM_ORDER, id="dim order xnnpack"),
        pytest.param("conv_net", XNNPACK, XNNPACK | {"compile": {"segment_alignment": 4096}}, id="aligned"),
        pytest.param("conv_net", XNNPACK, XNNPACK | {"compile": {"extract_delegate_segments": False}}, id="inline"),
        pytest.param("shuffle", PORTABLE, PORTABLE | KEEP, id="kept operator"),
        pytest.param("elementwise_branches", PORTABLE, XNNPACK, id="branches"),
    ],
)
def test_chain_equals_upstream_with_options(builder, usual, options, lower, upstream):
    """Options reach the function of ExecuTorch that they are for, and have an effect there."""
    file = upstream(f"builders:{builder}", options)
    assert lower(f"builders:{builder}", options | AS_EXPORTED).payloads[""] == file
    assert upstream(f"builders:{builder}", usual) != file


@pytest.mark.slow
def test_partitioners_of_two_backends(lower, upstream):
    """What the first leaves, the second takes: the file is that of one call with both partitioners."""
    chain = {"target": "vulkan+xnnpack", "options": {"vulkan": {"only_operators": ["aten.convolution.default"]}}}
    payload = lower("builders:conv_net", recipe(chain, "portable", **AS_EXPORTED)).payloads["vulkan-xnnpack"]
    assert payload == upstream("builders:conv_net", recipe(chain))
    assert set(read_pte(payload).backends) == {"VulkanBackend", "XnnpackBackend"}


@pytest.mark.slow
def test_what_upstream_refuses_is_refused(zoo):
    """An operator that was kept whole for a backend that then does not take it has no kernel: both say so."""
    del zoo
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower
    from networks import Branches
    from pteforge.tasks.backend import exir
    from pteforge.tasks.backend.stages.edge import Edge

    module, inputs = Branches(), (torch.ones(2, 4),)
    partitioners, config = [XnnpackPartitioner()], Edge.Params().config()
    with pytest.raises(RuntimeError, match="was not decomposed or delegated") as theirs:
        to_edge_transform_and_lower(torch.export.export(module, inputs), partitioner=partitioners)
    edge = exir.to_edge_program(torch.export.export(module, inputs), partitioners, config)
    partitioned = exir.to_partitioned_program(edge, partitioners)
    with pytest.raises(RuntimeError, match="was not decomposed or delegated") as ours:
        exir.check_preserved_operators_found_delegates(partitioned, partitioners, config)
    assert str(ours.value).splitlines()[:2] == str(theirs.value).splitlines()[:2]


def test_a_program_outside_the_edge_dialect_is_refused(lower, upstream):
    """An operator outside core ATen is refused in the same words as by upstream."""
    with pytest.raises(Exception, match="linalg_inv_ex") as theirs:
        upstream("builders:inverse", PORTABLE)
    with pytest.raises(type(theirs.value)) as ours:
        lower("builders:inverse", PORTABLE | {"verify": {"drawn_inputs": 0}})
    assert str(ours.value) == str(theirs.value)


def test_delegated_programs_are_not_verified_again():
    """`compile` links delegates without verifying the result as edge dialect, because exir does not either."""
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    program = torch.export.export(torch.nn.ReLU(), (torch.ones(2),))
    manager = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()])
    assert manager.compile_config._check_ir_validity is False
    assert to_edge_transform_and_lower(program).compile_config._check_ir_validity is True


def test_unlinked_partitions_keep_backend_and_specs(lower):
    """A partitioned program says which backend each partition is for, and holds no delegate yet."""
    from executorch.exir.backend.compile_spec_schema import CompileSpec
    from pteforge.tasks.backend.exir import UNLINKED, split_compile_specs
    from pteforge.tasks.programs.graphs import lowered_modules

    program = lower("builders:two_partitions", XNNPACK, until="partition").program("partition/forward")
    modules = [module for _, _, module in lowered_modules(program)]
    assert len(modules) == 2
    assert all(module.backend_id == UNLINKED and not module.processed_bytes for module in modules)
    assert [split_compile_specs(module.compile_specs) for module in modules] == [("XnnpackBackend", [])] * 2
    with pytest.raises(ValueError, match=r"unlinked partition: .*spec is 'fast'"):
        split_compile_specs([CompileSpec("fast", b"1")])


@pytest.mark.parametrize(
    "name",
    ["aten.no_such.default", "aten.add.NoSuch", "nowhere.add", "aten", "", "aten.", "aten.add.Tensor.more", "_a.b"],
)
def test_operators_by_name(name):
    """Recipes name operators by namespace, operator, overload; without an overload it is the default one."""
    from pteforge.tasks.programs.graphs import check_operators, find_operators

    hardswish = torch.ops.aten.hardswish.default
    names = ["aten.hardswish", "aten.add.Tensor", "aten.hardswish.default"]
    assert find_operators(names) == [hardswish, torch.ops.aten.add.Tensor, hardswish]
    check_operators([(known, "edge.preserve_operators") for known in names])
    with pytest.raises(TargetError, match=r"namespace\.operator\.overload") as caught:
        find_operators(["aten.add.Tensor", name])
    assert f"unknown operator {name!r}" in str(caught.value)
    with pytest.raises(TargetError):
        check_operators([(name, "edge.preserve_operators")])

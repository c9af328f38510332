"""The chain of stages gives what ExecuTorch's public functions give; its private parts are as we use them."""

from __future__ import annotations

import inspect

import pytest
from pteforge.artifacts.pte.reader import read_pte

PORTABLE = {"specializations": [{"target": "portable"}]}
XNNPACK = {"specializations": [{"target": "xnnpack"}]}
LSTM = "executorch.examples.models.lstm.model:LSTMModel"


def xnnpack(**options):
    """A recipe."""
    return {"specializations": [{"target": "xnnpack", "options": options}]}


@pytest.mark.parametrize("recipe", [PORTABLE, XNNPACK], ids=["portable", "xnnpack"])
@pytest.mark.parametrize(
    "builder",
    [
        "chain_models:conv_net",
        "chain_models:mlp",
        "chain_models:two_methods",
        "chain_models:counter",
        "chain_models:two_partitions",
        pytest.param(LSTM, marks=pytest.mark.slow),
    ],
)
def test_chain_equals_upstream(builder, recipe, stages, upstream):
    """Every stage's output was stored and loaded on the way, and yet the file is the one that one call makes."""
    assert stages.lower(builder, recipe).file == upstream(builder, recipe)


@pytest.mark.parametrize(
    ("builder", "recipe"),
    [
        pytest.param("chain_models:conditional", PORTABLE, id="conditional portable"),
        pytest.param("chain_models:conditional", XNNPACK, id="conditional xnnpack"),
        pytest.param("chain_models:conditional_elementwise", XNNPACK, id="conditional elementwise xnnpack"),
        pytest.param("chain_models:conv_net", xnnpack(per_operator=True), id="per operator"),
        pytest.param("chain_models:conv_net", xnnpack(precisions=["fp32"]), id="fp32 only"),
        pytest.param("chain_models:conv_net", xnnpack(precisions=["static_quant", "dynamic_quant"]), id="no fp32"),
        pytest.param("chain_models:mlp", xnnpack(force_non_static_weights_for_f32_linear=True), id="weights as inputs"),
        pytest.param("chain_models:to_double", PORTABLE | {"edge": {"skip_dim_order": True}}, id="dim order portable"),
        pytest.param("chain_models:to_double", XNNPACK | {"edge": {"skip_dim_order": True}}, id="dim order xnnpack"),
        pytest.param("chain_models:conv_net", XNNPACK | {"compile": {"segment_alignment": 4096}}, id="aligned"),
        pytest.param(
            "chain_models:conv_net", XNNPACK | {"compile": {"extract_delegate_segments": False}}, id="delegates inline"
        ),
        pytest.param(
            "chain_models:shuffle",
            PORTABLE | {"edge": {"preserve_operators": ["aten.pixel_shuffle.default"]}},
            id="kept operator",
        ),
    ],
)
def test_chain_equals_upstream_with_options(builder, recipe, stages, upstream):
    """Options reach the function of ExecuTorch that they are for."""
    assert stages.lower(builder, recipe).file == upstream(builder, recipe)


@pytest.mark.parametrize(
    ("builder", "one", "other"),
    [
        ("chain_models:conv_net", XNNPACK, xnnpack(per_operator=True)),
        ("chain_models:conv_net", XNNPACK, xnnpack(precisions=["static_quant"])),
        ("chain_models:mlp", XNNPACK, xnnpack(force_non_static_weights_for_f32_linear=True)),
        ("chain_models:to_double", PORTABLE, PORTABLE | {"edge": {"skip_dim_order": True}}),
        ("chain_models:conv_net", XNNPACK, XNNPACK | {"compile": {"segment_alignment": 4096}}),
        ("chain_models:shuffle", PORTABLE, PORTABLE | {"edge": {"preserve_operators": ["aten.pixel_shuffle.default"]}}),
    ],
)
def test_options_change_the_file(builder, one, other, upstream, stages):
    """The options compared above are not without effect: upstream makes another file with them."""
    del stages
    assert upstream(builder, one) != upstream(builder, other)


def test_partitioners_of_two_backends(stages, upstream):
    """What the first leaves, the second takes: the file is that of one call with both partitioners."""
    chain = {"target": "vulkan+xnnpack", "options": {"vulkan": {"only_operators": ["aten.convolution.default"]}}}
    lowered = stages.lower(
        "chain_models:conv_net", {"output": {"form": "fat"}, "specializations": [chain, {"target": "portable"}]}
    )
    payload = lowered.payloads["vulkan-xnnpack"]
    assert payload == upstream("chain_models:conv_net", {"specializations": [chain]})
    assert set(read_pte(payload).backends) == {"VulkanBackend", "XnnpackBackend"}


def test_what_upstream_refuses_is_refused(stages):
    """An operator that was kept whole for a backend that then does not take it has no kernel: both say so.

    Upstream's XNNPACK partitioner keeps linear layers in branches and does not look there for what to delegate.
    """
    import torch
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower
    from pteforge.tasks.params import EdgeParams
    from pteforge.tasks.stages import exir

    del stages
    import chain_models

    module, inputs = chain_models.conditional()
    partitioners, config = [XnnpackPartitioner()], exir.edge_config(EdgeParams())
    with pytest.raises(RuntimeError, match="was not decomposed or delegated") as theirs:
        to_edge_transform_and_lower(torch.export.export(module, inputs[0]), partitioner=partitioners)
    edge = exir.to_edge_program(torch.export.export(module, inputs[0]), partitioners, config)
    partitioned = exir.to_partitioned_program(edge, partitioners)
    with pytest.raises(RuntimeError, match="was not decomposed or delegated") as ours:
        exir.check_preserved_operators_found_delegates(partitioned, partitioners, config)
    assert str(ours.value).splitlines()[:2] == str(theirs.value).splitlines()[:2]


def test_a_program_outside_the_edge_dialect_is_refused(stages, upstream):
    """An operator outside core ATen is refused in the same words as by upstream."""
    with pytest.raises(Exception, match="linalg_inv_ex") as theirs:
        upstream("chain_models:inverse", PORTABLE)
    with pytest.raises(type(theirs.value)) as ours:
        stages.lower("chain_models:inverse", PORTABLE | {"verify": {"drawn_inputs": 0}})
    assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        (
            "_gen_edge_manager_for_partitioners",
            ["partitioner", "aten_programs", "config", "constant_methods", "generate_etrecord"],
        ),
        ("_remove_invalid_ops_for_not_decompose", ["preserve_ops"]),
        (
            "_sanity_check_graph_for_non_decomp_ops",
            [
                "name",
                "program",
                "ops_set_to_not_decompose",
                "check_op_support",
                "generate_error",
                "partitioner_name",
            ],
        ),
    ],
)
def test_private_functions_are_as_we_call_them(name, parameters):
    """A new ExecuTorch that renames them, or what they take, is noticed here and not in a user's run."""
    from executorch.exir.program import _program

    assert list(inspect.signature(getattr(_program, name)).parameters) == parameters


def test_private_fields_are_as_we_set_them():
    """So are the constructors' arguments that have private names."""
    from executorch.exir import EdgeCompileConfig
    from executorch.exir.backend.backend_details import PreprocessResult
    from executorch.exir.lowered_backend_module import LoweredBackendModule
    from executorch.exir.verification.verifier import EXIREdgeDialectVerifier

    assert {"_check_ir_validity", "_skip_dim_order", "preserve_ops"} <= set(
        inspect.signature(EdgeCompileConfig).parameters
    )
    assert list(inspect.signature(PreprocessResult).parameters) == [
        "processed_bytes",
        "debug_handle_map",
        "data_store_output",
        "_delegate_info_meta",
    ]
    assert list(inspect.signature(LoweredBackendModule).parameters) == [
        "edge_program",
        "backend_id",
        "processed_bytes",
        "compile_specs",
        "named_data_store_output",
    ]
    assert {"edge_compile_config", "class_only", "preserve_ops"} <= set(
        inspect.signature(EXIREdgeDialectVerifier).parameters
    )


def test_delegated_programs_are_not_verified_again():
    """`compile` links delegates without verifying the result as edge dialect, because exir does not either."""
    import torch
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    program = torch.export.export(torch.nn.ReLU(), (torch.ones(2),))
    manager = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()])
    assert manager.compile_config._check_ir_validity is False
    assert to_edge_transform_and_lower(program).compile_config._check_ir_validity is True


def test_partitions_of_another_maker_are_not_taken_for_unlinked_ones():
    """Only what our own partitioning wrote is taken apart."""
    from executorch.exir.backend.compile_spec_schema import CompileSpec
    from pteforge.tasks.stages.exir import split_compile_specs

    with pytest.raises(ValueError, match="not an unlinked partition: its first compile spec is 'fast'"):
        split_compile_specs([CompileSpec("fast", b"1")])


def test_unlinked_partitions_keep_backend_and_specs(stages):
    """A partitioned program says which backend each partition is for, and holds no delegate yet."""
    from pteforge.tasks.stages.exir import UNLINKED, split_compile_specs
    from pteforge.tasks.stages.lowered import lowered_modules

    lowered = stages.lower("chain_models:two_partitions", XNNPACK)
    program = stages.program(lowered.outputs["partition/forward/tested"]["program"])
    modules = [module for _, _, module in lowered_modules(program)]
    assert len(modules) == 2
    assert all(module.backend_id == UNLINKED and not module.processed_bytes for module in modules)
    assert [split_compile_specs(module.compile_specs) for module in modules] == [("XnnpackBackend", [])] * 2

"""Options of recipes have the effects of ExecuTorch's own configuration."""

from __future__ import annotations

import pteforge
import pytest
import torch
from pteforge.errors import StageFailed
from pteforge.tests.lowering import checked_recipe

pytestmark = pytest.mark.slow


@pytest.fixture
def lower(net, example, store):
    """Lowers the network for the portable kernels with options of `edge` and `compile`."""

    def lowered(**options):
        recipe = checked_recipe("portable", **options)
        return pteforge.export(net, example, recipe=recipe, store=store)

    return lowered


@pytest.mark.filterwarnings("ignore:`HintBasedSymShapeEvalPass` is deprecated:FutureWarning")
@pytest.mark.parametrize(
    "options",
    [
        {"memory_planning_algo": "naive"},
        {"tensor_alignment": 64},
        {"remove_view_copy": False, "do_quant_fusion_and_const_prop": True},
        {"run_reinplace_pass": True, "reinplace_extra_ops": ["aten.index_put.default"]},
        {"sym_shape_eval": "hint_based", "enable_non_cpu_memory_planning": False},
        {"alloc_graph_input": False, "alloc_mutable_buffers": False, "emit_mutable_buffer_names": True},
        {"skip_h2d_for_method_inputs": True, "skip_d2h_for_method_outputs": True, "ignore_to_out_var_failure": True},
        {"allow_lifetime_and_storage_overlap": True},
    ],
)
def test_files_compute_the_same(lower, ran, options):
    """With any option the file computes the same as eager; only the chain from `compile` runs again."""
    lower()
    result = lower(compile=options)
    assert result.figures.overall.max_abs_error < 1e-5
    assert not ran(result) & {"edge", "partition", "preprocess"}


def test_unknown_operators(lower):
    """An unknown operator is named, whichever option has it."""
    with pytest.raises(StageFailed, match=r"unknown operator 'aten.rleu.default'") as caught:
        lower(compile={"reinplace_extra_ops": ["aten.rleu.default"]})
    assert caught.value.bad_input
    with pytest.raises(StageFailed, match=r"unknown operator 'aten.nrom.Scalar'"):
        lower(edge={"core_aten_ops_exception_list": ["aten.nrom.Scalar"]})


def test_core_aten_exceptions(nets, store):
    """An operator beyond core ATen passes the dialect's check if the recipe excepts it."""
    norm = nets.Function(lambda values: torch.ops.aten.linalg_vector_norm(values, keepdim=True) * values)
    operators = ["aten.linalg_vector_norm.default"]
    edge = {"preserve_operators": operators, "core_aten_ops_exception_list": operators}
    recipe = checked_recipe("portable", edge=edge)
    result = pteforge.export(norm, (torch.ones(3),), recipe=recipe, store=store, until="edge")
    assert "linalg_vector_norm" in str(result.artifact("edge").graph)


def test_shared_state_must_be_planned():
    """Shared state needs planned memory."""
    options = {"share_mutable_buffers": True, "alloc_mutable_buffers": False}
    with pytest.raises(ValueError, match="`share_mutable_buffers` needs `alloc_mutable_buffers`"):
        checked_recipe("portable", compile=options)

"""The one door to what torch and ExecuTorch have no public name for, or not in every release.

`from .compat import NAME` imports the module that has the name, and no other. If the installed release lacks it, the
name stands for a class that can be mentioned, subclassed and passed on, but raises ToolchainError when it is called or
patched: who needs it fails with that sentence, and all else goes on.
"""

from __future__ import annotations

import os
from functools import reduce
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from ...errors import ToolchainError

WITHOUT = "PTEFORGE_UPSTREAM_WITHOUT"
"""Environment variable: dotted names, joined by commas, that are taken for missing."""

_NAMES = {
    "executorch.backends.apple.coreml.compiler": "CoreMLBackend",
    "executorch.backends.apple.coreml.partition.coreml_partitioner": "_OperatorsSupportedForCoreMLBackend",
    "executorch.backends.apple.coreml.quantizer": "_coreml_quantizer_utils",
    "executorch.backends.apple.coreml.quantizer.coreml_quantizer": "CoreMLQuantizer",
    "executorch.backends.mlx.partitioner": "MLXPartitioner",
    "executorch.backends.mlx.preprocess": "MLXBackend",
    "executorch.backends.qualcomm._passes.qnn_pass_manager": "get_qnn_pass_manager_cls",
    "executorch.backends.transforms.fuse_view_copy": "FuseViewCopyTransform",
    "executorch.backends.transforms.utils": (
        "create_constant_placeholder delete_constant_placeholder get_param_tensor"
    ),
    "executorch.backends.vulkan._passes": "FoldQDQPass",
    "executorch.backends.vulkan._passes.squeeze_unsqueeze_inputs": "SqueezeUnsqueezeInputs",
    "executorch.backends.vulkan.op_registry": (
        "get_op_features is_reduce_node_supported_by_per_row_impl pick_storage_for_reduce"
    ),
    "executorch.backends.vulkan.partitioner.vulkan_partitioner": "VulkanSupportedOperators",
    "executorch.backends.vulkan.patterns": "fusable_patterns",
    "executorch.backends.vulkan.utils": "ANY_TEXTURE",
    "executorch.backends.vulkan.vulkan_preprocess": "apply_passes VulkanBackend",
    "executorch.backends.webgpu.partitioner.partitioner": "WebGPUPartitioner",
    "executorch.backends.xnnpack._passes": "XNNPACKPassManager",
    "executorch.backends.xnnpack._passes.channels_last_tagged_reshape_pass": "ChannelsLastTaggedReshapePass",
    "executorch.backends.xnnpack._passes.conv1d_unsqueeze_pass": "Conv1dUnsqueezePass",
    "executorch.backends.xnnpack._passes.convert_to_linear": "ConvertToLinearPass",
    "executorch.backends.xnnpack._passes.convert_to_sdpa": "ConvertToSDPAPass",
    "executorch.backends.xnnpack._passes.convert_to_upsample_bilinear2d": "ConvertToUpsampleBilinear2d",
    "executorch.backends.xnnpack._passes.decompose_cat": "DecomposeConcatenate",
    "executorch.backends.xnnpack._passes.fuse_batch_norm": "FuseBatchNormPass",
    "executorch.backends.xnnpack._passes.xnnpack_pass": "XNNPACKPass",
    "executorch.backends.xnnpack.operators.node_visitor": "NodeVisitor",
    "executorch.backends.xnnpack.partition.config": (
        "AddmmConfig ALL_PARTITIONER_CONFIGS BatchNormConfig ConstantPadConfig ConvolutionConfig "
        "GeluConfig LinearConfig MaxDimConfig MMConfig PreluConfig ToDimOrderCopyConfig "
        "UnsqueezeCopyConfig UpsampleBilinear2dConfig"
    ),
    "executorch.backends.xnnpack.partition.graphs": "bilinear_2d sdpa",
    "executorch.backends.xnnpack.quantizer": "xnnpack_quantizer_utils",
    "executorch.backends.xnnpack.quantizer.xnnpack_quantizer_utils": (
        "is_relu_node propagate_annotation QuantizationConfig"
    ),
    "executorch.backends.xnnpack.utils.quant_utils": (
        "is_dequant is_dynamic_qdq IS_IMPLICIT_Q_DQ_TAG is_quant is_tagged_as_implicit_q_dq"
    ),
    "executorch.exir": "lowered_backend_module",
    "executorch.exir._serialize._cord": "Cord FileBackedData",
    "executorch.exir._serialize._flatbuffer_program": "_flatbuffer_to_program _program_to_flatbuffer",
    "executorch.exir._serialize._named_data_store": "NamedDataStore NamedDataStoreOutput",
    "executorch.exir._serialize._program": "_ExtendedHeader _insert_flatbuffer_header PTEFile serialize_pte_binary",
    "executorch.exir._serialize._serialize": "serialize_for_executorch",
    "executorch.exir._serialize.data_serializer": "DataEntry DataPayload",
    "executorch.exir._serialize.padding": "aligned_size pad_to",
    "executorch.exir.backend.canonical_partitioners.group_partitioner": "GroupBasedPartitioner",
    "executorch.exir.backend.utils": "WhyNoPartition",
    "executorch.exir.dialects.backend._ops": "BackendOpOverload",
    "executorch.exir.dialects.edge._ops": "EdgeOpOverload",
    "executorch.exir.emit._emitter": "_Emitter",
    "executorch.exir.graph_module": "get_control_flow_submodules",
    "executorch.exir.pass_base": "_ExportPassBase NodeMetadata ProxyValue",
    "executorch.exir.passes.const_prop_pass": "ConstPropPass",
    "executorch.exir.passes.dim_order_ops_registry": "DimOrderOpsMap MemoryFormatOpsMap",
    "executorch.exir.passes.executorch_prim_ops_registry": "_PYTHON_SYM_OPS_TO_EXECUTORCH_SYM_OPS",
    "executorch.exir.passes.legalize_portable_dim_order_pass": "LegalizePortableDimOrderPass",
    "executorch.exir.passes.memory_format_ops_pass": "DimOrderOpsRevertPass MemoryFormatOpsPass",
    "executorch.exir.passes.normalize_transpose_pass": "NormalizeTransposePass",
    "executorch.exir.passes.remove_mixed_type_operators": "RemoveMixedTypeOperators",
    "executorch.exir.passes.replace_aten_with_edge_pass": "OpReplacePass",
    "executorch.exir.passes.replace_broken_ops_with_function_ops_pass": "ReplaceBrokenOpsWithFunctionalOpsPass",
    "executorch.exir.passes.replace_view_copy_with_view_pass": "_ViewSpec",
    "executorch.exir.passes.scalar_to_tensor_pass": "ScalarToTensorPass",
    "executorch.exir.passes.sym_to_tensor_pass": "SymToTensorPass",
    "executorch.exir.print_program": "_stacktrace_to_framelist",
    "executorch.exir.program._fake_program": "get_fake_program",
    "executorch.exir.program._program": "transform_op_to_aten_op",
    "executorch.exir.schema": "Buffer DataSegment NamedData Program",
    "executorch.exir.tensor": "dim_order_from_stride",
    "executorch.exir.verification.arg_validator": "EdgeOpArgValidator",
    "executorch.extension.pybindings.portable_lib": "_load_for_executorch",
    "torch._decomp": "_core_aten_decompositions_post_autograd",
    "torch._dynamo.exc": "Unsupported UserError",
    "torch._export.verifier": "Verifier",
    "torch._guards": "detect_fake_mode",
    "torch._higher_order_ops.auto_functionalize": "auto_functionalized auto_functionalized_v2",
    "torch._logging._internal": "DTRACE_ENV_VAR",
    "torch._logging.structured": "INTERN_TABLE",
    "torch._ops": "HigherOrderOperator OpOverload OpOverloadPacket",
    "torch._prims_common": "is_non_overlapping_and_dense_or_false",
    "torch._subclasses.fake_tensor": "_DISPATCH_META_HANDLERS FakeTensor FakeTensorMode unset_fake_temporarily",
    "torch.export._draft_export": "CaptureStructuredTrace DraftExportReport FailureReport FailureType",
    "torch.export.dynamic_shapes": "_combine_args _DerivedDim _DimHint _DimHintType _StaticDim _tree_map_with_path",
    "torch.fx.graph": "_PyTreeCodeGen",
    "torch.utils._mode_utils": "no_dispatch",
    "torch.utils._python_dispatch": (
        "_disable_current_modes _get_current_dispatch_mode_stack is_traceable_wrapper_subclass TorchDispatchMode"
    ),
    "torch.utils._pytree": "LeafSpec tree_leaves treespec_leaf",
    "torch.utils._sympy.functions": "Min MinMaxBase",
    "torch.utils._sympy.value_ranges": "ValueRanges",
    "torch.utils._traceback": "CapturedTraceback",
}
"""Modules, and what is used of them."""

_ALIASES = {
    "decomposed_operators": "torch.ao.quantization.fx._decomposed",
    "draft_export": "torch.export._draft_export",
    "dynamo_explain": "torch._dynamo.explain",
    "dynamo_reset": "torch._dynamo.reset",
    "edge_manager_module": "executorch.exir.program._program",
    "edge_verifier": "executorch.exir.verification.verifier",
    "emitter": "executorch.exir.emit._emitter",
    "executorch_serialization": "executorch.exir._serialize._serialize",
    "edge_ops": "executorch.exir.dialects._ops.ops.edge",
    "exir_ops": "executorch.exir.dialects._ops.ops",
    "export_utils": "torch._export.utils",
    "guards": "torch._guards",
    "inductor_decompositions": "torch._inductor.decomposition.decompositions",
    "pte_serialization": "executorch.exir._serialize._program",
    "pytree": "torch.utils._pytree",
    "quantization_patterns": "executorch.exir.passes._quant_patterns_and_replacements",
    "torch_ops": "torch._ops",
}
"""Modules and objects that have another name here, since theirs says nothing without its module."""

PATHS = {name.lstrip("_"): f"{module}.{name}" for module, names in _NAMES.items() for name in names.split()} | _ALIASES
"""Each name of this module, without underscores in front, and where upstream has it."""


def __getattr__(name: str) -> Any:
    if name not in PATHS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value = find(PATHS[name])
    return value


def find(path: str) -> Any:
    """What torch, ExecuTorch or another package has under a dotted name, which may begin with a name of this module."""
    first, dot, rest = path.partition(".")
    path = f"{PATHS.get(first, first)}{dot}{rest}"
    if path in os.environ.get(WITHOUT, "").split(","):
        return _missing(path)
    names = path.split(".")
    for length in range(len(names), 0, -1):
        module = ".".join(names[:length])
        try:
            return reduce(getattr, names[length:], import_module(module))
        except AttributeError:
            return _missing(path)
        except ModuleNotFoundError as error:
            if error.name == names[0] or not f"{module}.".startswith(f"{error.name}."):
                raise  # a package that is not installed
        except ImportError as error:
            if not (error.name or "").startswith(names[0]):
                raise
            return _missing(path)
    return _missing(path)


def is_missing(value: object) -> bool:
    """Whether it stands for a name that the installed release lacks, or for an attribute of one."""
    return isinstance(value, _Missing)


def _missing(path: str) -> Any:
    return _Missing(path.rpartition(".")[2], (), {"path": path})


class _Missing(type):
    """A name that upstream lacks. Its attributes are missing, too."""

    path: str

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _missing(f"{cls.path}.{name}")

    def __setattr__(cls, name: str, value: object) -> None:
        if not name.startswith("__"):
            raise cls._error()
        super().__setattr__(name, value)

    def __delattr__(cls, name: str) -> None:
        raise cls._error()

    def __call__(cls, *_: Any, **__: Any) -> Any:
        raise cls._error()

    def __iter__(cls) -> Any:
        return iter(())

    def _error(cls) -> ToolchainError:
        package = cls.path.partition(".")[0]
        try:
            installed = f"{package} {version(package)}"
        except PackageNotFoundError:
            installed = package
        return ToolchainError(
            f"{installed} has no `{cls.path}`, which is needed here; see `pteforge doctor --toolchain`"
        )

"""An ExecutorchBackendConfig as compile options."""

from __future__ import annotations

import inspect
from types import FunctionType
from typing import Any

from executorch.exir import ExecutorchBackendConfig
from executorch.exir.memory_planning import MemoryPlanningAlgorithmSuite, greedy, naive
from executorch.exir.pass_base import ExportPass
from executorch.exir.passes import MemoryPlanningPass, ToOutVarPass

from ...configs.recipe import CompileOptions, EmissionPass, MethodOptions
from ...tasks.lower.emission import SYM_SHAPE_EVAL
from .lowering import import_path, untranslatable

_FIELD = "executorch_backend_config"
_SAME_NAMES = (
    "emit_stacktrace",
    "extract_delegate_segments",
    "segment_alignment",
    "constant_tensor_alignment",
    "delegate_alignment",
    "remove_view_copy",
    "emit_mutable_buffer_names",
    "do_quant_fusion_and_const_prop",
    "run_reinplace_pass",
    "enable_non_cpu_memory_planning",
)
_PLANNING = (
    "allow_lifetime_and_storage_overlap",
    "alloc_graph_input",
    "alloc_graph_output",
    "alloc_mutable_buffers",
)
_DEVICES = ("skip_h2d_for_method_inputs", "skip_d2h_for_method_outputs")
_SYM_SHAPE_EVAL: dict[type, Any] = {made: name for name, made in SYM_SHAPE_EVAL.items()}
_NOT_OURS = {
    "external_mutable_weights": "it is for training on the device, of programs with gradients, which no stage exports",
    "dynamic_memory_planning_mode": "ExecuTorch does not read it",
}


def compile_options(given: ExecutorchBackendConfig | None) -> CompileOptions:
    """The same settings as options, for methods that `method_options` has none for.

    Raises ConfigError for functions and other pass classes.
    """
    if given is None:
        return CompileOptions()
    for name, hint in _NOT_OURS.items():
        if getattr(given, name):
            raise untranslatable(f"{_FIELD}.{name}", hint)
    if type(given.to_out_var_pass) is not ToOutVarPass:
        raise untranslatable(f"{_FIELD}.to_out_var_pass", "it is another class than ToOutVarPass")
    fields: dict[str, Any] = {name: getattr(given, name) for name in _SAME_NAMES}
    return CompileOptions(
        **fields,
        **_of_passes(given, None),
        share_mutable_buffers=_shares_buffers(given.memory_planning_pass),
        ignore_to_out_var_failure=given.to_out_var_pass.ignore_to_out_var_failure,
        reinplace_extra_ops=tuple(sorted(map(_operator, given.reinplace_extra_ops or ()))),
    )


def emission_passes(given: ExecutorchBackendConfig | None) -> tuple[EmissionPass, ...]:
    """Functions, and objects of classes, by import path; raises ConfigError for those that no path and values make."""
    passes = given.passes if given else ()
    return tuple(_emission_pass(own, f"{_FIELD}.passes[{position}]") for position, own in enumerate(passes))


def _emission_pass(given: Any, field: str) -> EmissionPass:
    if isinstance(given, FunctionType):
        return EmissionPass(callable=import_path(given, field), takes_module=True)
    path = import_path(type(given), field)
    kwargs = {
        name: vars(given)[name]
        for name, parameter in inspect.signature(type(given)).parameters.items()
        if name in vars(given) and parameter.kind in {parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY}
    }
    for name, value in kwargs.items():
        if not isinstance(value, bool | int | float | str | None):
            raise untranslatable(f"{field}.{name}", f"{value!r} is not a plain value")
    try:
        made = vars(type(given)(**kwargs))
    except TypeError as error:
        raise untranslatable(field, f"its attributes do not say how it was made: {error}") from error
    for name, value in vars(given).items():
        if name not in vars(ExportPass()) and (name not in made or not made[name] == value):
            raise untranslatable(f"{field}.{name}", f"it is not what {type(given).__name__} sets from its arguments")
    return EmissionPass(callable=path, kwargs=kwargs)


def method_options(given: ExecutorchBackendConfig | None) -> dict[str, MethodOptions]:
    """What differs by method: memory planning, dynamic sizes, and devices of inputs and outputs."""
    if given is None:
        return {}
    devices = given.propagate_device_config
    single = () if isinstance(devices, dict) else (getattr(devices, name) for name in _DEVICES)
    values = [given.memory_planning_pass, given.sym_shape_eval_pass, devices, *single]
    methods = dict.fromkeys(method for value in values if isinstance(value, dict) for method in value)
    usual = _of_passes(given, None)
    found = {}
    for method in methods:
        own = _of_passes(given, method)
        if differing := {name: value for name, value in own.items() if value != usual[name]}:
            found[method] = MethodOptions(**differing)
    return found


def external_data(given: ExecutorchBackendConfig | None) -> bool:
    """Whether weights go to a `.ptd` file; raises ConfigError if a function chooses which ones do."""
    found = given is not None and given.external_constants
    if not isinstance(found, bool):
        raise untranslatable(
            f"{_FIELD}.external_constants",
            "a function chooses the file of each weight; a recipe has all of them in the .pte, or with "
            "`output: {external_data: true}` all in one .ptd, so give True",
        )
    return found


def _of_passes(given: ExecutorchBackendConfig, method: str | None) -> dict[str, Any]:
    """Options of one method, or of those that the config does not name."""
    default = ExecutorchBackendConfig()
    made = _choose(given.sym_shape_eval_pass, method, default.sym_shape_eval_pass)
    sym_shape_eval = _SYM_SHAPE_EVAL.get(type(made))
    if sym_shape_eval is None:
        raise untranslatable(f"{_FIELD}.sym_shape_eval_pass", "it is neither constraint based nor hint based")
    devices = _choose(given.propagate_device_config, method, default.propagate_device_config)
    return {
        **_planning(_choose(given.memory_planning_pass, method, default.memory_planning_pass)),
        "sym_shape_eval": sym_shape_eval,
        **{name: bool(_choose(getattr(devices, name), method, default=False)) for name in _DEVICES},
    }


def _choose(given: Any, method: str | None, default: Any) -> Any:
    """What holds for a method, of one value for all of them or a mapping; as `to_executorch` chooses."""
    return given.get(method, default) if isinstance(given, dict) else given


def _shares_buffers(given: Any) -> bool:
    """Whether methods share the buffers that they change, which all of their passes must agree on."""
    planned = list(given.values()) if isinstance(given, dict) else [given]
    shared = {bool(getattr(own, "share_mutable_buffers", False)) for own in planned}
    if len(shared) > 1:
        raise untranslatable(f"{_FIELD}.memory_planning_pass", "share_mutable_buffers differs by method")
    return shared == {True}


def _planning(given: Any) -> dict[str, Any]:
    field = f"{_FIELD}.memory_planning_pass"
    if type(given) is not MemoryPlanningPass:
        raise untranslatable(field, f"it is a {type(given).__name__}, and not a MemoryPlanningPass")
    suite = given.memory_planning_algo
    algorithms = suite.algo_list if isinstance(suite, MemoryPlanningAlgorithmSuite) else [suite]
    if algorithms not in ([greedy], [naive]):
        raise untranslatable(f"{field}.memory_planning_algo", "it is neither greedy nor naive")
    return {
        **{name: getattr(given, name) for name in _PLANNING},
        "memory_planning_algo": algorithms[0].__name__,
        "tensor_alignment": given.alignment,
    }


def _operator(given: Any) -> str:
    return str(given._op)  # noqa: SLF001 - of an edge operator, the ATen one that it stands for

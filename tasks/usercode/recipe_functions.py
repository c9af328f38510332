"""Functions that recipes name: passes, and functions over the module that is quantized and over all Edge programs."""

from __future__ import annotations

import itertools
import operator
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from executorch.exir import EdgeCompileConfig, EdgeProgramManager
from executorch.exir.pass_base import ExportedProgramPassBase
from executorch.exir.pass_manager import ExportedProgramPassManager, PassType
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node
from torch.fx.passes.infra.pass_manager import PassManager

from ...errors import SourceError
from ..engine.stage import CallableParams
from .model_source import user_code_error

Value = TypeVar("Value", GraphModule, ExportedProgram)


def run_graph_passes(named: Mapping[str, Sequence[CallableParams]], field: str, module: GraphModule) -> GraphModule:
    """The module after the functions that `named` has by field; SourceError if one fails or returns no module."""
    return _run_each(named.get(field, ()), f"quantize.{field}", GraphModule, module)


def _run_each(named: Sequence[CallableParams], field: str, kind: type[Value], value: Value, *arguments: Any) -> Value:
    """The value after functions of `arguments` and the value, each of which returns one of its kind."""
    for position, params in enumerate(named):
        where = f"{field}[{position}] {params.source['builder']}"
        returned = _call(params, where, *arguments, value)
        if not isinstance(returned, kind):
            what, other = "module" if kind is GraphModule else "program", type(returned).__name__
            raise SourceError(f"{where} gave a {other}, and not the {what}; return it, also if unchanged")
        value = returned
    return value


def node_filter(function: CallableParams, position: int) -> Callable[[Node], bool]:
    """Returns whether the quantizer at a position may quantize a node; raises SourceError if the function fails."""
    where = f"quantize.quantizers[{position}].filter_fn: {function.source['builder']}"
    return lambda node: bool(_call(function, where, node))


def run_manager_passes(
    named: Sequence[tuple[CallableParams, bool]], programs: Mapping[str, ExportedProgram], constants: Mapping[str, Any]
) -> dict[str, ExportedProgram]:
    """All methods' Edge programs after the passes that functions return for the manager of these programs.

    Each function comes with whether it takes a method's program. Consecutive ones that do are all called before any of
    their passes runs, as in `EdgeProgramManagerTransformStage` (executorch/export/stages.py). Raises SourceError if a
    function cannot be imported, raises, or does not return passes.
    """
    if not named:
        return dict(programs)
    # Programs with delegates, and those with operators kept whole for a target, are not in the Edge dialect.
    manager = EdgeProgramManager(dict(programs), dict(constants) or None, EdgeCompileConfig(_check_ir_validity=False))
    for takes_program, group in itertools.groupby(named, operator.itemgetter(1)):
        functions = [(params, f"edge_manager_passes: {params.source['builder']}") for params, _ in group]
        if takes_program:
            passes: dict[str, list[Any]] = {method: [] for method in programs}
            for method, (params, where) in itertools.product(programs, functions):
                passes[method] += _checked(_call(params, where, method, manager.exported_program(method)), where)
            manager = _after_passes(manager, {method: some for method, some in passes.items() if some})
            continue
        for params, where in functions:
            manager = _after_passes(manager, _manager_passes(params, where, manager))
    return {method: manager.exported_program(method) for method in programs}


def _manager_passes(params: CallableParams, where: str, manager: EdgeProgramManager) -> Any:
    returned = _call(params, where, manager)
    if returned is None or isinstance(returned, PassManager | ExportedProgramPassManager):
        return returned
    if not isinstance(returned, Mapping):
        return _checked(returned, where)
    if unknown := sorted(set(returned) - manager.methods):
        raise SourceError(f"{where} gave passes for the methods {unknown}; the model has {sorted(manager.methods)}")
    return {method: _checked(passes, where) for method, passes in returned.items()}


def _after_passes(manager: EdgeProgramManager, passes: Any) -> EdgeProgramManager:
    return manager.transform(passes) if passes else manager


def _call(params: CallableParams, where: str, *arguments: Any) -> Any:
    try:
        return pkgutil.resolve_name(params.source["builder"])(*arguments, **params.source["kwargs"])
    except Exception as error:
        raise user_code_error(where, error) from error


def _checked(returned: Any, where: str) -> list[PassType | ExportedProgramPassBase]:
    passes = list(returned) if isinstance(returned, list | tuple) else [returned]
    for graph_pass in passes:
        if not (callable(graph_pass) or isinstance(graph_pass, ExportedProgramPassBase)):
            raise SourceError(f"{where} gave a {type(graph_pass).__name__}, and not a pass")
    return passes


def emission_passes(named: Sequence[tuple[CallableParams, bool]]) -> list[PassType]:
    """The passes before emission: callables that are passes, and those that callables make.

    Each comes with whether it takes a graph module, and so is a pass itself. Raises SourceError if a callable cannot be
    imported, raises, or does not return passes; or later, a pass raises.
    """
    passes: list[PassType] = []
    for position, (params, takes_module) in enumerate(named):
        where = f"emission_passes[{position}] {params.source['builder']}"
        passes += [partial(_call, params, where)] if takes_module else _checked(_call(params, where), where)
    return passes


def recipe_passes(
    named: Sequence[tuple[CallableParams, str | None]], program: ExportedProgram
) -> list[PassType | ExportedProgramPassBase]:
    """Passes that callables make of a method's name and program, or of nothing; SourceError if one makes none."""
    passes: list[PassType | ExportedProgramPassBase] = []
    for position, (params, method) in enumerate(named):
        where = f"edge.passes[{position}] {params.source['builder']}"
        passes += _checked(_call(params, where, *(() if method is None else (method, program))), where)
    return passes


def run_aten_passes(named: Sequence[CallableParams], method: str, program: ExportedProgram) -> ExportedProgram:
    """The program after functions of a method's name and its ATen program; raises SourceError if one fails."""
    return _run_each(named, "aten_passes", ExportedProgram, program, method)

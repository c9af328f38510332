"""What a caller hands over as a model, put into one form, and never changed."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch.export import ExportedProgram

from ..configs.definition import MethodDefinition, ModelDefinition
from ..errors import SourceError
from ..tasks.stages.source import BuiltModel, check_definition

Model: TypeAlias = torch.nn.Module | ExportedProgram | ModelDefinition | str | Path
"""One method, or with a ModelDefinition several; a path is that of a `.pt2` file."""

Inputs: TypeAlias = tuple[Any, ...] | Sequence[tuple[Any, ...]]
"""One example, or several."""


@dataclass(frozen=True)
class LiveSource:
    """A model in this process.

    Attributes:
        definition: its methods. Modules are copies of the caller's, of which only the parameters are the same objects.
        programs: method name to program, of those that were exported already.
        keyword_inputs: method name to keyword example inputs that such a program was exported with.
    """

    definition: ModelDefinition
    programs: Mapping[str, ExportedProgram] = field(default_factory=dict)
    keyword_inputs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def built(self, method: str) -> BuiltModel:
        """The model as the export stage takes it for one method."""
        return BuiltModel(self.definition, self.programs.get(method), self.keyword_inputs.get(method))

    def fresh(self) -> ModelDefinition:
        """The same with other copies of all modules, whose state is what it was at first."""
        modules = {name: each.module for name, each in self.definition.methods.items()}
        return _with_modules(self.definition, _copies(modules))


def live_source(
    model: Model | Mapping[str, torch.nn.Module | ExportedProgram],
    example_inputs: Inputs | Mapping[str, Inputs] | None,
    dynamic_shapes: Any,
    constant_methods: Mapping[str, Any] | None,
) -> LiveSource:
    """Checks what a caller gave. Arguments are those of `pteforge.export`.

    Raises:
        SourceError: something does not fit; nothing has been started.
    """
    if isinstance(model, ModelDefinition):
        _refuse_beside_definition(example_inputs, dynamic_shapes, constant_methods)
        return _copied(LiveSource(model))
    if isinstance(model, str | Path):
        model = _load(Path(model))
    modules = dict(model) if isinstance(model, Mapping) else {"forward": model}
    _check_kinds(modules)
    examples = by_method(example_inputs, tuple(modules), "example_inputs")
    shapes = by_method(dynamic_shapes, tuple(modules), "dynamic_shapes")
    methods: dict[str, MethodDefinition] = {}
    programs: dict[str, ExportedProgram] = {}
    keywords: dict[str, Mapping[str, Any]] = {}
    for name, each in modules.items():
        if isinstance(each, ExportedProgram):
            if shapes.get(name) is not None:
                raise SourceError(f"method {name!r} is exported already; its dynamic shapes are those of the program")
            positional, keywords[name] = _own_inputs(name, each)
            programs[name] = each
            given = _examples(name, examples[name]) if name in examples else [positional]
            methods[name] = MethodDefinition(each.module(), given)
        else:
            if name not in examples:
                raise SourceError(f"example_inputs of method {name!r} are missing: they are what it is traced with")
            methods[name] = MethodDefinition(each, _examples(name, examples[name]), shapes.get(name))
    return _copied(LiveSource(ModelDefinition(methods, dict(constant_methods or {})), programs, keywords))


def _copied(source: LiveSource) -> LiveSource:
    """The same with modules of its own, so that nothing that is done to them is done to the caller's.

    Modules that methods share are shared by the copies too. Parameters are not copied, since nothing changes them.
    """
    definition = source.definition
    check_definition("the model", definition)
    if functions := [name for name, value in definition.constant_methods.items() if callable(value)]:
        raise SourceError(f"constant_methods[{functions[0]!r}] is a function; give the value that the method returns")
    eager = {name: each.module for name, each in definition.methods.items() if name not in source.programs}
    return LiveSource(_with_modules(definition, _copies(eager)), source.programs, source.keyword_inputs)


def _copies(modules: Mapping[str, torch.nn.Module]) -> dict[str, torch.nn.Module]:
    memo = {id(parameter): parameter for module in modules.values() for parameter in module.parameters()}
    try:
        with torch.inference_mode(mode=False):  # or else the buffers' copies are such that nothing can trace
            return copy.deepcopy(dict(modules), memo)
    except Exception as error:
        raise SourceError(
            f"the model cannot be copied ({type(error).__name__}: {error}); it must not change"
        ) from error


def _with_modules(definition: ModelDefinition, modules: Mapping[str, torch.nn.Module]) -> ModelDefinition:
    methods = {
        name: MethodDefinition(modules.get(name, each.module), each.example_inputs, each.dynamic_shapes)
        for name, each in definition.methods.items()
    }
    return replace(definition, methods=methods)


def _refuse_beside_definition(*given: Any) -> None:
    for name, value in zip(("example_inputs", "dynamic_shapes", "constant_methods"), given, strict=True):
        if value is not None:
            raise SourceError(f"{name} stands in the ModelDefinition; do not give it again")


def _load(path: Path) -> ExportedProgram:
    from ..tasks.keys.program_file import check_program_file  # noqa: PLC0415 - only for files

    check_program_file(path)
    try:
        return torch.export.load(path)
    except Exception as error:
        raise SourceError(f"{path} is not a program that torch {torch.__version__} can load: {error}") from error


def _check_kinds(modules: Mapping[str, Any]) -> None:
    if not modules:
        raise SourceError("the model is an empty mapping; give at least one method")
    for name, each in modules.items():
        if not isinstance(each, torch.nn.Module | ExportedProgram):
            raise SourceError(
                f"method {name!r} is a {type(each).__name__}; give an nn.Module, an ExportedProgram, "
                "a mapping of method names to them, a pteforge.ModelDefinition, or the path of a .pt2 file"
            )


def by_method(given: Any, methods: tuple[str, ...], what: str) -> dict[str, Any]:
    """What is given for each method.

    A mapping is one by method where its keys are methods; for the only method, dynamic shapes may be a mapping by
    argument name.

    Raises:
        SourceError: it names other methods, or does not say which of several it is for.
    """
    if given is None:
        return {}
    if isinstance(given, Mapping) and set(given) <= set(methods):
        return dict(given)
    if len(methods) == 1 and (what == "dynamic_shapes" or not isinstance(given, Mapping)):
        return {methods[0]: given}
    if isinstance(given, Mapping):
        unknown = sorted(map(str, set(given) - set(methods)))
        raise SourceError(f"{what} names the methods {unknown}; the model has {list(methods)}")
    raise SourceError(f"the model has the methods {list(methods)}; give {what} as a mapping of method names")


def _examples(name: str, given: Any) -> list[tuple[Any, ...]]:
    if isinstance(given, tuple):
        return [given]
    if isinstance(given, list) and given and all(isinstance(each, tuple) for each in given):
        return given
    raise SourceError(
        f"example_inputs of method {name!r} is a {type(given).__name__}; give a tuple of positional arguments, "
        "such as (x,), or a list of such tuples"
    )


def _own_inputs(name: str, program: ExportedProgram) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    if program.example_inputs is None:
        raise SourceError(f"the program of method {name!r} holds no example inputs, so nothing could be verified")
    positional, keywords = program.example_inputs
    return tuple(positional), keywords

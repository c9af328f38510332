"""The caller's model, example inputs and calibration data, checked and brought into one form; never changed."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch.export import ExportedProgram

from ..configs.model import MethodDefinition, ModelDefinition
from ..configs.sources import Dataset
from ..errors import InputError, SourceError
from ..tasks.engine.keys.builder import find_builder
from ..tasks.engine.keys.search import ModuleSearch
from ..tasks.engine.keys.source import check_program_file
from ..tasks.lowering.model import PlannedRecipe
from ..tasks.usercode.inputs import own_tensors
from ..tasks.usercode.model_source import STATE_DICT, BuiltModel, checked_definition, is_state_dict
from ..tasks.usercode.modules import copy_modules

# One method, or with a ModelDefinition several; a path is that of a `.pt2` file.
Model: TypeAlias = torch.nn.Module | ExportedProgram | ModelDefinition | str | Path
# The positional or keyword arguments of one example, or of several.
Inputs: TypeAlias = tuple[Any, ...] | Sequence[tuple[Any, ...]]
Keywords: TypeAlias = Mapping[str, Any] | Sequence[Mapping[str, Any]]
# One sample as a tuple of positional inputs; an iterable of such tuples, or of only inputs; or a dataset by name.
Samples: TypeAlias = tuple[Any, ...] | Iterable[Any] | Dataset | str


@dataclass(frozen=True)
class LiveSource:
    """A model in this process, whose modules are copies of the caller's that share only the parameters."""

    definition: ModelDefinition
    programs: Mapping[str, ExportedProgram] = field(default_factory=dict)  # by method, if the caller has exported it
    keyword_inputs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # of these programs, by method

    def built(self, method: str) -> BuiltModel:
        return BuiltModel(self.definition, self.programs.get(method), self.keyword_inputs.get(method))

    def fresh(self) -> ModelDefinition:
        """The definition with new copies of all modules, in their initial state."""
        return _with_copies(self.definition, set(self.definition.methods))


def live_source(
    model: Model | Mapping[str, torch.nn.Module | ExportedProgram],
    example_inputs: Inputs | Mapping[str, Inputs] | None,
    dynamic_shapes: Any,
    constant_methods: Mapping[str, Any] | None,
    example_kwarg_inputs: Keywords | Mapping[str, Keywords] | None = None,
) -> LiveSource:
    """Checks the caller's model and inputs; raises SourceError. Arguments are those of `pteforge.export`."""
    if isinstance(model, ModelDefinition):
        arguments = {
            "example_inputs": example_inputs,
            "dynamic_shapes": dynamic_shapes,
            "constant_methods": constant_methods,
            "example_kwarg_inputs": example_kwarg_inputs,
        }
        if given := [name for name, value in arguments.items() if value is not None]:
            raise SourceError(f"{given[0]} is part of the ModelDefinition; do not give it again")
        return _copied(LiveSource(model))
    if isinstance(model, str | Path):
        model = _load(Path(model))
    modules = dict(model) if isinstance(model, Mapping) else {"forward": model}
    _check_kinds(modules)
    examples = method_inputs(example_inputs, tuple(modules), "example_inputs")
    shapes = method_inputs(dynamic_shapes, tuple(modules), "dynamic_shapes")
    named = method_inputs(example_kwarg_inputs, tuple(modules), "example_kwarg_inputs")
    methods: dict[str, MethodDefinition] = {}
    programs: dict[str, ExportedProgram] = {}
    keywords: dict[str, Mapping[str, Any]] = {}
    for name, module in modules.items():
        if isinstance(module, ExportedProgram):
            if shapes.get(name) is not None:
                raise SourceError(f"method {name!r} is exported already; its dynamic shapes are those of the program")
            if name in named:
                raise SourceError(f"method {name!r} is exported already; its keyword inputs are those of the program")
            if module.example_inputs is None:
                raise SourceError(f"the program of method {name!r} has no example inputs, so nothing can be verified")
            positional, keywords[name] = own_tensors(module.example_inputs)
            programs[name] = module
            inputs = _examples(name, examples[name]) if name in examples else [tuple(positional)]
            methods[name] = MethodDefinition(module.module(), inputs)
        else:
            if name not in examples and name not in named:
                raise SourceError(f"example_inputs of method {name!r} are missing: they are what it is traced with")
            inputs = _examples(name, examples[name]) if name in examples else []
            by_keyword = _keywords(name, named[name]) if name in named else []
            methods[name] = MethodDefinition(module, inputs, shapes.get(name), by_keyword)
    return _copied(LiveSource(ModelDefinition(methods, dict(constant_methods or {})), programs, keywords))


@dataclass(frozen=True)
class Calibration:
    """What quantizers observe in place of the example inputs, by method."""

    samples: Mapping[str, Iterable[Any]] = field(default_factory=dict)  # in this process, iterated over once
    datasets: Mapping[str, Dataset] = field(default_factory=dict)


def read_calibration(
    given: Samples | Mapping[str, Samples] | None, methods: tuple[str, ...], recipe: PlannedRecipe
) -> Calibration:
    """Checks the caller's calibration data without taking a sample yet. Arguments are those of `pteforge.export`.

    Raises InputError if the recipe does not quantize the model, or for an unknown method or dataset, or no samples.
    """
    if given is None:
        return Calibration()
    if not (recipe.quantizers or recipe.recipe.rounds_by_samples):
        raise InputError(
            f"calibration is given, but the recipe {recipe.name!r} has no `quantize`; leave one of them out"
        )
    samples: dict[str, Iterable[Any]] = {}
    datasets: dict[str, Dataset] = {}
    for method, value in method_inputs(given, methods, "calibration").items():
        if not recipe.recipe.quantizes(method):
            raise InputError(f"calibration of method {method!r}: the recipe {recipe.name!r} does not quantize it")
        if isinstance(value, str | Dataset):
            datasets[method] = _dataset(method, value)
        else:
            samples[method] = _samples(method, value)
    return Calibration(samples, datasets)


def _dataset(method: str, given: str | Dataset) -> Dataset:
    name = given if isinstance(given, str) else given.dataset
    try:
        find_builder(name, ModuleSearch(()))
    except SourceError as error:
        raise SourceError(f"calibration of method {method!r}: {error}") from error
    return Dataset(dataset=given) if isinstance(given, str) else given


def _samples(method: str, given: Any) -> Iterable[Any]:
    if isinstance(given, tuple):
        return [given]
    if isinstance(given, torch.Tensor | Mapping) or not isinstance(given, Iterable):
        raise SourceError(
            f"calibration of method {method!r} is a {type(given).__name__}; give a tuple of positional inputs, "
            "an iterable of such tuples, or package.module:name of a dataset"
        )
    return given


def _copied(source: LiveSource) -> LiveSource:
    """The source with copies of the modules, so that the caller's are never changed."""
    definition = checked_definition("the model", source.definition)
    if functions := [name for name, value in definition.constant_methods.items() if callable(value)]:
        raise SourceError(f"constant_methods[{functions[0]!r}] is a function; give the value that the method returns")
    eager = definition.methods.keys() - source.programs.keys()
    return LiveSource(_with_copies(definition, eager), source.programs, source.keyword_inputs)


def _with_copies(definition: ModelDefinition, names: Container[str]) -> ModelDefinition:
    """Copies the modules of the methods `names`; what they share, their copies share, and parameters are not copied."""
    modules = {name: method.module for name, method in definition.methods.items() if name in names}
    try:
        with torch.inference_mode(mode=False):  # inference tensors cannot be traced
            copies = copy_modules(modules)
    except Exception as error:
        problem = f"the model cannot be copied ({type(error).__name__}: {error}), and pteforge never changes yours"
        raise SourceError(problem) from error
    methods = {
        name: replace(method, module=copies.get(name, method.module)) for name, method in definition.methods.items()
    }
    return replace(definition, methods=methods)


def _load(path: Path) -> ExportedProgram:
    if ":" in path.name and not path.exists():
        raise SourceError(
            f"{path} is a builder's name, which the command line and zoos take; import it, call it, and give "
            "`pteforge.export` the model and the example inputs that it returns"
        )
    check_program_file(path)
    try:
        return torch.export.load(path)
    except Exception as error:
        raise SourceError(f"{path} is not a program that torch {torch.__version__} can load: {error}") from error


def _check_kinds(modules: Mapping[str, Any]) -> None:
    if is_state_dict(modules):
        raise SourceError(f"the model is {STATE_DICT}")
    if not modules:
        raise SourceError("the model is an empty mapping; give at least one method")
    for name, module in modules.items():
        if not isinstance(module, torch.nn.Module | ExportedProgram):
            raise SourceError(
                f"method {name!r} is a {type(module).__name__}; give an nn.Module, an ExportedProgram, "
                "a mapping of method names to them, a pteforge.ModelDefinition, or the path of a .pt2 file"
            )


def method_inputs(given: Any, methods: tuple[str, ...], what: str) -> dict[str, Any]:
    """Assigns what the caller gives to methods; raises SourceError for unknown methods or if the method is ambiguous.

    A mapping whose keys are methods is by method; for a single method, it may be by names of arguments.
    """
    if given is None:
        return {}
    if isinstance(given, Mapping) and set(given) <= set(methods):
        return dict(given)
    by_argument = what in ("dynamic_shapes", "example_kwarg_inputs", "buckets")
    if len(methods) == 1 and (by_argument or not isinstance(given, Mapping)):
        return {methods[0]: given}
    if isinstance(given, Mapping):
        by_name = "; arguments by name are `example_kwarg_inputs`" if what == "example_inputs" else ""
        unknown = sorted(map(str, set(given) - set(methods)))
        raise SourceError(f"{what} names the methods {unknown}; the model has {list(methods)}{by_name}")
    raise SourceError(f"the model has the methods {list(methods)}; give {what} as a mapping of method names")


def _examples(name: str, given: Any) -> list[tuple[Any, ...]]:
    what = "a tuple of positional arguments, such as (x,), or a list of such tuples"
    what += "; arguments by name are `example_kwarg_inputs`"
    return _one_or_several(f"example_inputs of method {name!r}", given, tuple, what)


def _keywords(name: str, given: Any) -> list[Mapping[str, Any]]:
    what = "a mapping of keyword arguments, such as {'mask': mask}, or a list of such mappings"
    return _one_or_several(f"example_kwarg_inputs of method {name!r}", given, Mapping, what)


def _one_or_several(name: str, given: Any, kind: type, what: str) -> list[Any]:
    """What is given of a kind, as a list; raises SourceError, which says what to give."""
    if isinstance(given, kind):
        return [given]
    if isinstance(given, list) and given and all(isinstance(one, kind) for one in given):
        return given
    is_empty = isinstance(given, list) and not given
    raise SourceError(f"{name} is {'an empty list' if is_empty else f'a {type(given).__name__}'}; give {what}")

"""Builds a model in the worker, where alone the user's code runs; keyword inputs become positional, as in files."""

from __future__ import annotations

import inspect
import os
import pkgutil
import random
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import ValidationError
from torch.export import ExportedProgram, ShapesCollection

from ...artifacts.ref import ArtifactRef
from ...configs.base import NAME_PATTERN, describe_errors
from ...configs.metadata import Metadata
from ...configs.model import MethodCall, MethodDefinition, ModelDefinition
from ...errors import SourceError
from .. import sources
from ..engine.keys.inputs import Recorder, recording
from ..engine.keys.source import loaded_files, observed_distributions, observed_modules
from ..engine.stage import Workspace
from ..programs.weights import builder_scope
from ..upstream.compat import pytree
from ..upstream.torch_export import import_torchvision, mapping_heard
from .inputs import own_tensors

_OWN_CODE = Path(__file__).parents[1]


def user_code_error(what: str, error: BaseException) -> SourceError:
    """The error to raise for an exception of the user's code; `what` is, for example, ``builder nets:small``."""
    return SourceError(f"{what} failed: {type(error).__name__}: {error}{_where(error)}{_way_out(error)}")


_NO_GPU = re.compile(
    r"not compiled with CUDA|NVIDIA driver|on a CUDA device but torch\.cuda\.is_available\(\) is False"
)
_NO_LIBRARY = re.compile(r"operator torchvision::\w+ does not exist|Couldn't load custom C\+\+ ops")


def _way_out(error: BaseException) -> str:
    """Advice on mistakes that the exception does not explain to newcomers."""
    if isinstance(error, SystemExit):
        return (
            "; code that is imported or called here must not end the process (sys.exit, argparse): raise an exception"
        )
    if _NO_LIBRARY.search(str(error)):
        return f"; {_TORCHVISION_FOR_CPUS}"
    if isinstance(error, FileNotFoundError) and error.filename and not Path(str(error.filename)).is_absolute():
        return f"; relative paths begin in the folder of the zoo file, {Path.cwd()}"
    return f"; {_ON_CPU}" if _NO_GPU.search(str(error)) else ""


_ON_CPU = (
    "models are lowered on the CPU for every target: leave `.to(...)` and `.cuda()` out, and load checkpoints with "
    '`map_location="cpu"`'
)


_TORCHVISION_FOR_CPUS = (
    "this torchvision is built for CUDA, and this torch for CPUs; install the one for CPUs: `pip install "
    "--force-reinstall --no-deps torchvision==0.28.0 --index-url https://download.pytorch.org/whl/cpu`"
)


def _where(error: BaseException) -> str:
    """The last line of the user's own code in the traceback, if there is any: `` (nets.py:12)``."""
    not_theirs = (*{sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")}, str(_OWN_CODE), "<")
    frames = traceback.extract_tb(error.__traceback__)
    lines = [(Path(frame.filename), frame.lineno) for frame in frames if not frame.filename.startswith(not_theirs)]
    if not lines:
        return ""
    path, number = lines[-1]
    return f" ({path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}:{number})"


@dataclass(frozen=True, slots=True)
class Observation:
    """The code that is loaded, and the inputs that are read, after a certain moment."""

    modules: frozenset[str]  # names in ``sys.modules`` at that moment
    path: tuple[str, ...]  # ``sys.path`` at that moment
    recorder: Recorder

    def save(self, work: Workspace) -> ArtifactRef:
        """Stores what the user's code has loaded and read since (model/observed)."""
        before = set(self.modules)
        modules = observed_modules(before, work.python_path, self.path)
        names = sorted({*modules, *observed_distributions(before, work.python_path)})
        observed = self.recorder.observed(names, {str(path) for _, path in loaded_files(())})
        return work.store.put_artifact("model/observed", observed.encode())


@contextmanager
def observed(work: Workspace, *sources: Mapping[str, Any]) -> Iterator[Observation]:
    """Observes the user's code that runs in the context; `sources` are its key fields (`tasks.engine.keys.source`)."""
    ignored = [work.store.root, work.scratch, *([work.program_file] if work.program_file else [])]
    arguments = [source.get("kwargs") for source in sources]
    recorder = Recorder(work.folder, work.python_path, arguments, ignored, work.declared)
    with recording(recorder), mapping_heard(recorder.opened):
        yield Observation(frozenset(sys.modules), tuple(sys.path), recorder)


@dataclass(frozen=True)
class BuiltModel:
    """A model ready to export."""

    definition: ModelDefinition  # its methods; for a `.pt2` file the module of its one method runs the exported program
    program: ExportedProgram | None = None  # the program of a `.pt2` file, which needs no export
    keyword_inputs: Mapping[str, Any] | None = None  # keyword example inputs of a `.pt2` file


def seed_everything(seed: int) -> None:
    """Seeds torch, numpy and random: random weights and inputs are the same in every run."""
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - builders use the global generator, so it is the one to seed
    random.seed(seed)


def build_model(source: Mapping[str, Any], seed: int, work: Workspace) -> BuiltModel:
    """Builds a model in the zoo's folder, everything seeded; raises SourceError if its builder or file is wrong."""
    os.chdir(work.folder)
    seed_everything(seed)
    return load_program_file(work.program_file) if work.program_file else build(source["builder"], source["kwargs"])


def build(builder: str, arguments: Mapping[str, Any]) -> BuiltModel:
    """Calls a builder, a callable or a class as EagerModelBase, by ``pkg.mod:name``; SourceError without a model."""
    own = builder.startswith(f"{sources.__name__}.")  # its models run everything that reads weights as they are used
    try:
        with builder_scope(own=own):
            returned = _imported(builder)(**arguments)
        if hasattr(returned, "get_eager_model"):
            definition = _eager_model(returned)
        else:
            definition = _definition(f"builder {builder} returned", returned)
    except SourceError:
        raise
    except (Exception, SystemExit) as error:
        raise user_code_error(f"builder {builder}", error) from error
    return BuiltModel(checked_definition(f"builder {builder}", definition))


def _imported(builder: str) -> Any:
    try:
        return pkgutil.resolve_name(builder)
    except RuntimeError as error:
        if not _NO_LIBRARY.search(str(error)):
            raise
        import_torchvision()
        return pkgutil.resolve_name(builder)


def load_program_file(path: Path) -> BuiltModel:
    """Reads a `.pt2` file; raises SourceError if it cannot be read, or was saved without example inputs."""
    try:
        program = torch.export.load(path)
    except Exception as error:
        raise SourceError(f"{path.name} is not a program that torch {torch.__version__} can load: {error}") from error
    if program.example_inputs is None:
        raise SourceError(
            f"{path.name} holds no example inputs, so nothing could be verified; save it as torch.export.export made it"
        )
    args, kwargs = own_tensors(program.example_inputs)
    method = MethodDefinition(module=program.module(), example_inputs=[tuple(args)])
    return BuiltModel(ModelDefinition({"forward": method}), program, kwargs)


def _eager_model(model: Any) -> ModelDefinition:
    """Reads an object with the interface of executorch.examples.models.model_base.EagerModelBase."""
    shapes = model.get_dynamic_shapes() if hasattr(model, "get_dynamic_shapes") else None
    keywords = model.get_example_kwarg_inputs() if hasattr(model, "get_example_kwarg_inputs") else None
    metadata = model.get_metadata() if hasattr(model, "get_metadata") else None
    padding = model.get_padding() if hasattr(model, "get_padding") else {}
    module = model.get_eager_model()  # before the inputs, as ExecuTorch's examples do: both may be random
    method = _with_keywords(module, tuple(model.get_example_inputs()), keywords, shapes)
    assets = model.get_assets() if hasattr(model, "get_assets") else {}
    return ModelDefinition({"forward": replace(method, padding=padding)}, assets=assets, metadata=metadata)


def _definition(what: str, returned: Any) -> ModelDefinition:
    match returned:
        case ModelDefinition():
            return returned
        case (torch.nn.Module() as module, tuple() as inputs):
            return ModelDefinition({"forward": MethodDefinition(module, [inputs])})
        case (torch.nn.Module() as module, list() as examples):
            return ModelDefinition({"forward": MethodDefinition(module, examples)})
        case (torch.nn.Module() as module, Mapping() as keywords):
            return ModelDefinition({"forward": _with_keywords(module, (), keywords)})
        case (torch.nn.Module() as module, tuple() as inputs, Mapping() as keywords):
            return ModelDefinition({"forward": _with_keywords(module, inputs, keywords)})
        case torch.nn.Module():
            kind = type(returned).__name__
            problem = f"a module ({kind}) without example inputs, which it is traced with; return both: `model, (x,)`"
        case (torch.nn.Module(), other) if isinstance(returned, tuple):
            problem = (
                f"a module and a {type(other).__name__}; example inputs are a tuple of arguments, also where there is "
                "one: `model, (x,)`"
            )
        case None:
            problem = "None: let it end with `return model, (x,)`"
        case _ if is_state_dict(returned[0] if isinstance(returned, tuple) and returned else returned):
            problem = STATE_DICT
        case _:
            problem = (
                f"{type(returned).__name__}; it must return a pteforge.ModelDefinition, or an nn.Module with a tuple "
                "of example inputs, a mapping of keyword inputs, or both"
            )
    raise SourceError(f"{what} {problem}")


STATE_DICT = (
    "a state dict, which has weights and no code: build the module, `model.load_state_dict(...)`, and give that module"
)


def is_state_dict(value: Any) -> bool:
    """Whether a value has the weights of a module in place of the module."""
    return isinstance(value, Mapping) and bool(value) and all(isinstance(each, torch.Tensor) for each in value.values())


def _with_keywords(
    module: torch.nn.Module, example: tuple[Any, ...], keywords: Mapping[str, Any] | None, shapes: Any = None
) -> MethodDefinition:
    return MethodDefinition(module, [example], shapes, [keywords] if keywords else ())


def checked_definition(what: str, definition: ModelDefinition) -> ModelDefinition:
    """A definition whose methods take all inputs by position; raises SourceError, beginning with `what`, for errors."""
    if not definition.methods:
        raise SourceError(f"{what} defines no method")
    for name, method in definition.methods.items():
        _check_method(what, name, method)
    if clash := set(definition.methods) & set(definition.constant_methods):
        raise SourceError(f"{what}: {sorted(clash)} are methods and constant methods at once")
    for name, content in definition.assets.items():
        _check_asset(what, name, content)
    try:
        written_metadata(definition)
    except (ValidationError, ValueError) as error:
        problem = describe_errors(error) if isinstance(error, ValidationError) else str(error)
        raise SourceError(f"{what}: metadata: {problem}") from error
    return _with_own_tensors(by_position(what, definition))


def _with_own_tensors(definition: ModelDefinition) -> ModelDefinition:
    """The definition with inputs that share no memory with each other; see `own_tensors`."""
    methods = {}
    for name, method in definition.methods.items():
        shapes = method.dynamic_shapes
        if isinstance(shapes, ShapesCollection):  # finds tensors by identity
            shapes = shapes.dynamic_shapes(method.module, method.example_inputs[0])
        examples = own_tensors(list(method.example_inputs))
        methods[name] = replace(method, dynamic_shapes=shapes, example_inputs=examples)
    sequences = [[replace(call, inputs=own_tensors(call.inputs)) for call in calls] for calls in definition.sequences]
    return replace(definition, methods=methods, sequences=sequences)


_DELIVERED = (".pte", ".ptd", ".md", ".html", ".etrecord")  # endings of files that pteforge writes next to an asset


def _check_asset(what: str, name: Any, content: Any) -> None:
    if not (isinstance(name, str) and re.fullmatch(NAME_PATTERN, name)) or name.endswith(_DELIVERED):
        raise SourceError(
            f"{what}: {name!r} cannot be the name of an asset: use letters, digits, '.', '_' and '-', and no ending "
            f"of files that pteforge writes ({', '.join(_DELIVERED)})"
        )
    if not isinstance(content, bytes):
        raise SourceError(f"{what}: the asset {name!r} is {type(content).__name__}; it must be bytes")


def written_metadata(definition: ModelDefinition) -> dict[str, Any]:
    """The source's metadata as JSON values, with paths from the zoo's folder; ValueError for unknown fields."""
    metadata = definition.metadata
    if not isinstance(metadata, Metadata):
        metadata = Metadata.model_validate(dict(metadata or {}))
    return metadata.with_labels().written()


def _unusable_input(value: Any) -> str:
    """What is wrong with an example input, if it is one of the common mistakes."""
    if isinstance(value, np.ndarray | np.generic):
        return f"a NumPy array of shape {value.shape} among its inputs; give tensors: `torch.from_numpy(...)`"
    if isinstance(value, torch.Tensor) and value.device.type != "cpu":
        return f"a tensor on {value.device} among its inputs; {_ON_CPU}"
    return ""


def _check_first_mistakes(what: str, name: str, method: MethodDefinition) -> None:
    for kind, tensors in (("parameter", method.module.named_parameters()), ("buffer", method.module.named_buffers())):
        for path, tensor in tensors:
            if tensor.device.type != "cpu":
                raise SourceError(f"{what}{kind} {path!r} of {name!r} is on {tensor.device}; {_ON_CPU}")
    examples, keywords = method.example_inputs, method.example_kwarg_inputs
    if not (examples or keywords):
        kind = "are missing" if examples is None else "is an empty list"
        raise SourceError(
            f"{what}example_inputs of {name!r} {kind}: they are what it is traced with; give at least one example, "
            "such as `(x,)`"
        )
    for inputs in (examples, keywords):
        for number, example in enumerate(inputs):
            for value in pytree.tree_leaves(example):
                if problem := _unusable_input(value):
                    raise SourceError(f"{what}example {number} of {name!r} has {problem}")


def check_outputs(name: str, outputs: Iterable[Any]) -> None:
    """Raises SourceError for an output that is a text, which no file can return."""
    for position, value in enumerate(outputs):
        if isinstance(value, str | bytes):
            raise SourceError(
                f"method {name!r} returns a text as output {position} ({value!r:.40}); files return tensors and "
                "numbers: leave it out, or make it metadata of the model"
            )


def _check_method(what: str, name: str, method: MethodDefinition) -> None:
    if not name.isidentifier():
        raise SourceError(f"{what}: method name {name!r} is not a Python identifier")
    if not isinstance(method.module, torch.nn.Module):
        raise SourceError(f"{what}: method {name!r} has a {type(method.module).__name__} as its module")
    _check_first_mistakes(f"{what}: ", name, method)
    examples: Any = method.example_inputs
    if not all(isinstance(example, tuple) for example in examples):
        raise SourceError(f"{what}: example_inputs of {name!r} must be a list of tuples, at least one")
    keywords: Any = method.example_kwarg_inputs
    if not isinstance(keywords, list | tuple) or not all(isinstance(inputs, Mapping) for inputs in keywords):
        raise SourceError(f"{what}: example_kwarg_inputs of {name!r} must be a list of mappings, one for each example")


def by_position(what: str, definition: ModelDefinition) -> ModelDefinition:
    """The definition with all inputs by position: keywords follow, in the order of a method's first example.

    Modules that take keywords are replaced by shallow copies, which share weights, buffers and submodules with them.
    Raises SourceError if examples of one method have different keywords, or a call in a sequence has others than they.
    """
    methods = {name: _by_position(f"{what}: method {name!r}", method) for name, method in definition.methods.items()}
    names = {name: keyword_names(method) for name, method in definition.methods.items()}
    sequences = [
        [_positional_call(f"{what}: sequence {number}", call, names.get(call.method, ())) for call in calls]
        for number, calls in enumerate(definition.sequences)
    ]
    return replace(definition, methods=methods, sequences=sequences)


def keyword_names(method: MethodDefinition) -> tuple[str, ...]:
    """Names of the inputs that a method takes by keyword."""
    return tuple(method.example_kwarg_inputs[0]) if method.example_kwarg_inputs else ()


def by_name(entries: Mapping[str, Any], method: MethodDefinition, what: str) -> list[Any]:
    """One entry per input of the first example, from entries by parameter of ``forward``; SourceError for others."""
    names = _names_of(method.module.forward, len(method.example_inputs[0]))
    if unknown := [name for name in entries if name not in names]:
        raise SourceError(f"{what} names {unknown[0]!r}; the inputs of the first example are {names}")
    return [entries.get(name) for name in names]


def _by_position(what: str, method: MethodDefinition) -> MethodDefinition:
    names = keyword_names(method)
    if not names:
        return replace(method, example_kwarg_inputs=())
    examples = method.example_inputs or [()] * len(method.example_kwarg_inputs)
    if len(examples) != len(method.example_kwarg_inputs):
        raise SourceError(
            f"{what} has {len(examples)} example_inputs and {len(method.example_kwarg_inputs)} example_kwarg_inputs; "
            "give one mapping of keywords for each example"
        )
    positional = [
        (*args, *_ordered(f"{what}: example {number}", kwargs, names))
        for number, (args, kwargs) in enumerate(zip(examples, method.example_kwarg_inputs, strict=True))
    ]
    module = _taking_all_by_position(what, method.module, examples[0], names)
    return replace(method, module=module, example_inputs=positional, example_kwarg_inputs=())


def _ordered(what: str, kwargs: Mapping[str, Any], names: Sequence[str]) -> list[Any]:
    if set(kwargs) != set(names):
        raise SourceError(f"{what} has the keywords {list(kwargs)}, and the first example of the method {list(names)}")
    return [kwargs[name] for name in names]


def _positional_call(what: str, call: MethodCall, names: Sequence[str]) -> MethodCall:
    if not call.kwargs:
        return call
    return MethodCall(call.method, (*call.inputs, *_ordered(f"{what}: {call.method!r}", call.kwargs, names)))


def _taking_all_by_position(
    what: str, module: torch.nn.Module, example: Sequence[Any], names: Sequence[str]
) -> torch.nn.Module:
    """A shallow copy whose ``forward`` takes the example's inputs, and then those of the names, by position."""
    own = vars(module).get("forward")  # of the instance, which takes no `self`
    of_class = type(module).forward
    forward: Callable[..., Any] = of_class if own is None else lambda _self, *args, **kwargs: own(*args, **kwargs)
    first = _names_of(module.forward, len(example))
    if twice := sorted(set(first) & set(names)):
        raise SourceError(f"{what} has {twice[0]!r} by position and by keyword")

    def positional(self: torch.nn.Module, *inputs: Any) -> Any:
        return forward(self, *inputs[: len(example)], **dict(zip(names, inputs[len(example) :], strict=True)))

    parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in ("self", *first, *names)]
    positional.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    kind = type(module)
    # Graphs name the classes of their modules: it stays that of the user.
    described = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    copied: torch.nn.Module = object.__new__(type(kind.__name__, (kind,), {**described, "forward": positional}))
    copied.__dict__.update({name: value for name, value in vars(module).items() if name != "forward"})
    return copied


def _names_of(forward: Callable[..., Any], count: int) -> list[str]:
    """Names of the first inputs that are given by position; those of ``*args`` are numbered."""
    names: list[str] = []
    for parameter in inspect.signature(forward).parameters.values():
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            names += [f"{parameter.name}_{number}" for number in range(count - len(names))]
        elif parameter.kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD):
            names.append(parameter.name)
    return names[:count]

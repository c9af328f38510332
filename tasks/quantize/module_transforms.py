"""Source transforms of copies of modules: torchao's `quantize_`, and users' functions."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import pkgutil
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from fnmatch import fnmatchcase
from functools import partial
from types import NoneType, UnionType
from typing import Any, ForwardRef, Union, get_args, get_origin

import torch
from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.overrides import TorchFunctionMode
from torchao.core.config import AOBaseConfig
from torchao.quantization import (
    Int8DynamicActivationIntxWeightConfig,
    IntxUnpackedToInt8Tensor,
    IntxWeightOnlyConfig,
    granularity,
    quantize_,
)
from torchao.quantization.granularity import Granularity
from torchao.quantization.quantize_.workflows.intx.intx_choose_qparams_algorithm import IntxChooseQParamsAlgorithm
from torchao.utils import TorchAOBaseTensor, unwrap_tensor_subclass

from ...configs.base import did_you_mean
from ...errors import SourceError, StoreError, TargetError
from ..engine.stage import CallableParams
from ..export.eager import as_traced
from ..programs.weights import TensorFiles, cast_of, rebuilt
from ..upstream.compat import pytree
from ..usercode.model_source import BuiltModel, user_code_error
from ..usercode.modules import copy_module
from .equalization import rotate, scale_inputs
from .rounding import ObservedCalls, on_grid, rounded
from .torchao_configs import PACKAGES, EqualizingParams, TorchaoParams, snake_case


def make_config(name: str, fields: Mapping[str, Any]) -> AOBaseConfig:
    """The config of torchao's `quantize_` of a class name and fields.

    Fields are JSON: data types and members of enums by name; granularities by name in snake case, alone (``per_row``)
    or as the only key of a mapping to their size or axis (``{per_group: 32}``).

    Raises TargetError for an unknown class or field, and for a value of another type or that torchao refuses.
    """
    modules = [importlib.import_module(package) for package in PACKAGES]
    kind = next((getattr(module, name) for module in modules if hasattr(module, name)), None)
    if not (isinstance(kind, type) and issubclass(kind, AOBaseConfig) and dataclasses.is_dataclass(kind)):
        raise TargetError(f"torchao.quantization has no config {name!r}")
    types = {field.name: field.type for field in dataclasses.fields(kind)}
    values = {}
    for field, written in fields.items():
        if field not in types:
            raise TargetError(f"torchao's {name} has no field {field!r}{did_you_mean(field, tuple(types))}")
        values[field] = _value(written, tuple(_members(types[field])), f"torchao's {name}: {field}")
    if "set_inductor_config" in types:
        # It is for torch.compile, and would change settings of the whole process.
        values.setdefault("set_inductor_config", False)
    try:
        config: AOBaseConfig = kind(**values)
    except Exception as error:
        raise TargetError(f"torchao's {name} refuses {dict(fields)}: {type(error).__name__}: {error}") from error
    return config


def check_transforms(transforms: Any) -> Any:
    """Checks pairs of a torchao config's name and its fields; raises TargetError for one that torchao rejects."""
    for name, fields in transforms:
        make_config(name, fields)


def group_size(config: AOBaseConfig) -> int | None:
    """How many weights of a row share a scale; None if that is no fixed number."""
    for name, value in vars(config).items():
        size = value.group_size if isinstance(value, granularity.PerGroup) else value if name == "group_size" else None
        if isinstance(size, int) and size > 0:
            return size
    return None


def _value(written: Any, types: tuple[Any, ...], what: str) -> Any:
    for kind in types:
        if kind in (NoneType, bool, int, str) and type(written) is kind:
            return written
        if kind is float and type(written) in (int, float):
            return float(written)
        if kind is torch.dtype and isinstance(written, str):
            return _data_type(written, what)
        if isinstance(kind, type) and issubclass(kind, Enum) and isinstance(written, str):
            members = {member.name.lower(): member for member in kind}
            if written.lower() not in members:
                suggestion = did_you_mean(written, tuple(members))
                raise TargetError(f"{what}: {kind.__name__} has no {written!r}{suggestion}")
            return members[written.lower()]
        if _is_granularity(kind) and isinstance(written, str | dict):
            return _granularity(written, what)
        if get_origin(kind) is list and isinstance(written, list):
            return [_value(member, tuple(_members(get_args(kind)[0])), what) for member in written]
    expected = " or ".join(getattr(kind, "__name__", str(kind)) for kind in types)
    raise TargetError(f"{what} must be {expected}, not {written!r}")


def _data_type(written: str, what: str) -> torch.dtype:
    found = getattr(torch, written.removeprefix("torch."), None)
    if not isinstance(found, torch.dtype):
        names = sorted(name for name, value in vars(torch).items() if isinstance(value, torch.dtype))
        raise TargetError(f"{what}: {written!r} is no data type of torch{did_you_mean(written, names)}")
    return found


def _granularity(written: str | dict[str, Any], what: str) -> Granularity:
    classes = {
        snake_case(name): found
        for name, found in vars(granularity).items()
        if isinstance(found, type) and issubclass(found, Granularity) and found is not Granularity
    }
    name, *others = [written] if isinstance(written, str) else list(written)
    if others or name not in classes:
        raise TargetError(
            f"{what} is a granularity, such as per_row or {{per_group: 32}}; {written!r} is none"
            f"{did_you_mean(name, tuple(classes))}"
        )
    sizes: tuple[Any, ...] = () if isinstance(written, str) else (written[name],)
    sizes = tuple(tuple(size) if isinstance(size, list) else size for size in sizes)
    if any(type(size) is not int for size in (sizes[0] if sizes and isinstance(sizes[0], tuple) else sizes)):
        raise TargetError(f"{what}: {name} takes whole numbers, not {written[name]!r}")  # type: ignore[index]  # a str has no sizes
    try:
        made: Granularity = classes[name](*sizes)
    except TypeError as error:
        raise TargetError(f"{what}: {error}; write it as {{{name}: NUMBER}}") from error
    return made


def _is_granularity(kind: Any) -> bool:
    if isinstance(kind, ForwardRef):
        return isinstance(getattr(granularity, kind.__forward_arg__, None), type)
    return isinstance(kind, type) and issubclass(kind, Granularity)


def _members(annotation: Any) -> Iterator[Any]:
    if get_origin(annotation) in (Union, UnionType):
        for member in get_args(annotation):
            yield from _members(member)
    else:
        yield annotation


Transforms = Sequence[TorchaoParams | CallableParams | EqualizingParams]
"""What is done to a module, one after another."""

_KINDS: dict[str, type[nn.Module]] = {"linear": nn.Linear, "embedding": nn.Embedding}
_ROOT = "module"


def layers_used_otherwise(model: BuiltModel, name: str) -> frozenset[str]:
    """Names of the layers of a method whose weights some method of the model also uses in another way than layers do.

    torchao's tensors do not support that, as in ``x @ table.weight.t()``. Each method runs once, on its first example.
    """
    found: set[int] = set()
    for method in model.definition.methods.values():
        module = copy_module(method.module)  # has the same parameters
        with contextlib.suppress(Exception), as_traced(), _OtherUses() as uses:  # what it raises, its export says
            module(*method.example_inputs[0])
        found |= uses.found
    module = model.definition.methods[name].module
    names = layer_names(module, tuple(_KINDS))
    return frozenset(first for layer, (first, *_) in names.items() if id(layer.weight) in found)


class _OtherUses(TorchFunctionMode):  # type: ignore[misc]  # torch is untyped here
    """Finds parameters that functions make tensors of, other than those of linear layers and embeddings."""

    _KNOWN = (nn.functional.linear, torch.embedding, nn.functional.embedding)

    def __init__(self) -> None:
        super().__init__()
        self.found: set[int] = set()

    def __torch_function__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func not in self._KNOWN and any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(result)):
            arguments = pytree.tree_leaves((args, kwargs))
            self.found |= {id(leaf) for leaf in arguments if isinstance(leaf, nn.Parameter)}
        return result


def transform_copy(
    module: nn.Module,
    transforms: Transforms,
    kept: Container[str] = (),
    files: TensorFiles | None = None,
    calls: ObservedCalls | None = None,
) -> tuple[nn.Module, frozenset[int]]:
    """A transformed copy of a module in inference mode, and the positions of the transforms that did something.

    A layer that an earlier transform has quantized is left alone by later ones, as are those that are `kept`. torchao
    quantizes one layer after another; with `files`, its new weights leave memory before the next one, and those that
    the files have already are taken from there. Where a transform rounds by samples, `calls` have them. Tensor
    subclasses are unwrapped. Callables always do something.

    Raises:
        SourceError: a callable cannot be imported, raises, or returns something else than a module.
        TargetError: torchao refuses a config, or cannot apply it to a layer.
    """
    # Both quantize_ and unwrap_tensor_subclass replace children only, and the module itself may be a layer.
    holder = nn.Module()
    holder.add_module(_ROOT, _copied(module, transforms))
    matched = set()
    for position, transform in enumerate(transforms):
        what = f"source_transforms[{position}]"
        if isinstance(transform, CallableParams):
            holder.add_module(_ROOT, _called(transform, holder.get_submodule(_ROOT), what))
            matched.add(position)
        elif isinstance(transform, EqualizingParams):
            _equalize(own := holder.get_submodule(_ROOT), transform, calls, what)
            if calls:  # what comes next observes it
                calls, module = calls.in_place_of(module, other := copy_module(own)), other
            matched.add(position)
        elif _quantize(holder, transform, kept, what, files, calls):
            matched.add(position)
    unwrap_tensor_subclass(holder)
    return holder.get_submodule(_ROOT).eval(), frozenset(matched)


def layer_names(module: nn.Module, kinds: Sequence[str]) -> dict[nn.Module, list[str]]:
    """The layers of these kinds that are not quantized yet, with all their names; the module's own one is empty."""
    classes = tuple(_KINDS[kind] for kind in kinds)
    names: dict[nn.Module, list[str]] = {}
    for name, layer in module.named_modules(remove_duplicate=False):
        # The projection in nn.MultiheadAttention is computed by a function that takes its weight and not by the layer.
        takes_part = isinstance(layer, classes) and not isinstance(layer, NonDynamicallyQuantizableLinear)
        if takes_part and not isinstance(layer.weight, TorchAOBaseTensor):
            names.setdefault(layer, []).append(name)
    return names


def _copied(module: nn.Module, transforms: Transforms) -> nn.Module:
    # torchao puts new weights in the place of the old ones; only functions of the user's may write into them.
    writing = any(isinstance(transform, CallableParams) for transform in transforms)
    try:
        return copy_module(module, share_parameters=not writing).eval()
    except Exception as error:
        raise SourceError(f"source_transforms need a copy of the model: {type(error).__name__}: {error}") from error


def _called(transform: CallableParams, module: nn.Module, what: str) -> nn.Module:
    name = transform.source["builder"]
    try:
        result = pkgutil.resolve_name(name)(module, **transform.source["kwargs"])
    except Exception as error:
        raise user_code_error(f"{what}: {name}", error) from error
    if result is not None and not isinstance(result, nn.Module):
        raise SourceError(f"{what}: {name} returned {type(result).__name__}; it must return a module, or None")
    return module if result is None else result


def _equalize(module: nn.Module, transform: EqualizingParams, calls: ObservedCalls | None, what: str) -> None:
    try:
        if transform.equalize == "rotate":
            rotate(module)
        elif calls:  # else, it is only to be known whether it can be done
            scale_inputs(module, calls, bits=transform.bits, group_size=transform.group_size)
    except TargetError as error:
        error.args = (f"{what}: {error}",)
        raise


def _quantize(
    holder: nn.Module,
    transform: TorchaoParams,
    kept: Container[str],
    what: str,
    files: TensorFiles | None,
    calls: ObservedCalls | None,
) -> bool:
    """Quantizes the layers that match, except those that are kept; returns whether any match."""
    matching = _chosen(holder, transform, what)
    chosen = {layer: name for layer, name in matching.items() if name not in kept}
    group = group_size(make_config(transform.config, transform.fields)) if chosen else None
    undivided = _undivided(chosen, group)
    divided = {layer: name for layer, name in chosen.items() if layer not in undivided}
    if undivided and (transform.otherwise is None or not divided):
        layer, name = next(iter(undivided.items()))
        raise TargetError(
            f"{what}: layer {name!r} has {layer.weight.shape[-1]} input features, and groups of {group} do not divide "
            "them; give another group size, or leave the layer out with `exclude`"
        )
    for fields, layers in (transform.fields, divided), (transform.otherwise or {}, undivided):
        if layers:
            _quantize_layers(holder, layers, transform.model_copy(update={"fields": fields}), what, files, calls)
    return bool(matching)


def _undivided(layers: Mapping[nn.Module, str], group: int | None) -> dict[nn.Module, str]:
    """The layers whose input features are no multiple of the size of groups."""
    shaped = {layer: name for layer, name in layers.items() if isinstance(layer, nn.Linear | nn.Embedding)}
    return {layer: name for layer, name in shaped.items() if group is not None and layer.weight.shape[-1] % group}


def _quantize_layers(
    holder: nn.Module,
    chosen: dict[nn.Module, str],
    transform: TorchaoParams,
    what: str,
    files: TensorFiles | None,
    calls: ObservedCalls | None,
) -> None:
    config = make_config(transform.config, transform.fields)
    parts: Iterable[tuple[Iterable[nn.Module], Mapping[nn.Module, torch.Tensor]]] = [(chosen, {})]
    if transform.rounding == "gptq" and calls:
        if others := [name for layer, name in chosen.items() if not isinstance(layer, nn.Linear)]:
            raise TargetError(f"{what}: `rounding: gptq` is for linear layers, and {others[0]!r} is none")
        parts = calls.second_moments(list(chosen))
    for layers, moments in parts:
        for layer in layers:
            name = chosen[layer]
            path = f"{_ROOT}.{name}" if name else _ROOT
            asked = [transform.config, transform.fields, *(calls.identity if calls and moments else ())]
            try:
                with files.layer(holder, path, asked) if files else contextlib.nullcontext(True) as missing:
                    if missing:
                        _quantize_layer(holder, layer, config, files, moments.get(layer))
            except StoreError:
                raise
            except Exception as error:
                raise TargetError(
                    f"{what}: torchao cannot apply {transform.config} to layer {name!r}: "
                    f"{type(error).__name__}: {error}"
                ) from error


def _quantize_layer(
    holder: nn.Module, layer: nn.Module, config: AOBaseConfig, files: TensorFiles | None, moments: torch.Tensor | None
) -> None:
    weight = layer.weight
    if files is None or not _quantize_rows(layer, config, files):
        if cast_of(layer.weight) is not None:  # once, and not for each operator
            layer.weight = nn.Parameter(layer.weight.detach().clone(), requires_grad=False)
        quantize_(holder, config, partial(_is_unquantized, layer))
    chosen = on_grid(weight, layer.weight) if isinstance(layer.weight, IntxUnpackedToInt8Tensor) else None
    if chosen is None and moments is not None:
        chosen = rounded(weight, layer.weight, moments)
    if chosen:
        layer.weight.qdata.copy_(chosen[0])
        layer.weight.scale.copy_(chosen[1])


def _is_unquantized(layer: nn.Module, module: nn.Module, _name: str = "") -> bool:
    return module is layer and not isinstance(layer.weight, TorchAOBaseTensor)


_ROWS = 1 << 26
"""Bytes of a weight that are quantized at once, where rows do not depend on each other."""


def _quantize_rows(layer: nn.Module, config: AOBaseConfig, files: TensorFiles) -> bool:
    """Quantizes a large weight by rows: as a whole, torchao needs several copies of it in float32.

    Returns whether it did, which needs scales of single rows or their groups.
    """
    weight = layer.weight
    algorithm = getattr(config, "intx_choose_qparams_algorithm", None)
    by_rows = isinstance(config, IntxWeightOnlyConfig | Int8DynamicActivationIntxWeightConfig)
    if not by_rows or algorithm is not IntxChooseQParamsAlgorithm.AFFINE or weight.nbytes <= _ROWS:
        return False
    inner: dict[str, torch.Tensor] = {}
    first = 0
    for rows in weight.detach().split(max(1, _ROWS * len(weight) // weight.nbytes)):
        # on the meta device, where nothing draws random numbers
        kind = nn.Embedding(1, 1, device="meta") if isinstance(layer, nn.Embedding) else None
        part = kind or nn.Linear(1, 1, bias=False, device="meta")
        part.weight = nn.Parameter(rows if cast_of(rows) is None else rows.clone(), requires_grad=False)
        quantize_(nn.Sequential(part), config, partial(_is_unquantized, part))
        names, context = part.weight.__tensor_flatten__()
        for name in names:
            of_rows = getattr(part.weight, name)
            if name not in inner:
                inner[name] = files.empty(torch.Size([len(weight), *of_rows.shape[1:]]), of_rows.dtype)
            inner[name][first : first + len(rows)] = of_rows
        first += len(rows)
    layer.weight = nn.Parameter(rebuilt(type(part.weight), inner, context, weight.shape), requires_grad=False)
    return True


def _chosen(holder: nn.Module, transform: TorchaoParams, what: str) -> dict[nn.Module, str]:
    """The layers to quantize, each with its first name."""
    module = holder.get_submodule(_ROOT)
    if transform.filter_fn:
        return dict(_chosen_by_function(module, "", transform.filter_fn, what))
    return {
        layer: names[0]
        for layer, names in layer_names(module, transform.layers).items()
        if _any_match(names, transform.include) and not _any_match(names, transform.exclude)
    }


def _chosen_by_function(
    module: nn.Module, name: str, function: CallableParams, what: str
) -> Iterator[tuple[nn.Module, str]]:
    """The modules that a function chooses, with their names; like torchao, does not look inside chosen ones."""
    path = function.source["builder"]
    try:
        chosen = pkgutil.resolve_name(path)(module, name)
    except Exception as error:
        raise user_code_error(f"{what}.filter_fn: {path}", error) from error
    if not chosen:
        for child_name, child in module.named_children():
            yield from _chosen_by_function(child, f"{name}.{child_name}" if name else child_name, function, what)
    elif isinstance(getattr(module, "weight", None), torch.Tensor):
        if not isinstance(module.weight, TorchAOBaseTensor):
            yield module, name
    else:
        raise SourceError(
            f"{what}.filter_fn: {path} chooses {name or 'the model'!r}, a {type(module).__name__} without a weight; "
            "let it return False for what is no layer"
        )


def _any_match(names: Sequence[str], patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)


_SHOWN = 12  # names of layers in a message


def check_all_match(model: BuiltModel, name: str, transforms: Transforms, matched: frozenset[int]) -> None:
    """Raises TargetError for a transform that matches no layer of this method, and of no other one either."""
    idle = set(range(len(transforms))) - matched
    for other, method in model.definition.methods.items():
        if idle and other != name:
            idle -= transform_copy(method.module, transforms)[1]
    if idle:
        position = min(idle)
        layers = layer_names(model.definition.methods[name].module, getattr(transforms[position], "layers", ()))
        names = [repr(layer) for paths in layers.values() for layer in paths]
        shown = ", ".join([*names[:_SHOWN], *(["..."] if len(names) > _SHOWN else [])])
        raise TargetError(
            f"source_transforms[{position}] matches no layer that earlier ones left, in no method of the model; "
            f"method {name!r} has {shown or 'no layer of these kinds'}"
        )

"""The canonical JSON form of the values in a program: what has no meaning for lowering is left out or renumbered.

None, booleans, integers and strings stand for themselves; everything else is a list that begins with what it is.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

import sympy
import torch
from executorch.exir.dialects.backend._ops import BackendOpOverload
from executorch.exir.dialects.edge._ops import EdgeOpOverload
from executorch.exir.tensor import TensorSpec
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ..digest import digest_bytes
from .reductions import lasting_operator
from .storages import StorageTable

_SYMBOLIC = (torch.SymInt, torch.SymBool, torch.SymFloat)
_NAMED = (torch.dtype, torch.layout, torch.memory_format, torch.device)
_SPEC_FIELDS = (
    "dtype",
    "shape",
    "layout",
    "is_sparse",
    "const",
    "alignment",
    "requires_grad",
    "stride",
    "dim_order",
    "shape_dynamism",
    "mem_id",
    "mem_obj_id",
    "mem_offset",
    "device",
    "device_index",
)


class CanonicalValues:
    """Canonical forms of values; symbols and storages are numbered in order of first appearance."""

    def __init__(self, storages: StorageTable) -> None:
        """Takes and notes digests of storages in `storages`."""
        self.storages = storages
        self.symbols: dict[sympy.Symbol, str] = {}
        self._aliases: dict[int, int] = {}
        self._expressions: dict[Any, Any] = {}
        self._annotating = False

    def value(self, value: Any) -> Any:  # noqa: PLR0911 - one return per kind of value
        """Canonical form of anything a node can hold; raises TypeError where there is none."""
        if value is None or isinstance(value, (bool, str)) or type(value) is int:
            return value
        if isinstance(value, float):
            return ["float", value.hex()]
        if isinstance(value, (list, tuple)):
            return ["sequence", *map(self.value, value)]
        if isinstance(value, torch.Tensor):
            return self.tensor(value)
        if isinstance(value, _SYMBOLIC):
            return self.expression(value.node.expr)
        if isinstance(value, dict):
            return ["mapping", *([self.value(key), self.value(item)] for key, item in value.items())]
        if isinstance(value, enum.Enum):
            return ["enum", type(value).__qualname__, value.name]
        if isinstance(value, _NAMED):
            return ["torch", str(value)]
        return self._rare(value)

    def _rare(self, value: Any) -> Any:
        if isinstance(value, (bytes, bytearray)):
            return ["bytes", digest_bytes(value)]
        if isinstance(value, complex):
            return ["complex", value.real.hex(), value.imag.hex()]
        if isinstance(value, (set, frozenset)):
            return ["set", *sorted(map(self.value, value), key=repr)]
        if isinstance(value, slice):
            return ["slice", self.value(value.start), self.value(value.stop), self.value(value.step)]
        return self._foreign(value)

    def _foreign(self, value: Any) -> Any:
        if isinstance(value, sympy.Basic):
            return self.expression(value)
        if isinstance(value, torch.fx.Node):
            return None  # in `meta`; arguments are the caller's
        if isinstance(value, TensorSpec):
            return self._spec(value)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = ([field.name, self.value(getattr(value, field.name))] for field in dataclasses.fields(value))
            return ["dataclass", type(value).__qualname__, *fields]
        if callable(value):
            return self.target(value)
        name = f"{type(value).__module__}.{type(value).__qualname__}"
        if self._annotating:
            return ["instance", name]
        raise TypeError(f"no canonical form for a value of {name}: {value!r:.80}")

    def annotation(self, value: Any) -> Any:
        """Canonical form of what a pass or partitioner left in `meta`: objects without a form count by their type."""
        self._annotating = True
        try:
            return self.value(value)
        finally:
            self._annotating = False

    def target(self, target: Any) -> Any:
        """What a node calls, by name."""
        if isinstance(target, EdgeOpOverload):
            dialect = "backend" if isinstance(target, BackendOpOverload) else "edge"
            return [dialect, str(target._op)]  # noqa: SLF001 - dialect operators wrap the torch operator
        if isinstance(target, OpOverload):
            return ["operator", str(lasting_operator(target))]
        if isinstance(target, HigherOrderOperator):
            return ["higher_order_operator", target.name()]
        name = getattr(target, "__qualname__", None) or getattr(target, "__name__", None)
        if name is None:
            raise TypeError(f"no canonical form for the callable {target!r:.80}")
        return ["callable", str(target.__module__), name]

    def expression(self, expression: Any) -> Any:
        """A symbolic expression, its symbols renamed."""
        key = (type(expression), expression)  # True equals 1
        known = self._expressions.get(key)
        if known is None:
            known = self._expressions[key] = self._renamed(expression)
        return known

    def _renamed(self, expression: Any) -> Any:
        if isinstance(expression, (bool, int)) or getattr(expression, "is_Integer", False):
            return int(expression)
        for symbol in sorted(expression.free_symbols, key=str):
            self.symbols.setdefault(symbol, f"{symbol.name[:1]}{len(self.symbols)}")
        names = {symbol: sympy.Symbol("$" + self.symbols[symbol]) for symbol in expression.free_symbols}
        return ["expression", str(expression.xreplace(names))]

    def tensor(self, tensor: torch.Tensor) -> Any:
        """Type and layout; for real tensors also bytes, and which other tensors share them."""
        if isinstance(tensor, FakeTensor):
            constant = None if tensor.constant is None else self.tensor(tensor.constant)
            return [*self._layout(tensor), constant]
        if is_traceable_wrapper_subclass(tensor):
            names, context = tensor.__tensor_flatten__()
            parts = ([name, self.tensor(getattr(tensor, name))] for name in names)
            return ["wrapper", type(tensor).__module__, type(tensor).__qualname__, self.value(context), *parts]
        form = self._layout(tensor)
        if tensor.device.type == "meta":
            return form
        storage = tensor.untyped_storage()
        if storage.nbytes() == 0:
            return [*form, "", 0]
        alias = self._aliases.setdefault(self.storages.number(storage), len(self._aliases))
        return [*form, self.storages.digest(storage), alias]

    def _layout(self, tensor: torch.Tensor) -> list[Any]:
        if tensor.layout is not torch.strided:
            raise TypeError(f"no canonical form for a tensor of layout {tensor.layout}")
        numbers = (*tensor.shape, *tensor.stride(), tensor.storage_offset())
        form = [number if type(number) is int else self.value(number) for number in numbers]
        return ["tensor", str(tensor.dtype), tensor.device.type, tensor.requires_grad, form]

    def _spec(self, spec: TensorSpec) -> Any:
        storage = getattr(spec, "storage", None)
        real = isinstance(storage, torch.UntypedStorage) and storage.device.type == "cpu"
        content = self.storages.digest(storage) if real else None
        return ["spec", type(spec).__name__, content, *(self.value(getattr(spec, name, None)) for name in _SPEC_FIELDS)]

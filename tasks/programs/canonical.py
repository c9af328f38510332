"""The canonical digest of a program: equal for programs that lower to the same bytes, however they were made."""

from __future__ import annotations

import dataclasses
import enum
import operator
from collections.abc import Iterator
from typing import Any

import sympy
import torch
from executorch.exir.lowered_backend_module import LoweredBackendModule
from executorch.exir.tensor import TensorSpec
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, ExportGraphSignature
from torch.fx import GraphModule, Node

from ...artifacts.digest import Digest, digest_bytes, digest_json
from ...errors import PteforgeError, StoreError
from ..upstream import compat
from .pickler import lasting_operator, verifier_options
from .storages import StorageTable

_SYMBOLIC = (torch.SymInt, torch.SymBool, torch.SymFloat)
_NAMED = (torch.dtype, torch.layout, torch.memory_format, torch.device)
_SPEC_FIELDS = (
    *("dtype", "shape", "layout", "is_sparse", "const", "alignment", "requires_grad", "stride", "dim_order"),
    *("shape_dynamism", "mem_id", "mem_obj_id", "mem_offset", "device", "device_index"),
)

_PROVENANCE = {
    *("debug_handle", "desc", "eager_input_vals", "from_node", "nn_module_stack", "seq_nr", "source_fn_stack"),
    *("stack_trace", "tensor_meta", "val"),
}
"""Keys of `Node.meta` that describe a node's origin or repeat `val`, which is covered separately."""

_GRAPH_META = ("edge_dialect", "input_mem_buffer_sizes", "non_const_buffer_device", "non_const_buffer_sizes")


def program_form(program: ExportedProgram, storages: StorageTable) -> tuple[Digest, list[int]]:
    """The SHA-256 of a program's form, and its storages' numbers by position. Raises StoreError if it has no form."""
    contents: dict[int, int] = {}
    try:
        return digest_json(_Form(storages, contents).program(program)), list(contents)
    except TypeError as error:
        raise StoreError(f"the program cannot be stored, a part of it has no canonical digest: {error}") from error


class _Form:
    """Canonical form of one program; symbols are numbered in order of first appearance.

    `contents` has the place of each storage in the order of first appearance, by its number in `storages`. The form has
    places only: what the storages hold is not part of it.
    """

    def __init__(self, storages: StorageTable, contents: dict[int, int]) -> None:
        self._storages = storages
        self._contents = contents
        self._symbols: dict[sympy.Symbol, str] = {}
        self._expressions: dict[Any, Any] = {}
        self._annotating = False

    def program(self, program: ExportedProgram) -> Any:
        nodes = {node.name: number for number, node in enumerate(_nodes(program.graph_module))}
        return {
            "graph": self._graph_module(program.graph_module),
            "signature": self._signature(program.graph_signature, nodes),
            "state": [[name, self._kept(tensor)] for name, tensor in sorted(program.state_dict.items())],
            "constants": [[name, self._kept(constant)] for name, constant in sorted(program.constants.items())],
            "ranges": sorted(
                [self._symbols[symbol], str(bounds.lower), str(bounds.upper)]
                for symbol, bounds in program.range_constraints.items()
                if symbol in self._symbols
            ),
            "calls": [
                [entry.fqn, str(entry.signature.in_spec), str(entry.signature.out_spec)]
                for entry in program.module_call_graph
                if entry.signature is not None
            ],
            "verifiers": [self._verifier(verifier) for verifier in program.verifiers],
        }

    def _graph_module(self, module: GraphModule) -> Any:
        numbers: dict[Node, int] = {}
        rows = []
        for node in _nodes(module):
            numbers[node] = len(numbers)
            rows.append(self._node(module, node, numbers))
        meta = {key: self._value(module.meta[key]) for key in _GRAPH_META if key in module.meta}
        return {"nodes": rows, "meta": meta}

    def _node(self, module: GraphModule, node: Node, numbers: dict[Node, int]) -> list[Any]:
        row: list[Any] = [node.op]
        if node.op in ("get_attr", "call_module"):
            row.append(self._attribute(module, str(node.target)))
        elif node.op not in ("placeholder", "output"):
            row.append(self._value(node.target))
        row.append([self._argument(argument, numbers) for argument in node.args])
        row.append([[key, self._argument(argument, numbers)] for key, argument in sorted(node.kwargs.items())])
        if node.op != "output":
            row.append(self._value(node.meta.get("val")))
            row.append([[key, self._annotation(node.meta[key])] for key in sorted(node.meta.keys() - _PROVENANCE)])
        return row

    def _argument(self, argument: Any, numbers: dict[Node, int]) -> Any:
        if isinstance(argument, Node):
            return ["node", numbers[argument]]
        if isinstance(argument, (list, tuple)):
            return ["sequence", *(self._argument(item, numbers) for item in argument)]
        if isinstance(argument, dict):
            return ["mapping", *([key, self._argument(item, numbers)] for key, item in argument.items())]
        if isinstance(argument, slice):
            bounds = (argument.start, argument.stop, argument.step)
            return ["slice", *(self._argument(bound, numbers) for bound in bounds)]
        return self._value(argument)

    def _attribute(self, module: GraphModule, name: str) -> Any:
        attribute = operator.attrgetter(name)(module)
        if isinstance(attribute, LoweredBackendModule):
            return self._delegate(attribute)
        if isinstance(attribute, GraphModule):
            return self._graph_module(attribute)
        return [name, self._value(attribute)]

    def _delegate(self, delegate: LoweredBackendModule) -> Any:
        return {
            "backend": delegate.backend_id,
            "payload": self._storages.bytes_digest(delegate.processed_bytes),
            "compile_specs": [[spec.key, self._value(spec.value)] for spec in delegate.compile_specs],
            "named_data": _named_data(delegate.named_data_store_output),
            "program": _Form(self._storages, self._contents).program(delegate.original_module),
        }

    def _signature(self, signature: ExportGraphSignature, nodes: dict[str, int]) -> Any:
        def argument(spec: Any) -> Any:
            name = str(getattr(spec, "name", ""))
            constant = isinstance(spec, ConstantArgument)
            return [type(spec).__name__, [name, self._value(spec.value)] if constant else nodes.get(name, name)]

        inputs = [[spec.kind.name, argument(spec.arg), spec.target, spec.persistent] for spec in signature.input_specs]
        outputs = [[spec.kind.name, argument(spec.arg), spec.target] for spec in signature.output_specs]
        return [inputs, outputs]

    def _verifier(self, verifier: type[compat.Verifier]) -> Any:
        options = verifier_options(verifier)
        sets = (["set", *sorted(map(str, set(option)))] if isinstance(option, list) else option for option in options)
        return [verifier.dialect, *sets]

    def _value(self, value: Any) -> Any:  # noqa: PLR0911 - one return per kind of value
        """Canonical form of anything that a node can hold; raises TypeError for other values."""
        if value is None or isinstance(value, (bool, str)) or type(value) is int:
            return value
        if isinstance(value, float):
            return ["float", value.hex()]
        if isinstance(value, (list, tuple)):
            return ["sequence", *map(self._value, value)]
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, _SYMBOLIC):
            return self._expression(value.node.expr)
        if isinstance(value, dict):
            return ["mapping", *([self._value(key), self._value(item)] for key, item in value.items())]
        if isinstance(value, enum.Enum):
            return ["enum", type(value).__qualname__, value.name]
        if isinstance(value, _NAMED):
            return ["torch", str(value)]
        return self._rare(value)

    def _rare(self, value: Any) -> Any:  # noqa: C901, PLR0911 - as above
        if isinstance(value, (bytes, bytearray)):
            return ["bytes", digest_bytes(value)]
        if isinstance(value, complex):
            return ["complex", value.real.hex(), value.imag.hex()]
        if isinstance(value, (set, frozenset)):
            return ["set", *sorted(map(self._value, value), key=repr)]
        if isinstance(value, slice):
            return ["slice", self._value(value.start), self._value(value.stop), self._value(value.step)]
        if isinstance(value, sympy.Basic):
            return self._expression(value)
        if isinstance(value, torch.fx.Node):
            return None  # in `meta`; arguments are the caller's
        if isinstance(value, TensorSpec):
            return self._spec(value)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = ([field.name, self._value(getattr(value, field.name))] for field in dataclasses.fields(value))
            return ["dataclass", type(value).__qualname__, *fields]
        if callable(value):
            return self._target(value)
        name = f"{type(value).__module__}.{type(value).__qualname__}"
        if self._annotating:
            return ["instance", name]
        raise TypeError(f"no canonical form for a value of {name}: {value!r:.80}")

    def _annotation(self, value: Any) -> Any:
        """Canonical form of an entry that a pass or partitioner left in `meta`; unknown objects count by type."""
        self._annotating = True
        try:
            return self._value(value)
        finally:
            self._annotating = False

    def _target(self, target: Any) -> Any:
        if isinstance(target, compat.EdgeOpOverload):
            dialect = "backend" if isinstance(target, compat.BackendOpOverload) else "edge"
            return [dialect, str(target._op)]  # noqa: SLF001 - dialect operators wrap the torch operator
        if isinstance(target, compat.OpOverload):
            return ["operator", str(lasting_operator(target))]
        if isinstance(target, compat.HigherOrderOperator):
            return ["higher_order_operator", target.name()]
        name = getattr(target, "__qualname__", None) or getattr(target, "__name__", None)
        if name is None:
            raise TypeError(f"no canonical form for the callable {target!r:.80}")
        return ["callable", str(target.__module__), name]

    def _expression(self, expression: Any) -> Any:
        key = (type(expression), expression)  # True equals 1
        if key not in self._expressions:
            self._expressions[key] = self._renamed(expression)
        return self._expressions[key]

    def _renamed(self, expression: Any) -> Any:
        if isinstance(expression, (bool, int)) or getattr(expression, "is_Integer", False):
            return int(expression)
        for symbol in sorted(expression.free_symbols, key=str):
            self._symbols.setdefault(symbol, f"{symbol.name[:1]}{len(self._symbols)}")
        names = {symbol: sympy.Symbol("$" + self._symbols[symbol]) for symbol in expression.free_symbols}
        return ["expression", str(expression.xreplace(names))]

    def _kept(self, value: Any) -> Any:
        """Canonical form of an entry of a program's state or constants; absent weights have that of real ones."""
        absent = self._storages.absent
        if not (absent and isinstance(value, compat.FakeTensor)):
            form = self._value(value)
        elif absent.slot(value.untyped_storage()) is None:
            raise PteforgeError("it holds a tensor that was computed from weights that are absent")
        else:
            form = self._held(value)
        return [isinstance(value, torch.nn.Parameter), form]

    def _tensor(self, tensor: torch.Tensor) -> Any:
        """Type and layout; for real tensors also which of the program's storages they are in."""
        if isinstance(tensor, compat.FakeTensor):
            constant = None if tensor.constant is None else self._tensor(tensor.constant)
            return [*self._layout(tensor), constant]
        if compat.is_traceable_wrapper_subclass(tensor):
            names, context = tensor.__tensor_flatten__()
            parts = ([name, self._tensor(getattr(tensor, name))] for name in names)
            return ["wrapper", type(tensor).__module__, type(tensor).__qualname__, self._value(context), *parts]
        return self._layout(tensor) if tensor.device.type == "meta" else self._held(tensor)

    def _held(self, tensor: torch.Tensor) -> Any:
        form, storage = self._layout(tensor), tensor.untyped_storage()
        if storage.nbytes() == 0:
            return [*form, None]
        return [*form, self._contents.setdefault(self._storages.number(storage), len(self._contents))]

    def _layout(self, tensor: torch.Tensor) -> list[Any]:
        if tensor.layout is not torch.strided:
            raise TypeError(f"no canonical form for a tensor of layout {tensor.layout}")
        numbers = (*tensor.shape, *tensor.stride(), tensor.storage_offset())
        form = [number if type(number) is int else self._value(number) for number in numbers]
        return ["tensor", str(tensor.dtype), tensor.device.type, tensor.requires_grad, form]

    def _spec(self, spec: TensorSpec) -> Any:
        storage = getattr(spec, "storage", None)
        real = isinstance(storage, torch.UntypedStorage) and storage.device.type == "cpu"
        content = self._storages.digest(storage) if real else None
        return [
            "spec",
            type(spec).__name__,
            content,
            *(self._value(getattr(spec, name, None)) for name in _SPEC_FIELDS),
        ]


def _nodes(module: GraphModule) -> Iterator[Node]:
    """All nodes but unused `getitem`s, which saving and loading with torch adds."""
    return (node for node in module.graph.nodes if node.users or node.target is not operator.getitem)


def _named_data(output: compat.NamedDataStoreOutput | None) -> Any:
    if output is None:
        return None
    digests = [
        buffer.sha256().hex() if isinstance(buffer, compat.FileBackedData) else digest_bytes(buffer)
        for buffer in output.buffers
    ]

    def entries(mapping: dict[str, Any]) -> Any:
        named = sorted(mapping.items())
        return [[key, digests[entry.buffer_index], entry.alignment, repr(entry.tensor_layout)] for key, entry in named]

    external = [[tag, entries(mapping)] for tag, mapping in sorted(output.external_data.items())]
    return [entries(output.pte_data), external]

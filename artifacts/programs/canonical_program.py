"""The canonical digest of a program: equal for programs that lower to the same bytes, however they were made.

It covers nodes in order (operators, arguments as written, types and shapes, semantic `meta`), the signature, bounds of
symbols, weights by content, which tensors share storage, delegates, and the verifier. It leaves out what only says
where a program comes from: node names, stack traces, module stacks, histories, debug handles, example inputs, hints of
dynamic sizes. Names of parameters and buffers count; positional and keyword arguments are not made alike, because
some backends tell them apart.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

from executorch.exir._serialize._cord import FileBackedData
from executorch.exir._serialize._named_data_store import NamedDataStoreOutput
from executorch.exir.lowered_backend_module import LoweredBackendModule
from torch._export.verifier import Verifier
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, ExportGraphSignature
from torch.fx import GraphModule, Node

from ...errors import StoreError
from ..digest import Digest, digest_bytes, digest_json
from .canonical_values import CanonicalValues
from .reductions import verifier_options
from .storages import StorageTable

_PROVENANCE = frozenset(
    {
        "debug_handle",
        "desc",
        "eager_input_vals",
        "from_node",
        "nn_module_stack",
        "seq_nr",
        "source_fn_stack",
        "stack_trace",
        "tensor_meta",
        "val",
    }
)
"""Keys of `Node.meta` that say where a node comes from, or repeat what `val` says; `val` itself is covered apart."""

_GRAPH_META = ("edge_dialect", "input_mem_buffer_sizes", "non_const_buffer_device", "non_const_buffer_sizes")


def program_digest(program: ExportedProgram, storages: StorageTable | None = None) -> Digest:
    """SHA-256 of everything in the program that matters for lowering.

    Args:
        program: of any stage.
        storages: digests that are known already; others are noted there.

    Raises:
        StoreError: the program holds something that has no canonical form.
    """
    try:
        return digest_json(_Form(storages or StorageTable()).program(program))
    except TypeError as error:
        raise StoreError(
            f"the program cannot be stored, it holds something that has no canonical digest: {error}"
        ) from error


class _Form:
    """Canonical form of one program; the programs inside delegates have forms of their own."""

    def __init__(self, storages: StorageTable) -> None:
        self._storages = storages
        self._values = CanonicalValues(storages)

    def program(self, program: ExportedProgram) -> Any:
        nodes = {node.name: number for number, node in enumerate(_nodes(program.graph_module))}
        tensors = self._values.value
        return {
            "graph": self._graph_module(program.graph_module),
            "signature": self._signature(program.graph_signature, nodes),
            "state": [[name, tensors(tensor)] for name, tensor in sorted(program.state_dict.items())],
            "constants": [[name, tensors(constant)] for name, constant in sorted(program.constants.items())],
            "ranges": self._ranges(program),
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
        meta = {key: self._values.value(module.meta[key]) for key in _GRAPH_META if key in module.meta}
        return {"nodes": rows, "meta": meta}

    def _node(self, module: GraphModule, node: Node, numbers: dict[Node, int]) -> list[Any]:
        row: list[Any] = [node.op]
        if node.op in ("get_attr", "call_module"):
            row.append(self._attribute(module, str(node.target)))
        elif node.op not in ("placeholder", "output"):
            row.append(self._values.value(node.target))
        row.append([self._argument(argument, numbers) for argument in node.args])
        row.append([[key, self._argument(argument, numbers)] for key, argument in sorted(node.kwargs.items())])
        if node.op != "output":
            row.append(self._values.value(node.meta.get("val")))
            row.append(
                [[key, self._values.annotation(node.meta[key])] for key in sorted(node.meta.keys() - _PROVENANCE)]
            )
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
        return self._values.value(argument)

    def _attribute(self, module: GraphModule, name: str) -> Any:
        attribute: Any = module
        for part in name.split("."):
            attribute = getattr(attribute, part)
        if isinstance(attribute, LoweredBackendModule):
            return self._delegate(attribute)
        if isinstance(attribute, GraphModule):
            return self._graph_module(attribute)
        return [name, self._values.value(attribute)]

    def _delegate(self, delegate: LoweredBackendModule) -> Any:
        return {
            "backend": delegate.backend_id,
            "payload": self._storages.bytes_digest(delegate.processed_bytes),
            "compile_specs": [[spec.key, self._values.value(spec.value)] for spec in delegate.compile_specs],
            "named_data": _named_data(delegate.named_data_store_output),
            "program": _Form(self._storages).program(delegate.original_module),
        }

    def _signature(self, signature: ExportGraphSignature, nodes: dict[str, int]) -> Any:
        def argument(given: Any) -> Any:
            name = str(getattr(given, "name", ""))
            value = [name, self._values.value(given.value)] if isinstance(given, ConstantArgument) else None
            return [type(given).__name__, nodes.get(name, name) if value is None else value]

        inputs = [[spec.kind.name, argument(spec.arg), spec.target, spec.persistent] for spec in signature.input_specs]
        outputs = [[spec.kind.name, argument(spec.arg), spec.target] for spec in signature.output_specs]
        return [inputs, outputs]

    def _ranges(self, program: ExportedProgram) -> Any:
        known = self._values.symbols
        return sorted(
            [known[symbol], str(bounds.lower), str(bounds.upper)]
            for symbol, bounds in program.range_constraints.items()
            if symbol in known
        )

    def _verifier(self, verifier: type[Verifier]) -> Any:
        options = verifier_options(verifier)
        return [
            verifier.dialect,
            *(["set", *sorted(map(str, set(option)))] if isinstance(option, list) else option for option in options),
        ]


def _nodes(module: GraphModule) -> Iterator[Node]:
    """All nodes but unused `getitem`s: saving and loading with torch adds those."""
    return (node for node in module.graph.nodes if node.users or node.target is not operator.getitem)


def _named_data(output: NamedDataStoreOutput | None) -> Any:
    if output is None:
        return None
    digests = [
        buffer.sha256().hex() if isinstance(buffer, FileBackedData) else digest_bytes(buffer)
        for buffer in output.buffers
    ]

    def entries(mapping: dict[str, Any]) -> Any:
        return [
            [key, digests[entry.buffer_index], entry.alignment, repr(entry.tensor_layout)]
            for key, entry in sorted(mapping.items())
        ]

    return [
        entries(output.pte_data),
        [[tag, entries(mapping)] for tag, mapping in sorted(output.external_data.items())],
    ]

"""What ExecuTorch's developer tools need to tell where in a model something on the device comes from."""

from __future__ import annotations

from collections.abc import Mapping
from operator import getitem

import torch
from executorch.devtools.etrecord import generate_etrecord
from executorch.exir import EdgeCompileConfig, EdgeProgramManager, ExecutorchProgramManager
from executorch.exir.dialects._ops import ops
from torch.fx import GraphModule

from ...artifacts.digest import canonical_json
from ...artifacts.programs.codec import load_program
from ...artifacts.ref import ArtifactRef
from ..stage import Workspace
from .by_method import by_method
from .lowered import graph_modules
from .node_origin import origin_of


def debug_artifacts(
    inputs: Mapping[str, ArtifactRef], emitted: ExecutorchProgramManager, work: Workspace
) -> dict[str, ArtifactRef]:
    """The artifacts of a payload.

    Args:
        inputs: `edge/<method>` of every method, as it was before it was partitioned; others do not count.
        emitted: the payload.
        work: where to read and write.

    Returns:
        - `etrecord` (debug/etrecord): the file that `executorch.devtools.Inspector` takes;
        - `debug_handles` (debug/handles): by method, instruction number to debug handles of the edge program;
        - `delegate_map` (debug/delegates): by method, instruction number to the delegate that it calls, with the map
          from its own debug handles to those of the edge program, where the backend makes one;
        - `debug_sources` (debug/sources): by method, debug handle to the operators of the edge program that have it,
          and where in the model each comes from.
    """
    edge = {method: load_program(ref, work.store) for method, ref in by_method(inputs, "edge").items()}
    path = work.scratch / "model.etrecord"
    sources = {method: _sources(program.graph_module) for method, program in edge.items()}
    for program in edge.values():
        _inline_scalars(program.graph_module)
    unchecked = EdgeCompileConfig(_check_ir_validity=False)  # `edge` has checked them
    generate_etrecord(path, EdgeProgramManager(edge, None, unchecked), emitted)
    store = work.store
    return {
        "etrecord": store.put_artifact("debug/etrecord", path.read_bytes()),
        "debug_handles": store.put_artifact("debug/handles", canonical_json(_plain(emitted.debug_handle_map))),
        "delegate_map": store.put_artifact("debug/delegates", canonical_json(_plain(emitted.delegate_map))),
        "debug_sources": store.put_artifact("debug/sources", canonical_json(sources)),
    }


def _inline_scalars(module: GraphModule) -> None:
    """Writes out what branches have as constant scalars: exir's serialization, and so an ETRecord, takes none there.

    exir/serde/export_serialize.py: "getattr nodes containing tensors should not appear in the graph".
    """
    _, *inner = graph_modules(module)
    for each in inner:
        for node in list(each.graph.nodes):
            value = getattr(each, str(node.target), None) if node.op == "get_attr" else None
            if not isinstance(value, torch.Tensor) or value.dim():
                continue
            with each.graph.inserting_before(node):
                full = each.graph.call_function(ops.edge.aten.full.default, ([], value.item()), {"dtype": value.dtype})
            full.meta = dict(node.meta)
            node.replace_all_uses_with(full)
            each.graph.erase_node(node)


def _sources(module: GraphModule) -> dict[str, list[dict[str, str]]]:
    """Debug handle to the operators that have it, those in branches included."""
    found: dict[str, list[dict[str, str]]] = {}
    for each in graph_modules(module):
        for node in each.graph.nodes:
            if node.op == "call_function" and node.target is not getitem and (handle := node.meta.get("debug_handle")):
                origin = origin_of(node)
                operator = getattr(node.target, "__name__", str(node.target))
                source = {"operator": operator, "module": origin.module, "line": origin.line}
                found.setdefault(str(handle), []).append(source)
    return found


def _plain(value: object) -> object:
    """Maps with numbers as keys, as JSON has them."""
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple | set):
        return [_plain(item) for item in value]
    return value

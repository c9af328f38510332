"""Finds equal provenance in the `meta` of nodes, so that a stream holds it once.

torch copies stack traces, module stacks and histories (`from_node`) for every node it derives: written as they stand
they would be most of a stream.
"""

from __future__ import annotations

from typing import Any

from torch.fx.traceback import NodeSource


class Sharing:
    """One object for equal ones, within one stream."""

    def __init__(self) -> None:
        """Nothing is shared yet."""
        self._values: dict[Any, Any] = {}
        self._sources: dict[tuple[Any, ...], NodeSource] = {}
        self._seen: dict[int, NodeSource] = {}
        self._graphs: dict[int, int] = {}

    def meta(self, meta: dict[str, Any]) -> dict[str, Any]:
        """A node's `meta` with what can be shared replaced by the first equal object."""
        shared = dict(meta)
        for key in ("stack_trace", "torch_fn"):
            if key in shared:
                shared[key] = self._value(shared[key])
        if (stack := shared.get("nn_module_stack")) is not None:
            shared["nn_module_stack"] = self._stack(stack)
        if (functions := shared.get("source_fn_stack")) is not None:
            shared["source_fn_stack"] = [tuple(map(_nameable, entry)) for entry in functions]
        if (sources := shared.get("from_node")) is not None:
            shared["from_node"] = [self._source(source) for source in sources]
        return shared

    def _value(self, value: Any) -> Any:
        """The first equal value of the same type; strings within tuples are shared too."""
        if type(value) is tuple:
            value = tuple(map(self._value, value))
        try:
            return self._values.setdefault((type(value), value), value)
        except TypeError:  # not hashable
            return value

    def _stack(self, stack: dict[str, tuple[Any, ...]]) -> Any:
        """Nodes of one call share the stack as an object already, in torch's own shallow copies of `meta`."""
        items = tuple((self._value(key), self._value(tuple(map(_nameable, value)))) for key, value in stack.items())
        try:
            return self._values.setdefault((dict, items), dict(items))
        except TypeError:  # not hashable
            return stack

    def _source(self, source: NodeSource) -> NodeSource:
        known = self._seen.get(id(source))
        if known is None:
            earlier = tuple(id(self._source(child)) for child in source.from_node)
            key = (source.name, source.target, source.graph_id, source.pass_name, tuple(source.action), earlier)
            known = self._seen[id(source)] = self._sources.setdefault(key, source)
        return known

    def source_arguments(self, source: NodeSource) -> tuple[Any, ...]:
        """Arguments of `restore.node_source`. Graphs are numbered: their ids are addresses, other ones in every run."""
        node = source.node_info
        described = None
        if node is not None:
            number = self._graphs.setdefault(node.graph_id, len(self._graphs))
            described = (self._value(node.name), self._value(node.target), number)
        earlier = [self._source(child) for child in source.from_node]
        return described, self._value(source.pass_name), source.action, earlier


def _nameable(source: Any) -> Any:
    """A user's class or function by its name, as torch names modules in stacks: later stages cannot import it.

    Those of torch stay as they are: passes compare them.
    """
    module, name = getattr(source, "__module__", None), getattr(source, "__qualname__", "")
    if isinstance(source, str) or not module or not name:
        return source
    lasting = module.partition(".")[0] == "torch" and "<locals>" not in name
    return source if lasting else f"{module}.{name}"

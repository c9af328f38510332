"""Running a stored program in torch, operator by operator; edge operators have implementations for the CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Interpreter, Node

from ...artifacts.local_store import LocalStore
from ...artifacts.programs.codec import load_program
from ...artifacts.ref import ArtifactRef
from .changed_inputs import with_changed_inputs

Watch = Callable[[Node, Any], Any]
"""Gets each node and its value, gives the value that later nodes get."""


class StoredProgram:
    """A program of the store, run from its initial state each time."""

    def __init__(self, ref: ArtifactRef, store: LocalStore) -> None:
        """Loads nothing yet."""
        self._ref = ref
        self._store = store
        self._module: GraphModule | None = None

    @property
    def module(self) -> GraphModule:
        """The program with its state as attributes: parameters and buffers are not inputs. Nodes keep their names."""
        if self._module is None:
            self._module = unlifted(load_program(self._ref, self._store))
        return self._module

    def run(self, flat: Sequence[Any], watch: Watch | None = None) -> list[Any]:
        """The flat outputs, before them the inputs that it writes to.

        Args:
            flat: flat inputs, which stay as they are.
            watch: sees all values, and may replace them.
        """
        module = self.module
        buffers = list(module.buffers())
        versions = [buffer._version for buffer in buffers]  # noqa: SLF001 - the only way to see a write
        inputs = [value.clone() if isinstance(value, torch.Tensor) else value for value in flat]
        with torch.no_grad():
            outputs = with_changed_inputs(
                inputs, lambda: list(_Watched(module, watch).run(*inputs, enable_io_processing=False))
            )
        outputs = [value.clone() if isinstance(value, torch.Tensor) else value for value in outputs]
        if versions != [buffer._version for buffer in buffers]:  # noqa: SLF001 - as above
            self._module = None  # is loaded anew; what the store has is never written to
        return outputs


def unlifted(program: ExportedProgram) -> GraphModule:
    """The program as a module. Its inputs were checked when they were stored, so it need not check them."""
    module: GraphModule = program.module(check_guards=False)
    return module


class _Watched(Interpreter):  # type: ignore[misc]  # torch is untyped here
    def __init__(self, module: GraphModule, watch: Watch | None) -> None:
        super().__init__(module)
        self._watch = watch

    def run_node(self, n: Node) -> Any:
        value = super().run_node(n)
        return value if self._watch is None else self._watch(n, value)

"""State: the buffers that methods change, and that methods of one file may share."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
from torch.export import ExportedProgram

from ...errors import SourceError


def state_names(program: ExportedProgram) -> set[str]:
    """Names of the buffers that a program in the edge dialect changes."""
    return set(program.graph_signature.buffers_to_mutate.values())


def exclude_from_partitions(program: ExportedProgram, state: Collection[str]) -> None:
    """Removes buffers that other methods change from a tagged program's partitions: delegates take them as inputs.

    To partitioners, a buffer that a method only reads is a constant, though another method may change it.
    """
    buffers = program.graph_signature.inputs_to_buffers
    for node in program.graph.nodes:
        if node.op == "placeholder" and buffers.get(node.name) in state:
            node.meta.pop("delegation_tag", None)


def keep_initial_state(program: ExportedProgram, names: Collection[str] | None = None) -> None:
    """Stores the initial values of buffers in the file; without them buffers are uninitialized memory.

    Relies on the mark that exir.passes.init_mutable_pass.InitializedMutableBufferPass sets; the pass itself finds
    buffers by parts of their names. The file grows by the size of the state. Without `names`, takes all buffers that
    the program changes.
    """
    chosen = state_names(program) if names is None else names
    buffers = program.graph_signature.inputs_to_buffers
    for node in program.graph.nodes:
        if node.op == "placeholder" and buffers.get(node.name) in chosen:
            node.meta["et_init_buffer"] = True


def keep_shared_initial_state(programs: Mapping[str, ExportedProgram], order: Sequence[str]) -> None:
    """As `keep_initial_state`, for methods that share their state: the first method that has a buffer sets it.

    Loading a method writes its initial values, so if all methods had them, one that is loaded late would undo what
    others have done.

    Raises:
        SourceError: buffers of one name differ in shape, type or value, so that they cannot be one.
    """
    owners: dict[str, tuple[str, torch.Tensor]] = {}
    state = set().union(*map(state_names, programs.values()))
    for method in order:
        program = programs[method]
        for name in sorted(state & set(program.graph_signature.inputs_to_buffers.values())):
            value = _value(program, name)
            owner, theirs = owners.setdefault(name, (method, value))
            if theirs.dtype != value.dtype or not torch.equal(theirs, value):
                raise SourceError(
                    f"the buffer {name!r} of {method!r} is not that of {owner!r}: shape, type or value differ, so they "
                    "cannot be one state; give them different names, or leave compile.share_mutable_buffers out"
                )
        buffers = program.graph_signature.inputs_to_buffers
        for node in program.graph.nodes:
            if node.op == "placeholder" and buffers.get(node.name) in state:
                node.meta[SHARED] = True
        keep_initial_state(program, {name for name, (owner, _) in owners.items() if owner == method})


def _value(program: ExportedProgram, name: str) -> torch.Tensor:
    found: torch.Tensor = program.state_dict[name] if name in program.state_dict else program.constants[name]
    return found


SHARED = "pteforge_shared_state"
"""Marks placeholders of state that methods share, also in methods that only read it."""

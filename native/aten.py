"""Partitions as ATen programs, so that specializations are lowered the way whole programs are."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import torch
from executorch.exir.backend.utils import tag_constant_data
from executorch.exir.sym_util import eval_upper_bound
from executorch.exir.tensor import TensorSpec as ExirTensorSpec
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature, InputKind, InputSpec, TensorArgument
from torch.fx import GraphModule, Node

from ..errors import PteforgeError
from ..formats.pte.contents import InstructionCounts, Method, TensorSpec, ValueSpec
from ..tasks.programs.graphs import inline_scalar, scalar_constant
from ..tasks.upstream.compat import Verifier
from .support import branch_nodes, inner_module, unwrapped

_CONSTANT = {InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR}


def to_aten(partition: ExportedProgram) -> ExportedProgram:
    """The program without edge wrappers of operators. Shares weights with `partition`, which is not changed."""
    graph_module = _to_aten(partition.graph_module)
    program = ExportedProgram(
        root=graph_module,
        graph=graph_module.graph,
        graph_signature=partition.graph_signature,
        state_dict=partition.state_dict,
        range_constraints=partition.range_constraints,
        module_call_graph=partition.module_call_graph,
        constants=partition.constants,
        verifiers=[Verifier],
    )
    return _unshare(program)


def signature_of(partition: ExportedProgram, method: str) -> Method:
    """A method that is one call of the partition; PteforgeError if an argument is no tensor or state changes."""
    signature = partition.graph_signature
    if signature.buffers_to_mutate or signature.user_inputs_to_mutate:
        changed = sorted({*signature.buffers_to_mutate.values(), *signature.user_inputs_to_mutate.values()})
        raise PteforgeError(
            f"a partition of method {method!r} changes {', '.join(changed)}: state has to stay outside of partitions, "
            "where all payloads and methods see the same; do not tag buffers that are mutated"
        )
    placeholders = {node.name: node for node in partition.graph.nodes if node.op == "placeholder"}
    returned = enumerate(partition.graph.output_node().args[0])
    return Method(
        name=method,
        inputs=tuple(_spec(placeholders.get(name), f"input {name!r}", method) for name in signature.user_inputs),
        outputs=tuple(_spec(node, f"output {position}", method) for position, node in returned),
        operators=(),
        operator_calls=(),
        delegates=(),
        planned_memory=(),
        instructions=InstructionCounts(delegate_calls=1),
    )


def _spec(node: Node | None, what: str, method: str) -> ValueSpec:
    value = node.meta.get("val") if node is not None else None
    if not isinstance(value, torch.Tensor):
        where = f"{what} of a partition of method {method!r}"
        raise PteforgeError(f"{where} is not a tensor: only tensors can cross its border")
    spec = ExirTensorSpec.from_tensor(value)
    shape = tuple(map(eval_upper_bound, value.shape))
    return TensorSpec(
        dtype=str(value.dtype).removeprefix("torch."),
        shape=shape,
        dim_order=tuple(map(int, spec.dim_order)),
        dynamism="bound" if spec.is_upper_bound_tensor else "unbound" if spec.is_dynamic_unbound_tensor else "static",
        nbytes=math.prod(shape) * value.element_size(),
    )


def tag_constants(program: ExportedProgram) -> None:
    """Tags constants, but no mutable state, with a partition that uses them; what exir cannot copy stays an input."""
    tag_constant_data(program)
    for node in program.graph.nodes:
        tags = {user.meta.get("delegation_tag") for user in node.users}
        if node.op == "placeholder" and len(tags) > 1 and any(_in_list(node, user) for user in node.users):
            node.meta.pop("delegation_tag", None)


def _to_aten(graph_module: GraphModule) -> GraphModule:
    graph = copy.deepcopy(graph_module.graph)
    for node in list(graph.nodes):
        node.meta.pop("delegation_tag", None)
        if (constant := scalar_constant(graph_module, node)) is not None:
            # branches that own tensors cannot be traced again
            inline_scalar(node, constant, torch.ops.aten.full.default)
        elif (operator := unwrapped(node)) is not None:
            node.target = operator
    copied = GraphModule(graph_module, graph)  # copies the submodules that the graph names
    for node in graph.nodes:
        for branch in branch_nodes(node):
            copied.set_submodule(str(branch.target), _to_aten(inner_module(branch)))
    return copied


def _unshare(program: ExportedProgram) -> ExportedProgram:
    """Adds a separate placeholder for each node that takes a shared constant in a list. Changes the graph in place."""
    signature = program.graph_signature
    state, constants = dict(program.state_dict), dict(program.constants)
    placeholders = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    specs: list[InputSpec] = []
    for spec in signature.input_specs:
        specs.append(spec)
        if spec.kind not in _CONSTANT:
            continue
        node = placeholders[spec.arg.name]
        for user in [user for user in node.users if len(node.users) > 1 and _in_list(node, user)]:
            own = _second_placeholder(node, user)
            target = f"{spec.target}__{own.name}"
            values = state if spec.target in state else constants
            values[target] = values[spec.target]
            specs.append(replace(spec, arg=TensorArgument(name=own.name), target=target))
    return ExportedProgram(
        root=program.graph_module,
        graph=program.graph,
        graph_signature=ExportGraphSignature(specs, signature.output_specs),
        state_dict=state,
        range_constraints=program.range_constraints,
        module_call_graph=program.module_call_graph,
        constants=constants,
        verifiers=program.verifiers,
    )


def _second_placeholder(node: Node, user: Node) -> Node:
    with node.graph.inserting_after(node):
        own = node.graph.placeholder(f"{node.name}__{user.name}")
    own.meta = dict(node.meta)
    user.replace_input_with(node, own)
    return own


def _in_list(node: Node, user: Node) -> bool:
    return not any(node is argument for argument in (*user.args, *user.kwargs.values()))

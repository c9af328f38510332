"""Weights that several nodes use.

exir gives each partition a copy of what it shares with others (`duplicate_constant_node`, executorch 1.5.1), but
forgets the copy where a node takes it in a list, as `torch.cond` does, and then refuses the program.
"""

from __future__ import annotations

from dataclasses import replace

from executorch.exir.backend.utils import tag_constant_data
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature, InputKind, InputSpec, TensorArgument
from torch.fx import Node

_CONSTANT = {InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR}


def tag_constants(program: ExportedProgram) -> None:
    """Gives weights and other constants the tag of a partition that uses them; state that is changed has none.

    What exir could not copy stays outside, and partitions take it as an input.
    """
    tag_constant_data(program)
    for node in program.graph.nodes:
        tags = {user.meta.get("delegation_tag") for user in node.users}
        if node.op == "placeholder" and len(tags) > 1 and any(_in_list(node, user) for user in node.users):
            node.meta.pop("delegation_tag", None)


def unshare(program: ExportedProgram) -> ExportedProgram:
    """The program with a placeholder of its own for each node that takes a constant in a list, besides other nodes.

    The tensors are the same. The graph is changed in place.
    """
    signature = program.graph_signature
    state, constants = dict(program.state_dict), dict(program.constants)
    placeholders = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    specs: list[InputSpec] = []
    for spec in signature.input_specs:
        specs.append(spec)
        if spec.kind not in _CONSTANT:
            continue
        node = placeholders[spec.arg.name]
        for user in [each for each in node.users if len(node.users) > 1 and _in_list(node, each)]:
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

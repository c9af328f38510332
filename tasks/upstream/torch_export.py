"""torch, torchvision and torchao while models are built, exported and quantized, and what their graphs say of layers.

Part of the keys of `export`, `source_transform`, `quantize` and all other stages that run the user's code.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import wraps
from importlib import import_module
from importlib.util import find_spec
from typing import Any
from unittest.mock import patch

import torch
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.modules import transformer

from .compat import Min, MinMaxBase, OpOverload, pytree
from .patches import mends


@mends(
    "`nn.TransformerEncoder` with a mask as an input cannot be exported",
    "torch.nn.modules.transformer._detect_is_causal_mask",
)
def uncompared_masks() -> AbstractContextManager[object]:
    """Keeps torch from comparing masks of transformers while the context is open.

    `nn.TransformerEncoder` and `nn.TransformerDecoder` find out whether a mask is causal (`_detect_is_causal_mask` in
    torch/nn/modules/transformer.py), for kernels that need no mask then. Tracing has no values: "Could not guard on
    data-dependent expression". The result is the same if a mask is not known to be causal, and the program takes other
    masks, too. A caller's ``is_causal`` still holds. Delete once torch does not compare while exporting.
    """

    def is_said_to_be_causal(mask: torch.Tensor | None, is_causal: bool | None = None, size: int | None = None) -> bool:
        del mask, size
        return is_causal is True

    return patch.object(transformer, "_detect_is_causal_mask", is_said_to_be_causal)


@mends(
    "views of heads and tokens behind a cache cannot be exported with dynamic sizes",
    "MinMaxBase._collapse_known_multiplicative_terms",
)
def comparable_strides() -> AbstractContextManager[object]:
    """Has torch compare multiples of a sum, such as ``8 * n + 40`` and ``16 * n + 80``, while the context is open.

    For torch 2.13, whose `Min` of sizes (torch/utils/_sympy/functions.py) compares multiples of a product only. The
    stride of collapsed dimensions is such a minimum (`_collapse_view_helper` in torch/_prims). A view of heads and
    tokens, where tokens are those of a cache and `n` more, then has a guard that torch cannot prove. It remembers
    earlier comparisons. Delete once it can.
    """
    compare = MinMaxBase._collapse_known_multiplicative_terms  # noqa: SLF001 - the function that compares

    def compare_factored(cls: type[MinMaxBase], values: tuple[Any, ...]) -> Any:
        if len(values) == 2:
            factors, (term, other) = zip(*(value.primitive() for value in values), strict=True)
            if term == other and term.is_nonnegative:
                return (min if issubclass(cls, Min) else max)(factors) * term
        return compare.__func__(cls, values)  # of the class that asks

    return patch.object(MinMaxBase, "_collapse_known_multiplicative_terms", classmethod(compare_factored))


def mapping_heard(hear: Callable[[Any], None]) -> AbstractContextManager[object]:
    """Calls `hear` with each path that a storage is mapped from while the context lasts.

    torch maps files by itself, and Python's audit hooks do not hear of it; safetensors 0.8.0 maps them with
    ``torch.UntypedStorage.from_file``, too. Delete once that raises an audit event.
    """
    from_file = torch.UntypedStorage.from_file

    @wraps(from_file)
    def call(filename: Any, *args: Any, **options: Any) -> Any:
        hear(filename)
        return from_file(filename, *args, **options)

    return patch.object(torch.UntypedStorage, "from_file", staticmethod(call))


def import_torchvision() -> None:
    """Imports torchvision if it is installed; if its library does not load, with operators that have no kernels.

    For torchvision 0.28: the native library of its wheel for CUDA does not load with torch's wheel for CPUs, and the
    import fails, since it registers fake kernels for operators that only the library defines. Only models that detect
    objects need them. Delete once torchvision can be imported without its library.
    """
    if find_spec("torchvision") is None:
        return
    try:
        import_module("torchvision")
    except RuntimeError as error:
        if "operator torchvision::" not in str(error):
            raise
        for name in ("nms", "qnms"):
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        for module in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[module]
        import_module("torchvision")


@mends(
    "a dynamically quantized layer whose input is a constant is wrong",
    "torchao.quantization.pt2e.quantize_pt2e._quant_node_constraint",
)
def whole_dynamic_quantization() -> AbstractContextManager[object]:
    """Has `convert_pt2e` fold only quantizations of constants by a constant scale, while the context is open.

    For torchao 0.18. `convert_pt2e` computes the ``quantize`` operators of constants, such as the queries of DETR,
    which begin with zeros. If the program computes scale and zero point, the file still computes those, and dequantizes
    by them what was quantized by others: for zeros, the portable kernel's differ from torch's (-52 dB). Besides,
    backends do not know the pattern of the rest, so that the layer is left to the portable kernels in floating point.
    Delete once `_quant_node_constraint` in quantization/pt2e/quantize_pt2e.py checks it.
    """
    from torchao.quantization.pt2e import quantize_pt2e  # noqa: PLC0415 - not for all that needs this module

    quantizes = quantize_pt2e._quant_node_constraint  # noqa: SLF001 - the function that decides what is folded

    def is_folded(node: Node) -> bool:
        return quantizes(node) and all(scale.op == "get_attr" for scale in node.all_input_nodes[1:])

    return patch.object(quantize_pt2e, "_quant_node_constraint", is_folded)


STEPS = "pteforge_steps"
"""Key of a node's metadata: linear layers with one value here are the steps of one layer, with one weight."""


def set_constant(program: ExportedProgram, constant: Node, value: torch.Tensor) -> None:
    """Gives a parameter, buffer or constant of a program another value, in place."""
    signature, name = program.graph_signature, constant.name
    if parameter := signature.inputs_to_parameters.get(name):
        gradients = program.state_dict[parameter].requires_grad
        program.state_dict[parameter] = torch.nn.Parameter(value, requires_grad=gradients)
    elif (buffer := signature.inputs_to_buffers.get(name)) and buffer not in signature.non_persistent_buffers:
        program.state_dict[buffer] = value
    else:
        program.constants[buffer or signature.inputs_to_lifted_tensor_constants[name]] = value


def call_operator(graph: Graph, operator: OpOverload, *args: Any) -> Node:
    """A node that calls an operator, with its value in its metadata; the first argument is a node."""
    node = graph.call_function(operator, args)
    values = [argument.meta["val"] if isinstance(argument, Node) else argument for argument in args]
    with values[0].fake_mode:
        node.meta["val"] = operator(*values)
    return node


def add_constant(module: GraphModule, name: str, value: torch.Tensor, like: Node) -> Node:
    """A node that reads a new parameter or buffer, with its value in its metadata, as `like` has one."""
    register = module.register_parameter if isinstance(value, torch.nn.Parameter) else module.register_buffer
    register(name, value)
    node: Node = module.graph.get_attr(name)
    node.meta["val"] = like.meta["val"].fake_mode.from_tensor(value, static_shapes=True)
    return node


def traced(node: Node, function: Callable[..., Any], *, pre_dispatch: bool = True) -> tuple[Graph, Sequence[Node]]:
    """The graph of a function of a node's arguments, and the nodes that are its inputs, in order."""
    values, structure = pytree.tree_flatten((node.args, node.kwargs))
    nodes = [value for value in values if isinstance(value, Node)]

    def call(*tensors: torch.Tensor) -> Any:
        left = iter(tensors)
        flat = [next(left) if isinstance(value, Node) else value for value in values]
        args, kwargs = pytree.tree_unflatten(flat, structure)
        return function(*args, **kwargs)

    with torch.no_grad():
        graph: Graph = make_fx(call, pre_dispatch=pre_dispatch)(*(value.meta["val"] for value in nodes)).graph
    return graph, nodes


class _KeptError(Exception):
    """A function returns NotImplemented."""


def inline(graph: Graph, node: Node, function: Callable[..., Any]) -> list[Node]:
    """Replaces an operator by those of a function that computes the same of its arguments.

    Returns the new nodes. Leaves the operator and returns none if the function returns NotImplemented or fewer results
    than are used, or if the operator takes a size that varies.
    """
    if not all(isinstance(value.meta.get("val"), torch.Tensor) for value in node.all_input_nodes):
        return []

    def call(*args: Any, **kwargs: Any) -> Any:
        results = function(*args, **kwargs)
        if results is NotImplemented:
            raise _KeptError
        return results

    try:
        steps, nodes = traced(node, call)
    except _KeptError:
        return []
    results = steps.output_node().args[0]
    used = {} if isinstance(results, Node) else {user: user.args[1] for user in node.users if user.users}
    if any(position >= len(results) for position in used.values()):
        return []
    copies = dict(zip(steps.find_nodes(op="placeholder"), nodes, strict=True))
    with graph.inserting_before(node):
        for step in [step for step in steps.nodes if step.op == "call_function"]:
            copies[step] = graph.node_copy(step, copies.__getitem__)
            copies[step].meta = {**node.meta, "val": step.meta["val"]}
    if isinstance(results, Node):
        node.replace_all_uses_with(copies[results])
    for user, position in used.items():
        user.replace_all_uses_with(copies[results[position]])
    for unused in (*node.users, node):
        graph.erase_node(unused)
    return [copy for step, copy in copies.items() if step.op == "call_function"]

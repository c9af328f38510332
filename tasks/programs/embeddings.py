"""Quantized tables of embeddings, computed by ExecuTorch's operators for them: no table is dequantized as a whole.

Layers that torchao has quantized dequantize their table and then look rows up in it. Backends that know this take it;
what they leave becomes `quantized_decomposed.embedding_byte`, `embedding_4bit` or `embedding_2bit` at the end. The rule
is that of exir/passes/_quant_patterns_and_replacements.py (executorch 1.5.1), from where the packing is taken.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node
from torchao.quantization import quant_primitives as _registered  # noqa: F401 - torchao's operators

from ..upstream import compat
from ..upstream.torch_export import set_constant
from ..upstream.torchao import packed_by_rows

_LOOKUPS = {torch.ops.aten.embedding.default, compat.edge_ops.aten.embedding.default}
_EDGE_DEQUANTIZE = compat.edge_ops.torchao.dequantize_affine.default
_DEQUANTIZES = {torch.ops.torchao.dequantize_affine.default, _EDGE_DEQUANTIZE}


def fuse_embeddings(program: ExportedProgram) -> None:
    """Replaces lookups in dequantized tables by operators on the tables, in an edge program with its weights.

    Tables of 4 and 2 bits are packed, others have a byte for each weight. One with other readers stays as it is.
    """
    tables = defaultdict[Node, list[Node]](list)
    for node in program.graph.nodes:
        if node.target is _EDGE_DEQUANTIZE and is_table(node):
            tables[node.args[0]].append(node)
    for table, nodes in tables.items():
        if table.users.keys() == set(nodes) and len({_Form.of(node) for node in nodes}) == 1:
            _fuse(program, table, nodes)
    program.graph_module.recompile()


@dataclass(frozen=True)
class _Form:
    """How a table is quantized."""

    scales: Node  # one for each row, or for each group of its columns
    zero_points: Node | None  # of the same shape
    lowest: int  # the least value of a weight; with `highest` it says how many bits a weight has
    highest: int
    dtype: torch.dtype  # of the dequantized weights

    @classmethod
    def of(cls, node: Node) -> _Form:
        _, _, scales, zero_points, _, lowest, highest, *dtype = node.args
        return cls(scales, zero_points, lowest, highest, *(dtype or [node.kwargs.get("output_dtype", torch.float32)]))


def is_table(node: Node) -> bool:
    """Whether a call dequantizes a tensor with a row for each embedding, and only lookups read it."""
    if node.target not in _DEQUANTIZES:
        return False
    table, block_size = node.args[:2]
    lookups = all(user.target in _LOOKUPS and user.args[0] is node for user in node.users)
    return lookups and table.op == "placeholder" and len(block_size) == 2 and block_size[0] == 1


def _fuse(program: ExportedProgram, table: Node, nodes: Sequence[Node]) -> None:
    form = _Form.of(nodes[0])
    operator = _packed(program, table, form)
    zero_points = _zero_points(program, form)
    for node in nodes:
        for lookup in list(node.users):
            arguments = (table, form.scales, zero_points, form.lowest, form.highest, lookup.args[1])
            with program.graph.inserting_before(lookup):
                if form.scales.meta["val"].dtype == form.dtype:
                    embedding = program.graph.call_function(operator.default, arguments)
                else:
                    embedding = program.graph.call_function(operator.dtype, arguments, {"dtype": form.dtype})
            embedding.meta = dict(lookup.meta)
            lookup.replace_all_uses_with(embedding)
            program.graph.erase_node(lookup)
        program.graph.erase_node(node)
    if form.zero_points is not None and not form.zero_points.users:
        compat.delete_constant_placeholder(program, form.zero_points)


def _packed(program: ExportedProgram, table: Node, form: _Form) -> Any:
    """Packs a table where its weights have 4 or 2 bits; returns the operator for it."""
    operators = compat.edge_ops.quantized_decomposed
    bits = {(-8, 7): 4, (-2, 1): 2}.get((form.lowest, form.highest), 8)
    weights = compat.get_param_tensor(program, table)
    if bits == 8 or weights.shape[1] * bits % 8:
        return operators.embedding_byte
    pack = partial(torch.ops.quant_fusion._pack_embedding_weight, bitwidth=bits)  # noqa: SLF001 - as above
    _replace(program, table, packed_by_rows(weights, pack))
    return operators.embedding_4bit if bits == 4 else operators.embedding_2bit


def _zero_points(program: ExportedProgram, form: _Form) -> Node | None:
    """The zero points as the operators take them; None where all are zero.

    In Python they must have the data type of the scales, and on the runtime that of the output (embeddingxb.cpp in
    kernels/quantized/cpu, executorch 1.5.1), so with them the scales get that one, too.
    """
    if form.zero_points is None or not compat.get_param_tensor(program, form.zero_points).any():
        return None
    for constant in (form.zero_points, form.scales):
        _replace(program, constant, compat.get_param_tensor(program, constant).to(form.dtype))
    return form.zero_points


def _replace(program: ExportedProgram, constant: Node, value: torch.Tensor) -> None:
    set_constant(program, constant, value)
    constant.meta["val"] = constant.meta["val"].new_empty(value.shape, dtype=value.dtype)

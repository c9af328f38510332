"""Files of small networks, quantized for XNNPACK and lowered without a store."""

from __future__ import annotations

from typing import Any


def lower_quantized(module: Any, x: Any, *, dynamic: bool = False) -> bytes:
    """The file of a network of one input, which is also what it is calibrated on."""
    import torch
    from executorch.exir import to_edge_transform_and_lower
    from pteforge.tasks.programs.pt2e import quantize
    from pteforge.tasks.stage import TargetParams
    from pteforge.tasks.targets.find import find_target

    quantizer = TargetParams(name="xnnpack", options={"dynamic": dynamic})
    program = quantize(torch.export.export(module, (x,)), [x], [[x]], (quantizer,))
    partitioners = list(find_target("xnnpack").partitioners())
    return bytes(to_edge_transform_and_lower(program, partitioner=partitioners).to_executorch().buffer)


def worst_sqnr(content: bytes, module: Any, x: Any) -> float:
    """Of all outputs of a file, against eager's, in dB."""
    import torch
    from executorch.runtime import Runtime
    from torch.utils import _pytree as pytree

    made = Runtime.get().load_program(content).load_method("forward").execute([x])
    with torch.no_grad():
        pairs = zip(made, pytree.tree_leaves(module(x)), strict=True)
    return min(float(10 * (exact.square().sum() / (value - exact).square().sum()).log10()) for value, exact in pairs)

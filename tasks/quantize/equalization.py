"""Decoders whose layers compute the same with weights and activations that lose less when they are rounded.

``rotate`` is QuaRot's and SpinQuant's rotation without training (Ashkboos et al., 2024, arXiv:2404.00456; Liu et al.,
2024, arXiv:2405.16406): states between layers, and the values of attention, are multiplied by a Hadamard matrix, which
the weights before and after them take in, so that outliers are spread over all channels and no operator is added.
``awq`` moves scales from the inputs of layers to their weights (Lin et al., 2024, arXiv:2306.00978), as samples of the
inputs say: the weights of a norm, or of the layer before, are divided.

Both know decoders by the names that transformers gives their parts, those of Llama, Mistral, Qwen and others. torchao
has both as prototypes (prototype/spinquant, prototype/awq of 0.18), for its own model and for kernels of GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ...errors import TargetError
from .rounding import ObservedCalls

_STRENGTHS = tuple(step / 10 for step in range(10))
_CLOSE = 1e-3
_PARTS = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
_OUTPUTS = ("o_proj", "down_proj")


@dataclass(frozen=True)
class _Block:
    """A norm, the layers that take its output, and the one whose output is added to the state of the decoder."""

    norm: nn.Module
    inputs: tuple[nn.Linear, ...]
    output: nn.Linear
    values: nn.Linear | None  # that have their own channels in the input of `output`: of attention
    head_dim: int  # of attention


@dataclass(frozen=True)
class _Decoder:
    embedding: nn.Embedding
    blocks: tuple[_Block, ...]
    norm: nn.Module
    head: nn.Linear


def rotate(module: nn.Module) -> None:
    """Rotates the states of a decoder, and the values of its attention; weights are replaced, and not written to.

    Embeddings that are tied to the layer that makes logits are not tied any more. Raises TargetError for other models.
    """
    decoder = _find(module)
    turn = _rotation(decoder.embedding.embedding_dim)
    _replace(decoder.embedding, _as_double(decoder.embedding.weight) @ turn)
    for block in decoder.blocks:
        gain = _take_gain(block.norm)
        for layer in block.inputs:
            _replace(layer, (_as_double(layer.weight) * gain) @ turn)
        if block.values is not None:
            _rotate_heads(block.values, block.output, _rotation(block.head_dim))
        bias = None if block.output.bias is None else turn.T @ _as_double(block.output.bias)
        _replace(block.output, turn.T @ _as_double(block.output.weight), bias)
    _replace(decoder.head, (_as_double(decoder.head.weight) * _take_gain(decoder.norm)) @ turn)


def scale_inputs(module: nn.Module, calls: ObservedCalls, *, bits: int, group_size: int) -> None:
    """Moves scales to the weights of a decoder's layers, as much as makes their outputs on samples most exact.

    Args:
        module: of the calls, or with the same parameters.
        calls: with samples.
        bits: of the integers that weights become.
        group_size: how many weights share a scale.

    Raises TargetError for models that are no such decoders.
    """
    decoder = _find(module)
    before: dict[nn.Linear, tuple[nn.Module, tuple[nn.Linear, ...]]] = {decoder.head: (decoder.norm, (decoder.head,))}
    for block in decoder.blocks:
        before[block.inputs[0]] = (block.norm, block.inputs)
        if block.values is None and len(block.inputs) > 1:
            before[block.output] = (block.inputs[-1], (block.output,))
    for layers, moments in calls.second_moments(list(before)):
        for layer in layers:
            source, scaled = before[layer]
            scale = _best_scale(scaled, moments[layer].double(), bits, group_size)
            for each in scaled:
                _replace(each, _as_double(each.weight) * scale)
            if isinstance(source, nn.Linear):
                bias = None if source.bias is None else _as_double(source.bias) / scale
                _replace(source, _as_double(source.weight) / scale[:, None], bias)
            else:
                gain, neutral = _gain(source)
                _replace(source, gain / scale + (neutral - 1))


def _find(module: nn.Module) -> _Decoder:
    for owner in module.modules():
        head = getattr(owner, "lm_head", None)
        for inner in owner.modules() if isinstance(head, nn.Linear) else ():
            layers, table = (getattr(inner, name, None) for name in ("layers", "embed_tokens"))
            if isinstance(layers, nn.ModuleList) and isinstance(table, nn.Embedding) and hasattr(inner, "norm"):
                blocks = tuple(block for layer in layers for block in _blocks(layer))
                for norm in (inner.norm, *(block.norm for block in blocks)):
                    _gain(norm)
                return _Decoder(table, blocks, inner.norm, head)
    raise TargetError(
        f"`equalize` is for decoders with `embed_tokens`, `layers`, `norm` and `lm_head`, as Llama's, and "
        f"{type(module).__name__} has none; leave it out"
    )


def _blocks(layer: nn.Module) -> Iterator[_Block]:
    parts = {name: child for name, child in layer.named_children() if not isinstance(child, nn.Dropout)}
    if parts.keys() != _PARTS:
        odd = sorted(parts.keys() ^ _PARTS)
        raise TargetError(
            f"`equalize` is for layers of attention and a network, each with a norm before it, and "
            f"{type(layer).__name__} differs by {', '.join(odd)}; leave it out"
        )
    for norm, part in (("input_layernorm", "self_attn"), ("post_attention_layernorm", "mlp")):
        layers = {name: child for name, child in parts[part].named_children() if isinstance(child, nn.Linear)}
        outputs = [layers.pop(name) for name in _OUTPUTS if name in layers]
        shapes = {child.in_features for child in layers.values()}
        if len(outputs) != 1 or len(shapes) != 1 or {outputs[0].out_features} != shapes:
            raise TargetError(
                f"`equalize` is for layers whose {part} has one of {' and '.join(_OUTPUTS)}, and others that take the "
                f"same; {type(parts[part]).__name__} has {', '.join(dict(parts[part].named_children()))}; leave it out"
            )
        values, head_dim = layers.get("v_proj"), int(getattr(parts[part], "head_dim", 0) or 0)
        fits = values is not None and head_dim and not hasattr(parts[part], "v_norm")
        yield _Block(parts[norm], (*layers.values(),), outputs[0], values if fits else None, head_dim)


def _as_double(values: Tensor) -> Tensor:
    return values.detach().double()


def _replace(layer: nn.Module, weight: Tensor, bias: Tensor | None = None) -> None:
    dtype = layer.weight.dtype
    layer.weight = nn.Parameter(weight.to(dtype), requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias.to(dtype), requires_grad=False)


def _gain(norm: nn.Module) -> tuple[Tensor, float]:
    """What a norm multiplies each channel with, and its weight if that is one; raises TargetError for other norms."""
    weight = getattr(norm, "weight", None)
    if weight is not None:
        probe = torch.linspace(-1, 2, len(weight), dtype=weight.dtype)
        plain = probe / probe.float().square().mean().sqrt()
        for neutral in (1.0, 0.0):  # some multiply with one more than their weight
            gain = _as_double(weight) + (1 - neutral)
            close = _CLOSE * float(gain.abs().max())
            if torch.allclose(norm(probe).double(), plain * gain, rtol=_CLOSE, atol=close):
                return gain, neutral
    raise TargetError(
        f"`equalize` is for norms by the root mean square alone, and {type(norm).__name__} is none; leave it out"
    )


def _take_gain(norm: nn.Module) -> Tensor:
    """What a norm multiplies each channel with; afterwards, it multiplies with one."""
    gain, neutral = _gain(norm)
    _replace(norm, torch.full_like(gain, neutral))
    return gain


def _rotation(size: int) -> Tensor:
    """An orthogonal matrix [size, size] whose elements are about equally large; always the same one."""
    generator = torch.Generator().manual_seed(size)
    odd = size
    turn = torch.ones(1, 1, dtype=torch.float64)
    while odd % 2 == 0:
        turn = torch.cat([torch.cat([turn, turn], 1), torch.cat([turn, -turn], 1)]) / 2**0.5
        odd //= 2
    if odd > 1:
        rest, _ = torch.linalg.qr(torch.randn(odd, odd, generator=generator, dtype=torch.float64))
        turn = torch.kron(turn, rest.contiguous())
    signs = torch.randint(0, 2, (size, 1), generator=generator) * 2 - 1
    return turn * signs


def _rotate_heads(values: nn.Linear, output: nn.Linear, turn: Tensor) -> None:
    """Rotates what each head of attention takes the mean of, and back where it is read."""
    width = len(turn)
    weight = (turn.T @ _as_double(values.weight).unflatten(0, (-1, width))).flatten(0, 1)
    bias = None if values.bias is None else (_as_double(values.bias).unflatten(0, (-1, width)) @ turn).flatten()
    _replace(values, weight, bias)
    _replace(output, (_as_double(output.weight).unflatten(1, (-1, width)) @ turn).flatten(1))


def _best_scale(layers: tuple[nn.Linear, ...], moments: Tensor, bits: int, group_size: int) -> Tensor:
    """What to multiply the weights of each input with: [in_features]."""
    size = moments.diagonal().sqrt().clamp(min=1e-8)
    scales = [(size**strength / (size**strength).log().mean().exp()).clamp(1e-4, 1e4) for strength in _STRENGTHS]
    return min(scales, key=lambda scale: sum(_loss(layer, moments, scale, bits, group_size) for layer in layers))


def _loss(layer: nn.Linear, moments: Tensor, scale: Tensor, bits: int, group_size: int) -> float:
    """The squared error of a layer's outputs with rounded weights."""
    weight = _as_double(layer.weight)
    group = group_size if weight.shape[1] % group_size == 0 else weight.shape[1]
    groups = (weight * scale).unflatten(1, (-1, group))
    step = groups.abs().amax(-1, keepdim=True).clamp(min=1e-12) * 2 / (2**bits - 1)
    rounded = ((groups / step).round().clamp(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) * step).flatten(1) / scale
    error = rounded - weight
    return float(((error @ moments) * error).sum())

"""Checkpoints whose weights are integers or eight-bit floats, as a folder of the same model in floating point.

Formats: GPTQ and AWQ as AutoGPTQ and AutoAWQ write them, compressed-tensors of vLLM, and DeepSeek's blocks of float8.
Others are read by transformers, with the packages that it asks for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torchao.utils import TorchAOBaseTensor

from ...errors import SourceError
from ...formats.checkpoint import files_of

_AWQ_ORDER = [0, 4, 1, 5, 2, 6, 3, 7]  # where eight columns are in a word, as AutoAWQ packs them
_FILE = 1 << 31  # bytes from which on a file of weights ends

Parts = Mapping[str, Tensor]
"""The tensors of a layer, by the last part of their names."""


def is_read(config: Mapping[str, Any]) -> bool:
    """Whether `floating_point` reads checkpoints with this ``quantization_config``."""
    return config.get("quant_method") in _FORMATS


@contextmanager
def floating_point(entry: Path | None, config: Mapping[str, Any]) -> Iterator[Path]:
    """A folder with the weights of a checkpoint in float32, and what else is next to them.

    Args:
        entry: its safetensors file, or the index of several.
        config: its ``quantization_config``.

    Raises SourceError if its weights are packed in another way than this reads.
    """
    method = config["quant_method"]
    if entry is None:
        raise SourceError(f"weights in the format {method} are read from safetensors files, and there are none")
    with TemporaryDirectory() as made:
        folder = Path(made)
        for path in entry.parent.glob("*.json"):
            if not path.name.endswith(".index.json"):
                (folder / path.name).write_bytes(path.read_bytes())
        described = json.loads((folder / "config.json").read_bytes())
        described.pop("quantization_config", None)
        (folder / "config.json").write_text(json.dumps(described), encoding="utf-8")
        _write(folder, _layers(files_of(entry)), partial(_FORMATS[method], config))
        yield folder


def in_floating_point(model: Any, config: Mapping[str, Any]) -> Any:
    """A model whose weights transformers has read as another library's tensors; raises SourceError if they stay so."""
    for module in model.modules():
        if isinstance(weight := getattr(module, "weight", None), TorchAOBaseTensor):
            module.weight = nn.Parameter(weight.dequantize(), requires_grad=False)
    if config.get("quant_method") == "torchao":
        return model
    try:
        return model.dequantize()
    except (NotImplementedError, ValueError) as error:
        raise SourceError(
            f"weights in the format {config.get('quant_method')} cannot be read in floating point: {error}"
        ) from error


def _layers(files: tuple[Path, ...]) -> Iterator[tuple[str, Parts]]:
    """The tensors of each module, by its name."""
    opened = [safe_open(file, "pt") for file in files if file.suffix == ".safetensors"]
    found: dict[str, dict[str, Any]] = {}
    for file in opened:
        for name in file.keys():  # type: ignore[no-untyped-call] # noqa: SIM118 - it is no mapping
            module, _, last = name.rpartition(".")
            found.setdefault(module, {})[last] = file
    for module, parts in found.items():
        prefix = f"{module}." if module else ""
        yield prefix, {last: file.get_tensor(f"{prefix}{last}") for last, file in parts.items()}


def _write(folder: Path, layers: Iterator[tuple[str, Parts]], read: Callable[[str, Parts], Parts]) -> None:
    index: dict[str, str] = {}
    held: dict[str, Tensor] = {}

    def flush() -> None:
        file = f"model-{len({*index.values()}) + 1:05}.safetensors"
        save_file(held, folder / file, {"format": "pt"})
        index.update(dict.fromkeys(held, file))
        held.clear()

    for prefix, parts in layers:
        held |= {f"{prefix}{last}": value.contiguous() for last, value in read(prefix, parts).items()}
        if sum(value.nbytes for value in held.values()) > _FILE:
            flush()
    flush()
    described = {"metadata": {}, "weight_map": index}
    (folder / "model.safetensors.index.json").write_text(json.dumps(described), encoding="utf-8")


def _gptq(config: Mapping[str, Any], prefix: str, parts: Parts) -> Parts:
    """Packed along inputs: [in_features * bits / 32, out_features], and an index of each input's group."""
    if "qweight" not in parts:
        return parts
    bits = _bits(config.get("bits"), prefix)
    integers = _unpacked(parts["qweight"].T, bits).T
    zeros = _unpacked(parts["qzeros"], bits) + (config.get("checkpoint_format", "gptq") == "gptq")
    groups = len(parts["scales"])
    index = parts.get("g_idx", torch.arange(len(integers)) // -(-len(integers) // groups)).long()
    weight = (integers - zeros[index]) * parts["scales"].float()[index]
    return {**_others(parts, "qweight", "qzeros", "scales", "g_idx"), "weight": weight.T}


def _awq(config: Mapping[str, Any], prefix: str, parts: Parts) -> Parts:
    """Packed along outputs, eight columns in an order of their own: [in_features, out_features / 8]."""
    if "qweight" not in parts:
        return parts
    if _bits(config.get("bits", config.get("w_bit")), prefix) != 4 or config.get("version", "gemm").lower() != "gemm":
        raise SourceError(f"{prefix}qweight: of AWQ, the version gemm with 4 bits is read")
    integers, zeros = (
        _unpacked(parts[name], 4).unflatten(1, (-1, 8))[:, :, _AWQ_ORDER].flatten(1) for name in ("qweight", "qzeros")
    )
    each = len(integers) // len(zeros)
    weight = (integers - zeros.repeat_interleave(each, 0)) * parts["scales"].float().repeat_interleave(each, 0)
    return {**_others(parts, "qweight", "qzeros", "scales"), "weight": weight.T}


def _compressed(config: Mapping[str, Any], prefix: str, parts: Parts) -> Parts:
    """Packed along inputs, [out_features, in_features * bits / 32], or a number for each weight."""
    if "weight_scale" not in parts:
        return parts
    scale, zeros = parts["weight_scale"].float(), parts.get("weight_zero_point")
    if (packed := parts.get("weight_packed")) is None:
        weight = parts["weight"].float()
    elif packed.dtype == torch.int32:
        rows, columns = map(int, parts["weight_shape"])
        all_bits = {group["weights"]["num_bits"] for group in config["config_groups"].values()}
        fitting = [bits for bits in all_bits if packed.shape[1] == -(-columns // (32 // _bits(bits, prefix)))]
        if len(fitting) != 1:
            raise SourceError(f"{prefix}weight_packed: {tuple(packed.shape)} fits none of {sorted(all_bits)} bits")
        offset = 1 << fitting[0] - 1
        weight = _unpacked(packed, fitting[0])[:, :columns].float() - offset
        if zeros is not None and zeros.dtype == torch.int32:
            zeros = _unpacked(zeros.T, fitting[0]).T[:rows] - offset
    else:
        raise SourceError(f"{prefix}weight_packed: of compressed-tensors, integers are read, and no {packed.dtype}")
    if zeros is not None:
        zeros = zeros.float()
    index = parts.get("weight_g_idx")
    if scale.dim() == 2 and scale.shape[1] > 1:
        each = -(-weight.shape[1] // scale.shape[1])
        index = torch.arange(weight.shape[1]) // each if index is None or (index < 0).any() else index.long()
        scale, zeros = scale[:, index], None if zeros is None else zeros[:, index]
    dequantized = (weight - (0 if zeros is None else zeros)) * scale
    packed_parts = ("weight_packed", "weight_scale", "weight_zero_point", "weight_shape", "weight_g_idx")
    return {**_others(parts, *packed_parts), "weight": dequantized}


def _fp8(config: Mapping[str, Any], _prefix: str, parts: Parts) -> Parts:
    """A scale for each block of a weight."""
    if "weight_scale_inv" not in parts:
        return parts
    weight, scale = parts["weight"].float(), parts["weight_scale_inv"].float()
    for dimension, size in enumerate(config.get("weight_block_size") or (1, 1)):
        if scale.dim() == 2:
            scale = scale.repeat_interleave(size, dimension).narrow(dimension, 0, weight.shape[dimension])
    return {**_others(parts, "weight_scale_inv"), "weight": weight * scale}


_FORMATS: dict[str, Callable[[Mapping[str, Any], str, Parts], Parts]] = {
    "gptq": _gptq,
    "awq": _awq,
    "compressed-tensors": _compressed,
    "fp8": _fp8,
}


def _bits(bits: Any, prefix: str) -> int:
    if bits not in (2, 4, 8):
        raise SourceError(f"{prefix.removesuffix('.')}: weights of 2, 4 and 8 bits are read, and not of {bits}")
    return int(bits)


def _unpacked(words: Tensor, bits: int) -> Tensor:
    """Unsigned numbers of words of 32 bits, the lowest bits first: [rows, columns] to [rows, columns * 32 / bits]."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    return ((words[:, :, None] >> shifts) & (1 << bits) - 1).flatten(1)


def _others(parts: Parts, *names: str) -> dict[str, Tensor]:
    """What of a layer is no part of its packed weight, such as a bias; scales of activations have no use here."""
    unused = ("input_scale", "input_zero_point", "output_scale", "k_scale", "v_scale", "activation_scale")
    return {name: value for name, value in parts.items() if name not in {*names, *unused}}

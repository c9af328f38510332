"""Checkpoints of Llama in the sizes of published models, with random weights that are the same each time."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    import torch

SHARD = 2 * 10**9
"""Bytes of weights that a file has at most."""

INDEX = "model.safetensors.index.json"
_VALUES = 1 << 22  # drawn at once: the memory that writing takes does not depend on the tensor
_ADDING = ("o_proj.weight", "down_proj.weight")
TEXT = "the cat sat on the mat. the dog ran to the cat. a bird flew over the mat, and the dog sat on it. "


@dataclass(frozen=True)
class Geometry:
    """Sizes of a Llama, whose weights are in bfloat16."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    vocabulary: int
    tied: bool

    def config(self) -> Any:
        """The configuration of transformers."""
        from transformers import LlamaConfig

        return LlamaConfig(
            hidden_size=self.hidden,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            intermediate_size=self.intermediate,
            vocab_size=self.vocabulary,
            tie_word_embeddings=self.tied,
            max_position_embeddings=8192,
            rope_theta=500_000.0,
            bos_token_id=0,
            eos_token_id=1,
            architectures=["LlamaForCausalLM"],
            dtype="bfloat16",
        )

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the tensors of its checkpoint, by name."""
        import torch
        from transformers import LlamaForCausalLM

        with torch.device("meta"):
            state = LlamaForCausalLM(self.config()).state_dict()
        return {name: (*value.shape,) for name, value in state.items() if not (self.tied and name == "lm_head.weight")}

    @property
    def last_norm(self) -> float:
        """The weights of the last norm, with which tied embeddings do not say each token again for certain."""
        return 4 / self.hidden if self.tied else 1.0

    def with_layers(self, layers: int) -> Geometry:
        return replace(self, layers=layers)


CHECKPOINTS = {
    "llama-135m": Geometry(576, 30, 9, 3, 1536, 49152, tied=True),
    "llama-1b": Geometry(2048, 16, 32, 8, 8192, 128256, tied=True),
    "llama-8b-bf16": Geometry(4096, 32, 32, 8, 14336, 128256, tied=False),
}


def size_of_tensor(shape: tuple[int, ...]) -> int:
    """Bytes of a tensor in bfloat16."""
    return 2 * math.prod(shape)


def write_checkpoint(geometry: Geometry, folder: Path, shard: int = SHARD) -> Iterator[Path]:
    """Writes a folder in the hub's layout, streaming each file, and yields its files of weights; existing ones stay."""
    folder.mkdir(parents=True, exist_ok=True)
    geometry.config().save_pretrained(folder)
    _write_tokenizer(folder)
    shards: list[dict[str, tuple[int, ...]]] = [{}]
    for name, shape in geometry.shapes().items():
        if shards[-1] and sum(map(size_of_tensor, shards[-1].values())) + size_of_tensor(shape) > shard:
            shards.append({})
        shards[-1][name] = shape
    weight_map: dict[str, str] = {}
    for number, shapes in enumerate(shards, 1):
        file = folder / f"model-{number:05}-of-{len(shards):05}.safetensors"
        weight_map |= dict.fromkeys(shapes, file.name)
        if not file.exists():
            with (part := file.with_suffix(".part")).open("wb") as output:
                _write_shard(output, shapes, {"model.norm.weight": geometry.last_norm})
            part.replace(file)
        yield file
    total = sum(size_of_tensor(shape) for shapes in shards for shape in shapes.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / INDEX).write_text(json.dumps(index, indent=1), encoding="utf-8")


def _write_shard(output: BinaryIO, shapes: dict[str, tuple[int, ...]], norms: dict[str, float]) -> None:
    """Writes tensors as https://github.com/huggingface/safetensors#format says; norms are ones unless named."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + size_of_tensor(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    output.write(len(encoded).to_bytes(8, "little") + encoded)
    for name, shape in shapes.items():
        output.writelines(values.numpy().data for values in _values(name, shape, norms.get(name, 1.0)))


def _values(name: str, shape: tuple[int, ...], norm: float) -> Iterator[torch.Tensor]:
    """The bits of a tensor's values, some at a time: `norm` for those of a norm, else normal ones.

    What layers add to the embeddings is small, as in a trained model: otherwise rounding decides what they compute.
    """
    import torch

    deviation = 1.0 if "embed_tokens" in name else 0.0025 if name.endswith(_ADDING) else 0.02
    generator = torch.Generator().manual_seed(int.from_bytes(sha256(name.encode()).digest()[:7], "little"))
    for first in range(0, math.prod(shape), _VALUES):
        count = min(_VALUES, math.prod(shape) - first)
        made = torch.full([count], norm) if len(shape) == 1 else torch.randn(count, generator=generator) * deviation
        yield made.to(torch.bfloat16).view(torch.int16)


def _write_tokenizer(folder: Path) -> None:
    """Trains a tokenizer of few tokens on a sentence."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer, trained.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    trained.train_from_iterator([TEXT], trainers.BpeTrainer(vocab_size=80, special_tokens=["<s>", "</s>"]))
    special = {"bos_token": "<s>", "eos_token": "</s>"}
    PreTrainedTokenizerFast(tokenizer_object=trained, **special).save_pretrained(folder)

"""Adapters in PEFT's layout: merged into the weights of their models, or apart from them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from peft import PeftConfig, get_peft_model
from peft.tuners.lora import Linear
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils import AuxiliaryTrainingWrapper, load_peft_weights
from transformers import AutoTokenizer, PretrainedConfig

from ...configs.sources import is_folder
from ...errors import SourceError, first_line

_HEAD = re.compile(r"\.(classifier|score|qa_outputs)(\.out_proj)?\.weight$")

# of one tensor in torch's message about a state dict
_SIZES = re.compile(
    r"size mismatch for (\S+): copying a param with shape torch\.Size\((.*?)\) from checkpoint, "
    r"the shape in current model is torch\.Size\((.*?)\)"
)
_BATCHED = 3  # dimensions of the operands of `bmm`


def adapter_folder(adapter: Mapping[str, str]) -> Path:
    """The folder of an adapter's `name` and, of a repository in the hub's cache, `revision`."""
    name = adapter["name"]
    return Path(
        name if is_folder(name) else snapshot_download(name, revision=adapter["revision"], local_files_only=True)
    )


def size_head(config: PretrainedConfig, folder: Path) -> None:
    """Gives a classifier as many labels as the head that the adapter replaces it with."""
    heads = [weight for name, weight in load_peft_weights(str(folder), device="cpu").items() if _HEAD.search(name)]
    if heads and heads[-1].shape[0] != config.num_labels:
        config.num_labels = heads[-1].shape[0]


def with_adapter(model: Any, folder: Path, *, merge: bool) -> Any:
    """The model with the adapter merged into its weights or apart; SourceError if it is for another model."""
    name = f"the adapter in {folder}"
    adapter = PeftConfig.from_pretrained(str(folder))
    base = adapter.base_model_name_or_path
    made_for = f"; it was made for {base}" if base else ""
    if adapter.is_prompt_learning:
        raise SourceError(f"{name} is {adapter.peft_type.value}, which is no change of weights, and cannot be merged")
    try:
        _resize_embeddings(model, folder)
        adapted = get_peft_model(model, adapter)
        loaded = adapted.load_adapter(str(folder), "default")
        wrong = [*loaded.unexpected_keys, *loaded.missing_keys]
        if not wrong:
            return adapted.merge_and_unload(safe_merge=True) if merge else _apart(adapted, adapter, name)
        problem = f"{len(wrong)} tensors have no counterpart, such as {wrong[0]}"
    except (ValueError, RuntimeError, AttributeError, KeyError) as error:
        sizes = _SIZES.search(str(error))
        problem = "{} is {} in the adapter, and {} in the model".format(*sizes.groups()) if sizes else first_line(error)
    raise SourceError(f"{name} does not fit this {model.config.model_type!r}{made_for}: {problem}")


def _resize_embeddings(model: Any, folder: Path) -> None:
    """Makes space for tokens that were added to the tokenizer next to the adapter, as PEFT's auto classes do."""
    if (folder / "tokenizer_config.json").is_file():
        tokens = len(AutoTokenizer.from_pretrained(folder))
        if tokens > model.get_input_embeddings().weight.shape[0]:
            model.resize_token_embeddings(tokens)


class LoraLayer(torch.nn.Module):
    """A linear layer and a LoRA of rank r, whose weights are inputs of delegates.

    XNNPACK takes weights of `linear` into the delegate, one program per adapter; operands of `bmm` are inputs.
    """

    def __init__(self, base: torch.nn.Module, down: torch.Tensor, up: torch.Tensor) -> None:
        """Takes weights as PEFT has them, [r, inputs] and, scaled, [outputs, r]."""
        super().__init__()
        self.base = base
        self.register_buffer("lora_A", down.detach().T.contiguous()[None])
        self.register_buffer("lora_B", up.detach().T.contiguous()[None])

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Computes [..., outputs] of [..., inputs]."""
        flat = values.dim() == _BATCHED and values.shape[0] == 1
        rows = values if flat else values.reshape(1, -1, values.shape[-1])
        added = torch.bmm(torch.bmm(rows, self.get_buffer("lora_A")), self.get_buffer("lora_B"))
        output: torch.Tensor = self.base(values)
        return output + (added if flat else added.reshape(output.shape))


def _apart(adapted: Any, adapter: PeftConfig, name: str) -> Any:
    """The model with layers whose adapter is apart; SourceError if the adapter changes more than linear layers."""
    model = adapted.base_model.model
    kinds = (BaseTunerLayer, AuxiliaryTrainingWrapper)
    layers = [(path, layer) for path, layer in model.named_modules() if isinstance(layer, kinds)]
    for path, layer in layers:
        if type(layer) is not Linear or layer.lora_variant or layer.lora_bias["default"] or adapter.bias != "none":
            raise SourceError(f"{name} changes more than weights of linear layers ({path}): leave `merge: false` out")
        down, up = layer.lora_A["default"].weight, layer.lora_B["default"].weight * layer.scaling["default"]
        model.set_submodule(path, LoraLayer(layer.get_base_layer(), down, up))
    return model

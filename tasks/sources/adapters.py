"""Adapters in PEFT's layout, merged into the weights of their models."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from peft import PeftConfig, get_peft_model
from peft.utils import load_peft_weights
from transformers import AutoTokenizer, PretrainedConfig

from ...configs.sources import is_folder
from ...errors import SourceError

_HEAD = re.compile(r"\.(classifier|score|qa_outputs)(\.out_proj)?\.weight$")

_LONGEST = 300  # characters of what PEFT says


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


def merge_adapter(model: Any, folder: Path) -> Any:
    """The model with the adapter in its weights, as PEFT merges it; SourceError if it is for another model."""
    name = f"the adapter in {folder}"
    adapter = PeftConfig.from_pretrained(str(folder))
    made_for = f"it was made for {adapter.base_model_name_or_path}"
    if adapter.is_prompt_learning:
        raise SourceError(f"{name} is {adapter.peft_type.value}, which is no change of weights, and cannot be merged")
    try:
        _resize_embeddings(model, folder)
        adapted = get_peft_model(model, adapter)
        loaded = adapted.load_adapter(str(folder), "default")
        wrong = [*loaded.unexpected_keys, *loaded.missing_keys]
        if not wrong:
            return adapted.merge_and_unload(safe_merge=True)
        problem = f"{len(wrong)} tensors have no counterpart, such as {wrong[0]}"
    except (ValueError, RuntimeError, AttributeError, KeyError) as error:
        problem = " ".join(str(error).split())[:_LONGEST]
    raise SourceError(f"{name} does not fit this {model.config.model_type!r}; {made_for}: {problem}")


def _resize_embeddings(model: Any, folder: Path) -> None:
    """Makes space for tokens that were added to the tokenizer next to the adapter, as PEFT's auto classes do."""
    if (folder / "tokenizer_config.json").is_file():
        tokens = len(AutoTokenizer.from_pretrained(folder))
        if tokens > model.get_input_embeddings().weight.shape[0]:
            model.resize_token_embeddings(tokens)

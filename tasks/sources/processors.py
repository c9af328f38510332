"""Tokenizers and processors of models of transformers: their files, and what these say."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ...formats.media import TOKENIZERS
from ..upstream.torch_export import import_torchvision

import_torchvision()
from transformers import AutoFeatureExtractor, AutoImageProcessor, AutoTokenizer, PretrainedConfig
from transformers.utils import cached_file


def find_file(repo: Mapping[str, Any], name: str) -> Path | None:
    # transformers' own processors pass these arguments to learn whether there is a file (transformers 5.23).
    path = cached_file(
        repo["pretrained_model_name_or_path"],
        name,
        revision=repo["revision"],
        local_files_only=True,
        _raise_exceptions_for_gated_repo=False,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    return Path(path) if path else None


NO_PROCESSOR = (OSError, ValueError, KeyError, ImportError)
"""What `from_pretrained` raises for a model that has no tokenizer, image processor or feature extractor."""


def load_processor(kind: Any, repo: Mapping[str, Any]) -> Any:
    """The model's processor of a kind, such as `AutoTokenizer`; None where it has none."""
    with contextlib.suppress(*NO_PROCESSOR):
        return kind.from_pretrained(**repo)
    return None


def tokenizer_metadata(repo: Mapping[str, Any], config: PretrainedConfig) -> dict[str, Any]:
    """The algorithm and the template of the model's tokenizer, and the tokens that its configuration names."""
    text = config.get_text_config(decoder=True)
    ends = getattr(text, "eos_token_id", None)
    metadata = {
        "vocab_size": getattr(text, "vocab_size", None),
        "bos_token_id": getattr(text, "bos_token_id", None),
        "eos_token_ids": ends if isinstance(ends, list) or ends is None else [ends],
    }
    tokenizer = load_processor(AutoTokenizer, repo)
    if tokenizer is not None:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        metadata["model"] = type(backend.model).__name__ if backend else None
        metadata["chat_template"] = tokenizer.chat_template if isinstance(tokenizer.chat_template, str) else None
    return {key: value for key, value in metadata.items() if value is not None}


def image_preprocessing(repo: Mapping[str, Any]) -> dict[str, Any]:
    """What the model's image processor does; nothing where it has none."""
    processor = load_processor(AutoImageProcessor, repo)
    if processor is None:
        return {}
    metadata: dict[str, Any] = {"channels": "RGB"}
    crop, size = getattr(processor, "crop_size", None) or {}, getattr(processor, "size", None) or {}
    cropped = getattr(processor, "do_center_crop", False) and "height" in crop
    final = crop if cropped else size
    if "height" in final:
        metadata["size"] = [final["height"], final["width"]]
    if cropped and "shortest_edge" in size:
        metadata["resize"] = size["shortest_edge"]
    if getattr(processor, "do_resize", False) and (resample := getattr(processor, "resample", None)) is not None:
        metadata["interpolation"] = _RESAMPLING.get(int(resample))
    if getattr(processor, "do_rescale", False):
        metadata["rescale"] = processor.rescale_factor
    if getattr(processor, "do_normalize", False):
        metadata |= {"mean": list(processor.image_mean), "std": list(processor.image_std)}
    return {key: value for key, value in metadata.items() if value is not None}


_RESAMPLING = dict(enumerate(("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")))
"""Names of PIL.Image.Resampling."""


def audio_metadata(repo: Mapping[str, Any]) -> dict[str, Any]:
    extractor = load_processor(AutoFeatureExtractor, repo)
    return {"sampling_rate": extractor.sampling_rate} if hasattr(extractor, "sampling_rate") else {}


JSON, SENTENCE_PIECE = "tokenizer.json", "tokenizer.model"
PROCESSORS = ("preprocessor_config.json", "processor_config.json")
VOCABULARIES = (
    *("tokenizer_config.json", "special_tokens_map.json", "normalizer.json", "spiece.model"),
    *("sentencepiece.bpe.model", "source.spm", "target.spm", "vocab.json"),
)
"""Tokenizers that are no `tokenizer.json`, as Marian's and those of recognizers by CTC."""

_SETTINGS = ("tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
"""The runner finds the ids of special tokens in the first two; apps make prompts with the third."""


def tokenizer_files(repo: Mapping[str, Any]) -> dict[str, bytes]:
    """Files by name; none if the model has no tokenizer.

    The runner (`load_tokenizer` in extension/llm/runner/llm_runner_helper.cpp) takes ``tokenizer.json`` if its model is
    BPE, and SentencePiece's ``tokenizer.model`` with any. Where there is neither, transformers converts its tokenizer.
    """
    files = files_of(repo, (JSON, SENTENCE_PIECE, *_SETTINGS))
    if JSON not in files and SENTENCE_PIECE not in files:
        converted = _convert(repo)
        return {**files, **converted} if JSON in converted else {}
    if JSON in files and _is_bpe(files[JSON]):
        files.pop(SENTENCE_PIECE, None)
    return files


def without_tokenizer(name: str, config: Mapping[str, Any] | None, assets: Iterable[str]) -> tuple[str, ...]:
    """A note if a model with weights of its own has none of the files of tokenizers among its assets."""
    if config is not None or {*TOKENIZERS, "tekken.json"} & {*assets}:
        return ()
    note = f"{name} has no tokenizer, so its files come without one: add {TOKENIZERS[0]} to the model, or name "
    return (note + "its folder where text is generated (`pteforge generate --tokenizer DIR`)",)


def assets_of(repo: Mapping[str, Any], names: Iterable[str]) -> dict[str, bytes]:
    return tokenizer_files(repo) | files_of(repo, names)


def files_of(repo: Mapping[str, Any], names: Iterable[str]) -> dict[str, bytes]:
    """The content of those files that the model's repository or folder has."""
    return {name: path.read_bytes() for name in names if (path := find_file(repo, name))}


def _is_bpe(content: bytes) -> bool:
    try:
        kind = json.loads(content)["model"].get("type", "BPE")
    except (ValueError, LookupError, TypeError, AttributeError):
        return False
    return bool(kind == "BPE")


def _convert(repo: Mapping[str, Any]) -> dict[str, bytes]:
    tokenizer = load_processor(AutoTokenizer, repo)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return {}
    if "gguf_file" not in repo:
        return {JSON: backend.to_str(pretty=True).encode()}
    with TemporaryDirectory() as folder:  # a GGUF file has special tokens and the template, too
        tokenizer.save_pretrained(folder)
        return files_of({**repo, "pretrained_model_name_or_path": folder}, (JSON, *_SETTINGS))

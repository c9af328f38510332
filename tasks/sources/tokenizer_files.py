"""The tokenizer of a language model as files that ExecuTorch's text runner reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer
from transformers.utils import cached_file

JSON, SENTENCE_PIECE = "tokenizer.json", "tokenizer.model"
_SETTINGS = ("tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
"""The runner finds the ids of special tokens in the first two; apps make prompts with the third."""


def tokenizer_files(place: Mapping[str, Any]) -> dict[str, bytes]:
    """Files by name; none if the model has no tokenizer.

    The runner (`load_tokenizer` in extension/llm/runner/llm_runner_helper.cpp) takes ``tokenizer.json`` if its model is
    BPE, and SentencePiece's ``tokenizer.model`` with any. Where there is neither, the first one is made from what
    transformers reads.
    """
    found = {name: path.read_bytes() for name in (JSON, SENTENCE_PIECE, *_SETTINGS) if (path := _find(place, name))}
    if JSON not in found and SENTENCE_PIECE not in found:
        made = _convert(place)
        return {**found, JSON: made} if made else {}
    if JSON in found and _is_bpe(found[JSON]):
        found.pop(SENTENCE_PIECE, None)
    return found


def _find(place: Mapping[str, Any], name: str) -> Path | None:
    # transformers' own processors pass these arguments to learn whether there is a file (transformers 5.23).
    found = cached_file(
        place["pretrained_model_name_or_path"],
        name,
        revision=place["revision"],
        local_files_only=True,
        _raise_exceptions_for_gated_repo=False,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    return Path(found) if found else None


def _is_bpe(content: bytes) -> bool:
    try:
        kind = json.loads(content)["model"].get("type", "BPE")
    except (ValueError, LookupError, TypeError, AttributeError):
        return False
    return bool(kind == "BPE")


def _convert(place: Mapping[str, Any]) -> bytes | None:
    try:
        tokenizer = AutoTokenizer.from_pretrained(**place)
    except (OSError, ValueError, KeyError, ImportError):
        return None
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return backend.to_str(pretty=True).encode() if backend is not None else None

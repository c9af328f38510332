"""Models that generate text from a text with sounds in it: questions about speech, transcription, translation.

Their files have the methods that ExecuTorch's `MultimodalRunner` calls (extension/llm/runner/multimodal_prefiller.cpp):
`audio_encoder`, `token_embedding` and `text_decoder`. A sound longer than `audio_encoder` takes is several in a row.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Mapping
from importlib.util import find_spec
from types import MethodType
from typing import Any

import torch
from transformers import AutoFeatureExtractor, PretrainedConfig

from ...configs.model import ModelDefinition
from ...errors import SourceError
from .huggingface import SAMPLING_RATE, Options, accepted, parts_of, tone
from .multimodal import Encoder, Example, Inputs, Modality, generating
from .processors import NO_PROCESSOR, audio_metadata

AUDIO = Modality("audio_encoder", "get_audio_features", "audio_token_id", "a sound")

_SECONDS = 30  # of a sound at once, unless the model has another length
_FRAMES = 1500  # of that many seconds, unless the configuration or a feature extractor names a number
_TOKENIZERS = ("tekken.json",)  # Mistral's, which ExecuTorch's runner also takes

_MASKS = {"get_audio_features": "input_features_mask", "forward": "feature_attention_mask"}
"""Inputs that say which frames are of the sound, by the method that takes them."""


def model(name: str, **fields: Any) -> ModelDefinition:
    """A model whose methods are `audio_encoder`, `token_embedding` and `text_decoder`; `fields` as in `Options`."""
    options = Options(name, **fields)
    loaded, configuration = options.load()
    if options.config is None and getattr(configuration, "has_lora_adapter", False) and find_spec("peft") is None:
        raise SourceError(f"{name} has a LoRA adapter for sounds; run: pip install 'pteforge[lora]'")
    if not hasattr(loaded, AUDIO.accessor):
        tower, projector = (getattr(loaded.model, part, None) for part in ("audio_tower", "multi_modal_projector"))
        if tower is None or projector is None:
            raise SourceError(f"{configuration.model_type!r} has no `{AUDIO.accessor}`: its audio encoder is not known")
        loaded.get_audio_features = MethodType(_features_of_tower, loaded)
    example = _example(loaded, options.repo, configuration, options.audio_frames)
    return generating(loaded, options, {AUDIO: example}, _TOKENIZERS)


def _features_of_tower(loaded: Any, input_features: torch.Tensor) -> torch.Tensor:
    """Computes embeddings as Qwen2-Audio does for sounds that fill its window."""
    states = loaded.model.audio_tower(input_features).last_hidden_state
    return loaded.model.multi_modal_projector(states)


def _example(loaded: Any, repo: Mapping[str, Any], config: PretrainedConfig, frames: int | None) -> Example:
    """A prepared sound of one window, or random values: [1, mel bins, frames], in some models [1, frames, mel bins]."""
    part = next((part for part in parts_of(config) if hasattr(part, "num_mel_bins")), None)
    if part is None:
        raise SourceError(f"{config.model_type!r} encodes no mel spectrograms, which ExecuTorch's runner passes")
    features = _extracted(repo)
    if features is None:
        positions = getattr(part, "max_source_positions", getattr(part, "max_position_embeddings", _FRAMES // 2))
        features = torch.randn(1, part.num_mel_bins, 2 * positions)
        with torch.no_grad(), contextlib.suppress(RuntimeError, ValueError):
            Encoder(loaded, AUDIO.accessor, _inputs(loaded, 2 * positions))(features.mT)
            features = features.mT.contiguous()
    axis = 2 if features.shape[1] == part.num_mel_bins else 1
    if frames is not None:
        times = -(-frames // features.shape[axis])
        features = torch.cat([features] * times, axis).narrow(axis, 0, frames).contiguous()
    return Example(features, _inputs(loaded, features.shape[axis]), {"audio": audio_metadata(repo)})


def _extracted(repo: Mapping[str, Any]) -> torch.Tensor | None:
    with contextlib.suppress(*NO_PROCESSOR):
        extractor = AutoFeatureExtractor.from_pretrained(**repo)
        options = accepted(extractor.__call__, {"sampling_rate": SAMPLING_RATE, "return_tensors": "pt"})
        return torch.as_tensor(extractor(tone(_SECONDS).numpy(), **options)["input_features"])[:1]
    return None


def _inputs(loaded: Any, frames: int) -> Inputs:
    """What the model takes next to the features: masks of a sound that has all frames."""
    masks = {
        name: torch.ones(1, frames, dtype=torch.int64)
        for method, name in _MASKS.items()
        if name in inspect.signature(getattr(loaded, method)).parameters
    }
    return Inputs("input_features", others=masks)

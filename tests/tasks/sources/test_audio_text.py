"""Models that generate text from sounds and text by name: the logits of a prompt in parts are those of the whole."""

import pytest
import torch
from pteforge.errors import SourceError
from pteforge.tasks.sources.audio_text import model
from pteforge.tests.zoo.networks import GRANITE_ENCODER

LAYERS = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
TEXT = {**LAYERS, "intermediate_size": 48, "vocab_size": 60, "num_key_value_heads": 2, "initializer_range": 0.4}
SOUND = {**LAYERS, "intermediate_size": 64, "num_mel_bins": 16, "initializer_range": 0.4}
WINDOW = {**SOUND, "max_source_positions": 32}


def hearing(text: str, **audio: object) -> dict:
    return {"audio_config": audio, "text_config": {"model_type": text, **TEXT}, "audio_token_id": 2}


QWEN = {"d_model": 32, "encoder_layers": 1, "encoder_attention_heads": 4, "encoder_ffn_dim": 64, "num_mel_bins": 16}
ARCHITECTURES = {
    "voxtral": (hearing("llama", **WINDOW), {}, (1, 16, 64), 16),
    "granite_speech": (
        {
            "text_config": {"model_type": "granite", **TEXT},
            "encoder_config": GRANITE_ENCODER,
            "projector_config": {
                "model_type": "blip_2_qformer",
                "encoder_hidden_size": 32,
                "intermediate_size": 64,
                **LAYERS,
            },
            "audio_token_index": 60,  # after the vocabulary
            "has_lora_adapter": False,
        },
        {"audio_frames": 50},
        (1, 50, 16),
        12,
    ),
    "qwen2_audio": (
        {**hearing("qwen2", model_type="qwen2_audio_encoder", max_source_positions=32, **QWEN)},
        {},
        (1, 16, 64),
        16,
    ),
    "audioflamingo3": (hearing("qwen2", model_type="audioflamingo3_encoder", **WINDOW), {}, (1, 16, 64), 16),
    "glmasr": (
        hearing("llama", model_type="glmasr_encoder", **{**SOUND, "intermediate_size": 128}),
        {"audio_frames": 40},
        (1, 16, 40),
        5,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_architectures(kind):
    """The builder compares logits; each layout of features has its frames, and a sound becomes the model's tokens."""
    config, fields, shape, tokens = ARCHITECTURES[kind]
    torch.manual_seed(0)
    definition = model(kind, task="audio-text-to-text", config=config, sequence=64, **fields)
    encoder = definition.methods["audio_encoder"]
    assert encoder.example_inputs[0][0].shape == shape
    with torch.no_grad():
        assert encoder.module(torch.randn(shape)).shape == (1, tokens, 32)
    assert definition.constant_methods["audio_token_id"] == (60 if kind == "granite_speech" else 2)


@pytest.mark.slow
def test_an_adapter_for_sounds(tmp_path, monkeypatch):
    """Granite Speech computes something else without it, so peft is asked for."""
    config, fields, _, _ = ARCHITECTURES["granite_speech"]
    made = model("granite_speech", task="audio-text-to-text", config=config, sequence=64, **fields)
    net = made.methods["audio_encoder"].module.model
    net.config.has_lora_adapter = True
    net.save_pretrained(tmp_path)
    monkeypatch.setattr(f"{model.__module__}.find_spec", lambda _: None)
    with pytest.raises(SourceError, match=r"pip install 'pteforge\[lora\]'"):
        model(str(tmp_path), **fields)


@pytest.mark.parametrize(
    ("kind", "config", "fields", "problem"),
    [
        ("voxtral", hearing("llama", **WINDOW), {"audio_frames": 50}, "does not encode a sound by itself"),
        ("voxtral", hearing("llama", **WINDOW), {"sequence": 20}, "a sound has 16 tokens, and the context 20"),
    ],
)
def test_sounds_that_do_not_fit(kind, config, fields, problem):
    """Frames that the model's window does not have, and more tokens than the context."""
    with pytest.raises(SourceError, match=problem):
        model(kind, task="audio-text-to-text", config=config, **fields)

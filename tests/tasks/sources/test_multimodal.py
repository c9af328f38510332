"""Models of images and text by name: in parts, with a cache of static size, they compute what `generate` does."""

import inspect

import pytest
import torch
from pteforge.errors import SourceError
from pteforge.tasks.sources import huggingface
from pteforge.tasks.sources.huggingface import load_model
from pteforge.tasks.sources.multimodal import model

CONTEXT, IMAGE = 96, 99  # tokens of the context, and the one that stands for a part of an image
TEXT = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 100,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
VISION = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
}
PATCHES = {
    "depth": 2,
    "num_heads": 2,
    "hidden_size": 32,
    "out_hidden_size": 32,
    "intermediate_size": 64,
    "patch_size": 8,
    "spatial_merge_size": 2,
}
ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}}
WINDOWS = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}


def sizes(text: str, vision: dict, own: dict | None = None, **fields):
    """A configuration of an architecture."""
    return {
        "text_config": {"model_type": text, **TEXT, **(own or {})},
        "vision_config": vision,
        "image_token_id": IMAGE,
        **fields,
    }


CLIP, SIGLIP = {"model_type": "clip_vision_model", **VISION}, {"model_type": "siglip_vision_model", **VISION}
PIXTRAL = {"model_type": "pixtral", **VISION, "head_dim": 8}
QWEN2 = {**PATCHES, "embed_dim": 32}
WINDOWED = {**PATCHES, "window_size": 32, "fullatt_block_indexes": [1]}
RESAMPLED = {"resampler_n_latents": 4, "resampler_depth": 1, "resampler_n_heads": 2, "resampler_head_dim": 16}
SAM = {"output_channels": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 64, "patch_size": 4}
ARCHITECTURES = {
    "llava": sizes("llama", CLIP),
    "smolvlm": sizes("llama", {"model_type": "smolvlm_vision", **VISION}, scale_factor=2),
    "gemma3": sizes("gemma3_text", SIGLIP, WINDOWS, mm_tokens_per_image=4),
    "qwen2_vl": sizes("qwen2_vl_text", {"model_type": "qwen2_vl", **QWEN2}, ROPE),
    "idefics3": sizes("llama", {"model_type": "idefics3_vision", **VISION}, scale_factor=2),
    "idefics2": sizes(
        "mistral",
        {"model_type": "idefics2_vision", **VISION},
        perceiver_config={**RESAMPLED, "num_key_value_heads": 1, "hidden_size": 32},
    ),
    "qwen2_5_vl": sizes("qwen2_5_vl_text", {"model_type": "qwen2_5_vl", **WINDOWED}, ROPE),
    "glm4v": sizes("glm4v_text", {"model_type": "glm4v", **PATCHES, "image_size": 32}, ROPE),
    "internvl": sizes(
        "qwen2", {"model_type": "internvl_vision", **VISION, "image_size": [32, 32], "patch_size": [8, 8]}
    ),
    "aya_vision": sizes("cohere2", SIGLIP, {"sliding_window": 8}),
    "cohere2_vision": sizes("cohere2", SIGLIP, {"sliding_window": 8}),
    "mistral3": sizes("mistral", PIXTRAL, spatial_merge_size=2),
    "lighton_ocr": sizes("qwen3", PIXTRAL, spatial_merge_size=2),
    "vipllava": sizes("llama", CLIP, vision_feature_layers=[-2, -1]),
    "got_ocr2": sizes("qwen2", {"hidden_size": 32, "mlp_dim": 64, "window_size": 4, "global_attn_indexes": [1], **SAM}),
}
SIZED = {"qwen2_vl", "qwen2_5_vl", "glm4v", "mistral3", "lighton_ocr"}
"""Architectures that take images of any size."""


def made(kind: str, config: dict | None = None, **fields):
    """The definition of a small model with random weights."""
    torch.manual_seed(0)
    size = [32, 64] if kind in SIZED else None
    options = {"sequence": CONTEXT, "image_size": size, **fields}
    return model(kind, task="image-text-to-text", config=config or ARCHITECTURES[kind], **options)


@pytest.fixture(autouse=True)
def varied(monkeypatch):
    """Large random weights: tokens and images make a difference then."""

    def load(*arguments, **options):
        net, config = load_model(*arguments, **options)
        for name, values in net.named_parameters():
            if values.dim() > 1:
                torch.nn.init.normal_(values, std=0.03 if "embed_tokens" in name else 0.3)
        return net, config

    monkeypatch.setattr(huggingface, "load_model", load)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def in_parts(definition, parts, count: int) -> list[int]:
    """The likeliest tokens after texts and images, as ExecuTorch's runner asks for them."""
    modules = {name: method.module for name, method in definition.methods.items()}
    modules["text_decoder"].clear()
    said, start = [], 0
    with torch.no_grad():
        while len(said) < count:
            for part in parts:
                rows = modules["vision_encoder" if part.is_floating_point() else "token_embedding"](part)
                logits = modules["text_decoder"](rows, torch.tensor([start]))
                start += rows.shape[1]
            said.append(int(logits.argmax()))
            parts = [torch.tensor([said[-1:]])]
    return said


def by_eager(definition, before, image, after, count: int) -> list[int]:
    """The tokens that `generate` takes after a text, an image and a text."""
    encoder = definition.methods["vision_encoder"].module
    net, rows = encoder.model, encoder(image).shape[1]
    ids = torch.cat([before, torch.full((1, rows), IMAGE), after], dim=1)
    given = {**encoder.inputs.of(image), "input_ids": ids, "attention_mask": torch.ones_like(ids)}
    for name in {"token_type_ids", "mm_token_type_ids"} & inspect.signature(net.forward).parameters.keys():
        given[name] = (ids == IMAGE).long()
    tokens = net.generate(**given, max_new_tokens=count, do_sample=False, eos_token_id=-1)
    return tokens[0, ids.shape[1] :].tolist()


@pytest.mark.parametrize(
    "kind", [kind if at < 4 else pytest.param(kind, marks=pytest.mark.slow) for at, kind in enumerate(ARCHITECTURES)]
)
def test_architectures(kind):
    """Two images and texts of several lengths: the tokens are those of `generate`, and depend on the image."""
    definition = made(kind)
    (example,) = definition.methods["vision_encoder"].example_inputs[0]
    said = []
    for image in example, torch.rand_like(example) * 2 - 1:
        for lengths in (1, 1), (9, 4):
            before, after = (torch.arange(length)[None] + 5 for length in lengths)
            said.append(in_parts(definition, [before, image, after], 20))
            assert said[-1] == by_eager(definition, before, image, after, 20)
    assert said[0] != said[2]
    assert said[1] != said[3]
    assert len({*said[1]}) > 1
    constants = definition.constant_methods
    assert (constants["get_max_context_len"], constants["image_token_id"]) == (CONTEXT, IMAGE)
    assert definition.metadata["image"]["size"] == tuple(example.shape[2:])


@pytest.mark.slow
@pytest.mark.parametrize("cache", [None, "int8"])
@pytest.mark.parametrize("kind", ["llava", "gemma3", "qwen2_vl"])
def test_attention_of_executorch(kind, cache):
    """ExecuTorch's operators compute the logits of torch's: all but equal, and close with a cache in int8."""
    plain, own = made(kind), made(kind, attention="custom_sdpa", cache=cache)
    assert own.constant_methods["use_sdpa_with_kv_cache"]
    for calls in plain.sequences:
        for call in calls:
            wanted, found = (kept.methods[call.method].module(*call.inputs) for kept in (plain, own))
            assert (found - wanted).abs().max() / wanted.abs().max() < (0.1 if cache else 1e-5)


PINPOINTS = {"image_grid_pinpoints": [[32, 64], [64, 32], [64, 64]]}
DEEP = {**PATCHES, "num_position_embeddings": 16, "deepstack_visual_indexes": [0]}


@pytest.mark.parametrize(
    ("kind", "config", "fields", "problem"),
    [
        ("paligemma", sizes("gemma", SIGLIP, projection_dim=32), {}, "its images see the text after them"),
        (
            "qwen3_vl",
            sizes("qwen3_vl_text", {"model_type": "qwen3_vl", **DEEP}, ROPE),
            {"image_size": 32},
            "images enter more layers than the first",
        ),
        ("llava_onevision", sizes("qwen2", SIGLIP, **PINPOINTS), {}, "makes more of an image of 32 x 32 than patches"),
        ("llava", ARCHITECTURES["llava"], {"sequence": 20}, "an image has 16 tokens, and the context 20"),
        ("llava", ARCHITECTURES["llava"], {"image_size": [32, 48]}, "does not encode an image by itself"),
        ("llava", ARCHITECTURES["llava"], {"batch": 2}, "leave `batch` and `outputs` out"),
    ],
)
def test_what_the_runner_cannot_use(kind, config, fields, problem):
    """Models that mix an image with what is around it, or take more than an image; and fields that do not fit."""
    with pytest.raises(SourceError, match=problem):
        made(kind, config, **fields)

"""Models with an encoder and a decoder by name: encoded once, token by token, they generate what `generate` does."""

import json

import pytest
import torch
from pteforge.errors import SourceError
from pteforge.tasks.sources.encoder_decoder import model
from pteforge.tasks.sources.huggingface import Model

CONTEXT = 80
BART = {
    "vocab_size": 60,
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "pad_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "init_std": 1.0,
}
TEXT = {**BART, "max_position_embeddings": CONTEXT}
T5 = {
    "vocab_size": 60,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 4,
    "initializer_factor": 4.0,
}
WHISPER = {
    **BART,
    "bos_token_id": 0,
    "init_std": 0.4,
    "max_source_positions": 50,
    "max_target_positions": CONTEXT,
    "num_mel_bins": 8,
    "begin_suppress_tokens": [],
}
MOONSHINE = {
    "vocab_size": 60,
    "hidden_size": 32,
    "intermediate_size": 48,
    "encoder_num_hidden_layers": 1,
    "decoder_num_hidden_layers": 2,
    **{f"{part}_num_{what}_heads": 4 for part in ("encoder", "decoder") for what in ("attention", "key_value")},
    "max_position_embeddings": CONTEXT,
    "initializer_range": 0.3,
}
ARCHITECTURES = {
    "t5": T5,
    "bart": TEXT,
    "marian": {**TEXT, "decoder_vocab_size": 60},
    "mbart": TEXT,
    "whisper": {**WHISPER, "suppress_tokens": [5, 6]},
    "moonshine": MOONSHINE,
}
GEMMA = {
    "vocab_size": 60,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "head_dim": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "sliding_window": 16,
    "initializer_range": 0.4,
}
FSMT = {"d_model", "encoder_layers", "decoder_layers", "encoder_ffn_dim", "decoder_ffn_dim", "init_std"}
MORE = {
    "mt5": T5,
    "umt5": T5,
    "longt5": T5,
    "m2m_100": TEXT,
    "pegasus": TEXT,
    "blenderbot": TEXT,
    "blenderbot-small": TEXT,
    "nllb-moe": {**TEXT, "num_experts": 4},
    "switch_transformers": {**T5, "num_experts": 4},
    "t5gemma": {"encoder": GEMMA, "decoder": GEMMA, "vocab_size": 60},
    "plbart": {name: value for name, value in TEXT.items() if name != "decoder_start_token_id"},
}


def made(kind: str, config: dict, **fields):
    torch.manual_seed(0)
    sounds = kind in ("whisper", "moonshine")
    task = "automatic-speech-recognition" if sounds else "text2text-generation"
    definition = model(kind, task=task, config=config, sequence=CONTEXT, **fields)
    settings = definition.methods["encoder"].module.model.generation_config
    settings.decoder_start_token_id, settings.forced_eos_token_id = start_of(definition), None
    return definition


def start_of(definition) -> int:
    return definition.constant_methods["decoder_start_token_id"]


def inputs_of(definition) -> list[torch.Tensor]:
    """Inputs of the encoder: of three lengths, where they vary."""
    (example,) = definition.methods["encoder"].example_inputs[0]
    if example.dtype is torch.int64:
        return [torch.randint(5, 60, (1, length)) for length in (1, 9, CONTEXT)]
    if example.dim() == 2:
        return [torch.randn(1, length) for length in (2000, 9000, 30000)]
    return [torch.randn_like(example)]


def greedy(definition, inputs, prompt: list[int], count: int) -> list[int]:
    """The likeliest tokens after a prompt, which is one call of the decoder."""
    encoder, decoder = (definition.methods[name].module for name in ("encoder", "text_decoder"))
    said, given, start = [], torch.tensor([prompt]), 0
    with torch.no_grad():
        encoded = encoder(inputs)
        for _ in range(count):
            said.append(int(decoder(given, encoded, torch.tensor([start])).argmax()))
            given, start = torch.tensor([said[-1:]]), start + given.shape[1]
    return said


def generated(definition, inputs, count: int) -> list[int]:
    net = definition.methods["encoder"].module.model
    settings = {"max_new_tokens": count, "eos_token_id": -1, "do_sample": False, "num_beams": 1}  # no token ends it
    return net.generate(inputs, **settings)[0].tolist()[-count:]


@pytest.mark.filterwarnings("ignore")  # of `generate`, about settings that these models lack
@pytest.mark.parametrize("kind", [*ARCHITECTURES, *(pytest.param(kind, marks=pytest.mark.nightly) for kind in MORE)])
def test_architectures(kind):
    """For inputs of several lengths, the tokens are those of `generate`; no utterance leaves anything behind."""
    definition = made(kind, {**ARCHITECTURES, **MORE}[kind])
    found = []
    for inputs in inputs_of(definition):
        found.append(greedy(definition, inputs, [start_of(definition)], 24))
        assert found[-1] == generated(definition, inputs, 24)
    assert max(len(set(tokens)) for tokens in found) > 1
    constants = [definition.constant_methods[f"get_{name}"] for name in ("vocab_size", "max_context_len", "n_layers")]
    assert constants == [60, CONTEXT, 2]
    (calls,) = definition.sequences
    assert [call.method for call in calls] == ["encoder", "text_decoder", "text_decoder", "text_decoder"]
    assert calls[1].inputs[0].shape[1] > 1


def test_suppressed_tokens():
    """Tokens that `generate` never takes are the least likely, so no runner takes them; others stay as they are."""
    plain, hidden = (made("whisper", {**WHISPER, "suppress_tokens": tokens}) for tokens in (None, [5, 6]))
    calls = [definition.methods["text_decoder"].example_inputs[0] for definition in (plain, hidden)]
    with torch.no_grad():
        wanted, found = (each.methods["text_decoder"].module(*calls[0]) for each in (plain, hidden))
    assert found[0, 5] == found[0, 6] == wanted.min()
    kept = [token for token in range(60) if token not in (5, 6)]
    torch.testing.assert_close(found[:, kept], wanted[:, kept])
    assert "suppressed" not in dict(plain.methods["text_decoder"].module.named_buffers())


def test_what_is_encoded():
    """`encoder` returns keys and values of each layer: all that `text_decoder` learns of the input."""
    definition = made("t5", {**T5, "num_decoder_layers": 3})
    ((ids, encoded, _), *_) = definition.methods["text_decoder"].example_inputs
    layers, heads = 3, 4
    assert encoded.shape == (2 * layers * heads, definition.methods["encoder"].example_inputs[0][0].shape[1], 8)
    decoder = definition.methods["text_decoder"].module
    first = decoder(ids, encoded, torch.tensor([0]))
    assert not torch.allclose(first, decoder(ids, 2 * encoded, torch.tensor([0])))
    torch.testing.assert_close(first, decoder(ids, encoded, torch.tensor([0])))


def test_files_next_to_the_file(tmp_path):
    """Settings of the feature extractor and of generation are delivered as they are, and so is a tokenizer in parts."""
    from transformers import MarianConfig, MarianMTModel

    MarianMTModel(MarianConfig(**ARCHITECTURES["marian"])).save_pretrained(tmp_path)
    for name in ("source.spm", "target.spm", "vocab.json", "preprocessor_config.json"):
        (tmp_path / name).write_text(json.dumps({"name": name}))
    assets = model(str(tmp_path)).assets
    assert assets.keys() == {
        "source.spm",
        "target.spm",
        "vocab.json",
        "preprocessor_config.json",
        "generation_config.json",
    }
    assert all(content == (tmp_path / name).read_bytes() for name, content in assets.items())


def test_models_without_a_decoder():
    """Speech recognition by CTC is one method, with a batch and names of outputs."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 48}
    config = {**sizes, "conv_dim": [32] * 7, "vocab_size": 40}
    found = model("wav2vec2", task="automatic-speech-recognition", config=config, batch=1, outputs=["logits"])
    assert isinstance(found, Model)
    assert found.get_example_inputs()[0].shape[0] == 1


@pytest.mark.parametrize(
    ("kind", "config", "fields", "problem"),
    [
        ("bart", TEXT, {"batch": 2}, "leave `batch` and `outputs` out"),
        ("mvp", TEXT, {}, "'mvp' cannot run with a cache of static size"),
        ("bart", {**TEXT, "max_position_embeddings": 4}, {}, "room for 4 tokens is too little"),
        ("fsmt", {"src_vocab_size": 60, "tgt_vocab_size": 60, **{k: TEXT[k] for k in TEXT if k in FSMT}}, {}, "'fsmt'"),
    ],
)
def test_what_is_refused(kind, config, fields, problem):
    """Fields of models with one method, too little room, and code that does not go by the cache."""
    with pytest.raises(SourceError, match=problem):
        made(kind, config, **fields)

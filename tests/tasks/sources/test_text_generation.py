"""Language models by name: with a cache of static size they compute what `generate` does, or are refused."""

import pytest
import torch
from pteforge.errors import SourceError
from pteforge.tasks.sources.text_generation import model

CONTEXT = 24
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 60,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": 0,
    "eos_token_id": 0,  # a token like any other, and not none
    "pad_token_id": 1,
}
WITHOUT_MLP = {name: size for name, size in SIZES.items() if name != "intermediate_size"}
GROUPED = {**SIZES, "num_key_value_heads": 2, "head_dim": 8}
WINDOW = 6
WINDOWS = {**GROUPED, "sliding_window": WINDOW}
MIXED = ["sliding_attention", "full_attention"]
OLD = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 60, "n_positions": CONTEXT}
LATENT = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 4,
    "v_head_dim": 8,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "moe_intermediate_size": 16,
}
ARCHITECTURES = {
    "llama": GROUPED,
    "llama, tied": {**GROUPED, "tie_word_embeddings": True},
    "mistral, windows in all layers": WINDOWS,
    "qwen2, windows in some": {**WINDOWS, "use_sliding_window": True, "max_window_layers": 1},
    "qwen3": GROUPED,
    "gemma": GROUPED,
    "gemma2": WINDOWS,
    "gemma3_text": {**WINDOWS, "layer_types": MIXED},
    "phi3, windows in all layers": WINDOWS,
    "cohere2": {**WINDOWS, "layer_types": MIXED},
    "exaone4": {**WINDOWS, "layer_types": MIXED},
    "gpt_oss, sinks of its own": {**WINDOWS, "layer_types": MIXED, "num_local_experts": 4, "num_experts_per_tok": 2},
    "smollm3": GROUPED,
    "phi": SIZES,
    "phi3": GROUPED,
    "gpt2": OLD,
    "opt": {**WITHOUT_MLP, "ffn_dim": 48, "word_embed_proj_dim": 32},
    "deepseek_v3, latent keys": {**SIZES, "num_key_value_heads": 4, **LATENT},
}


STATE = {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 60, "state_size": 8, "eos_token_id": 0}
HEADS = {"mamba_n_heads": 4, "mamba_d_state": 8}
DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"],
}
EXPERTS = {"num_experts": 2, "num_experts_per_tok": 1}
HYBRIDS = {
    "lfm2": {**{k: v for k, v in GROUPED.items() if k != "head_dim"}, "layer_types": ["conv", "full_attention"]},
    "mamba": STATE,
    "falcon_mamba": STATE,
    "mamba2": {**STATE, "num_heads": 4, "head_dim": 16, "n_groups": 2},
    "jamba": {**SIZES, "num_key_value_heads": 2, "attn_layer_period": 2, "attn_layer_offset": 1, **EXPERTS},
    "bamba": {**SIZES, "num_key_value_heads": 2, "attn_layer_indices": [1], **HEADS},
    "granitemoehybrid": {
        **SIZES,
        "num_key_value_heads": 2,
        "layer_types": ["mamba", "attention"],
        **HEADS,
        "num_local_experts": 2,
        "num_experts_per_tok": 1,
        "shared_intermediate_size": 32,
    },
    "falcon_h1": {**SIZES, "num_key_value_heads": 2, **HEADS, "mamba_d_head": 16, "mamba_d_ssm": 64},
    "zamba2": {
        **SIZES,
        "num_hidden_layers": 3,
        "num_key_value_heads": 4,
        "mamba_d_state": 8,
        "n_mamba_heads": 4,
        "mamba_headdim": 16,
        "layers_block_type": ["mamba", "hybrid", "mamba"],
        "num_mem_blocks": 1,
    },
    "nemotron_h": {
        **GROUPED,
        "num_hidden_layers": 3,
        "layers_block_type": ["mamba", "attention", "mlp"],
        "n_groups": 2,
        "mamba_num_heads": 4,
        "mamba_head_dim": 16,
        "ssm_state_size": 8,
    },
    "qwen3_next": {**GROUPED, **DELTA, **EXPERTS, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16},
    "qwen3_5_text": {**GROUPED, **DELTA},
}


def made(kind: str, sizes: dict, **fields):
    torch.manual_seed(0)
    return model(kind.partition(",")[0], task="text-generation", config=sizes, sequence=CONTEXT, **fields)


def greedy(cached, prompt: torch.Tensor, count: int) -> list[int]:
    """The likeliest tokens after a prompt."""
    cached.cache.clear()
    said, given, start = [], prompt, 0
    with torch.no_grad():
        for _ in range(count):
            for part in given.split(1, 1) if cached.cache.recurrent else (given,):
                logits = cached(part, torch.tensor([start]))
                start += part.shape[1]
            said.append(int(logits.argmax()))
            given = torch.tensor([said[-1:]])
    return said


@pytest.mark.parametrize("kind", HYBRIDS)
def test_other_state(kind):
    """States of convolutions and recurrent layers are kept; the tokens are eager's, also in a second text."""
    definition = made(kind, HYBRIDS[kind])
    cached, constants = definition.methods["forward"].module, definition.constant_methods
    assert cached.cache.recurrent == (constants["get_max_seq_len"] == 1) == (kind != "lfm2")
    for length in (9, 1):
        prompt, count = torch.randint(2, 60, (1, length)), 10
        options = {"max_new_tokens": count, "min_new_tokens": count, "do_sample": False, "eos_token_id": None}
        wanted = cached.model.generate(prompt, **options)[0, length:].tolist()
        assert greedy(cached, prompt, count) == wanted
        # what is left in the buffers is ignored at the start
        tokens = prompt if kind == "lfm2" else prompt[:, :1]
        with torch.no_grad():
            cleared, used = cached(tokens, torch.tensor([0])), cached(tokens, torch.tensor([0]))
        torch.testing.assert_close(cleared, used)
    assert constants["get_max_context_len"] == CONTEXT


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_architectures(kind):
    """From one token to a full context, the tokens are those of `generate`; the file says what the runner asks for."""
    definition = made(kind, ARCHITECTURES[kind])
    cached = definition.methods["forward"].module
    for length in (1, 9, CONTEXT - 1):
        prompt, count = torch.randint(2, 60, (1, length)), min(10, CONTEXT - length)
        options = {"max_new_tokens": count, "min_new_tokens": count, "do_sample": False, "eos_token_id": None}
        wanted = cached.model.generate(prompt, **options)[0, length:].tolist()
        assert greedy(cached, prompt, count) == wanted
        cached.cache.clear()
        with torch.no_grad():
            for start, part in ((0, prompt[:, :-1]), (length - 1, prompt[:, -1:])):
                logits = cached(part, torch.tensor([start])) if part.numel() else None
        assert int(logits.argmax()) == wanted[0]
    if "sliding_window" in ARCHITECTURES[kind]:
        assert WINDOW - 1 in {buffer.shape[2] for buffer in cached.cache.buffers()}
    constants = definition.constant_methods
    assert (constants["get_max_context_len"], constants["get_vocab_size"]) == (CONTEXT, 60)
    assert "n_embd" in ARCHITECTURES[kind] or constants["get_eos_ids"] == [0]
    assert definition.assets == {}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_16_bits(kind, dtype):
    """Weights and cache are in the dtype, the logits are not; they are close to those of the model without a cache."""
    cached = made(kind, ARCHITECTURES[kind], dtype=dtype).methods["forward"].module
    assert {value.dtype for value in (*cached.parameters(), *cached.cache.buffers())} == {getattr(torch, dtype)}
    prompt = torch.randint(2, 60, (1, 9))
    with torch.no_grad():
        found = cached(prompt, torch.tensor([0]))
        wanted = cached.model(prompt, use_cache=False).logits[:, -1]
    assert found.dtype is torch.float32
    torch.testing.assert_close(found, wanted.float(), rtol=0, atol=0.05 * float(wanted.abs().max()))


OWN = {"llama": GROUPED, "mistral, windows in all layers": WINDOWS, "gpt2": OLD}


@pytest.mark.slow
@pytest.mark.parametrize("cache", [None, "int8"])
@pytest.mark.parametrize("kind", OWN)
def test_attention_of_executorch(kind, cache):
    """ExecuTorch's operators compute the logits of torch's: all but equal, and close with a cache in int8."""
    plain, own = (made(kind, OWN[kind], **fields) for fields in ({}, {"attention": "custom_sdpa", "cache": cache}))
    assert own.constant_methods["use_sdpa_with_kv_cache"]
    prompt = torch.randint(2, 60, (1, 11))
    calls = [(prompt, torch.tensor([0])), (prompt[:, :1], torch.tensor([11])), (prompt[:, :5], torch.tensor([12]))]
    with torch.no_grad():
        for call in calls:
            wanted, found = (each.methods["forward"].module(*call) for each in (plain, own))
            error = (found - wanted).abs().max() / wanted.abs().max()
            assert error < (0.1 if cache else 1e-5)
    kept = own.methods["forward"].module.cache.get_buffer("keys_0")
    assert kept.dtype == (torch.int8 if cache else torch.float32)
    assert kept.any()


def streamed(net, prompt: torch.Tensor, count: int, sinks: int, window: int) -> list[int]:
    """The likeliest tokens after a prompt, from a pass over all tokens for each, which see the first and the last."""
    ids, index = prompt, torch.arange(prompt.shape[1] + count)
    places = torch.tensor([at if at < sinks else sinks + (at - sinks) % (2 * window) for at in index.tolist()])
    seen = (index <= index[:, None]) & ((index < sinks) | (index[:, None] - index < window))
    with torch.no_grad():
        for length in range(prompt.shape[1], len(index)):
            mask = seen[None, None, :length, :length]
            made = net(input_ids=ids, attention_mask=mask, position_ids=places[None, :length], use_cache=False)
            ids = torch.cat([ids, made.logits[:, -1:].argmax(-1)], dim=1)
    return ids[0, prompt.shape[1] :].tolist()


@pytest.mark.parametrize("attention", [None, pytest.param("custom_sdpa", marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_attention_sinks(kind, attention):
    """Beyond the context, the first tokens and the last ones are seen, wherever prompts and parts of them end."""
    definition = made(kind, {**GROUPED, "max_position_embeddings": 2 * CONTEXT}, sinks=4, attention=attention)
    cached, constants = definition.methods["forward"].module, definition.constant_methods
    net = made(kind, GROUPED).methods["forward"].module.model
    assert constants["get_max_seq_len"] == CONTEXT < constants["get_max_context_len"]
    assert CONTEXT - 1 in cached.cache.get_buffer("keys_0").shape
    for length in (1, 4, CONTEXT):
        prompt = torch.randint(2, 60, (1, length))
        assert greedy(cached, prompt, 3 * CONTEXT) == streamed(net, prompt, 3 * CONTEXT, 4, CONTEXT - 4)
    prompt, start = torch.randint(2, 60, (1, 3 * CONTEXT)), 0
    cached.cache.clear()
    for length in (2, 1, 3, CONTEXT, CONTEXT - 1, 19):
        with torch.no_grad():
            logits = cached(prompt[:, start : start + length], torch.tensor([start]))
        start += length
    assert int(logits.argmax()) == streamed(net, prompt[:, :start], 1, 4, CONTEXT - 4)[0]


def test_positions_of_sinks_stay_within_the_model():
    """They repeat every two windows, so a context is half of what the model was trained for."""
    cache = made("llama", GROUPED, sinks=4).methods["forward"].module.cache
    assert cache.context == 4 + (CONTEXT - 4) // 2
    assert cache.rotary_positions(torch.arange(200)).max() < CONTEXT


def test_prefill_and_decode():
    """Two methods of one module: a prompt of any length, and one token."""
    definition = made("llama", GROUPED, prefill=True)
    prefill, decode = (definition.methods[name] for name in ("prefill", "decode_step"))
    assert prefill.module is decode.module
    assert {tuple(tokens.shape) for tokens, _ in decode.example_inputs} == {(1, 1)}
    assert (prefill.dynamic_shapes is None, decode.dynamic_shapes) == (False, None)
    assert [call.method for call in definition.sequences[0]] == ["prefill", "decode_step", "decode_step"]


@pytest.mark.parametrize("most", [2, 4, CONTEXT, 99])
def test_calls_of_a_few_tokens(most):
    """Prompts come in calls of that many tokens, beyond the window, too; logits after all tokens are eager's."""
    definition = made("mistral", WINDOWS, tokens_per_call=most, logits="all")
    net, constants = definition.methods["forward"].module, definition.constant_methods
    assert (constants["get_max_seq_len"], constants["get_max_context_len"]) == (min(most, CONTEXT), CONTEXT)
    assert len(definition.sequences) == 2
    for sequence in definition.sequences:
        tokens = [call.inputs[0] for call in sequence]
        assert max(part.shape[1] for part in tokens) <= most
        with torch.no_grad():
            logits = [net(*call.inputs) for call in sequence]
            wanted = net.model(input_ids=torch.cat(tokens, 1)).logits
        torch.testing.assert_close(torch.cat(logits, 1), wanted, atol=1e-4, rtol=1e-4)


NEO = {
    "hidden_size": 32,
    "num_layers": 2,
    "num_heads": 4,
    "attention_types": [[["global", "local"], 1]],
    "window_size": 6,
}
RWKV = {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 60, "attention_hidden_size": 32}
UNEQUAL = {**SIZES, "num_key_value_heads": 4, **LATENT, "v_head_dim": 4}


@pytest.mark.parametrize(
    ("kind", "sizes", "fields", "problem"),
    [
        ("mamba", STATE, {"sinks": 4}, "'mamba' has no rotary position embeddings"),
        ("mamba2", HYBRIDS["mamba2"], {"prefill": True}, "layers of 'mamba2' take one token at a time"),
        ("mamba", STATE, {"tokens_per_call": 4}, "tokens_per_call: recurrent layers of 'mamba' take one token"),
        ("lfm2", HYBRIDS["lfm2"], {"sinks": 4}, "'lfm2' keep other state than keys and values; leave it out"),
        ("rwkv", RWKV, {}, "keeps no keys and values"),
        ("gpt_neo", NEO, {}, "'gpt_neo' computes other logits with a cache of static size"),
        ("gemma2", WINDOWS, {"attention": "custom_sdpa"}, "cannot do what Gemma2Attention asks for"),
        ("deepseek_v3", UNEQUAL, {"attention": "custom_sdpa"}, "needs keys and values of one shape"),
        ("llama", {**GROUPED, "max_position_embeddings": 3}, {}, "a context of 3 tokens is too short"),
        ("llama", GROUPED, {"sinks": 22}, "a context of 23 tokens is too short: let `sequence` be 26 or more"),
        ("gpt2", OLD, {"sinks": 4}, "'gpt2' has no rotary position embeddings"),
        ("mistral", WINDOWS, {"sinks": 4}, "'mistral' have sliding windows of their own"),
    ],
)
def test_what_the_runner_cannot_use(kind, sizes, fields, problem):
    """Models with other state, with code that does not go by the cache, or that ask too much of the operators."""
    with pytest.raises(SourceError, match=problem):
        made(kind, sizes, **fields)

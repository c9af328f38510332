"""Decoders that compute the same with weights and activations that lose less."""

from __future__ import annotations

import copy

import pytest
import torch
import transformers
from pteforge.errors import TargetError
from pteforge.tasks.quantize.equalization import rotate, scale_inputs
from pteforge.tasks.quantize.module_transforms import transform_copy
from pteforge.tasks.quantize.rounding import ObservedCalls
from pteforge.tasks.quantize.torchao_configs import EqualizingParams, TorchaoParams

SIZES = {
    "vocab_size": 64,
    "hidden_size": 48,  # 16 times 3
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
}
DECODERS = {
    "llama": {},
    "llama with biases": {"attention_bias": True, "mlp_bias": True},
    "qwen2": {},
    "qwen3": {},
    "gemma": {},  # multiplies with one more than its weights, and ties embeddings
    "mistral": {"tie_word_embeddings": True},
    "granite": {"residual_multiplier": 0.5, "embedding_multiplier": 3.0},
    "phi3": {},  # queries, keys and values are one layer
}

TOKENS = torch.arange(24).reshape(2, 12) * 5 % 64


class Logits(torch.nn.Module):
    """The logits of a model of transformers."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, tokens):
        return self.model(input_ids=tokens, use_cache=False).logits.detach()


def decoder(name, largest=60, **fields):
    """A small decoder with random weights, gains of its norms, and a state with a large channel."""
    kind = name.partition(" ")[0]
    config = transformers.AutoConfig.for_model(kind, **SIZES | DECODERS.get(name, {}) | fields)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    for parameter_name, weight in model.named_parameters():
        with torch.no_grad():
            if "norm" in parameter_name or parameter_name.endswith("bias"):
                weight.add_(torch.rand_like(weight) / 2)
            if "embed_tokens" in parameter_name:
                weight[:, 5] *= largest  # so that all other channels are rounded coarsely next to it
    return Logits(model)


def calls_of(module):
    return ObservedCalls({"forward": module}, {"forward": lambda: [((TOKENS,), {})]}, ["tokens"])


@pytest.mark.parametrize("method", ["rotate", "awq"])
@pytest.mark.parametrize("name", DECODERS)
def test_the_same_is_computed(name, method):
    """By other weights; the model that is copied keeps its own."""
    model = decoder(name)
    before, wanted = copy.deepcopy(model.state_dict()), model(TOKENS)
    changed, matched = transform_copy(model, [EqualizingParams(equalize=method, group_size=16)], calls=calls_of(model))
    assert matched == {0}
    assert torch.allclose(changed(TOKENS), wanted, rtol=1e-3, atol=1e-3 * float(wanted.abs().max()))
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    weights = {key: value for key, value in changed.state_dict().items() if key.endswith("_proj.weight")}
    assert sum(not torch.equal(value, before[key]) for key, value in weights.items()) >= len(weights) / 2


@pytest.mark.parametrize(
    ("methods", "bits", "rounding", "largest"),
    [
        (["rotate"], 8, "nearest", 60),
        (["awq"], 4, "gptq", 10),
        (["rotate", "awq"], 8, "gptq", 60),
    ],
)
def test_less_is_lost(methods, bits, rounding, largest):
    """By integers, also by those that samples choose for the new weights."""
    model = decoder("llama", largest)
    wanted, lost = model(TOKENS), []
    fields = {"weight_dtype": f"int{bits}", "weight_granularity": {"per_group": 16}}
    nearest = TorchaoParams(config="Int8DynamicActivationIntxWeightConfig", fields=fields)
    first = [EqualizingParams(equalize=name, bits=bits, group_size=16) for name in methods]
    for transforms in ([nearest], [*first, nearest.model_copy(update={"rounding": rounding})]):
        quantized, _ = transform_copy(model, transforms, calls=calls_of(model))
        lost.append((quantized(TOKENS) - wanted).norm())
    assert lost[1] < 0.8 * lost[0]


def test_scales_that_samples_ask_for():
    """The steps of torchao clip the largest weights, which is why they win back less than with chosen steps."""
    model = decoder("llama", largest=10)
    wanted, lost = model(TOKENS), []
    for transforms in ([], [EqualizingParams(equalize="awq", group_size=16)]):
        fields = {"weight_dtype": "int4", "weight_granularity": {"per_group": 16}}
        nearest = TorchaoParams(config="Int8DynamicActivationIntxWeightConfig", fields=fields)
        quantized, _ = transform_copy(model, [*transforms, nearest], calls=calls_of(model))
        lost.append((quantized(TOKENS) - wanted).norm())
    assert lost[1] < 0.97 * lost[0]


@pytest.mark.parametrize(
    ("name", "fields", "problem"),
    [
        ("gemma2", {}, "pre_feedforward_layernorm"),
        ("mixtral", {"num_local_experts": 2}, "network|Mixtral"),
        ("olmo", {}, "root mean square"),
        ("gpt2", {"n_embd": 48, "n_head": 4}, "`embed_tokens`"),
    ],
)
def test_other_models_are_refused(name, fields, problem):
    """With what differs, for both methods."""
    model = decoder(name, **fields)
    with pytest.raises(TargetError, match=problem):
        rotate(copy.deepcopy(model))
    with pytest.raises(TargetError, match=f"source_transforms.0.: .*({problem})"):
        transform_copy(model, [EqualizingParams(equalize="awq")], calls=calls_of(model))


def test_the_loss_of_samples_decides():
    """Channels whose inputs are zero keep their scale, and no weight becomes infinite."""
    model = decoder("llama")
    with torch.no_grad():
        model.model.model.layers[0].input_layernorm.weight[3] = 0
    wanted = model(TOKENS)
    scale_inputs(model, calls_of(model), bits=4, group_size=16)
    assert torch.allclose(model(TOKENS), wanted, rtol=1e-4, atol=1e-4)

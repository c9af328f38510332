"""Adapters in PEFT's layout: models with them compute what PEFT computes, or they are refused."""

import pytest
import torch
from peft import (
    IA3Config,
    LoHaConfig,
    LoraConfig,
    PeftModel,
    PromptTuningConfig,
    TaskType,
    get_peft_model,
)
from pteforge.errors import SourceError
from pteforge.tasks.sources.huggingface import load_model, repo_of
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    RobertaConfig,
    RobertaForMaskedLM,
    T5Config,
    T5ForConditionalGeneration,
)

pytestmark = [  # PEFT's own
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 60,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 60, "bos_token_id": 0, "eos_token_id": 1}
T5 = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "vocab_size": 60}
MODELS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, num_key_value_heads=2)),
    "tied llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, num_key_value_heads=2, tie_word_embeddings=True)),
    "deep llama": lambda: LlamaForCausalLM(LlamaConfig(**{**SIZES, "num_hidden_layers": 3}, num_key_value_heads=2)),
    "wide llama": lambda: LlamaForCausalLM(LlamaConfig(**{**SIZES, "hidden_size": 64}, num_key_value_heads=2)),
    "biased llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, num_key_value_heads=2, attention_bias=True)),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(**GPT2)),
    "bert": lambda: BertModel(BertConfig(**SIZES)),
    "roberta": lambda: RobertaForMaskedLM(RobertaConfig(**SIZES)),
    "t5": lambda: T5ForConditionalGeneration(T5Config(**T5, decoder_start_token_id=0)),
}
CAUSAL, PAIRS = AutoModelForCausalLM, ("q_proj", "v_proj")


def written(folder, kind: str, auto, adapter, **fields) -> torch.nn.Module:
    """PEFT's own model with random weights in the adapter, which is written to `tuned`, and its base to `base`."""
    torch.manual_seed(0)
    MODELS[kind]().save_pretrained(folder / "base")
    net = get_peft_model(auto.from_pretrained(folder / "base", **fields), adapter)
    trained = {name: value for name, value in net.named_parameters() if value.requires_grad}
    for value in trained.values():
        torch.nn.init.normal_(value, std=0.3)
    net.save_pretrained(folder / "tuned")
    base = auto.from_pretrained(folder / "base", **fields)
    return PeftModel.from_pretrained(base, folder / "tuned").eval()


def loaded(folder, task=None, *, base="base", merge=True):
    place = repo_of(str(folder / base), None)
    return load_model(place, task, None, {"adapter": {"name": str(folder / "tuned"), "merge": merge}})[0]


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("llama", {"target_modules": PAIRS}),
        ("llama", {"target_modules": "all-linear", "r": 4, "lora_alpha": 32}),
        ("llama", {"target_modules": PAIRS, "use_rslora": True}),
        ("llama", {"target_modules": PAIRS, "use_dora": True}),
        ("biased llama", {"target_modules": PAIRS, "lora_bias": True}),
        ("llama", {"target_modules": PAIRS, "modules_to_save": ["embed_tokens", "lm_head"]}),
        ("tied llama", {"target_modules": PAIRS, "modules_to_save": ["embed_tokens"]}),
        ("llama", {"target_modules": [*PAIRS, "embed_tokens"], "layers_to_transform": [1]}),
        ("llama", {"target_modules": PAIRS, "rank_pattern": {"v_proj": 2}, "alpha_pattern": {"q_proj": 3}}),
        ("llama", {"target_modules": PAIRS, "trainable_token_indices": {"embed_tokens": [3, 5]}}),
        ("gpt2", {"target_modules": ["c_attn"], "fan_in_fan_out": True, "bias": "lora_only"}),
    ],
)
def test_what_an_adapter_may_change(tmp_path, kind, options):
    """All options of LoRA: the merged model computes what PEFT computes with the adapter apart."""
    adapted = written(tmp_path, kind, CAUSAL, LoraConfig(task_type=TaskType.CAUSAL_LM, **options))
    merged = loaded(tmp_path, "text-generation")
    assert not any("lora" in name for name, _ in merged.named_modules())
    tokens = torch.randint(2, 60, (2, 9))
    with torch.no_grad():
        wanted = adapted(input_ids=tokens).logits
        torch.testing.assert_close(merged(input_ids=tokens).logits, wanted, atol=1e-4, rtol=1e-3)
        base = CAUSAL.from_pretrained(tmp_path / "base")(input_ids=tokens).logits
    assert (wanted - base).abs().max() > 0.01


@pytest.mark.parametrize(
    ("kind", "auto", "adapter", "task", "fields"),
    [
        ("bert", AutoModelForSequenceClassification, {"task_type": TaskType.SEQ_CLS}, "text-classification", 3),
        ("roberta", AutoModelForSequenceClassification, {"task_type": TaskType.SEQ_CLS}, "text-classification", 5),
        ("bert", AutoModelForTokenClassification, {"task_type": TaskType.TOKEN_CLS}, "token-classification", 4),
    ],
)
def test_classifiers(tmp_path, kind, auto, adapter, task, fields):
    """The head is the adapter's, with as many labels as that has, where the base has another head or none."""
    adapted = written(tmp_path, kind, auto, LoraConfig(**adapter, target_modules=["query"]), num_labels=fields)
    merged = loaded(tmp_path, task)
    assert merged.config.num_labels == fields
    tokens = torch.randint(2, 60, (2, 9))
    with torch.no_grad():
        wanted = adapted(input_ids=tokens).logits
        torch.testing.assert_close(merged(input_ids=tokens).logits, wanted, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("adapter", [IA3Config, LoHaConfig])
def test_other_adapters(tmp_path, adapter):
    """Those that PEFT can merge are merged, whatever their kind, in models with an encoder, too."""
    options = {"feedforward_modules": []} if adapter is IA3Config else {}
    adapted = written(tmp_path, "t5", AutoModelForSeq2SeqLM, adapter(target_modules=["q", "v"], **options))
    merged = loaded(tmp_path)
    given = {"input_ids": torch.randint(2, 60, (1, 9)), "decoder_input_ids": torch.randint(2, 60, (1, 4))}
    with torch.no_grad():
        torch.testing.assert_close(merged(**given).logits, adapted(**given).logits, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize(
    ("base", "adapter", "problem"),
    [
        (
            "wide llama",
            LoraConfig(target_modules=PAIRS),
            r"does not fit this 'llama'; it was .*base: \S+ is \[.*\] in the adapter, and \[.*\] in the model$",
        ),
        ("deep llama", LoraConfig(target_modules=PAIRS), "tensors have no counterpart, such as .*layers.2"),
        ("bert", LoraConfig(target_modules=PAIRS), "does not fit this 'bert'.*not found"),
        (
            "llama",
            PromptTuningConfig(num_virtual_tokens=4, task_type=TaskType.CAUSAL_LM),
            "is PROMPT_TUNING, which is no change of weights",
        ),
    ],
)
def test_adapters_of_another_model(tmp_path, base, adapter, problem):
    """Other sizes, fewer or more layers, other modules, and those that change no weights are errors."""
    written(tmp_path, "llama", CAUSAL, adapter)
    MODELS[base]().save_pretrained(tmp_path / "other")
    with pytest.raises(SourceError, match=problem):
        loaded(tmp_path, base="other")


def test_an_adapter_of_a_deeper_model(tmp_path):
    """Layers that the model does not have are not dropped without a word."""
    written(tmp_path, "deep llama", CAUSAL, LoraConfig(target_modules=PAIRS))
    MODELS["llama"]().save_pretrained(tmp_path / "other")
    with pytest.raises(SourceError, match=r"4 tensors .*no counterpart.*layers\.2"):
        loaded(tmp_path, base="other")


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("llama", {"target_modules": "all-linear", "use_rslora": True}),
        ("llama", {"target_modules": PAIRS, "rank_pattern": {"v_proj": 2}, "alpha_pattern": {"q_proj": 3}}),
        ("gpt2", {"target_modules": ["c_attn", "c_fc"], "fan_in_fan_out": True}),
    ],
)
def test_adapters_apart(tmp_path, kind, options):
    """The model computes what PEFT computes, and its own weights are those of the base, bit for bit."""
    adapted = written(tmp_path, kind, CAUSAL, LoraConfig(task_type=TaskType.CAUSAL_LM, **options))
    apart = loaded(tmp_path, "text-generation", merge=False)
    base = {value.data_ptr(): value for value in CAUSAL.from_pretrained(tmp_path / "base").parameters()}
    kept = [value for name, value in apart.named_parameters() if "lora" not in name]
    for value, expected in zip(kept, base.values(), strict=True):
        assert torch.equal(value, expected)
    assert {name.rpartition(".")[2] for name, _ in apart.named_buffers() if "lora" in name} == {"lora_A", "lora_B"}
    for shape in ((1, 9), (3, 5)):
        tokens = torch.randint(2, 60, shape)
        with torch.no_grad():
            wanted = adapted(input_ids=tokens).logits
            torch.testing.assert_close(apart(input_ids=tokens).logits, wanted, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize(
    ("kind", "adapter"),
    [
        ("llama", LoraConfig(target_modules=PAIRS, use_dora=True)),
        ("llama", LoraConfig(target_modules=PAIRS, modules_to_save=["lm_head"])),
        ("llama", LoraConfig(target_modules=["embed_tokens"])),
        ("gpt2", LoraConfig(target_modules=["c_attn"], fan_in_fan_out=True, bias="lora_only")),
        ("llama", LoHaConfig(target_modules=PAIRS)),
    ],
)
def test_adapters_that_cannot_be_apart(tmp_path, kind, adapter):
    """Those that change more than linear layers would need another program, and are refused."""
    written(tmp_path, kind, CAUSAL, adapter)
    with pytest.raises(SourceError, match=r"changes more than .*leave `merge: false` out"):
        loaded(tmp_path, "text-generation", merge=False)

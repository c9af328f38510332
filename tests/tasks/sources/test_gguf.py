"""GGUF files: what transformers reads from them is what is exported, with their tokenizers."""

import json

import gguf
import pytest
import torch
from pteforge.errors import SourceError
from pteforge.tasks.sources.huggingface import load_model, repo_of
from pteforge.tasks.sources.text_generation import model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

TEXT = "the cat sat on the mat. the dog ran to the cat. a bird flew over the mat, and the dog sat on it. "
CONTEXT, HEADS, KEYS, EPS = 64, 4, 2, 1e-5
TEMPLATE = "{{ messages[0].content }}"


def write_gguf(
    path, kind: gguf.GGMLQuantizationType, architecture: str = "llama", prefix: str = ""
) -> LlamaForCausalLM:
    """A small Llama with random weights and its tokenizer, as llama.cpp's converter writes them."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer, trained.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    trained.train_from_iterator([TEXT], trainers.BpeTrainer(vocab_size=96, special_tokens=["<s>", "</s>"]))
    vocabulary = sorted(trained.get_vocab(), key=trained.get_vocab().__getitem__)
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": HEADS}
    config = LlamaConfig(
        **sizes,
        vocab_size=len(vocabulary),
        num_key_value_heads=KEYS,
        max_position_embeddings=CONTEXT,
        rms_norm_eps=1e-5,
    )
    net = LlamaForCausalLM(config).eval()
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(128)
    writer.add_block_count(2)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEYS)
    writer.add_rope_dimension_count(16)
    writer.add_layer_norm_rms_eps(EPS)
    writer.add_vocab_size(len(vocabulary))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(vocabulary)
    writer.add_token_types([gguf.TokenType.CONTROL] * 2 + [gguf.TokenType.NORMAL] * (len(vocabulary) - 2))
    merges = json.loads(trained.to_str())["model"]["merges"]
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_chat_template(TEMPLATE)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 2)
    for name, value in net.state_dict().items():
        heads = {"q_proj": HEADS, "k_proj": KEYS}.get(name.split(".")[-2])
        if heads:  # llama.cpp rotates neighbouring values, transformers two halves
            value = value.reshape(heads, 2, -1, value.shape[-1]).swapaxes(1, 2).reshape(value.shape)  # noqa: PLW2901
        content = value.numpy()
        chosen = kind if content.ndim > 1 else gguf.GGMLQuantizationType.F32
        known = names.get_name(name, try_suffixes=(".weight",))
        writer.add_tensor(f"{prefix}{known}", gguf.quantize(content, chosen), raw_dtype=chosen)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return net


ERRORS = {"F32": 1e-6, "F16": 1e-3, "Q8_0": 0.02, "Q5_1": 0.1, "Q4_0": 0.3}


@pytest.mark.parametrize(("kind", "error"), ERRORS.items())
def test_types_of_weights(tmp_path, kind, error):
    """The weights are those that were quantized; the tokens after a prompt are those of transformers."""
    net = write_gguf(tmp_path / "small.gguf", gguf.GGMLQuantizationType[kind])
    definition = model(str(tmp_path), sequence=CONTEXT, weights={"gguf": "small.gguf"})
    cached = definition.methods["forward"].module
    wanted = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="small.gguf").eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path, gguf_file="small.gguf")
    prompt = tokenizer("the cat sat", return_tensors="pt").input_ids
    with torch.no_grad():
        logits = cached.model(prompt).logits
        assert torch.equal(logits, wanted(prompt).logits)
        assert (logits - net(prompt).logits).abs().max() <= error * logits.abs().max()
        tokens = wanted.generate(prompt, max_new_tokens=12, min_new_tokens=12, do_sample=False)[0].tolist()
        given, start = prompt, 0
        for token in tokens[prompt.shape[1] :]:
            assert int(cached(given, torch.tensor([start])).argmax()) == token
            given, start = torch.tensor([[token]]), start + given.shape[1]
    assert definition.constant_methods["get_eos_ids"] == [1]
    assert definition.metadata["tokenizer"]["model"] == "BPE"
    assert definition.assets.keys() >= {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}
    assert definition.assets["chat_template.jinja"].decode() == TEMPLATE
    written = Tokenizer.from_str(definition.assets["tokenizer.json"].decode())
    assert written.encode(TEXT, add_special_tokens=False).ids == tokenizer(TEXT, add_special_tokens=False).input_ids
    assert written.decode(written.encode(TEXT, add_special_tokens=False).ids) == TEXT


def test_other_architectures(tmp_path):
    """One that transformers does not read, other names of tensors, and no GGUF at all are errors that name the file."""
    write_gguf(tmp_path / "other.gguf", gguf.GGMLQuantizationType.F32, "rwkv6")
    write_gguf(tmp_path / "renamed.gguf", gguf.GGMLQuantizationType.F32, prefix="other.")
    (tmp_path / "broken.gguf").write_bytes(b"no GGUF")
    for name in ("other.gguf", "renamed.gguf", "broken.gguf"):
        with pytest.raises(SourceError, match=f"transformers cannot read .*{name}: "):
            load_model(repo_of(str(tmp_path), None, {"gguf": name}), "text-generation", None)

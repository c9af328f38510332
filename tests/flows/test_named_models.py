"""Models by name: transformers, timm and torchvision, and language models that ExecuTorch's text runner talks with."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from pteforge.artifacts.digest import digest_bytes
from pteforge.formats.pte.metadata import read_metadata
from pteforge.formats.pte.reader import open_pte

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]

CONTEXT = 96
TEXT = "the cat sat on the mat. the dog ran to the cat. a bird flew over the mat, and the dog sat on it. "

# Writes a small Llama that has learned a text by heart, so that its likeliest tokens are clear ones, and its tokenizer.
TRAIN = """
import sys, torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

folder, text, context = sys.argv[1], sys.argv[2] * 20, int(sys.argv[3])
made = Tokenizer(models.BPE())
made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
made.train_from_iterator([text], trainers.BpeTrainer(vocab_size=80, special_tokens=["<s>", "</s>"]))
tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>")
tokenizer.save_pretrained(folder)
torch.manual_seed(0)
sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
config = LlamaConfig(**sizes, vocab_size=len(tokenizer), num_key_value_heads=2, max_position_embeddings=context)
config.bos_token_id, config.eos_token_id = tokenizer.bos_token_id, tokenizer.eos_token_id
net, tokens = LlamaForCausalLM(config), torch.tensor(tokenizer(text).input_ids)
optimizer = torch.optim.AdamW(net.parameters(), 3e-3)
for _ in range(120):
    batch = torch.stack([tokens[at : at + 64] for at in torch.randint(len(tokens) - 64, (8,))])
    net(input_ids=batch, labels=batch).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
net.save_pretrained(folder)
"""

# The tokens of these models are letters, which the runner shows one by one.
LETTERS = """
import sys
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

letters = ["<s>", "</s>", *"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ012345"]
made = Tokenizer(models.BPE({letter: number for number, letter in enumerate(letters)}, []))
made.add_special_tokens(letters[:2])
made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>").save_pretrained(sys.argv[1])
"""

# What the runner generates with files and prompts, and what eager does: as JSON, after what the runner says.
TALK = """
import json, sys
import executorch.extension.llm.custom_ops.custom_ops, executorch.kernels.quantized
from executorch.extension.llm.runner import GenerationConfig, TextLLMRunner
from pteforge.tasks.usercode.model_source import seed_everything
from pteforge.tasks.sources.text_generation import model
from transformers import AutoModelForCausalLM, AutoTokenizer

context, models = int(sys.argv[1]), json.load(sys.stdin)
for file, tokens, source, prompts in models:
    runner, tokenizer = TextLLMRunner(file, tokens), AutoTokenizer.from_pretrained(tokens)
    seed_everything(0)
    if isinstance(source, str):
        net = AutoModelForCausalLM.from_pretrained(source).eval()
    else:
        net = model(source["huggingface"], None, source["task"], source["config"]).methods["forward"].module.model
    for prompt in prompts:
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        said, wanted, room = [], "", context - ids.shape[1]
        runner.reset()
        try:
            runner.generate(prompt, GenerationConfig(max_new_tokens=64, temperature=0.0, echo=False), said.append)
        except RuntimeError as error:
            said = [f"error: {error}"]
        if room > 0:
            made = net.generate(ids, max_new_tokens=min(64, room), do_sample=False)
            wanted = tokenizer.decode(made[0, ids.shape[1] :]).removesuffix(tokenizer.eos_token)
        print("\\nRESULT", json.dumps([ids.shape[1], "".join(said), wanted]), flush=True)
"""


@pytest.fixture(scope="module")
def language_model(tmp_path_factory):
    """A folder in the hub's layout."""
    folder = tmp_path_factory.mktemp("model") / "tiny"
    subprocess.run([sys.executable, "-c", TRAIN, folder, TEXT, str(CONTEXT)], check=True, capture_output=True)
    return folder


def talk(*models):
    """For each model and prompt: its tokens, what ExecuTorch's runner says, and what eager says.

    A model is a file, the folder of its tokenizer, that of its checkpoint or its source, and prompts.
    """
    done = subprocess.run(
        [sys.executable, "-c", TALK, str(CONTEXT)],
        input=json.dumps([[str(file), str(tokens), source, prompts] for file, tokens, source, prompts in models]),
        capture_output=True,
        text=True,
        check=True,
    )
    return [json.loads(line[7:]) for line in done.stdout.splitlines() if line.startswith("RESULT ")]


PROMPTS = ["the", "the cat sat on", TEXT[:40], 2 * TEXT]


def test_a_language_model_talks(project, language_model):
    """One command makes a file with which ExecuTorch's own runner says what eager says, up to a full context."""
    shutil.copytree(language_model, project.folder / "tiny")
    made = project.run("export", "hf:./tiny", "--recipe", "xnnpack-fp32")
    assert made.code == 0, made.err
    folder = project.out / "tiny"
    for name, described in json.loads((folder / "xnnpack-fp32.json").read_text())["assets"].items():
        content = (folder / name).read_bytes()
        assert (content, digest_bytes(content)) == ((language_model / name).read_bytes(), described["sha256"])
    file = folder / "xnnpack-fp32.pte"
    metadata = read_metadata(file)
    assert (metadata["general.architecture"], metadata["tokenizer.model"]) == ("llama", "BPE")
    assert metadata["context.length"] == CONTEXT
    *talked, too_long = talk((file, folder, str(language_model), [*PROMPTS, 5 * TEXT]))
    assert (talked[0][0], talked[-1][0] > CONTEXT / 2) == (1, True)
    for tokens, said, wanted in talked:
        assert (tokens, said) == (tokens, wanted)
    assert len(talked[0][1]) > 64
    assert too_long[0] > CONTEXT
    assert too_long[1].startswith("error: ")

    np.savez(project.folder / "last.npz", np.ones((1, 1), np.int64), np.array([CONTEXT - 1]))
    np.savez(project.folder / "past.npz", np.ones((1, 2), np.int64), np.array([CONTEXT - 1]))
    assert project.run("run", str(file), "--input", "last.npz").code == 0
    past = project.run("run", str(file), "--input", "past.npz")
    assert past.code == 2
    assert f"2 tokens from position {CONTEXT - 1} on do not fit into its context of {CONTEXT} tokens" in past.err


def test_quantized_language_models(project, language_model):
    """Attention by ExecuTorch's operators, a cache in int8, weights in 4 bits with embeddings in 8, and in 4."""
    shutil.copytree(language_model, project.folder / "tiny")
    project.write("text.txt", TEXT)
    gate = {
        "evaluator": "pteforge.evaluators:neg_perplexity",
        "kwargs": {"text": "text.txt", "tokenizer": "tiny", "prompt": 4},
        "files": ["text.txt", "tiny/tokenizer.json"],
        "max_drop": 0.5,
    }
    source = {"huggingface": "./tiny", "attention": "custom_sdpa", "cache": "int8"}
    recipes = ("xnnpack-fp32", "xnnpack-llm-8da4w-embedding-int8", "xnnpack-llm-8da4w-embedding-int4")
    project.write_zoo({"own": {"source": source, "accuracy": gate}}, recipes)
    done = project.export("--json")
    assert done.code == 0, done.err
    made = done.json["models"]["own"]
    for recipe in recipes:
        score = made[recipe]["accuracy"]["file"]["scores"][0]["score"]
        assert -2 < score < -1
    ratio = made[recipes[1]]["numerics"][0]["figures"]["sqnr_db"]  # of the exported program; None: exact
    assert ratio is None or ratio > 80  # in torch, too, each example begins with an empty cache
    sizes = [made[recipe]["size"] for recipe in recipes]
    assert sizes == sorted(sizes, reverse=True)
    folder = project.out / "own"
    names = {recipe: set(open_pte(folder / f"{recipe}.pte").methods[0].operators) for recipe in recipes}
    assert all({"llama::update_cache.out", "llama::custom_quantized_sdpa.out"} <= found for found in names.values())
    assert "quantized_decomposed::embedding_byte.out" in names[recipes[1]]
    assert "quantized_decomposed::embedding_4bit.out" in names[recipes[2]]
    files = [folder / f"{recipe}.pte" for recipe in recipes]
    exact, *others = talk(*((file, folder, str(language_model), PROMPTS[1:2]) for file in files))
    assert exact[1] == exact[2]
    assert all(said[:4] == wanted[:4] for _, said, wanted in others)


TALKING = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 60,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
}
GROUPED = {**TALKING, "num_key_value_heads": 2, "head_dim": 8}
LETTERED = {
    "qwen3": {**GROUPED, "tie_word_embeddings": True},
    "gemma3_text": {**GROUPED, "sliding_window": 12, "layer_types": ["sliding_attention", "full_attention"]},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 60, "n_positions": CONTEXT, "eos_token_id": 1},
    "opt": {**{k: v for k, v in TALKING.items() if k != "intermediate_size"}, "ffn_dim": 64, "word_embed_proj_dim": 32},
}


def test_architectures_talk(project, tmp_path):
    """Sliding windows, tied embeddings, grouped heads, old position embeddings: the runner says what eager says."""
    subprocess.run([sys.executable, "-c", LETTERS, tmp_path / "letters"], check=True, capture_output=True)
    task = {"task": "text-generation"}
    sources = {name: {"huggingface": name, "config": config, **task} for name, config in LETTERED.items()}
    project.write_zoo({name: {"source": source} for name, source in sources.items()}, ("xnnpack-fp32",))
    done = project.export()
    assert done.code == 0, done.err
    text = "TheQuickBrownFoxJumpsOverTheLazyDog" * 3
    prompts = ["a", text[:30], text[: CONTEXT - 1], text[:CONTEXT]]
    results = talk(
        *(
            (project.out / name / "xnnpack-fp32.pte", tmp_path / "letters", source, prompts)
            for name, source in sources.items()
        )
    )
    assert len(results) == len(LETTERED) * len(prompts)
    for tokens, said, wanted in results:
        if tokens == CONTEXT:
            assert said.startswith("error: ")
        else:
            assert (tokens, said) == (tokens, wanted)


def test_a_changed_checkpoint(project, language_model):
    """New weights are noticed, and a moved folder is not."""
    shutil.copytree(language_model, project.folder / "tiny")
    assert project.run("export", "hf:./tiny", "--recipe", "portable-fp32").code == 0
    moved = project.copy(project.folder.parent / "moved")
    assert "0 stages run" in moved.run("export", "hf:./tiny", "--recipe", "portable-fp32").out
    weights = moved.folder / "tiny" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    planned = moved.run("plan", "hf:./tiny", "--recipe", "portable-fp32")
    assert planned.code == 3
    assert "model.safetensors" in planned.out


SMALL = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
IDS = {"pad_token_id": 1, "eos_token_id": 1}  # within the vocabulary
NAMED = {
    "bert": {"huggingface": "bert", "task": "fill-mask", "config": {**SMALL, "vocab_size": 100}},
    "glm": {
        "huggingface": "glm",
        "config": {**SMALL, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 100, **IDS},
    },
    "vit": {"huggingface": "vit", "config": {**SMALL, "image_size": 32, "patch_size": 16}, "batch": 1},
    "wav2vec2": {"huggingface": "wav2vec2", "config": {**SMALL, "conv_dim": [32] * 7}},
    "timm": {"timm": "test_efficientnet", "pretrained": False},
    "torchvision": {"torchvision": "shufflenet_v2_x0_5", "weights": None},
}


@pytest.fixture(scope="module")
def vision(tmp_path_factory):
    """A folder with timm and torchvision. The tests' environment has neither.

    The index may have torchvision's wheel for CUDA only, without whose library transformers cannot be imported.
    """
    folder = tmp_path_factory.mktemp("vision")
    packages = ["timm==1.0.31", "torchvision==0.28.0"]
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder, *packages], check=True
    )
    return folder


def test_models_of_three_libraries(project, vision):
    """Text, images and sound: inputs of the right kinds are made, batch and sequence vary, and all is verified."""
    project.write_zoo({name: {"source": source} for name, source in NAMED.items()}, ("xnnpack-fp32",))
    path = os.pathsep.join([str(vision), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = project.run("export", "zoo.yaml", env={"PYTHONPATH": path})
    assert done.code == 0, done.err
    assert f"{len(NAMED)} files verified" in done.out
    shapes = {name: open_pte(project.out / name / "xnnpack-fp32.pte").methods[0].inputs[0].shape for name in NAMED}
    said = read_metadata(project.out / "timm" / "xnnpack-fp32.pte")
    assert (said["general.source"], said["image.size"]) == ("timm:test_efficientnet", (160, 160))
    assert read_metadata(project.out / "torchvision" / "xnnpack-fp32.pte")["image.size"] == (224, 224)
    assert shapes["bert"] == (4, 128)  # upper bounds
    assert (shapes["vit"], shapes["wav2vec2"][0]) == ((1, 3, 32, 32), 4)

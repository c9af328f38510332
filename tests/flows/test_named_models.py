"""Models by name: transformers, timm and torchvision, and language models that ExecuTorch's text runner talks with."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest
from pteforge.formats.pte.metadata import read_metadata
from pteforge.formats.pte.reader import open_pte

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

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

# What the runner generates, and what eager does: as JSON, after what the runner says.
TALK = """
import json, sys
import torch
from executorch.extension.llm.runner import GenerationConfig, TextLLMRunner
from transformers import AutoModelForCausalLM, AutoTokenizer

file, folder, context = sys.argv[1], sys.argv[2], int(sys.argv[3])
runner = TextLLMRunner(file, f"{folder}/tokenizer.json")
net, tokenizer = AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
for prompt in json.load(sys.stdin):
    ids = tokenizer(prompt, return_tensors="pt").input_ids
    said, wanted, room = [], "", context - ids.shape[1]
    runner.reset()
    try:
        runner.generate(prompt, GenerationConfig(max_new_tokens=64, temperature=0.0, echo=False), said.append)
    except RuntimeError as error:
        said = [f"error: {error}"]
    if room > 0:
        made = net.generate(ids, max_new_tokens=min(64, room), do_sample=False)
        wanted = tokenizer.decode(made[0, ids.shape[1] :], skip_special_tokens=True)
    print("\\nRESULT", json.dumps([ids.shape[1], "".join(said), wanted]), flush=True)
"""


@pytest.fixture(scope="module")
def language_model(tmp_path_factory):
    """A folder in the hub's layout."""
    folder = tmp_path_factory.mktemp("model") / "tiny"
    subprocess.run([sys.executable, "-c", TRAIN, folder, TEXT, str(CONTEXT)], check=True, capture_output=True)
    return folder


def talk(file, folder, prompts):
    """For each prompt: its tokens, what ExecuTorch's runner says, and what eager says."""
    done = subprocess.run(
        [sys.executable, "-c", TALK, file, folder, str(CONTEXT)],
        input=json.dumps(prompts),
        capture_output=True,
        text=True,
        check=True,
    )
    return [json.loads(line[7:]) for line in done.stdout.splitlines() if line.startswith("RESULT ")]


def test_a_language_model_talks(project, language_model):
    """One command makes a file with which ExecuTorch's own runner says what eager says, up to a full context.

    Prompts of one token, of a line, and of almost all of the context; a longer one is an error.
    """
    shutil.copytree(language_model, project.folder / "tiny")
    made = project.run("export", "hf:./tiny", "--recipe", "xnnpack-fp32")
    assert made.code == 0, made.err
    said = read_metadata(project.out / "tiny" / "xnnpack-fp32.pte")
    assert (said["general.architecture"], said["tokenizer.model"], said["context.length"]) == ("llama", "BPE", CONTEXT)
    prompts = ["the", "the cat sat on", TEXT[:40], 2 * TEXT, 5 * TEXT]
    *talked, too_long = talk(project.out / "tiny" / "xnnpack-fp32.pte", language_model, prompts)
    assert (talked[0][0], talked[-1][0] > CONTEXT / 2) == (1, True)
    for tokens, said, wanted in talked:
        assert (tokens, said) == (tokens, wanted)
    assert len(talked[0][1]) > 64
    assert too_long[0] > CONTEXT
    assert too_long[1].startswith("error: ")


def test_a_changed_checkpoint(project, language_model):
    """New weights are noticed, and a moved folder is not."""
    shutil.copytree(language_model, project.folder / "tiny")
    assert project.run("export", "hf:./tiny").code == 0
    moved = project.copy(project.folder.parent / "moved")
    assert "0 stages run" in moved.run("export", "hf:./tiny").out
    weights = moved.folder / "tiny" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert moved.run("plan", "hf:./tiny").code == 3
    said = moved.run("plan", "hf:./tiny").out
    assert "model.safetensors" in said


SMALL = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
NAMED = {
    "bert": {"huggingface": "bert", "task": "fill-mask", "config": {**SMALL, "vocab_size": 100}},
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

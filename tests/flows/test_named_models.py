"""Models by name: transformers, timm and torchvision, and language models that ExecuTorch's text runner talks with."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from pteforge.artifacts.digest import digest_bytes
from pteforge.formats.pte.metadata import read_metadata
from pteforge.formats.pte.reader import open_pte
from pteforge.tests.tasks.sources.test_gguf import write_gguf
from pteforge.tests.tasks.sources.test_prequantized import checkpoint
from transformers import AutoModelForCausalLM, AutoTokenizer

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
        taken = {name: source[name] for name in ("config", "dtype") if name in source}
        net = model(source["huggingface"], task=source["task"], **taken).methods["forward"].module.model
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


# Two adapters of a model, and what PEFT generates with each after a prompt: as JSON.
ADAPT = """
import json, sys, torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

folder, prompt = sys.argv[1:]
tokenizer, said = AutoTokenizer.from_pretrained(folder), {}
for seed, name in enumerate(("polite", "terse")):
    torch.manual_seed(seed)
    config = LoraConfig(r=4, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")
    net = get_peft_model(AutoModelForCausalLM.from_pretrained(folder), config)
    for value in filter(lambda value: value.requires_grad, net.parameters()):
        torch.nn.init.normal_(value, std=0.1)
    net.save_pretrained(name)
    net = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(folder), name).eval()
    ids = tokenizer(prompt, return_tensors="pt").input_ids
    made = net.generate(input_ids=ids, max_new_tokens=48, do_sample=False)[0, ids.shape[1] :]
    said[name] = tokenizer.decode(made).removesuffix(tokenizer.eos_token)
print("RESULT", json.dumps(said))
"""

# What the runner generates with a program, and with its weights of another file, after a prompt: as JSON.
SAY = """
import json, sys
from executorch.extension.llm.runner import GenerationConfig, TextLLMRunner

prompt, tokens = sys.argv[1:]
for file, *data in json.load(sys.stdin):
    said, runner = [], TextLLMRunner(file, tokens, *data)
    runner.generate(prompt, GenerationConfig(max_new_tokens=48, temperature=0.0, echo=False), said.append)
    print("\\nRESULT", json.dumps("".join(said)), flush=True)
"""


def results(script, folder, *arguments, given=None):
    """What a script prints as JSON, run in a folder."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    done = subprocess.run(command, cwd=folder, input=json.dumps(given), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line[7:]) for line in done.stdout.splitlines() if line.startswith("RESULT ")]


def test_adapters(project, language_model):
    """Merged, an adapter says what it says in PEFT; apart, each does with the program that was made with the other."""
    shutil.copytree(language_model, project.folder / "base")
    (wanted,) = results(ADAPT, project.folder, "base", PROMPTS[1])
    assert wanted["polite"] != wanted["terse"]
    sources = {
        name: {"huggingface": "./base", "adapter": f"./{name}", "merge": False} for name in ("polite", "terse")
    } | {"merged": {"huggingface": "./base", "adapter": "./polite"}, "alone": "hf:./terse"}
    project.write_zoo(
        {name: {"source": source, "recipes": [recipe_of(name)]} for name, source in sources.items()},
        own={"apart": {"extends": "xnnpack-fp32", "output": {"external_data": ["*.lora_*"]}}},
    )
    done = project.export()
    assert done.code == 0, done.err
    made = {name: project.out / name / f"{recipe_of(name)}.pte" for name in sources}
    pairs = [(program, data) for program in ("polite", "terse") for data in ("polite", "terse")]
    apart = [[str(made[program]), str(made[data].with_suffix(".ptd"))] for program, data in pairs]
    whole = [[str(made["merged"])], [str(made["alone"])]]
    said = results(SAY, project.folder, PROMPTS[1], made["merged"].parent, given=[*apart, *whole])
    assert said == [*(wanted[data] for _, data in pairs), wanted["polite"], wanted["terse"]]
    assert made["polite"].with_suffix(".ptd").stat().st_size < made["merged"].stat().st_size / 8
    assert {backend for name in sources for backend in open_pte(made[name]).backends} == {"XnnpackBackend"}

    weights = project.folder / "polite" / "adapter_model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    planned = project.run("plan", "zoo.yaml", "--model", "merged")
    assert planned.code == 3
    assert "adapter_model.safetensors" in planned.out


def recipe_of(name):
    return "apart" if name in {"polite", "terse"} else "xnnpack-fp32"


def test_a_gguf_file_talks(project):
    """A GGUF file and nothing else becomes a program and its tokenizer, which say what transformers says with it."""
    (project.folder / "chat").mkdir()
    write_gguf(project.folder / "chat" / "small.gguf", GGMLQuantizationType.Q8_0)
    project.write_zoo({"chat": {"source": {"huggingface": "./chat", "gguf": "small.gguf"}}}, ("xnnpack-fp32",))
    done = project.export()
    assert done.code == 0, done.err
    file = project.out / "chat" / "xnnpack-fp32.pte"
    net = AutoModelForCausalLM.from_pretrained(project.folder / "chat", gguf_file="small.gguf").eval()
    tokenizer = AutoTokenizer.from_pretrained(project.folder / "chat", gguf_file="small.gguf")
    ids = tokenizer("the cat", return_tensors="pt").input_ids
    said = tokenizer.decode(net.generate(ids, max_new_tokens=48, do_sample=False)[0, ids.shape[1] :])
    assert results(SAY, project.folder, "the cat", file.parent, given=[[str(file)]]) == [said.removesuffix("</s>")]
    assert read_metadata(file)["general.architecture"] == "llama"


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
    for file, (_, said, _) in zip(files, [exact, *others], strict=True):  # the command loads the kernels by itself
        assert project.run("generate", str(file), PROMPTS[1], "--max-new-tokens", "64", "-q").out == f"{said}\n"


def test_language_models_in_16_bits(project, language_model):
    """Weights and caches take half of the space, and the runner says what eager says in the same dtype."""
    shutil.copytree(language_model, project.folder / "tiny")
    named = {"huggingface": "./tiny", "task": "text-generation"}
    sources = {
        "whole": named,
        "bfloat16": {**named, "dtype": "bfloat16"},
        "own": {**named, "dtype": "bfloat16", "attention": "custom_sdpa"},
        "kept": {**named, "dtype": "bfloat16", "attention": "custom_sdpa", "cache": "int8"},
        "float16": {**named, "dtype": "float16"},
    }
    project.write_zoo({name: {"source": source} for name, source in sources.items()}, ("xnnpack-fp32",))
    done = project.export("--json")
    assert done.code == 0, done.err
    files = {name: project.out / name / "xnnpack-fp32.pte" for name in sources}
    sizes = {name: done.json["models"][name]["xnnpack-fp32"]["size"] for name in sources}
    assert max(sizes[name] for name in ("bfloat16", "own", "float16")) < 0.65 * sizes["whole"]
    outputs = [open_pte(file).methods[0].outputs[0].dtype for file in files.values()]
    assert len(set(outputs)) == 1
    checkpoint = {"huggingface": str(language_model)}
    results = talk(
        *((file, project.out / name, {**sources[name], **checkpoint}, PROMPTS[:3]) for name, file in files.items())
    )
    assert len(results) == 3 * len(files)
    for tokens, said, wanted in results:
        assert (tokens, said) == (tokens, wanted)


def test_layers_quantized_as_the_source_says(project, language_model):
    """8-bit weights; larger groups and embeddings in int8 by fields of a name, on the command line, too."""
    shutil.copytree(language_model, project.folder / "tiny")
    recipes = ("--recipe", "xnnpack-llm-8da4w", "--recipe", "xnnpack-llm-8da8w", "--recipe", "xnnpack-fp32")
    made = project.run("export", "hf:./tiny", *recipes)
    assert made.code == 0, made.err
    sizes = {path.stem: path.stat().st_size for path in (project.out / "tiny").glob("*.pte")}
    assert sizes["xnnpack-llm-8da4w"] < sizes["xnnpack-llm-8da8w"] < sizes["xnnpack-fp32"]
    fields = {"dtype": "float16", "quantize_layers.group_size": 64, "quantize_layers.embedding": "int8"}
    options = [option for name, value in fields.items() for option in ("--set", f"source.{name}={value}")]
    options += ["--set", "models.tiny.verify={min_sqnr_db: 6}"]  # larger groups lose more
    done = project.run("export", "hf:./tiny", *recipes[:2], *options)
    assert done.code == 0, done.err
    file = project.out / "tiny" / "xnnpack-llm-8da4w.pte"
    assert file.stat().st_size < sizes["xnnpack-llm-8da4w"]
    assert "quantized_decomposed::embedding_byte.out" in open_pte(file).methods[0].operators
    ((_, said, wanted),) = talk((file, project.out / "tiny", str(language_model), PROMPTS[1:2]))
    assert said[:4] == wanted[:4]
    refused = project.run("export", "hf:./tiny", *recipes[:2], "--set", "source.quantize_layers.group_size=48")
    assert refused.code == 2
    assert "has 64 input features, and groups of 48 do not divide them" in refused.err


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
WINDOW = 12
LETTERED = {
    "qwen3": {**GROUPED, "tie_word_embeddings": True},
    "gemma3_text": {**GROUPED, "sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]},
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


STATE = {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 60, "bos_token_id": 0, "eos_token_id": 1}
HYBRIDS = {
    "lfm2": {**TALKING, "num_key_value_heads": 2, "layer_types": ["conv", "full_attention"]},
    "mamba": {**STATE, "state_size": 8, "pad_token_id": 1},
    "mamba2": {**STATE, "state_size": 8, "num_heads": 4, "head_dim": 16, "n_groups": 2, "pad_token_id": 1},
    "qwen3_5_text": {
        **GROUPED,
        "layer_types": ["linear_attention", "full_attention"],
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
    },
}


def test_other_state_talks(project, tmp_path):
    """States of convolutions and recurrent layers: the runner says what eager says, text after text."""
    subprocess.run([sys.executable, "-c", LETTERS, tmp_path / "letters"], check=True, capture_output=True)
    sources = {
        name: {"huggingface": name, "config": config, "task": "text-generation", "sequence": CONTEXT}
        for name, config in HYBRIDS.items()
    }
    project.write_zoo({name: {"source": source} for name, source in sources.items()}, ("xnnpack-fp32",))
    done = project.export()
    assert done.code == 0, done.err
    prompts = ["a", TEXT_OF_LETTERS[:30]]
    results = talk(
        *(
            (project.out / name / "xnnpack-fp32.pte", tmp_path / "letters", source, prompts)
            for name, source in sources.items()
        )
    )
    assert len(results) == len(HYBRIDS) * len(prompts)
    for tokens, said, wanted in results:
        assert (tokens, said.removesuffix(EOS)) == (tokens, wanted)


TEXT_OF_LETTERS = "TheQuickBrownFoxJumpsOverTheLazyDog" * 3


def test_windows_talk(project, tmp_path):
    """Layers keep their windows only; the runner says what eager says over several, also for prompts beyond one."""
    subprocess.run([sys.executable, "-c", LETTERS, tmp_path / "letters"], check=True, capture_output=True)
    source = {"huggingface": "mistral", "task": "text-generation", "config": {**GROUPED, "sliding_window": WINDOW}}
    own = {**source, "attention": "custom_sdpa"}
    project.write_zoo({"plain": {"source": source}, "own": {"source": own}}, ("xnnpack-fp32",))
    done = project.export()
    assert done.code == 0, done.err
    files = [project.out / name / "xnnpack-fp32.pte" for name in ("plain", "own")]
    prompts = [TEXT_OF_LETTERS[:length] for length in (1, WINDOW, 40, CONTEXT - 1)]
    results = talk(*((file, tmp_path / "letters", source, prompts) for file in files))
    assert len(results) == 2 * len(prompts)
    for tokens, said, wanted in results:
        assert (tokens, said.removesuffix("</s>")) == (tokens, wanted)


# What files say: one with sinks by the runner, far beyond its context, and others with two methods by the runtime. As
# JSON, with what passes of eager over all tokens say, which see the first tokens and the last ones.
STREAM = """
import json, sys, torch
import executorch.extension.llm.custom_ops.custom_ops, executorch.kernels.quantized
from executorch.extension.llm.runner import GenerationConfig, TextLLMRunner
from executorch.runtime import Runtime
from pteforge.tasks.usercode.model_source import seed_everything
from pteforge.tasks.sources.text_generation import model
from transformers import AutoTokenizer

def eager(ids, count, sinks, window):
    tokens, index = ids, torch.arange(ids.shape[1] + count)
    places = torch.where(index < sinks, index, sinks + (index - sinks) % (2 * window))
    seen = (index <= index[:, None]) & ((index < sinks) | (index[:, None] - index < window))
    while tokens.shape[1] < len(index):
        size = tokens.shape[1]
        made = net(input_ids=tokens, attention_mask=seen[None, None, :size, :size], position_ids=places[None, :size])
        tokens = torch.cat([tokens, made.logits[:, -1:].argmax(-1)], 1)
    said = tokens[0, ids.shape[1] :].tolist()
    return said[: said.index(1)] if 1 in said else said

def stepped(file, ids, count):
    program = Runtime.get().load_program(file)
    prefill, step = program.load_method("prefill"), program.load_method("decode_step")
    (logits,), said = prefill.execute([ids, torch.tensor([0])]), []
    while int(logits.argmax()) != 1:
        said.append(int(logits.argmax()))
        if len(said) == count:
            break
        (logits,) = step.execute([torch.tensor([said[-1:]]), torch.tensor([ids.shape[1] + len(said) - 1])])
    return tokenizer.decode(said)

folder, source, models, prompts = json.load(sys.stdin)
tokenizer = AutoTokenizer.from_pretrained(folder)
seed_everything(0)
net = model(source["huggingface"], task=source["task"], config=source["config"]).methods["forward"].module.model
with torch.no_grad():
    for file, sinks, window, count, prefill in models:
        runner = TextLLMRunner(file, folder)
        for prompt in prompts:
            ids, said = tokenizer(prompt, return_tensors="pt").input_ids, []
            runner.reset()
            runner.generate(prompt, GenerationConfig(max_new_tokens=count, temperature=0.0, echo=False), said.append)
            by_host = stepped(file, ids, count) if prefill else None
            wanted = tokenizer.decode(eager(ids, count, sinks, window))
            print("\\nRESULT", json.dumps([ids.shape[1], "".join(said), by_host, wanted]), flush=True)
"""


def stream(folder, source, prompts, *models):
    """For each model and prompt: its tokens, what the runner says, what two methods say, and what eager says."""
    given = json.dumps([str(folder), source, models, prompts])
    done = subprocess.run([sys.executable, "-c", STREAM], input=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line[7:]) for line in done.stdout.splitlines() if line.startswith("RESULT ")]


EOS = "</s>"
CHAT = {"chat": {"extends": "xnnpack-fp32", "compile": {"share_mutable_buffers": True}}}


def stream_models(project, folder, fields, models, prompts):
    """What files of two kinds of attention say, as of `stream`, whose fields of a source and of a model are given."""
    subprocess.run([sys.executable, "-c", LETTERS, folder], check=True, capture_output=True)
    source = {"huggingface": "llama", "task": "text-generation", "config": GROUPED, **fields}
    own = {**source, "attention": "custom_sdpa"}
    project.write_zoo({"plain": {"source": source}, "own": {"source": own}}, ("chat",), CHAT)
    done = project.export()
    assert done.code == 0, done.err
    files = [str(project.out / name / "chat.pte") for name in ("plain", "own")]
    results = stream(folder, source, prompts, *([file, *models] for file in files))
    assert len(results) == len(files) * len(prompts)
    return results


def test_sinks_talk(project, tmp_path):
    """The runner continues over four contexts, also after prompts longer than one."""
    context = 24
    prompts = [TEXT_OF_LETTERS[:length] for length in (1, 20, context, 60)]
    given = (4, context - 4, 4 * context, False)
    results = stream_models(project, tmp_path / "letters", {"sinks": 4, "sequence": context}, given, prompts)
    for tokens, said, _, wanted in results:
        assert (tokens, said.removesuffix(EOS)) == (tokens, wanted)
    assert max(len(said) for _, said, *_ in results) > 3 * context


def test_prefill_and_decode_step_talk(project, tmp_path):
    """The runner, which calls `prefill` for tokens, too, and a host that calls both methods say what eager says."""
    prompts = [TEXT_OF_LETTERS[:length] for length in (1, 30, CONTEXT - 8)]
    given = (0, CONTEXT, 8, True)
    for tokens, said, by_host, wanted in stream_models(
        project, tmp_path / "letters", {"prefill": True}, given, prompts
    ):
        assert (tokens, said.removesuffix(EOS), by_host) == (tokens, wanted, wanted)


def test_short_calls_talk(project, tmp_path):
    """The runner passes a prompt in several calls, and takes the last of the logits that each returns."""
    prompts = [TEXT_OF_LETTERS[:length] for length in (1, 5, 6, 30, CONTEXT - 8)]
    fields = {"tokens_per_call": 5, "logits": "all"}
    for tokens, said, _, wanted in stream_models(
        project, tmp_path / "letters", fields, (0, CONTEXT, 8, False), prompts
    ):
        assert (tokens, said.removesuffix(EOS)) == (tokens, wanted)


# A Whisper with random weights and one second of sound, in the hub's layout.
LISTENER = """
import sys, torch
from transformers import GenerationConfig, WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration

torch.manual_seed(0)
layers = {f"{part}_{name}": size for part in ("encoder", "decoder") for name, size in
          {"layers": 2, "attention_heads": 4, "ffn_dim": 64}.items()}
ids = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1, "decoder_start_token_id": 2}
config = WhisperConfig(**layers, **ids, d_model=32, vocab_size=60, num_mel_bins=8, max_source_positions=50,
                       max_target_positions=96, init_std=0.4, begin_suppress_tokens=[9])
net = WhisperForConditionalGeneration(config)
settings = {"suppress_tokens": [7, 8], "begin_suppress_tokens": [9], "no_timestamps_token_id": 5}
net.generation_config = GenerationConfig(**ids, **settings, lang_to_id={"<|en|>": 3}, task_to_id={"transcribe": 4})
net.save_pretrained(sys.argv[1])
WhisperFeatureExtractor(feature_size=8, chunk_length=1).save_pretrained(sys.argv[1])
"""

# The likeliest tokens by the methods of a file, and those of eager's `generate`, for several inputs: as JSON.
TRANSCRIBE = """
import json, sys, torch
from executorch.runtime import Runtime
from pteforge.tasks.sources.encoder_decoder import model
from pteforge.tasks.usercode.model_source import seed_everything
from transformers import AutoFeatureExtractor, AutoTokenizer, GenerationMixin
from transformers.generation.logits_process import (
    LogitsProcessorList, SuppressTokensAtBeginLogitsProcessor, WhisperTimeStampLogitsProcessor
)

torch.set_num_threads(1)

def continued(program, inputs, prompt, processors, count=64):
    encoder, decoder = program.load_method("encoder"), program.load_method("text_decoder")
    for _ in range(2):  # the second time, the cache is full of the first
        (encoded,), tokens, start = encoder.execute([inputs]), list(prompt), 0
        while len(tokens) < len(prompt) + count:
            (logits,) = decoder.execute([torch.tensor([tokens[start:]]), encoded, torch.tensor([start])])
            start = len(tokens)
            tokens.append(int(processors(torch.tensor([tokens]), logits).argmax()))
    return tokens[len(prompt) :]

for file, source in json.load(sys.stdin):
    program = Runtime.get().load_program(file)
    constants = {name: [*map(int, program.load_method(name).execute([]))] for name in program.method_names
                 if name.endswith(("_id", "_ids", "_tokens", "_len", "_length"))}
    seed_everything(0)
    definition = model(source["huggingface"], task=source.get("task"), config=source.get("config"))
    net, settings = definition.methods["encoder"].module.model, None
    settings, (example,) = net.generation_config, definition.methods["encoder"].example_inputs[0]
    (first,) = constants["decoder_start_token_id"]
    settings.forced_eos_token_id, settings.decoder_start_token_id = None, first
    asked = [([first], LogitsProcessorList())]
    inputs = [torch.randint(5, 60, (1, length)) for length in (1, 20, 90)]
    show = list
    if texts := source.get("texts"):
        tokenizer = AutoTokenizer.from_pretrained(file.rpartition("/")[0])
        inputs, show = [tokenizer(text, return_tensors="pt").input_ids for text in texts], tokenizer.decode
    if example.dim() == 2 and example.dtype is torch.float32:
        inputs = [torch.randn(1, length) for length in (3000, 16000, 40000)]
    if example.dim() == 3:
        extractor = AutoFeatureExtractor.from_pretrained(sys.argv[1])
        sounds = [torch.randn(length).numpy() for length in (2000, 16000)]
        inputs = [extractor(sound, sampling_rate=16000, return_tensors="pt").input_features for sound in sounds]
        (silent,), begin = constants["no_timestamps_token_id"], constants["begin_suppress_tokens"]
        for prompt in [first, 3, 4, silent], [first, 3, 4]:
            rules = [SuppressTokensAtBeginLogitsProcessor(begin, len(prompt))]
            if silent not in prompt:
                rules.append(WhisperTimeStampLogitsProcessor(settings, begin_index=len(prompt)))
            asked.append((prompt, LogitsProcessorList(rules)))
    for each in inputs:
        for prompt, processors in asked:
            made = GenerationMixin.generate(
                net, each, decoder_input_ids=torch.tensor([prompt]), logits_processor=processors,
                max_new_tokens=64, do_sample=False, num_beams=1, eos_token_id=-1,
                suppress_tokens=settings.suppress_tokens, begin_suppress_tokens=None,
            )
            said = continued(program, each, prompt, processors)
            wanted = made[0].tolist()[len(prompt) :]
            print("RESULT", json.dumps([constants, show(said), show(wanted)]), flush=True)
"""


def transcribe(settings, *models):
    """For each file with its source, and each input: the constants, what the file says, and what eager says."""
    given = json.dumps([[str(file), source] for file, source in models])
    command = [sys.executable, "-c", TRANSCRIBE, settings]
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line[7:]) for line in done.stdout.splitlines() if line.startswith("RESULT ")]


def test_a_model_listens(project):
    """Whisper says what eager says: from its first token on, with a language and a task, and with timestamps.

    In int8, it is within its gate.
    """
    subprocess.run([sys.executable, "-c", LISTENER, project.folder / "tiny"], check=True, capture_output=True)
    subprocess.run([sys.executable, "-c", LETTERS, project.folder / "tiny"], check=True, capture_output=True)
    made = project.run("export", "hf:./tiny", "--recipe", "xnnpack-fp32", "--recipe", "xnnpack-int8-dynamic")
    assert made.code == 0, made.err
    folder = project.out / "tiny"
    names = {"tokenizer.json", "tokenizer_config.json", "preprocessor_config.json", "generation_config.json"}
    assert names <= {path.name for path in folder.iterdir()}
    methods = {method.name: method for method in open_pte(folder / "xnnpack-fp32.pte").methods}
    assert [tensor.shape for tensor in methods["encoder"].inputs] == [(1, 8, 100)]
    assert [tensor.shape for tensor in methods["text_decoder"].inputs] == [(1, 96), (16, 50, 8), (1,)]
    results = transcribe(folder, (folder / "xnnpack-fp32.pte", {"huggingface": str(project.folder / "tiny")}))
    assert len(results) == 2 * 3
    for constants, said, wanted in results:
        assert said == wanted
        assert not {7, 8} & {*said}
        assert (constants["get_max_context_len"], constants["max_hidden_seq_length"]) == ([96], [50])
    assert all(said[0] > 5 for _, said, _ in results[2::3])  # a timestamp
    assert max(len({*said}) for _, said, _ in results) > 4

    np.savez(project.folder / "past.npz", np.ones((1, 2), np.int64), np.ones((16, 50, 8), np.float32), np.array([95]))
    past = project.run("run", str(folder / "xnnpack-fp32.pte"), "--method", "text_decoder", "--input", "past.npz")
    assert past.code == 2
    assert "2 tokens from position 95 on do not fit into its context of 96 tokens" in past.err


HALF = {"layers": 2, "attention_heads": 4, "ffn_dim": 64}
QUARTER = {"hidden_layers": 2, "attention_heads": 4, "key_value_heads": 4}
WRITERS = {
    "t5": {
        "vocab_size": 60,
        "d_model": 32,
        "d_kv": 8,
        "d_ff": 64,
        "num_layers": 2,
        "num_heads": 4,
        "initializer_factor": 4.0,
    },
    "bart": {
        **{f"{part}_{name}": size for part in ("encoder", "decoder") for name, size in HALF.items()},
        "vocab_size": 60,
        "d_model": 32,
        "max_position_embeddings": CONTEXT,
        "init_std": 1.0,
        "pad_token_id": 1,
        "decoder_start_token_id": 2,
    },
    "moonshine": {
        **{f"{part}_num_{name}": size for part in ("encoder", "decoder") for name, size in QUARTER.items()},
        "vocab_size": 60,
        "hidden_size": 32,
        "intermediate_size": 64,
        "initializer_range": 0.3,
        "max_position_embeddings": CONTEXT,
    },
}


def test_encoders_with_decoders(project):
    """Text and sounds of several lengths: the file says for 64 tokens what eager says."""
    tasks = dict.fromkeys(WRITERS, "text2text-generation") | {"moonshine": "automatic-speech-recognition"}
    sources = {name: {"huggingface": name, "config": config, "task": tasks[name]} for name, config in WRITERS.items()}
    exact = ("portable-fp32", "xnnpack-fp32")
    project.write_zoo({name: {"source": source} for name, source in sources.items()}, exact)
    done = project.export()
    assert done.code == 0, done.err
    files = [(project.out / name / f"{recipe}.pte", source) for name, source in sources.items() for recipe in exact]
    results = transcribe(project.folder, *files)
    assert len(results) == 3 * len(files)
    for _, said, wanted in results:
        assert said == wanted
    assert max(len({*said}) for _, said, _ in results) > 4


# A Marian with random weights, whose tokens are pieces of words in two SentencePiece models, in the hub's layout.
TRANSLATOR = """
import json, sys, sentencepiece, torch
from pathlib import Path
from transformers import MarianConfig, MarianMTModel, MarianTokenizer

folder, words = Path(sys.argv[1]), sys.argv[2].split()
folder.mkdir()
for name, text in ("source", words), ("target", reversed(words)):
    (folder / "text").write_text(" ".join(text))
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "text"), model_prefix=str(folder / name), vocab_size=40, hard_vocab_limit=False)
    (folder / f"{name}.model").rename(folder / f"{name}.spm")
pieces = [sentencepiece.SentencePieceProcessor(str(folder / f"{name}.spm")) for name in ("source", "target")]
known = {model.id_to_piece(number) for model in pieces for number in range(3, model.get_piece_size())}
vocabulary = {piece: number for number, piece in enumerate(["</s>", "<unk>", *sorted(known), "<pad>"])}
(folder / "vocab.json").write_text(json.dumps(vocabulary))
MarianTokenizer(*(str(folder / name) for name in ("source.spm", "target.spm", "vocab.json"))).save_pretrained(folder)
torch.manual_seed(0)
layers = {f"{part}_{name}": size for part in ("encoder", "decoder") for name, size in
          {"layers": 2, "attention_heads": 4, "ffn_dim": 64}.items()}
pad = vocabulary["<pad>"]
ids = {"pad_token_id": pad, "decoder_start_token_id": pad, "eos_token_id": 0}
config = MarianConfig(**layers, **ids, d_model=32, vocab_size=len(vocabulary), decoder_vocab_size=len(vocabulary),
                      max_position_embeddings=96, init_std=1.0, tie_word_embeddings=False)
net = MarianMTModel(config)
net.generation_config.bad_words_ids = [[pad]]
net.save_pretrained(folder)
"""


def test_a_model_translates(project):
    """Marian, whose tokenizer is in three parts: texts of several lengths become the text that eager makes of them."""
    folder = project.folder / "tiny"
    subprocess.run([sys.executable, "-c", TRANSLATOR, folder, TEXT], check=True, capture_output=True)
    made = project.run("export", "hf:./tiny", "--recipe", "xnnpack-fp32")
    assert made.code == 0, made.err
    assert {"source.spm", "target.spm", "vocab.json"} <= {path.name for path in (project.out / "tiny").iterdir()}
    source = {"huggingface": str(folder), "texts": ["the", TEXT[:24], TEXT]}
    results = transcribe(folder, (project.out / "tiny" / "xnnpack-fp32.pte", source))
    assert len(results) == 3
    for _, said, wanted in results:
        assert said == wanted
    assert len({said for _, said, _ in results}) > 1


# Models of images and text with random weights and their image processors, in the hub's layout.
WATCHER = """
import json, sys, torch
from transformers import AutoConfig, AutoModelForImageTextToText, GenerationConfig
from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING

for kind, (sizes, processor) in json.loads(sys.argv[1]).items():
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **sizes)
    net = AutoModelForImageTextToText.from_config(config)
    for name, values in net.named_parameters():
        if values.dim() > 1:
            torch.nn.init.normal_(values, std=0.03 if "embed_tokens" in name else 0.3)
    net.generation_config = GenerationConfig(bos_token_id=0, eos_token_id=1, pad_token_id=1)
    net.save_pretrained(kind)
    IMAGE_PROCESSOR_MAPPING[type(config)]["pil"](**processor).save_pretrained(kind)
"""

# What the runner says to texts and images, and what eager says: as JSON. Eager's images are by the image processor;
# the runner's are rescaled and normalized as the file says.
WATCH = """
import inspect, json, sys, torch
import executorch.extension.llm.custom_ops.custom_ops, executorch.kernels.quantized
from executorch.extension.llm.runner import GenerationConfig, MultimodalRunner, make_image_input, make_token_input
from pteforge.formats.pte.metadata import read_metadata
from transformers import AutoImageProcessor, AutoModelForImageTextToText, AutoTokenizer

torch.set_num_threads(1)
for file, folder in json.load(sys.stdin):
    said, runner = read_metadata(file), MultimodalRunner(file, folder)
    tokenizer, processor = AutoTokenizer.from_pretrained(folder), AutoImageProcessor.from_pretrained(folder)
    net = AutoModelForImageTextToText.from_pretrained(folder).eval()
    takes = inspect.signature(net.forward).parameters
    height, width = said["image.size"]
    mean, std = (torch.tensor(said[f"image.{name}"]).view(3, 1, 1) for name in ("mean", "std"))
    torch.manual_seed(0)
    for picture in torch.randint(256, (2, 3, height, width), dtype=torch.uint8):
        made = dict(processor(images=[picture.permute(1, 2, 0).numpy()], return_tensors="pt"))
        image = (picture.float() * said["image.rescale"] - mean) / std
        for before, after in (1, 1), (7, 3), (3, 30):
            before, after = (torch.arange(length)[None] + 4 for length in (before, after))
            features = net.get_image_features(**{name: made[name] for name in made if name in takes}).pooler_output
            rows = sum(part.reshape(-1, part.shape[-1]).shape[0] for part in features)
            ids = torch.cat([before, torch.full((1, rows), net.config.image_token_id), after], dim=1)
            types = (ids == net.config.image_token_id).long()
            given = {**made, "token_type_ids": types, "mm_token_type_ids": types}
            given = {name: given[name] for name in given if name in takes}
            wanted = net.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **given, max_new_tokens=40,
                                  do_sample=False)[0, ids.shape[1] :]
            parts = [make_token_input(before[0].tolist()), make_image_input(image), make_token_input(after[0].tolist())]
            heard = []
            runner.reset()
            runner.generate(parts, GenerationConfig(max_new_tokens=40, temperature=0.0, echo=False), heard.append)
            wanted = tokenizer.decode(wanted).removesuffix(tokenizer.eos_token)
            heard = "".join(heard).removesuffix(tokenizer.eos_token)  # the runner passes on the token that ends a text
            print("\\nRESULT", json.dumps([heard, wanted]), flush=True)
"""


def watch(*models):
    """For each file with its folder, two images and three prompts: what the runner says, and what eager says."""
    given = json.dumps([[str(file), str(folder)] for file, folder in models])
    done = subprocess.run([sys.executable, "-c", WATCH], input=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line[7:]) for line in done.stdout.splitlines() if line.startswith("RESULT ")]


DECODING = {**GROUPED, "vocab_size": 60}
SEEING = {
    **{name: TALKING[name] for name in ("hidden_size", "intermediate_size", "num_hidden_layers")},
    "image_size": 32,
}
SEEING |= {"num_attention_heads": 4, "patch_size": 8}
PATCHED = {"depth": 2, "num_heads": 2, "embed_dim": 32, "hidden_size": 32, "patch_size": 8, "spatial_merge_size": 2}
ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}}
LOCAL = {"sliding_window": 12, "layer_types": ["sliding_attention", "full_attention"]}
SQUARE = {"size": {"height": 32, "width": 32}}
WATCHERS = {
    "llava": [
        {"text_config": {"model_type": "llama"}, "vision_config": {"model_type": "clip_vision_model", **SEEING}},
        {**SQUARE, "crop_size": SQUARE["size"]},
    ],
    "smolvlm": [
        {
            "text_config": {"model_type": "llama"},
            "vision_config": {"model_type": "smolvlm_vision", **SEEING},
            "scale_factor": 2,
        },
        {"size": {"longest_edge": 32}, "max_image_size": {"longest_edge": 32}, "do_image_splitting": False},
    ],
    "gemma3": [
        {
            "text_config": {"model_type": "gemma3_text", **LOCAL},
            "vision_config": {"model_type": "siglip_vision_model", **SEEING},
            "mm_tokens_per_image": 4,
        },
        SQUARE,
    ],
    "qwen2_vl": [
        {
            "text_config": {"model_type": "qwen2_vl_text", **ROPE},
            "vision_config": {"model_type": "qwen2_vl", **PATCHED},
        },
        {"patch_size": 8, "size": {"shortest_edge": 256, "longest_edge": 2048}},
    ],
}


@pytest.fixture(scope="module")
def watchers(tmp_path_factory):
    """A folder in the hub's layout for each model of images and text."""
    folder, given = tmp_path_factory.mktemp("watchers"), {}
    for kind, (sizes, processor) in WATCHERS.items():
        text = {**DECODING, **sizes["text_config"]}
        given[kind] = [{**sizes, "text_config": text, "image_token_id": 59}, processor]
    made = [sys.executable, "-c", WATCHER, json.dumps(given)]
    subprocess.run(made, cwd=folder, check=True, capture_output=True)
    subprocess.run([sys.executable, "-c", LETTERS, folder / "letters"], check=True, capture_output=True)
    for kind in WATCHERS:
        shutil.copytree(folder / "letters", folder / kind, dirs_exist_ok=True)
        (folder / kind / "chat_template.jinja").write_text("{{ messages[0].content }}")
    return folder


def test_models_see(project, watchers):
    """Two images, texts of several lengths: ExecuTorch's runner says what eager says, and images make a difference."""
    shutil.copytree(watchers, project.folder / "watchers")
    sources = {kind: {"huggingface": f"./watchers/{kind}", "sequence": CONTEXT} for kind in WATCHERS}
    project.write_zoo({kind: {"source": source} for kind, source in sources.items()}, ("xnnpack-fp32",))
    done = project.export()
    assert done.code == 0, done.err
    names = {"tokenizer.json", "tokenizer_config.json", "preprocessor_config.json", "chat_template.jinja"}
    assert all(names <= {path.name for path in (project.out / kind).iterdir()} for kind in WATCHERS)
    results = watch(*((project.out / kind / "xnnpack-fp32.pte", watchers / kind) for kind in WATCHERS))
    assert len(results) == 2 * 3 * len(WATCHERS)
    for said, wanted in results:
        assert said == wanted
    for at in range(0, len(results), 6):
        assert results[at][0] != results[at + 3][0]
        assert max(len({*said}) for said, _ in results[at : at + 6]) > 4


def test_quantized_models_see(project, watchers):
    """Weights in 8 bits, attention by ExecuTorch's operators, a cache in int8: within bounds, and the runner runs."""
    shutil.copytree(watchers, project.folder / "watchers")
    own, int8 = {"attention": "custom_sdpa"}, {"attention": "custom_sdpa", "cache": "int8"}
    made = {
        "gemma3": (own, ("xnnpack-fp32",)),
        "llava": (int8, ("xnnpack-fp32",)),
        "qwen2_vl": (int8, ("xnnpack-fp32",)),
        "smolvlm": ({}, ("xnnpack-int8-dynamic", "xnnpack-llm-8da8w")),
    }
    project.write_zoo(
        {
            kind: {
                "source": {"huggingface": f"./watchers/{kind}", "sequence": CONTEXT, **fields},
                "recipes": list(recipes),
            }
            for kind, (fields, recipes) in made.items()
        }
    )
    done = project.export()
    assert done.code == 0, done.err
    files = [(kind, recipe) for kind, (_, recipes) in made.items() for recipe in recipes]
    results = watch(*((project.out / kind / f"{recipe}.pte", watchers / kind) for kind, recipe in files))
    exact, llava, qwen, dynamic, layers = (results[at : at + 6] for at in range(0, len(results), 6))
    assert all(said == wanted for said, wanted in exact)
    for close, length in ((llava, 4), (qwen, 4), (dynamic, 2), (layers, 2)):
        assert sum(said[:length] == wanted[:length] for said, wanted in close) > 3


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


PREPROCESSED = """
from pteforge.evaluators import files
for model in ("timm:resnet18.a1_in1k", "torchvision:resnet18"):
    (image,) = files("pictures", read=model)
    print(*image.shape, *image[0, :, 9, 9].tolist())
files("pictures", read="timm:resnet17")
"""


def test_preprocessing_of_two_libraries(project, vision):
    """Files are resized and scaled as the models of timm and torchvision take them, by their names."""
    from PIL import Image

    (project.folder / "pictures").mkdir()
    Image.new("L", (60, 40), 200).save(project.folder / "pictures" / "grey.png")
    done = subprocess.run(
        [sys.executable, "-c", PREPROCESSED],
        cwd=project.folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(vision), *filter(None, [os.environ.get("PYTHONPATH")])])},
        capture_output=True,
        text=True,
        check=False,
    )
    made = [[float(value) for value in line.split()] for line in done.stdout.splitlines()]
    assert made == [pytest.approx([1, 3, 224, 224, 1.307, 1.4655, 1.681], abs=1e-3)] * 2, done.stderr
    assert "timm:resnet17 has no preprocessing: timm has no model 'resnet17'" in done.stderr


@pytest.mark.slow
def test_a_quantized_checkpoint(project):
    """The summary says which of its numbers are kept, and the metadata what format they had."""
    folder = project.folder / "checkpoint"
    folder.mkdir()
    checkpoint(folder, "gptq")
    source = "{huggingface: ./checkpoint, task: text-generation, sequence: 32}"
    project.write("zoo.yaml", f"version: 1\nmodels: {{net: {{source: {source}, recipes: [xnnpack-llm-8da4w]}}}}\n")
    done = project.run("--verbose", "export", "zoo.yaml", "--out", "out")
    assert done.code == 0, done.err
    assert "14 layers have the numbers of the checkpoint; rounded to others: model.lm_head" in done.out
    assert "checkpoint.quantization" in project.run("inspect", "out/net/xnnpack-llm-8da4w.pte").out

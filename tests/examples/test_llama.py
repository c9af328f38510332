"""The Llama of examples/llama: prefill and decode over one cache say in the file what they say in eager."""

from __future__ import annotations

import copy

import pteforge
import pytest

STEPS = 32


def greedy(step, prompt):
    """The tokens that are most likely one after another.

    Args:
        step: takes a method's name, tokens and how many came before; gives logits.
        prompt: tokens to begin with.
    """
    import torch

    said, logits = [], step("prefill", prompt, 0)
    for number in range(STEPS):
        said.append(int(logits.argmax()))
        logits = step("decode", torch.tensor([said[-1:]]), prompt.shape[1] + number)
    return said


@pytest.mark.slow
def test_greedy_tokens(example, zoo, tmp_path):
    """Prefill and 32 decode steps through the XNNPACK payload give eager's tokens, also for a second conversation."""
    import torch

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


def test_the_size_of_its_larger_model(example, zoo):
    """It has 127 million parameters, as its zoo says; they are counted, not made."""
    import torch

    kwargs = zoo("llama/llama.yaml").models["medium"].source.kwargs
    with torch.device("meta"):
        made = example("llama/small_llama").small_llama(**kwargs)
    assert sum(each.numel() for each in made.methods["prefill"].module.parameters()) == 127_027_968

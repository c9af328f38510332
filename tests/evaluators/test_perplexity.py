"""Perplexity, by hand and by models whose answers are known."""

import json

import pytest
import torch
from pteforge.errors import SourceError
from pteforge.evaluators.perplexity import neg_perplexity
from tokenizers import Tokenizer, models, pre_tokenizers

WORDS = ["the", "cat", "sat", "on", "mat"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The zoo's folder: a tokenizer with a token for each word, and a text of seven."""
    monkeypatch.chdir(tmp_path)
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    (tmp_path / "words").mkdir()
    tokenizer.save(str(tmp_path / "words" / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast"}
    (tmp_path / "words" / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "text.txt").write_text("the cat sat on the mat cat")


class Model:
    """Thinks that the next token is one more than the last one, with a certain probability, and else any other."""

    def __init__(self, sure: float) -> None:
        self.sure = sure
        self.calls = []

    def __call__(self, *inputs, method="forward"):
        if method == "get_max_context_len":
            return 4
        tokens, start = inputs
        self.calls.append((tokens.tolist()[0], start.tolist()))
        chances = torch.full((1, len(WORDS)), (1 - self.sure) / (len(WORDS) - 1))
        chances[0, (tokens[0, -1] + 1) % len(WORDS)] = self.sure
        return chances.log()


def test_value():
    """A model that knows nothing is as surprised as it has tokens; one that is right half of the time, less."""
    arguments = {"text": "text.txt", "tokenizer": "words", "window": 8}
    assert neg_perplexity(Model(0.2), **arguments) == pytest.approx(-5)
    right, wrong = 0.6, 0.1  # the, cat, sat, on are in order; then: the (not mat), mat (not cat), cat (not the)
    expected = (right**3 * wrong**3) ** (-1 / 6)
    assert neg_perplexity(Model(0.6), **arguments) == pytest.approx(-expected)


def test_windows():
    """Each window begins anew, with the prompt at once; its size is that of the file's context."""
    model = Model(0.2)
    neg_perplexity(model, text="text.txt", tokenizer="words", prompt=2)
    assert model.calls == [([0, 1], [0]), ([2], [2]), ([0, 4], [0])]
    model = Model(0.2)
    neg_perplexity(model, text="text.txt", tokenizer="words", tokens=3, window=9)
    assert model.calls == [([0], [0]), ([1], [1])]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"tokens": 1}, "text.txt has 1 tokens"),
        ({"tokenizer": "nowhere"}, "there is no tokenizer 'nowhere'"),
        ({"prompt": 4}, "less than the window of 4 tokens"),
    ],
)
def test_what_cannot_be(arguments, problem):
    """Each is an error that says what is wrong."""
    with pytest.raises(SourceError, match=problem):
        neg_perplexity(Model(0.2), **{"text": "text.txt", "tokenizer": "words", **arguments})

"""Embeddings by judged pairs: the order counts, as scipy computes it."""

import pytest
import torch
from pteforge.errors import SourceError
from pteforge.evaluators import embedding_similarity, triplet_accuracy
from pteforge.tests.evaluators.conftest import echo


def test_as_scipy_counts(code):
    """The correlation is that of scipy, ties included."""
    from scipy.stats import spearmanr

    module = code(
        "torch.manual_seed(0)\nvectors = torch.randn(40, 8)\n"
        "couples = vectors.reshape(20, 2, 8)\n"
        "pairs = [(one[None], other[None], round(float(one @ other) / 3)) for one, other in couples]\n"
    )
    pairs = __import__(module).pairs
    similarities = [float(torch.nn.functional.cosine_similarity(one, other)) for one, other, _ in pairs]
    expected = spearmanr(similarities, [score for _, _, score in pairs]).statistic
    assert 0.5 < expected < 1
    assert embedding_similarity(echo, dataset=f"{module}:pairs") == pytest.approx(expected)


def test_texts_in_a_file(code, tmp_path):
    """A file has texts and scores, and a function of the user's makes inputs of texts."""
    module = code("def read(text):\n    return {'ids': torch.tensor([[float(text), 1.0]])}\n")
    pairs, triplets = tmp_path / "pairs.tsv", tmp_path / "triplets.tsv"
    pairs.write_text("1\t1\t5\n\n1\t2\t3\n1\t-4\t0.5\n", encoding="utf-8")
    triplets.write_text("1\t2\t-1\n1\t-1\t2\n", encoding="utf-8")
    assert embedding_similarity(echo, file=str(pairs), read=f"{module}:read") == pytest.approx(1)
    assert triplet_accuracy(echo, file=str(triplets), read=f"{module}:read") == 0.5
    assert triplet_accuracy(echo, file=str(triplets), read=f"{module}:read", samples=1) == 1
    with pytest.raises(SourceError, match=r"`file` has texts"):
        triplet_accuracy(echo, file=str(triplets))
    pairs.write_text("1\t2\tmuch\n", encoding="utf-8")
    with pytest.raises(SourceError, match=r"'1' has the score 'much'"):
        embedding_similarity(echo, file=str(pairs), read=f"{module}:read")
    pairs.write_text("1\t2\t1\n1 2 3\n", encoding="utf-8")
    with pytest.raises(SourceError, match=r"pairs.tsv, line 2: 1 columns"):
        embedding_similarity(echo, file=str(pairs), read=f"{module}:read")


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ("[(torch.ones(1, 2), torch.ones(1, 2), 1)]", "no order to compare"),
        ("[(torch.ones(1, 2), torch.eye(2)[:1], score) for score in (1, 2)]", "no order to compare"),
        ("[(torch.ones(1, 7, 4), torch.ones(1, 7, 4), 1)]", r"output is \(1, 7, 4\); an embedding of one input is"),
    ],
)
def test_nothing_to_rank(pairs, message, code):
    """Pairs without an order, or outputs for each token, give no score."""
    with pytest.raises(SourceError, match=message):
        embedding_similarity(echo, dataset=f"{code(f'pairs = {pairs}')}:pairs")


def test_vectors_of_tokens(code):
    """With `pooling`, the mean of a text's tokens or the first one is its embedding."""
    module = code(
        "a, b = torch.tensor([[[1., 0.], [0., 3.]]]), torch.tensor([[[1., 0.]]])\n"
        "triplets = [(torch.tensor([[[0., 1.]]]), a, b), (torch.tensor([[[1., 0.]]]), a, torch.tensor([[[1., 1.]]]))]\n"
    )
    assert triplet_accuracy(echo, dataset=f"{module}:triplets", pooling="mean") == 0.5
    assert triplet_accuracy(echo, dataset=f"{module}:triplets", pooling="first", samples=1) == 0
    with pytest.raises(SourceError, match=r"`pooling` .*not 'max'"):
        triplet_accuracy(echo, dataset=f"{module}:triplets", pooling="max")


def test_outputs_that_the_runtime_overwrites(code):
    """A model may write each output to the memory of the last one."""
    memory = torch.empty(1, 2)
    module = code("triplets = [(torch.tensor([[1., 0.]]), torch.tensor([[2., 1.]]), torch.tensor([[0., 1.]]))]\n")
    assert triplet_accuracy(lambda vector, method: memory.copy_(vector), dataset=f"{module}:triplets") == 1  # noqa: ARG005 - the protocol's

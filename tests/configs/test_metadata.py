"""`metadata` of models: its entries, what replaces what, and mistakes in it."""

from __future__ import annotations

import pytest
from pteforge.configs.metadata import KEYS, PROVENANCE, Metadata, merged_metadata

ZOO = """\
version: 1
models:
  net:
    source: nets:net
    recipes: [xnnpack-fp32]
    metadata: {%s}
"""


def test_entries():
    """Each field is an entry under namespace.field, in the proposal's names where it has some; others follow."""
    metadata = Metadata.model_validate(
        {
            "name": "Small",
            "architecture": "llama",
            "license": "mit",
            "labels": ["cat", "dog"],
            "image": {"size": [8, 9], "mean": [0.5], "rescale": 0.25},
            "audio": {"sampling_rate": 16000},
            "tokenizer": {"vocab_size": 10, "bos_token_id": 1, "eos_token_ids": [2, 3]},
            "context_length": 64,
            "extra": {"acme.build": 7, "acme.sizes": [1, 2]},
        }
    )
    assert metadata.entries() == {
        "general.name": "Small",
        "general.architecture": "llama",
        "general.license": "mit",
        "output.labels": ("cat", "dog"),
        "image.size": (8, 9),
        "image.rescale": 0.25,
        "image.mean": (0.5,),
        "audio.sampling_rate": 16000,
        "tokenizer.vocab_size": 10,
        "tokenizer.bos_token_id": 1,
        "tokenizer.eos_token_id": 2,
        "tokenizer.eos_token_ids": (2, 3),
        "context.length": 64,
        "acme.build": 7,
        "acme.sizes": (1, 2),
    }
    assert metadata.entries().keys() - {"acme.build", "acme.sizes"} <= KEYS - {PROVENANCE}


def test_what_replaces_what():
    """The first one's fields come first, those of sections too; null takes away what the other has."""
    first = Metadata.model_validate({"name": "mine", "license": None, "image": {"mean": [0.5]}, "extra": {"a.b": 1}})
    second = Metadata.model_validate(
        {"name": "its", "license": "mit", "image": {"mean": [0.1], "size": [4, 4]}, "extra": {"c.d": 2}}
    )
    merged = merged_metadata(first.written(), second.written())
    assert merged.entries() == {"general.name": "mine", "image.size": (4, 4), "image.mean": (0.5,), "a.b": 1, "c.d": 2}


def test_a_file_of_labels(load, tmp_path):
    """Its path is relative to the zoo; lines without text are left out. It replaces labels, as labels replace it."""
    (tmp_path / "labels.txt").write_text("cat\n\n dög \n", encoding="utf-8")
    metadata = load(ZOO % "labels_file: labels.txt").zoo.models["net"].metadata
    assert metadata.labels_file == tmp_path / "labels.txt"
    read = metadata.with_labels()
    assert read.written() == {"labels": ["cat", "dög"]}
    assert merged_metadata(read.written(), {"labels": ["other"]}).labels == ("cat", "dög")
    (tmp_path / "labels.txt").write_text("\n")
    with pytest.raises(ValueError, match="has no labels"):
        metadata.with_labels()


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ("licence: mit", "did you mean 'license'"),
        ("labels: []", "labels"),
        ("labels: [a], labels_file: a.txt", "write one of them"),
        ("image: {size: [0, 4]}", "greater than or equal to 1"),
        ("image: {interpolation: cubic}", "bicubic"),
        ("extra: {build: 7}", "must be namespace.field"),
        ("extra: {image.mean: 7}", "it has a field of its own"),
        ("extra: {general.build: 7}", "its namespace is pteforge's"),
        ("extra: {a.b: 9223372036854775808}", "more than 64 bits"),
        ("extra: {a.b: true}", "a.b"),
    ],
)
def test_mistakes(failure, written, problem):
    """Each is an error at its line that says what is wrong."""
    message = str(failure(ZOO % written))
    assert "zoo.yaml:6" in message
    assert problem in message

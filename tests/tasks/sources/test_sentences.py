"""Layers after encoders of sentences, by the files of a repository."""

import json

import pytest
import torch
from pteforge.errors import SourceError
from pteforge.tasks.sources.sentences import SentenceHead

STATES = torch.arange(24.0).reshape(2, 4, 3).sin()
MASK = torch.tensor([[1, 1, 1, 0], [0, 1, 1, 1]])  # padding on either side


def head(folder, *modules, **configs):
    """The head of a folder with modules of these kinds, and a configuration of each that has one."""
    written = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in modules]
    (folder / "modules.json").write_text(json.dumps(written))
    (folder / "config.json").write_text("{}")
    for path, config in configs.items():
        (folder / path).mkdir()
        (folder / path / "config.json").write_text(json.dumps(config))
    return SentenceHead({"pretrained_model_name_or_path": str(folder), "revision": None})


@pytest.mark.parametrize(
    ("mode", "pool"),
    [
        ("cls_token", lambda rows: rows[0]),
        ("mean_tokens", lambda rows: rows.mean(0)),
        ("max_tokens", lambda rows: rows.amax(0)),
        ("lasttoken", lambda rows: rows[-1]),
    ],
)
def test_pooling(tmp_path, mode, pool):
    """Only tokens of the mask count; the class is that of the first one."""
    layers = head(
        tmp_path, ("", "Transformer"), ("a", "Pooling"), a={f"pooling_mode_{mode}": True, "pooling_mode_x": False}
    )
    wanted = [pool(STATES[0, :3]), STATES[1, 0] if mode == "cls_token" else pool(STATES[1, 1:])]
    torch.testing.assert_close(layers(STATES, MASK), torch.stack(wanted))


def test_normalized(tmp_path):
    """Embeddings have length 1 if the repository says so, or has no such layers at all."""
    layers = head(tmp_path, ("a", "Pooling"), ("b", "Normalize"), a={"pooling_mode": "cls"})
    torch.testing.assert_close(layers(STATES, MASK), torch.nn.functional.normalize(STATES[:, 0], dim=-1))
    (tmp_path / "modules.json").unlink()
    plain = SentenceHead({"pretrained_model_name_or_path": str(tmp_path), "revision": None})
    torch.testing.assert_close(plain(STATES, MASK).norm(dim=-1), torch.ones(2))


@pytest.mark.parametrize(
    ("modules", "configs", "problem"),
    [
        ([("a", "WeightedLayerPooling")], {}, "the module 'WeightedLayerPooling' at 'a' is not known"),
        ([("a", "Pooling")], {}, "there is no a/config.json"),
        (
            [("a", "Pooling")],
            {"a": {"pooling_mode_weightedmean_tokens": True}},
            "weightedmean_tokens is not known; cls",
        ),
        ([("a", "Dense")], {"a": {}}, "module at 'a' has no a/model.safetensors"),
    ],
)
def test_unknown_layers(tmp_path, modules, configs, problem):
    """Each is an error that says what is not known, or missing."""
    with pytest.raises(SourceError, match=problem):
        head(tmp_path, *modules, **configs)

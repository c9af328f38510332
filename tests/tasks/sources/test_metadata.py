"""What models by name know of themselves."""

import pytest
from pteforge.configs.metadata import Metadata

pytestmark = pytest.mark.slow

SIZES = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}


def test_a_classifier_of_images(tmp_path, monkeypatch):
    """Labels come from its configuration, preprocessing from its processor, the licence from its card."""
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor

    folder, labels = tmp_path / "small", ["cat", "dog", "bird"]
    config = ViTConfig(**SIZES, image_size=32, patch_size=16, id2label=dict(enumerate(labels)))
    ViTForImageClassification(config).save_pretrained(folder)
    ViTImageProcessor(size={"height": 32, "width": 32}, image_mean=[0.5, 0.25, 0.125]).save_pretrained(folder)
    (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\n# Small\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    from pteforge.tasks.sources.huggingface import Model

    found = Metadata.model_validate(Model("small").get_metadata()).entries()
    assert found == {
        "general.name": "small",
        "general.architecture": "vit",
        "general.license": "apache-2.0",
        "output.labels": tuple(labels),
        "image.size": (32, 32),
        "image.interpolation": "bilinear",
        "image.channels": "RGB",
        "image.rescale": 1 / 255,
        "image.mean": (0.5, 0.25, 0.125),
        "image.std": (0.5, 0.5, 0.5),
    }
    assert str(tmp_path) not in str(found)
    (folder / "README.md").unlink()
    assert "license" not in Model("small").get_metadata()


def test_a_configuration_only():
    """Random weights have an architecture, and neither labels nor a licence."""
    from pteforge.tasks.sources.huggingface import Model

    found = Model("bert", config={**SIZES, "vocab_size": 100}, task="fill-mask").get_metadata()
    assert found == {"name": "bert", "architecture": "bert", "tokenizer": {"vocab_size": 100}}

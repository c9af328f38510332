"""Models of transformers: what the configuration, the processors and the model itself decide."""

from __future__ import annotations

import pytest
import torch
from pteforge.tasks.sources import huggingface

SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


@pytest.mark.parametrize(
    ("name", "arguments", "problem"),
    [
        ("bret", {"config": {}}, "transformers has no model_type 'bret'; did you mean 'bert'?"),
        ("bert", {"config": {"hidden_sise": 8}}, "BertConfig has no field 'hidden_sise'; did you mean 'hidden_size'?"),
        ("bert", {"config": SMALL, "task": "fill-masks"}, "transformers knows no task 'fill-masks'"),
        ("bert", {"config": SMALL, "task": "image-classification"}, "no class of transformers takes 'bert' for"),
    ],
)
def test_arguments_that_make_no_model(name, arguments, problem):
    """Each is an error that names the argument, and what there is instead."""
    with pytest.raises(ValueError, match=problem):
        huggingface.Model(name, **arguments)


def test_outputs_by_name():
    """They are kept; the names that there are follow an unknown one."""
    config = {**SMALL, "vocab_size": 32}
    made = huggingface.Model("bert", config=config, outputs=["pooler_output"])
    assert [output.shape for output in made.get_eager_model()(*made.get_example_inputs())] == [(2, 16)]
    unknown = huggingface.Model("bert", config=config, outputs=["logits"])
    with pytest.raises(ValueError, match="does not return logits; it returns last_hidden_state, pooler_output"):
        unknown.get_eager_model()(*unknown.get_example_inputs())


def test_a_folder_beside_the_zoo_and_a_model_type(tmp_path, monkeypatch):
    """A model_type is not taken for a folder of that name."""
    monkeypatch.chdir(tmp_path)
    huggingface.Model("bert", config={**SMALL, "vocab_size": 32}).model.save_pretrained("bert")
    assert huggingface.Model("bert", config={**SMALL, "vocab_size": 40}).config.hidden_size == 16
    assert huggingface.Model("bert", config={"num_hidden_layers": 1}).config.hidden_size == 768
    assert huggingface.Model("./bert").config.vocab_size == 32


def test_an_image_from_the_processor(tmp_path):
    """Size and values of example images are those that the model's own processor makes."""
    transformers = huggingface.transformers
    config = {**SMALL, "image_size": 48, "patch_size": 16}
    huggingface.Model("vit", config=config).model.save_pretrained(tmp_path)
    size = {"height": 48, "width": 48}
    transformers.ViTImageProcessor(size=size, image_mean=[0.5] * 3, image_std=[0.5] * 3).save_pretrained(tmp_path)
    (image,) = huggingface.Model(str(tmp_path)).get_example_inputs()
    assert image.shape == (2, 3, 48, 48)
    assert torch.equal(image[0], image[1])
    assert 0.9 < float(image.abs().max()) <= 1

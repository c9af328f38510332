"""Models of transformers: what the configuration, the processors and the model itself decide."""

import pytest
import torch
from pteforge.errors import SourceError
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
    with pytest.raises(SourceError, match=problem):
        huggingface.Model(name, **arguments)


def test_outputs_by_name():
    """They are kept; the names that there are follow an unknown one."""
    config = {**SMALL, "vocab_size": 32}
    made = huggingface.Model("bert", config=config, outputs=["pooler_output"])
    assert [output.shape for output in made.get_eager_model()(*made.get_example_inputs())] == [(2, 16)]
    unknown = huggingface.Model("bert", config=config, outputs=["logits"])
    with pytest.raises(SourceError, match="does not return logits; it returns last_hidden_state, pooler_output"):
        unknown.get_eager_model()(*unknown.get_example_inputs())


def test_a_folder_beside_the_zoo_and_a_model_type(tmp_path, monkeypatch):
    """A model_type is not taken for a folder of that name."""
    monkeypatch.chdir(tmp_path)
    huggingface.Model("bert", config={**SMALL, "vocab_size": 32}).model.save_pretrained("bert")
    assert huggingface.Model("bert", config={**SMALL, "vocab_size": 40}).config.hidden_size == 16
    assert huggingface.Model("bert", config={"num_hidden_layers": 1}).config.hidden_size == 768
    assert huggingface.Model("./bert").config.vocab_size == 32


def test_a_configuration_that_several_classes_take():
    """A configuration without weights makes the model of a task, also where transformers has several classes for it."""
    config = {**SMALL, "image_size": 32, "patch_size": 8}
    made = huggingface.Model("deit", task="image-classification", config=config)
    assert type(made.model).__name__ == "DeiTForImageClassification"


TEXT = {**SMALL, "vocab_size": 64, "num_key_value_heads": 2, "head_dim": 8}
VISION = {**SMALL, "image_size": 28, "patch_size": 14}


@pytest.mark.parametrize(
    ("name", "config"),
    [
        (
            "llava",
            {
                "image_token_index": 63,
                "text_config": {"model_type": "llama", **TEXT},
                "vision_config": {"model_type": "clip_vision_model", **VISION},
            },
        ),
        (
            "paligemma",
            {
                "image_token_id": 63,
                "projection_dim": 16,
                "text_config": TEXT,
                "vision_config": {"projection_dim": 16, **VISION},
            },
        ),
    ],
)
def test_texts_about_images(name, config):
    """A text begins with as many tokens as its image has features, which the model replaces; no size varies."""
    made = huggingface.Model(name, config=config)
    inputs = dict(zip(made.get_dynamic_shapes(), made.get_example_inputs(), strict=True))
    assert (inputs["input_ids"] == 63).sum(dim=1).tolist() == [4, 4]
    assert inputs["attention_mask"].shape == inputs["input_ids"].shape
    assert not any(made.get_dynamic_shapes().values())
    with torch.no_grad():
        assert made.get_eager_model()(*inputs.values())[0].shape[:2] == inputs["input_ids"].shape


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

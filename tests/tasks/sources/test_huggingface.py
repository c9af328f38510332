"""Models of transformers: what the configuration, the processors and the model itself decide."""

import pytest
import torch
from pteforge.configs.sources import TASKS, HuggingFaceSource
from pteforge.errors import SourceError
from pteforge.tasks.sources import huggingface
from tokenizers import Tokenizer, models, pre_tokenizers

SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


@pytest.mark.parametrize(
    ("name", "arguments", "problem"),
    [
        ("bret", {"config": {}}, "transformers has no model_type 'bret'; did you mean 'bert'?"),
        ("bert", {"config": {"hidden_sise": 8}}, "BertConfig has no field 'hidden_sise'; did you mean 'hidden_size'?"),
        ("bert", {"config": SMALL, "task": "fill-masks"}, "no task 'fill-masks'; did you mean 'fill-mask'?"),
        (
            "bert",
            {"config": SMALL, "task": "image-classification"},
            "no 'bert' for the task 'image-classification'; .*fill",
        ),
        ("llama", {"config": SMALL, "task": "image-classification"}, "it has some for .*text-generation"),
    ],
)
def test_arguments_that_make_no_model(name, arguments, problem):
    """Each is an error that names the argument, and what there is instead."""
    with pytest.raises(SourceError, match=problem):
        huggingface.Model(name, **arguments)


def test_tasks():
    """A zoo is refused for a task that is hardly misspelt; one that a newer transformers has is left to that."""
    assert set(TASKS) == set(huggingface._TASKS)
    assert HuggingFaceSource(huggingface="bert", task="fill-holes").task == "fill-holes"
    with pytest.raises(ValueError, match="no task 'text-generaton'; did you mean 'text-generation'"):
        HuggingFaceSource(huggingface="bert", task="text-generaton")


def test_outputs_by_name():
    """They are kept; the names that there are follow an unknown one."""
    config = {**SMALL, "vocab_size": 32}
    made = huggingface.Model("bert", config=config, outputs=["pooler_output"])
    assert [output.shape for output in made.get_eager_model()(*made.get_example_inputs())] == [(2, 16)]
    unknown = huggingface.Model("bert", config=config, outputs=["logits"])
    with pytest.raises(SourceError, match=r"not return logits; .*last_hidden_state, pooler_output"):
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


def _with_tokenizer(folder, *special: str) -> None:
    """Writes a small BERT and a tokenizer of words."""
    backend = Tokenizer(models.WordLevel({"[PAD]": 0, "[UNK]": 1, "the": 2, "fox": 3}, unk_token="[UNK]"))  # noqa: S106 - no password
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    huggingface.Model("bert", config={**SMALL, "vocab_size": 10}).model.save_pretrained(folder)
    named = {"tokenizer_object": backend, "model_input_names": ["input_ids", "attention_mask"]}
    tokens = {f"{name}_token": f"[{name.upper()}]" for name in special}
    huggingface.transformers.PreTrainedTokenizerFast(**named, **tokens).save_pretrained(folder)


def test_padded_texts(tmp_path):
    """Each text has as many tokens as asked for, the mask says which are padding, and no size varies."""
    _with_tokenizer(tmp_path / "words", "pad", "unk")
    for name, fields, shape in (
        (str(tmp_path / "words"), {"sequence": 40}, (1, 40)),
        (str(tmp_path / "words"), {"sequence": 64, "batch": 3}, (3, 64)),
        ("bert", {"sequence": 48, "config": {**SMALL, "vocab_size": 10}}, (1, 48)),
    ):
        made = huggingface.Model(name, padding="max_length", **fields)
        ids, mask = made.get_example_inputs()
        assert (ids.shape, mask.shape) == (shape, shape)
        assert 0 < int(mask[0].sum()) < shape[1]
        assert not ids[mask == 0].any()
        assert not any(made.get_dynamic_shapes().values())
    _with_tokenizer(tmp_path / "without", "unk")
    with pytest.raises(SourceError, match=r"`padding` out: .*tokenizer has no token"):
        huggingface.Model(str(tmp_path / "without"), padding="max_length")
    with pytest.raises(SourceError, match=r"`padding` out: ViTModel .*no `input_ids`"):
        huggingface.Model("vit", config=SMALL, padding="max_length")


PATCHES = {**SMALL, "image_size": 32, "patch_size": 8}


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        ("vit", PATCHES),
        ("siglip_vision_model", PATCHES),
        ("clip_vision_model", PATCHES),
        ("resnet", {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1]}),
    ],
)
def test_images_of_another_size(kind, config):
    """The model computes what transformers does with interpolated position embeddings, for other images, too."""
    made = huggingface.Model(kind, config=config, batch=1, image_size=[40, 64])
    (image,) = made.get_example_inputs()
    assert image.shape == (1, 3, 40, 64)
    assert made.get_metadata()["image"]["size"] == [40, 64]
    flat, image = made.get_eager_model(), torch.randn_like(image)
    with torch.no_grad():
        found = flat(image)[0]
        for module in made.model.modules():
            vars(module).pop("interpolate_pos_encoding", None)  # which is as transformers has it again
        assert torch.equal(found, flat(image)[0])


def test_images_of_a_size_that_is_refused():
    """By the model, or because it takes none."""
    with pytest.raises(SourceError, match=r"image_size: ViTModel .*images of 4x4: "):
        huggingface.Model("vit", config=PATCHES, image_size=4)
    with pytest.raises(SourceError, match=r"`image_size` out: BertModel .*no `pixel_values`"):
        huggingface.Model("bert", config=SMALL, image_size=32)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(("kind", "config"), [("bert", {**SMALL, "vocab_size": 10}), ("vit", PATCHES)])
def test_weights_in_16_bits(kind, config, dtype):
    """Weights are in the dtype; inputs and outputs in float32, close to those of the model in float32."""
    made = huggingface.Model(kind, config=config, batch=1, dtype=dtype)
    assert {weight.dtype for weight in made.model.parameters()} == {getattr(torch, dtype)}
    inputs = made.get_example_inputs()
    with torch.no_grad():
        found = made.get_eager_model()(*inputs)[0]
        made.model.float()
        wanted = made.get_eager_model()(*inputs)[0]
    assert {value.dtype for value in (*inputs, found)} <= {torch.float32, torch.int64}
    assert 0 < (found - wanted).abs().max() < 0.05 * wanted.abs().max()

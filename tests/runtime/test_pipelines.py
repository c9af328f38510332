"""Loaded models that classify, embed, rank and transcribe, compared with the pipelines of transformers."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pteforge
import pytest
import torch
from pteforge.errors import InputError
from pteforge.runtime import LoadedProgram, load
from pteforge.tests.artifacts.hub_server import run_hub
from pteforge.tests.conftest import run_process

TEXT = "anna meets bob in the old town of bern"
OTHER = "the old town"
SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


def write_tokenizer(folder: Path) -> Any:
    """A tokenizer of whole words, as BERT's: texts are between two special tokens, and pairs have types."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    words = {word: number for number, word in enumerate([*special, *sorted({*TEXT.split()})])}
    splitter = Tokenizer(models.WordLevel(words, "[UNK]"))
    splitter.pre_tokenizer = pre_tokenizers.Whitespace()
    splitter.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token"), special, strict=True))
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=splitter, **names, model_input_names=inputs)
    tokenizer.save_pretrained(folder)
    return tokenizer


def write_bert(folder: Path, kind: str, labels: str = "", **settings: Any) -> Any:
    """A model of one layer with large random weights, so that inputs matter."""
    import transformers

    tokenizer = write_tokenizer(folder)
    torch.manual_seed(0)
    if labels:
        settings["id2label"] = dict(enumerate(labels.split()))
    sizes, name = SMALL, "Bert"
    if kind.startswith("DistilBert"):
        sizes, name = {"dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 16}, "DistilBert"
    config = getattr(transformers, f"{name}Config")(
        vocab_size=len(tokenizer), initializer_range=0.5, **sizes, **settings
    )
    net = getattr(transformers, kind)(config).eval()
    net.save_pretrained(folder)
    return net, tokenizer


def write_embedder(folder: Path, pooling: str) -> Any:
    """A model with layers of sentence-transformers: one that pools, and one that projects, by a fixed matrix."""
    from safetensors.torch import save_file

    net = write_bert(folder, "BertModel")
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Dense": "Dense"}
    modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in kinds.items()]
    (folder / "modules.json").write_text(json.dumps(modules))
    names = {"cls": "cls_token", "mean": "mean_tokens", "max": "max_tokens", "last": "lasttoken"}
    modes = {f"pooling_mode_{name}": mode == pooling for mode, name in names.items()}
    for path, config in (
        ("1_Pooling", modes),
        ("2_Dense", {"activation_function": "torch.nn.modules.activation.Tanh"}),
    ):
        (folder / path).mkdir()
        (folder / path / "config.json").write_text(json.dumps(config))
    save_file({"linear.weight": PROJECTION}, folder / "2_Dense" / "model.safetensors")
    return net


PROJECTION = torch.linspace(-1, 1, 64).sin().reshape(4, 16)


def write_viewer(folder: Path) -> Any:
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor

    torch.manual_seed(0)
    config = ViTConfig(**SMALL, image_size=32, patch_size=8, id2label={0: "cat", 1: "dog"}, initializer_range=0.5)
    net, processor = ViTForImageClassification(config).eval(), ViTImageProcessor(size={"height": 32, "width": 32})
    net.save_pretrained(folder)
    processor.save_pretrained(folder)
    return net, processor


def write_listener(folder: Path) -> Any:
    import transformers

    letters = ["<pad>", "<s>", "</s>", "<unk>", "|", *"abcdefgh"]
    (folder / "vocab.json").write_text(json.dumps({letter: number for number, letter in enumerate(letters)}))
    tokenizer = transformers.Wav2Vec2CTCTokenizer(str(folder / "vocab.json"))
    processor = transformers.Wav2Vec2Processor(transformers.Wav2Vec2FeatureExtractor(), tokenizer)
    processor.save_pretrained(folder)
    torch.manual_seed(0)
    layers = {"conv_dim": (16,) * 7, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4}
    config = transformers.Wav2Vec2Config(**SMALL, **layers, vocab_size=len(letters), initializer_range=1.0)
    net = transformers.Wav2Vec2ForCTC(config).eval()
    net.save_pretrained(folder)
    return net, processor


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> tuple[Path, dict[str, Any]]:
    """The folder where models are exported by name in one run, and by name, what transformers runs of each."""
    folder = tmp_path_factory.mktemp("models")
    padded = {"padding": "max_length", "sequence": 24}
    labels = "O B-PER I-PER B-LOC I-LOC"
    writers = {
        "distilbert": lambda to: write_bert(to, "DistilBertForSequenceClassification", "bad fair good"),
        "reranker": lambda to: write_bert(to, "BertForSequenceClassification", num_labels=1),
        "parts": lambda to: write_bert(to, "BertForTokenClassification", labels),
        "states": lambda to: write_bert(to, "BertModel"),
        "last": lambda to: write_embedder(to, "last"),
        "viewer": write_viewer,
        "listener": write_listener,
    }
    sources: dict[str, Any] = {name: {"huggingface": f"./in/{name}"} for name in writers}
    sources["viewer"]["batch"] = 1
    sources["listener"]["audio_frames"] = 48_000
    sources["padded"] = {"huggingface": "./in/parts", **padded}
    sources["normalized"] = {"huggingface": "./in/states", "task": "sentence-similarity", **padded}
    written = {}
    for name, write in writers.items():
        (folder / "in" / name).mkdir(parents=True)
        written[name] = write(folder / "in" / name)
    zoo = {name: {"source": source, "recipes": ["xnnpack-fp32"]} for name, source in sources.items()}
    (folder / "zoo.yaml").write_text(json.dumps({"version": 1, "models": zoo}))
    done = run_process("pteforge", "export", "zoo.yaml", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder, written


def loaded(models: tuple[Path, dict[str, Any]], name: str) -> LoadedProgram:
    return load(models[0] / "out" / name)


@pytest.mark.slow
def test_texts(models):
    """Labels and scores are those of the pipeline, though the tokenizer makes types of tokens that the model lacks."""
    from transformers import pipeline

    net, tokenizer = models[1]["distilbert"]
    model = loaded(models, "distilbert")
    for text in (TEXT, OTHER, "bern"):
        wanted = pipeline("text-classification", model=net, tokenizer=tokenizer, top_k=None)([text])[0]
        classes = model.classify(text)
        assert [label.name for label in classes] == [each["label"] for each in wanted]
        assert [label.score for label in classes] == pytest.approx([each["score"] for each in wanted], abs=1e-5)
    assert len(model.classify(TEXT, top=1)) == 1
    with pytest.raises(InputError, match="takes texts, not int: use `run`"):
        model.classify(3)
    with pytest.raises(InputError, match="generates no text"):
        model.generate("anna")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["parts", "padded"])
def test_parts_of_texts(models, name):
    """Parts with a class are the pipeline's, with a padded export, too."""
    from transformers import pipeline

    net, tokenizer = models[1]["parts"]
    wanted = pipeline("token-classification", model=net, tokenizer=tokenizer, aggregation_strategy="simple")(TEXT)
    parts = loaded(models, name).classify(TEXT)
    assert len(parts) > 1
    assert [(part.name, part.start, part.end) for part in parts] == [
        (each["entity_group"], each["start"], each["end"]) for each in wanted
    ]
    assert [part.score for part in parts] == pytest.approx([each["score"] for each in wanted], abs=1e-5)
    assert all(TEXT[part.start : part.end] == part.text for part in parts)


@pytest.mark.slow
def test_a_reranker(models):
    """Scores of pairs are the sigmoid of the model's only output."""
    net, tokenizer = models[1]["reranker"]
    texts = [OTHER, "bern", "anna meets bob"]
    pairs = tokenizer([TEXT] * 3, texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        wanted = net(**pairs).logits.sigmoid()[:, 0].tolist()
    assert loaded(models, "reranker").rank(TEXT, texts) == pytest.approx(wanted, abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["last", "normalized"])
def test_sentences(models, name):
    """What the layers of sentence-transformers say is done to the states of one text, without its padding."""
    net, tokenizer = models[1].get(name) or models[1]["states"]

    def wanted(text: str) -> torch.Tensor:
        with torch.no_grad():
            states = net(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        if name == "normalized":
            return torch.nn.functional.normalize(states.mean(0), dim=0)
        return (PROJECTION @ states[-1]).tanh()

    embeddings = loaded(models, name).embed([TEXT, OTHER])
    torch.testing.assert_close(embeddings, torch.stack([wanted(TEXT), wanted(OTHER)]), atol=1e-5, rtol=1e-4)


@pytest.mark.slow
def test_states_are_no_embedding(models):
    """The error says what the file has, and how to export embeddings."""
    with pytest.raises(InputError, match=r"2 outputs, not an embedding: .*outputs"):
        loaded(models, "states").embed(TEXT)
    with pytest.raises(InputError, match=r"states \(1, 11, 5\) in place of an embedding: .*task: sentence-similarity"):
        loaded(models, "parts").embed(TEXT)


@pytest.mark.slow
def test_images(models, tmp_path):
    """An image of another size is prepared by the model's own processor; classes are the pipeline's."""
    from PIL import Image
    from transformers import pipeline

    net, processor = models[1]["viewer"]
    picture = tmp_path / "picture.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (50, 70, 3), np.uint8)).save(picture)
    wanted = pipeline("image-classification", model=net, image_processor=processor)(str(picture))
    classes = loaded(models, "viewer").classify(picture)
    assert [label.name for label in classes] == [each["label"] for each in wanted]
    assert [label.score for label in classes] == pytest.approx([each["score"] for each in wanted], abs=1e-4)


@pytest.mark.slow
def test_speech_by_frames(models, tmp_path):
    """A model with CTC says of sounds of several lengths what eager says, in Python and at the command line."""
    import soundfile

    net, processor = models[1]["listener"]
    model = loaded(models, "listener")
    for seconds in (0.5, 1.3, 3.0):
        sound = np.random.default_rng(0).normal(size=int(16_000 * seconds)).astype(np.float32)
        features = processor(sound, sampling_rate=16_000, return_tensors="pt").input_values
        with torch.no_grad():
            tokens = net(features).logits.argmax(-1)
        wanted = processor.batch_decode(tokens, skip_special_tokens=True)[0]
        assert len(wanted) > 3
        assert model.transcribe((sound, 16_000)).text == wanted
    soundfile.write(tmp_path / "sound.wav", sound, 16_000, subtype="FLOAT")
    done = run_process("pteforge", "generate", model.file, "--audio", tmp_path / "sound.wav", "--quiet", cwd=tmp_path)
    assert (done.returncode, done.stdout.strip()) == (0, wanted.strip()), done.stderr
    with pytest.raises(InputError, match=r"48,?000"):
        model.transcribe((np.zeros(50_000, np.float32), 16_000))


class Pass(torch.nn.Module):
    """Returns the image that it takes."""

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return image.flatten(1) + 0.0


def test_images_by_metadata(tmp_path):
    """Without a processor, an image is resized, cropped and normalized as the metadata says."""
    from PIL import Image

    image = {"size": [8, 6], "resize": 12, "interpolation": "bilinear", "mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.4]}
    exported = pteforge.export(
        Pass().eval(),
        (torch.zeros(1, 3, 8, 6),),
        recipe="portable-fp32",
        metadata={"image": image},
        store=tmp_path / "store",
    )
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 50, 3), np.uint8))
    middle = np.array(picture.resize((15, 12), Image.Resampling.BILINEAR))[2:10, 4:10]
    wanted = (torch.tensor(middle / 255) - torch.tensor(image["mean"])) / torch.tensor(image["std"])
    file = exported.save(tmp_path / "pass.pte")
    torch.testing.assert_close(
        load(file).embed(picture), wanted.permute(2, 0, 1).flatten()[None].float(), atol=1e-5, rtol=1e-5
    )


def test_which_file(tmp_path):
    """A folder with several files asks which, and names them."""
    for name in ("one", "two", "two.rejected"):
        (tmp_path / f"{name}.pte").touch()
    with pytest.raises(InputError, match=r"which file by its recipe: it has one, two: name one"):
        load(tmp_path)
    with pytest.raises(InputError, match=r"by the recipe 'three': it has one, two"):
        load(tmp_path, recipe="three")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="it has none"):
        load(tmp_path / "empty")
    with pytest.raises(InputError, match="names no model: write hf://org/name/MODEL"):
        load("hf://org/name")


LOAD = """
import sys, torch
from pteforge.errors import InputError
from pteforge.runtime import load
for url in sys.argv[1:]:
    try:
        print(load(url).run("forward", [torch.ones(4)])[0].tolist())
    except InputError as error:
        print(error)
"""


def test_a_release_on_the_hub(lower, tmp_path):
    """Only the folder of the model is downloaded, of a branch where one is named; what is missing is an error."""
    file = bytes(lower("builders:constant", {"specializations": [{"target": "portable"}]}).file)
    with run_hub() as hub:
        hub.repositories["org/zoo"] = {
            "main": [{"other/a.pte": file}],
            "next": [{"net/a.pte": file, "other/a.pte": file}],
        }
        settings = {"HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(tmp_path), "HF_HUB_DISABLE_XET": "1"}
        urls = ("hf://org/zoo@next/net", "hf://org/zoo/net", "hf://org/none/net")
        done = run_process(sys.executable, "-c", LOAD, *urls, env={**os.environ, **settings})
    answers = done.stdout.splitlines()
    assert answers[0] == "[1.5, 1.5, 1.5, 1.5]", done.stderr
    assert "there is no" in answers[1]
    assert "hf://org/none/net cannot be downloaded" in answers[2]
    assert [path.parent.name for path in tmp_path.rglob("a.pte")] == ["net"]

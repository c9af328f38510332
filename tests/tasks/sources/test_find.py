"""Where a model that is named is: which builder makes it, of which files, and what is wrong with a name."""

import io
import json
import zipfile
from pathlib import Path

import pytest
from pteforge.configs.sources import HuggingFaceSource, TimmSource, TorchvisionSource
from pteforge.errors import SourceError
from pteforge.tasks.sources import find
from pteforge.tasks.sources.find import find_source

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub(tmp_path, monkeypatch) -> Path:
    """A cache of the hub with one repository, at one commit. Nothing can be downloaded."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    repository = tmp_path / "hub" / "models--org--small"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(COMMIT)
    write_model(repository / "snapshots" / COMMIT, "BertForMaskedLM")
    return tmp_path


def safetensors(size: int) -> bytes:
    """A file with one tensor of `size` bytes."""
    header = json.dumps({"__metadata__": {"format": "pt"}, "weight": {"data_offsets": [0, size]}}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(size)


def write_model(folder: Path, architecture: str, **fields: object) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "bert", "architectures": [architecture], **fields}))
    (folder / "model.safetensors").write_bytes(safetensors(4))
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    (folder / "README.md").write_text("names the licence")
    (folder / "training.md").write_text("not read by any model")


def test_a_repository_at_a_branch(hub):
    """Its commit is an argument, and all files that a model reads are declared."""
    for revision in (None, "main", COMMIT):
        found = find_source(HuggingFaceSource(huggingface="org/small", revision=revision), hub)
        assert found.builder == "pteforge.tasks.sources.huggingface:Model"
        assert found.kwargs == {"name": "org/small", "revision": COMMIT}
        names = ["README.md", "chat_template.jinja", "config.json", "model.safetensors"]
        assert [path.name for path in found.files] == names


def test_a_folder_is_named_relative_to_the_zoo(tmp_path):
    """So that both may be moved; a causal language model gets the builder with a cache, if no task is named."""
    write_model(tmp_path / "zoo" / "small", "LlamaForCausalLM")
    source = HuggingFaceSource(huggingface=str(tmp_path / "zoo" / "small"), sequence=64)
    found = find_source(source, tmp_path / "zoo")
    assert found.builder == "pteforge.tasks.sources.text_generation:model"
    assert found.kwargs == {"name": "./small", "sequence": 64}
    other = find_source(source.model_copy(update={"task": "feature-extraction"}), tmp_path / "zoo")
    assert other.builder == "pteforge.tasks.sources.huggingface:Model"


@pytest.mark.parametrize(
    ("architecture", "decodes", "task", "builder"),
    [
        ("WhisperForConditionalGeneration", True, None, "encoder_decoder:model"),
        ("MarianMTModel", True, None, "encoder_decoder:model"),
        ("T5ForConditionalGeneration", True, "text2text-generation", "encoder_decoder:model"),
        ("T5ForConditionalGeneration", True, "feature-extraction", "huggingface:Model"),
        ("T5EncoderModel", True, None, "huggingface:Model"),
        ("Wav2Vec2ForCTC", False, "automatic-speech-recognition", "huggingface:Model"),
        ("LlavaForConditionalGeneration", False, None, "huggingface:Model"),
    ],
)
def test_models_with_a_decoder(tmp_path, architecture, decodes, task, builder):
    """An encoder and a decoder that was made to generate get a builder of their own, unless the task is another one."""
    write_model(tmp_path / "small", architecture, is_encoder_decoder=decodes)
    (tmp_path / "small" / "source.spm").write_bytes(b"pieces")
    found = find_source(HuggingFaceSource(huggingface=str(tmp_path / "small"), task=task), tmp_path)
    assert found.builder == f"pteforge.tasks.sources.{builder}"
    assert "source.spm" in [path.name for path in found.files]


@pytest.mark.parametrize(
    ("architecture", "fields", "task", "builder"),
    [
        ("VoxtralForConditionalGeneration", {"audio_config": {}}, None, "audio_text:model"),
        ("GraniteSpeechForConditionalGeneration", {"encoder_config": {}}, None, "audio_text:model"),
        (
            "GraniteSpeechForConditionalGeneration",
            {"encoder_config": {}},
            "automatic-speech-recognition",
            "audio_text:model",
        ),
        ("VoxtralForConditionalGeneration", {"audio_config": {}}, "feature-extraction", "huggingface:Model"),
        ("ClapModel", {"audio_config": {}}, None, "huggingface:Model"),
    ],
)
def test_models_that_hear(tmp_path, architecture, fields, task, builder):
    """Models that generate text from sounds and text get a builder of their own, unless the task is another one."""
    write_model(tmp_path / "small", architecture, **fields)
    found = find_source(HuggingFaceSource(huggingface=str(tmp_path / "small"), task=task), tmp_path)
    assert found.builder == f"pteforge.tasks.sources.{builder}"


def test_old_weights(hub):
    """Where there are no safetensors, the weights that are read instead are declared."""
    snapshot = hub / "hub" / "models--org--small" / "snapshots" / COMMIT
    (snapshot / "model.safetensors").unlink()
    (snapshot / "pytorch_model.bin").write_bytes(archive(4))
    found = find_source(HuggingFaceSource(huggingface="org/small"), hub)
    names = ["README.md", "chat_template.jinja", "config.json", "pytorch_model.bin"]
    assert [path.name for path in found.files] == names


def test_a_repository_of_which_the_cache_has_a_part(hub):
    """What is missing is named where it cannot be downloaded; random weights need only the configuration."""
    (hub / "hub" / "models--org--small" / "snapshots" / COMMIT / "model.safetensors").unlink()
    with pytest.raises(SourceError, match="there are no weights in "):
        find_source(HuggingFaceSource(huggingface="org/small"), hub)
    found = find_source(HuggingFaceSource(huggingface="org/small", config={}), hub)
    assert [path.name for path in found.files] == ["README.md", "chat_template.jinja", "config.json"]


def archive(size: int) -> bytes:
    """What torch.save writes, in outline."""
    with zipfile.ZipFile(written := io.BytesIO(), "w") as opened:
        opened.writestr("weights/data/0", bytes(size))
    return written.getvalue()


SHARDS = [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]
WHOLE = dict.fromkeys(SHARDS, safetensors(4))


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 4\n"


def index(*names: str) -> bytes:
    return json.dumps({"weight_map": dict(enumerate(names))}).encode()


@pytest.mark.parametrize(
    ("entry", "files", "problem"),
    [
        (index(*SHARDS), {SHARDS[0]: safetensors(4)}, f"{SHARDS[1]} is missing; {SHARDS[2]} is missing; copy"),
        (
            index(*SHARDS),
            {**WHOLE, SHARDS[1]: safetensors(4000)[:1000]},
            f"complete: {SHARDS[1]} has 1000 bytes, and its header says 40[0-9][0-9]; copy",
        ),
        (index(*SHARDS), {**WHOLE, SHARDS[1]: safetensors(4) + b"more"}, f"{SHARDS[1]} has [0-9]+ bytes, and its"),
        (index(*SHARDS), {**WHOLE, SHARDS[1]: safetensors(4)[:20]}, f"{SHARDS[1]} is cut, or not a file of weights"),
        (index(*SHARDS), {**WHOLE, SHARDS[1]: POINTER}, f"{SHARDS[1]} is a pointer of Git LFS \\(run `git lfs pull`"),
        (index(*SHARDS), {**WHOLE, SHARDS[1]: b""}, f"{SHARDS[1]} is cut, or not a file of weights"),
        (index(*SHARDS), {**WHOLE, SHARDS[1]: b"\2\0\0\0\0\0\0\0[]"}, f"{SHARDS[1]} is cut, or not a"),
        (None, WHOLE, f"no model.safetensors and no pytorch_model.bin, and no index for {SHARDS[0]}, {SHARDS[1]}"),
        (index(*(f"{number}.safetensors" for number in range(9))), {}, "3.safetensors is missing, and 5 more files"),
        (index(SHARDS[0], "../b/model.safetensors"), WHOLE, "index.json names ../b/model.safetensors, which is not"),
        (index(SHARDS[0], "/b/model.safetensors"), WHOLE, "index.json names /b/model.safetensors, which is not in its"),
        (index(), WHOLE, "index.json names no files"),
        (b"{}", WHOLE, "index.json is no index of weights that can be read: .*weight_map"),
        (b"[]", WHOLE, "index.json is no index of weights that can be read"),
        (b"", WHOLE, "index.json is no index of weights that can be read"),
        (b'{"weight_map": []}', WHOLE, "index.json is no index of weights that can be read"),
        (None, {"model.safetensors": safetensors(9)[:-1]}, "model.safetensors has [0-9]+ bytes, and its header says"),
    ],
)
def test_parts_of_a_checkpoint(tmp_path, entry, files, problem):
    """A folder that was copied in part is refused before any work, by the headers and sizes of its files."""
    write_model(tmp_path / "large", "LlamaForCausalLM")
    (tmp_path / "large" / "model.safetensors").unlink()
    if entry is not None:
        (tmp_path / "large" / "model.safetensors.index.json").write_bytes(entry)
    for name, content in files.items():
        (tmp_path / "large" / name).write_bytes(content)
    with pytest.raises(SourceError, match=problem):
        find_source(HuggingFaceSource(huggingface=str(tmp_path / "large")), tmp_path)


def test_parts_of_older_checkpoints(tmp_path):
    """Of archives, the end is known; files of before torch 1.6 have no sizes. Shards may be in folders below."""
    write_model(tmp_path / "large", "LlamaForCausalLM")
    (tmp_path / "large" / "model.safetensors").unlink()
    (tmp_path / "large" / "pytorch_model.bin.index.json").write_bytes(index("parts/a.bin", "b.bin"))
    source, folder = HuggingFaceSource(huggingface=str(tmp_path / "large")), tmp_path / "large"
    with pytest.raises(SourceError, match=r"b\.bin is missing; a\.bin is missing"):
        find_source(source, tmp_path)
    (folder / "parts").mkdir()
    (folder / "parts" / "a.bin").write_bytes(archive(5000)[:4000])
    (folder / "b.bin").touch()
    with pytest.raises(SourceError, match=r"b\.bin is cut, .*; a\.bin is cut"):
        find_source(source, tmp_path)
    (folder / "parts" / "a.bin").write_bytes(archive(5000))
    (folder / "b.bin").write_bytes(b"\x80\x02 a pickle")
    names = ["b.bin", "parts/a.bin"]
    found = [str(path.relative_to(folder)) for path in find_source(source, tmp_path).files if path.suffix == ".bin"]
    assert found == names
    (folder / "model.safetensors").write_bytes(safetensors(4))  # is read in their place
    (folder / "b.bin").unlink()
    find_source(source, tmp_path)
    (folder / "other.safetensors").write_bytes(safetensors(4))
    (folder / "config.json").write_text(json.dumps({"transformers_weights": "other.safetensors"}))
    (folder / "model.safetensors").write_bytes(b"is not read")
    find_source(source, tmp_path)


def test_an_adapter_that_is_cut(tmp_path):
    """Its file is checked as those of the model are."""
    write_model(tmp_path / "small", "LlamaForCausalLM")
    write_adapter(tmp_path / "tuned", None)
    (tmp_path / "tuned" / "adapter_model.safetensors").write_bytes(safetensors(40)[:-4])
    source = HuggingFaceSource(huggingface=str(tmp_path / "small"), adapter=str(tmp_path / "tuned"))
    with pytest.raises(SourceError, match=r"tuned are not complete: adapter_model\.safetensors"):
        find_source(source, tmp_path)


def test_random_weights_need_no_files(tmp_path):
    """A configuration of a type that transformers knows is all that there is to it."""
    found = find_source(HuggingFaceSource(huggingface="bert", config={"hidden_size": 8}), tmp_path)
    assert (found.kwargs, found.files) == ({"name": "bert", "config": {"hidden_size": 8}}, ())


def test_fields_of_the_other_kind(tmp_path):
    """Those of language models are errors for other models, and the other way round."""
    for fields, problem in (
        ({"task": "text-generation", "batch": 2}, "leave `batch` out: models that generate text have none"),
        ({"task": "text-generation", "padding": "max_length"}, "leave `padding` out: models that generate text"),
        ({"task": "text2text-generation", "image_size": 32}, "leave `image_size` out: models that generate text"),
        ({"task": "fill-mask", "attention": "custom_sdpa"}, "leave `attention` out"),
        ({"task": "fill-mask", "sinks": 4}, "leave `sinks` out"),
        ({"task": "fill-mask", "prefill": True}, "leave `prefill` out"),
        ({"task": "fill-mask", "audio_frames": 100}, "leave `audio_frames` out"),
        ({"task": "audio-text-to-text", "batch": 2}, "leave `batch` out"),
    ):
        source = HuggingFaceSource(huggingface="bert", config={}, **fields)
        with pytest.raises(SourceError, match=problem):
            find_source(source, tmp_path)
    with pytest.raises(ValueError, match="add `attention: custom_sdpa`"):
        HuggingFaceSource(huggingface="llama", cache="int8")


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("org/unknown", "is not in the Hugging Face hub's cache, and cannot be downloaded"),
        ("a b", "is no repository of the Hugging Face hub"),
        ("./nowhere", "there is no nowhere/config.json"),
        ("./broken", "broken/config.json cannot be read"),
        ("./list", "list/config.json is not the configuration of a model"),
        ("./bare", "there are no weights in bare: no model.safetensors and no pytorch_model.bin, and no index for sh"),
    ],
)
def test_names_of_nothing(hub, monkeypatch, name, problem):
    """Each is an error that says what to do."""
    monkeypatch.chdir(hub)
    for folder, content in (("broken", "{"), ("list", "[]"), ("bare", "{}")):
        (hub / folder).mkdir()
        (hub / folder / "config.json").write_text(content)
    with pytest.raises(SourceError, match=problem):
        find_source(HuggingFaceSource(huggingface=name), hub)


@pytest.mark.parametrize(
    ("source", "command"),
    [
        (HuggingFaceSource(huggingface="bert", config={}), r"pip install 'pteforge\[hf\]'"),
        (TimmSource(timm="resnet18"), r"pip install 'pteforge\[vision\]'"),
        (TorchvisionSource(torchvision="resnet18"), r"pip install 'pteforge\[vision\]'"),
    ],
)
def test_packages_that_are_not_installed(monkeypatch, tmp_path, source, command):
    """The error names the extra that has them."""
    monkeypatch.setattr(find, "find_spec", lambda _: None)
    with pytest.raises(SourceError, match=command):
        find_source(source, tmp_path)


def write_adapter(folder: Path, base: str | None, **fields: str) -> None:
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": base, **fields}))
    (folder / "adapter_model.safetensors").write_bytes(safetensors(4))


def test_an_adapter(hub):
    """Its files are declared as those of the model are, and both are named so that they can be moved, or by commit."""
    write_model(hub / "zoo" / "small", "LlamaForCausalLM")
    write_adapter(hub / "zoo" / "tuned", "elsewhere")
    source = HuggingFaceSource(huggingface=str(hub / "zoo" / "small"), adapter=str(hub / "zoo" / "tuned"))
    found = find_source(source, hub / "zoo")
    assert found.builder == "pteforge.tasks.sources.text_generation:model"
    assert found.kwargs == {"name": "./small", "weights": {"adapter": {"name": "./tuned"}}}
    apart = find_source(source.model_copy(update={"merge": False}), hub / "zoo")
    assert apart.kwargs["weights"] == {"adapter": {"name": "./tuned", "merge": False}}
    names = ["adapter_config.json", "adapter_model.safetensors"]
    assert [path.name for path in found.files if path.parent.name == "tuned"] == names
    assert "model.safetensors" in [path.name for path in found.files if path.parent.name == "small"]

    write_adapter(hub / "hub" / "models--org--tuned" / "snapshots" / COMMIT, "org/small", task_type="SEQ_CLS")
    for source in (
        HuggingFaceSource(huggingface="org/small", adapter="org/tuned", adapter_revision=COMMIT),
        HuggingFaceSource(huggingface="org/tuned", revision=COMMIT),  # the adapter names its model
    ):
        found = find_source(source, hub)
        adapter = {"name": "org/tuned", "revision": COMMIT}
        wanted = {"name": "org/small", "revision": COMMIT, "weights": {"adapter": adapter}}
        assert found.kwargs == {**wanted, "task": "text-classification"}
        assert [path.name for path in found.files if path.name in names] == names


@pytest.mark.parametrize("base", ["small", "../small", "{hub}/small"])
def test_a_folder_with_an_adapter_only(hub, base):
    """The model that it names is used where it is a folder of the zoo's, or next to the adapter."""
    write_model(hub / "small", "LlamaForCausalLM")
    write_adapter(hub / "tuned", base.format(hub=hub))
    found = find_source(HuggingFaceSource(huggingface=str(hub / "tuned")), hub)
    assert found.kwargs == {"name": "./small", "weights": {"adapter": {"name": "./tuned"}}}


def test_adapters_that_cannot_be_used(hub, monkeypatch):
    """Each is an error that says what to do."""
    monkeypatch.chdir(hub)
    write_model(hub / "small", "LlamaForCausalLM")
    write_adapter(hub / "nameless", None)
    write_adapter(hub / "elsewhere", "/not/here")
    write_adapter(hub / "twice", "./nameless")
    (hub / "empty").mkdir()
    for fields, problem in (
        ({"huggingface": "./nameless"}, "which it does not name, is not on this machine: write `source: {huggingface"),
        ({"huggingface": "./elsewhere"}, r"/not/here, is not on this machine: .* adapter: ./elsewhere"),
        ({"huggingface": "./twice"}, "nameless holds an adapter only: name the model that it is for"),
        ({"huggingface": "./nameless", "adapter": "./elsewhere"}, "name the model that it is for"),
        (
            {"huggingface": "./small", "adapter": "./empty"},
            "there is no adapter in empty: it needs adapter_",
        ),
        ({"huggingface": "./small", "merge": False}, "`merge: false` needs an `adapter`"),
        ({"huggingface": "./small", "adapter": "org/unknown"}, "org/unknown is not in the Hugging Face hub's cache"),
    ):
        with pytest.raises(SourceError, match=problem):
            find_source(HuggingFaceSource(**fields), hub)
    for field in ("adapter", "gguf"):
        with pytest.raises(ValueError, match="random: leave `gguf` and `adapter`"):
            HuggingFaceSource(huggingface="llama", config={}, **{field: "./small"})


def test_a_gguf_file(hub, monkeypatch):
    """It is declared instead of other weights, and needs no configuration; others are named where it is missing."""
    snapshot = hub / "hub" / "models--org--small" / "snapshots" / COMMIT
    (snapshot / "small-Q4_0.gguf").write_bytes(b"weights")
    found = find_source(HuggingFaceSource(huggingface="org/small", gguf="small-Q4_0.gguf"), hub)
    assert found.builder == "pteforge.tasks.sources.text_generation:model"
    assert found.kwargs == {"name": "org/small", "revision": COMMIT, "weights": {"gguf": "small-Q4_0.gguf"}}
    names = ["README.md", "chat_template.jinja", "config.json", "small-Q4_0.gguf"]
    assert [path.name for path in found.files] == names
    for name in ("org/small", str(snapshot)):
        with pytest.raises(SourceError, match=r"GGUF files there: small-Q4_0\.gguf"):
            find_source(HuggingFaceSource(huggingface=name, gguf="small-Q8_0.gguf"), hub)
    write_adapter(hub / "tuned", "org/small")
    installed = find.find_spec
    for package, extra, fields in (
        ("gguf", "gguf", {"gguf": "small-Q4_0.gguf"}),
        ("peft", "lora", {"adapter": str(hub / "tuned")}),
    ):
        monkeypatch.setattr(
            find, "find_spec", lambda name, missing=package: None if name == missing else installed(name)
        )
        with pytest.raises(SourceError, match=rf"pip install 'pteforge\[{extra}\]'"):
            find_source(HuggingFaceSource(huggingface="org/small", **fields), hub)

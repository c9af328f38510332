"""Finds a model by name: its files, and the builder that loads them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from ...configs import sources
from ...errors import SourceError, first_line
from ...formats.checkpoint import ENTRIES, files_of, problem_of

_READ = ("*.json", "*.safetensors", "*.model", "*.spm", "*.txt", "*.jinja", "README.md")
"""Files of a repository that a model and its processors read; its card names the licence."""

_ARGUMENTS = {
    *("task", "config", "batch", "sequence", "padding", "image_size", "outputs"),
    *("dtype", "attention", "cache", "sinks", "prefill", "tokens_per_call", "logits", "audio_frames"),
}
"""Fields of a source that its builder takes as they are."""

MODULES = "modules.json"
"""What a repository of sentence-transformers has: the layers after the encoder."""

_OLD_WEIGHTS = "pytorch_model*.bin"  # read where a repository has no safetensors


def find_source(source: sources.Source, folder: Path) -> sources.ResolvedSource:
    """The builder of a model that is named; other sources as they are.

    A repository that is not in the hub's cache is downloaded. Files in `folder`, the zoo's, are named relative to it,
    so that it may be moved. Raises SourceError if a package is missing, or there is no such model.
    """
    match source:
        case sources.HuggingFaceSource():
            _require("transformers", "hf", f"huggingface: {source.huggingface}")
            return _of_transformers(source, folder)
        case sources.TimmSource():
            _require("timm", "vision", f"timm: {source.timm}")
            return _built(
                "image_models:TimmModel",
                {"name": source.timm, "pretrained": source.pretrained, "kwargs": source.kwargs},
            )
        case sources.TorchvisionSource():
            _require("torchvision", "vision", f"torchvision: {source.torchvision}")
            return _built("image_models:TorchvisionModel", {"name": source.torchvision, "weights": source.weights})
    return source


def _built(builder: str, kwargs: Mapping[str, JsonValue], files: tuple[Path, ...] = ()) -> sources.BuilderSource:
    arguments = {name: value for name, value in kwargs.items() if value is not None}
    return sources.BuilderSource(builder=f"{__package__}.{builder}", kwargs=arguments, files=files)


def _require(package: str, extra: str, what: str) -> None:
    if find_spec(package) is None:
        raise SourceError(f"{what} needs the package {package}; run: pip install 'pteforge[{extra}]'")


def _of_transformers(source: sources.HuggingFaceSource, folder: Path) -> sources.BuilderSource:
    kwargs: dict[str, JsonValue] = source.model_dump(mode="json", include=_ARGUMENTS)
    if source.config is not None and "/" not in source.huggingface and not sources.is_folder(source.huggingface):
        return _built(_builder(source, {}), {"name": source.huggingface, **kwargs})
    read = (*_READ, *filter(None, [source.gguf]))
    repo, named = _locate(source.huggingface, source.revision, folder, partial(_is_model, source=source), read)
    if _is_adapter(repo):
        return _of_transformers(_with_base(source, repo, folder), folder)
    if _embeds_sentences(repo):
        source = source.model_copy(update={"task": source.task or sources.SENTENCES})
        kwargs["task"] = source.task
    weights: dict[str, JsonValue] = {}
    if source.gguf:
        _require("gguf", "gguf", f"gguf: {source.gguf}")
        if not (repo / source.gguf).is_file():
            known = ", ".join(sorted(path.name for path in repo.glob("*.gguf"))) or "none"
            raise SourceError(f"gguf: there is no {repo / source.gguf}; GGUF files there: {known}")
        weights["gguf"] = source.gguf
        described = {"architectures": ["ForCausalLM"]}  # nearly all are, and `task` says otherwise
    else:
        described = _described(repo, source)
    files = _files(repo, source, described)
    if source.adapter:
        _require("peft", "lora", f"adapter: {source.adapter}")
        adapter, named_adapter = _locate(source.adapter, source.adapter_revision, folder, _has_adapter, _READ)
        if not _has_adapter(adapter):
            raise SourceError(f"there is no adapter in {adapter}: it needs adapter_config.json and {_ADAPTER[0]}")
        _check_files(adapter, filter(Path.is_file, (adapter / name for name in _ADAPTER)))
        head = _HEADS.get(str(_read_config(adapter / "adapter_config.json").get("task_type")))
        source = source.model_copy(update={"task": source.task or head})
        kwargs["task"] = source.task
        files |= {path for pattern in (*_READ, *_ADAPTER) for path in adapter.glob(pattern)}
        weights["adapter"] = named_adapter if source.merge else {**named_adapter, "merge": False}
    elif not source.merge:
        raise SourceError(f"huggingface: {source.huggingface}: `merge: false` needs an `adapter`")
    kwargs["weights"] = weights or None
    return _built(_builder(source, described), {**named, **kwargs}, tuple(sorted(files)))


def _embeds_sentences(repo: Path) -> bool:
    """Whether a repository is that of a model of sentence-transformers which pools states of tokens."""
    with suppress(OSError, ValueError, TypeError, KeyError):
        return any(str(module["type"]).endswith(".Pooling") for module in json.loads((repo / MODULES).read_bytes()))
    return False


def _files(repo: Path, source: sources.HuggingFaceSource, described: Mapping[str, Any]) -> set[Path]:
    """The files of a repository that its model and processors read."""
    files = {path for pattern in (*_READ, _OLD_WEIGHTS) for path in repo.glob(pattern)}
    if source.gguf:
        return {path for path in files if path.suffix not in {".safetensors", ".bin"}} | {repo / source.gguf}
    if source.task == sources.SENTENCES:
        files |= {path for pattern in ("*.json", "*.safetensors") for path in repo.glob(f"*_*/{pattern}")}
    if source.config is None:
        files |= {*_weights_of(repo, described)}  # an index may name files in folders below
    return files


def _locate(
    name: str, revision: str | None, folder: Path, is_whole: Callable[[Path], bool], patterns: tuple[str, ...]
) -> tuple[Path, dict[str, JsonValue]]:
    """A folder or repository on this machine, and its name for a builder: relative to the zoo, or with its commit."""
    if not sources.is_folder(name):
        repo = _snapshot(name, revision, is_whole, patterns)
        return repo, {"name": name, "revision": repo.name}
    relative = os.path.relpath(name, folder)
    return Path(name), {"name": relative if sources.is_folder(relative) else f"./{relative}"}  # no model_type


def _is_adapter(repo: Path) -> bool:
    """Whether a folder is that of an adapter, and has no weights of a model."""
    return (repo / "adapter_config.json").is_file() and not _any_weights(repo)


def _has_adapter(repo: Path) -> bool:
    return any((repo / name).is_file() for name in _ADAPTER) and (repo / "adapter_config.json").is_file()


def _is_model(repo: Path, *, source: sources.HuggingFaceSource) -> bool:
    if source.gguf:
        return (repo / source.gguf).is_file()
    with suppress(SourceError):
        return _is_adapter(repo) or bool(_described(repo, source))
    return False


def _described(repo: Path, source: sources.HuggingFaceSource) -> dict[str, Any]:
    """The configuration of a model; raises SourceError if it has none, or its weights are not complete."""
    if not (repo / "config.json").is_file():
        raise SourceError(f"there is no {repo / 'config.json'}: name a folder that save_pretrained wrote")
    described = _read_config(repo / "config.json")
    if source.config is None:
        _check_files(repo, _weights_of(repo, described))
    return described


def _weights_of(repo: Path, described: Mapping[str, Any]) -> tuple[Path, ...]:
    """The files that transformers reads a model's weights from; raises SourceError if it would find none."""
    named = described.get("transformers_weights")  # of a configuration
    entries = [repo / str(name) for name in ([named] if named else ENTRIES)]
    if entry := next((path for path in entries if path.is_file()), None):
        return files_of(entry)
    others = ", ".join(sorted(path.name for path in _any_weights(repo))[:_NAMED])
    raise SourceError(
        f"there are no weights in {repo}: no {named or ' and no '.join(ENTRIES[::2])}, and no index for "
        f"{others or 'shards'}; {_AGAIN}, or write `config: {{}}` for random ones"
    )


def _check_files(repo: Path, files: Iterable[Path]) -> None:
    """Raises SourceError for files of weights that are missing or cut."""
    if problems := [problem for file in files if (problem := problem_of(file))]:
        more = f", and {len(problems) - _NAMED} more files" if len(problems) > _NAMED else ""
        raise SourceError(f"the weights in {repo} are not complete: {'; '.join(problems[:_NAMED])}{more}; {_AGAIN}")


_NAMED = 4  # files in an error
_AGAIN = "copy the folder again, or download it with `hf download`"


def _with_base(source: sources.HuggingFaceSource, repo: Path, folder: Path) -> sources.HuggingFaceSource:
    """The model that an adapter names, with the adapter."""
    if source.adapter:
        raise SourceError(f"huggingface: {source.huggingface} holds an adapter only: name the model that it is for")
    described = _read_config(repo / "adapter_config.json")
    base = str(described.get("base_model_name_or_path") or "")
    local = next((path for path in (repo / base, folder / base) if base and path.is_dir()), None)
    if local is None and (sources.is_folder(base) or "/" not in base):
        raise SourceError(
            f"{repo} holds an adapter only, and the model that it is for, {base or 'which it does not name'}, is not "
            f"on this machine: write `source: {{huggingface: MODEL, adapter: {source.huggingface}}}`"
        )
    base_model = {"huggingface": str(local.resolve()) if local else base, "revision": described.get("revision")}
    adapter = {"adapter": source.huggingface, "adapter_revision": source.revision}
    return source.model_copy(update={**base_model, **adapter})


_ADAPTER = ("adapter_model.safetensors", "adapter_model.bin")
_HEADS = {
    "SEQ_CLS": "text-classification",
    "TOKEN_CLS": "token-classification",
    "QUESTION_ANS": "question-answering",
    "FEATURE_EXTRACTION": "feature-extraction",
}
"""Tasks of adapters that have a head of their own, by PEFT's name."""

_TEXT = ("sinks", "prefill", "tokens_per_call", "logits")  # fields of models that generate text from text alone
_GENERATION = ("attention", "cache", *_TEXT)  # fields of models that generate text


def _builder(source: sources.HuggingFaceSource, described: Mapping[str, Any]) -> str:
    generates = source.task == "text-generation" or (source.task is None and _is_named(described, "ForCausalLM"))
    images = not generates and _has_images(source, described)
    sounds = not (generates or images) and _has_sounds(source, described)
    if images or sounds:
        for field in ("dtype", "padding", *(() if images else ("image_size",))):
            if getattr(source, field) is not None:
                kind = f"that generate text from {'images' if images else 'sounds'} have none yet"
                raise SourceError(f"huggingface: {source.huggingface}: leave `{field}` out: models {kind}")
        _check_fields(source, _TEXT, generates=False)
    if source.audio_frames is not None and not sounds and not _is_named(described, "ForCTC"):
        raise SourceError(
            f"huggingface: {source.huggingface}: leave `audio_frames` out: only models with CTC, and those "
            f"that generate text from sounds and text (`task: {_AUDIO_TASK}`), have it"
        )
    if images:
        return "multimodal:model"
    if sounds:
        _check_fields(source, ("batch", "outputs"), generates=True)
        return "audio_text:model"
    wrong = ("batch", "outputs", "padding", "image_size") if generates else _GENERATION
    _check_fields(source, wrong, generates=generates)
    if not generates and _has_decoder(source, described):
        _check_fields(source, ("padding", "image_size"), generates=True)
        return "encoder_decoder:model"
    return "text_generation:model" if generates else "huggingface:Model"


def methods_of(source: sources.ResolvedSource) -> dict[str, bool]:
    """The methods that a model by name may have, and whether each keeps a cache; none of other sources."""
    if not isinstance(source, sources.BuilderSource) or not source.builder.startswith(f"{__package__}."):
        return {}
    kind = source.builder.removeprefix(f"{__package__}.").partition(":")[0]
    names = ("prefill", "decode_step") if source.kwargs.get("prefill") else _METHODS.get(kind, ("forward",))
    return {name: kind == "text_generation" or name == "text_decoder" for name in names}


_PARTS = ("vision_encoder", "audio_encoder", "token_embedding", "text_decoder")
_METHODS = {
    "encoder_decoder": ("encoder", "text_decoder", "forward"),
    "multimodal": (*_PARTS, "forward"),
    "audio_text": _PARTS,
}


def _has_images(source: sources.HuggingFaceSource, described: Mapping[str, Any]) -> bool:
    """Whether a model generates text from images and text."""
    if source.task is not None or described.get("is_encoder_decoder"):
        return source.task == "image-text-to-text"
    return "vision_config" in described and _is_named(described, _GENERATES[0])


def _has_sounds(source: sources.HuggingFaceSource, described: Mapping[str, Any]) -> bool:
    """Whether a model without an encoder of text generates text from sounds and text."""
    if source.task not in (None, "automatic-speech-recognition") or described.get("is_encoder_decoder"):
        return source.task == _AUDIO_TASK
    return bool(described.keys() & {"audio_config", "encoder_config"}) and _is_named(described, _GENERATES[0])


_AUDIO_TASK = "audio-text-to-text"


def _has_decoder(source: sources.HuggingFaceSource, described: Mapping[str, Any]) -> bool:
    """Whether a model has an encoder, and a decoder that generates; without a configuration, whether it may."""
    if source.task is None:
        return bool(described.get("is_encoder_decoder")) and _is_named(described, *_GENERATES)
    generating = ("automatic-speech-recognition", "text2text-generation")
    return source.task in generating and described.get("is_encoder_decoder", not described)


_GENERATES = ("ForConditionalGeneration", "MTModel")  # how the names of such architectures end


def _is_named(described: Mapping[str, Any], *endings: str) -> bool:
    """Whether the name of an architecture in a configuration has one of these endings."""
    return any(str(name).endswith(endings) for name in described.get("architectures") or ())


def _check_fields(source: sources.HuggingFaceSource, wrong: tuple[str, ...], *, generates: bool) -> None:
    """Raises SourceError for fields that models of another kind have."""
    if field := next((name for name in wrong if getattr(source, name) is not None), None):
        kind = "that generate text have none" if generates else "that generate text (`task: text-generation`) have one"
        raise SourceError(f"huggingface: {source.huggingface}: leave `{field}` out: models {kind}")


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise SourceError(f"{path} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise SourceError(f"{path} is not the configuration of a model")
    return config


def _any_weights(repo: Path) -> list[Path]:
    weights = (path for pattern in ("*.safetensors", _OLD_WEIGHTS) for path in repo.glob(pattern))
    return [path for path in weights if path.name not in _ADAPTER]


def _snapshot(name: str, revision: str | None, is_whole: Callable[[Path], bool], patterns: tuple[str, ...]) -> Path:
    """The folder of a repository at a revision in the hub's cache, which may have had a part of it, or nothing."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    def download(*more: str, local: bool = False) -> Path:
        wanted = [*patterns, *more]
        return Path(snapshot_download(name, revision=revision, allow_patterns=wanted, local_files_only=local))

    try:
        with suppress(LocalEntryNotFoundError):
            if is_whole(repo := download(local=True)):
                return repo
        repo = download()
        return repo if is_whole(repo) else download(_OLD_WEIGHTS, *_ADAPTER)
    except HFValidationError as error:
        problem = f"{name!r} is no repository of the Hugging Face hub: {first_line(error)}"
        raise SourceError(f"{problem}; write the path of a folder as ./FOLDER") from error
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        at = f" at {revision}" if revision else ""
        raise SourceError(
            f"{name}{at} is not in the Hugging Face hub's cache, and cannot be downloaded: "
            f"{first_line(error)}; download it with `hf download`, or name a folder as ./FOLDER"
        ) from error

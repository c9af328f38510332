"""Where a model that is named is: its files, and the builder that makes it of them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from ...configs.sources import (
    BuilderSource,
    HuggingFaceSource,
    ResolvedSource,
    Source,
    TimmSource,
    TorchvisionSource,
    is_folder,
)
from ...errors import SourceError, first_line

_READ = ("*.json", "*.safetensors", "*.model", "*.spm", "*.txt", "*.jinja", "README.md")
"""Files of a repository that a model and its processors read; its card names the licence."""

_OLD_WEIGHTS = "pytorch_model*.bin"
"""Read where a repository has no safetensors."""


def find_source(source: Source, folder: Path) -> ResolvedSource:
    """The builder of a model that is named; other sources as they are.

    A repository that is not in the hub's cache is downloaded.

    Args:
        source: as it was written.
        folder: the zoo's. What lies in it is named relative to it, so that it may be moved.

    Raises:
        SourceError: a package is missing, or there is no such model.
    """
    match source:
        case HuggingFaceSource():
            _require("transformers", "hf", f"huggingface: {source.huggingface}")
            return _of_transformers(source, folder)
        case TimmSource():
            _require("timm", "vision", f"timm: {source.timm}")
            return _built(
                "image_models:TimmModel",
                {"name": source.timm, "pretrained": source.pretrained, "kwargs": source.kwargs},
            )
        case TorchvisionSource():
            _require("torchvision", "vision", f"torchvision: {source.torchvision}")
            return _built("image_models:TorchvisionModel", {"name": source.torchvision, "weights": source.weights})
    return source


def _built(builder: str, kwargs: Mapping[str, JsonValue], files: tuple[Path, ...] = ()) -> BuilderSource:
    given = {name: value for name, value in kwargs.items() if value is not None}
    return BuilderSource(builder=f"{__package__}.{builder}", kwargs=given, files=files)


def _require(package: str, extra: str, what: str) -> None:
    if find_spec(package) is None:
        raise SourceError(f"{what} needs the package {package}; run: pip install 'pteforge[{extra}]'")


def _of_transformers(source: HuggingFaceSource, folder: Path) -> BuilderSource:
    kwargs: dict[str, JsonValue] = source.model_dump(
        mode="json", exclude={"huggingface", "revision", "quantize_layers"}
    )
    place = source.folder
    if place is not None:
        if not (place / "config.json").is_file():
            if (place / "adapter_config.json").is_file():
                raise SourceError(f"{place} holds an adapter of PEFT only: merge it into its model and save that")
            raise SourceError(f"there is no {place / 'config.json'}: name a folder that save_pretrained wrote")
        name = os.path.relpath(place, folder)
        name = name if is_folder(name) else f"./{name}"  # no model_type
    elif source.config is not None and "/" not in source.huggingface:
        return _built(_builder(source, {}), {"name": source.huggingface, **kwargs})
    else:
        name, place = source.huggingface, _snapshot(source)
        kwargs["revision"] = place.name  # the commit
    described = _read_config(place / "config.json")
    if source.config is None and not _has_weights(place):
        raise SourceError(
            f"there are no weights in {place}: neither model.safetensors nor pytorch_model.bin; download them with "
            "`hf download`, or write `config: {}` for random ones"
        )
    files = sorted({path for pattern in (*_READ, _OLD_WEIGHTS) for path in place.glob(pattern)})
    return _built(_builder(source, described), {"name": name, **kwargs}, tuple(files))


def _builder(source: HuggingFaceSource, described: Mapping[str, Any]) -> str:
    architectures = described.get("architectures")
    causal = isinstance(architectures, list) and any(str(name).endswith("ForCausalLM") for name in architectures)
    generates = source.task == "text-generation" or (source.task is None and causal)
    decodes = not generates and _has_decoder(source, described)
    wrong = ("batch", "outputs", "padding", "image_size") if generates else ("attention", "cache")
    _check_fields(source, wrong, generates=generates)
    if decodes:
        _check_fields(source, ("padding", "image_size"), generates=True)
        return "encoder_decoder:model"
    return "text_generation:model" if generates else "huggingface:Model"


def _has_decoder(source: HuggingFaceSource, described: Mapping[str, Any]) -> bool:
    """Whether a model has an encoder, and a decoder that generates; without a configuration, whether it may."""
    if source.task is None:
        named = [str(name) for name in described.get("architectures") or ()]
        return bool(described.get("is_encoder_decoder")) and any(name.endswith(_GENERATES) for name in named)
    return source.task in _GENERATING_TASKS and described.get("is_encoder_decoder", not described)


_GENERATING_TASKS = ("automatic-speech-recognition", "text2text-generation")
_GENERATES = ("ForConditionalGeneration", "MTModel")  # in the names of such architectures


def _check_fields(source: HuggingFaceSource, wrong: tuple[str, ...], *, generates: bool) -> None:
    """Raises SourceError for fields that models of another kind have."""
    if given := [name for name in wrong if getattr(source, name) is not None]:
        kind = "that generate text have none" if generates else "that generate text (`task: text-generation`) have one"
        raise SourceError(f"huggingface: {source.huggingface}: leave `{given[0]}` out: models {kind}")


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise SourceError(f"{path} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise SourceError(f"{path} is not the configuration of a model")
    return config


def _has_weights(place: Path) -> bool:
    return any(next(place.glob(pattern), None) for pattern in ("*.safetensors", _OLD_WEIGHTS))


def _snapshot(source: HuggingFaceSource) -> Path:
    """The folder of a repository at a revision in the hub's cache, which may have had a part of it, or nothing."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    def found(*, here: bool, patterns: tuple[str, ...] = _READ) -> Path:
        return Path(
            snapshot_download(
                source.huggingface, revision=source.revision, allow_patterns=list(patterns), local_files_only=here
            )
        )

    def is_whole(place: Path) -> bool:
        return (place / "config.json").is_file() and (source.config is not None or _has_weights(place))

    try:
        with suppress(LocalEntryNotFoundError):
            if is_whole(place := found(here=True)):
                return place
        place = found(here=False)
        return place if is_whole(place) else found(here=False, patterns=(*_READ, _OLD_WEIGHTS))
    except HFValidationError as error:
        raise SourceError(
            f"{source.huggingface!r} is no repository of the Hugging Face hub: {first_line(error)}; write the "
            "path of a folder as ./FOLDER"
        ) from error
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        at = f" at {source.revision}" if source.revision else ""
        raise SourceError(
            f"{source.huggingface}{at} is not in the Hugging Face hub's cache, and cannot be downloaded: "
            f"{first_line(error)}; download it with `hf download`, or name a folder as ./FOLDER"
        ) from error

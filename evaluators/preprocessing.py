"""Inputs as models by name expect them: ``read: hf:org/name``, ``timm:NAME`` or ``torchvision:NAME``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from ..configs.sources import expand_source
from ..errors import SourceError, first_line
from ..tasks.upstream.torch_export import import_torchvision

Make = Callable[[Any], Any]


def preprocessing_of(model: str, length: int | None) -> Make:
    """What makes a model's inputs of a path, an image, a text, or a sound as Hugging Face's `datasets` decodes it.

    Args:
        model: name of a model, as in a zoo.
        length: tokens of a text: longer ones are cut, others padded. None: each has its own.

    Raises:
        SourceError: its library is not installed, or knows no preprocessing for that name.
    """
    kind, name = expand_source(model)
    if kind != "huggingface":
        import_torchvision()
    try:
        return _KINDS[kind](name, length)
    except (ImportError, OSError, ValueError, KeyError, RuntimeError) as error:
        raise SourceError(f"read: {model} has no preprocessing: {first_line(error)}") from error


def _transformers(name: str, length: int | None) -> Make:
    from transformers import AutoProcessor  # noqa: PLC0415 - optional

    processor: Any = AutoProcessor.from_pretrained(name)

    def make(value: Any) -> tuple[Any, ...]:
        if isinstance(value, str):
            given = {"truncation": True, "padding": "max_length", "max_length": length} if length else {}
            return tuple(processor(text=value, return_tensors="pt", **given).values())
        if isinstance(value, Path) and value.suffix.lower() in _SOUNDS:
            value = _sound(value)
        if isinstance(value, Mapping):  # a sound
            made = processor(value["array"], sampling_rate=value["sampling_rate"], return_tensors="pt")
        else:
            made = processor(images=_image(value), return_tensors="pt")
        return tuple(made.values())

    return make


def _timm(name: str, _: int | None) -> Make:
    from timm.data import create_transform, resolve_data_config  # noqa: PLC0415 - optional
    from timm.models import get_pretrained_cfg  # noqa: PLC0415 - optional

    found = get_pretrained_cfg(name)
    if found is None:
        raise ValueError(f"timm has no model {name!r}")
    return _of_images(create_transform(**resolve_data_config(pretrained_cfg=found.to_dict())))


def _torchvision(name: str, _: int | None) -> Make:
    from torchvision.models import get_model_weights  # noqa: PLC0415 - optional

    return _of_images(get_model_weights(name).DEFAULT.transforms())


_KINDS: dict[str, Callable[[str, int | None], Make]] = {
    "huggingface": _transformers,
    "timm": _timm,
    "torchvision": _torchvision,
}


def _of_images(transform: Callable[[Any], torch.Tensor]) -> Make:
    return lambda value: transform(_image(value)).unsqueeze(0)


def _image(value: Any) -> Any:
    if not isinstance(value, Path):
        return value.convert("RGB")
    from PIL import Image, UnidentifiedImageError  # noqa: PLC0415 - optional

    try:
        with Image.open(value) as image:
            return image.convert("RGB")
    except UnidentifiedImageError as error:
        raise SourceError(f"{value} is no image that Pillow reads") from error


_SOUNDS = {".flac", ".mp3", ".ogg", ".wav"}


def _sound(path: Path) -> dict[str, Any]:
    import soundfile  # noqa: PLC0415 - optional

    array, rate = soundfile.read(path, dtype="float32")
    return {"array": array if array.ndim == 1 else array.mean(1), "sampling_rate": rate}

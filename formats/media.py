"""Sounds and images as models take them, and tokens that are generated one after the other."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ..errors import InputError, SourceError, first_line

TOKENIZERS = (
    *("tokenizer.json", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model"),
    *("source.spm", "vocab.json", "tokenizer_config.json"),
)
"""Any of these is a tokenizer, or a part of one."""

PIECES = ("do_image_splitting", "crop_to_patches", "do_pan_and_scan")
"""Options of image processors that make several images of one: a file takes an image whole."""


def required(module: str, extra: str) -> Any:
    """Imports a package that an extra installs; raises InputError if it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        name = module.partition(".")[0]
        raise InputError(f"this needs {name}: `pip install 'pteforge[{extra}]'` ({first_line(error)})") from error


def read_image(image: Any) -> Any:
    """An image of Pillow, in RGB, of a path or an image; raises SourceError if a file is none."""
    pillow = required("PIL.Image", "generate")
    if not isinstance(image, str | Path):
        return image.convert("RGB")
    try:
        return pillow.open(image).convert("RGB")
    except (OSError, ValueError) as error:
        raise SourceError(f"{image} cannot be read as an image: {first_line(error)}") from error


def whole_image(image: Any, processor: Any, shape: Sequence[int]) -> tuple[Any, Any]:
    """An image of Pillow in one piece, and its values as an encoder input of `shape` [1, channels, height, width].

    The image processor makes no pieces from then on.
    """
    import numpy as np  # noqa: PLC0415 - only a process that generates needs it
    import torch  # noqa: PLC0415 - as above

    for option in PIECES:
        if hasattr(processor, option):
            setattr(processor, option, False)
    values = torch.as_tensor(processor(images=[image], return_tensors="pt")["pixel_values"])
    if values.dim() > 3 and values.numel() == torch.Size(shape).numel():
        return image, values.reshape(tuple(shape))
    image = image.resize((shape[3], shape[2]), processor.resample)  # the processor makes patches, or has another size
    mean, std = (torch.tensor(value).reshape(1, -1, 1, 1) for value in (processor.image_mean, processor.image_std))
    values = torch.as_tensor(np.array(image)).permute(2, 0, 1)[None] * processor.rescale_factor
    return image, (values - mean) / std


def read_sound(audio: Any, rate: int) -> Any:
    """Mono float32 samples at `rate` hertz, of a path, or of samples [samples] and their rate; raises SourceError."""
    import numpy as np  # noqa: PLC0415 - as above
    import torch  # noqa: PLC0415 - as above

    if isinstance(audio, str | Path):
        soundfile = required("soundfile", "generate")
        try:
            channels, own_rate = soundfile.read(audio, dtype="float32", always_2d=True)
        except (OSError, RuntimeError) as error:
            raise SourceError(f"{audio} cannot be read as a sound: {first_line(error)}") from error
        samples = torch.from_numpy(channels).mean(1)
    else:
        samples, own_rate = torch.from_numpy(np.asarray(audio[0], np.float32)), int(audio[1])
    if own_rate != rate and len(samples):  # resampled by its spectrum
        count = round(len(samples) * rate / own_rate)
        samples = torch.fft.irfft(torch.fft.rfft(samples), n=count) * (count / len(samples))
    return samples.numpy()


def generated_tokens(
    logits: Any, step: Callable[[int, int], Any], position: int, most: int, choose: Callable[[list[int], Any], int]
) -> Iterator[int]:
    """Yields at most `most` tokens, the first at `position`. The model runs when the next one is requested.

    The last row of `logits` [..., vocabulary] is that after the prompt. `step` returns the logits after a token at a
    position; `choose` returns a token by those before and the logits [vocabulary].
    """
    tokens: list[int] = []
    while len(tokens) < most:
        if tokens:
            logits = step(tokens[-1], position + len(tokens) - 1)
        tokens.append(choose(tokens, logits.reshape(-1, logits.shape[-1])[-1]))
        yield tokens[-1]

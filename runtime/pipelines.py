"""What models are asked for: classes of a text, an image or a sound, and embeddings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ..errors import InputError
from ..formats.media import read_image, required
from ..formats.pte.contents import Method, TensorSpec
from .prompts import from_folder, sound_features

METHOD = "forward"
_TYPES = "token_type_ids"  # which tokenizers make for models that take none, too


@dataclass(frozen=True, slots=True)
class Label:
    """A class of an input or of a part of a text.

    Attributes:
        name: as the file's metadata has it, else its number.
        score: from 0 to 1.
        text: the part of the text; empty for a class of all of it.
        start: where that begins in the text, in characters.
        end: the first character after it.
    """

    name: str
    score: float
    text: str = ""
    start: int = 0
    end: int = 0


class Loaded(Protocol):
    """A loaded file."""

    @property
    def processors(self) -> dict[str, Any]: ...

    @property
    def file(self) -> Path: ...

    @property
    def signature(self) -> Method: ...

    @property
    def metadata(self) -> Mapping[str, Any]: ...

    def run(self, method: str, inputs: Sequence[Any]) -> list[Any]: ...


def classify(model: Loaded, item: Any, pair: str, top: int) -> list[Label]:
    """The likeliest classes of an input, or the parts of a text that have one."""
    inputs, spans = _inputs(model, item, pair)
    scores = _only_output(model, inputs, "scores of classes")
    if len(scores) != 1 or scores.dim() not in (2, 3) or (scores.dim() == 3 and spans is None):
        raise InputError(f"{model.file} does not classify: its output is {tuple(scores.shape)}")
    names = model.metadata.get("output.labels") or tuple(map(str, range(scores.shape[-1])))
    if scores.dim() == 3:
        return list(_parts(item, scores[0].softmax(-1), spans or (), names))
    likely = scores[0].sigmoid() if scores.shape[1] == 1 else scores[0].softmax(-1)
    order = likely.argsort(descending=True, stable=True)[:top].tolist()
    return [Label(names[index], float(likely[index])) for index in order]


def embed(model: Loaded, items: Iterable[Any]) -> Any:
    """Embeddings [items, dimensions]."""
    import torch  # noqa: PLC0415 - ExecuTorch's runtime has imported it

    rows = [_only_output(model, _inputs(model, item)[0], "an embedding") for item in items]
    if wrong := [row.shape for row in rows if row.dim() != 2]:
        raise InputError(
            f"{model.file} has states {tuple(wrong[0])} in place of an embedding: export it with "
            "`task: sentence-similarity`, or with `outputs: [pooler_output]`"
        )
    return torch.cat(rows)


def _only_output(model: Loaded, inputs: Sequence[Any], what: str) -> Any:
    outputs = model.run(METHOD, inputs)
    if len(outputs) != 1:
        raise InputError(f"{model.file} returns {len(outputs)} outputs, not {what}: export it with `outputs: [NAME]`")
    return outputs[0].float()


_Spans = list[tuple[int, int]]


def _inputs(model: Loaded, item: Any, pair: str = "") -> tuple[Sequence[Any], _Spans | None]:
    """The inputs for a text, an image or a sound, as the metadata says; of a text, also where each token is in it."""
    if any(key.startswith("image.") for key in model.metadata):
        return [_image(model, item)], None
    if "audio.sampling_rate" in model.metadata:
        return [sound_features(item, model.file.parent)], None
    if not isinstance(item, str):
        raise InputError(f"{model.file} takes texts, not {type(item).__name__}: use `run` for tensors")
    return _text(model, item, pair)


def _processor(model: Loaded, kind: str) -> Any:
    if kind not in model.processors:
        model.processors[kind] = from_folder(kind, model.file.parent)
    return model.processors[kind]


def _text(model: Loaded, text: str, pair: str) -> tuple[Sequence[Any], _Spans | None]:
    tokenizer = _processor(model, "AutoTokenizer")
    specs = model.signature.inputs
    longest = specs[0].shape[-1] if specs and isinstance(specs[0], TensorSpec) else None
    padded = specs and isinstance(specs[0], TensorSpec) and specs[0].dynamism == "static"
    encoded = tokenizer(
        *([text, pair] if pair else [text]),
        truncation=True,
        padding="max_length" if padded else False,
        max_length=longest,
        return_offsets_mapping=tokenizer.is_fast,
        return_tensors="pt",
    )
    names = [name for name in tokenizer.model_input_names if name in encoded]
    if len(names) > len(specs):
        names = [name for name in names if name != _TYPES]
    if len(names) != len(specs):
        raise InputError(
            f"{model.file} takes {len(specs)} inputs, and its tokenizer makes {', '.join(names)}: use `run`"
        )
    spans = encoded["offset_mapping"][0].tolist() if "offset_mapping" in encoded else None
    return [encoded[name] for name in names], spans


def _image(model: Loaded, item: Any) -> Any:
    """An image [1, channels, height, width] as the processor next to the file prepares it, or as the metadata says."""
    import numpy as np  # noqa: PLC0415 - only who has images needs it
    import torch  # noqa: PLC0415 - as above

    image, folder = read_image(item), model.file.parent
    if (folder / "preprocessor_config.json").is_file():
        return torch.as_tensor(
            _processor(model, "AutoImageProcessor")(images=[image], return_tensors="pt")["pixel_values"]
        )
    how = {key.removeprefix("image."): value for key, value in model.metadata.items() if key.startswith("image.")}
    spec = model.signature.inputs[0]
    height, width = how.get("size") or (spec.shape[-2:] if isinstance(spec, TensorSpec) else image.size[::-1])
    resampling = getattr(
        required("PIL.Image", "generate").Resampling, str(how.get("interpolation", "bilinear")).upper()
    )
    if shorter := how.get("resize"):
        scale = shorter / min(image.size)
        image = image.resize(tuple(int(side * scale + 1e-6) for side in image.size), resampling)
        left, top = (round((side - kept) / 2) for side, kept in zip(image.size, (width, height), strict=True))
        image = image.crop((left, top, left + width, top + height))
    else:
        image = image.resize((width, height), resampling)
    if how.get("channels") == "L":
        image = image.convert("L")
    values = torch.as_tensor(np.array(image), dtype=torch.float32).reshape(height, width, -1).permute(2, 0, 1)[None]
    values = (values.flip(1) if how.get("channels") == "BGR" else values) * how.get("rescale", 1 / 255)
    mean, std = (
        torch.tensor(how.get(name, default)).reshape(1, -1, 1, 1) for name, default in (("mean", 0), ("std", 1))
    )
    return (values - mean) / std


def _parts(text: str, scores: Any, spans: Sequence[Sequence[int]], names: Sequence[str]) -> Iterator[Label]:
    """Runs of tokens of one class, as `aggregation_strategy="simple"` of transformers makes them, without ``O``."""
    runs: list[tuple[str, list[float], int, int]] = []
    open_run = False
    for row, (start, end) in zip(scores, spans, strict=True):
        best = int(row.argmax())
        mark, _, name = names[best].rpartition("-") if names[best][:2] in ("B-", "I-") else ("", "", names[best])
        if start == end:  # a special token
            continue
        if name == "O":
            open_run = False
        elif open_run and mark != "B" and runs[-1][0] == name:
            _, values, first, _ = runs[-1]
            runs[-1] = (name, [*values, float(row[best])], first, end)
        else:
            runs.append((name, [float(row[best])], start, end))
            open_run = True
    for name, values, start, end in runs:
        yield Label(name, sum(values) / len(values), text[start:end], start, end)

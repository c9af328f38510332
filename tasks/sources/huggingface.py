"""Models of transformers, from the Hugging Face hub's cache, a folder in its layout, or a configuration."""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...configs.base import did_you_mean
from ...configs.sources import is_folder
from ...errors import SourceError, first_line
from ..upstream.torch_export import import_torchvision
from ..upstream.transformers import weights_cast_on_use

import_torchvision()
import transformers
from huggingface_hub import ModelCard
from torch.export import Dim
from transformers import (
    AutoConfig,
    AutoFeatureExtractor,
    AutoImageProcessor,
    AutoModelForMultimodalLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    PretrainedConfig,
)
from transformers.exporters.exporter_dynamo import reset_model_state
from transformers.exporters.utils import apply_patches
from transformers.pipelines import SUPPORTED_TASKS
from transformers.utils import cached_file

TEXT = "The quick brown fox jumps over the lazy dog, and a few more words follow until the line is long enough. "
SAMPLING_RATE = 16_000  # of the example sound, in Hz

_TASKS = {name: described["pt"] for name, described in SUPPORTED_TASKS.items()}
_TASKS["audio-text-to-text"] = (AutoModelForMultimodalLM, AutoModelForSeq2SeqLM)  # the hub's, without a pipeline
_TASKS["text2text-generation"] = (AutoModelForSeq2SeqLM,)  # without a pipeline since transformers 5
_NO_OUTPUTS = {"cache", "past_key_values", "encoder_hidden_states", "hidden_states", "attentions"}


class Model:
    """A model for one task, with the interface of ExecuTorch's ``EagerModelBase``."""

    def __init__(  # noqa: PLR0913 - fields of a source
        self,
        name: str,
        revision: str | None = None,
        task: str | None = None,
        config: Mapping[str, Any] | None = None,
        batch: int | None = None,
        sequence: int = 128,
        outputs: list[str] | None = None,
        *,
        dtype: str = "float32",
        padding: str | None = None,
        image_size: int | list[int] | None = None,
        weights: Mapping[str, Any] | None = None,
    ) -> None:
        """Loads the model.

        The arguments are the fields of `configs.sources.HuggingFaceSource`.
        """
        self._place = place_of(name, revision, weights)
        self.model, self.config = load_model(self._place, task, config, weights, dtype=dtype)
        self._padded, self._batch = bool(padding), batch or (1 if padding else 4)
        self._sequence = min(sequence, positions_of(self.config) - (0 if padding else 2))  # some begin to count at 2
        self._size = [image_size, image_size] if isinstance(image_size, int) else image_size
        self._outputs = outputs
        self._inputs = self._examples()
        if self._size:
            self._fix_positions()

    def get_eager_model(self) -> torch.nn.Module:
        return _with_signature(self.model, tuple(self._inputs), self._outputs, resized=bool(self._size))

    def get_example_inputs(self) -> tuple[torch.Tensor, ...]:
        return tuple(self._inputs.values())

    def get_dynamic_shapes(self) -> dict[str, Any]:
        """Batch and sequence, within bounds; torch.export finds out where the model fixes them.

        Nothing varies where a text has tokens for its image.
        """
        return {name: self._dims(name, tensor) for name, tensor in self._inputs.items()}

    def get_metadata(self) -> dict[str, Any]:
        """What the model's card, configuration and processors say."""
        described = describe(self._place, self.config)
        if "pixel_values" in self._inputs:
            described["image"] = image_preprocessing(self._place)
            if self._size:
                described["image"] = {**described["image"], "size": self._size}
                described["image"].pop("resize", None)  # before images are cropped to another size
        if self._inputs.keys() & {"input_values", "input_features"}:
            described["audio"] = audio_metadata(self._place)
        if "input_ids" in self._inputs:
            described["tokenizer"] = tokenizer_metadata(self._place, self.config)
        labels = self.config.id2label or {}
        if any(label != f"LABEL_{index}" for index, label in labels.items()):
            described["labels"] = [str(labels[index]) for index in sorted(labels)]
        return described

    def _dims(self, name: str, tensor: torch.Tensor) -> dict[int, Any]:
        if self._padded:
            return {}
        dims: dict[int, Any] = {0: named_hint("batch", self._batch)} if self._batch > 1 else {}
        if self._sequence > 1 and tensor.dtype is torch.int64 and tensor.dim() == 2 and tensor.shape[1] > 1:
            dims[1] = named_hint("decoder_" * name.startswith("decoder_") + "sequence", self._sequence)
        return dims

    def get_padding(self) -> dict[str, float]:
        """What inputs may be padded with at their ends, in so far as the model heeds its mask."""
        token = getattr(self.config.get_text_config(decoder=True), "pad_token_id", None) or 0
        return {name: token if name.endswith("input_ids") else 0 for name in self._inputs}

    def _examples(self) -> dict[str, torch.Tensor]:
        """Inputs that the model's own processors make of a text, an image and a sound, or random ones."""
        names = list(inspect.signature(self.model.forward).parameters)
        batch = self._batch if self._padded else min(2, self._batch)
        for field, given, needed in (
            ("padding", self._padded, "input_ids"),
            ("image_size", self._size, "pixel_values"),
        ):
            if given and needed not in names:
                raise SourceError(f"leave `{field}` out: {type(self.model).__name__} takes no `{needed}`")
        found: dict[str, torch.Tensor] = {}
        if "input_ids" in names:
            found |= {name: value for name, value in self._text(batch).items() if name in names}
        if "pixel_values" in names:
            found |= {name: value for name, value in self._image(batch).items() if name in names}
        for name in ("input_values", "input_features"):
            if name in names and name == self.model.main_input_name:
                found[name] = example_sound(self._place, self.config, name, batch)
        if found.keys() >= {"input_ids", "pixel_values"}:
            self._name_images(found)
        if "decoder_input_ids" in names and self.config.is_encoder_decoder:
            found["decoder_input_ids"] = self._tokens(batch)
        if not found:
            raise SourceError(
                f"example inputs of {type(self.model).__name__} are not known: it takes {', '.join(names)}"
            )
        return found

    def _tokens(self, batch: int) -> torch.Tensor:
        vocabulary = self.config.get_text_config(decoder=True).vocab_size
        return random_tokens(vocabulary, batch, self._length)

    @property
    def _length(self) -> int:
        return self._sequence if self._padded else min(16, self._sequence)

    def _text(self, batch: int) -> dict[str, torch.Tensor]:
        made = _tokenized(self._place, batch, self._length, pad=self._padded)
        if made is None:
            tokens = self._tokens(batch)
            mask = torch.ones_like(tokens)
            if self._padded:
                mask[:, len(TEXT) // 4 :] = 0
                tokens = tokens.where(mask == 1, self.config.get_text_config().pad_token_id or 0)
            return {"input_ids": tokens, "attention_mask": mask}
        return made

    def _image(self, batch: int) -> dict[str, torch.Tensor]:
        made = self._images_of_own_size(batch)
        if self._size and made["pixel_values"].dim() != 4:
            raise SourceError(f"leave `image_size` out: images of {type(self.model).__name__} are not rows of pixels")
        if self._size:
            made["pixel_values"] = torch.nn.functional.interpolate(made["pixel_values"], self._size)
        return made

    def _fix_positions(self) -> None:
        """Computes position embeddings for the size of the images, once: ExecuTorch has no operator that does.

        Raises SourceError if the model takes no images of that size.
        """
        for module in self.model.modules():
            if callable(interpolate := getattr(module, "interpolate_pos_encoding", None)):
                module.interpolate_pos_encoding = partial(_interpolated_once, module, interpolate)
        try:
            with torch.no_grad():
                self.get_eager_model()(*self.get_example_inputs())
        except (ValueError, RuntimeError) as error:
            size = "x".join(map(str, self._size or ()))
            raise SourceError(
                f"image_size: {type(self.model).__name__} takes no images of {size}: {first_line(error)}"
            ) from error

    def _images_of_own_size(self, batch: int) -> dict[str, torch.Tensor]:
        with contextlib.suppress(OSError, ValueError, KeyError, ImportError):
            processor = AutoImageProcessor.from_pretrained(**self._place)
            made = processor(images=[picture()] * batch, return_tensors="pt")
            parameters = inspect.signature(self.model.forward).parameters
            required = {name for name, taken in parameters.items() if taken.default is inspect.Parameter.empty}
            required |= {"pixel_values"}  # the model does without all others
            return {name: torch.as_tensor(value) for name, value in made.items() if name in required}
        config = next((part for part in parts_of(self.config) if hasattr(part, "image_size")), self.config)
        size: Any = getattr(config, "image_size", 224)
        height, width = size if isinstance(size, (list, tuple)) else (size, size)
        return {"pixel_values": torch.randn(batch, getattr(config, "num_channels", 3), height, width)}

    def _name_images(self, found: dict[str, torch.Tensor]) -> None:
        """Begins each text with as many tokens as its image has features, where the model puts those there."""
        names = ("image_token_id", "image_token_index")
        token = next((getattr(self.config, name) for name in names if hasattr(self.config, name)), None)
        if token is None or not hasattr(self.model, "get_image_features"):
            return
        try:
            with torch.no_grad():
                features = self.model.get_image_features(found["pixel_values"]).pooler_output
        except (TypeError, AttributeError):  # it wants more than the image, or returns something else
            return
        rows = sum(each.shape[:-1].numel() for each in features)
        ids = found["input_ids"] = found["input_ids"].where(found["input_ids"] != token, abs(token - 1))
        images = ids.new_full((len(ids), rows // len(ids)), token)
        put = {"input_ids": images, "attention_mask": images * 0 + 1, "token_type_ids": images * 0}
        found |= {name: torch.cat([put[name], found[name]], dim=1) for name in put.keys() & found.keys()}
        self._batch = self._sequence = 1  # each text has the tokens of its images, so no size varies


def named_hint(name: str, most: int) -> Any:
    """A dimension of 1 or more that torch.export may fix, with a name that buckets refer to."""
    hint = Dim.AUTO(min=1, max=most)
    hint.__name__ = name
    return hint


def describe(place: Mapping[str, Any], config: PretrainedConfig) -> dict[str, Any]:
    """The model's name, architecture, repository and commit, and the licence that its card names."""
    name, revision = str(place["pretrained_model_name_or_path"]), place["revision"]
    found = {
        "name": (Path(name).resolve() if is_folder(name) else Path(name)).name,
        "architecture": config.model_type,
        "license": _license(place),
        "source": f"hf:{name}" if "/" in name and not is_folder(name) else None,
        "revision": revision,
    }
    return {key: value for key, value in found.items() if value}


def _license(place: Mapping[str, Any]) -> str | None:
    """The licence in the head of the model's card, if it has one."""
    try:
        path = cached_file(
            place["pretrained_model_name_or_path"],
            "README.md",
            revision=place["revision"],
            local_files_only=True,
            _raise_exceptions_for_missing_entries=False,
        )
        card = ModelCard.load(path, ignore_metadata_errors=True).data if path else None
    except (OSError, ValueError):
        return None
    named = card and (card.license_name if card.license == "other" else card.license)
    return str(named) if named else None


def tokenizer_metadata(place: Mapping[str, Any], config: PretrainedConfig) -> dict[str, Any]:
    """The algorithm and the template of the model's tokenizer, and the tokens that its configuration names."""
    text = config.get_text_config(decoder=True)
    ends = getattr(text, "eos_token_id", None)
    found = {
        "vocab_size": getattr(text, "vocab_size", None),
        "bos_token_id": getattr(text, "bos_token_id", None),
        "eos_token_ids": ends if isinstance(ends, list) or ends is None else [ends],
    }
    with contextlib.suppress(OSError, ValueError, KeyError, ImportError):
        tokenizer = AutoTokenizer.from_pretrained(**place)
        backend = getattr(tokenizer, "backend_tokenizer", None)
        found["model"] = type(backend.model).__name__ if backend else None
        found["chat_template"] = tokenizer.chat_template if isinstance(tokenizer.chat_template, str) else None
    return {key: value for key, value in found.items() if value is not None}


def image_preprocessing(place: Mapping[str, Any]) -> dict[str, Any]:
    """What the model's image processor does; nothing where it has none."""
    try:
        processor = AutoImageProcessor.from_pretrained(**place)
    except (OSError, ValueError, KeyError, ImportError):
        return {}
    found: dict[str, Any] = {"channels": "RGB"}
    crop, size = getattr(processor, "crop_size", None) or {}, getattr(processor, "size", None) or {}
    cropped = getattr(processor, "do_center_crop", False) and "height" in crop
    final = crop if cropped else size
    if "height" in final:
        found["size"] = [final["height"], final["width"]]
    if cropped and "shortest_edge" in size:
        found["resize"] = size["shortest_edge"]
    if getattr(processor, "do_resize", False) and (resample := getattr(processor, "resample", None)) is not None:
        found["interpolation"] = _RESAMPLING.get(int(resample))
    if getattr(processor, "do_rescale", False):
        found["rescale"] = processor.rescale_factor
    if getattr(processor, "do_normalize", False):
        found |= {"mean": list(processor.image_mean), "std": list(processor.image_std)}
    return {key: value for key, value in found.items() if value is not None}


_RESAMPLING = dict(enumerate(("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")))
"""Names of PIL.Image.Resampling."""


def audio_metadata(place: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return {"sampling_rate": AutoFeatureExtractor.from_pretrained(**place).sampling_rate}
    except (OSError, ValueError, KeyError, ImportError, AttributeError):
        return {}


def example_sound(place: Mapping[str, Any], config: PretrainedConfig, name: str, batch: int) -> torch.Tensor:
    """A tone of one second, as the model's feature extractor prepares it for the input `name`, or random values."""
    sound = tone(1)
    with contextlib.suppress(OSError, ValueError, KeyError, ImportError):
        extractor = AutoFeatureExtractor.from_pretrained(**place)
        made = extractor([sound.numpy()] * batch, sampling_rate=extractor.sampling_rate, return_tensors="pt")
        return torch.as_tensor(made[name])
    if name == "input_values":
        return (sound + 0.01 * torch.randn(batch, SAMPLING_RATE)).to(torch.float32)
    mel_bins = getattr(config, "num_mel_bins", getattr(config, "input_feat_per_channel", 80))
    frames = 2 * getattr(config, "max_source_positions", 1500)
    whisper = hasattr(config, "max_source_positions") and not hasattr(config, "input_feat_per_channel")
    return torch.randn(batch, mel_bins, frames) if whisper else torch.randn(batch, 100, mel_bins)


def tone(seconds: int) -> torch.Tensor:
    """[samples]: a tone of 440 Hz."""
    return torch.sin(torch.arange(seconds * SAMPLING_RATE) * (2 * math.pi * 440 / SAMPLING_RATE))


def example_tokens(place: Mapping[str, Any], vocabulary: int, length: int) -> torch.Tensor:
    """[1, length], int64: a text in the model's own tokens, or random ones where it has no tokenizer."""
    made = _tokenized(place, 1, length)
    return made["input_ids"] if made else random_tokens(vocabulary, 1, length)


def random_tokens(vocabulary: int, batch: int, length: int) -> torch.Tensor:
    """[batch, length], int64; without the first few, which are special in most vocabularies."""
    return torch.randint(min(5, vocabulary - 1), vocabulary, (batch, length))


def load_tokenizer(place: Mapping[str, Any]) -> Any:
    """The model's tokenizer; None where it has none."""
    with contextlib.suppress(OSError, ValueError, KeyError, ImportError):
        return AutoTokenizer.from_pretrained(**place)
    return None


def _tokenized(
    place: Mapping[str, Any], batch: int, length: int, *, pad: bool = False
) -> dict[str, torch.Tensor] | None:
    tokenizer = load_tokenizer(place)
    if tokenizer is None:
        return None
    if pad and tokenizer.pad_token is None:
        raise SourceError("leave `padding` out: the model's tokenizer has no token for it")
    padding = "max_length" if pad else False
    made = tokenizer([TEXT] * batch, truncation=True, padding=padding, max_length=length, return_tensors="pt")
    return {name: made[name] for name in tokenizer.model_input_names if name in made}


def picture(height: int = 480, width: int = 640) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """[height, width, 3]: waves of all levels, of another length in each channel."""
    rows, columns = np.mgrid[0:height, 0:width]
    waves = [np.sin((rows + columns) / length) for length in (16, 32, 64)]
    return (127.5 + 127.5 * np.stack(waves, axis=-1)).astype(np.uint8)


def parts_of(config: PretrainedConfig) -> Iterator[PretrainedConfig]:
    """The configuration, and those of its parts, such as ``vision_config``."""
    yield config
    for value in vars(config).values():
        if isinstance(value, PretrainedConfig):
            yield from parts_of(value)


TEXT_POSITIONS = ("max_position_embeddings", "n_positions", "max_target_positions")


def positions_of(config: PretrainedConfig, names: tuple[str, ...] = (*TEXT_POSITIONS, "max_source_positions")) -> int:
    """Tokens that the position embeddings have room for; very many if there are none."""
    text = config.get_text_config()
    known = [getattr(text, name) for name in names if isinstance(getattr(text, name, None), int)]
    return min((number for number in known if number > 0), default=1 << 20)


def place_of(name: str, revision: str | None, weights: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What `from_pretrained` takes to find a model and its processors."""
    place = {"pretrained_model_name_or_path": name, "revision": revision, "local_files_only": True}
    return {**place, "gguf_file": weights["gguf"]} if weights and "gguf" in weights else place


def load_model(
    place: Mapping[str, Any],
    task: str | None,
    changes: Mapping[str, Any] | None,
    weights: Mapping[str, Any] | None = None,
    *,
    dtype: str = "float32",
) -> tuple[Any, PretrainedConfig]:
    """The model, with the adapter merged, and its configuration; SourceError if they cannot be read."""
    config = _configuration(place, changes)
    if weights is None or "adapter" not in weights:
        return _load(place, task, changes, config, dtype)
    from .adapters import adapter_folder, size_head, with_adapter  # noqa: PLC0415 - another extra

    folder = adapter_folder(weights["adapter"])
    size_head(config, folder)
    loaded, config = _load(place, task, changes, config, dtype)
    adapted = with_adapter(loaded, folder, merge=weights["adapter"].get("merge", True))
    return adapted.requires_grad_(requires_grad=False), config


def _load(
    place: Mapping[str, Any], task: str | None, changes: Mapping[str, Any] | None, config: PretrainedConfig, dtype: str
) -> tuple[Any, PretrainedConfig]:
    settings = {"config": config, "dtype": getattr(torch, dtype), "attn_implementation": "sdpa"}
    problem: Exception | None = None
    for auto in _classes(config, task):
        for attention in ("sdpa", "eager"):
            settings["attn_implementation"] = attention
            try:
                if changes is None:
                    with weights_cast_on_use() if "gguf_file" not in place else contextlib.nullcontext():
                        made, loaded = auto.from_pretrained(**{**place, **settings}, output_loading_info=True)
                    if "gguf_file" in place and loaded["missing_keys"]:
                        raise _unread(place, f"it finds no {min(loaded['missing_keys'])}")
                else:
                    made = _random(auto, **settings)
            except ValueError as error:
                problem = error
            else:
                if made._can_set_experts_implementation():  # noqa: SLF001 - as transformers' exporter for ExecuTorch asks
                    made.set_experts_implementation("batched_mm")  # the usual operator has no kernel for ExecuTorch
                return made.eval().requires_grad_(requires_grad=False), config
    raise SourceError(f"no class of transformers takes {config.model_type!r} for the task {task!r}: {problem}")


def _random(auto: Any, config: PretrainedConfig, dtype: torch.dtype, attn_implementation: str) -> Any:
    config.architectures = config.architectures or []  # from_config looks through it
    make = getattr(auto, "from_config", None) or auto._from_config  # noqa: SLF001 - of a class that is no auto class
    if dtype is torch.float32:
        return make(config, attn_implementation=attn_implementation).float()
    return make(config, attn_implementation=attn_implementation, dtype=dtype)  # `to` would round frequencies, too


def in_dtype(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The value, converted if it is in floating point of another dtype; a program has no operator for it otherwise."""
    return value.to(dtype) if value.is_floating_point() and value.dtype != dtype else value


_UNDECLARED = {"head_dim"}
"""Fields that many architectures read where they are set, and declare nowhere."""


def _configuration(place: Mapping[str, Any], changes: Mapping[str, Any] | None) -> PretrainedConfig:
    name = str(place["pretrained_model_name_or_path"])
    make = partial(AutoConfig.from_pretrained, **place)
    if changes is not None and place["revision"] is None and not is_folder(name):
        if name not in transformers.CONFIG_MAPPING:
            raise SourceError(
                f"transformers has no model_type {name!r}{did_you_mean(name, [*transformers.CONFIG_MAPPING])}"
            )
        make = partial(AutoConfig.for_model, name)
    try:
        made = make()
    except ValueError as error:
        if "gguf_file" in place:
            raise _unread(place, first_line(error)) from error
        raise
    for field in changes or ():
        if field not in _UNDECLARED and not hasattr(made, field):
            known = did_you_mean(field, [*made.to_dict()])
            raise SourceError(f"config: {type(made).__name__} has no field {field!r}{known}")
    return make(**changes) if changes else made


def _unread(place: Mapping[str, Any], problem: str) -> SourceError:
    name = Path(place["pretrained_model_name_or_path"]) / place["gguf_file"]
    return SourceError(f"transformers cannot read {name}: {problem}")


def _classes(config: PretrainedConfig, task: str | None) -> tuple[Any, ...]:
    """Classes that may load the model, the likeliest first."""
    if task is not None:
        if task not in _TASKS:
            raise SourceError(f"transformers knows no task {task!r}; it knows {', '.join(sorted(_TASKS))}")
        return tuple(_TASKS[task])
    named = [getattr(transformers, name, None) for name in config.architectures or ()]
    return (*filter(None, named), transformers.AutoModel)


class _Flat(torch.nn.Module):
    """A model that takes its inputs by position, and returns tensors."""

    def __init__(
        self, model: torch.nn.Module, names: tuple[str, ...], outputs: list[str] | None, *, resized: bool
    ) -> None:
        super().__init__()
        self.model = model
        self.names = names
        self.outputs = outputs
        flags = {"return_dict": True, "use_cache": False, **({"interpolate_pos_encoding": True} if resized else {})}
        self.flags = {
            name: value for name, value in flags.items() if name in inspect.signature(model.forward).parameters
        }

    def run(self, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Runs the model, while it is exported with the changes that transformers' own exporter makes to it."""
        with exportable(self.model) if torch.compiler.is_exporting() else contextlib.nullcontext():
            given = (in_dtype(value, self.model.dtype) for value in values)
            made = self.model(**dict(zip(self.names, given, strict=True)), **self.flags)
        if unknown := {*(self.outputs or ())} - {*(made if isinstance(made, Mapping) else ())}:
            returned = ", ".join(made) if isinstance(made, Mapping) else "no names"
            raise SourceError(f"outputs: the model does not return {', '.join(sorted(unknown))}; it returns {returned}")
        return tuple(in_dtype(value, torch.float32) for value in _tensors(made, self.outputs))


def _tensors(made: Any, wanted: list[str] | None) -> Iterator[torch.Tensor]:
    match made:
        case torch.Tensor():
            yield made
        case Mapping():
            for name, value in made.items():
                if name in wanted if wanted is not None else name not in _NO_OUTPUTS:
                    yield from _tensors(value, None)
        case list() | tuple():
            for value in made:
                yield from _tensors(value, None)


@contextlib.contextmanager
def exportable(model: torch.nn.Module) -> Iterator[None]:
    with apply_patches("dynamo"), reset_model_state(model):
        yield


def _with_signature(
    model: torch.nn.Module, names: tuple[str, ...], outputs: list[str] | None, *, resized: bool
) -> torch.nn.Module:
    """The model with a `forward` whose parameters have the inputs' names, which dynamic shapes refer to."""

    def forward(self: _Flat, *values: torch.Tensor, **named: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.run(*values, *(named[name] for name in names[len(values) :]))

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(name, kind) for name in ("self", *names)]
    forward.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    made = type("Flat", (_Flat,), {"forward": forward})
    return made(model, names, outputs, resized=resized)


def _interpolated_once(module: torch.nn.Module, interpolate: Callable[..., torch.Tensor], *sizes: Any) -> torch.Tensor:
    """What a module computes of its position embeddings, kept in a buffer of it."""
    if "fixed_positions" not in module._buffers:  # noqa: SLF001 - `named_buffers` looks through all modules in it
        module.register_buffer("fixed_positions", interpolate(*sizes).detach())
    return module.get_buffer("fixed_positions")

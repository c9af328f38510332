"""Models of transformers, from the Hugging Face hub's cache, a folder in its layout, or a configuration."""

from __future__ import annotations

import contextlib
import copy
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...configs.base import did_you_mean
from ...configs.metadata import QUANTIZED
from ...configs.sources import SENTENCES, is_folder
from ...errors import SourceError, first_line
from ...formats.checkpoint import ENTRIES
from ..programs.weights import cast_on_use
from ..upstream.torch_export import import_torchvision
from ..upstream.transformers import weights_cast_on_use
from .prequantized import floating_point, in_floating_point, is_read
from .processors import (
    JSON,
    NO_PROCESSOR,
    PROCESSORS,
    VOCABULARIES,
    audio_metadata,
    files_of,
    find_file,
    image_preprocessing,
    load_processor,
    tokenizer_files,
    tokenizer_metadata,
)
from .sentences import SentenceHead

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

TEXT = "The quick brown fox jumps over the lazy dog, and a few more words follow until the line is long enough. "
SAMPLING_RATE = 16_000  # of the example sound, in Hz
SECONDS = 30  # longest sound of a model that takes any length; Whisper's is as long
_FRAME_RATE = 100  # frames of features in a second
_SOUNDS = {"input_values": "samples", "input_features": "frames"}
"""Inputs for a sound, and what their second dimension counts."""

_TASKS = {name: described["pt"] for name, described in SUPPORTED_TASKS.items()}
_TASKS["audio-text-to-text"] = (AutoModelForMultimodalLM, AutoModelForSeq2SeqLM)  # the hub's, without a pipeline
_TASKS["text2text-generation"] = (AutoModelForSeq2SeqLM,)  # without a pipeline since transformers 5
_TASKS[SENTENCES] = _TASKS["feature-extraction"]
_NO_OUTPUTS = {"cache", "past_key_values", "encoder_hidden_states", "hidden_states", "attentions"}


@dataclass(frozen=True)
class Options:
    """The arguments of all builders of models of transformers: fields of `configs.sources.HuggingFaceSource`."""

    name: str
    revision: str | None = None
    task: str | None = None
    config: Mapping[str, Any] | None = None
    batch: int | None = None
    sequence: int | None = None
    outputs: list[str] | None = None
    dtype: str = "float32"
    padding: str | None = None
    image_size: int | list[int] | None = None
    attention: str | None = None
    cache: str | None = None
    sinks: int = 0
    prefill: bool = False
    tokens_per_call: int | None = None
    logits: str | None = None
    audio_frames: int | None = None
    weights: Mapping[str, Any] | None = None

    @property
    def repo(self) -> dict[str, Any]:
        return repo_of(self.name, self.revision, self.weights)

    @property
    def context(self) -> int:
        """The most tokens of a model that generates text."""
        return self.sequence or 512

    def load(self, task: str | None = None) -> tuple[Any, PretrainedConfig]:
        return load_model(self.repo, self.task or task, self.config, self.weights, dtype=self.dtype)


class Model:
    """A model for one task, with the interface of ExecuTorch's ``EagerModelBase``."""

    def __init__(self, name: str, **fields: Any) -> None:
        """Loads the model; `fields` are those of `Options`."""
        options = Options(name, **fields)
        self._repo = options.repo
        self.model, self.config = options.load()
        self._padded, self._ctc = bool(options.padding), type(self.model).__name__.endswith("ForCTC")
        self._batch = options.batch or (1 if self._padded or self._ctc else 4)
        self._frames = options.audio_frames
        self._head = SentenceHead(self._repo) if options.task == SENTENCES else None
        if self._head and options.outputs:
            raise SourceError(f"leave `outputs` out: a model for {SENTENCES} returns embeddings")
        positions = positions_of(self.config) - (0 if self._padded else 2)  # some begin to count at 2
        self._sequence = min(options.sequence or 128, positions)
        size = options.image_size
        self._size = [size, size] if isinstance(size, int) else size
        self._outputs = options.outputs
        self._inputs = self._examples()
        if self._size:
            self._fix_positions()

    def get_eager_model(self) -> torch.nn.Module:
        return _with_signature(self.model, tuple(self._inputs), self._outputs, self._head, resized=bool(self._size))

    def get_example_inputs(self) -> tuple[torch.Tensor, ...]:
        return tuple(self._inputs.values())

    def get_dynamic_shapes(self) -> dict[str, Any]:
        """Batch and sequence, which torch.export narrows; nothing varies if texts have tokens for their image."""
        return {name: self._dims(name, tensor) for name, tensor in self._inputs.items()}

    def get_metadata(self) -> dict[str, Any]:
        """What the model's card, configuration and processors say."""
        metadata = describe(self._repo, self.config)
        if "pixel_values" in self._inputs:
            metadata["image"] = image_preprocessing(self._repo)
            if self._size:
                metadata["image"]["size"] = self._size
                metadata["image"].pop("resize", None)  # before images are cropped to another size
        if self._inputs.keys() & {*_SOUNDS}:
            metadata["audio"] = audio_metadata(self._repo)
        if self._has_tokenizer:
            metadata["tokenizer"] = tokenizer_metadata(self._repo, self.config)
        labels = self.config.id2label or {}
        if any(label != f"LABEL_{index}" for index, label in labels.items()):
            metadata["labels"] = [str(labels[index]) for index in sorted(labels)]
        return metadata

    @property
    def _has_tokenizer(self) -> bool:
        return self._ctc or "input_ids" in self._inputs

    def get_assets(self) -> dict[str, bytes]:
        """The files of the tokenizer and of processors, with which apps make inputs."""
        assets = tokenizer_files(self._repo) if self._has_tokenizer else {}
        if self._has_tokenizer and JSON not in assets:
            assets |= files_of(self._repo, VOCABULARIES)
        if self._inputs.keys() & {"pixel_values", *_SOUNDS}:
            assets |= files_of(self._repo, PROCESSORS)
        return assets

    def _dims(self, name: str, tensor: torch.Tensor) -> dict[int, Any]:
        if self._padded:
            return {}
        dims: dict[int, Any] = {0: named_hint("batch", self._batch)} if self._batch > 1 else {}
        if self._sequence > 1 and tensor.dtype is torch.int64 and tensor.dim() == 2 and tensor.shape[1] > 1:
            dims[1] = named_hint("decoder_" * name.startswith("decoder_") + "sequence", self._sequence)
        if self._ctc:
            unit, second = _SOUNDS[name], audio_metadata(self._repo).get("sampling_rate", SAMPLING_RATE)
            dims[1] = named_hint(unit, self._frames or SECONDS * (second if unit == "samples" else _FRAME_RATE))
        return dims

    def get_padding(self) -> dict[str, float]:
        """The value that each input may be padded with at its end, as far as the model uses its mask."""
        token = getattr(self.config.get_text_config(decoder=True), "pad_token_id", None) or 0
        return {name: token if name.endswith("input_ids") else 0 for name in self._inputs}

    def _examples(self) -> dict[str, torch.Tensor]:
        """Inputs that the model's own processors make of a text, an image and a sound, or random ones."""
        names, kind = list(inspect.signature(self.model.forward).parameters), type(self.model).__name__
        batch = self._batch if self._padded else min(2, self._batch)
        if self._padded and "input_ids" not in names:
            raise SourceError(f"leave `padding` out: {kind} takes no `input_ids`")
        if self._size and "pixel_values" not in names:
            raise SourceError(f"leave `image_size` out: {kind} takes no `pixel_values`")
        inputs: dict[str, torch.Tensor] = {}
        if "input_ids" in names:
            inputs |= self._text(batch)
        if "pixel_values" in names:
            inputs |= self._image(batch)
        inputs = {name: value for name, value in inputs.items() if name in names}
        name = self.model.main_input_name
        if name in names and name in _SOUNDS:
            inputs[name] = example_sound(self._repo, self.config, name, batch)
        if inputs.keys() >= {"input_ids", "pixel_values"}:
            self._name_images(inputs)
        if "decoder_input_ids" in names and self.config.is_encoder_decoder:
            inputs["decoder_input_ids"] = self._tokens(batch)
        if not inputs:
            raise SourceError(f"example inputs of {kind} are not known: it takes {', '.join(names)}")
        return inputs

    def _tokens(self, batch: int) -> torch.Tensor:
        vocabulary = self.config.get_text_config(decoder=True).vocab_size
        return random_tokens(vocabulary, batch, self._length)

    @property
    def _length(self) -> int:
        return self._sequence if self._padded else min(16, self._sequence)

    def _text(self, batch: int) -> dict[str, torch.Tensor]:
        if inputs := _tokenized(self._repo, batch, self._length, pad=self._padded):
            return inputs
        tokens = self._tokens(batch)
        mask = torch.ones_like(tokens)
        if self._padded:
            mask[:, len(TEXT) // 4 :] = 0
            tokens = tokens.where(mask == 1, self.config.get_text_config().pad_token_id or 0)
        return {"input_ids": tokens, "attention_mask": mask}

    def _image(self, batch: int) -> dict[str, torch.Tensor]:
        inputs = self._images_of_own_size(batch)
        if self._size and inputs["pixel_values"].dim() != 4:
            raise SourceError(f"leave `image_size` out: images of {type(self.model).__name__} are not rows of pixels")
        if self._size:
            inputs["pixel_values"] = torch.nn.functional.interpolate(inputs["pixel_values"], self._size)
        return inputs

    def _fix_positions(self) -> None:
        """Computes position embeddings for the size of the images once, for which ExecuTorch has no operator."""
        for module in self.model.modules():
            if callable(interpolate := getattr(module, "interpolate_pos_encoding", None)):
                module.interpolate_pos_encoding = partial(_interpolated_once, module, interpolate)
        try:
            with torch.no_grad():
                self.get_eager_model()(*self.get_example_inputs())
        except (ValueError, RuntimeError) as error:
            kind, size = type(self.model).__name__, "x".join(map(str, self._size or ()))
            raise SourceError(f"image_size: {kind} takes no images of {size}: {first_line(error)}") from error

    def _images_of_own_size(self, batch: int) -> dict[str, torch.Tensor]:
        with contextlib.suppress(*NO_PROCESSOR):
            processor = AutoImageProcessor.from_pretrained(**self._repo)
            inputs = processor(images=[picture()] * batch, return_tensors="pt")
            parameters = inspect.signature(self.model.forward).parameters
            required = {name for name, taken in parameters.items() if taken.default is inspect.Parameter.empty}
            required |= {"pixel_values"}  # the model does without all others
            return {name: torch.as_tensor(value) for name, value in inputs.items() if name in required}
        config = next((part for part in parts_of(self.config) if hasattr(part, "image_size")), self.config)
        size: Any = getattr(config, "image_size", 224)
        height, width = size if isinstance(size, (list, tuple)) else (size, size)
        return {"pixel_values": torch.randn(batch, getattr(config, "num_channels", 3), height, width)}

    def _name_images(self, inputs: dict[str, torch.Tensor]) -> None:
        """Begins each text with as many tokens as its image has features, where the model puts those there."""
        names = ("image_token_id", "image_token_index")
        token = next((getattr(self.config, name) for name in names if hasattr(self.config, name)), None)
        if token is None or not hasattr(self.model, "get_image_features"):
            return
        try:
            with torch.no_grad():
                features = self.model.get_image_features(inputs["pixel_values"]).pooler_output
        except (TypeError, AttributeError):  # it wants more than the image, or returns something else
            return
        rows = sum(feature.shape[:-1].numel() for feature in features)
        tokens = inputs["input_ids"] = inputs["input_ids"].where(inputs["input_ids"] != token, abs(token - 1))
        images = tokens.new_full((len(tokens), rows // len(tokens)), token)
        first = {"input_ids": images, "attention_mask": images * 0 + 1, "token_type_ids": images * 0}
        inputs |= {name: torch.cat([first[name], inputs[name]], dim=1) for name in first.keys() & inputs.keys()}
        self._batch = self._sequence = 1  # each text has the tokens of its images, so no size varies


def named_hint(name: str, most: int) -> Any:
    """A dimension of 1 or more that torch.export may fix, with a name that buckets refer to."""
    hint = Dim.AUTO(min=1, max=most)
    hint.__name__ = name
    return hint


def describe(repo: Mapping[str, Any], config: PretrainedConfig) -> dict[str, Any]:
    """The model's name, architecture, repository, commit and licence, and the format of a quantized checkpoint."""
    name = str(repo["pretrained_model_name_or_path"])
    metadata = {
        "name": (Path(name).resolve() if is_folder(name) else Path(name)).name,
        "architecture": config.model_type,
        "license": _license(repo),
        "source": f"hf:{name}" if "/" in name and not is_folder(name) else None,
        "revision": repo["revision"],
    }
    if quantized := vars(config).get("quantization_config"):
        metadata["extra"] = {QUANTIZED: str(quantized["quant_method"])}
    return {key: value for key, value in metadata.items() if value}


def describe_generating(
    repo: Mapping[str, Any], config: PretrainedConfig, context: int | None, **parts: Any
) -> dict[str, Any]:
    """Metadata of a model that generates text, with `parts` for its images and sounds."""
    tokenizer = tokenizer_metadata(repo, config)
    return {**describe(repo, config), **parts, "tokenizer": tokenizer, "context_length": context}


def _license(repo: Mapping[str, Any]) -> str | None:
    """The licence in the head of the model's card, if it has one."""
    try:
        path = find_file(repo, "README.md")
        card = ModelCard.load(path, ignore_metadata_errors=True).data if path else None
    except (OSError, ValueError):
        return None
    named = card and (card.license_name if card.license == "other" else card.license)
    return str(named) if named else None


def example_sound(repo: Mapping[str, Any], config: PretrainedConfig, name: str, batch: int) -> torch.Tensor:
    """A tone of one second, as the model's feature extractor prepares it for the input `name`, or random values."""
    sound = tone(1)
    with contextlib.suppress(*NO_PROCESSOR):
        extractor = AutoFeatureExtractor.from_pretrained(**repo)
        inputs = extractor([sound.numpy()] * batch, sampling_rate=extractor.sampling_rate, return_tensors="pt")
        return torch.as_tensor(inputs[name])
    if name == "input_values":
        return (sound + 0.01 * torch.randn(batch, SAMPLING_RATE)).to(torch.float32)
    mel_bins = getattr(config, "num_mel_bins", getattr(config, "input_feat_per_channel", 80))
    frames = 2 * getattr(config, "max_source_positions", 1500)
    whisper = hasattr(config, "max_source_positions") and not hasattr(config, "input_feat_per_channel")
    return torch.randn(batch, mel_bins, frames) if whisper else torch.randn(batch, 100, mel_bins)


def tone(seconds: int) -> torch.Tensor:
    """[samples]: a tone of 440 Hz."""
    return torch.sin(torch.arange(seconds * SAMPLING_RATE) * (2 * math.pi * 440 / SAMPLING_RATE))


def example_tokens(repo: Mapping[str, Any], vocabulary: int, length: int) -> torch.Tensor:
    """[1, length], int64: a text in the model's own tokens, or random ones where it has no tokenizer."""
    inputs = _tokenized(repo, 1, length)
    return inputs["input_ids"] if inputs else random_tokens(vocabulary, 1, length)


def random_tokens(vocabulary: int, batch: int, length: int) -> torch.Tensor:
    """[batch, length], int64; without the first few, which are special in most vocabularies."""
    return torch.randint(min(5, vocabulary - 1), vocabulary, (batch, length))


def _tokenized(
    repo: Mapping[str, Any], batch: int, length: int, *, pad: bool = False
) -> dict[str, torch.Tensor] | None:
    tokenizer = load_processor(AutoTokenizer, repo)
    if tokenizer is None:
        return None
    if pad and tokenizer.pad_token is None:
        raise SourceError("leave `padding` out: the model's tokenizer has no token for it")
    padding = "max_length" if pad else False
    inputs = tokenizer([TEXT] * batch, truncation=True, padding=padding, max_length=length, return_tensors="pt")
    return {name: inputs[name] for name in tokenizer.model_input_names if name in inputs}


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
    sizes = [getattr(text, name) for name in names if isinstance(getattr(text, name, None), int)]
    return min((size for size in sizes if size > 0), default=1 << 20)


def repo_of(name: str, revision: str | None, weights: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The arguments with which `from_pretrained` finds a model and its processors in a repository or a folder."""
    repo = {"pretrained_model_name_or_path": name, "revision": revision, "local_files_only": True}
    return {**repo, "gguf_file": weights["gguf"]} if weights and "gguf" in weights else repo


def load_model(
    repo: Mapping[str, Any],
    task: str | None,
    changes: Mapping[str, Any] | None,
    weights: Mapping[str, Any] | None = None,
    *,
    dtype: str = "float32",
) -> tuple[Any, PretrainedConfig]:
    """The model, with the adapter merged, and its configuration; SourceError if they cannot be read."""
    config = _configuration(repo, changes)
    _check_task(config, task)
    if weights is None or "adapter" not in weights:
        return _load(repo, task, changes, config, dtype), config
    from .adapters import adapter_folder, size_head, with_adapter  # noqa: PLC0415 - another extra

    folder = adapter_folder(weights["adapter"])
    size_head(config, folder)
    model = _load(repo, task, changes, config, dtype)
    adapted = with_adapter(model, folder, merge=weights["adapter"].get("merge", True))
    return adapted.requires_grad_(requires_grad=False), config


def _load(
    repo: Mapping[str, Any], task: str | None, changes: Mapping[str, Any] | None, config: PretrainedConfig, dtype: str
) -> Any:
    quantized = vars(config).get("quantization_config")
    if not isinstance(quantized, Mapping) or "gguf_file" in repo:
        return _loaded(repo, task, changes, config, dtype)
    plain = copy.copy(config)
    del plain.quantization_config
    if changes is not None:  # random weights are not quantized
        return _loaded(repo, task, changes, plain, dtype)
    if not is_read(quantized):
        return in_floating_point(_loaded(repo, task, changes, config, dtype), quantized)
    entry = next(filter(None, (find_file(repo, name) for name in ENTRIES if "safetensors" in name)), None)
    with floating_point(entry, quantized) as folder:
        there = {**repo, "pretrained_model_name_or_path": str(folder), "revision": None}
        return _loaded(there, task, changes, plain, dtype)


def _loaded(
    repo: Mapping[str, Any], task: str | None, changes: Mapping[str, Any] | None, config: PretrainedConfig, dtype: str
) -> Any:
    problem: Exception | None = None
    for auto, attention in product(_classes(config, task), ("sdpa", "eager")):
        settings = {"config": config, "dtype": getattr(torch, dtype), "attn_implementation": attention}
        try:
            if changes is None:
                with weights_cast_on_use(cast_on_use) if "gguf_file" not in repo else contextlib.nullcontext():
                    model, loaded = auto.from_pretrained(**{**repo, **settings}, output_loading_info=True)
                if "gguf_file" in repo and loaded["missing_keys"]:
                    raise _unread(repo, f"it finds no {min(loaded['missing_keys'])}")
            else:
                model = _random(auto, **settings)
        except ValueError as error:
            problem = error
        else:
            if model._can_set_experts_implementation():  # noqa: SLF001 - as transformers' exporter for ExecuTorch asks
                model.set_experts_implementation("batched_mm")  # the usual operator has no kernel for ExecuTorch
            return model.eval().requires_grad_(requires_grad=False)
    raise SourceError(f"no class of transformers takes {config.model_type!r} for the task {task!r}: {problem}")


def _random(auto: Any, config: PretrainedConfig, dtype: torch.dtype, attn_implementation: str) -> Any:
    config.architectures = config.architectures or []  # from_config looks through it
    make = getattr(auto, "from_config", None) or auto._from_config  # noqa: SLF001 - of a class that is no auto class
    if dtype is torch.float32:
        return make(config, attn_implementation=attn_implementation).float()
    return make(config, attn_implementation=attn_implementation, dtype=dtype)  # `to` would round frequencies, too


def in_dtype(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Converts floating-point values of another dtype; a value that has the dtype needs no operator in a program."""
    return value.to(dtype) if value.is_floating_point() and value.dtype != dtype else value


_UNDECLARED = {"head_dim"}  # fields that many architectures read where they are set, and declare nowhere


def _configuration(repo: Mapping[str, Any], changes: Mapping[str, Any] | None) -> PretrainedConfig:
    name = str(repo["pretrained_model_name_or_path"])
    make = partial(AutoConfig.from_pretrained, **repo)
    if changes is not None and repo["revision"] is None and not is_folder(name):
        if name not in transformers.CONFIG_MAPPING:
            suggestion = did_you_mean(name, [*transformers.CONFIG_MAPPING])
            raise SourceError(f"transformers has no model_type {name!r}{suggestion}")
        make = partial(AutoConfig.for_model, name)
    try:
        config = make()
    except ValueError as error:
        if "gguf_file" in repo:
            raise _unread(repo, first_line(error)) from error
        raise
    for field in changes or ():
        if field not in _UNDECLARED and not hasattr(config, field):
            suggestion = did_you_mean(field, [*config.to_dict()])
            raise SourceError(f"config: {type(config).__name__} has no field {field!r}{suggestion}")
    return make(**changes) if changes else config


def _unread(repo: Mapping[str, Any], problem: str) -> SourceError:
    name = Path(repo["pretrained_model_name_or_path"]) / repo["gguf_file"]
    return SourceError(f"transformers cannot read {name}: {problem}")


def _classes(config: PretrainedConfig, task: str | None) -> tuple[Any, ...]:
    """Classes that may load the model, the likeliest first."""
    if task is not None:
        if task not in _TASKS:
            raise SourceError(f"transformers knows no task {task!r}{did_you_mean(task, [*_TASKS])}")
        return tuple(_TASKS[task])
    named = [getattr(transformers, name, None) for name in config.architectures or ()]
    return (*filter(None, named), transformers.AutoModel)


def _check_task(config: PretrainedConfig, task: str | None) -> None:
    """Raises SourceError if transformers has no class of this architecture for a task."""
    if task is None or any(type(config) in kind._model_mapping for kind in _classes(config, task)):  # noqa: SLF001 - the classes' only list
        return
    others = [name for name, kinds in _TASKS.items() if any(type(config) in kind._model_mapping for kind in kinds)]  # noqa: SLF001 - as above
    raise SourceError(
        f"transformers has no {config.model_type!r} for the task {task!r}; it has some for {', '.join(sorted(others))}"
    )


class _Flat(torch.nn.Module):
    """A model that takes its inputs by position, and returns tensors."""

    def __init__(
        self,
        model: torch.nn.Module,
        names: tuple[str, ...],
        outputs: list[str] | None,
        head: SentenceHead | None,
        *,
        resized: bool,
    ) -> None:
        super().__init__()
        self.model = model
        self.head = head
        self.names = names
        self.outputs = outputs
        flags = {"return_dict": True, "use_cache": False, **({"interpolate_pos_encoding": True} if resized else {})}
        self.flags = accepted(model.forward, flags)

    def run(self, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Runs the model, while it is exported with the changes that transformers' own exporter makes to it."""
        with exportable(self.model) if torch.compiler.is_exporting() else contextlib.nullcontext():
            inputs = {name: in_dtype(value, self.model.dtype) for name, value in zip(self.names, values, strict=True)}
            outputs = self.model(**inputs, **self.flags)
        if self.head is not None:
            return (self.head(in_dtype(outputs.last_hidden_state, torch.float32), inputs["attention_mask"]),)
        names = [*outputs] if isinstance(outputs, Mapping) else []
        if unknown := {*(self.outputs or ())} - {*names}:
            returned = ", ".join(names) if isinstance(outputs, Mapping) else "no names"
            raise SourceError(f"outputs: the model does not return {', '.join(sorted(unknown))}; it returns {returned}")
        return tuple(in_dtype(value, torch.float32) for value in _tensors(outputs, self.outputs))


def _tensors(outputs: Any, wanted: list[str] | None) -> Iterator[torch.Tensor]:
    match outputs:
        case torch.Tensor():
            yield outputs
        case Mapping():
            for name, value in outputs.items():
                if name in wanted if wanted is not None else name not in _NO_OUTPUTS:
                    yield from _tensors(value, None)
        case list() | tuple():
            for value in outputs:
                yield from _tensors(value, None)


def accepted(function: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that a function has parameters for."""
    parameters = inspect.signature(function).parameters
    return {name: value for name, value in arguments.items() if name in parameters}


@contextlib.contextmanager
def exportable(model: torch.nn.Module) -> Iterator[None]:
    with apply_patches("dynamo"), reset_model_state(model):
        yield


def _with_signature(
    model: torch.nn.Module,
    names: tuple[str, ...],
    outputs: list[str] | None,
    head: SentenceHead | None,
    *,
    resized: bool,
) -> torch.nn.Module:
    """The model with a `forward` whose parameters have the inputs' names, which dynamic shapes refer to."""

    def forward(self: _Flat, *values: torch.Tensor, **named: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.run(*values, *(named[name] for name in names[len(values) :]))

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(name, kind) for name in ("self", *names)]
    forward.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return type("Flat", (_Flat,), {"forward": forward})(model, names, outputs, head, resized=resized)


def _interpolated_once(module: torch.nn.Module, interpolate: Callable[..., torch.Tensor], *sizes: Any) -> torch.Tensor:
    """Position embeddings as a module interpolates them, computed once and kept in a buffer of it."""
    if "fixed_positions" not in module._buffers:  # noqa: SLF001 - `named_buffers` looks through all modules in it
        module.register_buffer("fixed_positions", interpolate(*sizes).detach())
    return module.get_buffer("fixed_positions")

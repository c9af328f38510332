"""Models that generate text from a text with images in it.

Their files have the methods that ExecuTorch's runner of such models calls, `vision_encoder`, `token_embedding` and
`text_decoder` (extension/llm/runner/multimodal_prefiller.cpp). The runner passes each part of a prompt, an image or a
text, to one of the first two, and its output to the third, without a look at it. Where the decoder has to know more of
a token than its embedding, the rows have more columns.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch.export import Dim
from torch.overrides import TorchFunctionMode
from transformers import AutoImageProcessor, PretrainedConfig
from transformers.exporters.utils import apply_patches, precompute_export_inputs
from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING

from ...configs.model import MethodCall, MethodDefinition, ModelDefinition
from ...errors import SourceError, first_line
from ...formats.media import PIECES
from ..upstream.transformers import masks_of_indices
from . import huggingface
from .kv_cache import KvCache, cache_shapes
from .processors import PROCESSORS, assets_of, image_preprocessing, load_processor, without_tokenizer
from .text_generation import CachedModel, check_logits, constants, make_cache

_FILES = (*PROCESSORS, "chat_template.json", "generation_config.json")
_TYPES = ("token_type_ids", "mm_token_type_ids")
"""What models call the input that is 1 for tokens of images, and 0 for others."""


class Encoder(torch.nn.Module):
    """Computes the embeddings of an image or a sound, by the model's own accessor."""

    def __init__(self, model: Any, accessor: str, inputs: Inputs) -> None:
        super().__init__()
        self.model = model
        self._accessor = accessor
        others = huggingface.accepted(getattr(model, accessor), inputs.others)
        precompute_export_inputs(torch.nn.Module(), others)  # sizes become numbers
        self.inputs = replace(inputs, others=others)
        self._known = _KnownValues()
        self.register_buffer("columns", None)  # [1, tokens, columns]

    def learn(self, inputs: torch.Tensor) -> torch.Tensor:
        """Encodes as `forward` does, and remembers what does not depend on the values of inputs."""
        seen = []
        for values in torch.linspace(-1, 1, inputs.numel()).cos().view_as(inputs), inputs:
            self._known.values, self._known.learning = {}, True
            self(values)
            seen.append(self._known.values)
        self._known.learning = False
        first, second = seen
        self._known.known = {call: value for call, value in second.items() if _is_known(value, first.get(call))}
        return self(inputs)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Encodes one image [1, channels, height, width], or one sound, to [1, tokens, hidden size + columns]."""
        with contextlib.ExitStack() as changes:
            if torch.compiler.is_exporting() or self._known.learning:
                changes.enter_context(huggingface.exportable(self.model))
                changes.enter_context(apply_patches("executorch"))
            changes.enter_context(self._known)
            output = getattr(self.model, self._accessor)(**self.inputs.of(inputs))
        features = getattr(output, "pooler_output", output)
        parts = features if isinstance(features, (list, tuple)) else [features]
        rows = torch.cat([part.reshape(-1, part.shape[-1]) for part in parts])[None].float()
        return rows if self.columns is None else torch.cat([rows, self.columns], dim=-1)


class PatchProjection(torch.nn.Module):
    """A convolution of patches of its kernel's size, as a product: ExecuTorch has no kernel for three dimensions."""

    def __init__(self, convolution: torch.nn.Conv3d) -> None:
        super().__init__()
        self.weight, self.bias = convolution.weight, convolution.bias

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        """Projects [patches, channels, time, height, width] to [patches, outputs, 1, 1, 1], or a whole video."""
        size = self.weight.shape[2:]
        if patches.shape[2:] != size:
            return torch.nn.functional.conv3d(patches, self.weight, self.bias, stride=tuple(size))
        projected = torch.nn.functional.linear(patches.flatten(1), self.weight.flatten(1), self.bias)
        return projected[..., None, None, None]


def _takes_whole_patches(layer: torch.nn.Conv3d) -> bool:
    """Whether each step of a convolution covers values of its own, as those that project patches do."""
    return layer.kernel_size == layer.stride and layer.groups == 1 and not any(layer.padding)


class TokenEmbedding(torch.nn.Module):
    """Computes the embeddings of tokens."""

    def __init__(self, model: Any, columns: int) -> None:
        super().__init__()
        self.embed = model.get_input_embeddings()
        self._columns = columns

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Embeds tokens [1, tokens], int64; returns [1, tokens, hidden size + columns]."""
        rows = self.embed(tokens).float()
        length = tokens.shape[1]
        if self._columns == _POSITIONS:
            offsets = torch.arange(length, dtype=torch.float32)
            return torch.cat([rows, offsets[None, :, None].expand(1, length, _POSITIONS)], dim=-1)
        return torch.nn.functional.pad(rows, (0, self._columns))


_IMAGE, _POSITIONS = 1, 3
"""Columns after an embedding: whether its token is one of an image, where these see each other; or its position in
time, height and width, counted from the first token of its part of the prompt."""


class Decoder(CachedModel):
    """A language model that continues after the embeddings in its cache."""

    following: torch.Tensor

    def __init__(self, model: Any, cache: KvCache, columns: int, *, passes_start: bool = False) -> None:
        super().__init__(model, cache, passes_start=passes_start)
        self._columns = columns
        self._types = next((name for name in _TYPES if name in inspect.signature(model.forward).parameters), "")
        if columns == _POSITIONS:
            self.register_buffer("following", torch.zeros(cache.context, dtype=torch.int64))

    def forward(self, embeddings: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
        """Computes the logits [1, vocabulary] after an image, sound or text, which follows `start` [1] tokens.

        Its `embeddings` are [1, tokens, hidden size + columns].
        """
        length, width = embeddings.shape[1], embeddings.shape[2] - self._columns
        at = start + torch.arange(length)
        columns = embeddings[0, :, width:].to(torch.int64)
        inputs = {"inputs_embeds": embeddings[..., :width]}
        if self._columns == _IMAGE:
            inputs[self._types] = torch.zeros(1, self.cache.context, dtype=torch.int64).index_copy(1, at, columns.T)
        elif self._columns == _POSITIONS:
            first = self.following[(start - 1).clamp(min=0)] * (start > 0)
            positions = first + columns
            self.following.index_copy_(0, at, (positions.amax() + 1).expand(length))
            inputs["position_ids"] = positions.T[:, None]
        with masks_of_indices():
            return self.run(start, length, **inputs)

    def clear(self) -> None:
        self.cache.clear()
        if self._columns == _POSITIONS:
            self.following.zero_()


class _KnownValues(TorchFunctionMode):
    """Makes constants of the numbers, indices and masks that a model computes and no pixel decides.

    torch.export and ExecuTorch lack operators for many of them, so a program has the values that eager computed.
    """

    def __init__(self) -> None:
        super().__init__()
        # by file, line, function, and how often it was called there before
        self.values: dict[tuple[str, int, Any, int], Any] = {}
        self.known: dict[tuple[str, int, Any, int], Any] = {}
        self.learning = False

    def __enter__(self) -> Any:
        self._visits: Counter[tuple[str, int, Any]] = Counter()
        return super().__enter__()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Records a value, or returns the recorded one; for a mask of rows, whether it leaves none out."""
        caller = sys._getframe(1)  # noqa: SLF001 - torch calls this from where the operator is
        line = caller.f_code.co_filename, caller.f_lineno, func
        call = *line, self._visits[line]
        self._visits[line] += 1
        if torch.compiler.is_exporting() and call in self.known:
            value = self.known[call]
            return args[0] if value is _ALL_ROWS else value.clone() if torch.is_tensor(value) else value
        value = func(*args, **(kwargs or {}))
        if self.learning:
            masked = func is torch.Tensor.__getitem__ and getattr(args[1], "dtype", None) is torch.bool
            kept = value.clone() if torch.is_tensor(value) else value  # it may be changed later
            self.values[call] = _ALL_ROWS if masked and bool(args[1].all()) else kept
        return value


_ALL_ROWS = "all rows"
_MOST = 1 << 20  # values of a constant


def _is_known(value: Any, other: Any) -> bool:
    """Whether it is a constant that does not depend on the image, by its values for two images."""
    if torch.is_tensor(value) and torch.is_tensor(other):
        return not value.is_floating_point() and value.numel() <= _MOST and torch.equal(value, other)
    return isinstance(value, (bool, int, list, str)) and not torch.is_tensor(other) and bool(value == other)


@dataclass(frozen=True)
class Inputs:
    """What a model takes of an image or a sound."""

    name: str  # of the input that holds its values
    shape: tuple[int, ...] | None = None  # of that input; None: that of the values
    factors: tuple[tuple[int, int], ...] = ()  # sizes and strides of the values in that input; a stride of 0 repeats
    others: Mapping[str, torch.Tensor] = field(default_factory=dict)  # inputs that all images of a size share

    def of(self, values: torch.Tensor) -> dict[str, torch.Tensor]:
        """The inputs by name."""
        if self.shape is None:
            return {self.name: values, **self.others}
        real = [factor for factor in self.factors if factor[1]]
        stored = sorted(real, key=lambda factor: -factor[1])
        values = values.reshape([size for size, _ in stored]).permute([stored.index(factor) for factor in real])
        for at, (_, stride) in enumerate(self.factors):
            values = values if stride else values.unsqueeze(at)
        return {self.name: values.expand([size for size, _ in self.factors]).reshape(self.shape), **self.others}


def image_example(repo: Mapping[str, Any], config: PretrainedConfig, size: int | Sequence[int] | None) -> Example:
    """An image as the file takes it, [1, 3, height, width], and what the model takes of it.

    An image processor may put an image into patches. An image that holds the positions of its values shows how. Raises
    SourceError if the size is not known, or the processor computes other values.
    """
    processor = _processor(repo, config)
    height, width = (size, size) if isinstance(size, int) else size or _size(processor, config)
    image = torch.as_tensor(huggingface.picture(height, width)).permute(2, 0, 1)[None].contiguous() / 127.5 - 1
    metadata = {"image": {**image_preprocessing(repo), "size": (height, width)}}
    if processor is None:
        return Example(image, Inputs("pixel_values"), metadata)
    _set(processor, {**dict.fromkeys(_CHANGES, False), "max_image_size": {"longest_edge": max(height, width)}})
    positions = np.arange(3 * height * width).reshape(3, height, width).transpose(1, 2, 0)
    read: Any = 0
    try:
        for shift in (0, 8, 16):
            inputs = processor(images=[(positions >> shift & 255).astype(np.uint8)], return_tensors="pt")
            read = read + (inputs["pixel_values"].to(torch.int64) << shift)
    except (ValueError, TypeError, RuntimeError) as error:
        raise SourceError(
            f"the image processor takes no image of {height} x {width}, give another `image_size`: {first_line(error)}"
        ) from error
    factors = _factors(read.flatten().numpy(), positions.size)
    if factors is None:
        raise SourceError(
            f"{type(processor).__name__} makes more of an image of {height} x {width} than patches of it, as copies in "
            "another size, and ExecuTorch's runner passes the image only"
        )
    others = {name: value for name, value in inputs.items() if name != "pixel_values"}
    return Example(image, Inputs("pixel_values", tuple(read.shape), factors, others), metadata)


@dataclass(frozen=True)
class Example:
    """An input of an encoder, what the model takes of it, and what the file says about it."""

    values: torch.Tensor
    inputs: Inputs
    metadata: Mapping[str, Any]


_CHANGES = ("do_resize", "do_rescale", "do_normalize", "do_center_crop", "do_convert_rgb")
"""Options of image processors that change the values of an image."""


def _processor(repo: Mapping[str, Any], config: PretrainedConfig) -> Any:
    """The model's image processor, or its architecture's with the configuration's patches; None: there is none."""
    processor = load_processor(AutoImageProcessor, repo)
    if processor is None:
        kind = (IMAGE_PROCESSOR_MAPPING.get(type(config), None) or {}).get("pil")
        if kind is None:
            return None
        vision = getattr(config, "vision_config", config)
        fields = {name: name for name in ("patch_size", "temporal_patch_size")} | {"merge_size": "spatial_merge_size"}
        sizes = {name: getattr(vision, field, None) for name, field in fields.items() if hasattr(kind, name)}
        processor = kind(**{name: value for name, value in sizes.items() if isinstance(value, int)})
    return _set(processor, dict.fromkeys(PIECES, False))


def _set(processor: Any, options: Mapping[str, Any]) -> Any:
    """The image processor with those options that it has."""
    for name, value in options.items():
        if hasattr(processor, name):
            setattr(processor, name, value)
    return processor


def _size(processor: Any, config: PretrainedConfig) -> tuple[int, int]:
    """Height and width of an image in one piece."""
    sizes = (getattr(part, "image_size", None) for part in huggingface.parts_of(config))
    configured: Any = next(filter(None, sizes), None)
    if processor is not None:
        with contextlib.suppress(ValueError, TypeError, RuntimeError):
            inputs = processor(images=[huggingface.picture()], return_tensors="pt")
            if inputs["pixel_values"].dim() > 3:
                configured = configured or tuple(inputs["pixel_values"].shape[-2:])
            elif "image_grid_thw" in inputs:
                patches = inputs["image_grid_thw"][0, 1:]
                configured = configured or [int(count) * processor.patch_size for count in patches]
    if configured is None:
        raise SourceError("the configuration and the image processor name no size of images: add `image_size`")
    return (configured, configured) if isinstance(configured, int) else tuple(configured)


def _factors(index: np.ndarray[Any, Any], count: int) -> tuple[tuple[int, int], ...] | None:
    """Sizes and strides of an order in which all of `count` values are read; None: it has none."""
    factors: list[tuple[int, int]] = []
    if index[0] != 0 or index.max() != count - 1 or len(np.unique(index)) != count:
        return None
    while len(index) > 1:
        step = int(index[1] - index[0])
        ends = np.flatnonzero(np.diff(index) != step)
        length = int(ends[0]) + 1 if len(ends) else len(index)
        rows = index.reshape(-1, length) if len(index) % length == 0 else index[None, :0]
        if step < 0 or rows.size == 0 or (rows != rows[:, :1] + step * np.arange(length)).any():
            return None
        factors.insert(0, (length, step))
        index = rows[:, 0]
    return tuple(factors)


def model(name: str, **fields: Any) -> ModelDefinition | huggingface.Model:
    """A model with the methods of `generating` for images, or one of another kind; `fields` as in `Options`."""
    options = huggingface.Options(name, **fields)
    loaded, configuration = options.load()
    if not hasattr(loaded, "get_image_features") or not hasattr(loaded, "generate") or configuration.is_encoder_decoder:
        if options.attention or options.cache:
            kind = type(loaded).__name__
            raise SourceError(f"{kind} does not generate text from images: leave `attention`, `cache` out")
        return huggingface.Model(name, **fields)
    if options.batch is not None or options.outputs is not None:
        raise SourceError("leave `batch` and `outputs` out: models that generate text have none")
    for path, layer in [*loaded.named_modules()]:
        if isinstance(layer, torch.nn.Conv3d) and _takes_whole_patches(layer):
            loaded.set_submodule(path, PatchProjection(layer))
    return generating(loaded, options, {IMAGE: image_example(options.repo, configuration, options.image_size)})


@dataclass(frozen=True)
class Modality:
    """A kind of parts that prompts may have next to text."""

    method: str  # of the file
    accessor: str  # the method of models of transformers that computes the embeddings
    token: str  # the constant method, and the field of the configuration, with the token that stands for an embedding
    part: str  # what errors call it


IMAGE = Modality("vision_encoder", "get_image_features", "image_token_id", "an image")


def generating(
    loaded: Any, options: huggingface.Options, examples: Mapping[Modality, Example], files: tuple[str, ...] = ()
) -> ModelDefinition:
    """Methods for prompts with parts of some modalities; SourceError if they do not compute what the model does.

    `files` are delivered, too, where the model has them.
    """
    config, repo = loaded.config, options.repo
    context = min(options.context, huggingface.positions_of(config))
    vocabulary = config.get_text_config(decoder=True).vocab_size
    encoders = {kind: Encoder(loaded, kind.accessor, example.inputs) for kind, example in examples.items()}
    counts = {kind: _count(kind, encoder, examples[kind].values, context) for kind, encoder in encoders.items()}
    special = {kind: int(getattr(config, kind.token)) for kind in examples}
    text = huggingface.example_tokens(repo, vocabulary, 8).repeat(1, 8)[:, :8]
    text = text.where(~torch.isin(text, torch.tensor([*special.values()])), 0)
    parts = [text[:, :3], *(text.new_full((1, counts[kind]), special[kind]) for kind in examples), text[:, 3:]]
    prompt = torch.cat(parts, dim=1)
    others = {name: value for example in examples.values() for name, value in example.inputs.of(example.values).items()}
    types = torch.isin(prompt, torch.tensor([*special.values()])).long()
    inputs = {"input_ids": prompt, **others, **dict.fromkeys(_TYPES, types)}
    with torch.no_grad():
        wanted = loaded(**huggingface.accepted(loaded.forward, inputs), use_cache=False).logits
    columns = _add_columns(loaded, encoders, inputs)
    shapes = cache_shapes(loaded, {"input_ids": text})
    if columns == _IMAGE:  # the masks of these models are for all positions of the context
        shapes = [shape and shape._replace(window=None) for shape in shapes]
    cache = make_cache(loaded.get_decoder(), shapes, context, options)
    embed = TokenEmbedding(loaded, columns)
    decoder = Decoder(loaded, cache, columns, passes_start=options.attention is not None)
    calls = [MethodCall("token_embedding", (parts[0],))]
    calls += [MethodCall(kind.method, (example.values,)) for kind, example in examples.items()]
    calls += [MethodCall("token_embedding", (part,)) for part in (text[:, 3:7], text[:, 7:])]
    modules: dict[str, torch.nn.Module] = {"token_embedding": embed}
    modules |= {kind.method: encoder for kind, encoder in encoders.items()}
    logits, start, sequence = [], 0, []
    with torch.no_grad():
        for call in calls:
            rows = modules[call.method](*call.inputs)
            step = MethodCall("text_decoder", (rows, torch.tensor([start])))
            logits.append(decoder(*step.inputs))
            sequence += [call, step]
            start += rows.shape[1]
    decoder.clear()
    check_logits(torch.cat(logits[-2:]), wanted[0, -2:].float(), loaded, options.cache, _IN_PARTS)
    described = {name: part for example in examples.values() for name, part in example.metadata.items()}
    tokens = {1: Dim("tokens", min=1, max=context)}
    steps = [step.inputs for step in sequence if step.method == "text_decoder"]
    assets = assets_of(repo, (*_FILES, *files))
    return ModelDefinition(
        {
            **{kind.method: MethodDefinition(encoders[kind], [(examples[kind].values,)]) for kind in examples},
            "token_embedding": MethodDefinition(embed, [call.inputs for call in calls[::2]], (tokens,)),
            "text_decoder": MethodDefinition(decoder, steps, (tokens, None)),
        },
        constant_methods={
            **constants(loaded, context, own_attention=options.attention is not None),
            **{kind.token: token for kind, token in special.items()},
        },
        assets=assets,
        notes=without_tokenizer(options.name, options.config, assets),
        sequences=[sequence],
        metadata=huggingface.describe_generating(repo, config, context, **described),
    )


_IN_PARTS = (
    "where images and the texts around them come one after the other, as its images see the text after them, or images "
    "enter more layers than the first"
)

_LEAST = 8  # tokens of a context next to an image's, which the examples fit into


def _count(kind: Modality, encoder: Encoder, values: torch.Tensor, context: int) -> int:
    """Tokens of an image or a sound."""
    name = encoder.model.config.model_type
    try:
        with torch.no_grad():
            count = int(encoder.learn(values).shape[1])
    except (TypeError, ValueError, RuntimeError, AttributeError) as error:
        raise SourceError(
            f"{name!r} does not encode {kind.part} by itself ({first_line(error)}); with `task: feature-extraction` it "
            "is exported as one method"
        ) from error
    if context < count + _LEAST:
        raise SourceError(f"{kind.part} has {count} tokens, and the context {context}: let `sequence` be more")
    return count


def _add_columns(loaded: Any, encoders: Mapping[Modality, Encoder], inputs: Mapping[str, torch.Tensor]) -> int:
    """Sets the columns after the embeddings of images and sounds; returns how many there are."""
    owner = next((module for module in (loaded, loaded.base_model) if hasattr(module, "get_rope_index")), None)
    is_part = inputs[_TYPES[0]][0].bool()
    if owner is not None:
        positions, _ = owner.get_rope_index(**huggingface.accepted(owner.get_rope_index, inputs))
        columns = (positions[:, 0, is_part] - positions[:, 0, is_part].amin()).T
    elif set(_TYPES) & inspect.signature(loaded.forward).parameters.keys():
        columns = torch.ones(int(is_part.sum()), _IMAGE)
    else:
        return 0
    for encoder in encoders.values():
        encoder.columns = columns[None].float()
    return int(columns.shape[1])

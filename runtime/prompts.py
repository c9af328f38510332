"""Prepares prompts for the methods of a file: tokens and features from the tokenizer and processor next to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import InputError, first_line
from ..formats.media import read_image, read_sound, required, whole_image
from ..formats.pte.contents import Method, TensorSpec
from .generation import AUDIO, VISION, GenerationRequest


class Part(NamedTuple):
    """A part of a prompt: tokens for `token_embedding`, or the values of an image or a sound for its encoder."""

    method: str
    values: Any
    tokens: int  # that it takes of the context


def from_folder(kind: str, folder: Path) -> Any:
    """Makes a tokenizer or processor of transformers, by the name of its Auto class; raises InputError."""
    transformers = required("transformers", "hf")
    try:
        return getattr(transformers, kind).from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, ImportError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"transformers cannot make {kind} from the files in {folder}: {first_line(error)}") from error


def text_prompt(request: GenerationRequest, tokenizer: Any) -> tuple[str, list[int]]:
    """The prompt of a text model, in its chat template on request, and its tokens; raises InputError."""
    text = chat(tokenizer, request.prompt, request.folder) if request.chat else request.prompt
    return text, list(tokenizer(text, add_special_tokens=not request.chat).input_ids)


def chat(template: Any, content: Any, folder: Path) -> str:
    """Puts a user's message into the chat template of a tokenizer or processor; raises InputError if it has none."""
    if not getattr(template, "chat_template", None):
        raise InputError(f"there is no chat template in {folder}")
    messages = [{"role": "user", "content": content}]
    return str(template.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))


def multimodal_prompt(
    request: GenerationRequest, methods: Mapping[str, Method], special: Mapping[str, int], tokens: Mapping[str, int]
) -> list[Part]:
    """The parts of a prompt with images or a sound where the processor puts them, by default before the text.

    By name of the method for images or sounds, `special` has the token that stands for an embedding, and `tokens` the
    number of embeddings that it returns.
    """
    if not (request.images or request.audio is not None):
        _, prompt = text_prompt(request, from_folder("AutoTokenizer", request.folder))
        return [Part("token_embedding", prompt, len(prompt))]
    processor = from_folder("AutoProcessor", request.folder)
    text, media = request.prompt, {}
    content: list[dict[str, str]] = []
    if request.images:
        media["images"] = [read_image(image) for image in request.images]
        content += [{"type": "image"}] * len(request.images)
    if request.audio is not None:
        extractor = getattr(processor, "feature_extractor", None) or processor.audio_processor
        media["audio"] = [read_sound(request.audio, extractor.sampling_rate)]
        content += [{"type": "audio"}]
    if request.chat:
        text = chat(processor, [*content, {"type": "text", "text": text}], request.folder)
    else:
        tokenizer = processor.tokenizer
        marks = {method: tokenizer.convert_ids_to_tokens(token) for method, token in special.items()}
        counts = {VISION: len(request.images), AUDIO: int(request.audio is not None)}
        text = "".join(mark * counts[method] for method, mark in marks.items() if mark not in text) + text
    try:
        return _parts(processor, text, media, methods, special, tokens)
    except (ValueError, TypeError, RuntimeError) as error:
        raise InputError(f"{type(processor).__name__} cannot prepare the prompt: {first_line(error)}") from error


def _parts(
    processor: Any,
    text: str,
    media: dict[str, Any],
    methods: Mapping[str, Method],
    special: Mapping[str, int],
    tokens: Mapping[str, int],
) -> list[Part]:
    first = getattr(processor.tokenizer, "bos_token", None)
    arguments = {**media, "text": text, "return_tensors": "pt"}
    if first and text.startswith(first):  # from a chat template, which has it
        arguments["add_special_tokens"] = False
    values: dict[str, list[Any]] = {}
    if "images" in media:
        shape = next(spec.shape for spec in methods[VISION].inputs if isinstance(spec, TensorSpec))
        pairs = [whole_image(image, processor.image_processor, shape) for image in media["images"]]
        arguments["images"], values[VISION] = (list(items) for items in zip(*pairs, strict=True))
    prepared = processor(**arguments)
    if "audio" in media:
        values[AUDIO] = list(prepared["input_features" if "input_features" in prepared else "input_values"].split(1))
    return list(_interleaved(prepared["input_ids"][0].tolist(), values, special, tokens))


def _interleaved(
    prompt: Sequence[int], values: Mapping[str, list[Any]], special: Mapping[str, int], tokens: Mapping[str, int]
) -> Iterator[Part]:
    """Replaces each run of special tokens with the values that take as many; raises ValueError if none do."""
    methods = {token: method for method, token in special.items() if method in values}
    left = {method: list(items) for method, items in values.items()}
    for token, run in groupby(prompt, key=lambda token: token if token in methods else None):
        same = list(run)
        if token is None:
            yield Part("token_embedding", same, len(same))
            continue
        method = methods[token]
        count, rest = divmod(len(same), tokens[method])
        if rest or count > len(left[method]):
            raise ValueError(f"it puts {len(same)} tokens where {method} makes {tokens[method]} embeddings")
        for _ in range(count):
            yield Part(method, left[method].pop(0), tokens[method])
    if unused := [method for method, items in left.items() if items]:
        raise ValueError(f"the prompt has no place for what {unused[0]} takes")


def sound_features(audio: Any, folder: Path, *, longer: bool = False) -> Any:
    """The features of a sound for an encoder; raises InputError if it is too long for it, and may not be `longer`."""
    extractor = from_folder("AutoFeatureExtractor", folder)
    samples = read_sound(audio, extractor.sampling_rate)
    longest = getattr(extractor, "n_samples", len(samples))  # Whisper's cuts longer ones
    if len(samples) > longest and not longer:
        seconds, most = (count / extractor.sampling_rate for count in (len(samples), longest))
        raise InputError(f"the sound takes {seconds:.1f} s; the encoder takes {most:g} s at most: cut it into parts")
    whole = {"truncation": False, "padding": "longest"} if len(samples) > longest else {}
    prepared = extractor(samples, sampling_rate=extractor.sampling_rate, return_tensors="pt", **whole)
    return prepared[extractor.model_input_names[0]]

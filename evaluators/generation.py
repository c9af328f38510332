"""Models that generate text, greedily, with their own methods: how near it is to what is right.

All evaluators here take the arguments of `configs.text_samples.TextOptions`. docs/how-to/accuracy.md describes them.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Protocol

import torch

from ..configs.text_samples import TextOptions, TextSample, read_samples
from ..errors import SourceError, first_line
from ..formats.media import generated_tokens, read_image, read_sound, whole_image


class Predict(Protocol):
    """``predict`` as evaluators are given it; see `tasks.verify.scoring`."""

    methods: Mapping[str, tuple[int, ...]]

    def __call__(self, *inputs: Any, method: str = "forward") -> Any: ...


Step = Callable[[torch.Tensor, int], torch.Tensor]
"""Logits of tokens [1, n], int64, and the number of tokens before them; the last row is that of the last token."""


def neg_word_error_rate(predict: Predict, **options: Any) -> float:
    """Minus the word error rate, as jiwer computes it over all samples: 0 is perfect. For speech recognition."""
    import jiwer  # noqa: PLC0415 - an extra

    hypotheses, references = _texts(predict, options)
    return 0.0 - float(jiwer.wer([answers[0] for answers in references], hypotheses))


def bleu(predict: Predict, **options: Any) -> float:
    """BLEU of all samples, as sacrebleu computes it, from 0 to 100. For translation."""
    import sacrebleu  # noqa: PLC0415 - an extra

    hypotheses, references = _texts(predict, options)
    return float(sacrebleu.corpus_bleu(hypotheses, _by_rank(references)).score)


def chrf(predict: Predict, **options: Any) -> float:
    """The chrF score of all samples, as sacrebleu computes it, from 0 to 100. For translation and summaries."""
    import sacrebleu  # noqa: PLC0415 - an extra

    hypotheses, references = _texts(predict, options)
    return float(sacrebleu.corpus_chrf(hypotheses, _by_rank(references)).score)


def exact_match(predict: Predict, **options: Any) -> float:
    """The share of samples whose text is one of the answers, normalized, from 0 to 1."""
    matches = [text in answers for text, answers in zip(*_texts(predict, options, short=True), strict=True)]
    return sum(matches) / len(matches)


def vqa_accuracy(predict: Predict, **options: Any) -> float:
    """The accuracy of VQA (https://visualqa.org/evaluation.html), from 0 to 1.

    An answer that three people gave is right. Each person is left out once, and the mean taken. A sample with one
    answer counts as an exact match.
    """
    scores = []
    for text, answers in zip(*_texts(predict, options, short=True), strict=True):
        others = [answers[:at] + answers[at + 1 :] for at in range(len(answers))] if answers[1:] else [answers * 3]
        scores.append(sum(min(1.0, left.count(text) / 3) for left in others) / len(others))
    return sum(scores) / len(scores)


def _by_rank(references: list[list[str]]) -> list[list[Any]]:
    """The first reference of each sample, the second, and so on; None where a sample has fewer."""
    most = max(map(len, references))
    return [[answers[at] if at < len(answers) else None for answers in references] for at in range(most)]


def _texts(predict: Predict, given: dict[str, Any], *, short: bool = False) -> tuple[list[str], list[list[str]]]:
    """The model's texts and the right answers, with `short` normalized as answers to questions are."""
    options = TextOptions.model_validate(given)
    clean = _normalized_answer if short else _normalized if options.normalize else str
    pairs = [(clean(text), [clean(answer) for answer in sample.answers]) for text, sample in said(predict, options)]
    return [text for text, _ in pairs], [answers for _, answers in pairs]


def _normalized(text: str) -> str:
    """The words in lower case, without punctuation."""
    return " ".join(re.sub(r"[^\w\s']", " ", text.lower()).split())


def _normalized_answer(text: str) -> str:
    """The same without articles and apostrophes."""
    return " ".join(word for word in _normalized(text).replace("'", "").split() if word not in ("a", "an", "the"))


def said(predict: Predict, options: TextOptions) -> Iterator[tuple[str, TextSample]]:
    """The text for each sample; SourceError if the model makes none, no processor loads, or a sample does not fit."""
    processor = _load_processor(options.processor)
    tokenizer = getattr(processor, "tokenizer", processor)
    methods = predict.methods
    if "get_max_seq_len" not in methods or not {"forward", "prefill", "text_decoder"} & set(methods):
        raise SourceError(
            "the model generates no text: the evaluator takes models that were exported for generation, with the "
            f"constant method get_max_seq_len; it has {', '.join(sorted(methods))}"
        )
    begin = _encode if "encoder" in methods else _embed if "token_embedding" in methods else _continue
    context = _constants(predict, "get_max_seq_len")[0]
    ends = {*_constants(predict, "get_eos_ids")} or {tokenizer.eos_token_id}
    for where, sample in read_samples(options.file, options.samples):
        tokens, step = begin(predict, processor, options, sample)
        free = context - tokens.shape[1]
        if free < 0:
            raise SourceError(f"{where}: the prompt has {tokens.shape[1]} tokens, more than the context of {context}")
        suppressed = _constants(predict, "begin_suppress_tokens")
        generated = _greedy(step, tokens, min(options.tokens, free + 1), ends, suppressed)
        yield tokenizer.decode(generated, skip_special_tokens=True).strip(), sample


def _greedy(step: Step, tokens: torch.Tensor, most: int, ends: Collection[int], suppressed: list[int]) -> list[int]:
    """The likeliest next tokens until one ends the text; `suppressed` ones cannot be the first."""

    def choose(before: list[int], logits: torch.Tensor) -> int:
        if suppressed and not before:
            logits = logits.index_fill(0, torch.tensor(suppressed), -torch.inf)
        return int(logits.argmax())

    def after(token: int, at: int) -> torch.Tensor:
        return step(torch.tensor([[token]]), at)

    generated = generated_tokens(step(tokens, 0), after, tokens.shape[1], most, choose)
    return list(itertools.takewhile(lambda token: token not in ends, generated))


def _encode(predict: Predict, processor: Any, options: TextOptions, sample: TextSample) -> tuple[torch.Tensor, Step]:
    """An encoder-decoder: the input is encoded once."""
    tokenizer = getattr(processor, "tokenizer", processor)
    if sample.media:
        prepare = getattr(processor, "feature_extractor" if sample.audio else "image_processor", processor)
        prepared = prepare(**_media(sample, prepare, alone=True), return_tensors="pt")
    else:
        prepared = tokenizer(options.prompt.replace("{source}", sample.source), return_tensors="pt")
    encoded = predict(next(prepared[name] for name in _INPUTS if name in prepared), method="encoder")
    first = _constants(predict, "decoder_start_token_id")
    if options.decoder_prompt:
        first += tokenizer(options.decoder_prompt, add_special_tokens=False)["input_ids"]
    else:
        first += _constants(predict, "forced_bos_token_id")
    return torch.tensor([first]), lambda tokens, start: predict(
        tokens, encoded, torch.tensor([start]), method="text_decoder"
    )


def _continue(predict: Predict, processor: Any, options: TextOptions, sample: TextSample) -> tuple[torch.Tensor, Step]:
    """A language model."""
    if sample.media:
        raise SourceError("the model takes text only, and samples have sounds or images")
    tokenizer, text = getattr(processor, "tokenizer", processor), _prompt(processor, options, sample)
    prepared = tokenizer(text, return_tensors="pt", add_special_tokens=not options.chat)
    method = "forward" if "forward" in predict.methods else "prefill"  # which takes one token, too
    return prepared["input_ids"], lambda tokens, start: predict(tokens, torch.tensor([start]), method=method)


def _embed(predict: Predict, processor: Any, options: TextOptions, sample: TextSample) -> tuple[torch.Tensor, Step]:
    """A model of several modalities: what its encoder returns takes the places of its tokens among the embeddings."""
    kind, encoder = ("audio", "audio_encoder") if sample.audio else ("image", "vision_encoder")
    media = _media(sample, getattr(processor, "feature_extractor", processor))
    values = None
    if sample.image:
        media["images"], values = whole_image(media["images"], processor.image_processor, predict.methods[encoder])
    text = _prompt(processor, options, sample)
    try:
        prepared = processor(text=text, **media, return_tensors="pt", add_special_tokens=not options.chat)
    except ValueError as error:
        hint = f"`chat: true` or a `prompt` with the processor's {kind} token says where it is"
        problem = f"{type(processor).__name__} does not take the prompt: {first_line(error)}"
        raise SourceError(f"{problem}; {hint}") from error
    is_text = torch.ones_like(prepared["input_ids"][0], dtype=torch.bool)
    encoded = torch.empty(0)
    if media:
        special = _constants(predict, f"{kind}_token_id") or [getattr(processor, f"{kind}_token_id")]
        is_text = prepared["input_ids"][0] != special[0]
        values = next(prepared[name] for name in _INPUTS if name in prepared) if values is None else values
        encoded = predict(values, method=encoder).clone()
        if encoded.shape[:-1].numel() != (count := int((~is_text).sum())):
            raise SourceError(f"{encoder} returns {tuple(encoded.shape)}, and the prompt has {count} {kind} tokens")

    def step(tokens: torch.Tensor, start: int) -> torch.Tensor:
        logits, kinds = torch.empty(0), torch.ones(1, dtype=torch.bool) if start else is_text
        for by_token, part in itertools.groupby(range(len(kinds)), lambda at: bool(kinds[at])):  # as the runner does
            chosen = list(part)
            rows = predict(tokens[:, chosen], method="token_embedding") if by_token else encoded
            logits = predict(rows, torch.tensor([start + chosen[0]]), method="text_decoder")
        return logits

    return prepared["input_ids"], step


_INPUTS = ("input_features", "input_values", "pixel_values", "input_ids")
"""Names of what encoders take, as processors return it."""


def _prompt(processor: Any, options: TextOptions, sample: TextSample) -> str:
    text = options.prompt.replace("{source}", sample.source)
    if not options.chat:
        return text
    kinds = [kind for kind in ("audio", "image") if getattr(sample, kind)]
    content = [*({"type": kind} for kind in kinds), {"type": "text", "text": text}] if kinds else text
    message = {"role": "user", "content": content}
    prompt: str = processor.apply_chat_template([message], tokenize=False, add_generation_prompt=True)
    return prompt


def _media(sample: TextSample, extractor: Any, *, alone: bool = False) -> dict[str, Any]:
    """Arguments of a processor: a sound with its rate, mono, and an image; `alone`: of one for a single kind."""
    arguments: dict[str, Any] = {}
    if sample.audio:
        if (rate := getattr(extractor, "sampling_rate", None)) is None:
            raise SourceError(f"{type(extractor).__name__} takes no sounds: name the model's processor")
        arguments |= {"raw_speech" if alone else "audio": read_sound(sample.audio, rate), "sampling_rate": rate}
    if sample.image:
        arguments["images"] = read_image(sample.image)
    return arguments


def _constants(predict: Predict, name: str) -> list[int]:
    """The numbers that a constant method returns; empty if the model has no such method."""
    if name not in predict.methods:
        return []
    value = predict(method=name)
    return [int(number) for number in (value if isinstance(value, tuple) else (value,))]


def _load_processor(name: str) -> Any:
    from transformers import AutoProcessor  # noqa: PLC0415 - takes seconds

    try:
        return AutoProcessor.from_pretrained(name, local_files_only=True)
    except (OSError, ValueError, KeyError, ImportError, AttributeError) as error:  # the last: torchvision is missing
        raise SourceError(f"there is no processor or tokenizer {name!r}: {first_line(error)}") from error

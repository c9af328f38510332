"""Speech: how much of what was said is recognized, and how near produced sound is to what it should be."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from ..errors import SourceError
from .samples import Predict, answer, listed, reader, samples_of


def character_accuracy(
    predict: Predict,
    *,
    tokens: Sequence[str] | str,
    dataset: str | None = None,
    folder: str | None = None,
    read: str | None = None,
    blank: int = 0,
    space: str = "|",
    samples: int | None = None,
    method: str = "forward",
    output: int = 0,
) -> float:
    """1 minus the character error rate of a recognizer that was trained with CTC; 1 is perfect, and it may be negative.

    Decodes greedily: the best token of each frame, repeated ones once, without blanks. The rate is the edit distance to
    the transcript by characters, summed over all samples and divided by the length of all transcripts.

    Args:
        predict: runs the model; its output has one score for each token: [1, frames, tokens].
        tokens: the tokens in order, or a file that has them: lines of text, or JSON that maps a token to its number.
        dataset: ``package.module:name`` that yields ``(inputs, transcript)``.
        folder: in place of a dataset, a folder of recordings, each with its transcript in a ``.txt`` file of its name.
        read: ``package.module:name`` that makes inputs of a path, by default `samples.read_tensor`.
        blank: number of the blank token.
        space: the token between words.
        samples: how many recordings to take, by default all.
        method: name of the method that runs.
        output: which of its outputs has the scores.

    Raises:
        SourceError: there are no samples or only empty transcripts, or an output does not fit the tokens.
    """
    names = [" " if token == space else token for token in (_tokens(tokens) if isinstance(tokens, str) else tokens)]
    files = None if folder is None else lambda: _files(str(folder), read)
    errors = length = 0
    for inputs, transcript in samples_of(dataset, files, samples, 2):
        scores = answer(predict, inputs, method, output)
        if scores.dim() != 3 or len(scores) != 1 or scores.shape[2] != len(names):
            raise SourceError(
                f"the model's output is {tuple(scores.shape)}; character_accuracy takes [1, frames, {len(names)}], "
                f"since there are {len(names)} tokens"
            )
        best = (number for number, _ in itertools.groupby(scores[0].argmax(1).tolist()))
        heard = "".join(names[number] for number in best if number != blank).strip()
        errors += _edit_distance(heard, str(transcript))
        length += len(str(transcript))
    if not length:
        raise SourceError("all transcripts are empty")
    return 1 - errors / length


def neg_log_spectral_distance(
    predict: Predict,
    *,
    dataset: str | None = None,
    n_fft: int = 512,
    hop: int = 128,
    samples: int | None = None,
    method: str = "forward",
    output: int = 0,
) -> float:
    """Minus the log-spectral distance of produced sound from its reference, in decibels; 0 is perfect.

    For speech enhancement and vocoders: the root mean square over frequencies of the difference of both power spectra
    in decibels, averaged over frames and samples.

    Args:
        predict: runs the model; its output is a waveform of the reference's length.
        dataset: ``package.module:name`` that yields ``(inputs, waveform)``.
        n_fft: length of the windows in samples.
        hop: distance of the windows in samples.
        samples: how many waveforms to take, by default all.
        method: name of the method that runs.
        output: which of its outputs is the waveform.

    Raises:
        SourceError: there are no samples, or an output has another length than its reference.
    """
    distances: list[float] = []
    for inputs, reference in samples_of(dataset, None, samples, 2):
        produced = answer(predict, inputs, method, output).reshape(-1)
        wanted = torch.as_tensor(reference).reshape(-1)
        if len(produced) != len(wanted) or len(wanted) < n_fft:
            raise SourceError(
                f"the model's output has {len(produced)} samples and the reference {len(wanted)}; "
                f"the evaluator compares equal lengths of at least {n_fft}"
            )
        one, other = (_decibels(values.float(), n_fft, hop) for values in (produced, wanted))
        distances.append((one - other).square().mean(0).sqrt().mean().item())
    return -sum(distances) / len(distances)


def _decibels(waveform: torch.Tensor, n_fft: int, hop: int) -> torch.Tensor:
    """Power in decibels by frequency and frame; silence is -100 dB."""
    window = torch.hann_window(n_fft)
    spectrum = torch.stft(waveform, n_fft, hop, window=window, center=False, return_complex=True)
    power: torch.Tensor = spectrum.abs().square()
    return 10 * (power + 1e-10).log10()


def _tokens(path: str) -> list[str]:
    try:
        text = Path(path).read_text(encoding="utf-8")
        if not path.endswith(".json"):
            return text.splitlines()
        numbers: dict[str, int] = json.loads(text)
        by_number = {number: token for token, number in numbers.items()}
        return [by_number[number] for number in range(len(by_number))]
    except (OSError, ValueError, AttributeError, KeyError) as error:
        raise SourceError(f"{path} has no tokens: {type(error).__name__}: {error}") from error


def _files(folder: str, read: str | None) -> Iterator[tuple[Any, str]]:
    make = reader(read)
    for path in listed(folder):
        if path.suffix == ".txt":
            continue
        transcript = path.with_suffix(".txt")
        if not transcript.is_file():
            raise SourceError(f"{path} has no transcript: there is no {transcript}")
        yield make(path), transcript.read_text(encoding="utf-8").strip()


def _edit_distance(one: str, other: str) -> int:
    """Levenshtein's: insertions, deletions and substitutions of characters."""
    before = list(range(len(other) + 1))
    for row, character in enumerate(one, 1):
        after = [row]
        for column, wanted in enumerate(other, 1):
            after.append(min(before[column] + 1, after[-1] + 1, before[column - 1] + (character != wanted)))
        before = after
    return before[-1]

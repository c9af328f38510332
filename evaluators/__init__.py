"""Evaluators for accuracy gates: ``accuracy: {evaluator: pteforge.evaluators:top_k, kwargs: {...}, floor: 0.9}``.

Each takes `predict` (see `tasks.verify.scoring`), samples, and arguments that YAML can write, and returns a number
that is higher for better files. docs/how-to/accuracy.md describes them.
"""

from __future__ import annotations

from .classification import top_k
from .datasets import files, hub, lines
from .embedding import embedding_similarity, triplet_accuracy
from .generation import bleu, chrf, exact_match, neg_word_error_rate, vqa_accuracy
from .perplexity import neg_perplexity
from .segmentation import mean_iou
from .speech import character_accuracy, neg_log_spectral_distance

__all__ = [
    "bleu",
    "character_accuracy",
    "chrf",
    "embedding_similarity",
    "exact_match",
    "files",
    "hub",
    "lines",
    "mean_iou",
    "neg_log_spectral_distance",
    "neg_perplexity",
    "neg_word_error_rate",
    "top_k",
    "triplet_accuracy",
    "vqa_accuracy",
]


def __dir__() -> list[str]:
    return __all__

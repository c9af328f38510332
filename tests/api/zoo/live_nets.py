"""Models that tests hand over as objects."""

from __future__ import annotations

from collections.abc import Iterator

import pteforge
import torch


class Net(torch.nn.Module):
    """Takes [batch, 4], gives [batch, 3]; has parameters, buffers, and layers that training mode changes."""

    def __init__(self) -> None:
        """In training mode, as modules come."""
        super().__init__()
        self.first = torch.nn.Linear(4, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.dropout = torch.nn.Dropout(0.5)
        self.second = torch.nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Two layers."""
        return self.second(self.dropout(torch.relu(self.norm(self.first(x)))))


class Counter(torch.nn.Module):
    """Adds its input to a buffer and gives the sum so far."""

    def __init__(self) -> None:
        """Begins at zero."""
        super().__init__()
        self.register_buffer("total", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Mutates the buffer."""
        self.total.add_(x)
        return self.total.clone()


class Undecided(torch.nn.Module):
    """Decides by a value, which cannot be traced, after it has changed a buffer."""

    def __init__(self) -> None:
        """With a weight that is not trained."""
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)
        self.layer.weight.requires_grad_(False)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Takes and gives [3]."""
        self.calls.add_(1)
        return self.layer(x) if x.sum() > 0 else x


class Encoder(torch.nn.Module):
    """Embeds with a table that it shares with a decoder."""

    def __init__(self, table: torch.nn.Embedding) -> None:
        """Takes the table."""
        super().__init__()
        self.table = table

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Takes [n] indices, gives [n, width]."""
        return self.table(tokens)


class Decoder(torch.nn.Module):
    """Scores by the table that it shares with an encoder."""

    def __init__(self, table: torch.nn.Embedding) -> None:
        """Takes the table."""
        super().__init__()
        self.table = table

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Takes [n, width], gives [n, vocabulary]."""
        return torch.nn.functional.linear(hidden, self.table.weight)


def conversation() -> pteforge.ModelDefinition:
    """Two methods with one table, one of them with any number of rows up to 8, and constants."""
    table = torch.nn.Embedding(16, 4)
    rows = ({0: torch.export.Dim("rows", min=1, max=8)},)
    return pteforge.ModelDefinition(
        {
            "encode": pteforge.MethodDefinition(Encoder(table), [(torch.tensor([1, 2, 3]),)]),
            "decode": pteforge.MethodDefinition(Decoder(table), [(torch.randn(2, 4),)], dynamic_shapes=rows),
        },
        constant_methods={"vocabulary": 16, "scale": 0.5, "label": "small"},
    )


def linear() -> tuple[torch.nn.Module, tuple[torch.Tensor]]:
    """A builder for zoo files."""
    return Net(), (torch.randn(2, 4),)


def samples(count: int = 3) -> Iterator[tuple[torch.Tensor]]:
    """Samples of [2, 4] for `Net`, one after another."""
    for number in range(count):
        yield (torch.linspace(-number - 1, number + 2, 8).reshape(2, 4),)

"""Small networks, in plain PyTorch. `builders` makes models of them; tests also use them directly."""

import torch
from functorch.experimental.control_flow import map as map_rows
from torch import nn
from torch._higher_order_ops import scan, while_loop

GRANITE_ENCODER = {
    "input_dim": 16,
    "num_layers": 2,
    "hidden_dim": 32,
    "num_heads": 4,
    "output_dim": 12,
    "context_size": 20,
    "max_pos_emb": 32,
}
"""A small configuration of the encoder of sounds in Granite Speech."""


class Function(nn.Module):
    """A model that is one function of its inputs."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


class FunctionOfLayers(nn.Module):
    """A model that is one function of itself, whose layers, parameters and buffers it has, and of its inputs."""

    def __init__(self, function, **parts) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            if isinstance(part, torch.Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, *inputs):
        return self.function(self, *inputs)


class Keywords(nn.Module):
    """Takes keywords, and computes something where their order matters."""

    def forward(self, values, *, factor, shift):
        return values * factor - shift


class Heads(nn.Module):
    """Attention of two heads, whose result is viewed as it lies in memory: [n, t, 8] to [n * t, 8]."""

    def forward(self, tokens):
        heads = tokens.view(*tokens.shape[:2], 2, 4).transpose(1, 2)
        mixed = nn.functional.scaled_dot_product_attention(heads, heads, heads)
        return mixed.transpose(1, 2).view(-1, 8)


class MaskedMean(nn.Module):
    """The mean of the tokens that a mask keeps, and each token's own value, [batch, 256] and [batch, length, 256]."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer = nn.Embedding(32, 16), nn.Linear(16, 256)

    def forward(self, tokens, mask):
        hidden = self.layer(self.table(tokens))
        return (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1), hidden


class Skips(nn.Module):
    """Half the size and back, next to what it started with, as in a U-Net: [n, 3, h, w] to [n, 6, h, w], both even."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ConvTranspose2d(8, 3, 2, stride=2)

    def forward(self, image):
        return torch.cat([self.up(self.down(image).relu()), image], 1)


class Padded(nn.Module):
    """The sum of the values and of ones that make them a multiple of eight: [n, t] to [n]."""

    def forward(self, values):
        return nn.functional.pad(values, (0, -values.shape[1] % 8), value=1.0).sum(1)


class Neighbors(nn.Module):
    """A layer over each row and the rows before and after it: [n, t, 8] to [n, t, 4]. torch guards against t = 2."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(24, 4)

    def forward(self, x):
        after, before = nn.functional.pad(x[:, 1:], (0, 0, 0, 1)), nn.functional.pad(x[:, :-1], (0, 0, 1, 0))
        return self.linear(torch.cat([before, x, after], 2))


class Prefixed(nn.Module):
    """A one and the values, in a tensor that is empty before: [n, t] to [n, t + 1]."""

    def forward(self, values):
        prefixed = values.new_empty(values.shape[0], values.shape[1] + 1)
        prefixed[:, :1] = 1
        prefixed[:, 1:] = values
        return prefixed


class Recent(nn.Module):
    """The values, weighted by as many of the last of 64 weights: [n, t] to [n, t]."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weights", torch.arange(64.0))

    def forward(self, values):
        return values * self.weights[torch.sym_max(0, 64 - values.shape[1]) :]


class Attention(nn.Module):
    """Attention of a sequence to another, weighted by a mask: [n, t, 8], [n, u, 8], [n, u] to [n, t, 8]."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, hidden, mask=None, *, memory=None, scale: float = 1.0):
        memory = hidden if memory is None else memory
        scores = self.query(hidden) @ self.key(memory).transpose(1, 2) * scale
        if mask is not None:
            scores = scores + (1 - mask[:, None]) * -9.0
        return scores.softmax(-1) @ memory


class Remembers(nn.Module):
    """Writes to a static cache: [1, t, 4] and [t] to [1, 4]."""

    def __init__(self) -> None:
        super().__init__()
        self.key = nn.Linear(4, 4)
        self.register_buffer("cache", torch.zeros(1, 8, 4))

    def forward(self, values, positions):
        self.cache.index_copy_(1, positions, self.key(values))
        return self.cache.sum(1)


class ConvNet(nn.Module):
    """Convolution, batch norm, ReLU, linear: [n, 3, h, w] to [n, 5]."""

    def __init__(self, eps: float = 1e-5) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4, eps=eps)
        self.linear = nn.Linear(4, 5)
        with torch.no_grad():
            self.norm.running_mean.normal_()
            self.norm.running_var.uniform_(0.5, 2)

    def forward(self, image):
        return self.linear(torch.relu(self.norm(self.conv(image))).mean((2, 3)))


class Normed(nn.Module):
    """[batch, 4] to [batch, 3], with parameters, buffers, and layers that training mode changes."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8)
        self.dropout = nn.Dropout(0.5)
        self.second = nn.Linear(8, 3)

    def forward(self, values):
        return self.second(self.dropout(torch.relu(self.norm(self.first(values)))))


class TwoPartitions(nn.Module):
    """XNNPACK has no `atan`, so there are two partitions."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)

    def forward(self, values):
        return self.second(torch.atan(self.first(values)))


class Embedded(nn.Module):
    """[n] integers to [n, 4]: reads a table at computed positions, and so computes with integers and with floats."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(64, 8)
        self.linear = nn.Linear(8, 4)

    def forward(self, ids):
        return self.linear(self.table.weight[3 * ids + 2] * 0.5 + 0.25)


# Layers that a matcher of operators must tell apart.


class Products(nn.Module):
    """Layers that are written as products with weights: in two ways, one weight twice, and once with its transpose."""

    def __init__(self):
        super().__init__()
        self.first = nn.Parameter(torch.randn(16, 24) / 4)
        self.bias = nn.Parameter(torch.randn(24))
        self.second = nn.Parameter(torch.randn(24, 24) / 4)
        self.register_buffer("third", torch.randn(8, 24) / 4)

    def forward(self, x):
        """Of (batch, rows, 16) to (batch, rows, 8)."""
        rows = torch.addmm(self.bias, x.reshape(-1, 16), self.first).reshape(*x.shape[:-1], 24)
        rows = torch.relu(rows) @ self.second
        return torch.relu(torch.matmul(rows, self.second)) @ self.third.T


class Square(nn.Module):
    """A layer that decomposes into steps that all have the shape of its result."""

    def __init__(self) -> None:
        super().__init__()
        self.square = nn.Linear(3, 3)

    def forward(self, values):
        return torch.nn.functional.gelu(self.square(values))


class Rounded(nn.Module):
    """A linear layer whose weight is computed, as quantization of a model's source leaves it."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias

    def forward(self, values):
        return torch.nn.functional.linear(values, (self.weight * 16).round() / 16, self.bias)


class Layers(nn.Sequential):
    """Two layers, with operators of the model's own around them."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))

    def forward(self, values):
        return super().forward(values * 2) * 3


# State.


class Counter(nn.Module):
    """Counts its calls in a buffer and sums up its inputs in another."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(1))
        self.register_buffer("total", torch.full((2, 4), 0.5))

    def forward(self, values):
        self.calls.add_(1.0)  # an integer would be a cast, which pteforge folds
        self.total.add_(values)
        return self.linear(self.total) * self.calls


class WritesToInputs(nn.Module):
    """Writes to two of its three inputs, the later one first, as models do that take a cache: [2, 4] thrice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, first, x, second):
        y = self.layer(x)
        second[:, 1:2] = y[:, :1]
        first.add_(y)
        return y + second.sum()


class Cache(nn.Module):
    """Two rows of state, for several methods."""

    def __init__(self, first: float = 0.5) -> None:
        super().__init__()
        self.register_buffer("rows", torch.full((2, 4), first))


class Write(nn.Module):
    """Adds to a cache."""

    def __init__(self, cache: Cache) -> None:
        super().__init__()
        self.cache = cache

    def forward(self, values):
        self.cache.rows.add_(values)
        return values * 2


class WriteAndRead(Write):
    """Adds to a cache and returns what it holds then."""

    def forward(self, values):
        super().forward(values)
        return self.cache.rows * 1.0


class Read(Write):
    """Only reads a cache: to a partitioner it looks like a constant."""

    def forward(self, values):
        return self.cache.rows + values


# Control flow.


class Branches(nn.Module):
    """Layers with weights of their own in each branch, and one before."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.left, self.right = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, values):
        chosen = values.sum() > 0
        values = self.before(values)
        return torch.cond(chosen, lambda v: self.left(v).relu(), lambda v: self.right(v) * 2.0, (values,))


class NestedBranches(nn.Module):
    """A branch within a branch."""

    def forward(self, values):
        def small_or_large(v):
            return torch.cond(v.sum() > 20, lambda w: w - 3, lambda w: w * 3, (v,))

        return torch.cond(values.sum() > 0, small_or_large, lambda v: v * v, (values,))


class Rows(nn.Module):
    """The same layer for each row, one after another."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, rows):
        return map_rows(lambda row: self.layer(row).relu() + row, rows)


class Sums(nn.Module):
    """Running sums, and what they were before each step."""

    def forward(self, first, rows):
        return scan(lambda total, row: (total + row, (total * row).clone()), first, rows, dim=0)


class Loop(nn.Module):
    """Doubles values as often as it takes."""

    def forward(self, count, values):
        return while_loop(lambda n, v: n < 5, lambda n, v: (n + 1, v * 2), (count, values))  # noqa: ARG005 - both take both


# Modules that methods share.


class Shifted(nn.Module):
    """Adds the mean of its input to what a shared layer computes."""

    def __init__(self, shared: nn.Module) -> None:
        super().__init__()
        self.shared = shared

    def forward(self, values):
        return torch.sigmoid(self.shared(values)) + values.mean()


class Scale(nn.Module):
    """Multiplies by one weight after another, and squashes each product."""

    def __init__(self, *weights: nn.Parameter) -> None:
        super().__init__()
        self.weights = nn.ParameterList(weights)

    def forward(self, values):
        for weight in self.weights:
            values = torch.tanh(values * weight)
        return values


class Reader(nn.Module):
    """Embeds tokens and transforms them."""

    def __init__(self, embedding: nn.Embedding, body: nn.Module) -> None:
        super().__init__()
        self.embedding = embedding
        self.body = body

    def forward(self, tokens):
        return self.body(self.embedding(tokens))


class Writer(Reader):
    """Goes back from states to tokens, by the reader's weights."""

    def forward(self, tokens):
        return self.body(super().forward(tokens).tanh()).softmax(-1)


class Head(nn.Module):
    """A linear layer whose weight is an embedding's."""

    def __init__(self, embedding: nn.Embedding) -> None:
        super().__init__()
        self.embedding = embedding

    def forward(self, states):
        return nn.functional.linear(states, self.embedding.weight)


# Inputs and outputs that are not just tensors.


class MixedInputs(nn.Module):
    """A tuple, a number and a dictionary of tensors."""

    def forward(self, pair, factor, named):
        return (pair[0] * factor, {"sum": pair[1] + named["bias"]})


class SizeOutput(nn.Module):
    """A size that is known when it runs."""

    def forward(self, values):
        return values * 2, values.shape[0]


class Planted(nn.Module):
    """[n, 4] to [n, 4], right, or with a fault that examples do not show: at one size, below zero, of a later call."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.fault = fault
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x):
        if not x.is_floating_point():
            return torch.div(x, 3, rounding_mode="trunc" if self.fault == "truncates" else "floor")
        y = x * 2 + 1
        if self.fault == "one size":
            rows = torch.ones_like(x[:, 0]).sum()
            y = y + nn.functional.relu(1 - (rows - 37).abs())
        if self.fault == "never resizes":
            y = nn.functional.pad(y, (0, 0, 0, 64 - x.shape[0]))
        if self.fault.startswith("call "):
            self.calls.add_(1)
            y = y + nn.functional.relu(1 - (self.calls - int(self.fault[5:])).abs())
        return y

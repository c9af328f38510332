"""Small networks, in plain PyTorch. `builders` makes models of them; tests also use them directly."""

import torch
from functorch.experimental.control_flow import map as map_rows
from torch import nn
from torch._higher_order_ops import scan, while_loop


class Function(nn.Module):
    """A model that is one function of its inputs."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


class FunctionOfLayers(nn.Module):
    """A model that is one function of itself, whose layers are its attributes, and of its inputs."""

    def __init__(self, function, **layers) -> None:
        super().__init__()
        self.function = function
        for name, layer in layers.items():
            self.add_module(name, layer)

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


class Skips(nn.Module):
    """Half the size and back, next to what it started with, as in a U-Net: [n, 3, h, w] to [n, 6, h, w], both even."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ConvTranspose2d(8, 3, 2, stride=2)

    def forward(self, image):
        return torch.cat([self.up(self.down(image).relu()), image], 1)


class Rotary(nn.Module):
    """Two layers of the same input, and cosines, with sums between that XNNPACK leaves out: [n, t, 8] to the same."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, tokens, frequencies):
        angles = (frequencies * 2.0).cumsum(1).cos()
        return self.query(tokens).cumsum(1) * 2.0, self.key(tokens), angles


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


class Computed(nn.Module):
    """Layers whose weights are an input, computed from one, and a buffer that is overwritten first."""

    def __init__(self):
        super().__init__()
        self.own, self.makes = nn.Linear(4, 4), nn.Linear(4, 24)
        self.register_buffer("state", torch.randn(6, 4))

    def forward(self, x, weight):
        """Of (3, 4) and (6, 4)."""
        x = self.own(x)
        self.state.copy_(self.state * 0.5 + x.mean())
        made = self.makes(weight).mean(0).reshape(6, 4)
        return tuple(nn.functional.linear(x, each) for each in (weight, made, self.state))


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


class Streaming(nn.Module):
    """A linear layer over a running mean, and the number of calls."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 8)
        self.register_buffer("mean", torch.full((2, 16), 0.25))
        self.register_buffer("calls", torch.zeros(1, dtype=torch.int64))

    def forward(self, values):
        self.calls += 1
        self.mean.mul_(0.5).add_(values)
        return self.linear(self.mean), self.calls + 0


class TransposedWeight(nn.Module):
    """Multiplies by the transpose of a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 4))

    def forward(self, values):
        return values * self.weight.t()


class Counter(nn.Module):
    """Counts its calls in a buffer and sums up its inputs in another."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(1))
        self.register_buffer("total", torch.full((2, 4), 0.5))

    def forward(self, values):
        self.calls.add_(1)
        self.total.add_(values)
        return self.linear(self.total) * self.calls


class Smoothing(nn.Module):
    """State that a layer's result goes into."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("state", torch.zeros(2, 4))

    def forward(self, values):
        self.state.mul_(0.5).add_(self.linear(values))
        return self.state + 1


class HandsOutState(nn.Module):
    """Returns the very buffer that it changes, its input, and a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("state", torch.full((3,), 10.0))

    def forward(self, values):
        self.state.add_(values)
        return self.state, values, self.weight


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
        return torch.cond(chosen, lambda v: self.left(v).relu(), lambda v: self.right(v) * 2, (values,))


class BranchesOfLayers(nn.Module):
    """A linear layer or another, by the sign of the sum: [n, 4] to [n, 4]."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, values):
        return torch.cond(values.sum() > 0, lambda v: self.first(v) + 1, lambda v: self.second(v) * 2, (values,))


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


class Offset(nn.Module):
    """Adds numbers that are written in its code."""

    def __init__(self, offset: float) -> None:
        super().__init__()
        self.offset = offset

    def forward(self, values):
        return values + torch.tensor([self.offset, 1.0]).repeat(8)


class Folded(nn.Module):
    """Adds what can be computed ahead of time."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.register_buffer("value", torch.full((16,), value))

    def forward(self, values):
        return values + torch.exp(self.value)


# Inputs and outputs that are not just tensors.


class MixedInputs(nn.Module):
    """A tuple, a number and a dictionary of tensors."""

    def forward(self, pair, factor, named):
        return (pair[0] * factor, {"sum": pair[1] + named["bias"]})


class NestedOutputs(nn.Module):
    """Outputs with a structure, which files do not have."""

    def forward(self, pair, offset):
        first, second = pair
        return {"sum": first + second + offset, "rest": [first - second, (first * second * offset,)]}


class OptionalInput(nn.Module):
    """An input that may be left out."""

    def forward(self, values, mask=None):
        return values + 1 if mask is None else values + mask


class SizeOutput(nn.Module):
    """A size that is known when it runs."""

    def forward(self, values):
        return values * 2, values.shape[0]


class OtherTypes(nn.Module):
    """Integers in; half precision, truth values and bytes out."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 4)

    def forward(self, indices):
        return self.embed(indices).to(torch.float16), indices > 3, indices.to(torch.uint8)


class Notes(nn.Module):
    """State that its methods write and read: [2, 8]."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("notes", torch.zeros(2, 8))


class WriteNotes(nn.Module):
    """Writes notes: [2, 8] to the same."""

    def __init__(self, notes: Notes) -> None:
        super().__init__()
        self.of = notes

    def forward(self, x):
        self.of.notes.copy_(x)
        return self.of.linear(x)


class ReadNotes(nn.Module):
    """Computes something of the notes: [2, 8] to [2, 10]."""

    def __init__(self, notes: Notes) -> None:
        super().__init__()
        self.of = notes

    def forward(self, x):
        return torch.cat([self.of.linear(self.of.notes) + x, self.of.linear(x) @ self.of.notes.T], 1)

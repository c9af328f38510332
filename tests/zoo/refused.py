"""Builders of models that torch.export refuses, in one mode or in both, and what they are once that is mended."""

import sys

import torch
from pteforge.configs.model import MethodDefinition, ModelDefinition
from torch import nn
from torch.export import Dim

LIBRARY = torch.library.Library("refused", "DEF")
LIBRARY.define("untold(Tensor x) -> Tensor")
LIBRARY.impl("untold", lambda x: x + 1, "CPU")
LIBRARY.define("mistold(Tensor x) -> Tensor")
LIBRARY.impl("mistold", lambda x: (x + 1).double(), "CPU")
torch.library.register_fake("refused::mistold", torch.empty_like, lib=LIBRARY)
LIBRARY.define("plain(Tensor x) -> Tensor")
LIBRARY.impl("plain", lambda x: x + 1, "CompositeExplicitAutograd")
torch.library.register_fake("refused::plain", torch.empty_like, lib=LIBRARY)


class Branches(nn.Module):
    """Each goes by the value of a tensor."""

    def forward(self, x):
        if x.sum() > 0:
            x = x + 1
        return x * 2 if x.max() > 3 else x


class Counts(nn.Module):
    """Branches by a number that is an input."""

    def __init__(self, checked):
        super().__init__()
        self.checked = checked

    def forward(self, x, count):
        taken = count.item()
        if self.checked:
            torch._check(taken <= 3)
        if taken > 3:
            return x * 2
        return x


class Loops(nn.Module):
    """As often as the values of a tensor say."""

    def forward(self, x):
        while x.sum() < 100:
            x = x * 2
        return x


class Asserts(nn.Module):
    """Something about the values of a tensor."""

    def forward(self, x):
        assert x.sum() > 0
        return x + 1


class Finds(nn.Module):
    """The size of what it finds depends on data."""

    def __init__(self, checked):
        super().__init__()
        self.checked = checked

    def forward(self, x):
        found = x.nonzero().squeeze(1)
        if self.checked:
            torch._check(found.shape[0] > 0)
        if found.shape[0] > 0:
            return found + 1
        return found


class Slices(nn.Module):
    """Is exported as it is."""

    def forward(self, x, count):
        return x[: count.item()] * 2


class Repeats(nn.Module):
    """As often as an input says."""

    def forward(self, x, count):
        return torch.cat([x] * count.tolist()[0])


class Untold(nn.Module):
    """Calls an operator without a fake kernel."""

    def forward(self, x):
        return torch.ops.refused.untold(x) * 2


class Mistold(nn.Module):
    """Calls an operator whose fake kernel is wrong."""

    def forward(self, x):
        return torch.ops.refused.mistold(x)


class Arrays(nn.Module):
    """Only strict mode exports it."""

    def forward(self, x):
        return x + torch.from_numpy(x.numpy() * 2)


class Writes(nn.Module):
    """Only strict mode refuses it."""

    def forward(self, x):
        y = x + 1
        sys.stdout.write("")
        return y * 2


class Reshapes(nn.Module):
    """Holds for two rows only."""

    def forward(self, x):
        return x.reshape(2, 4) + 1


class Pairs(nn.Module):
    """Holds for even numbers of rows only."""

    def forward(self, x):
        return x.reshape(-1, 8) + 1


class Bounded(nn.Module):
    """Holds for 16 rows at most, as it is traced."""

    def forward(self, x):
        if x.shape[0] > 16:
            return x * 2
        return x + 1


class Adds(nn.Module):
    """Needs equal sizes."""

    def forward(self, x, y):
        return x + y


class Cache:
    """What torch.export cannot take apart."""

    def __init__(self, keys):
        self.keys = keys


class Caches(nn.Module):
    """Returns such an object."""

    def forward(self, x):
        return x + 1, Cache(x)


class Masked(nn.Module):
    """Takes keywords."""

    def forward(self, x, *, scale, mask):
        if mask.all():
            return x * scale
        return x


class Packed(nn.Module):
    """Sequences of different lengths: [n, t, 4] and [n] to [n, t, 8]."""

    def __init__(self):
        super().__init__()
        self.recurrent = nn.LSTM(4, 8, batch_first=True)

    def forward(self, x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return nn.utils.rnn.pad_packed_sequence(self.recurrent(packed)[0], batch_first=True, total_length=x.shape[1])[0]


class Chooses(nn.Module):
    """Has its layers in the branches of a condition."""

    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return torch.cond(x.sum() > 0, self.one, self.other, (x,))


class Steps(nn.Module):
    """A recurrent layer over all rows."""

    def __init__(self):
        super().__init__()
        self.layer = nn.GRU(4, 4)

    def forward(self, x):
        return self.layer(x)[0]


class Computes(nn.Module):
    """Exported, and refused later."""

    def __init__(self, function, **parts):
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs):
        return self.function(self, *inputs)


ROWS = (torch.ones(2, 4),)
COUNT = (torch.ones(8), torch.tensor(2))

MODELS = {
    "branches": (Branches(), ROWS),
    "counts": (Counts(checked=False), COUNT),
    "counts_checked": (Counts(checked=True), COUNT),
    "loops": (Loops(), ROWS),
    "asserts": (Asserts(), ROWS),
    "finds": (Finds(checked=False), (torch.ones(4),)),
    "finds_checked": (Finds(checked=True), (torch.ones(4),)),
    "finds_nothing": (Finds(checked=False), (torch.zeros(4),)),
    "slices": (Slices(), COUNT),
    "repeats": (Repeats(), (torch.ones(4), torch.tensor([2]))),
    "untold": (Untold(), ROWS),
    "mistold": (Mistold(), ROWS),
    "arrays": (Arrays(), ROWS),
    "writes": (Writes(), ROWS),
    "caches": (Caches(), ROWS),
    "complex": (Computes(lambda _, x: torch.fft.rfft(x).abs()), ROWS),
    "without_out": (Computes(lambda _, x: torch.ops.refused.plain(x)), ROWS),
    "unbounded": (Computes(lambda _, x, count: torch.zeros(count.item()) + x[0]), COUNT),
    "inverse": (Computes(lambda _, x: torch.linalg.inv(x)), (torch.eye(2),)),
    "sorts": (Computes(lambda _, x: torch.sort(x)[0]), ROWS),
    "volume": (Computes(lambda self, x: self.conv(x), conv=nn.ConvTranspose3d(1, 1, 3)), (torch.ones(1, 1, 4, 4, 4),)),
    "pairs": (Computes(lambda _, x: x[:, torch.combinations(torch.arange(4))[:, 0]]), ROWS),
    "chooses": (Chooses(), ROWS),
    "each": (
        Computes(lambda self, x: torch.einsum("ij,ijk->ik", x, self.each), each=nn.Parameter(torch.ones(2, 4, 4))),
        ROWS,
    ),
    "table": (nn.Embedding(8, 4), (torch.tensor([1, 2]),)),
    "nothing": (Computes(lambda *_: None), ROWS),
    "constant": (Computes(lambda self, x: self.state.add_(x), state=torch.zeros(2, 4)), ROWS),
    "double": (Computes(lambda self, x: self.linear(x), linear=nn.Linear(4, 4).double()), (torch.ones(2, 4).double(),)),
    "drops": (Computes(lambda _, x: nn.functional.dropout(x)), ROWS),
    "packed": (Packed(), (torch.ones(3, 6, 4), torch.tensor([6, 4, 2]))),
    "masked": (Masked(), ROWS, {"scale": torch.tensor(2.0), "mask": torch.ones(2, 4, dtype=torch.bool)}),
}


def model(name):
    return MODELS[name]


class Halves(nn.Module):
    """Takes an even number of rows; torch names the example's as the only one."""

    def forward(self, x):
        return sum(x.chunk(2))


class Unfolds(nn.Module):
    """Has more than one window from four rows on; torch says only which condition does not hold for fewer."""

    def forward(self, x):
        return x.unfold(0, 2, 2) + 1


def dynamic(kind, names=("rows",), largest=32):
    """A model whose inputs have a dynamic first dimension each."""
    kinds = {"reshapes": Reshapes, "bounded": Bounded, "adds": Adds, "pairs": Pairs, "steps": Steps}
    module = (kinds | {"halves": Halves, "unfolds": Unfolds})[kind]()
    example = tuple(torch.ones(2 if kind == "reshapes" else 8, 4) for _ in names)
    dims = {name: Dim(name, max=largest) for name in names}
    return ModelDefinition({"forward": MethodDefinition(module, [example], tuple({0: dims[name]} for name in names))})


def methods():
    """The second one is refused."""
    return ModelDefinition(
        {"forward": MethodDefinition(nn.ReLU(), [ROWS]), "choose": MethodDefinition(Branches(), [ROWS])}
    )

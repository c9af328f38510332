"""State that calls leave for later ones: programs keep what is in buffers, and models with other state are refused."""

import collections
import contextlib
import copy
import functools
import itertools
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from pteforge.errors import SourceError

pytestmark = pytest.mark.filterwarnings("ignore:The tensor attribute:UserWarning")

X = torch.tensor([[1.0, -2.0, 0.5]])
EVERYWHERE = {"calls": 0}


class Model(torch.nn.Module):
    """Calls a function of itself and its input; has the attributes that it is given."""

    def __init__(self, step, **attributes):
        super().__init__()
        self.step = step
        self.inner = torch.nn.Module()
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, x):
        return self.step(self, x)


class Tracker:
    """A plain object, such as a filter or a tokenizer's state."""

    past = 0.0
    h = torch.zeros(1, 3)

    def __call__(self, x):
        self.h = self.h * 0.5 + x
        return self.h


def assigned(self, x):
    self.h = torch.tanh(self.h + x)
    return self.h


def of_submodule(self, x):
    self.inner.h = getattr(self.inner, "h", torch.zeros(1, 3)) + x
    return self.inner.h


def queue(self, x):
    self.past.append(x)
    return torch.cat(list(self.past)).mean(0)


def counter(self, x):
    self.count += 1
    return x * self.count


def branch(self, x):
    self.count += 1
    return x if self.count == 1 else -x


def late_branch(self, x):
    self.count += 1
    return x if self.count < 4 else -x


def iterator(self, x):
    return x + next(self.numbers)


def moving_average(self, x):
    self.mean = x if self.mean is None else 0.5 * self.mean + 0.5 * x
    return self.mean + 0


def first_statistics(self, x):
    if self.mean is None:
        self.mean = x.mean()
    return x - self.mean


def exhausted(self, x):
    return x + self.left.pop()


def numpy_array(self, x):
    self.h = self.h + 1
    return x * float(self.h[0])


def nested(self, x):
    self.caches["k"][0] = self.caches["k"][0] + x
    return self.caches["k"][0] * 1


def in_data(self, x):
    self.h.data[:] = self.h.data + x.detach()
    return self.h + 0


def global_counter(_, x):
    EVERYWHERE["calls"] += 1
    return x * EVERYWHERE["calls"]


def class_attribute(_, x):
    Tracker.past += 1.0
    return x + Tracker.past


def of_closure():
    past = []

    def step(_, x):
        past.append(1)
        return x * len(past)

    return step


REFUSED = [
    (assigned, {"h": torch.zeros(1, 3)}, r"attributes of Python \(h\)"),
    (of_submodule, {}, r"\(inner\.h\)"),
    (queue, {"past": collections.deque([torch.zeros(1, 3)] * 3, maxlen=3)}, r"\(past\)"),
    (counter, {"count": 0}, r"\(count\)"),
    (branch, {"count": 0}, r"\(count\)"),
    (late_branch, {"count": 0}, r"\(count\)"),
    (iterator, {"numbers": itertools.count()}, r"\(numbers\)"),
    (moving_average, {"mean": None}, r"\(mean\)"),
    (first_statistics, {"mean": None}, r"\(mean\)"),
    (exhausted, {"left": [1.0]}, r"\(left\).*call 2 raises IndexError"),
    (numpy_array, {"h": np.ones(1)}, r"\(h\)"),
    (nested, {"caches": {"k": [torch.zeros(1, 3)]}}, r"\(caches\)"),
    (lambda self, x: self.tracker(x) + 0, {"tracker": Tracker()}, r"\(tracker\.h\)"),
    (global_counter, {}, "no attribute of it"),
    (class_attribute, {}, "no attribute of it"),
    (of_closure(), {}, "no attribute of it"),
]


def calls_of(module):
    """What an export stores of calls in a row, where another input was drawn."""
    from pteforge.tasks.export.eager import dependent_calls, run_eager
    from pteforge.tasks.usercode.modules import copy_module
    from torch.utils import _pytree as pytree

    called = copy_module(module.eval())
    with torch.no_grad():
        program = torch.export.export(copy_module(module), (X,))
    examples = [([X], run_eager(module, ((X,), {}), "", on=called))]
    drawn = [([X * 3], run_eager(module, ((X * 3,), {}), ""))]
    return dependent_calls("forward", (module, called), program, examples, drawn, pytree.tree_flatten(((X,), {}))[1])


@pytest.mark.parametrize(("step", "attributes", "said"), REFUSED, ids=[step.__name__ for step, *_ in REFUSED])
def test_state_outside_of_buffers(step, attributes, said):
    """A model whose later calls depend on what no buffer has is refused, with the name of what it keeps."""
    with pytest.raises(SourceError, match=said):
        calls_of(Model(step, **attributes))


class Buffers(torch.nn.Module):
    """Adds to one buffer, and assigns another."""

    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(1, 3))
        self.register_buffer("last", torch.zeros(1, 3))

    def forward(self, x):
        self.total.add_(x)
        self.last = self.last * 0.5 + self.total
        return self.last + 0


def test_state_in_buffers():
    """Where a second call of the same input returns something else, calls in a row are verified, too."""
    calls = calls_of(Buffers())
    assert [name for name, _, _ in calls] == ["forward"] * 3
    first, second, third = (outputs[0] for _, _, outputs in calls)
    assert torch.equal(first, X)
    assert torch.equal(second, 2.5 * X)
    assert torch.equal(third, 4.25 * X)


@functools.lru_cache
def _offset(size):
    return float(size)


def unused_counter(self, x):
    self.count += 1
    return x * 2


def lazily_made(self, x):
    if self.offset is None:
        self.offset = torch.arange(x.shape[1], dtype=x.dtype)
    return x + self.offset


def of_a_cache(_, x):
    return x * _offset(x.shape[1])


def last_input(self, x):
    self.seen = x
    return x + 1


@pytest.mark.parametrize("step", [unused_counter, lazily_made, of_a_cache, last_input], ids=lambda step: step.__name__)
def test_what_outputs_do_not_depend_on(step):
    """Counters that nothing reads, constants that the first call makes, and inputs that are kept are left alone."""
    assert calls_of(Model(step, count=0, offset=None, seen=None)) == []


class Method(torch.nn.Module):
    """A method of a module's, by its name."""

    def __init__(self, net, name):
        super().__init__()
        self.net, self.name = net, name

    def forward(self, x):
        return getattr(self.net, self.name)(x)


class Memory(torch.nn.Module):
    """What `encode` keeps, `decode` reads: in an attribute, in a buffer, or in both without need."""

    def __init__(self, kept):
        super().__init__()
        self.kept, self.seen, self.past = kept, 0, torch.zeros(1, 3)
        self.register_buffer("total", torch.zeros(1, 3))

    def encode(self, x):
        self.seen += 1
        if self.kept == "past":
            self.past = x * 2
        else:
            self.total.copy_(x * 2)
        return x + 1

    def decode(self, x):
        return x + self.past + self.total


@pytest.mark.parametrize("kept", ["past", "total"])
def test_state_between_methods(kept):
    """Where a method reads what another one leaves in an attribute, the model is refused; buffers are shared."""
    from pteforge import MethodDefinition, ModelDefinition
    from pteforge.tasks.export.eager import check_state_between

    net = Memory(kept)
    methods = {name: MethodDefinition(Method(net, name), [(X,)]) for name in ("encode", "decode")}
    refused = pytest.raises(SourceError, match=r"'decode' reads .*other methods .*\(net\.past")
    with refused if kept == "past" else contextlib.nullcontext():
        check_state_between(ModelDefinition(methods))
    assert (net.seen, net.past.sum(), net.total.sum()) == (0, 0, 0)


@dataclass(slots=True)
class Counted:
    """An object without a `__dict__`."""

    calls: float = 0.0


class Keeper(torch.nn.Module):
    """A method with layers of its own, and with something that is another method's, too."""

    def __init__(self, kept, use):
        super().__init__()
        self.kept, self.use = kept, use

    def forward(self, x):
        used = self.use(self.kept)
        return x if used is None else x + used


@pytest.mark.parametrize(
    ("kept", "write", "read"),
    [
        (Counted(), lambda kept: setattr(kept, "calls", kept.calls + 1), lambda kept: kept.calls),
        (SimpleNamespace(calls=0.0), lambda kept: setattr(kept, "calls", 1.0), lambda kept: kept.calls),
        ([], lambda kept: kept.append(1.0), sum),
        ({}, lambda kept: kept.update(calls=1.0), lambda kept: kept.get("calls", 0.0)),
        (torch.zeros(1, 3), lambda kept: kept.add_(1.0), torch.sum),
    ],
    ids=["slots", "object", "list", "dict", "tensor"],
)
def test_state_between_methods_without_common_layers(kept, write, read):
    """What two methods share need not be a layer: objects, containers and tensors count, and are named."""
    from pteforge import MethodDefinition, ModelDefinition
    from pteforge.tasks.export.eager import check_state_between

    def check(encoding, decoding):
        modules = {"encode": Keeper(encoding, write), "decode": Keeper(decoding, read)}
        methods = {name: MethodDefinition(module, [(X,)]) for name, module in modules.items()}
        check_state_between(ModelDefinition(methods))

    check(copy.deepcopy(kept), copy.deepcopy(kept))  # each has its own
    with pytest.raises(SourceError, match=r"'decode' reads .*other methods .*\(kept"):
        check(kept, kept)


LEFT = {"h": torch.zeros(1, 3)}


def left(_, x):
    LEFT["h"] = LEFT["h"] + x
    return LEFT["h"] * 2


def test_tensors_of_traces():
    """A tensor that a trace has left in a global variable is told with the variable's name."""
    from pteforge.tasks.export.eager import run_eager

    module = Model(left)
    with torch.no_grad():
        torch.export.export(module, (X,))
    with pytest.raises(SourceError, match=r"on example 0, .*tensor .*test_state\.LEFT, .*buffer"):
        run_eager(module, ((X,), {}), "example 0")

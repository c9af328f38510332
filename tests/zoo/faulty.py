"""Builders that fail, or whose models do not lower: one for each mistake."""

import networks
import torch
from networks import Function, FunctionOfLayers
from pteforge.configs.model import MethodCall, MethodDefinition, ModelDefinition
from torch import nn
from torch.export import Dim


def _relu(*, module=None, name="forward", examples=None, **fields):
    examples = [(torch.ones(2),)] if examples is None else examples
    return ModelDefinition({name: MethodDefinition(module or nn.ReLU(), examples)}, **fields)


# Not a model.


def raises():
    raise RuntimeError("no checkpoint")


def wrong_type():
    return {"model": nn.ReLU()}


def wrong_pair():
    """Inputs that are one tensor instead of a tuple."""
    return nn.ReLU(), torch.ones(2)


def no_methods():
    return ModelDefinition({})


def bad_name():
    return _relu(name="two words")


def no_module():
    """A function instead of a module."""
    return _relu(module=torch.relu)


def no_examples():
    return _relu(examples=[])


def lists_of_lists():
    """Examples must be tuples."""
    return _relu(examples=[[torch.ones(2)]])


def clash():
    """One name for a method and a constant method."""
    return _relu(constant_methods={"forward": 3})


def odd_constant():
    """A constant that no file can have."""
    return _relu(constant_methods={"odd": [1, 1j]})


def unknown_call():
    """A sequence of calls of a method that is not there."""
    return _relu(sequences=[[MethodCall("decode", ())]])


# Inputs that do not fit the model.


def wrong_shape():
    return nn.Linear(3, 2), (torch.ones(2, 4),)


def wrong_count():
    return nn.ReLU(), (torch.ones(2), torch.ones(2))


def other_shape():
    """A second example of a shape that the program is not for."""
    return nn.ReLU(), [(torch.ones(2),), (torch.ones(3),)]


def text_input():
    """An input that the runtime has no type for."""
    return Function(lambda values, name: values + len(name)), (torch.ones(3), "abc")


class Reshape(nn.Module):
    """Needs six values."""

    def forward(self, values):
        return values.reshape(2, 3) * 2


def static_batch():
    """A batch that cannot vary: the model says so in its code."""
    return Reshape(), (torch.randn(2, 3),)


def branches_on_one():
    """Sizes from 1 on, where the code branches on 1."""
    layer = nn.Linear(4, 4)
    function = FunctionOfLayers(lambda m, x: m.layer(x) if x.shape[0] == 1 else m.layer(x).relu(), layer=layer)
    method = MethodDefinition(function, [(torch.randn(3, 4),)], (({0: Dim("rows", min=1, max=4)},),))
    return ModelDefinition({"forward": method})


def example_of_one():
    """A batch that varies, and an example of one."""
    method = MethodDefinition(nn.Linear(4, 4), [(torch.randn(1, 4),)], ({0: Dim("rows", min=1, max=4)},))
    return ModelDefinition({"forward": method})


def example_of_one_pair():
    """Pairs whose number varies, and an example of one."""
    method = MethodDefinition(nn.Linear(4, 4), [(torch.randn(2, 4),)], ({0: 2 * Dim("pairs", max=4)},))
    return ModelDefinition({"forward": method})


class PickyAboutValues(nn.Module):
    """Fails in eager where a condition on its inputs does not hold, which the trace does not see."""

    def __init__(self, takes) -> None:
        super().__init__()
        self.takes = takes

    def forward(self, values, ids):
        if not torch.compiler.is_compiling() and not self.takes(values, ids):
            raise ValueError("not such values")
        return values.sum() + ids


def picky_about_values(kind: str):
    """Ids that ascend by columns, a mask of infinities, ids of rows that may be few, and values of one kind only."""
    values, ids = torch.randn(6, 3), torch.tensor([[1, 2], [3, 5]])
    conditions = {
        "order": lambda _, ids: bool((ids.diff(dim=1) > 0).all()),
        "rows": lambda values, ids: int(ids.max()) < len(values),
        "values": lambda given, _: torch.equal(given, values),
    }
    rows = ({0: Dim("rows", min=2, max=6)}, None) if kind == "rows" else None
    method = MethodDefinition(PickyAboutValues(conditions[kind]), [(values, ids)], rows)
    return ModelDefinition({"forward": method})


class Picky(nn.Module):
    """Fails in eager for small inputs, which the trace does not see."""

    def forward(self, values):
        if not torch.compiler.is_exporting() and values.shape[0] < 3:
            raise ValueError("too few")
        return values * 2


def picky():
    """A model that does not take all that its dynamic shapes allow."""
    return ModelDefinition({"forward": MethodDefinition(Picky(), [(torch.ones(4),)], ({0: Dim("n", min=1, max=8)},))})


def loop():
    """`while_loop`, which ExecuTorch does not emit."""
    return networks.Loop(), (torch.tensor(0), torch.ones(2))


def other_keywords():
    examples = [{"factor": torch.ones(2), "shift": torch.ones(2)}, {"factor": torch.ones(2)}]
    return ModelDefinition({"forward": MethodDefinition(nn.Identity(), [(torch.ones(2),)] * 2, None, examples)})


def too_few_keywords():
    examples = [{"factor": torch.ones(2)}]
    return ModelDefinition({"forward": MethodDefinition(nn.Identity(), [(torch.ones(2),)] * 2, None, examples)})


def given_twice():
    return nn.ReLU(), (torch.ones(2),), {"input": torch.ones(2)}


def keywords_of_a_call():
    calls = [[MethodCall("forward", (torch.ones(2),), {"other": 1})]]
    return ModelDefinition({"forward": MethodDefinition(nn.ReLU(), [(torch.ones(2),)])}, sequences=calls)


def described_wrongly():
    return _relu(metadata={"licence": "mit"})


def labels_of_nothing():
    return _relu(metadata={"labels_file": "nowhere.txt"})


def keywords_by_name():
    return ModelDefinition({"forward": MethodDefinition(nn.ReLU(), [(torch.ones(2),)], None, {"input": 1})})

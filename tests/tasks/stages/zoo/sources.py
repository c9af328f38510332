"""Builders of every form, and every kind of broken one."""

# ruff: noqa: D102 - a module of a network has no more to say than its class
from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import torch
from pteforge.configs.definition import MethodDefinition, ModelDefinition
from torch import nn
from torch.export import Dim


def definition(width: int = 2):
    """All that a definition can have."""
    batch = Dim("batch", min=1, max=8)
    return ModelDefinition(
        {
            "forward": MethodDefinition(
                nn.Linear(3, width), [(torch.randn(2, 3),), (torch.randn(4, 3),)], ({0: batch},)
            ),
            "encode": MethodDefinition(nn.ReLU(), [(torch.randn(2),)]),
        },
        {"width": width, "rate": 0.5, "name": "small", "trained": False, "table": torch.arange(3)},
    )


def pair():
    """A module and one example."""
    return nn.Linear(3, 2), (torch.randn(2, 3),)


def pair_with_examples():
    """A module and several examples."""
    return nn.Linear(3, 2), [(torch.randn(2, 3),), (torch.randn(2, 3),)]


class EagerModel:
    """As ExecuTorch's examples are."""

    def __init__(self, width: int = 2) -> None:
        self._width = width

    def get_eager_model(self):
        return nn.Linear(3, self._width)

    def get_example_inputs(self):
        return (torch.randn(2, 3),)


class DynamicEagerModel(EagerModel):
    """The same with dynamic shapes."""

    def get_dynamic_shapes(self):
        return ({0: Dim("batch", min=1, max=8)},)


class Nested:
    """Holds a builder."""

    @staticmethod
    def build():
        """A builder that is an attribute of a class."""
        return pair()


def all_random():
    """Weights by torch, input by numpy, and a width by random."""
    width = random.randint(2, 50)  # noqa: S311 - as users do
    inputs = np.random.rand(2, 3).astype(np.float32)  # noqa: NPY002 - as users do
    return nn.Linear(3, width), (torch.from_numpy(inputs),)


def in_folder():
    """Reads a file that lies beside the zoo file."""
    value = float(Path("weight.txt").read_text())
    module = nn.Linear(3, 1, bias=False)
    nn.init.constant_(module.weight, value)
    return module, (torch.ones(1, 3),)


class WithDropout(nn.Module):
    """Another result in training than in inference."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, values):
        return self.drop(values)


def with_dropout():
    """A model that was left in training mode."""
    return WithDropout().train(), (torch.ones(64),)


class HandsOutState(nn.Module):
    """Returns the very buffer that it changes, its input, and a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("state", torch.full((3,), 10.0))

    def forward(self, values):
        self.state.add_(values)
        return self.state, values, self.weight


def hands_out_state():
    """Outputs that alias a buffer, an input and a weight."""
    return HandsOutState(), [(torch.ones(3),), (torch.full((3,), 2.0),)]


class ChangesInput(nn.Module):
    """Works in place on a copy of its input, and remembers its calls outside of its buffers."""

    def forward(self, values):
        return values.clone().add_(1)


def changes_input():
    """An in-place operation."""
    return ChangesInput(), (torch.zeros(3),)


class MixedInputs(nn.Module):
    """A tuple, a number and a dictionary of tensors."""

    def forward(self, pair, factor, named):
        return (pair[0] * factor, {"sum": pair[1] + named["bias"]})


def mixed_inputs():
    """Inputs and outputs that are not just tensors."""
    pair = (torch.randn(2, 2), torch.randn(2, 2))
    return MixedInputs(), (pair, 3, {"bias": torch.randn(2)})


def static_batch():
    """A batch that cannot vary: the model says so in its code."""

    class Reshape(nn.Module):
        """Needs six values."""

        def forward(self, values):
            return values.reshape(2, 3) * 2

    return Reshape(), (torch.randn(2, 3),)


class MixedOutputs(nn.Module):
    """A tensor, constants of several kinds, and nothing."""

    def forward(self, values):
        return {"sum": values + 1, "count": 3, "nothing": None, "ratio": 0.5, "flag": True}


def mixed_outputs():
    """Outputs that are not just tensors."""
    return MixedOutputs(), (torch.ones(3),)


class OptionalInput(nn.Module):
    """An input that may be left out."""

    def forward(self, values, mask=None):
        return values + 1 if mask is None else values + mask


def optional_input():
    """None as an input."""
    return OptionalInput(), (torch.ones(3), None)


class SizeOutput(nn.Module):
    """A size that is known when it runs."""

    def forward(self, values):
        return values * 2, values.shape[0]


def size_output():
    """A number among the outputs that depends on the input's size."""
    method = MethodDefinition(SizeOutput(), [(torch.ones(3),)], ({0: Dim("n", max=7)},))
    return ModelDefinition({"forward": method})


class OtherTypes(nn.Module):
    """Integers in; half precision, truth values and bytes out."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 4)

    def forward(self, indices):
        return self.embed(indices).to(torch.float16), indices > 3, indices.to(torch.uint8)


def other_types():
    """Other element types than fp32."""
    return OtherTypes(), (torch.arange(5),)


class Format(nn.Module):
    """Takes text."""

    def forward(self, values, name: str):
        return values + len(name)


def text_input():
    """An input that the runtime has no type for."""
    return Format(), (torch.ones(3), "abc")


def transposed_input():
    """An input whose memory is laid out in a way that the runtime does not take."""
    return nn.ReLU(), (torch.ones(2, 3).t(),)


def other_shape():
    """A second example of a shape that the program is not for."""
    return nn.ReLU(), [(torch.ones(2),), (torch.ones(3),)]


def wrong_shape():
    """Example inputs that the model does not take."""
    return nn.Linear(3, 2), (torch.ones(2, 4),)


def wrong_count():
    """Too many inputs."""
    return nn.ReLU(), (torch.ones(2), torch.ones(2))


class Picky(nn.Module):
    """Fails in eager for small inputs, which the trace does not see."""

    def forward(self, values):
        if not torch.compiler.is_exporting() and values.shape[0] < 3:
            raise ValueError("too few")
        return values * 2


def picky():
    """A model that does not take all that its dynamic shapes allow."""
    return ModelDefinition({"forward": MethodDefinition(Picky(), [(torch.ones(4),)], ({0: Dim("n", min=1, max=8)},))})


def raises():
    """Fails."""
    raise RuntimeError("no checkpoint")


def wrong_type():
    """Not a model."""
    return {"model": nn.ReLU()}


def wrong_pair():
    """Inputs that are one tensor instead of a tuple."""
    return nn.ReLU(), torch.ones(2)


def no_methods():
    """Nothing to export."""
    return ModelDefinition({})


def bad_name():
    """A method name that is no identifier."""
    return ModelDefinition({"two words": MethodDefinition(nn.ReLU(), [(torch.ones(2),)])})


def no_module():
    """A function instead of a module."""
    return ModelDefinition({"forward": MethodDefinition(torch.relu, [(torch.ones(2),)])})


def no_examples():
    """Without examples there is nothing to trace."""
    return ModelDefinition({"forward": MethodDefinition(nn.ReLU(), [])})


def lists_of_lists():
    """Examples must be tuples."""
    return ModelDefinition({"forward": MethodDefinition(nn.ReLU(), [[torch.ones(2)]])})


def clash():
    """One name for two things."""
    return ModelDefinition({"forward": MethodDefinition(nn.ReLU(), [(torch.ones(2),)])}, {"forward": 3})

"""Core ML's quantizer looks for the patterns that a graph can have, and finds what it would find of all of them."""

from __future__ import annotations

import operator

import pytest
from pteforge.tasks.targets import find_target


@pytest.fixture(scope="module")
def patterns():
    """Our module and upstream's."""
    from executorch.backends.apple.coreml.quantizer import _coreml_quantizer_utils as upstream
    from pteforge.tasks.targets import coreml_patterns

    return coreml_patterns, upstream


def operators(pattern) -> set[object]:
    """What a traced pattern looks for."""
    return {node.target for node in pattern.graph.nodes if node.op == "call_function"}


@pytest.mark.slow
def test_activations(patterns):
    """For every activation, with and without an argument for in place, we know the operators of its pattern."""
    import torch

    ours, upstream = patterns
    shapes = (torch.ones(1, 1), torch.ones(3, 1), torch.ones(3))
    linear = ours.layer_operators(torch.nn.functional.linear, *shapes)
    calls = [(each, in_place) for each in upstream._supported_activations for in_place in (True, False)]
    calls += [(each, False) for each in upstream._supported_activations_no_inplace]
    assert len(calls) == 26
    for activation, in_place in calls:
        traced = operators(upstream.get_linear_pattern(activation, in_place))
        assert traced == linear | ours.activation_operators(activation, in_place), activation


@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_convolutions_with_norm(dimensions, patterns):
    """For every convolution we know its operator, and that of a batch norm behind it."""
    import torch

    ours, upstream = patterns
    shapes = (torch.ones(1, 1, *[3] * dimensions), torch.ones(1, 1, *[1] * dimensions), torch.ones(1))
    convolution = ours.layer_operators(upstream._conv_fn_map[dimensions], *shapes)
    assert operators(upstream.get_conv_bn_pattern(dimensions)) == convolution | ours.NORM


@pytest.mark.parametrize("name", ["add", "iadd", "mul", "imul", "matmul"])
def test_functions_of_two(name, patterns):
    """For every operator of two tensors we know how it is exported."""
    import torch

    ours, upstream = patterns
    function = getattr(operator, name)
    traced = operators(upstream.get_binary_op_act_pattern(function))
    assert traced == ours.layer_operators(function, torch.ones(1), torch.ones(1))


def test_only_what_is_there_is_traced(patterns, monkeypatch):
    """Of the patterns those are traced whose operators the graph has; afterwards upstream is as it was."""
    import torch
    from pteforge.tasks.targets.coreml import CoreMl, CoreMlQuantizerOptions
    from torchao.quantization.pt2e.quantizer.quantizer import Q_ANNOTATION_KEY

    _, upstream = patterns
    traced = []
    trace = upstream._get_aten_graph_module
    monkeypatch.setattr(upstream, "_get_aten_graph_module", lambda *given: traced.append(1) or trace(*given))
    before = dict(vars(upstream))
    module = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(2, 2))
    graph = torch.export.export(module.eval(), (torch.ones(1, 1, 3, 3),)).module(check_guards=False)
    CoreMl.quantizer(CoreMlQuantizerOptions()).annotate(graph)
    assert vars(upstream) == before
    annotated = {str(node.target) for node in graph.graph.nodes if Q_ANNOTATION_KEY in node.meta}
    assert {"aten.conv2d.default", "aten.relu.default", "aten.linear.default"} <= annotated
    assert len(traced) == len(["conv", "conv and relu", "linear", "linear and relu"])


def test_the_target_uses_it(patterns):
    """The quantizer that the target gives is upstream's, and looks where needed."""
    ours, _ = patterns
    target = type(find_target("coreml"))
    quantizer = target.quantizer(target.QuantizerOptions())
    assert type(quantizer) is ours.coreml_quantizer.CoreMLQuantizer
    assert hasattr(type(quantizer).annotate, "__wrapped__")

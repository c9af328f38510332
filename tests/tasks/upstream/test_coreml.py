"""Core ML's quantizer looks for the patterns that a graph can have, and finds what it would find of all of them."""

import operator

import pytest
import torch


@pytest.fixture(scope="module")
def patterns():
    from executorch.backends.apple.coreml.quantizer import _coreml_quantizer_utils as upstream
    from pteforge.tasks.upstream import coreml

    return coreml, upstream


def operators(pattern) -> set[object]:
    """What a traced pattern looks for."""
    return {node.target for node in pattern.graph.nodes if node.op == "call_function"}


@pytest.mark.slow
def test_activations(patterns):
    """For every activation, with and without an argument for in place, we know the operators of its pattern."""
    ours, upstream = patterns
    shapes = (torch.ones(1, 1), torch.ones(3, 1), torch.ones(3))
    linear = ours.layer_operators(torch.nn.functional.linear, *shapes)
    calls = [(activation, in_place) for activation in upstream._supported_activations for in_place in (True, False)]
    calls += [(activation, False) for activation in upstream._supported_activations_no_inplace]
    assert len(calls) == 26
    for activation, in_place in calls:
        traced = operators(upstream.get_linear_pattern(activation, in_place))
        assert traced == linear | ours.activation_operators(activation, in_place), activation


def test_convolutions_and_functions_of_two(patterns):
    """For every convolution we know its operator and that of a batch norm behind it, and how functions are exported."""
    ours, upstream = patterns
    for dimensions in (1, 2, 3):
        shapes = (torch.ones(1, 1, *[3] * dimensions), torch.ones(1, 1, *[1] * dimensions), torch.ones(1))
        convolution = ours.layer_operators(upstream._conv_fn_map[dimensions], *shapes)
        assert operators(upstream.get_conv_bn_pattern(dimensions)) == convolution | ours.NORM
    for function in (operator.add, operator.iadd, operator.mul, operator.imul, operator.matmul):
        expected = ours.layer_operators(function, torch.ones(1), torch.ones(1))
        assert operators(upstream.get_binary_op_act_pattern(function)) == expected


def test_only_what_is_there_is_traced(patterns, monkeypatch):
    """Of the patterns those are traced whose operators the graph has; afterwards upstream is as it was."""
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

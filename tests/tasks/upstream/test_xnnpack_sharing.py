"""Layers of two kinds for XNNPACK that share an input which is quantized dynamically."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pteforge.tests.lowering import lower_quantized, worst_sqnr

# By name: the second layer's kind and options; the first is a convolution with a kernel of one element.
SHARED: dict[str, tuple[str, dict[str, Any]]] = {
    "convolution": ("Conv2d", {"kernel_size": 3, "padding": 1}),
    "stride": ("Conv2d", {"kernel_size": 1, "stride": 2}),
    "groups": ("Conv2d", {"kernel_size": 3, "groups": 2}),
    "transposed": ("ConvTranspose2d", {"kernel_size": 3}),
}
ALIKE: dict[str, tuple[str, dict[str, Any]]] = {"same kind": ("Conv2d", {"kernel_size": 1})}
QUICK = {"convolution"}


def _cases(layers: dict[str, Any]) -> list[Any]:
    return [
        pytest.param(*layer, id=name, marks=() if name in QUICK else pytest.mark.slow) for name, layer in layers.items()
    ]


def _network(kind: str, options: dict[str, Any]) -> Any:
    import torch
    from pteforge.tests.zoo.networks import FunctionOfLayers

    torch.manual_seed(0)
    layers = {"one": torch.nn.Conv2d(8, 8, 1), "other": getattr(torch.nn, kind)(8, 8, **options)}
    return FunctionOfLayers(lambda net, x: (net.one(x), net.other(x)), **layers).eval(), torch.randn(2, 8, 16, 16)


@pytest.fixture
def plain(monkeypatch):
    """ExecuTorch's own pass."""
    from pteforge.tasks.upstream import xnnpack_sharing

    monkeypatch.setattr(xnnpack_sharing, "separate_products", lambda: None)
    monkeypatch.setattr(xnnpack_sharing._Pass, "call", xnnpack_sharing._upstream)


@pytest.mark.parametrize(("kind", "options"), _cases({**SHARED, **ALIKE}))
def test_files_compute_what_eager_does(kind, options):
    """As exactly as int8 can."""
    network, x = _network(kind, options)
    assert worst_sqnr(lower_quantized(network, x, dynamic=True), network, x) > 35


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize(("kind", "options"), _cases(SHARED))
def test_executorch_fails_by_itself(kind, options):
    """Once this fails on a processor with VNNI, so does the reason for the patch."""
    network, x = _network(kind, options)
    sqnr = worst_sqnr(lower_quantized(network, x, dynamic=True), network, x)
    assert sqnr < 20 or "vnni" not in Path("/proc/cpuinfo").read_text()


@pytest.mark.parametrize(("kind", "options"), _cases(ALIKE))
def test_what_is_alike_stays_the_same(request, kind, options):
    """Byte for byte."""
    made = lower_quantized(*_network(kind, options), dynamic=True)
    request.getfixturevalue("plain")
    assert made == lower_quantized(*_network(kind, options), dynamic=True)

"""The plain summary is JSON and says what the file holds."""

import json

from pteforge.formats.describe import describe
from pteforge.formats.pte.reader import read_pte


def test_is_plain_json(sample):
    """Every file's summary survives JSON, without NaN or Infinity."""
    summary = describe(read_pte(sample))
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary


def test_says_what_a_file_holds(samples):
    """Sizes, methods, delegates, segments, named data: those of a file with two delegated methods."""
    content = samples.files["methods"]
    summary = describe(read_pte(content))
    assert summary["size"] == len(content)
    assert summary["backends"] == ["XnnpackBackend"]
    assert [method["name"] for method in summary["methods"] if not method["constant"]] == ["encode", "forward"]
    forward = next(method for method in summary["methods"] if method["name"] == "forward")
    (image,) = forward["inputs"]
    assert (image.pop("shape"), image.pop("dim_order")) == ([1, 8, 8, 8], [0, 1, 2, 3])
    assert image == {"kind": "tensor", "dtype": "float32", "dynamism": "static", "sizes": [], "bytes": 2048}
    (delegate,) = forward["delegates"]
    segment = {"offset": delegate["offset"], "size": delegate["size"], "holds": ["delegate"]}
    assert summary["segments"][delegate["segment"]] == segment
    assert summary["constants"] == {"tensors": 1, "bytes": 2400}
    assert summary["segments"][0]["holds"] == ["constants"]
    assert sorted(named["size"] for named in summary["named_data"]) == [64, 256, 512, 4608, 16384, 294912]
    limit = next(method for method in summary["methods"] if method["name"] == "limit")
    assert limit["outputs"] == [{"kind": "double", "value": "inf"}]


def test_counts_operators_and_states(samples):
    """Operators come with the number of their calls, initial states apart from constants."""
    summary = describe(read_pte(samples.files["mutable"]))
    (method,) = summary["methods"]
    calls = {operator["name"]: operator["calls"] for operator in method["operators"]}
    assert calls["aten::copy_"] == 2
    assert sum(calls.values()) == method["instructions"]["kernel_calls"]
    assert summary["initial_states"] == {"tensors": 2, "bytes": 2048 + 2800}
    assert (summary["segments"][1]["size"], summary["segments"][1]["holds"]) == (4848, ["initial_states"])
    assert describe(read_pte(samples.files["external"]))["external"][0] == "conv.bias"

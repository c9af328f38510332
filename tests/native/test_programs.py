"""Programs lowered by NativePartitioner, run with the C++ library and compared with eager."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # the first test builds the library and lowers everything


@pytest.fixture(scope="module")
def programs(zoo, model) -> Mapping[str, Any]:
    """All programs by name."""
    import torch
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner

    torch.manual_seed(0)
    image, rows, ones = torch.randn(1, 3, 8, 8), torch.randn(3, 8), torch.ones(3, 4)
    layer = torch.nn.Linear(64, 64)
    batch = torch.export.Dim("batch", min=2, max=8)
    convolution = zoo.Convolution().eval()
    models = {
        "convolution": model({"forward": (convolution, (image,), None)}, [("forward", (image * 3,))]),
        "fallback": model({"forward": (convolution, (image,), None)}, specializations=()),
        **{f"{name}, {chosen}": each for name, chosen, each in _quantized(zoo, model, convolution, image)},
        "branches": model(
            {"forward": (zoo.Branches(), (ones,), None)}, [("forward", (-ones,)), ("forward", (ones * -5,))]
        ),
        "outside": model({"forward": (zoo.Outside(), (ones,), None)}, [("forward", (-ones,))]),
        "methods": model(
            {
                "encode": (zoo.Encoder(layer), (torch.randn(2, 64),), None),
                "decode": (zoo.Decoder(layer), (torch.randn(2, 64), torch.randn(3, 64)), None),
            }
        ),
        "sizes": model(
            {"forward": (zoo.Sizes(), (rows,), ({0: batch},))},
            [("forward", (torch.randn(size, 8),)) for size in (8, 2)],
        ),
        "behind another backend": model(
            {"forward": (zoo.Sizes(), (rows,), ({0: batch},))},
            [("forward", (torch.randn(size, 8),)) for size in (8, 2)],
            before=lambda: [XnnpackPartitioner()],
        ),
        "counter": model({"forward": (zoo.Counter(), (ones,), None)}, [("forward", (ones * 2,))]),
    }
    return {name: each.lower() for name, each in models.items()}


def _quantized(zoo: Any, model: Any, convolution: Any, image: Any) -> Iterator[tuple[str, str, Any]]:
    """Quantized modules, with XNNPACK and without: what they are called, the payload that runs, and what to lower."""
    import torch

    layers, rows = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh()).eval(), torch.randn(3, 64)
    modules = {
        "static": (zoo.quantized(convolution, image), image),
        "dynamic": (zoo.quantized(layers, rows, dynamic=True), rows),
        "grouped": (zoo.grouped(layers), rows),
    }
    for name, (module, example) in modules.items():
        for chosen, specializations in (("xnnpack", ["xnnpack"]), ("portable", [])):
            methods = {"forward": (module, (example,), None)}
            yield name, chosen, model(methods, specializations=specializations)


@pytest.fixture(scope="module")
def outcomes(programs, run_programs) -> Mapping[str, Any]:
    """What they do on the runtime."""
    return run_programs(programs)


@pytest.mark.parametrize(
    ("name", "chosen"),
    [
        ("convolution", "xnnpack"),
        ("fallback", "portable"),
        ("branches", "xnnpack"),
        ("outside", "xnnpack"),
        ("methods", "xnnpack"),
        ("sizes", "xnnpack"),
        ("behind another backend", "portable"),
        ("counter", "xnnpack"),
    ],
)
def test_equals_eager(programs, outcomes, name, chosen):
    """Each call gives what eager gives, by the first payload that this runtime has the backend for."""
    import torch

    outcome = outcomes[name]
    assert [report[-1].partition(":")[0] for report in outcome.reports.values()] == [chosen] * len(outcome.reports)
    for outputs, expected in zip(outcome.outputs, programs[name].expected, strict=True):
        assert len(outputs) == len(expected)
        for output, wanted in zip(outputs, expected, strict=True):
            torch.testing.assert_close(output, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("chosen", ["xnnpack", "portable"])
@pytest.mark.parametrize("name", ["static", "dynamic", "grouped"])
def test_quantized(programs, outcomes, name, chosen):
    """Quantized operators are claimed, and both payloads compute with them: outputs are eager's but for rounding."""
    import torch

    program, outcome = programs[f"{name}, {chosen}"], outcomes[f"{name}, {chosen}"]
    (container,) = program.containers
    assert container.payloads[0].name == chosen
    assert outcome.reports["forward"][-1].startswith(f"{chosen}: chosen")
    ((output,),), ((expected,),) = outcome.outputs, program.expected
    torch.testing.assert_close(output, expected, rtol=0, atol=0.02)


def test_quantized_payloads(programs):
    """XNNPACK takes all of a statically quantized program; the fallback calls the quantized kernels."""
    program = programs["static, xnnpack"]
    (accelerated,), (portable,) = (program.payload(name).methods for name in ("xnnpack", "portable"))
    assert [delegate.id for delegate in accelerated.delegates] == ["XnnpackBackend"]
    assert accelerated.operators == ()
    assert "quantized_decomposed::dequantize_per_channel.out" in portable.operators


def test_kept_whole(programs):
    """What is kept whole reaches the specialization as it is, and the fallback decomposed."""
    program = programs["convolution"]
    (container,) = program.containers
    assert [payload.name for payload in container.payloads] == ["xnnpack", "portable"]
    (accelerated,) = program.payload("xnnpack").methods
    assert [delegate.id for delegate in accelerated.delegates] == ["XnnpackBackend"]
    assert accelerated.operators == ()
    (portable,) = program.payload("portable").methods
    assert "aten::addmm.out" in portable.operators
    assert {"aten::linear.out", "aten::hardswish.out"}.isdisjoint(portable.operators)


def test_methods(programs, outcomes):
    """Payloads have the methods of the program. A weight that methods and payloads share is in the file once."""
    program = programs["methods"]
    named = [{payload.description.methods for payload in container.payloads} for container in program.containers]
    assert named == [{("decode",)}, {("encode",)}]
    weight = program.model.methods["encode"][0].layer.weight.detach().numpy().tobytes()
    assert program.content.count(weight) == 1
    assert set(outcomes["methods"].reports) == {"encode", "decode"}


def test_branches(programs):
    """A cond whose branches are supported is inside of one delegate, in all payloads."""
    program = programs["branches"]
    assert len(program.containers) == 1
    for name in ("xnnpack", "portable"):
        (method,) = program.payload(name).methods
        assert method.instructions.jumps > 0


def test_partitions(programs):
    """Where something is not claimed, or belongs to another backend, there are several delegates, each by itself."""
    assert len(programs["outside"].containers) == 4
    assert [each.payloads[-1].name for each in programs["outside"].containers] == ["portable"] * 4
    assert len(programs["behind another backend"].containers) == 2


def test_dynamic(programs):
    """Payloads take what the program takes: as many rows as it does at most."""
    for name in ("xnnpack", "portable"):
        (method,) = programs["sizes"].payload(name).methods
        assert [(spec.shape, spec.dynamism) for spec in method.inputs] == [((8, 8), "bound")]


def test_state(programs):
    """The state is the program's; payloads have none, whichever of them runs."""
    program = programs["counter"]
    for name in ("xnnpack", "portable"):
        assert not any(constant.mutable for constant in program.payload(name).constants)


def test_same_bytes(programs):
    """Lowering a program again gives the same bytes."""
    assert programs["branches"].model.lower().content == programs["branches"].content


def test_python_host(programs, tmp_path):
    """The Python host runs what is one delegate as a whole, and refuses what is delegated in parts, saying why."""
    import pteforge.runtime
    import torch
    from pteforge.errors import InputError

    path = tmp_path / "program.pte"
    program = programs["convolution"]
    path.write_bytes(program.content)
    loaded = pteforge.runtime.load(path)
    assert loaded.payload == "xnnpack"
    for (method, inputs), (expected,) in zip(program.calls, program.expected, strict=True):
        torch.testing.assert_close(loaded.run(method, inputs), [expected], rtol=1e-5, atol=1e-5)
    for name in ("outside", "methods", "counter"):
        path.write_bytes(programs[name].content)
        with pytest.raises(
            InputError, match="what it delegates to NfatBackend are parts of it, each with its own container"
        ):
            pteforge.runtime.load(path)

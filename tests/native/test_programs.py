"""Programs lowered by NativePartitioner, run with the C++ library and compared with eager."""

from collections.abc import Mapping
from typing import Any

import pteforge.runtime
import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from pteforge.errors import InputError

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # the first test builds the library and lowers everything


@pytest.fixture(scope="module")
def programs(zoo, networks, model) -> Mapping[str, Any]:
    torch.manual_seed(0)
    image, rows, ones = torch.randn(1, 3, 8, 8), torch.randn(3, 8), torch.ones(3, 4)
    layer = torch.nn.Linear(64, 64)
    batch = torch.export.Dim("batch", min=2, max=8)
    sizes = (
        {"forward": (zoo.Sizes(), (rows,), ({0: batch},))},
        [("forward", (torch.randn(size, 8),)) for size in (8, 2)],
    )
    convolution = zoo.convolution()
    models = {
        "convolution": model({"forward": (convolution, (image,))}, [("forward", (image * 3,))]),
        "fallback": model({"forward": (convolution, (image,))}, specializations=()),
        **_quantized(zoo, model, convolution, image),
        "branches": model({"forward": (zoo.branches(), (ones,))}, [("forward", (-ones,)), ("forward", (ones * -5,))]),
        "outside": model({"forward": (zoo.outside(), (ones,))}, [("forward", (-ones,))]),
        "methods": model(
            {
                "encode": (torch.nn.Sequential(layer, torch.nn.Tanh()), (torch.randn(2, 64),)),
                "decode": (networks.Shifted(layer), (torch.randn(3, 64),)),
            }
        ),
        "sizes": model(*sizes),
        "behind another backend": model(*sizes, before=lambda: [XnnpackPartitioner()]),
        "counter": model({"forward": (zoo.counter(), (ones,))}, [("forward", (ones * 2,))]),
    }
    return {name: to_lower.lower() for name, to_lower in models.items()}


def _quantized(zoo, model, convolution, image) -> dict[str, Any]:
    """Quantized modules, with XNNPACK and without, by kind of quantization and the payload that runs."""
    layers, rows = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh()).eval(), torch.randn(3, 64)
    modules = {
        "static": (zoo.quantized(convolution, image), image),
        "dynamic": (zoo.quantized(layers, rows, dynamic=True), rows),
        "grouped": (zoo.grouped(layers), rows),
    }
    return {
        f"{name}, {chosen}": model({"forward": (module, (example,))}, specializations=specializations)
        for name, (module, example) in modules.items()
        for chosen, specializations in (("xnnpack", ["xnnpack"]), ("portable", []))
    }


@pytest.fixture(scope="module")
def outcomes(programs, run_programs) -> Mapping[str, Any]:
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
    """Each call returns what eager returns; the first payload whose backend this runtime has is chosen."""
    outcome = outcomes[name]
    assert [report[-1].partition(":")[0] for report in outcome.reports.values()] == [chosen] * len(outcome.reports)
    for outputs, expected in zip(outcome.outputs, programs[name].expected, strict=True):
        assert len(outputs) == len(expected)
        for output, wanted in zip(outputs, expected, strict=True):
            torch.testing.assert_close(output, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("chosen", ["xnnpack", "portable"])
@pytest.mark.parametrize("name", ["static", "dynamic", "grouped"])
def test_quantized(programs, outcomes, name, chosen):
    """Quantized operators are claimed and run in both payloads; outputs equal eager's but for rounding."""
    program, outcome = programs[f"{name}, {chosen}"], outcomes[f"{name}, {chosen}"]
    (container,) = program.containers
    assert container.payloads[0].name == chosen
    assert outcome.reports["forward"][-1].startswith(f"{chosen}: chosen")
    ((output,),), ((expected,),) = outcome.outputs, program.expected
    torch.testing.assert_close(output, expected, rtol=0, atol=0.02)


@pytest.mark.parametrize(
    ("name", "kernels", "absent"),
    [
        ("static, xnnpack", {"quantized_decomposed::dequantize_per_channel.out"}, set()),
        ("convolution", {"aten::addmm.out"}, {"aten::linear.out", "aten::hardswish.out"}),
    ],
)
def test_payloads(programs, name, kernels, absent):
    """XNNPACK takes a whole partition, preserved operators included; the fallback has it decomposed."""
    program = programs[name]
    (container,) = program.containers
    assert [payload.name for payload in container.payloads] == ["xnnpack", "portable"]
    (accelerated,), (portable,) = (program.payload(payload).methods for payload in ("xnnpack", "portable"))
    assert [delegate.id for delegate in accelerated.delegates] == ["XnnpackBackend"]
    assert accelerated.operators == ()
    assert kernels <= set(portable.operators)
    assert absent.isdisjoint(portable.operators)


def test_methods(programs, outcomes):
    """Payloads have the program's methods, and a weight that methods and payloads share is stored once."""
    program = programs["methods"]
    named = [{payload.description.methods for payload in container.payloads} for container in program.containers]
    assert named == [{("decode",)}, {("encode",)}]
    weight = program.model.methods["encode"][0][0].weight.detach().numpy().tobytes()
    assert program.content.count(weight) == 1
    assert set(outcomes["methods"].reports) == {"encode", "decode"}


def test_partitions(programs):
    """A supported cond is inside one delegate; operators that are not claimed separate delegates."""
    assert len(programs["branches"].containers) == 1
    assert len(programs["outside"].containers) == 4
    assert [each.payloads[-1].name for each in programs["outside"].containers] == ["portable"] * 4
    assert len(programs["behind another backend"].containers) == 2


@pytest.mark.parametrize("name", ["xnnpack", "portable"])
def test_methods_of_payloads(programs, name):
    """A payload has the branches and bounds of its partition, and no state: that is the program's."""
    (branches,) = programs["branches"].payload(name).methods
    assert branches.instructions.jumps > 0
    (sizes,) = programs["sizes"].payload(name).methods
    assert [(spec.shape, spec.dynamism) for spec in sizes.inputs] == [((8, 8), "bound")]
    assert not any(constant.mutable for constant in programs["counter"].payload(name).constants)


def test_same_bytes(programs):
    """Lowering is deterministic."""
    assert programs["branches"].model.lower().content == programs["branches"].content


def test_python_host(programs, tmp_path):
    """The Python host runs a program that is one delegate, and refuses one that is delegated in parts."""
    path = tmp_path / "program.pte"
    program = programs["convolution"]
    path.write_bytes(program.content)
    loaded = pteforge.runtime.load(path)
    assert loaded.payload == "xnnpack"
    for (method, inputs), (expected,) in zip(program.calls, program.expected, strict=True):
        torch.testing.assert_close(loaded.run(method, inputs), [expected], rtol=1e-5, atol=1e-5)
    for name in ("outside", "methods", "counter"):
        path.write_bytes(programs[name].content)
        with pytest.raises(InputError, match=r"delegates parts .*NfatBackend, .*own container"):
            pteforge.runtime.load(path)

"""What NfatBackend makes from a partition, and what it refuses."""

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from executorch.exir import to_edge
from executorch.exir.backend.backend_api import to_backend
from executorch.exir.backend.compile_spec_schema import CompileSpec
from pteforge.artifacts.digest import parse_digest
from pteforge.errors import InputError, PteforgeError, TargetError
from pteforge.formats.pte.reader import read_pte
from pteforge.native import NativePartitioner, NfatBackend, Specialization


@pytest.fixture
def acme(zoo, install_target) -> None:
    """Installs the targets of zoo/native_acme.py."""
    del zoo
    install_target({name: f"native_acme:{name.capitalize()}" for name in ("acme", "unnamed", "absent")})


@pytest.fixture
def lower(acme, networks, model) -> Callable[..., Any]:
    """Lowers two sums for specializations."""
    del acme

    def lower(*specializations: Any) -> Any:
        methods = {"forward": (networks.Function(lambda x: (x + x).cos() + x), (torch.ones(2, 4),))}
        return model(methods, specializations=specializations).lower()

    return lower


@pytest.mark.slow
def test_constants_of_one_name(lower):
    """Two payloads with different constants of one key each keep their own; the file's keys are digests."""
    first = Specialization(target="acme", name="first", options={"fill": 1})
    second = Specialization(target="acme", name="second", options={"fill": 2})
    program = lower(first, second)
    (container,) = program.containers
    assert [payload.name for payload in container.payloads] == ["first", "second", "portable"]
    for name, fill in (("first", 1), ("second", 2)):
        content = b"".join(container.verified(container.payload(name)))
        (named,) = program.payload(name).named_data
        segment = program.payload(name).segments[named.segment]
        assert named.key == "weight"
        assert content[segment.offset : segment.offset + segment.size] == bytes([fill]) * 512
    outer = [named.key for named in read_pte(program.content).named_data]
    assert outer == [parse_digest(key) for key in outer]


REFUSED = [
    ("acme", {"clash": True}, r"specialization acme .* cannot be made: .* key weight with different"),
    ("acme", {"program": "outputs"}, "it has 2 outputs instead of 1"),
    ("acme", {"program": "inputs"}, "it has 2 inputs instead of 1"),
    ("acme", {"program": "shape"}, r"output 0 is float32 \[4, 4\] instead of float32 \[2, 4\]"),
    ("acme", {"program": "dtype"}, r"not fit the partition of method 'forward'.*output 0 is float64 \[2, 4\] instead"),
    ("acme", {"edge_passes": ["fails"]}, r"'FailingPass' pass .*: too cold for passes"),
    ("acme", {"refuses": "sums are hard"}, r"acme .* cannot be made: sums are hard; give it `required=False` "),
    ("unnamed", {}, r"needs the backends \['AcmeNativeTest'\], which its target does not name"),
]


@pytest.mark.parametrize(("target", "options", "problem"), REFUSED)
def test_refused_payloads(lower, target, options, problem):
    """Clashing constants, another signature, a failing pass, a refusal and an unnamed backend are errors by reason."""
    with pytest.raises(PteforgeError, match=problem):
        lower(Specialization(target=target, options=options))


def test_not_required(lower, caplog):
    """A specialization that is not required is left out, with a warning, if it fails or is not available."""
    with caplog.at_level(logging.WARNING, "pteforge.native"):
        program = lower(
            Specialization(target="acme", required=False, options={"program": "dtype"}),
            Specialization(target="absent", required=False),
        )
    assert [payload.name for payload in program.containers[0].payloads] == ["portable"]
    logged = " ".join(record.getMessage() for record in caplog.records if record.name.startswith("pteforge.native"))
    assert "specialization acme of a partition of method forward is left out: payload 'acme' does not fit" in logged
    assert "specialization absent is left out: not available here: pip install acme-compiler" in logged


def test_passes_of_a_target(lower):
    """A target's own passes run on its payload only."""
    program = lower(Specialization(target="acme", options={"edge_passes": ["sine"]}))
    (own,), (fallback,) = (program.payload(name).methods for name in ("acme", "portable"))
    assert own.operators == ("aten::sin.out",)
    assert "aten::cos.out" in fallback.operators
    assert "aten::sin.out" not in fallback.operators


def test_no_kernel(networks, model, caplog):
    """Lowering warns of operators in the fallback that ExecuTorch has no kernel for."""
    with caplog.at_level(logging.WARNING, "pteforge.native"):
        model(
            {"forward": (networks.Function(lambda x: x.sort().values), (torch.ones(2, 4),))}, specializations=()
        ).lower()
    (record,) = [each for each in caplog.records if each.name.startswith("pteforge.native")]
    assert "the fallback of a partition of method forward calls aten::sort.values, for which" in record.getMessage()


@pytest.mark.slow
def test_nothing_taken(networks, model):
    """A container leaves out a specialization whose target delegates nothing."""
    program = model({"forward": (networks.Function(lambda x: x > 0), (torch.ones(2, 4),))}).lower()
    assert [payload.name for payload in program.containers[0].payloads] == ["portable"]


def test_state_inside(zoo):
    """A partition that changes a buffer is refused, even if another partitioner tagged it."""
    program = to_edge(torch.export.export(zoo.counter(), (torch.ones(3, 4),))).exported_program()
    specs = NativePartitioner().delegation_spec.compile_specs
    with pytest.raises(PteforgeError, match=r"changes total: .*stay outside"):
        to_backend(NfatBackend.__name__, program, specs)


@pytest.mark.parametrize(
    ("specs", "error", "problem"),
    [
        ([None, ("speed", "1")], InputError, r"unknown compile specs \['speed'\]; .* only 'pteforge.native'"),
        ([], InputError, r"0 compile specs 'pteforge.native'; there must be one"),
        ([None, None], InputError, "2 compile specs"),
        (["xnnpack"], InputError, r"compile spec 'pteforge.native': Invalid JSON"),
        (['{"specializations":[{}]}'], InputError, r"specializations.0.target: Field required"),
        (['{"specializations":[{"target":"xnpack"}]}'], TargetError, "unknown target 'xnpack'; did you mean 'xnnpack'"),
    ],
)
def test_compile_specs(specs, error, problem):
    """Compile specs other than NativePartitioner's, which None stands for, are refused before anything is lowered."""
    program = torch.export.export(torch.nn.ReLU(), (torch.ones(1),))
    (good,) = NativePartitioner().delegation_spec.compile_specs
    pairs = [spec if isinstance(spec, tuple) else ("pteforge.native", spec) for spec in specs]
    given = [good if value is None else CompileSpec(key, value.encode()) for key, value in pairs]
    with pytest.raises(error, match=problem):
        NfatBackend.preprocess(program, given)

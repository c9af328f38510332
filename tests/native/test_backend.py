"""What NfatBackend makes of a partition, and what it refuses."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from pteforge.artifacts.digest import parse_digest
from pteforge.artifacts.pte.reader import read_pte
from pteforge.errors import InputError, PteforgeError, TargetError


@pytest.fixture
def acme(zoo, install_target) -> None:
    """Installs the targets of zoo/native_acme.py."""
    del zoo
    install_target(
        {name: f"native_acme:{name.capitalize()}" for name in ("acme", "unnamed", "absent", "passing", "failing")}
    )


@pytest.fixture
def lower(acme, zoo, model) -> Callable[..., Any]:
    """Lowers two sums for specializations."""
    del acme
    import torch

    def lower(*specializations: Any) -> Any:
        methods = {"forward": (zoo.Sums(), (torch.ones(2, 4),), None)}
        return model(methods, specializations=specializations).lower()

    return lower


def special(target: str, **fields: Any) -> Any:
    """A specialization with options."""
    from pteforge.native import Specialization

    return Specialization(target=target, **fields)


@pytest.mark.slow
def test_constants_of_one_name(lower):
    """Two payloads whose constants have one key and other bytes keep each its own; the file has digests for keys."""
    first = special("acme", name="first", options={"fill": 1})
    second = special("acme", name="second", options={"fill": 2})
    program = lower(first, second)
    (container,) = program.containers
    assert [payload.name for payload in container.payloads] == ["first", "second", "portable"]
    for name, fill in (("first", 1), ("second", 2)):
        content = container.rebuild(container.payload(name))
        (named,) = program.payload(name).named_data
        segment = program.payload(name).segments[named.segment]
        assert named.key == "weight"
        assert content[segment.offset : segment.offset + segment.size] == bytes([fill]) * 512
    outer = [named.key for named in read_pte(program.content).named_data]
    assert outer == [parse_digest(key) for key in outer]


def test_clash_inside_a_payload(lower):
    """One payload that brings different bytes under one key is refused, naming the specialization and the key."""
    with pytest.raises(PteforgeError, match=r"specialization acme .* cannot be made: .* key weight with different"):
        lower(special("acme", options={"clash": True}))


@pytest.mark.parametrize(
    ("program", "problem"),
    [
        ("outputs", "it has 2 outputs instead of 1"),
        ("inputs", "it has 2 inputs instead of 1"),
        ("shape", r"output 0 is float32 \[4, 4\] instead of float32 \[2, 4\]"),
        ("dtype", r"output 0 is float64 \[2, 4\] instead of float32 \[2, 4\]"),
    ],
)
def test_other_signature(lower, program, problem):
    """A payload that takes or gives something else than its partition is refused, saying what differs."""
    with pytest.raises(
        PteforgeError, match=f"payload 'acme' does not fit the partition of method 'forward'.*{problem}"
    ):
        lower(special("acme", options={"program": program}))


def test_backend_that_the_target_does_not_name(lower):
    """A payload that needs another backend than its target says is refused."""
    with pytest.raises(PteforgeError, match=r"needs the backends \['AcmeNativeTest'\], which its target does not name"):
        lower("unnamed")


def test_not_required(lower, caplog):
    """What fails or is not available, and need not be there, is left out, which is logged."""
    with caplog.at_level(logging.WARNING, "pteforge.native"):
        program = lower(
            special("acme", required=False, options={"program": "dtype"}), special("absent", required=False)
        )
    assert [payload.name for payload in program.containers[0].payloads] == ["portable"]
    logged = " ".join(record.getMessage() for record in caplog.records if record.name.startswith("pteforge.native"))
    assert "specialization acme of a partition of method forward is left out: payload 'acme' does not fit" in logged
    assert "specialization absent is left out: not available here: pip install acme-compiler" in logged


def test_passes_of_a_target(lower):
    """A target's own passes run on its payload, and on no other one."""
    program = lower("passing")
    (own,), (fallback,) = (program.payload(name).methods for name in ("passing", "portable"))
    assert own.operators == ("aten::sin.out",)
    assert "aten::cos.out" in fallback.operators
    assert "aten::sin.out" not in fallback.operators


def test_what_a_target_refuses(lower):
    """What a target says that it cannot take is refused in its words, and with the way to go on without it."""
    said = r"acme .* cannot be made: sums are too hard; give it `required=False` to leave it out where this happens"
    with pytest.raises(PteforgeError, match=said):
        lower(special("acme", options={"refuses": "sums are too hard"}))


def test_why_a_pass_failed(lower):
    """The message has what was wrong, and not only which of exir's passes it was."""
    with pytest.raises(PteforgeError, match=r"'FailingPass' pass .*: too cold for passes"):
        lower("failing")


def test_no_kernel(zoo, model, caplog):
    """An operator of the fallback that ExecuTorch has no kernel for is told when the file is made, by name."""
    import torch

    methods = {"forward": (zoo.Ordered(), (torch.ones(2, 4),), None)}
    with caplog.at_level(logging.WARNING, "pteforge.native"):
        model(methods, specializations=()).lower()
    (record,) = [each for each in caplog.records if each.name.startswith("pteforge.native")]
    assert "the fallback of a partition of method forward calls aten::sort.values, for which" in record.getMessage()


@pytest.mark.slow
def test_nothing_taken(zoo, model):
    """A specialization whose target takes nothing of a partition is not in its container."""
    import torch

    methods = {"forward": (zoo.Comparison(), (torch.ones(2, 4),), None)}
    program = model(methods).lower()
    assert [payload.name for payload in program.containers[0].payloads] == ["portable"]


def test_state_inside(zoo):
    """A partition that changes a buffer is refused, whoever tagged it."""
    import torch
    from executorch.exir import to_edge
    from executorch.exir.backend.backend_api import to_backend
    from pteforge.native import NativePartitioner, NfatBackend

    program = to_edge(torch.export.export(zoo.Counter(), (torch.ones(3, 4),))).exported_program()
    specs = NativePartitioner().delegation_spec.compile_specs
    with pytest.raises(PteforgeError, match="changes total: state has to stay outside"):
        to_backend(NfatBackend.__name__, program, specs)


def test_compile_specs():
    """Only what NativePartitioner says is understood; everything else is refused before anything is lowered."""
    import torch
    from executorch.exir.backend.compile_spec_schema import CompileSpec
    from pteforge.native import NativePartitioner, NfatBackend

    program = torch.export.export(torch.nn.ReLU(), (torch.ones(1),))
    (good,) = NativePartitioner().delegation_spec.compile_specs

    def preprocess(*specs: CompileSpec) -> None:
        NfatBackend.preprocess(program, list(specs))

    with pytest.raises(
        InputError, match=r"unknown compile specs \['speed'\]; NfatBackend knows 'pteforge.native' only"
    ):
        preprocess(good, CompileSpec("speed", b"1"))
    with pytest.raises(InputError, match=r"0 compile specs 'pteforge.native'; there must be one"):
        preprocess()
    with pytest.raises(InputError, match="2 compile specs"):
        preprocess(good, good)
    with pytest.raises(InputError, match=r"compile spec 'pteforge.native': Invalid JSON"):
        preprocess(CompileSpec("pteforge.native", b"xnnpack"))
    with pytest.raises(InputError, match=r"specializations.0.target: Field required"):
        preprocess(CompileSpec("pteforge.native", b'{"specializations":[{}]}'))
    with pytest.raises(
        TargetError, match=r"unknown target 'xnpack'; did you mean 'xnnpack'\? installed targets: .*vulkan"
    ):
        preprocess(CompileSpec("pteforge.native", b'{"specializations":[{"target":"xnpack"}]}'))

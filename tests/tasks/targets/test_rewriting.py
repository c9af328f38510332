"""Targets with operators of their own, Cortex-M and Cadence's DSPs: files, and what the kernels in Python compute."""

import importlib
import json
import re
import subprocess

import pytest
import torch
from pteforge.errors import TargetError, VerificationFailed
from pteforge.formats.contract import Contract, read_needs
from pteforge.formats.pte.reader import read_pte
from pteforge.tasks.results.delivered import Delivered
from pteforge.tasks.targets import find_target
from pteforge.tasks.verify.running import EdgePrograms
from pteforge.tests.lowering import recipe

INT8 = {"quantize": {"quantizer": "cortex_m"}, "verify": {"min_sqnr_db": 20.0}}
CORTEX_M = recipe("cortex_m", **INT8)
CADENCE = recipe("cadence")
COPIES = {"aten::view_copy", "aten::cat", "dim_order_ops::_clone_dim_order", "dim_order_ops::_to_dim_order_copy"}


def for_cpu(cpu: str) -> dict:
    return recipe({"target": "cortex_m", "options": {"cpu": cpu}}, **INT8)


def rung(lowered, name: str) -> float:
    """The SQNR of a program against eager, in dB."""
    (found,) = [each for each in lowered.findings["numerics"] if each["name"] == name]
    return found["figures"]["sqnr_db"]


@pytest.mark.parametrize("cpu", ["m4", "m33", "m55"])
@pytest.mark.parametrize("network", ["conv_net", "skips", "separable"])
def test_microcontrollers(lower, network, cpu):
    """Everything is computed in integers, as the quantized program does to 1 dB; the file names what proved it."""
    lowered = lower(f"builders:{network}", for_cpu(cpu))
    (method,) = read_pte(lowered.file).methods
    own = {name for name in method.operators if name.startswith("cortex_m::")}
    assert {name.rpartition(".")[0] for name in {*method.operators} - own} <= COPIES
    assert lowered.figures["by"] == "reference kernels"
    assert Delivered.of_provenance(lowered.provenance).proven == {"": ("reference kernels",)}
    assert rung(lowered, "edge") == pytest.approx(rung(lowered, "quantized"), abs=1.0)
    (work,) = lowered.findings["delegation"]
    assert work["share"] > 0.95


def test_programs_are_those_of_upstream(lower):
    """The same bytes as by ExecuTorch's own functions, but for constants that nothing uses any more."""
    from executorch.backends.cortex_m.edge_compile_config import cortex_m_edge_compile_config
    from executorch.exir import to_edge
    from pteforge.tasks.backend.exir import rewritten
    from pteforge.tasks.upstream.cortex_m import make_quantizer
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    lowered = lower("builders:perceptron", CORTEX_M)
    torch.manual_seed(0)
    module, inputs = importlib.import_module("builders").perceptron()
    prepared = prepare_pt2e(torch.export.export(module.eval(), inputs).module(check_guards=False), make_quantizer())
    prepared(*inputs)
    program = torch.export.export(convert_pt2e(prepared), inputs)
    manager = to_edge(program, compile_config=cortex_m_edge_compile_config())
    manager._edge_programs["forward"] = rewritten(manager.exported_program(), find_target("cortex_m"))
    assert lowered.file == bytes(manager.to_executorch().buffer)


def test_weights_are_there_once(lower):
    """A convolution's weights are laid out anew, and their first layout is not in the file."""
    lowered = lower("builders:wide_conv", CORTEX_M)
    assert sum(tensor.extent.size for tensor in read_pte(lowered.file).constants) < 2 * 16 * 8 * 9


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"cpu": "m4", "isa": "mve"}, "a Cortex-M4 has no 'mve'; it has scalar and dsp"),
        ({"cpu": "m0", "isa": "dsp"}, "a Cortex-M0 has no 'dsp'; it has scalar"),
        ({"cpu": "m99"}, "'m0', 'm0plus', 'm3'"),
    ],
)
def test_processors(options, problem):
    """A processor without the instructions, or that there is none of, is refused with those that there are."""
    with pytest.raises(TargetError, match=re.escape(problem)):
        find_target("cortex_m", options)


@pytest.mark.parametrize(
    ("network", "recipe", "problem"),
    [
        ("conv_net", recipe("cortex_m"), r"nothing in it is quantized; write `quantize: \{quantizer: cortex_m\}`"),
        ("half", recipe("cortex_m"), r"the model computes in float16, .* call `\.float\(\)`"),
        ("volumes", CORTEX_M, "the passes of target 'cortex_m' fail: .*rank.*leave the layer .*exclude"),
    ],
)
def test_what_it_cannot_take(lower, network, recipe, problem):
    """A sentence says what to do."""
    with pytest.raises(TargetError, match=problem):
        lower(f"builders:{network}", recipe)


def test_layers_in_floating_point(lower):
    """A convolution that is left out of quantization runs on the portable kernels, and the record says that it does."""
    exact = recipe("cortex_m", **INT8 | {"quantize": {"quantizer": "cortex_m", "exclude": ["conv"]}})
    lowered = lower("builders:conv_net", exact)
    assert lowered.figures["by"] == "reference kernels"
    (work,) = lowered.findings["delegation"]
    (left,) = [calls for calls in work["outside"] if "convolution" in calls["operator"]]
    assert left["why"] == "no operator of cortex_m computes it"


def test_fat_files(lower):
    """Of a fat file, the portable payload is run here, and the one for Cortex-M is not: nothing says that it was."""
    lowered = lower("builders:conv_net", recipe("cortex_m", "portable", **INT8))
    assert Delivered.of_provenance(lowered.provenance).proven == {"portable": ("host",), "cortex_m": ()}
    assert "needs kernels of cortex_m" in lowered.figures["not_run"]["cortex_m"]


def test_chains():
    """It leaves nothing to others."""
    with pytest.raises(TargetError, match="'cortex_m' rewrites whole programs"):
        find_target("xnnpack+cortex_m")


def test_contract(lower, tmp_path):
    """A device's contract names the kernels that firmware has to link."""
    path = tmp_path / "model.pte"
    path.write_bytes(lower("builders:conv_net", CORTEX_M).file)
    contract = Contract.of(read_needs(path, ())).described()
    assert "cortex_m::quantized_conv2d_nhwc.out" in json.dumps(contract)


def test_header(lower, tmp_path):
    """The bytes of the file are in a C header, with their number and the memory to plan, for C and for C++."""
    lowered = lower("builders:conv_net", CORTEX_M | {"output": {"form": "header"}})
    (name,) = lowered.provenance["assets"]
    assert name == "tested.h"
    from pteforge.tasks.programs.payload import load_assets

    (tmp_path / name).write_bytes(load_assets(lowered.outputs["serialize"]["assets"], lowered.store)[name])
    (method,) = read_pte(lowered.file).methods
    program = (
        '#include <stdio.h>\n#include "tested.h"\nint main(void) {\n'
        f"if ((size_t)tested_pte % 16 || tested_pte_forward_memory != {sum(method.planned_memory)}) return 1;\n"
        "return fwrite(tested_pte, 1, tested_pte_size, stdout) != tested_pte_size; }\n"
    )
    for compiler, source in (("gcc", "main.c"), ("g++", "main.cpp")):
        (tmp_path / source).write_text(program)
        subprocess.run([compiler, source, "-o", compiler], cwd=tmp_path, check=True)
        done = subprocess.run([tmp_path / compiler], capture_output=True, check=True)
        assert done.stdout == lowered.file


def test_state_is_kept_between_calls(lower):
    """A method that reference kernels run keeps its state from call to call, and leaves its inputs as they are."""
    lowered = lower("builders:counter", CADENCE)
    ref = lowered.outputs["edge/forward"]["program"]
    method = EdgePrograms({"forward": ref}, lowered.store).load_method("forward")
    given = torch.ones(2, 4)
    (first,), (second,) = method.execute([given]), method.execute([given])
    assert not torch.equal(first, second)
    assert torch.equal(given, torch.ones(2, 4))


def test_scores(lower):
    """An evaluator scores the program on reference kernels."""
    gate = {"accuracy": {"evaluator": "evaluators:of_sixteen", "max_drop": 0.5}}
    lowered = lower("builders:perceptron", CORTEX_M | gate)
    accuracy = lowered.findings["accuracy"]
    assert accuracy["file"]["scores"][0]["score"] == pytest.approx(accuracy["eager"], abs=0.2)


def test_too_large(lower):
    """Activations and scratch buffers count in the memory that a device has."""
    with pytest.raises(VerificationFailed, match=r"takes [\d,]+ bytes, and `limits\.device\.planned` allows 100"):
        lower("builders:conv_net", CORTEX_M, limits={"device": {"planned": 100}})


def test_digital_signal_processors(lower):
    """In floating point and in int8, what the references compute is what eager computes."""
    lowered = lower("builders:conv_net", CADENCE)
    assert any(name.startswith("cadence::") for name in operators_of(lowered))
    assert lowered.figures["overall"]["sqnr_db"] > 100
    quantized = lower(
        "builders:perceptron", recipe("cadence", quantize={"quantizer": "cadence"}, verify={"min_sqnr_db": 20.0})
    )
    assert any(name.startswith("cadence::quantized_") for name in operators_of(quantized))
    assert rung(quantized, "edge") == pytest.approx(rung(quantized, "quantized"), abs=1.0)


def operators_of(lowered) -> set[str]:
    return {name for method in read_pte(lowered.file).methods for name in method.operators}

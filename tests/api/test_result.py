"""What an exported model can be asked: each ability of executorch's ExportSession, and what comes beside."""

from __future__ import annotations

import json

import pteforge.runtime
import pytest
from pteforge.artifacts.digest import digest_bytes
from pteforge.artifacts.store import open_store
from pteforge.errors import InputError, StoreUnusable


def test_the_file(exported, example, tmp_path):
    """The buffer, what `save` writes and the digest are those of one file, and it runs."""
    path = exported.save(tmp_path / "folder" / "net.pte")
    assert path.read_bytes() == exported.pte
    assert digest_bytes(exported.pte) == exported.sha256 == exported.provenance["file"]["sha256"]
    (output,) = pteforge.runtime.load(path).run("forward", example)
    assert output.equal(exported.run_method()[0])


def test_a_place_that_cannot_be_written(exported, tmp_path):
    """`save` says where it could not write and why."""
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnusable, match=r"cannot write .*net.pte: "):
        exported.save(tmp_path / "file" / "net.pte")


@pytest.mark.parametrize("stage", ["export", "edge", "partition"])
def test_programs_by_stage(exported, stage):
    """Every stage's program can be had, and changing it does not change what is stored."""
    program = exported.artifact(stage)
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    assert calls
    program.graph.erase_node(next(node for node in program.graph.nodes if node.op == "output"))
    assert [node.op for node in exported.artifact(stage).graph.nodes].count("output") == 1


def test_other_artifacts_by_stage(exported):
    """Delegates, payloads, figures, examples and names come as what they are."""
    (delegate,) = exported.artifact("preprocess").methods["forward"]
    assert delegate.backend_id == "XnnpackBackend"
    assert exported.artifact("compile") == exported.pte
    assert exported.artifact("export", role="methods") == ["forward"]
    assert len(exported.artifact("export", role="examples")["inputs"]) == 3
    assert exported.artifact("verify")["overall"]["cases"] == 3


@pytest.mark.parametrize(
    ("request_", "problem"),
    [
        ({"stage": "lower"}, "there is no stage 'lower'; stages: export, "),
        ({"stage": "quantize"}, "there is no stage 'quantize' in this run; it has export, edge, "),
        ({"stage": "edge", "method": "decode"}, "the model has no method 'decode'; it has 'forward'"),
        (
            {"stage": "edge", "specialization": "vulkan"},
            "stage 'edge': there is no such one; there are method='forward'",
        ),
        ({"stage": "export", "role": "weights"}, "stage 'export' gives .*; name one of them as `role`"),
    ],
)
def test_what_is_not_there(exported, request_, problem):
    """Asking for what a run does not have names what it has."""
    with pytest.raises(InputError, match=problem):
        exported.artifact(**request_)


def test_managers(exported):
    """Exir's own managers can be had: of all methods with delegates linked in, and what is emitted from it."""
    manager = exported.edge_manager()
    assert manager.methods == {"forward"}
    assert any("lowered_module" in node.name for node in manager.exported_program().graph.nodes)
    emitted = exported.executorch_manager()
    assert emitted.buffer == exported.pte
    assert emitted.executorch_program.execution_plan[0].name == "forward"


def test_exported_program(exported, example):
    """The ATen program computes what the file computes."""
    import torch

    program = exported.exported_program()
    assert torch.allclose(program.module()(*example), exported.run_method()[0], atol=1e-5)
    with pytest.raises(InputError, match="no method 'encode'"):
        exported.exported_program("encode")


def test_delegation(exported):
    """The report counts what is inside and outside of delegates, by operator, and prints as a table."""
    (report,) = exported.delegation()
    counts = {each.operator: (each.delegated, each.not_delegated) for each in report.operators}
    assert counts["aten_linear_default"] == (2, 0)
    assert report.partitions == 1
    assert report.delegated == sum(inside for inside, _ in counts.values())
    assert "aten_linear_default" in str(report)
    assert str(report).splitlines()[-1].split() == ["total", str(report.delegated), str(report.not_delegated)]


def test_examples_come_back(exported, example):
    """Example inputs are those that were given."""
    ((given,),) = exported.example_inputs()
    assert given is example[0]


def test_why(exported, net, example, store):
    """Each stage has a line; a changed option is named by the field of the key that it is."""
    assert exported.why().splitlines()[0].split(maxsplit=2)[:2] == ["ran", "export"]
    again = pteforge.export(net, (*example,), recipe="xnnpack-fp32", name="net", store=store)
    assert {stage.status for stage in again.stages if stage.stage != "export"} == {"cached"}
    assert (
        again.why().splitlines()[0].endswith("nothing changed; what is handed over in memory is taken anew each time")
    )
    other = pteforge.export(net, (example[0] * 2,), recipe="xnnpack-fp32", name="net", store=store)
    lines = dict(line.split(maxsplit=2)[1:] for line in other.why().splitlines() if line.startswith("ran"))
    assert lines["export"] == "changed: params.source.live.examples"
    assert "inputs.examples/forward" in lines["verify/xnnpack-fp32"]
    assert "edge/forward/xnnpack-fp32" not in lines


def test_runs_are_on_record(exported, store):
    """The store knows the run, so that `pteforge why` tells of it."""
    with open_store(str(store)) as opened:
        run = opened.runs.latest(exported.model)
    assert run.zoo == "pteforge.export"
    assert [stage.stage for stage in run.models["net"]][:2] == ["export", "edge"]


def test_provenance_is_json(exported):
    """The provenance is what the command line writes: JSON with digests and keys of every stage."""
    provenance = json.loads(json.dumps(exported.provenance))
    assert provenance["model"] == "net"
    assert set(provenance["stage_keys"]) >= {"export", "edge/forward", "compile"}
    assert exported.left_out == {}


def test_repr_is_short(exported):
    """What a notebook shows is a line."""
    assert repr(exported) == "Exported(model='net', recipe='xnnpack-fp32', methods=('forward',))"


def test_cut_short(net, example, exported, store):
    """A run that goes no further than a stage has what leads there, all of it cached, and no file."""
    result = pteforge.export(net, example, recipe="xnnpack-fp32", name="net", store=store, until="partition")
    assert [(stage.stage, stage.status) for stage in result.stages[1:]] == [("edge", "cached"), ("partition", "cached")]
    assert result.delegation() == exported.delegation()
    with pytest.raises(InputError, match="there is no stage 'report' in this run; it has export, edge, partition"):
        _ = result.pte
    for misspelled in ("Edge", "to_edge", "egde"):
        with pytest.raises(InputError, match=f"there is no stage '{misspelled}'; did you mean 'edge'?"):
            pteforge.export(net, example, recipe="xnnpack-fp32", store=store, until=misspelled)
    with pytest.raises(InputError, match="there is no stage 'lower'; stages: export, "):
        pteforge.export(net, example, recipe="xnnpack-fp32", store=store, until="lower")


def test_inputs_that_do_not_fit(exported, example):
    """What a method does not take is refused with what it takes; a tensor alone is no tuple of arguments."""
    with pytest.raises(InputError, match=r"it takes 1 input \(float32 \[2, 4\]\), and was given 2"):
        exported.run_method("forward", (*example, *example))
    with pytest.raises(InputError, match=r"input 0 is of int64, the method takes float32 \[2, 4\]"):
        exported.run_method("forward", (example[0].long(),))
    with pytest.raises(InputError, match=r"inputs are a Tensor; give a tuple of positional arguments"):
        exported.run_method("forward", example[0])
    with pytest.raises(InputError, match="no method 'encode'; it has 'forward'"):
        exported.run_method("encode")


def test_a_program_with_keyword_inputs(store):
    """A program that was exported with keyword arguments runs on its own example, all of it."""
    import torch

    class Scaled(torch.nn.Module):
        """Takes one argument by name only."""

        def forward(self, x, *, scale):
            """Takes and gives [2]."""
            return x * scale

    program = torch.export.export(Scaled(), (torch.tensor([1.0, 2.0]),), {"scale": torch.tensor([3.0])})
    result = pteforge.export(program, recipe="portable-fp32", store=store)
    assert result.run_method()[0].tolist() == [3, 6]

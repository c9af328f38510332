"""The result of `pteforge.export` has each ability of executorch's ExportSession, and more."""

from __future__ import annotations

import json
import pickle
import warnings
from dataclasses import replace

import pteforge
import pteforge.runtime
import pytest
import torch
from pteforge.artifacts.digest import digest_bytes
from pteforge.artifacts.store import open_store
from pteforge.configs.model import MethodDefinition, ModelDefinition
from pteforge.errors import FileWarning, InputError, SourceError, StageFailed, StoreUnusable
from pteforge.tasks.results.tables import format_size


def test_the_file(exported, example, tmp_path):
    """`pte`, `save` and `sha256` agree, and the file runs. The error of `save` has the path and the reason."""
    path = exported.save(tmp_path / "folder" / "net.pte")
    assert path.read_bytes() == exported.pte
    assert digest_bytes(exported.pte) == exported.sha256 == exported.provenance["file"]["sha256"]
    (output,) = pteforge.runtime.load(path).run("forward", example)
    assert output.equal(exported.run_method()[0])
    with pytest.raises(StoreUnusable, match=r"cannot write .*else.pte: "):
        exported.save(path / "else.pte")


def test_assets(net, example, store, tmp_path):
    """Files that come with a model are next to the saved one; their names cannot be those of anything else."""
    method = MethodDefinition(net, [example])
    words = {"labels.txt": b"cat"}
    made = pteforge.export(ModelDefinition({"forward": method}, assets=words), recipe="portable-fp32", store=store)
    assert made.assets == made.artifact("export", role="assets") == words
    made.save(tmp_path / "net.pte")
    assert (tmp_path / "labels.txt").read_bytes() == b"cat"
    for assets, problem in (
        ({"../labels.txt": b""}, "cannot be the name of an asset"),
        ({"net.pte": b""}, "no ending of files that pteforge writes"),
        ({"labels.txt": "cat"}, "it must be bytes"),
    ):
        with pytest.raises(SourceError, match=problem):
            pteforge.export(ModelDefinition({"forward": method}, assets=assets), recipe="portable-fp32", store=store)


def test_notebooks_show_a_table(exported):
    """The table has the file's size, figures and digest; names are escaped."""
    shown = replace(exported, model="<b>net")._repr_html_()
    assert shown.startswith("<table>")
    assert "&lt;b&gt;net/xnnpack-fp32" in shown
    assert format_size(len(exported.pte)) in shown
    for part in ("XnnpackBackend", f"{exported.figures.overall.sqnr_db:.1f} dB", exported.sha256):
        assert part in shown


def test_what_is_printed(exported):
    """`print` shows what a notebook does, as text; a file without anything to know has no warnings."""
    said = str(exported)
    assert said.startswith("net/xnnpack-fp32\n")
    for part in (exported.sha256, f"{exported.figures.overall.sqnr_db:.1f} dB"):
        assert part in said
    assert exported.warnings == ()


def test_warnings(net, example, store):
    """Without calibration samples, Python warns at the caller's line of what the command line prints."""
    with pytest.warns(FileWarning, match=r"^told/xnnpack-int8-static: .*random inputs .*`calibration`") as caught:
        made = pteforge.export(net, example, recipe="xnnpack-int8-static", name="told", store=store)
    assert [warning.filename for warning in caught] == [__file__] * len(made.warnings)
    assert all(warning in str(made) for warning in made.warnings)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bounded = {"extends": "xnnpack-int8-static", "verify": {"drawn_inputs": 0}}
        pteforge.export(net, example, recipe=bounded, calibration=[example], name="told", store=store)


def test_pickled(exported):
    """A result can be pickled, without the model: file, figures and programs are those of the store."""
    again = pickle.loads(pickle.dumps(exported))  # noqa: S301 - of its own
    assert (again.pte, again.figures, again.stages) == (exported.pte, exported.figures, exported.stages)
    assert again.run_method()[0].equal(exported.run_method()[0])
    assert str(again) == str(exported)


class Named(torch.nn.Module):
    """Returns a dict."""

    def forward(self, x):
        return {"sum": x + 1, "all": (x * 2, x - 1)}


def test_structure_of_outputs(exported, example, store):
    """`run` returns what the model does, also for NumPy arrays; a recipe in a mapping is named by what it extends."""
    recipe = {"extends": "portable-fp32", "verify": {"min_sqnr_db": 70}}
    made = pteforge.export(Named(), example, recipe=recipe, store=store)
    assert made.recipe == "portable-fp32-own"
    found = made.run(*example)
    torch.testing.assert_close(found, Named()(*example))
    torch.testing.assert_close(made.run(example[0].numpy()), found)
    assert exported.run().equal(exported.run_method()[0])
    assert exported.run_method("forward", (example[0].numpy(),))[0].equal(exported.run())


@pytest.mark.parametrize("stage", ["export", "edge", "partition"])
def test_programs_by_stage(exported, stage):
    """Each stage's program is available; changing it does not change the stored one."""
    program = exported.artifact(stage)
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    assert calls
    program.graph.erase_node(next(node for node in program.graph.nodes if node.op == "output"))
    assert [node.op for node in exported.artifact(stage).graph.nodes].count("output") == 1


def test_other_artifacts_by_stage(exported):
    """Artifacts have their own types: delegates, payloads, figures, examples and names."""
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
        ({"stage": "quantize"}, "there is no stage 'quantize' in this run; it has export, fold_batch_norms, edge, "),
        ({"stage": "edge", "method": "decode"}, "the model has no method 'decode'; it has 'forward'"),
        (
            {"stage": "edge", "specialization": "vulkan"},
            "stage 'edge': there is no such call; there are method='forward'",
        ),
        ({"stage": "export", "role": "weights"}, "stage 'export' returns .*; name one of them as `role`"),
    ],
)
def test_missing_artifacts(exported, request_, problem):
    """The error for a missing artifact names those that the run has."""
    with pytest.raises(InputError, match=problem):
        exported.artifact(**request_)


def test_managers(exported):
    """Exir's own managers are available, with delegates linked in, and with the emitted program."""
    manager = exported.edge_manager()
    assert manager.methods == {"forward"}
    assert any("lowered_module" in node.name for node in manager.exported_program().graph.nodes)
    emitted = exported.executorch_manager()
    assert emitted.buffer == exported.pte
    assert emitted.executorch_program.execution_plan[0].name == "forward"


def test_exported_program(exported, example):
    """The ATen program computes what the file computes."""
    program = exported.exported_program()
    assert torch.allclose(program.module()(*example), exported.run_method()[0], atol=1e-5)
    with pytest.raises(InputError, match="no method 'encode'"):
        exported.exported_program("encode")


def test_delegation(exported):
    """The report counts operators inside and outside of delegates, and prints as a table."""
    (report,) = exported.delegation()
    counts = {row.operator: (row.delegated, row.not_delegated) for row in report.operators}
    assert counts["aten_linear_default"] == (2, 0)
    assert report.partitions == 1
    assert report.delegated == sum(inside for inside, _ in counts.values())
    assert "aten_linear_default" in str(report)
    assert str(report).splitlines()[-1].split() == ["total", str(report.delegated), str(report.not_delegated)]
    assert repr(exported.delegation()) == str(report)
    for shown in (exported.delegation(), report):
        assert '<td style="text-align: right">2</td>' in shown._repr_html_()


def test_bisect(net, example, store):
    """A file that loses quality says where, without tracing the model again; one that fails verification does, too."""
    recipe = {"extends": "xnnpack-int8-static", "verify": {"min_sqnr_db": None}}
    made = pteforge.export(net, example, recipe=recipe, store=store)
    found = made.bisect()
    assert found.loss.rung.name == "quantized"
    assert "aten.linear.default" in repr(found)
    assert "<td style" in found._repr_html_()
    assert made.bisect(drop_db=200.0).loss is None
    with pytest.raises(StageFailed, match="VerificationFailed") as caught:
        pteforge.export(net, example, recipe={**recipe, "verify": {"min_sqnr_db": 150}}, store=store)
    assert any("`error.rejected` is the result" in note for note in caught.value.__notes__)
    rejected = caught.value.rejected
    assert rejected.bisect().loss.reason.startswith("is outside of the recipe's bounds: SQNR ")
    assert rejected.pte == made.pte
    assert "outside of its recipe" in rejected._repr_html_()
    cut = pteforge.export(net, example, recipe=recipe, store=store, until="export")
    assert cut.bisect() == found


def test_examples_come_back(exported, example):
    """Example inputs equal the caller's, in memory of their own."""
    ((given,),) = exported.example_inputs()
    assert given is not example[0]
    assert given.equal(example[0])


def test_why(exported, net, example, store):
    """Each stage has a line; a changed input is named by its field of the key."""
    titles, first = str(exported.why()).splitlines()[:2]
    assert (titles.split(), first.split()[:2]) == (["stage", "status", "s", "why"], ["export", "ran"])
    assert tuple(exported.why()) == exported.stages
    again = pteforge.export(net, (*example,), recipe="xnnpack-fp32", name="net", store=store)
    assert {stage.status for stage in again.stages if stage.stage != "export"} == {"cached"}
    assert "nothing changed; a model in memory is exported each time" in str(again.why()).splitlines()[1]
    other = pteforge.export(net, (example[0] * 2,), recipe="xnnpack-fp32", name="net", store=store)
    lines = {row[0]: row[3] for row in other.why().tables[0].rows if row[1] == "ran"}
    assert lines["export"] == "changed: params.source.live.examples"
    assert "inputs.examples/forward" in lines["verify/xnnpack-fp32"]
    assert "edge/forward/xnnpack-fp32" not in lines


def test_what_is_on_record(exported, store):
    """The provenance is JSON with digests and stage keys; the store has a record of the run."""
    provenance = json.loads(json.dumps(exported.provenance))
    assert provenance["model"] == "net"
    assert set(provenance["stage_keys"]) >= {"export", "edge/forward", "compile"}
    assert exported.left_out == {}
    assert repr(exported) == "Exported(model='net', recipe='xnnpack-fp32', methods=('forward',))"
    with open_store(str(store)) as opened:
        run = next(run for run in opened.runs if exported.model in run.models)
    assert run.zoo == "pteforge.export"
    assert [stage.stage for stage in run.models["net"]][:3] == ["export", "fold_batch_norms", "edge"]


def test_cut_short(net, example, exported, store):
    """A run with `until` has the stages up to that one, all cached, and no file."""
    result = pteforge.export(net, example, recipe="xnnpack-fp32", name="net", store=store, until="partition")
    assert [stage.stage for stage in result.stages] == ["export", "fold_batch_norms", "edge", "partition"]
    assert {stage.status for stage in result.stages[1:]} == {"cached"}
    assert result.delegation() == exported.delegation()
    with pytest.raises(InputError, match=r"stage 'report' .*it has export, fold_batch_norms"):
        _ = result.pte


def test_inputs_that_do_not_fit(exported, example):
    """The error for wrong inputs has what the method takes; a tensor alone is no tuple of arguments."""
    with pytest.raises(InputError, match=r"1 input \(float32 \[2, 4\]\), .*given 2"):
        exported.run_method("forward", (*example, *example))
    with pytest.raises(InputError, match=r"input 0 .*int64, .*float32 \[2, 4\]"):
        exported.run_method("forward", (example[0].long(),))
    with pytest.raises(InputError, match=r"inputs are a Tensor; .*tuple"):
        exported.run_method("forward", example[0])
    with pytest.raises(InputError, match="method 'encode'; it has 'forward'"):
        exported.run_method("encode")


def test_a_program_with_keyword_inputs(nets, store):
    """A program that was exported with keyword arguments runs on its own complete example."""
    program = torch.export.export(
        nets.Keywords(), (torch.tensor([1.0, 2.0]),), {"factor": torch.tensor([3.0]), "shift": torch.tensor([1.0])}
    )
    result = pteforge.export(program, recipe="portable-fp32", store=store)
    assert result.run_method()[0].tolist() == [2, 5]


@pytest.mark.parametrize("traced", [torch.contiguous_format, torch.channels_last])
def test_inputs_in_another_order_in_memory(traced, builders, store, tmp_path):
    """A file computes the same of a tensor, however that lies in memory, here and in `pteforge.runtime`."""
    net, (image,) = builders.conv_net()
    made = pteforge.export(net.eval(), (image.to(memory_format=traced),), recipe="portable-fp32", store=store)
    loaded = pteforge.runtime.load(made.save(tmp_path / "net.pte"))
    transposed = image.mT.contiguous().mT
    for given in (image, image.to(memory_format=torch.channels_last), transposed):
        for (output,) in (made.run_method("forward", (given,)), loaded.run("forward", (given,))):
            torch.testing.assert_close(output, net(image))

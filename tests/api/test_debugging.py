"""Debug mode: stack traces in the file, an ETRecord and the maps of debug handles and delegates beside it."""

from __future__ import annotations

import pteforge
import pytest
from pteforge.configs import Recipe
from pteforge.errors import InputError

pytestmark = pytest.mark.slow

LAYERS = "return self.second(self.dropout(torch.relu(self.norm(self.first(x)))))"


@pytest.fixture(scope="module")
def debugged(exported, net, example, store):
    """The network with XNNPACK, to be debugged, after it was lowered as usual."""
    del exported
    return pteforge.export(net, example, recipe="xnnpack-fp32", debug=True, name="debugged", store=store)


def test_only_the_end_runs_again(debugged):
    """Debug mode shares every stage before `compile` with a usual file."""
    ran = [stage.stage for stage in debugged.stages if stage.status == "ran"]
    assert ran == ["export", "compile", "serialize", "verify", "report"]


def test_in_the_recipe(debugged, net, example, store):
    """`debug: true` in a recipe is the same as the argument, and nothing else than the two options it implies."""
    for written in ({"debug": True}, {"compile": {"emit_stacktrace": True, "generate_etrecord": True}}):
        recipe = Recipe.model_validate({"specializations": [{"target": "xnnpack"}], **written})
        result = pteforge.export(net, example, recipe=recipe, name="debugged", store=store)
        assert "compile" not in [stage.stage for stage in result.stages if stage.status == "ran"]
        assert result.sha256 == debugged.sha256


def test_stack_traces(debugged, exported):
    """The file says which lines of the model are in the delegate; a usual file says nothing of the kind."""
    from executorch.exir._serialize._program import deserialize_pte_binary

    ((frames,),) = (
        chain.stacktrace
        for plan in deserialize_pte_binary(debugged.pte).program.execution_plan
        for chain in plan.chains
    )
    assert (frames.items[0].filename.endswith("live_nets.py"), frames.items[0].context) == (True, LAYERS)
    assert b"live_nets.py" not in exported.pte
    assert bytes(debugged.executorch_manager().buffer) == debugged.pte


def test_etrecord(debugged, tmp_path):
    """ExecuTorch's own reader takes the record: the edge program, and the maps of what was emitted from it."""
    from executorch.devtools.etrecord import parse_etrecord

    record = parse_etrecord(str(debugged.etrecord(tmp_path / "net.etrecord")))
    names = [node.name for node in record.edge_dialect_program.graph.nodes if "_unused_" not in node.name]  # serde adds
    assert names == [node.name for node in debugged.artifact("edge").graph.nodes]
    assert record._delegate_map["forward"]["0"]["name"] == "XnnpackBackend"


@pytest.mark.filterwarnings("ignore:Output Buffer not found:UserWarning")
@pytest.mark.filterwarnings("ignore:Unsupported kwarg encountered:UserWarning")
def test_inspector(debugged, example, tmp_path):
    """With what the runtime has noted of a run, ExecuTorch's Inspector leads from the delegate's call to the model."""
    from executorch.devtools import Inspector
    from executorch.extension.pybindings.portable_lib import _load_for_executorch

    module = _load_for_executorch(str(debugged.save(tmp_path / "net.pte")), enable_etdump=True)
    module.forward(list(example))
    module.write_etdump_result_to_file(str(tmp_path / "net.etdp"))
    record = debugged.etrecord(tmp_path / "net.etrecord")
    inspector = Inspector(etdump_path=str(tmp_path / "net.etdp"), etrecord=str(record))
    (event,) = (each for block in inspector.event_blocks for each in block.events if each.name == "DELEGATE_CALL")
    assert event.delegate_backend_name == "XnnpackBackend"
    assert [trace for trace in event.stack_traces.values() if LAYERS not in trace] == []
    paths = {stack[max(stack)][0] for stack in event.module_hierarchy.values()}
    assert {"first", "norm", "second"} <= paths


def test_maps(debugged):
    """Each delegate call names its backend; its handles lead to operators, modules and lines of the model."""
    delegates = debugged.artifact("compile", role="delegate_map")["forward"]
    assert [each["name"] for each in delegates.values()] == ["XnnpackBackend"]
    (handles,) = debugged.artifact("compile", role="debug_handles")["forward"].values()
    sources = debugged.artifact("compile", role="debug_sources")["forward"]
    told = [source for handle in dict.fromkeys(handles) for source in sources[str(handle)]]
    assert [(source["operator"], source["module"]) for source in told if "linear" in source["operator"]] == [
        ("aten.linear.default", "first"),
        ("aten.linear.default", "second"),
    ]
    (line,) = {source["line"] for source in told}
    assert line.startswith("live_nets.py:")


def test_a_fat_file(net, example, store, tmp_path):
    """Each payload of a fat file has a record of its own, and the provenance says which artifact it is."""
    from executorch.devtools.etrecord import parse_etrecord

    recipe = Recipe.model_validate(
        {"output": {"form": "fat"}, "specializations": [{"target": "xnnpack"}, {"target": "portable"}], "debug": True}
    )
    result = pteforge.export(net, example, recipe=recipe, name="debugged", store=store)
    for payload, delegates in [("xnnpack", 1), ("portable", 0)]:
        record = parse_etrecord(str(result.etrecord(tmp_path / f"{payload}.etrecord", payload)))
        assert len(record._delegate_map["forward"]) == delegates
        assert f"etrecord/{payload}" in result.provenance["artifacts"]


def test_weights_beside_the_file(net, example, store, tmp_path):
    """Weights that are beside the file are as they are of a usual one; the file itself has lines of the model."""
    recipe = Recipe.model_validate({"output": {"external_data": True}, "specializations": [{"target": "portable"}]})
    saved = {}
    for debug in (False, True):
        result = pteforge.export(net, example, recipe=recipe, debug=debug, store=store)
        saved[debug] = result.save(tmp_path / f"{debug}.pte")
    assert saved[True].with_suffix(".ptd").read_bytes() == saved[False].with_suffix(".ptd").read_bytes()
    assert b"live_nets.py" in saved[True].read_bytes()


def test_without_debug_mode(exported, tmp_path):
    """Without it there is no record, and what there is is told."""
    with pytest.raises(InputError, match="stage 'compile' gives payload; name one of them"):
        exported.etrecord(tmp_path / "net.etrecord")


def test_the_payload_is_the_same(exported, net, example, store):
    """A record alone changes nothing about the file."""
    recipe = Recipe.model_validate({"specializations": [{"target": "xnnpack"}], "compile": {"generate_etrecord": True}})
    recorded = pteforge.export(net, example, recipe=recipe, name="debugged", store=store)
    assert recorded.pte == exported.pte

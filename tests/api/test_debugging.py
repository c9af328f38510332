"""Debug mode: stack traces in the file, an ETRecord, and the maps of debug handles and delegates."""

from __future__ import annotations

import pteforge
import pytest
from executorch.devtools import Inspector
from executorch.devtools.etrecord import parse_etrecord
from executorch.exir._serialize._program import deserialize_pte_binary
from executorch.extension.pybindings.portable_lib import _load_for_executorch
from pteforge.errors import InputError
from pteforge.tests.lowering import checked_recipe

pytestmark = pytest.mark.slow

LAYERS = "return self.second(self.dropout(torch.relu(self.norm(self.first(values)))))"


@pytest.fixture(scope="module")
def debugged(exported, net, example, store):
    """The network in debug mode, after it was lowered as usual."""
    del exported
    return pteforge.export(net, example, recipe="xnnpack-fp32", debug=True, name="debugged", store=store)


def test_debug_mode_shares_stages(debugged, exported, net, example, store, ran):
    """Debug mode reruns the chain from `compile`; in a recipe, `debug` equals the two options that it implies."""
    assert ran(debugged) == {"export", "compile", "serialize", "verify", "report"}
    for written in ({"debug": True}, {"compile": {"emit_stacktrace": True, "generate_etrecord": True}}):
        recipe = checked_recipe("xnnpack", **written)
        result = pteforge.export(net, example, recipe=recipe, name="debugged", store=store)
        assert "compile" not in ran(result)
        assert result.sha256 == debugged.sha256
    recipe = checked_recipe("xnnpack", compile={"generate_etrecord": True})
    assert pteforge.export(net, example, recipe=recipe, name="debugged", store=store).pte == exported.pte


def test_stack_traces(debugged, exported):
    """The file has the lines of the model behind the delegate; a usual file does not."""
    ((frames,),) = (
        chain.stacktrace
        for plan in deserialize_pte_binary(debugged.pte).program.execution_plan
        for chain in plan.chains
    )
    assert (frames.items[0].filename.endswith("networks.py"), frames.items[0].context) == (True, LAYERS)
    assert b"networks.py" not in exported.pte
    assert bytes(debugged.executorch_manager().buffer) == debugged.pte


def test_etrecord(debugged, tmp_path):
    """ExecuTorch's own reader takes the record: the edge program, and the maps of what was emitted from it."""
    record = parse_etrecord(str(debugged.etrecord(tmp_path / "net.etrecord")))
    names = [node.name for node in record.edge_dialect_program.graph.nodes if "_unused_" not in node.name]  # serde adds
    assert names == [node.name for node in debugged.artifact("edge").graph.nodes]
    assert record._delegate_map["forward"]["0"]["name"] == "XnnpackBackend"


@pytest.mark.filterwarnings("ignore:Output Buffer not found:UserWarning")
@pytest.mark.filterwarnings("ignore:Unsupported kwarg encountered:UserWarning")
def test_inspector(debugged, example, tmp_path):
    """ExecuTorch's Inspector leads from the delegate's call in a run's ETDump to the model."""
    module = _load_for_executorch(str(debugged.save(tmp_path / "net.pte")), enable_etdump=True)
    module.forward(list(example))
    module.write_etdump_result_to_file(str(tmp_path / "net.etdp"))
    record = debugged.etrecord(tmp_path / "net.etrecord")
    inspector = Inspector(etdump_path=str(tmp_path / "net.etdp"), etrecord=str(record))
    events = [event for block in inspector.event_blocks for event in block.events]
    (event,) = (event for event in events if event.name == "DELEGATE_CALL")
    assert event.delegate_backend_name == "XnnpackBackend"
    assert [trace for trace in event.stack_traces.values() if LAYERS not in trace] == []
    paths = {stack[max(stack)][0] for stack in event.module_hierarchy.values()}
    assert {"first", "second"} <= paths


def test_maps(debugged):
    """Each delegate call names its backend; its handles lead to operators, modules and lines of the model."""
    delegates = debugged.artifact("compile", role="delegate_map")["forward"]
    assert [delegate["name"] for delegate in delegates.values()] == ["XnnpackBackend"]
    (handles,) = debugged.artifact("compile", role="debug_handles")["forward"].values()
    sources = debugged.artifact("compile", role="debug_sources")["forward"]
    found = [source for handle in dict.fromkeys(handles) for source in sources[str(handle)]]
    assert [(source["operator"], source["module"]) for source in found if "linear" in source["operator"]] == [
        ("aten.linear.default", "first"),
        ("aten.linear.default", "second"),
    ]
    (line,) = {source["line"] for source in found}
    assert line.startswith("networks.py:")


def test_a_fat_file(net, example, store, tmp_path):
    """Each payload of a fat file has a record of its own, and the provenance says which artifact it is."""
    recipe = checked_recipe("xnnpack", "portable", debug=True)
    result = pteforge.export(net, example, recipe=recipe, name="debugged", store=store)
    for payload, delegates in [("xnnpack", 1), ("portable", 0)]:
        record = parse_etrecord(str(result.etrecord(tmp_path / f"{payload}.etrecord", payload)))
        assert len(record._delegate_map["forward"]) == delegates
        assert f"etrecord/{payload}" in result.provenance["artifacts"]


def test_external_data(net, example, store, tmp_path):
    """External weights are those of a usual file; the file itself has lines of the model."""
    recipe = checked_recipe("portable", output={"external_data": True})
    saved = {}
    for debug in (False, True):
        result = pteforge.export(net, example, recipe=recipe, debug=debug, store=store)
        saved[debug] = result.save(tmp_path / f"{debug}.pte")
    assert saved[True].with_suffix(".ptd").read_bytes() == saved[False].with_suffix(".ptd").read_bytes()
    assert b"networks.py" in saved[True].read_bytes()


def test_without_debug_mode(exported, tmp_path):
    """A usual file has no record; the error names the artifacts that it has."""
    with pytest.raises(InputError, match="'compile' returns payload; name one"):
        exported.etrecord(tmp_path / "net.etrecord")

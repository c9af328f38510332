"""Debug mode: an ETRecord and the maps of debug handles and delegates are artifacts beside the file."""

from __future__ import annotations

import pteforge
import pytest
from pteforge.configs import Recipe
from pteforge.errors import InputError

pytestmark = pytest.mark.slow

DEBUG = {"emit_stacktrace": True, "generate_etrecord": True}


@pytest.fixture(scope="module")
def debugged(net, example, store):
    """The network with XNNPACK, to be debugged."""
    recipe = Recipe.model_validate({"specializations": [{"target": "xnnpack"}], "compile": DEBUG})
    return pteforge.export(net, example, recipe=recipe, name="debugged", store=store)


def test_etrecord(debugged, tmp_path):
    """ExecuTorch's own reader takes the record: the edge program, and the maps of what was emitted from it."""
    from executorch.devtools.etrecord import parse_etrecord

    record = parse_etrecord(str(debugged.etrecord(tmp_path / "net.etrecord")))
    names = [node.name for node in record.edge_dialect_program.graph.nodes if "_unused_" not in node.name]  # serde adds
    assert names == [node.name for node in debugged.artifact("edge").graph.nodes]
    assert record._delegate_map["forward"]["0"]["name"] == "XnnpackBackend"


def test_maps(debugged):
    """Each delegate call names its backend; the handles it stands for are those of the edge program's nodes."""
    delegates = debugged.artifact("compile", role="delegate_map")["forward"]
    assert [each["name"] for each in delegates.values()] == ["XnnpackBackend"]
    handles = debugged.artifact("compile", role="debug_handles")["forward"]
    known = {node.meta.get("debug_handle") for node in debugged.artifact("edge").graph.nodes}
    named = [each if isinstance(each, list) else [each] for each in handles.values()]
    assert known.issuperset(handle for each in named for handle in each)


@pytest.mark.parametrize("kept", [True, False])
def test_stack_traces(net, example, store, kept):
    """The file says which line of the model an instruction comes from, where it is to."""
    recipe = Recipe.model_validate({"specializations": [{"target": "portable"}], "compile": {"emit_stacktrace": kept}})
    result = pteforge.export(net, example, recipe=recipe, store=store)
    assert (b"live_nets.py" in result.pte) is kept


def test_without_debug_mode(exported, tmp_path):
    """Without it there is no record, and what there is is told."""
    with pytest.raises(InputError, match="stage 'compile' gives payload; name one of them"):
        exported.etrecord(tmp_path / "net.etrecord")


def test_the_payload_is_the_same(exported, net, example, store):
    """A record changes nothing about the file, and makes no stage before `compile` run."""
    recipe = Recipe.model_validate({"specializations": [{"target": "xnnpack"}], "compile": {"generate_etrecord": True}})
    recorded = pteforge.export(net, example, recipe=recipe, name="debugged", store=store)
    assert recorded.pte == exported.pte
    assert {stage.stage for stage in recorded.stages if stage.status == "cached"} >= {"edge", "partition", "preprocess"}

"""preprocess: one call for all partitions of all methods, with a backend that notes how it is called."""

from __future__ import annotations

import json

import pytest
from pteforge.artifacts.pte.reader import read_pte
from pteforge.errors import TargetError
from pteforge.tasks.catalog import StageName
from pteforge.tasks.params import (
    CompileOptions,
    CompileParams,
    EdgeParams,
    PartitionParams,
    PreprocessParams,
    SerializeParams,
    TargetParams,
)


@pytest.fixture
def recording(stages, install_target):
    """The test zoo's module with the recording backend, found as an installed target, its notes empty."""
    del stages
    install_target({"recording": "recording_target:Recording"})
    import recording_target

    recording_target.CALLS.clear()
    return recording_target


def preprocessed(stages, builder, methods, **options):
    """Artifacts up to preprocess: by role for `compile`."""
    target = TargetParams(name="recording", options=options)
    linked = {}
    for method in methods:
        exported = stages.export(f"chain_models:{builder}", method=method)
        edge = stages.run(StageName.EDGE, EdgeParams(), {"program": exported["program"]})
        params = PartitionParams(target=target, edge=EdgeParams())
        linked[f"program/{method}"] = stages.run(StageName.PARTITION, params, edge)["program"]
        linked.setdefault("constants", exported["constants"])
    programs = {role: ref for role, ref in linked.items() if role.startswith("program/")}
    return {**linked, **stages.run(StageName.PREPROCESS, PreprocessParams(targets=(target,)), programs)}


def compiled(stages, inputs):
    """The payload, its bytes and what is in it."""
    from pteforge.artifacts.pte.pieces import read_payload

    payload = stages.run(StageName.COMPILE, CompileParams(options=CompileOptions(), edge=EdgeParams()), inputs)
    content = read_payload(payload["payload"], stages.store)
    return payload, content, read_pte(content)


def test_one_call_gets_all_partitions_of_all_methods(stages, recording):
    """The backend sees every partition with its compile specs at once; methods without any are not in the call."""
    preprocessed(stages, "waves", ["forward", "encode", "plain"])

    expected = [
        (["aten.sin.default"], {"number": b"0", "mark": b"sin"}),
        (["aten.sin.default"], {"number": b"1", "mark": b"sin"}),
    ]
    (call,) = recording.CALLS
    assert call == {"forward": expected, "encode": expected}


def test_several_partitioners_of_one_backend_are_one_call(stages, recording):
    """Partitioners run one after another, yet what they leave to the backend comes to it together, in graph order."""
    preprocessed(stages, "waves", ["forward"], cosines=True)

    (call,) = recording.CALLS
    assert [specs["mark"] for _, specs in call["forward"]] == [b"sin", b"sin", b"cos"]


def test_partitions_in_branches_are_found(stages, recording, upstream):
    """Nested graphs have partitions of their own, and get them back where upstream puts them."""
    inputs = preprocessed(stages, "nested_waves", ["forward"])

    (call,) = recording.CALLS
    assert [operators for operators, _ in call["forward"]] == [["aten.sin.default"]] * 3
    _, content, pte = compiled(stages, inputs)
    assert len(pte.methods[0].delegates) == 3
    assert content == upstream("chain_models:nested_waves", {"specializations": [{"target": "recording"}]})


def test_shared_data_is_in_the_payload_once(stages, recording):
    """What delegates share travels in the named data store, and the file has it once."""
    inputs = preprocessed(stages, "waves", ["forward", "encode", "plain"])
    _, content, pte = compiled(stages, inputs)

    assert [data.key for data in pte.named_data] == ["shared"]
    assert content.count(recording.SHARED) == 1
    delegates = {method.name: [delegate.id for delegate in method.delegates] for method in pte.methods}
    assert delegates == {"forward": ["RecordingBackend"] * 2, "encode": ["RecordingBackend"] * 2, "plain": []}


def test_delegates_are_linked_where_they_belong(stages, recording):
    """Each partition gets what the backend made of it, and not of another: payload, specs, handles and notes."""
    from pteforge.artifacts.programs import load_delegates
    from pteforge.tasks.stages.linking import _link
    from pteforge.tasks.stages.lowered import lowered_modules

    del recording
    inputs = preprocessed(stages, "waves", ["forward"], cosines=True)
    program = stages.program(inputs["program/forward"])
    _link(program, load_delegates(inputs["delegates"], stages.store).methods["forward"], outside=False)

    linked = [module for _, _, module in lowered_modules(program)]
    assert [module.backend_id for module in linked] == ["RecordingBackend"] * 3
    for module, operator, number, mark in zip(
        linked, ["sin", "sin", "cos"], [b"0", b"1", b"0"], [b"sin", b"sin", b"cos"], strict=True
    ):
        content = f"aten.{operator}.default" + str([("number", number), ("mark", mark)])
        assert module.processed_bytes == content.encode()
        assert [(spec.key, spec.value) for spec in module.compile_specs] == [("number", number), ("mark", mark)]
        assert module.meta["_delegate_info_meta"] == {"delegate": content}
        assert set(module.meta["debug_handle_map"]) >= {1}


def test_the_same_as_upstream(stages, recording, upstream):
    """Splitting partition from preprocess changes nothing for this backend either."""
    recipe = {"specializations": [{"target": "recording", "options": {"cosines": True}}]}
    inputs = preprocessed(stages, "waves", ["forward", "encode", "plain"], cosines=True)
    assert len(recording.CALLS) == 1
    assert compiled(stages, inputs)[1] == upstream("chain_models:waves", recipe)


def test_serialize_refuses_a_stranger_backend(stages, recording):
    """A target that does not name the backend of its payload cannot deliver it: no device would be known to run it."""
    del recording
    payload, _, _ = compiled(stages, preprocessed(stages, "waves", ["forward"]))
    params = SerializeParams(form="plain", methods=("forward",), backends=("OtherBackend",))
    with pytest.raises(Exception, match=r"needs the backends \['RecordingBackend'\], which its target does not name"):
        stages.run(StageName.SERIALIZE, params, payload)


@pytest.mark.parametrize("count", [0, 2])
def test_backends_must_have_one_class(count, stages, recording):
    """Exir would take any of several backends of one name, so none and several are errors that say where they are."""
    from executorch.exir.backend.backend_details import BackendDetails

    def preprocess(edge_program, compile_specs):
        raise NotImplementedError

    classes = [
        type("TwinBackend", (BackendDetails,), {"preprocess": staticmethod(preprocess), "__module__": f"acme{number}"})
        for number in range(count)
    ]
    where = "acme0, acme1" if count else "none"
    with pytest.raises(TargetError, match=f"names backend 'TwinBackend'; classes of that name: {where}; there must be"):
        preprocessed(stages, "waves", ["forward"], backend="TwinBackend")
    assert len(classes) == count
    assert not recording.CALLS


def test_a_backend_that_loses_a_partition_is_refused(stages, recording):
    """Fewer delegates than partitions is a fault of the backend, and never a file without them."""
    del recording
    problem = "backend 'ForgetfulBackend' gave 1 results for the 2 partitions of method 'forward'"
    with pytest.raises(TargetError, match=problem):
        preprocessed(stages, "waves", ["forward"], backend="ForgetfulBackend")


def test_equal_runs_give_equal_delegates(stages, recording):
    """The artifact has nothing of the run in it."""
    del recording
    one, other = (preprocessed(stages, "waves", ["forward"])["delegates"] for _ in range(2))
    assert one == other
    assert json.loads(json.dumps(one.to_json())) == one.to_json()


def test_the_default_is_one_partition_after_another(stages, install_target, monkeypatch):
    """Without `preprocess_multimethod`, a partition is copied when it is its turn, and gone before the next one."""
    import gc
    import weakref

    install_target({"sharing": "sharing_target:Sharing"})
    import sharing_target

    copy = sharing_target.AloneBackend.copy_exported_program_for_preprocess
    copies, alive = [], []

    def watched(program, specs):
        gc.collect()
        alive.append(sum(made() is not None for made in copies))
        made = copy(program, specs)
        copies.append(weakref.ref(made))
        return made

    monkeypatch.setattr(sharing_target.AloneBackend, "copy_exported_program_for_preprocess", watched)
    target = TargetParams(name="sharing", options={"backend": "AloneBackend"})
    programs = {}
    for method in ("forward", "encode"):
        exported = stages.export("method_models:scales", method=method)
        edge = stages.run(StageName.EDGE, EdgeParams(), {"program": exported["program"]})
        partition = PartitionParams(target=target, edge=EdgeParams())
        programs[f"program/{method}"] = stages.run(StageName.PARTITION, partition, edge)["program"]
    stages.run(StageName.PREPROCESS, PreprocessParams(targets=(target,)), programs)
    assert alive == [0] * 4

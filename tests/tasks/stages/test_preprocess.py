"""preprocess: one call for all partitions of all methods, with a backend that records how it is called."""

import pytest
from pteforge.errors import TargetError
from pteforge.formats.pte.reader import read_pte
from pteforge.tests.lowering import recipe


@pytest.fixture
def recording(zoo, install_target):
    """The zoo's module with the recording backend, found as an installed target, its records empty."""
    del zoo
    install_target({"recording": "targets:Recording", "sharing": "targets:Sharing"})
    import targets

    targets.CALLS.clear()
    return targets


@pytest.fixture
def preprocess(lower_fresh, recording):
    """Lowers up to a stage, preprocess itself unless another is given, with options of the recording target."""
    del recording

    def lowered(builder="waves", until="preprocess", **options):
        return lower_fresh(f"builders:{builder}", recipe({"target": "recording", "options": options}), until=until)

    return lowered


def test_one_call_gets_all_partitions_of_all_methods(preprocess, recording):
    """The backend sees every partition with its compile specs at once; methods without any are not in the call."""
    one, other = (preprocess().outputs["preprocess"]["delegates"] for _ in range(2))
    partitions = [(["aten.sin.default"], {"number": number, "mark": b"sin"}) for number in (b"0", b"1")]
    assert [{"forward": partitions, "encode": partitions}] * 2 == recording.CALLS
    assert one == other


@pytest.mark.slow
def test_several_partitioners_of_one_backend_are_one_call(preprocess, recording, upstream):
    """Partitioners run one after another, yet what they leave to the backend comes to it together, in graph order."""
    lowered = preprocess(until="serialize", cosines=True)
    (call,) = recording.CALLS
    assert [specs["mark"] for _, specs in call["forward"]] == [b"sin", b"sin", b"cos"]
    asked = recipe({"target": "recording", "options": {"cosines": True}})
    assert lowered.file == upstream("builders:waves", asked)


def test_partitions_in_branches_are_found(preprocess, recording, upstream):
    """Nested graphs have partitions of their own, and get them back where upstream puts them."""
    lowered = preprocess("nested_waves", until="serialize")
    (call,) = recording.CALLS
    assert [operators for operators, _ in call["forward"]] == [["aten.sin.default"]] * 3
    assert len(read_pte(lowered.file).methods[0].delegates) == 3
    assert lowered.file == upstream("builders:nested_waves", recipe("recording"))


def test_delegates_are_linked_where_they_belong(preprocess):
    """Each partition gets what the backend made of it, and not of another: payload, specs, handles and notes."""
    from pteforge.tasks.backend.delegates import link_delegates
    from pteforge.tasks.programs.delegates import load_delegates
    from pteforge.tasks.programs.graphs import lowered_modules

    lowered = preprocess(cosines=True)
    program = lowered.program("partition/forward")
    delegates = load_delegates(lowered.outputs["preprocess"]["delegates"], lowered.store)
    link_delegates(program, delegates.methods["forward"], external=False)

    linked = [module for _, _, module in lowered_modules(program)]
    assert [module.backend_id for module in linked] == ["RecordingBackend"] * 3
    for module, operator, number in zip(linked, ["sin", "sin", "cos"], [b"0", b"1", b"0"], strict=True):
        specs = [("number", number), ("mark", operator.encode())]
        content = f"aten.{operator}.default{specs}"
        assert module.processed_bytes == content.encode()
        assert [(spec.key, spec.value) for spec in module.compile_specs] == specs
        assert module.meta["_delegate_info_meta"] == {"delegate": content}
        assert set(module.meta["debug_handle_map"]) >= {1}


@pytest.mark.parametrize("count", [0, 2])
def test_backends_must_have_one_class(count, preprocess, recording):
    """Exir would take any of several backends of one name, so none and several are errors that say where they are."""
    from executorch.exir.backend.backend_details import BackendDetails

    def refuse(edge_program, compile_specs):
        raise NotImplementedError

    classes = [
        type("TwinBackend", (BackendDetails,), {"preprocess": staticmethod(refuse), "__module__": f"acme{number}"})
        for number in range(count)
    ]
    where = "acme0, acme1" if count else "none"
    with pytest.raises(TargetError, match=f"'TwinBackend'; classes .*: {where}; there must be"):
        preprocess(backend="TwinBackend")
    assert len(classes) == count
    assert not recording.CALLS


def test_a_backend_that_loses_a_partition_is_refused(preprocess):
    """Fewer delegates than partitions is a fault of the backend, and never a file without them."""
    problem = "backend 'ForgetfulBackend' gave 1 results for the 2 partitions of method"
    with pytest.raises(TargetError, match=problem):
        preprocess(backend="ForgetfulBackend")


@pytest.mark.slow
def test_the_default_is_one_partition_after_another(lower_fresh, recording, monkeypatch):
    """Without `preprocess_multimethod`, a partition is copied when it is its turn, and gone before the next one."""
    import gc
    import weakref

    copy = recording.AloneBackend.copy_exported_program_for_preprocess
    copies, alive = [], []

    def watched(program, specs):
        gc.collect()
        alive.append(sum(made() is not None for made in copies))
        made = copy(program, specs)
        copies.append(weakref.ref(made))
        return made

    monkeypatch.setattr(recording.AloneBackend, "copy_exported_program_for_preprocess", watched)
    alone = recipe({"target": "sharing", "options": {"backend": "AloneBackend"}})
    lower_fresh("builders:scales", alone, until="preprocess")
    assert alive == [0] * 4

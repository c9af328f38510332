"""External data of plain files: the bytes that upstream makes, once, under unique names, found at run time."""

import pytest
import torch
from pteforge.errors import TargetError
from pteforge.formats.pte.ptd import external_weights, ptd_named_data
from pteforge.formats.pte.reader import read_pte
from pteforge.tasks.programs.payload import read_payload
from pteforge.tests.lowering import PORTABLE, lower_upstream, recipe


def external(target="portable", **fields):
    """A recipe of a plain file and a `.ptd`."""
    return recipe(target, output={"external_data": True}, **fields)


def data_of(lowered):
    return read_payload(lowered.outputs["serialize"]["data"], lowered.store)


def weights_of(lowered):
    """What the `.ptd` holds: key to bytes."""
    return {key: bytes(content) for key, content in ptd_named_data(memoryview(data_of(lowered))).items()}


@pytest.mark.parametrize(
    "builder",
    [
        *("builders:two_methods", "builders:counter"),
        *(pytest.param(f"builders:{name}", marks=pytest.mark.slow) for name in ("branches", "conv_net")),
    ],
)
def test_the_files_are_upstreams(builder, lower, tmp_path):
    """Both files have the bytes that ExecuTorch writes for `external_constants=True`; state stays in the `.pte`."""
    made = external(fold_batch_norms=False)  # ExecuTorch leaves folding to backends
    lowered = lower(builder, made)
    manager = lower_upstream(builder, made)
    manager.write_tensor_data_to_file(str(tmp_path))
    (theirs,) = tmp_path.glob("*.ptd")
    assert lowered.payloads[""] == manager.buffer  # the file has metadata on dynamic sizes, too
    assert data_of(lowered) == theirs.read_bytes()
    assert lowered.provenance["data"]["size"] == theirs.stat().st_size


@pytest.mark.parametrize("target", [pytest.param("portable", marks=pytest.mark.slow), "xnnpack"])
def test_shared_weights_are_there_once(target, lower):
    """Two methods with the same weights, of kernels and of delegates: the `.ptd` has each once, the `.pte` none."""
    lowered = lower("builders:readers_and_writers", external(target))
    inside = lower("builders:readers_and_writers", recipe(target))
    pte, weights = read_pte(lowered.file), weights_of(lowered)
    assert (pte.constants, pte.named_data) == ((), ())
    assert len(set(weights.values())) == len(weights) == 5
    assert pte.size + len(data_of(lowered)) <= len(inside.file) + 2048
    assert pte.size < 8192


def test_weights_by_name(lower):
    """Only weights with a name like that are in the `.ptd`; those in delegates are not, and cannot be."""
    some = recipe("portable", output={"external_data": ["*.weight"]})
    lowered = lower("builders:mlp", some)
    assert weights_of(lowered).keys() == {"0.weight", "2.weight"}
    assert {tensor.name for tensor in read_pte(lowered.file).external} == {"0.weight", "2.weight"}
    assert len(read_pte(lowered.file).constants) == 2  # biases
    for target, pattern in (("portable", "*.scale"), ("xnnpack", "*.weight")):
        with pytest.raises(TargetError, match=rf"no weight .*is called \{pattern}"):
            lower("builders:mlp", recipe(target, output={"external_data": [pattern]}))


@pytest.mark.parametrize("target", ["portable", pytest.param("xnnpack", marks=pytest.mark.slow)])
def test_equal_names_stay_apart(target, lower):
    """Methods whose weights have the same names and are different ones compute what eager does, each with its own."""
    lowered = lower("builders:namesakes", external(target))
    assert set(lowered.figures["methods"]) == {"forward", "encode"}
    weights = weights_of(lowered)
    assert len(set(weights.values())) >= 6
    if target == "portable":  # constants that stand in the code stay in the `.pte`
        assert {"0.weight", "0.bias", "1.weight", "1.bias", "forward.0.weight", "forward.0.bias"} == set(weights)


def test_constants_that_passes_make(lower):
    """Where a pass of `to_executorch` gives different constants one name, the recipe fails and names them."""
    asked = external(compile={"do_quant_fusion_and_const_prop": True})
    with pytest.raises(TargetError, match=r"'encode' and 'forward' .*constants .*'_prop_tensor"):
        lower("builders:folded", asked)


@pytest.mark.parametrize("target", ["portable", pytest.param("xnnpack", marks=pytest.mark.slow)])
def test_shared_state(target, lower):
    """State that methods share is no weight, also in a method that only reads it: loading that undoes nothing."""
    asked = external(target, compile={"share_mutable_buffers": True})
    lowered = lower("builders:cached", asked)  # verified by sequences of calls
    assert weights_of(lowered) == {}
    inside = lower("builders:cached", {**asked, "output": {}})
    assert lowered.file == inside.file


def test_delegates_weights_are_upstreams(lower):
    """Delegates' data has the keys and bytes that upstream's own store puts into a file, with the same `.pte`."""
    import builders
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    torch.manual_seed(0)
    method = builders.mlp().methods["forward"]
    program = torch.export.export(method.module.eval(), method.example_inputs[0], dynamic_shapes=method.dynamic_shapes)
    manager = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()])
    manager._named_data_store.externalize_pte_data(max_data_bytes=1 << 20, tag_prefix="weights")
    theirs = manager.to_executorch()
    lowered = lower("builders:mlp", external("xnnpack"))
    assert lowered.payloads[""] == theirs.buffer
    (data,) = theirs._tensor_data.values()
    kept = ptd_named_data(memoryview(bytes(data)))
    assert weights_of(lowered) == {key: bytes(content) for key, content in kept.items()}
    # Batches of several sizes run with the weights that are outside.
    assert read_pte(lowered.file).methods[0].inputs[0].dynamism == "bound"
    assert lowered.figures["overall"]["cases"] > 1


@pytest.mark.slow
def test_quantized(lower, tmp_path):
    """int8 weights and their scales are outside, which the file says; ladder and verification run it with them."""
    asked = external("xnnpack", quantize={"quantizer": "xnnpack"}, verify={"min_sqnr_db": 10})
    lowered = lower("builders:mlp", asked)
    assert read_pte(lowered.file).named_data == ()
    weights = weights_of(lowered)
    assert {len(content) for content in weights.values()} >= {8 * 4, 3 * 8}  # a byte for each weight
    (tmp_path / "model.pte").write_bytes(lowered.file)
    assert any(key.startswith("scale_") for key in weights)
    assert external_weights(tmp_path / "model.pte", read_pte(lowered.file)).keys() == weights.keys()
    (payload,) = [rung for rung in lowered.findings["numerics"] if rung["name"] == "payload"]
    assert payload["problem"] == ""
    assert payload["figures"]["cases"] == lowered.figures["overall"]["cases"]


def test_a_file_without_weights(lower):
    """Where there is nothing to keep outside the `.ptd` is empty, and the file runs with it and without."""
    lowered = lower("builders:constant", external())
    assert weights_of(lowered) == {}
    assert lowered.file == lower("builders:constant", PORTABLE).file


def test_data_stays_inside_where_it_is_not_asked_for():
    """What a backend has put into a file of its own is in the `.pte` unless the recipe says otherwise: none is lost."""
    from executorch.exir._serialize._named_data_store import NamedDataStore
    from pteforge.tasks.backend.delegates import TAG, group_named_data

    store = NamedDataStore()
    store.add_named_data("inside", b"one", alignment=16)
    store.add_named_data("outside", b"two", external_tag="a_backends_own")
    given = store.get_named_data_store_output()
    kept = group_named_data(given, external=False)
    assert (set(kept.pte_data), kept.external_data) == ({"inside", "outside"}, {})
    moved = group_named_data(given, external=True)
    assert (moved.pte_data, set(moved.external_data[TAG])) == ({}, {"inside", "outside"})
    assert moved.external_data[TAG]["inside"].alignment == 16

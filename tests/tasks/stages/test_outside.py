"""Weights beside plain files: the bytes that upstream makes, once, under names of their own, found at run time."""

from __future__ import annotations

import pytest
from pteforge.artifacts.nfat.data_file import kept_outside
from pteforge.artifacts.nfat.named_data import ptd_named_data
from pteforge.artifacts.pte.pieces import read_payload
from pteforge.artifacts.pte.reader import read_pte
from pteforge.errors import SourceError, TargetError


def beside(target="portable", **recipe):
    """A recipe of a plain file and a `.ptd`."""
    return {"output": {"external_data": True}, "specializations": [{"target": target}], **recipe}


def data_of(lowered):
    """The `.ptd`'s bytes."""
    return read_payload(lowered.outputs["serialize/tested"]["data"], lowered.store)


def weights_of(lowered):
    """What the `.ptd` holds: key to bytes."""
    return {key: bytes(content) for key, content in ptd_named_data(memoryview(data_of(lowered))).items()}


@pytest.mark.parametrize(
    "builder",
    [
        "chain_models:two_methods",
        "chain_models:counter",
        pytest.param("chain_models:conditional", marks=pytest.mark.slow),
        pytest.param("chain_models:conv_net", marks=pytest.mark.slow),
    ],
)
def test_the_files_are_upstreams(builder, stages, upstream_manager, tmp_path):
    """Both files have the bytes that ExecuTorch writes for `external_constants=True`; state stays in the `.pte`."""
    lowered = stages.lower(builder, beside())
    manager = upstream_manager(builder, beside())
    manager.write_tensor_data_to_file(str(tmp_path))
    (theirs,) = tmp_path.glob("*.ptd")
    assert lowered.file == manager.buffer
    assert data_of(lowered) == theirs.read_bytes()
    assert lowered.provenance["data"]["size"] == theirs.stat().st_size


@pytest.mark.parametrize("target", [pytest.param("portable", marks=pytest.mark.slow), "xnnpack"])
def test_shared_weights_are_there_once(target, stages):
    """Two methods with the same weights, of kernels and of delegates: the `.ptd` has each once, the `.pte` none."""
    lowered = stages.lower("method_models:readers_and_writers", beside(target))
    inside = stages.lower("method_models:readers_and_writers", {"specializations": [{"target": target}]})
    pte, weights = read_pte(lowered.file), weights_of(lowered)
    assert (pte.constants, pte.named_data) == ((), ())
    assert len(set(weights.values())) == len(weights) == 5
    assert pte.size + len(data_of(lowered)) <= len(inside.file) + 2048
    assert pte.size < 8192


@pytest.mark.parametrize("target", ["portable", pytest.param("xnnpack", marks=pytest.mark.slow)])
def test_names_are_told_apart(target, stages):
    """Methods whose weights have the same names and are different ones compute what eager does, each with its own."""
    lowered = stages.lower("method_models:namesakes", beside(target))
    assert set(lowered.provenance["verification"]["figures"]["methods"]) == {"forward", "encode"}
    weights = weights_of(lowered)
    assert len(set(weights.values())) >= 6
    if target == "portable":  # constants that stand in the code stay in the `.pte`
        assert {"0.weight", "0.bias", "1.weight", "1.bias", "forward.0.weight", "forward.0.bias"} == set(weights)


def test_constants_that_passes_make(stages):
    """Where a pass of `to_executorch` gives different constants one name, that is told and not delivered."""
    recipe = beside(compile={"do_quant_fusion_and_const_prop": True})
    with pytest.raises(TargetError, match=r"'encode' and 'forward' have different constants .* called '_prop_tensor"):
        stages.lower("method_models:folded", recipe)


@pytest.mark.parametrize("target", ["portable", pytest.param("xnnpack", marks=pytest.mark.slow)])
def test_shared_state(target, stages):
    """State that methods share is no weight, also in a method that only reads it: loading that undoes nothing."""
    recipe = beside(target, compile={"share_mutable_buffers": True})
    lowered = stages.lower("method_models:cached", recipe)  # verified by sequences of calls
    assert weights_of(lowered) == {}
    inside = stages.lower("method_models:cached", {**recipe, "output": {}})
    assert lowered.file == inside.file
    with pytest.raises(SourceError, match=r"the buffer 'cache\.rows' of 'peek' is not that of 'prefill'"):
        stages.lower({"builder": "method_models:cached", "kwargs": {"one_cache": False}}, recipe)


def test_delegates_weights_are_upstreams(stages):
    """Delegates' data has the keys and bytes that upstream's own store puts into a file, with the same `.pte`."""
    import chain_models
    import torch
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    torch.manual_seed(0)
    method = chain_models.mlp().methods["forward"]
    program = torch.export.export(method.module.eval(), method.example_inputs[0], dynamic_shapes=method.dynamic_shapes)
    manager = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()])
    manager._named_data_store.externalize_pte_data(max_data_bytes=1 << 20, tag_prefix="weights")
    theirs = manager.to_executorch()
    lowered = stages.lower("chain_models:mlp", beside("xnnpack"))
    assert lowered.file == theirs.buffer
    (data,) = theirs._tensor_data.values()
    kept = ptd_named_data(memoryview(bytes(data)))
    assert weights_of(lowered) == {key: bytes(content) for key, content in kept.items()}


@pytest.mark.slow
def test_quantized(stages, tmp_path):
    """int8 weights and their scales are outside, which the file says; ladder and verification run it with them."""
    recipe = beside("xnnpack", quantize={"quantizer": "xnnpack"}, verify={"min_sqnr_db": 10})
    lowered = stages.lower("chain_models:mlp", recipe)
    assert read_pte(lowered.file).named_data == ()
    weights = weights_of(lowered)
    assert {len(content) for content in weights.values()} >= {8 * 4, 3 * 8}  # a byte for each weight
    (tmp_path / "model.pte").write_bytes(lowered.file)
    assert any(key.startswith("scale_") for key in weights)
    assert kept_outside(tmp_path / "model.pte", read_pte(lowered.file)).keys() == weights.keys()
    (payload,) = [rung for rung in lowered.provenance["numerics"] if rung["name"] == "payload"]
    assert payload["problem"] == ""
    assert payload["figures"]["cases"] == lowered.provenance["verification"]["figures"]["overall"]["cases"]


@pytest.mark.parametrize("target", [pytest.param("portable", marks=pytest.mark.slow), "xnnpack"])
def test_dynamic_shapes(target, stages):
    """Batches of several sizes run with the weights that are outside."""
    shapes = {"dynamic_shapes": {"forward": [{"0": {"min": 1, "max": 8}}]}}
    lowered = stages.lower("chain_models:mlp", beside(target), **shapes)
    assert read_pte(lowered.file).methods[0].inputs[0].dynamism == "bound"
    assert lowered.provenance["verification"]["figures"]["overall"]["cases"] > 1


def test_a_file_without_weights(stages):
    """Where there is nothing to keep outside the `.ptd` is empty, and the file runs with it and without."""
    lowered = stages.lower("chain_models:constant", beside())
    assert weights_of(lowered) == {}
    assert lowered.file == stages.lower("chain_models:constant", {"specializations": [{"target": "portable"}]}).file


def test_data_stays_inside_where_it_is_not_asked_for():
    """What a backend has put into a file of its own is in the `.pte` unless the recipe says otherwise: none is lost."""
    from executorch.exir._serialize._named_data_store import NamedDataStore
    from pteforge.tasks.stages.outside import TAG, place_named_data

    store = NamedDataStore()
    store.add_named_data("inside", b"one", alignment=16)
    store.add_named_data("outside", b"two", external_tag="a_backends_own")
    given = store.get_named_data_store_output()
    kept = place_named_data(given, outside=False)
    assert (set(kept.pte_data), kept.external_data) == ({"inside", "outside"}, {})
    moved = place_named_data(given, outside=True)
    assert (moved.pte_data, set(moved.external_data[TAG])) == ({}, {"inside", "outside"})
    assert moved.external_data[TAG]["inside"].alignment == 16

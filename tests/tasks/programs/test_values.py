"""Values, trees of tensors and plain values, and files that come with a model: without pickle."""

from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pteforge.artifacts.local_store import LocalStore
from pteforge.artifacts.ref import ArtifactManifest
from pteforge.errors import ObjectMissing, StoreError
from pteforge.tasks.programs.payload import ASSETS_KIND, asset_blobs, load_assets, save_assets
from pteforge.tasks.programs.values import load_value, save_value
from torch import Tensor

DTYPES = [
    *(torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16),
    *(torch.float32, torch.float64, torch.complex64, torch.float8_e5m2),
]


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.binary(max_size=100)
)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """Tensors of many types, shapes and strides, some views of larger ones."""
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    dtype = draw(st.sampled_from(DTYPES))
    content = torch.randint(0, 2, (*shape, 3), generator=torch.Generator().manual_seed(draw(st.integers(0, 9))))
    wide = content.to(dtype).permute(*draw(st.permutations(range(len(shape) + 1))))
    return draw(st.sampled_from([wide, wide[..., :1], wide.contiguous(), wide[..., :0]]))


trees = st.recursive(
    scalars | tensors(),
    lambda children: (
        st.lists(children, max_size=4)
        | st.lists(children, max_size=4).map(tuple)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])) | st.integers(), children, max_size=4)
    ),
    max_leaves=8,
)


def same(one: Any, other: Any) -> bool:
    """Whether two trees are the same, types, bits and strides included."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        return (
            (one.dtype, one.shape, one.requires_grad) == (other.dtype, other.shape, other.requires_grad)
            and (one.numel() == 0 or one.stride() == other.stride())
            and one.contiguous().view(-1).view(torch.uint8).tolist()
            == other.contiguous().view(-1).view(torch.uint8).tolist()
        )
    if isinstance(one, float):
        return one.hex() == other.hex()
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(map(same, one.values(), other.values()))
    return bool(one == other)


@given(tree=trees)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
def test_round_trip(tree, store):
    """Every tree comes back as it was, and saving what came back gives the same bytes."""
    ref = save_value(tree, kind="value/test", store=store)
    loaded = load_value(ref, store)
    assert same(loaded, tree)
    assert save_value(loaded, kind="value/test", store=store) == ref


def test_identity(store, tmp_path: Path):
    """Equal values have equal bytes, in every store: the identity is the root's digest."""

    def value() -> Any:
        return {"inputs": (torch.arange(6.0).view(2, 3).t(), 0.1), "outputs": [torch.ones(2)]}

    ref = save_value(value(), kind="value/test", store=store)
    assert ref.identity == ref.root.digest
    assert save_value(value(), kind="value/test", store=LocalStore.open(tmp_path / "other")) == ref
    assert save_value({**value(), "outputs": [torch.zeros(2)]}, kind="value/test", store=store) != ref


@pytest.mark.parametrize(
    ("one", "other"),
    [
        *((1.0, 1), (True, 1), (0.0, -0.0), (0.1, 0.1 + 2e-17)),
        *(([1], (1,)), ("a", b"a"), ({"a": 1, "b": 2}, {"b": 2, "a": 1})),
    ],
    ids=str,
)
def test_types_count(one, other, store):
    """Values differ when a type, a sign, an order or a last bit differs."""
    assert save_value(one, kind="value/test", store=store) != save_value(other, kind="value/test", store=store)


def test_shared_storage(store):
    """Tensors that share memory still do, and are one blob, which holds only what they use of it."""
    memory = torch.zeros(1000)
    ref = save_value({"a": memory[100:200], "b": memory[150:250:2]}, kind="value/test", store=store)
    assert [blob.size for blob in store.manifest(ref).blobs] == [(249 - 100) * 4]
    loaded = load_value(ref, store)
    loaded["a"][50] = 7
    assert loaded["b"][0] == 7
    assert load_value(ref, store)["a"].sum() == 0


def test_gradient(store):
    """requires_grad stays; parameters come back as tensors."""
    value = [torch.zeros(2, requires_grad=True), torch.nn.Parameter(torch.zeros(2)), torch.zeros(2)]
    loaded = load_value(save_value(value, kind="value/test", store=store), store)
    assert [tensor.requires_grad for tensor in loaded] == [True, True, False]
    assert {type(tensor) for tensor in loaded} == {Tensor}


Point = namedtuple("Point", "x y")  # noqa: PYI024 - the kind without types


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({"a": [1, object()]}, r"value\['a'\]\[1\] is a builtins.object"),
        (Point(1, 2), "Point"),
        (
            (torch.empty(2, device="meta"),),
            r"value\[0\] is a Tensor of layout torch.strided, type torch.float32 on meta",
        ),
        ({1, 2}, "set"),
        (torch.Size([1]), "Size"),
        (torch.zeros(2, dtype=torch.cfloat).conj(), "complex64"),
    ],
    ids=["object", "namedtuple", "meta", "set", "size", "conjugated"],
)
def test_refused(value, place, store):
    """Anything else is refused, and the message says where it is."""
    with pytest.raises(StoreError, match=place):
        save_value(value, kind="value/test", store=store)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (None, "is not a value of format 1"),
        ({"format": 2, "value": 1, "storages": []}, "is not a value of format 1"),
        ({"format": 1}, "is not a value of format 1"),
        ({"format": 1, "value": {"fraction": [1, 2]}, "storages": []}, "fraction"),
        ({"format": 1, "value": {"tensor": {}}, "storages": []}, "cannot be loaded: TypeError"),
        ({"format": 1, "value": 1, "storages": [7]}, "cannot be loaded: IndexError"),
    ],
)
def test_other_formats(body, problem, store):
    """A manifest of something else is refused, and so is a kind of tree that this version does not know."""
    with pytest.raises(StoreError, match=problem):
        load_value(store.put_manifest(ArtifactManifest("value/test", (), body)), store)


def test_missing_blob(store):
    """A missing part is reported as such."""
    ref = save_value(torch.zeros(100), kind="value/test", store=store)
    store.path(store.manifest(ref).blobs[0]).unlink()
    with pytest.raises(ObjectMissing):
        load_value(ref, store)


def test_assets(store):
    """Files come back by name; equal contents share an object, and the order of names decides nothing."""
    assets = {"tokenizer.json": b"{}", "empty": b"", "same.json": b"{}"}
    ref = save_assets(assets, store)
    assert load_assets(ref, store) == assets
    assert len(store.objects_of(ref)) == 3
    assert save_assets(dict(reversed(assets.items())), store) == ref
    assert save_assets({**assets, "empty": b" "}, store).identity != ref.identity


@pytest.mark.parametrize("body", [{"../evil": 0}, {"a/b": 0}, {"a": 1}, {"a": "0"}, {"a": None}, [], "a"])
def test_hostile_manifests_of_assets(body, store):
    """Names from a store that others write to cannot lead out of a folder, nor positions out of the objects."""
    blob = store.put_bytes(b"content")
    ref = store.put_manifest(ArtifactManifest(ASSETS_KIND, (blob,), body))
    with pytest.raises(StoreError):
        asset_blobs(ref, store)

"""Files that come with a model, in the store."""

import pytest
from pteforge.artifacts.ref import ArtifactManifest
from pteforge.errors import StoreError
from pteforge.tasks.codecs.assets import KIND, asset_blobs, load_assets, save_assets


def test_round_trip(store):
    """Files come back by name; equal contents share an object, and the order of names decides nothing."""
    assets = {"tokenizer.json": b"{}", "empty": b"", "same.json": b"{}"}
    ref = save_assets(assets, store)
    assert load_assets(ref, store) == assets
    assert len(store.objects_of(ref)) == 3
    assert save_assets(dict(reversed(assets.items())), store) == ref
    assert save_assets({**assets, "empty": b" "}, store).identity != ref.identity


@pytest.mark.parametrize("body", [{"../evil": 0}, {"a/b": 0}, {"a": 1}, {"a": "0"}, {"a": None}, [], "a"])
def test_hostile_manifests(body, store):
    """Names from a store that others write to cannot lead out of a folder, nor positions out of the objects."""
    blob = store.put_bytes(b"content")
    ref = store.put_manifest(ArtifactManifest(KIND, (blob,), body))
    with pytest.raises(StoreError):
        asset_blobs(ref, store)

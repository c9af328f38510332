"""Files that come with a model, such as a tokenizer: delivered from the store, named in provenance, and released."""

from __future__ import annotations

import hashlib
import json

import pytest


@pytest.fixture(scope="module")
def lowered(lower_project):
    net = {"source": {"builder": "worded:net", "kwargs": {"words": "words.txt"}}}
    return lower_project({"net": net}, files={"words.txt": '{"cat": 0}'})


def test_delivered_from_the_store(made, lower, pteforge):
    """Files that are lost or changed come back without work, also from the record of a whole model."""
    folder = made.out / "net"
    provenance = json.loads((folder / "xnnpack-fp32.json").read_text())
    content = (folder / "words.json").read_bytes()
    assert content == b'{"cat": 0}'
    assert provenance["assets"] == {
        "labels.txt": {"sha256": hashlib.sha256(b"cat\ndog\n").hexdigest(), "size": 8},
        "words.json": {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)},
    }
    said = pteforge(made, "export", "zoo.yaml")
    assert "next to the files of net: labels.txt, words.json" in said.out, said.err
    (folder / "words.json").unlink()
    (folder / "labels.txt").write_text("changed")
    again = lower(made)
    assert again.ran("net") == set()
    assert again.outcome.to_json()["models"]["net"]["xnnpack-fp32"]["assets"] == ["labels.txt", "words.json"]
    assert ((folder / "words.json").read_bytes(), (folder / "labels.txt").read_bytes()) == (content, b"cat\ndog\n")


def test_new_content(made, lower):
    """What a changed file becomes is delivered; no stage between `export` and the provenance runs again."""
    made.write("words.txt", '{"dog": 0}')
    assert {name.partition("/")[0] for name in lower(made).ran("net")} == {"export", "report"}
    assert (made.out / "net" / "words.json").read_text() == '{"dog": 0}'


def test_released(made, pteforge):
    """A release has them, and its card says so; a changed one is not released, and a damaged one is noticed."""
    assert pteforge(made, "publish", "out", "--to", "shared").code == 0
    assert pteforge(made, "release", "fetch", "shared", "net/xnnpack-fp32", "-o", "got").code == 0
    for name in ("words.json", "labels.txt"):
        assert (made.folder / "got" / "net" / name).read_bytes() == (made.out / "net" / name).read_bytes()
    assert "- `words.json`: 10 bytes" in (made.folder / "got" / "net" / "card.md").read_text()
    digest = hashlib.sha256((made.out / "net" / "words.json").read_bytes()).hexdigest()
    (made.folder / "shared" / "files" / digest).write_bytes(b'{"cow": 0}')
    damaged = pteforge(made, "release", "fetch", "shared", "net/*", "-o", "other")
    assert damaged.code == 1
    assert f"words.json at {made.folder / 'shared'} is damaged" in damaged.err or "words.json at shared" in damaged.err
    (made.out / "net" / "words.json").write_text("{}")
    pteforge(made, "publish", "out", "--to", "shared").refused("words.json was changed after it was verified")


def test_name_of_a_recipe(made, lower):
    """An asset with the name of a file that a recipe writes fails that recipe, and says so."""
    made.edit("worded.py", '"words.json"', '"xnnpack-fp32.json"')
    (model,) = lower(made).outcome.models
    status = {recipe.recipe: recipe.status for recipe in model.recipes}
    assert status == {"portable-fp32": "made", "xnnpack-fp32": "failed"}
    (failed,) = (recipe.failure for recipe in model.recipes if recipe.failure)
    assert "'xnnpack-fp32.json' has the name of a file of the recipe 'xnnpack-fp32'" in failed.problem
    assert failed.bad_input

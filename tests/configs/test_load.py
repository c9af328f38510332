"""Zoo files that load, and what becomes of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from pteforge.configs import BuilderSource, ProgramSource, Zoo, load_zoo
from pteforge.errors import ConfigError, Location

SMALL = """\
version: 1
models:
  net:
    source: pkg.mod:Net
    recipes: [portable-fp32]
"""


def test_a_small_zoo(load, tmp_path):
    """What is left out gets its default; the zoo is called by its file, and builders are looked for beside it."""
    loaded = load(SMALL)
    assert loaded.zoo.name == "zoo"
    assert loaded.zoo.python_path == (tmp_path,)
    assert loaded.files == (tmp_path / "zoo.yaml",)
    net = loaded.zoo.models["net"]
    assert net.source == BuilderSource(builder="pkg.mod:Net")
    assert (net.seed, net.strict, net.dynamic_shapes, net.verify) == (0, False, None, None)
    assert (net.limits.timeout, net.limits.memory) == (600.0, 8 * 2**30)
    assert loaded.zoo.recipes_of("net") == ("portable-fp32",)
    assert list(loaded.zoo.recipes) == ["portable-fp32"]


def test_paths_are_absolute_from_their_file(load, tmp_path):
    """Every relative path in a file means a place beside that file; absolute ones stay."""
    loaded = load(
        """\
        version: 1
        python_path: [src, ../lib, /opt/models]
        include: [sub/more.yaml]
        defaults:
          recipes: [portable-fp32]
          model: {source: {builder: "pkg:make", files: [shared.bin]}}
        models:
          a: {source: a.pt2}
          b: {source: {program: weights/b.bin}}
          c: {source: {kwargs: {path: left/alone}}}
        """,
        sub__more="""\
        version: 1
        models:
          d: {source: {builder: "pkg:make", files: [d.pt, /abs/e.pt]}}
        """,
    )
    assert loaded.zoo.python_path == (tmp_path / "src", tmp_path.parent / "lib", Path("/opt/models"), tmp_path / "sub")
    assert loaded.zoo.models["a"].source == ProgramSource(program=tmp_path / "a.pt2")
    assert loaded.zoo.models["b"].source == ProgramSource(program=tmp_path / "weights/b.bin")
    assert loaded.zoo.models["c"].source == BuilderSource(
        builder="pkg:make", kwargs={"path": "left/alone"}, files=(tmp_path / "shared.bin",)
    )
    assert loaded.zoo.models["d"].source.files == (tmp_path / "sub/d.pt", Path("/abs/e.pt"))
    assert loaded.files == (tmp_path / "zoo.yaml", tmp_path / "sub/more.yaml")


def test_a_link_is_not_followed(write, tmp_path):
    """Paths in a file reached through a link are beside the link, where the user sees the file."""
    path = write(SMALL)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/link.yaml").symlink_to(tmp_path / path)
    assert load_zoo(tmp_path / "elsewhere/link.yaml").zoo.python_path == (tmp_path / "elsewhere",)


def test_sections_may_be_empty(load):
    """A section whose entries are all commented out is as good as none."""
    loaded = load(SMALL + "recipes:\ndefaults:\n")
    assert list(loaded.zoo.models) == ["net"]
    assert load(SMALL + "defaults: {model: }\n").zoo == loaded.zoo


def test_defaults_reach_every_model(load):
    """Defaults fill in what a model leaves out, mapping by mapping; what the model says wins, and lists replace."""
    loaded = load(
        """\
        version: 1
        defaults:
          recipes: [portable-fp32, xnnpack-fp32]
          model:
            seed: 7
            limits: {timeout: 5m, memory: 1GiB}
            source: {builder: "pkg:make", kwargs: {width: 8, depth: 2}, files: [a, b]}
        models:
          plain: {}
          nulls: {recipes: null}
          own: {seed: 1, limits: {memory: 2GiB}, recipes: [portable-fp32], source: {kwargs: {width: 16}, files: [c]}}
          short: {source: "pkg:other"}
          program: {source: x.pt2}
        """
    )
    models = loaded.zoo.models
    assert models["plain"].seed == 7
    assert models["nulls"] == models["plain"]
    assert models["plain"].recipes == ("portable-fp32", "xnnpack-fp32")
    assert (models["own"].seed, models["own"].limits.timeout, models["own"].limits.memory) == (1, 300, 2 * 2**30)
    assert models["own"].recipes == ("portable-fp32",)
    assert models["own"].source.kwargs == {"width": 16, "depth": 2}
    assert [path.name for path in models["own"].source.files] == ["c"]
    assert models["short"].source.builder == "pkg:other"
    assert models["short"].source.kwargs == {"width": 8, "depth": 2}
    assert isinstance(models["program"].source, ProgramSource)


def test_defaults_reach_included_files_where_they_say_nothing(load):
    """An included file's own defaults are nearer to its models than those of the file that includes it."""
    loaded = load(
        """\
        version: 1
        include: [inner.yaml]
        defaults: {recipes: [portable-fp32], model: {seed: 1, strict: true}}
        models: {a: {source: "p:a"}}
        """,
        inner="""\
        version: 1
        defaults: {recipes: [xnnpack-fp32], model: {seed: 2}}
        models: {b: {source: "p:b"}}
        """,
    )
    a, b = loaded.zoo.models["a"], loaded.zoo.models["b"]
    assert (a.seed, a.strict, a.recipes) == (1, True, ("portable-fp32",))
    assert (b.seed, b.strict, b.recipes) == (2, True, ("xnnpack-fp32",))


def test_a_file_may_be_shared_by_two_that_are_included(load):
    """Recipes that two included files both include are read once."""
    loaded = load(
        "version: 1\ninclude: [a.yaml, b.yaml]\ndefaults: {recipes: [mine]}\n",
        a="version: 1\ninclude: [shared.yaml]\nmodels: {a: {source: 'p:a'}}\n",
        b="version: 1\ninclude: [shared.yaml]\ndefaults: {model: {seed: 3}}\nmodels: {b: {source: 'p:b'}}\n",
        shared="version: 1\nrecipes: {mine: {specializations: [{target: portable}]}}\n",
    )
    assert sorted(loaded.zoo.models) == ["a", "b"]
    assert [path.stem for path in loaded.files] == ["zoo", "a", "shared", "b"]


def test_anchors_share_what_is_common(load):
    """Anchors, aliases and merge keys work anywhere in the file."""
    loaded = load(
        """\
        version: 1
        models:
          a: &a {source: "p:a", seed: 4, recipes: &r [portable-fp32]}
          b: {<<: *a, source: "p:b"}
          c: {source: "p:c", recipes: *r}
        """
    )
    assert (loaded.zoo.models["b"].seed, loaded.zoo.models["b"].source.builder) == (4, "p:b")
    assert loaded.zoo.models["c"].recipes == ("portable-fp32",)


def test_locations_point_at_what_was_written(load):
    """Any value of the loaded zoo leads back to where it was written, be it defaults, includes or the command line."""
    loaded = load(
        """\
        version: 1
        include: [sub/more.yaml]
        defaults: {recipes: [mine]}
        models:
          a:
            source: {builder: "p:a", kwargs: {width: 3}}
        recipes:
          mine:
            extends: xnnpack-fp32
            specializations:
              - target: xnnpack
                options: {threads: 2}
        """,
        overrides=["models.a.seed=3"],
        sub__more="version: 1\nmodels:\n  b: {source: 'p:b'}\n",
    )
    find = loaded.locations.find
    assert find(("models", "a", "source", "kwargs", "width")) == Location("zoo.yaml", 6, 39)
    assert find(("models", "a", "recipes", 0)) == Location("zoo.yaml", 3, 22)
    assert find(("models", "a", "seed")) == Location("--set models.a.seed")
    assert find(("models", "b", "source")) == Location("sub/more.yaml", 3, 7)
    assert find(("recipes", "mine", "specializations", 0, "options", "threads")) == Location("zoo.yaml", 12, 19)
    assert find(("recipes", "mine", "specializations", 0, "options", "nothing")) == Location("zoo.yaml", 12, 9)
    assert find(("recipes", "mine", "output", "form")) == Location("<preset xnnpack-fp32>", 4, 3)
    assert find(("recipes", "mine", "compile", "segment_alignment")) == Location("zoo.yaml", 8, 3)


def test_locations_make_errors_for_later_checks(load):
    """A later stage that finds fault with a value can raise the same kind of error as loading does."""
    loaded = load(SMALL)
    error = loaded.locations.error("no such target", ("models", "net", "recipes", 0))
    assert str(error) == "zoo.yaml:5:15: models.net.recipes[0]: no such target"
    assert isinstance(error, ConfigError)


def test_a_zoo_survives_json(load):
    """A loaded zoo can be handed over as JSON and read back, bounds that a model overrides included."""
    zoo = load(
        """\
        version: 1
        defaults: {recipes: [xnnpack-fp32]}
        models:
          a:
            source: {builder: "p:a", kwargs: {x: [1, null, {y: 2.5}]}, files: [f]}
            dynamic_shapes: {forward: [{0: {min: 1, max: 4}}, null, [null, {1: {min: 2, max: 3, name: n}}]]}
            verify: {max_abs_error: 0.1}
          b: {source: b.pt2}
        """
    ).zoo
    again = Zoo.model_validate_json(zoo.model_dump_json())
    assert again == zoo
    assert again.verify_bounds("a", "xnnpack-fp32") == zoo.verify_bounds("a", "xnnpack-fp32")
    assert again.verify_bounds("a", "xnnpack-fp32").min_sqnr_db == 80


def test_a_byte_order_mark_is_no_matter(write, tmp_path):
    """Files from Windows editors load."""
    path = write(SMALL)
    (tmp_path / path).write_bytes(b"\xef\xbb\xbf" + SMALL.replace("\n", "\r\n").encode())
    assert load_zoo(path).zoo.models["net"].recipes == ("portable-fp32",)


def test_models_are_frozen(load):
    """Nothing of a loaded zoo can be set anew."""
    zoo = load(SMALL).zoo
    with pytest.raises(ValueError, match="frozen"):
        zoo.models["net"].seed = 3
    with pytest.raises(ValueError, match="frozen"):
        zoo.recipes["portable-fp32"].compile.segment_alignment = 64


def test_loading_imports_neither_torch_nor_prefect(write):
    """Reading a zoo costs no heavy import: a rerun that finds everything cached has to be fast."""
    path = write(SMALL)
    heavy = ["torch", "executorch", "prefect", "numpy", "fsspec"]
    code = (
        "import json, sys\nfrom pathlib import Path\nfrom pteforge.configs import load_zoo, zoo_schema\n"
        f"load_zoo(Path({str(path)!r}))\nzoo_schema()\nprint(json.dumps([m for m in {heavy} if m in sys.modules]))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(found.stdout) == []

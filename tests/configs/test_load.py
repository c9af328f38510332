"""Zoo files that load, what becomes of them, and ``--set KEY=VALUE``."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pteforge.configs import BuilderSource, CompileOptions, ProgramSource, Zoo, load_zoo
from pteforge.configs.load import parse_override
from pteforge.configs.nodes import Node, assign, format_field, located, nearest, plain
from pteforge.errors import ConfigError, Location

SMALL = """\
version: 1
models:
  net:
    source: pkg.mod:Net
    recipes: [portable-fp32]
"""


def test_a_small_zoo(load, tmp_path):
    """What is left out gets its default; the zoo is called by its file, and builders are looked for next to it."""
    loaded = load(SMALL)
    assert loaded.zoo.name == "zoo"
    assert loaded.zoo.python_path == (tmp_path,)
    assert loaded.files == (tmp_path / "zoo.yaml",)
    net = loaded.zoo.models["net"]
    assert net.source == BuilderSource(builder="pkg.mod:Net")
    assert (net.seed, net.strict, net.dynamic_shapes, net.verify) == (0, False, None, None)
    assert (net.limits.timeout, net.limits.memory) == (3600.0, 8 * 2**30)
    assert loaded.zoo.recipes_of("net") == ("portable-fp32",)
    assert list(loaded.zoo.recipes) == ["portable-fp32"]


def test_paths_are_absolute_from_their_file(load, tmp_path):
    """Every relative path in a file is relative to that file; absolute ones stay."""
    loaded = load(
        """\
        version: 1
        python_path: [src, ../lib, /opt/models]
        include: [sub/more.yaml]
        defaults:
          recipes: [portable-fp32]
          model:
            source: {builder: "pkg:make", files: [shared.bin]}
            calibration: {forward: {dataset: "pkg:samples", files: [samples.bin]}}
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
    assert loaded.zoo.models["c"].calibration["forward"].files == (tmp_path / "samples.bin",)
    assert loaded.zoo.models["d"].source.files == (tmp_path / "sub/d.pt", Path("/abs/e.pt"))
    assert loaded.files == (tmp_path / "zoo.yaml", tmp_path / "sub/more.yaml")


def test_files_as_people_have_them(write, load, tmp_path):
    """Empty sections, files from Windows editors and links load; paths are relative to the link that users see."""
    zoo = load(SMALL + "recipes:\ndefaults:\n").zoo
    assert list(zoo.models) == ["net"]
    assert load(SMALL + "defaults: {model: }\n").zoo == zoo
    path = write(SMALL)
    (tmp_path / path).write_bytes(b"\xef\xbb\xbf" + SMALL.replace("\n", "\r\n").encode())
    assert load_zoo(path).zoo.models["net"].recipes == ("portable-fp32",)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/link.yaml").symlink_to(tmp_path / path)
    assert load_zoo(tmp_path / "elsewhere/link.yaml").zoo.python_path == (tmp_path / "elsewhere",)


def test_defaults_reach_every_model(load):
    """Defaults fill in what a model leaves out, mapping by mapping; what the model says wins, and lists replace."""
    models = load(
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
    ).zoo.models
    plain, own, short = models["plain"], models["own"], models["short"]
    assert plain == models["nulls"]
    assert (plain.seed, plain.recipes) == (7, ("portable-fp32", "xnnpack-fp32"))
    assert (own.seed, own.limits.timeout, own.limits.memory, own.recipes) == (1, 300, 2 * 2**30, ("portable-fp32",))
    assert own.source.kwargs == {"width": 16, "depth": 2}
    assert [path.name for path in own.source.files] == ["c"]
    assert (short.source.builder, short.source.kwargs) == ("pkg:other", {"width": 8, "depth": 2})
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
    files = {name: f"version: 1\ninclude: [shared.yaml]\nmodels: {{{name}: {{source: 'p:a'}}}}\n" for name in "ab"}
    files["b"] += "defaults: {model: {seed: 3}}\n"
    shared = "version: 1\nrecipes: {mine: {specializations: [{target: portable}]}}\n"
    loaded = load("version: 1\ninclude: [a.yaml, b.yaml]\ndefaults: {recipes: [mine]}\n", **files, shared=shared)
    assert sorted(loaded.zoo.models) == ["a", "b"]
    assert [path.stem for path in loaded.files] == ["zoo", "a", "shared", "b"]


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
            accuracy: {evaluator: "p:score", floor: 0.5}
          b: {source: b.pt2}
        """
    ).zoo
    again = Zoo.model_validate_json(zoo.model_dump_json())
    assert again == zoo
    assert again.models["a"].accuracy.model_fields_set == {"evaluator", "floor"}
    assert again.verify_bounds("a", "xnnpack-fp32").min_sqnr_db == 80


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


OVERRIDDEN = """\
version: 1
include: [more.yaml]
defaults:
  recipes: [portable-fp32, xnnpack-fp32]
models:
  net: {source: "p:net", seed: 1}
  "net-0.25": {source: {builder: "p:net", kwargs: {width: 1}}}
"""
MORE = "version: 1\nmodels: {other: {source: 'p:other', recipes: [portable-fp32]}}\n"


@pytest.fixture
def with_set(load):
    return lambda *overrides: load(OVERRIDDEN, more=MORE, overrides=overrides).zoo


def test_overrides_of_models(with_set):
    """Values are YAML and may hold equals signs; indices reach items of lists, also of defaults, for that model alone.

    It does not matter which file a model is written in, and names with a dot are quoted.
    """
    models = with_set(
        "models.net.seed=2",
        "models.net.seed=3",
        "models.net.limits={timeout: 2m, memory: 1GiB}",
        "models.net.source.kwargs.name=a=b",
        "models.net.strict=true",
        "models.net.recipes[0]=xnnpack-fp32",
        "models.net.recipes[1]=portable-fp32",
        'models."net-0.25".source.kwargs.width=2',
        "models.other.seed=9",
    ).models
    net, quoted = models["net"], models["net-0.25"]
    assert (net.seed, net.limits.timeout, net.limits.memory, net.strict) == (3, 120, 2**30, True)
    assert net.source.kwargs == {"name": "a=b"}
    assert net.recipes == ("xnnpack-fp32", "portable-fp32")
    assert (quoted.recipes, quoted.source.kwargs) == (("portable-fp32", "xnnpack-fp32"), {"width": 2})
    assert models["other"].seed == 9


def test_overrides_of_whole_models_and_defaults(with_set):
    """Defaults of the zoo file reach all models, also new ones; setting a model whole removes its own fields."""
    models = with_set(
        "defaults.recipes=[xnnpack-fp32]",
        "defaults.model.strict=true",
        "models.extra={source: 'p:extra'}",
        "models.net={source: 'p:else'}",
        "models.net.source.kwargs.a=1",
    ).models
    assert all(model.strict for model in models.values())
    assert models["extra"].recipes == models["net"].recipes == ("xnnpack-fp32",)
    assert (models["net"].source.builder, models["net"].source.kwargs, models["net"].seed) == ("p:else", {"a": 1}, 0)


def test_overrides_of_recipes(with_set, load):
    """A shipped recipe can be changed without writing it into the zoo; so can one that another one extends."""
    zoo = with_set(
        "recipes.xnnpack-fp32.compile.segment_alignment=64", "recipes.xnnpack-fp32.specializations[0].name=a"
    )
    assert zoo.recipes["xnnpack-fp32"].compile == CompileOptions(segment_alignment=64)
    assert zoo.recipes["xnnpack-fp32"].specializations[0].name == "a"
    assert with_set().recipes["xnnpack-fp32"].compile == CompileOptions()
    recipes = "recipes: {a: {specializations: [{target: portable}]}, b: {extends: a}}"
    extended = f"version: 1\nmodels: {{net: {{source: 'p:net', recipes: [b]}}}}\n{recipes}\n"
    assert load(extended, overrides=["recipes.a.debug=true"]).zoo.recipes["b"].debug


def test_paths_of_overrides_are_relative_to_the_current_folder(write, tmp_path, monkeypatch):
    """A path typed on the command line means what it means in the shell."""
    path = tmp_path / write(OVERRIDDEN, more=MORE)
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    zoo = load_zoo(path, ["models.net.source=x.pt2", 'models."net-0.25".source.files=[w.bin]', "python_path=[src]"]).zoo
    assert zoo.models["net"].source == ProgramSource(program=tmp_path / "below/x.pt2")
    assert zoo.models["net-0.25"].source.files == (tmp_path / "below/w.bin",)
    assert zoo.python_path[0] == tmp_path / "below/src"


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("", "write KEY=VALUE, for example models.resnet8.seed=3 or models.resnet8.recipes[0]=mine"),
        ("=3", "write KEY=VALUE"),
        ("models.net.seed 4=3", "write KEY=VALUE"),
        ("models.net.seed=[1", "not valid YAML: a `[` is not closed"),
        ("models.net.seed=x", "models.net.seed: must be a whole number (found 'x')"),
        ("models.net.seed=", "models.net.seed: must be a whole number (found null)"),
        ("models.net.limits.a.b=1", "models.net.limits.a: unknown key 'a'; known here: device, memory, timeout"),
        ("modles.net.seed=1", "modles: unknown key 'modles'; did you mean 'models'?"),
        ("models.nett.seed=1", "models.nett.seed: there is no model 'nett'; did you mean 'net'?"),
        ("recipes.xnpack-fp32.debug=true", "recipes.xnpack-fp32.debug: there is no recipe 'xnpack-fp32'"),
        ("models={}", "models: name the entry to set, as in models.NAME.FIELD=VALUE"),
        ("recipes[0]=x", "recipes[0]: name the entry to set, as in recipes.NAME.FIELD=VALUE"),
        ("models.net.recipes[2]=x", "models.net.recipes[2]: models.net.recipes has 2 items, there is no [2]"),
        ("models.net.seed[0]=x", "models.net.seed[0]: models.net.seed is not a list, it has no item [0]"),
        ("models.net.seed.a=x", "models.net.seed.a: models.net.seed is a single value, not a mapping"),
        ("models.net.recipes.a=x", "models.net.recipes.a: models.net.recipes is a list; its items are [0], [1]"),
        ('models."net-0.25".source.kwargs=[hunter2]', 'models."net-0.25".source.kwargs: must be a mapping'),
        ("defaults=3", "defaults: must be a mapping (found 3)"),
        ("include=[none.yaml]", "include[0]: cannot read none.yaml: No such file or directory"),
    ],
)
def test_mistakes_in_overrides(failure, override, said):
    """A wrong --set is one message that names the option and its key, and not its value, which may be private."""
    error = failure(OVERRIDDEN, more=MORE, overrides=[override])
    assert "hunter2" not in str(error)
    assert str(error).startswith(f"--set {override.partition('=')[0]}: {said}")
    assert len(str(error).splitlines()) == 1
    assert error.location.line is None


keys = st.from_regex(r"[a-z]{1,3}", fullmatch=True)
trees = st.recursive(
    st.integers(0, 9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(keys, trees, max_size=3), st.lists(keys | st.integers(0, 3), max_size=3), keys, trees)
def test_what_is_set_is_there_and_the_rest_is_as_before(tree, below, first, value):
    """After an override its path leads to its value, and every other leaf is untouched; or it is refused as a whole."""
    path = (first, *below)
    before = located(tree, Node(None, Location("f")))
    override = parse_override(f"{format_field(path)}={value}")
    node, missing = nearest(before, path)
    leads_nowhere = missing and (not isinstance(node.value, dict) or any(isinstance(part, int) for part in missing))
    if leads_nowhere:
        with pytest.raises(ConfigError, match=re.escape(format_field(path))):
            assign(before, override)
    else:
        after = assign(before, override)
        found, missing = nearest(after, path)
        assert (plain(found), missing, found.location) == (value, (), Location(f"--set {format_field(path)}"))
        assert dict(_leaves(before, path)) == dict(_leaves(after, path))
    assert plain(before) == tree


def _leaves(node, apart_from, at=()):
    """Scalars by path, without those below one path."""
    if at == apart_from:
        return
    children = [*node.entries.items(), *enumerate(node.items)]
    for part, child in children:
        yield from _leaves(child, apart_from, (*at, part))
    if not children and node.value not in ({}, [], None):
        yield at, node.value

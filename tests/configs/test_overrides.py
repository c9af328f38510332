"""``--set KEY=VALUE``."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pteforge.configs import CompileOptions, ProgramSource
from pteforge.configs.fields import format_field
from pteforge.configs.nodes import Node, nearest, plain
from pteforge.configs.overrides import assign, parse_override
from pteforge.errors import ConfigError, Location

ZOO = """\
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
    """The zoo above, loaded with overrides."""
    return lambda *overrides: load(ZOO, more=MORE, overrides=overrides).zoo


def test_values_are_yaml(with_set):
    """The value is YAML, so numbers, lists and mappings can be given, and it may hold equals signs."""
    zoo = with_set(
        "models.net.seed=3",
        "models.net.limits={timeout: 2m, memory: 1GiB}",
        "models.net.source.kwargs.name=a=b",
        "models.net.strict=true",
    )
    net = zoo.models["net"]
    assert (net.seed, net.limits.timeout, net.limits.memory, net.strict) == (3, 120, 2**30, True)
    assert net.source.kwargs == {"name": "a=b"}


def test_a_list_item_can_be_set(with_set):
    """An index reaches an item of a list, also of one that comes from the defaults, for that model alone."""
    zoo = with_set("models.net.recipes[0]=xnnpack-fp32", "models.net.recipes[1]=portable-fp32")
    assert zoo.models["net"].recipes == ("xnnpack-fp32", "portable-fp32")
    assert zoo.models["net-0.25"].recipes == ("portable-fp32", "xnnpack-fp32")


def test_quoted_names(with_set):
    """A name with a dot is quoted in the key."""
    zoo = with_set('models."net-0.25".source.kwargs.width=2')
    assert zoo.models["net-0.25"].source.kwargs == {"width": 2}


def test_models_of_included_files_can_be_set(with_set):
    """It does not matter which file a model is written in."""
    assert with_set("models.other.seed=9").models["other"].seed == 9


def test_defaults_can_be_set(with_set):
    """Defaults of the zoo file can be changed like anything else, and reach the models."""
    zoo = with_set("defaults.recipes=[xnnpack-fp32]", "defaults.model.strict=true", "name=renamed")
    assert zoo.models["net"].recipes == ("xnnpack-fp32",)
    assert zoo.models["other"].strict
    assert zoo.name == "renamed"


def test_a_shipped_recipe_can_be_set(with_set):
    """A shipped recipe can be changed without writing it into the zoo; the shipped file stays as it is."""
    zoo = with_set(
        "recipes.xnnpack-fp32.compile.segment_alignment=4096", "recipes.xnnpack-fp32.specializations[0].options.a=1"
    )
    assert zoo.recipes["xnnpack-fp32"].compile == CompileOptions(segment_alignment=4096)
    assert zoo.recipes["xnnpack-fp32"].specializations[0].options == {"a": 1}
    assert with_set().recipes["xnnpack-fp32"].compile == CompileOptions()


def test_a_changed_recipe_changes_those_that_extend_it(load):
    """Overrides come before ``extends`` is worked in."""
    zoo = load(
        """\
        version: 1
        models: {net: {source: "p:net", recipes: [b]}}
        recipes:
          a: {specializations: [{target: portable}]}
          b: {extends: a}
        """,
        overrides=["recipes.a.compile.segment_alignment=64"],
    ).zoo
    assert zoo.recipes["b"].compile.segment_alignment == 64


def test_a_new_model_gets_the_defaults(with_set):
    """A model can be added whole, and is as any other; setting a model whole takes its own fields away."""
    zoo = with_set("models.extra={source: 'p:extra'}", "models.net={source: 'p:else'}")
    assert zoo.models["extra"].recipes == ("portable-fp32", "xnnpack-fp32")
    assert (zoo.models["net"].source.builder, zoo.models["net"].seed) == ("p:else", 0)


def test_the_last_one_wins(with_set):
    """Overrides are applied in the order given."""
    assert with_set("models.net.seed=5", "models.net.seed=6").models["net"].seed == 6
    zoo = with_set("models.net.source=p:made", "models.net.source.kwargs.a=1")
    assert (zoo.models["net"].source.builder, zoo.models["net"].source.kwargs) == ("p:made", {"a": 1})


def test_paths_are_relative_to_the_current_folder(write, tmp_path, monkeypatch):
    """A path typed on the command line means what it means in the shell."""
    from pteforge.configs import load_zoo

    path = tmp_path / write(ZOO, more=MORE)
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    zoo = load_zoo(path, ["models.net.source=x.pt2", 'models."net-0.25".source.files=[w.bin]', "python_path=[src]"]).zoo
    assert zoo.models["net"].source == ProgramSource(program=tmp_path / "below/x.pt2")
    assert zoo.models["net-0.25"].source.files == (tmp_path / "below/w.bin",)
    assert zoo.python_path[0] == tmp_path / "below/src"


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("", "--set : write KEY=VALUE, for example models.resnet8.seed=3 or models.resnet8.recipes[0]=mine"),
        ("models.net.seed", "--set models.net.seed: write KEY=VALUE, for example "),
        ("=3", "--set : write KEY=VALUE, for example "),
        ("models..seed=3", "--set models..seed: write KEY=VALUE, for example "),
        ("models.net.seed 4=3", "--set models.net.seed 4: write KEY=VALUE, for example "),
        ("models.net.seed=[1", "--set models.net.seed: not valid YAML: did not find expected"),
        ("models.net.seed={a: 1, a: 2}", "--set models.net.seed: models.net.seed.a: the key 'a' is written twice"),
        ("models.net.seed=x", "--set models.net.seed: models.net.seed: must be a whole number (found 'x')"),
        ("models.net.seed=", "--set models.net.seed: models.net.seed: must be a whole number (found null)"),
        ("models.net.sed=1", "--set models.net.sed: models.net.sed: unknown key 'sed'; did you mean 'seed'?"),
        ("models.net.limits.a.b=1", "--set models.net.limits.a.b: models.net.limits.a: unknown key 'a'; known here: "),
        ("modles.net.seed=1", "--set modles.net.seed: modles: unknown key 'modles'; did you mean 'models'?"),
        (
            "models.nett.seed=1",
            "--set models.nett.seed: models.nett.seed: there is no model 'nett'; did you mean 'net'?",
        ),
        (
            "recipes.xnpack-fp32.output.form=plain",
            "--set recipes.xnpack-fp32.output.form: recipes.xnpack-fp32.output.form: there is no recipe 'xnpack-fp32'",
        ),
        ("models={}", "--set models: models: name the entry to set, as in models.NAME.FIELD=VALUE"),
        ("recipes[0]=x", "--set recipes[0]: recipes[0]: name the entry to set, as in recipes.NAME.FIELD=VALUE"),
        (
            "models.net.recipes[2]=x",
            "--set models.net.recipes[2]: models.net.recipes[2]: models.net.recipes has 2 items, there is no [2]",
        ),
        (
            "models.net.seed[0]=x",
            "--set models.net.seed[0]: models.net.seed[0]: models.net.seed is not a list, it has no item [0]",
        ),
        (
            "models.net.seed.a=x",
            "--set models.net.seed.a: models.net.seed.a: models.net.seed is a single value, not a mapping",
        ),
        (
            "models.net.recipes.a=x",
            "--set models.net.recipes.a: models.net.recipes.a: models.net.recipes is a list; its items are [0], [1]",
        ),
        ("models.net=3", "--set models.net: models.net: must be a mapping"),
        ("defaults=3", "--set defaults: defaults: must be a mapping (found 3)"),
        ("include=[none.yaml]", "--set include: include[0]: cannot read none.yaml: No such file or directory"),
        ("version=2", "--set version: version: Input should be 1 (found 2)"),
    ],
)
def test_mistakes_name_the_option(failure, override, expected):
    """A wrong --set is one message that names the option and its key."""
    error = failure(ZOO, more=MORE, overrides=[override])
    assert str(error).startswith(expected)
    assert len(str(error).splitlines()) == 1
    assert error.location.line is None


keys = st.from_regex(r"[a-z]{1,3}", fullmatch=True)
trees = st.recursive(
    st.integers(0, 9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=8,
)


def _node(value):
    if isinstance(value, dict):
        return Node({key: _node(below) for key, below in value.items()}, Location("f"))
    return Node([_node(below) for below in value] if isinstance(value, list) else value, Location("f"))


@given(st.dictionaries(keys, trees, max_size=3), st.lists(keys | st.integers(0, 3), max_size=3), keys, trees)
def test_what_is_set_is_there_and_the_rest_is_as_before(tree, below, first, value):
    """After an override its path leads to its value, and every other leaf is untouched; or it is refused as a whole."""
    path = (first, *below)
    before = _node(tree)
    override = parse_override(f"{format_field(path)}={value}")
    node, missing = nearest(before, path)
    leads_nowhere = missing and (not isinstance(node.value, dict) or any(isinstance(part, int) for part in missing))
    if leads_nowhere:
        with pytest.raises(ConfigError) as caught:
            assign(before, override)
        assert caught.value.field == format_field(path)
    else:
        after = assign(before, override)
        found, missing = nearest(after, path)
        assert not missing
        assert plain(found) == value
        assert found.location == Location(f"--set {format_field(path)}")
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

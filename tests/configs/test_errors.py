"""What is wrong with a zoo file is said once, clearly, with file, line, column and field."""

from __future__ import annotations

from pathlib import Path

import pytest
from pteforge.configs import load_zoo, preset_names
from pteforge.errors import ConfigError, Location

SHIPPED = ", ".join(preset_names())

HEAD = "version: 1\ndefaults: {recipes: [portable-fp32]}\n"  # what the cases below go on from; they begin in line 3


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("models: {a: {source: 'p:a', sed: 3}}", "3:29: models.a.sed: unknown key 'sed'; did you mean 'seed'?"),
        (
            "models: {a: {source: 'p:a', colour: 3}}",
            ("3:29: models.a.colour: unknown key 'colour'; known here: "
            "accuracy, calibration, dynamic_shapes, limits, recipes, seed, source, strict, verify"),
        ),
        ("model: {}", "3:1: model: unknown key 'model'; did you mean 'models'?"),
        (
            "models: {a: {source: {builder: 'p:a', kwarg: {}}}}",
            "3:39: models.a.source.kwarg: unknown key 'kwarg'; did you mean 'kwargs'?",
        ),
        (
            "models: {a: {source: 'p:a', limits: {memry: 3}}}",
            "3:38: models.a.limits.memry: unknown key 'memry'; did you mean 'memory'?",
        ),
        (
            "models: {a: {source: 'p:a', dynamic_shapes: {forward: [[{1: {min: 1, maxx: 2}}]]}}}",
            ("3:58: models.a.dynamic_shapes.forward[0][0].1.max: is missing; it has to be given\n"
            "zoo.yaml:3:70: models.a.dynamic_shapes.forward[0][0].1.maxx: unknown key 'maxx'; did you mean 'max'?"),
        ),
        ("models: {a: {}}", "3:10: models.a.source: is missing; it has to be given"),
        ("models: {a: null}", "3:10: models.a: must be a mapping (found null)"),
        ("models: [a]", "3:1: models: must be a mapping"),
        ("models: {a b: {}}", ("3:10: models.\"a b\": 'a b' cannot be a name, since files are called by it; "
            "use letters, digits, '.', '_' and '-', and begin with a letter or a digit")),
        ("models: {../a: {}}", ("3:10: models.\"../a\": '../a' cannot be a name, since files are called by it; "
            "use letters, digits, '.', '_' and '-', and begin with a letter or a digit")),
        ("models: {a: {source: 'p:a', seed: x}}", "3:29: models.a.seed: must be a whole number (found 'x')"),
        ("models: {a: {source: 'p:a', seed: true}}", "3:29: models.a.seed: must be a whole number (found true)"),
        ("models: {a: {source: 'p:a', seed: '3'}}", "3:29: models.a.seed: must be a whole number (found '3')"),
        ("models: {a: {source: 'p:a', seed: -1}}",
            "3:29: models.a.seed: Input should be greater than or equal to 0 (found -1)"),
        ("models: {a: {source: 'p:a', strict: yes}}", "3:29: models.a.strict: must be true or false (found 'yes')"),
        ("models: {a: {source: 'p:a', recipes: portable-fp32}}",
            "3:29: models.a.recipes: must be a list (found 'portable-fp32')"),
        ("models: {a: {source: 'p:a', recipes: [3]}}", "3:39: models.a.recipes[0]: must be text (found 3)"),
        ("models: {a: {source: 'p:a', recipes: []}}",
            "3:29: models.a.recipes: is empty; name at least one"),
        ("models: {a: {source: 'p:a', recipes: [portable-fp32, portable-fp32]}}",
            "3:29: models.a.recipes: 'portable-fp32' stands here twice"),
        ("models: {a: {source: 'p:a', recipes: [xnpack-fp32]}}",
            "3:39: models.a.recipes[0]: there is no recipe 'xnpack-fp32'; did you mean 'xnnpack-fp32'?"),
        ("models: {a: {source: 'p:a', recipes: [zzz]}}",
            f"3:39: models.a.recipes[0]: there is no recipe 'zzz'; known here: {SHIPPED}"),
        ("models: {a: {source: net.py}}",
            "3:14: models.a.source: 'net.py' is neither 'package.module:callable' nor the path of a .pt2 file"),
        ("models: {a: {source: 'a-b:c'}}",
            "3:14: models.a.source: 'a-b:c' is neither 'package.module:callable' nor the path of a .pt2 file"),
        ("models: {a: {source: 3}}",
            ("3:14: models.a.source: must be 'package.module:callable', the path of a .pt2 file, "
            "or a mapping with either `builder` or `program` (found 3)")),
        ("models: {a: {source: {builder: 'p:a', program: x.pt2}}}",
            ("3:14: models.a.source: must be 'package.module:callable', the path of a .pt2 file, "
            "or a mapping with either `builder` or `program`")),
        ("models: {a: {source: {builder: 'p:a', files: x}}}",
            "3:39: models.a.source.files: must be a list (found 'x')"),
        ("models: {a: {source: {builder: 'p:a', files: [{}]}}}",
            "3:47: models.a.source.files[0]: must be a path, as text"),
        ("models: {a: {source: 'p:a', limits: {timeout: soon}}}",
            ("3:38: models.a.limits.timeout: 'soon' is not a duration; write seconds, "
            "or text such as '90s', '10m' or '1h30m'")),
        ("models: {a: {source: 'p:a', limits: {timeout: 0}}}",
            "3:38: models.a.limits.timeout: Input should be greater than 0 (found 0)"),
        ("models: {a: {source: 'p:a', limits: {memory: 4 apples}}}",
            ("3:38: models.a.limits.memory: '4 apples' is not a size in bytes; write a whole number, "
            "or text such as '512MiB' or '4GiB'")),
        ("models: {a: {source: 'p:a', limits: {memory: 0B}}}",
            "3:38: models.a.limits.memory: Input should be greater than 0 (found '0B')"),
        ("models: {a: {source: 'p:a', verify: {max_abs_error: '1'}}}",
            "3:38: models.a.verify.max_abs_error: must be a number (found '1')"),
        ("models: {a: {source: 'p:a', dynamic_shapes: {forward: [{0: {min: 5, max: 2}}]}}}",
            "3:57: models.a.dynamic_shapes.forward[0].0: min (5) is more than max (2)"),
        ("models: {a: {source: 'p:a', dynamic_shapes: {forward: [{x: {min: 1, max: 2}}]}}}",
            "3:57: models.a.dynamic_shapes.forward[0].x: must be a whole number (found 'x')"),
        ("models: {a: {source: 'p:a', dynamic_shapes: {forward: [7]}}}",
            ("3:56: models.a.dynamic_shapes.forward[0]: must be a mapping of dimension index to {min, max, name}, "
            "null for a static input, or a list of these for an input that is a tuple (found 7)")),
        ("models: {a: {source: 'p:a', dynamic_shapes: {for-ward: []}}}",
            ("3:46: models.a.dynamic_shapes.for-ward: 'for-ward' is not a method name; "
            "it must be a Python identifier, such as forward")),
        ("models: {a: {source: 'p:a', dynamic_shapes: {forward: [{0: {min: 1, max: 2, name: n-1}}]}}}",
            "3:57: models.a.dynamic_shapes.forward[0].0: name 'n-1' is not a Python identifier"),
        (("models: {a: {source: 'p:a', dynamic_shapes: {forward: "
            "[{0: {min: 1, max: 2, name: n}}, [{0: {min: 1, max: 3, name: n}}]]}}}"),
            "3:29: models.a.dynamic_shapes: the dimension 'n' of forward has different bounds in two places"),
        ("models: {}", "3:1: models: the zoo has no models; add one, or include a file that has some"),
        ("", "1:1: models: the zoo has no models; add one, or include a file that has some"),
        ("python_path: src", "3:1: python_path: must be a list (found 'src')"),
        ("include: [3]", "3:11: include[0]: must be a path, as text (found 3)"),
        ('include: ["a\\0b"]', "3:11: include[0]: text cannot hold a NUL character"),
        ("name: ''", "3:1: name: String should have at least 1 character (found '')"),
    ],
)  # fmt: skip
def test_each_mistake_has_its_place(failure, text, expected):
    """One mistake gives one message, at the line and column where an editor should put the cursor."""
    assert str(failure(HEAD + text + "\n")) == f"zoo.yaml:{expected}"


def test_the_error_carries_its_parts(failure):
    """Location, field and problem can be had one by one, for `--json`."""
    error = failure(HEAD + "models: {a: {source: 'p:a', seed: x}}\n")
    assert error.location == Location("zoo.yaml", 3, 29)
    assert error.field == "models.a.seed"
    assert error.problem == "must be a whole number (found 'x')"


def test_all_mistakes_are_listed(failure):
    """Several mistakes make one error with a line for each, as they come in the file; it is placed at the first."""
    error = failure(
        """\
        version: 1
        defaults: {recipes: [portable-fp32]}
        models:
          a: {source: "p:a", seed: x}
          b: {source: "p:b", recipes: [nope]}
          c: {strict: 1}
        """
    )
    assert str(error).splitlines() == [
        "zoo.yaml:4:22: models.a.seed: must be a whole number (found 'x')",
        f"zoo.yaml:5:32: models.b.recipes[0]: there is no recipe 'nope'; known here: {SHIPPED}",
        "zoo.yaml:6:3: models.c.source: is missing; it has to be given",
        "zoo.yaml:6:7: models.c.strict: must be true or false (found 1)",
    ]
    assert error.location == Location("zoo.yaml", 4, 22)
    assert error.field == "models.a.seed"


def test_a_mistake_in_defaults_is_said_once(failure):
    """A mistake that every model inherits is one mistake, where it was written."""
    error = failure(
        """\
        version: 1
        defaults:
          recipes: [nope]
          model: {limits: {timeout: never}}
        models: {a: {source: "p:a"}, b: {source: "p:b"}}
        """
    )
    assert str(error).startswith("zoo.yaml:4:20: defaults.model.limits.timeout: 'never' is not a duration")
    assert len(str(error).splitlines()) == 1
    error = failure("version: 1\ndefaults: {recipes: [nope]}\nmodels: {a: {source: 'p:a'}, b: {source: 'p:b'}}\n")
    assert str(error) == (f"zoo.yaml:2:22: defaults.recipes[0]: there is no recipe 'nope'; known here: {SHIPPED}")


@pytest.mark.parametrize(
    ("defaults", "expected"),
    [
        ("{modle: {}}", "2:12: defaults.modle: unknown key 'modle'; did you mean 'model'?"),
        ("{model: {sed: 1}}", "2:20: defaults.model.sed: unknown key 'sed'; did you mean 'seed'?"),
        ("{model: {recipes: [a]}}", "2:20: defaults.model.recipes: name default recipes in `defaults.recipes`"),
        ("{model: [1]}", "2:12: defaults.model: must be a mapping"),
        ("{recipes: x}", "2:12: defaults.recipes: must be a list (found 'x')"),
        ("[]", "2:1: defaults: must be a mapping"),
    ],
)
def test_defaults_are_checked_where_no_model_uses_them(failure, defaults, expected):
    """Defaults of a file without models are checked all the same."""
    assert str(failure(f"version: 1\ndefaults: {defaults}\n")) == f"zoo.yaml:{expected}"


def test_defaults_may_hold_what_models_complete(load):
    """Defaults need not be whole models, and may hold either kind of source."""
    models = "models: {a: {source: 'p:a', recipes: [portable-fp32]}}\n"
    assert load("version: 1\ndefaults: {model: {source: {program: x.pt2}}}\n" + models).zoo.models["a"].source.builder
    assert load("version: 1\ndefaults: {model: {source: {kwargs: {k: 1}}}}\n" + models).zoo.models["a"].source.kwargs


def test_a_model_without_recipes(failure):
    """A model must have recipes from somewhere, and the message says from where."""
    error = failure("version: 1\nmodels:\n  a: {source: 'p:a'}\n")
    assert str(error) == (
        "zoo.yaml:3:3: models.a.recipes: is missing; name recipes here, or for all models in `defaults.recipes`"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "zoo.yaml:1:1: the file is empty; write at least `version: 1` and `models:`"),
        ("# only a comment\n", "zoo.yaml:1:1: the file is empty; write at least `version: 1` and `models:`"),
        ("- a\n- b\n", "zoo.yaml:1:1: a zoo file is a mapping with `version: 1` and `models:`"),
        ("just text\n", "zoo.yaml:1:1: a zoo file is a mapping with `version: 1` and `models:`"),
        ("models: {}\n", "zoo.yaml:1:1: version: is missing; it has to be given"),
        ("version: 2\n", "zoo.yaml:1:1: version: Input should be 1 (found 2)"),
        ("version: 1\nmodels: {a: 1\n", ("zoo.yaml:3:1: not valid YAML: did not find expected ',' or '}' "
            "(while parsing a flow mapping)")),
        ("version: 1\nversion: 1\n", "zoo.yaml:2:1: version: the key 'version' is written twice in the same mapping"),
    ],
)  # fmt: skip
def test_what_is_no_zoo_file(failure, text, expected):
    """Files that are not zoo files at all are told apart, each with its place."""
    assert str(failure(text)) == expected


def test_a_missing_file(tmp_path):
    """A zoo file that is not there, or a folder in its place, is a ConfigError that names it."""
    with pytest.raises(ConfigError) as caught:
        load_zoo(tmp_path / "none.yaml")
    assert str(caught.value) == f"{tmp_path}/none.yaml: cannot read {tmp_path}/none.yaml: No such file or directory"
    with pytest.raises(ConfigError, match="Is a directory"):
        load_zoo(tmp_path)


def test_a_file_that_is_not_text(write, tmp_path):
    """Bytes that are not UTF-8 are placed by line and column."""
    path = write("")
    (tmp_path / path).write_bytes("version: 1\nname: ä".encode() + b"\xff\n")
    with pytest.raises(ConfigError) as caught:
        load_zoo(path)
    assert str(caught.value) == "zoo.yaml:2:8: not UTF-8 text"


def test_errors_in_absolute_paths_are_absolute(write, tmp_path):
    """A file is named as the user named it."""
    write("version: 3\n")
    with pytest.raises(ConfigError) as caught:
        load_zoo(tmp_path / "zoo.yaml")
    assert caught.value.location == Location(f"{tmp_path}/zoo.yaml", 1, 1)


def test_a_missing_include(failure):
    """The message stands at the line that includes, and names the file as it is looked for."""
    error = failure("version: 1\ninclude:\n  - sub/none.yaml\n")
    assert str(error) == "zoo.yaml:3:5: include[0]: cannot read sub/none.yaml: No such file or directory"


def test_a_mistake_in_an_included_file(failure):
    """Mistakes in included files name that file."""
    error = failure("version: 1\ninclude: [sub/a.yaml]\n", sub__a="version: 1\nmodels:\n  x: {sorce: 'p:x'}\n")
    assert "sub/a.yaml:3:7: models.x.sorce: unknown key 'sorce'; did you mean 'source'?" in str(error).splitlines()
    error = failure("version: 1\ninclude: [sub/a.yaml]\n", sub__a="version: 1\nmodels: [\n")
    assert error.location.file == "sub/a.yaml"
    error = failure("version: 1\ninclude: [sub/a.yaml]\n", sub__a="")
    assert str(error) == "sub/a.yaml:1:1: the file is empty; write at least `version: 1` and `models:`"


def test_includes_in_a_circle(failure):
    """Files that include each other, or themselves, are an error that shows the circle."""
    error = failure(
        "version: 1\ninclude: [a.yaml]\n", a="version: 1\ninclude: [b.yaml]\n", b="version: 1\ninclude: [./zoo.yaml]\n"
    )
    assert str(error) == (
        "b.yaml:2:11: include[0]: files include each other in a circle: zoo.yaml -> a.yaml -> b.yaml -> zoo.yaml"
    )
    error = failure("version: 1\ninclude: [zoo.yaml]\n")
    assert str(error) == "zoo.yaml:2:11: include[0]: files include each other in a circle: zoo.yaml -> zoo.yaml"


def test_names_defined_twice(failure):
    """A model or recipe that two files define is an error that names both places."""
    error = failure(
        HEAD + "include: [a.yaml]\nmodels:\n  net: {source: 'p:a'}\n",
        a="version: 1\nmodels:\n\n  net: {source: 'p:b'}\n",
    )
    assert str(error) == (
        "a.yaml:4:3: models.net: the model 'net' is defined already, at zoo.yaml:5:3; give one of them another name"
    )
    recipe = "recipes:\n  r: {specializations: [{target: portable}]}\n"
    error = failure("version: 1\ninclude: [a.yaml]\n" + recipe, a="version: 1\n" + recipe)
    assert str(error) == (
        "a.yaml:3:3: recipes.r: the recipe 'r' is defined already, at zoo.yaml:4:3; give one of them another name"
    )


def test_a_file_included_under_different_defaults(failure):
    """Models that would get other defaults by each way to their file are refused, not given one of them at random."""
    error = failure(
        "version: 1\ninclude: [a.yaml, b.yaml]\n",
        a="version: 1\ninclude: [shared.yaml]\n",
        b="version: 1\ninclude: [shared.yaml]\ndefaults: {model: {seed: 3}}\n",
        shared="version: 1\nmodels: {net: {source: 'p:a'}}\n",
    )
    assert str(error) == (
        "b.yaml:2:11: include[0]: shared.yaml is included twice, and its models would get different defaults each "
        "time; include it once"
    )


def test_no_private_value_in_the_message(failure):
    """What stands behind the equals sign of a --set may be private: the location says only the key."""
    error = failure(HEAD + "models: {a: {source: 'p:a'}}\n", overrides=["models.a.source.kwargs=[hunter2]"])
    assert "hunter2" not in str(error)
    assert error.location == Location("--set models.a.source.kwargs")


def test_random_damage_is_always_a_config_error(write, tmp_path):
    """Any single line of a good file taken away, doubled or cut short either loads or is a placed ConfigError."""
    starter = Path(__file__).parents[2] / "examples/zoo/starter.yaml"
    lines = [line for line in starter.read_text(encoding="utf-8").splitlines() if not line.strip().startswith("#")]
    path = write("")
    locations = []
    for i, line in enumerate(lines):
        for damaged in ([], [line, line], [line[: len(line) // 2]], ["  " + line]):
            (tmp_path / path).write_text("\n".join([*lines[:i], *damaged, *lines[i + 1 :]]), encoding="utf-8")
            try:
                load_zoo(path)
            except ConfigError as error:
                locations.append(error.location)
    assert len(locations) > len(lines)
    assert {location.file for location in locations} == {"zoo.yaml"}
    assert all(location.line for location in locations)

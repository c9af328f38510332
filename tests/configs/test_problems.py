"""Each mistake in a zoo file is reported once, with file, line, column and field."""

from pathlib import Path

import pytest
from pteforge.configs import load_zoo, preset_names
from pteforge.errors import ConfigError, Location

HEAD = "version: 1\ndefaults: {recipes: [portable-fp32]}\n"  # the cases below continue it: they begin in line 3


@pytest.mark.parametrize(
    ("written", "column", "field", "said"),
    [
        ("sed: 3", 29, "sed", "unknown key 'sed'; did you mean 'seed'?"),
        ("colour: 3", 29, "colour", "here: accuracy, calibration, dynamic_shapes, limits, metadata, methods, recipes"),
        ("limits: {memry: 3}", 38, "limits.memry", "unknown key 'memry'; did you mean 'memory'?"),
        ("seed: x", 29, "seed", "must be a whole number (found 'x')"),
        ("seed: true", 29, "seed", "must be a whole number (found true)"),
        ("seed: -1", 29, "seed", "greater than or equal to 0 (found -1)"),
        ("strict: yes", 29, "strict", "must be true or false (found 'yes')"),
        ("recipes: portable-fp32", 29, "recipes", "must be a list (found 'portable-fp32')"),
        ("recipes: [3]", 39, "recipes[0]", "must be text (found 3)"),
        ("recipes: []", 29, "recipes", "is empty; name at least one"),
        ("recipes: [portable-fp32, portable-fp32]", 29, "recipes", "'portable-fp32' is listed twice"),
        ("recipes: [xnpack-fp32]", 39, "recipes[0]", "no recipe 'xnpack-fp32'; did you mean 'xnnpack-fp32'?"),
        ("limits: {timeout: soon}", 38, "limits.timeout", "'soon' is not a duration; write seconds, or text such as"),
        ("limits: {timeout: 0}", 38, "limits.timeout", "greater than 0 (found 0)"),
        ("limits: {memory: 4 apples}", 38, "limits.memory", "'4 apples' is not a size in bytes; write a whole number"),
        ("verify: {max_abs_error: '1'}", 38, "verify.max_abs_error", "must be a number (found '1')"),
        ("accuracy: {evaluator: score}", 40, "accuracy.evaluator", "'score' is neither 'package.module:callable'"),
        ("dynamic_shapes: {f: [{0: {min: 5, max: 2}}]}", 51, "dynamic_shapes.f[0].0", "min (5) is more than max (2)"),
        ("dynamic_shapes: {f: [{x: {min: 1, max: 2}}]}", 51, "dynamic_shapes.f[0].x", "must be a whole number"),
        ("dynamic_shapes: {f: [7]}", 50, "dynamic_shapes.f[0]", "must be a mapping of dimension index to {min, max"),
        ("dynamic_shapes: {f-w: []}", 46, "dynamic_shapes.f-w", "'f-w' is not a method name"),
        ("dynamic_shapes: {f: [{0: {min: 1, max: 2, name: n-1}}]}", 51, "dynamic_shapes.f[0].0", "name 'n-1' is not"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_model(refused, written, column, field, said):
    """One mistake gives one message, at the line and column where an editor should put the cursor."""
    zoo = f"{HEAD}models: {{a: {{source: 'p:a', {written}}}}}\n"
    refused(f"zoo.yaml:3:{column}: models.a.{field}: ", said, zoo=zoo)


@pytest.mark.parametrize(
    ("text", "place", "said"),
    [
        ("model: {}", "3:1: model:", "unknown key 'model'; did you mean 'models'?"),
        ("<: {}", "3:1: <:", "unknown key '<'"),
        ("'<dims>': {}", "3:1: <dims>:", "unknown key '<dims>'"),
        ("models: {a: {source: {builder: 'p:a', kwarg: {}}}}", "3:39: models.a.source.kwarg:", "did you mean 'kwargs'"),
        ("models: {a: {}}", "3:10: models.a.source:", "is missing"),
        ("models: {a: null}", "3:10: models.a:", "must be a mapping (found null)"),
        ("models: [a]", "3:1: models:", "must be a mapping"),
        ("models: {a b: {}}", '3:10: models."a b":', "'a b' cannot be a name, since files are named after it; use"),
        ("models: {../a: {}}", '3:10: models."../a":', "'../a' cannot be a name"),
        ("models: {a: {source: net.py}}", "3:14: models.a.source:", "'net.py' is neither 'package.module:callable'"),
        ("models: {a: {source: 3}}", "3:14: models.a.source:", "program, huggingface, timm, torchvision (found 3)"),
        ("models: {a: {source: {builder: 'p:a', program: x.pt2}}}", "3:14: models.a.source:", "keys builder, program,"),
        ("models: {a: {source: {builder: 'p:a', files: [{}]}}}", "3:47: models.a.source.files[0]:", "must be a path"),
        ("models: {}", "3:1: models:", "the zoo has no models; add one, or include a file that has some"),
        ("", "1:1: models:", "the zoo has no models"),
        ("python_path: src", "3:1: python_path:", "must be a list (found 'src')"),
        ("include: [3]", "3:11: include[0]:", "must be a path, as text (found 3)"),
        ('include: ["a\\0b"]', "3:11: include[0]:", "text cannot hold a NUL character"),
        ("name: ''", "3:1: name:", "at least 1 character (found '')"),
    ],
)  # fmt: skip
def test_a_mistake_elsewhere(refused, text, place, said):
    """The rest of a file is checked as its models are."""
    refused(f"zoo.yaml:{place} ", said, zoo=f"{HEAD}{text}\n")


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
        f"zoo.yaml:5:32: models.b.recipes[0]: there is no recipe 'nope'; known here: {', '.join(preset_names())}",
        "zoo.yaml:6:3: models.c.source: is missing; it has to be given",
        "zoo.yaml:6:7: models.c.strict: must be true or false (found 1)",
    ]
    assert (error.location, error.field) == (Location("zoo.yaml", 4, 22), "models.a.seed")


V = "version: 1\n"
RECIPE = "recipes:\n  r: {specializations: [{target: portable}]}\n"
TWO = "models: {a: {source: 'p:a'}, b: {source: 'p:b'}}\n"
SUB = V + "include: [sub/a.yaml]\n"


@pytest.mark.parametrize(
    ("said", "files"),
    [
        ("zoo.yaml:1:1: the file is empty; write at least `version: 1` and `models:`", {"zoo": "# only a comment\n"}),
        ("zoo.yaml:1:1: a zoo file is a mapping with `version: 1` and `models:`", {"zoo": "- a\n"}),
        ("zoo.yaml:1:1: version: is missing", {"zoo": "models: {}\n"}),
        ("zoo.yaml:1:1: version: Input should be 1 (found 2)", {"zoo": "version: 2\n"}),
        ("zoo.yaml:2:12: defaults.modle: unknown key 'modle'; did you mean 'model'?",
            {"zoo": V + "defaults: {modle: {}}\n"}),
        ("zoo.yaml:2:20: defaults.model.sed: unknown key 'sed'; did you mean 'seed'?",
            {"zoo": V + "defaults: {model: {sed: 1}}\n"}),
        ("zoo.yaml:2:20: defaults.model.recipes: name default recipes in `defaults.recipes`",
            {"zoo": V + "defaults: {model: {recipes: [a]}}\n"}),
        ("zoo.yaml:2:12: defaults.model: must be a mapping", {"zoo": V + "defaults: {model: [1]}\n"}),
        ("zoo.yaml:2:12: defaults.recipes: must be a list (found 'x')", {"zoo": V + "defaults: {recipes: x}\n"}),
        ("zoo.yaml:2:1: defaults: must be a mapping", {"zoo": V + "defaults: []\n"}),
        # What every model inherits is one mistake, where it was written.
        ("zoo.yaml:2:29: defaults.model.limits.timeout: 'never' is not a duration",
            {"zoo": V + "defaults: {model: {limits: {timeout: never}}, recipes: [a]}\n" + TWO}),
        ("zoo.yaml:2:22: defaults.recipes[0]: there is no recipe 'nope'; known here: ",
            {"zoo": V + "defaults: {recipes: [nope]}\n" + TWO}),
        ("zoo.yaml:3:1: not valid YAML: a `{` is not closed with `}`", {"zoo": V + "models: {a: 1\n"}),
        ("zoo.yaml:2:1: version: the key 'version' is written twice in the same mapping", {"zoo": V + V}),
        ("zoo.yaml:3:3: models.a.recipes: is missing; name recipes here, or for all models in `defaults.recipes`",
            {"zoo": V + "models:\n  a: {source: 'p:a'}\n"}),
        ("zoo.yaml:3:5: include[0]: cannot read sub/none.yaml: No such file or directory",
            {"zoo": V + "include:\n  - sub/none.yaml\n"}),
        ("sub/a.yaml:3:7: models.x.sorce: unknown key 'sorce'; did you mean 'source'?",
            {"zoo": SUB, "sub__a": V + "models:\n  x: {sorce: 1, source: 'p:x', recipes: [xnnpack-fp32]}\n"}),
        ("sub/a.yaml:3:1: not valid YAML", {"zoo": SUB, "sub__a": V + "models: [\n"}),
        ("sub/a.yaml:1:1: the file is empty", {"zoo": SUB, "sub__a": ""}),
        ("b.yaml:2:11: include[0]: files include each other in a circle: zoo.yaml -> a.yaml -> b.yaml -> zoo.yaml",
            {"zoo": V + "include: [a.yaml]\n", "a": V + "include: [b.yaml]\n", "b": V + "include: [./zoo.yaml]\n"}),
        ("zoo.yaml:2:11: include[0]: files include each other in a circle: zoo.yaml -> zoo.yaml",
            {"zoo": V + "include: [zoo.yaml]\n"}),
        ("a.yaml:4:3: models.net: the model 'net' is defined already, at zoo.yaml:5:3; give one of them another name",
            {"zoo": HEAD + "include: [a.yaml]\nmodels:\n  net: {source: 'p:a'}\n",
            "a": V + "models:\n\n  net: {source: 'p:b'}\n"}),
        ("a.yaml:3:3: recipes.r: the recipe 'r' is defined already, at zoo.yaml:4:3; give one of them another name",
            {"zoo": V + "include: [a.yaml]\n" + RECIPE, "a": V + RECIPE}),
        ("b.yaml:2:11: include[0]: shared.yaml is included twice, and its models would get different defaults",
            {"zoo": V + "include: [a.yaml, b.yaml]\n", "a": V + "include: [shared.yaml]\n",
            "b": V + "include: [shared.yaml]\ndefaults: {model: {seed: 3}}\n",
            "shared": V + "models: {net: {source: 'p:a'}}\n"}),
    ],
)  # fmt: skip
def test_mistakes_across_files(refused, said, files):
    """Files that are no zoo files, or do not fit together, are reported where the user has to change something."""
    refused(said, **files)


def test_files_that_cannot_be_read(write, tmp_path):
    """A file that is not there, is a folder or is not UTF-8 is a ConfigError that names it as the user did."""
    with pytest.raises(ConfigError) as caught:
        load_zoo(tmp_path / "none.yaml")
    assert str(caught.value) == f"{tmp_path}/none.yaml: cannot read {tmp_path}/none.yaml: No such file or directory"
    with pytest.raises(ConfigError, match="Is a directory"):
        load_zoo(tmp_path)
    path = write("")
    (tmp_path / path).write_bytes("version: 1\nname: ä".encode() + b"\xff\n")
    with pytest.raises(ConfigError, match=r"^zoo\.yaml:2:8: not UTF-8 text$"):
        load_zoo(path)


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

"""Recipes: shipped ones, the zoo's own ones, and ``extends``."""

from __future__ import annotations

import textwrap

import pytest
from pteforge.configs import CompileOptions, EdgeOptions, Recipe, Specialization, preset_names
from pteforge.configs.extends import read_preset
from pteforge.configs.nodes import plain
from pteforge.configs.verify_bounds import Verification, VerifyBounds
from pydantic import ValidationError

MODELS = "models: {net: {source: 'p:net', recipes: [mine]}}\n"


def test_shipped_recipes():
    """The shipped recipes are known by name, valid as they are, and say what they are for.

    Each is for the target it is named after; those that are fat fall back to the portable kernels.
    """
    assert preset_names() == (
        "coreml-codebook-weight-only",
        "coreml-fp16",
        "coreml-fp32",
        "coreml-int4-weight-only-per-channel",
        "coreml-int4-weight-only-per-group",
        "coreml-int8-static",
        "coreml-int8-weight-only",
        "coreml-int8-weight-only-per-channel",
        "coreml-int8-weight-only-per-group",
        "portable-fp32",
        "xnnpack-fp32",
        "xnnpack-int8-dynamic",
        "xnnpack-int8-static",
        "xnnpack-int8-static-per-tensor",
        "xnnpack-int8da-int4w-per-channel",
        "xnnpack-int8da-int4w-per-tensor",
    )
    for name in preset_names():
        recipe = Recipe.model_validate(plain(read_preset(name)))
        fallback = ["portable"] if recipe.output.form == "fat" else []
        assert [each.target for each in recipe.specializations] == [name.split("-")[0], *fallback]
        assert recipe.description
        assert (recipe.verify.bounds == VerifyBounds()) is (name in {"portable-fp32", "xnnpack-fp32"})
        assert (recipe.quantize is None and not recipe.source_transforms) is name.endswith(("fp32", "fp16"))
    assert read_preset("nothing") is None
    assert read_preset("../presets/portable-fp32") is None


def test_defaults_are_those_of_executorch():
    """A recipe that says nothing asks for what ExecuTorch does by itself."""
    recipe = Recipe(specializations=(Specialization(target="portable"),))
    assert recipe.edge == EdgeOptions(preserve_operators=(), check_ir_validity=True, skip_dim_order=False)
    assert recipe.compile == CompileOptions(
        extract_delegate_segments=True,
        segment_alignment=128,
        constant_tensor_alignment=None,
        delegate_alignment=None,
        alloc_graph_input=True,
        alloc_graph_output=True,
        emit_stacktrace=False,
    )
    assert recipe.output.form == "plain"
    assert recipe.specializations[0].required


def test_only_what_is_used_is_pulled_in(load):
    """Of the shipped recipes those that a model names come along; of the zoo's own ones all do."""
    recipe = "{specializations: [{target: portable}]}"
    loaded = load(f"version: 1\n{MODELS}recipes: {{mine: {recipe}, spare: {recipe}}}\n")
    assert sorted(loaded.zoo.recipes) == ["mine", "spare"]


def test_extends_merges(load):
    """A recipe starts from the one it extends: mappings merge, lists replace, through several steps."""
    loaded = load(
        """\
        version: 1
        models: {net: {source: "p:net", recipes: [mine]}}
        recipes:
          middle:
            extends: xnnpack-fp32
            compile: {segment_alignment: 4096, delegate_alignment: 64}
            edge: {preserve_operators: [aten.linear.default]}
            verify: {max_abs_error: 0.1}
          mine:
            extends: middle
            description: my own
            compile: {delegate_alignment: null}
            edge: {preserve_operators: [aten.silu.default]}
        """
    )
    mine = loaded.zoo.recipes["mine"]
    assert mine.description == "my own"
    assert [specialization.target for specialization in mine.specializations] == ["xnnpack"]
    assert mine.compile == CompileOptions(segment_alignment=4096, delegate_alignment=None)
    assert mine.edge.preserve_operators == ("aten.silu.default",)
    assert mine.verify == Verification(max_abs_error=0.1)


def test_a_base_need_not_be_whole(load, failure):
    """A recipe that only serves as a base may lack specializations; one that a model uses may not."""
    recipes = """\
recipes:
  base: {verify: {min_sqnr_db: 50}}
  mine: {extends: base, specializations: [{target: portable}]}
"""
    assert load(f"version: 1\n{MODELS}{recipes}").zoo.recipes["mine"].verify.min_sqnr_db == 50
    error = failure("version: 1\nmodels: {net: {source: 'p:net', recipes: [mine, base]}}\n" + recipes)
    assert str(error) == "zoo.yaml:4:3: recipes.base.specializations: is missing; it has to be given"


def test_a_mistake_in_a_base_is_said_where_it_is(failure):
    """What is wrong in a base is said there, once, however many recipes extend it."""
    error = failure(
        """\
        version: 1
        models: {net: {source: "p:net", recipes: [a, b]}}
        recipes:
          base: {compile: {segment_alignment: 100}, specializations: [{target: portable}]}
          a: {extends: base}
          b: {extends: base}
        """
    )
    assert str(error) == "zoo.yaml:4:20: recipes.base.compile.segment_alignment: must be a power of two"


def test_a_recipe_may_refine_the_preset_it_is_named_after(load):
    """Extending its own name means the shipped recipe of that name."""
    loaded = load(
        """\
        version: 1
        models: {net: {source: "p:net", recipes: [xnnpack-fp32, finer]}}
        recipes:
          xnnpack-fp32: {extends: xnnpack-fp32, compile: {segment_alignment: 64}}
          finer: {extends: xnnpack-fp32, compile: {delegate_alignment: 32}}
        """
    )
    assert loaded.zoo.recipes["xnnpack-fp32"].compile == CompileOptions(segment_alignment=64)
    assert loaded.zoo.recipes["finer"].compile == CompileOptions(segment_alignment=64, delegate_alignment=32)


@pytest.mark.parametrize(
    ("recipes", "expected"),
    [
        (
            "{mine: {extends: other}, other: {extends: mine}}",
            "3:43: recipes.other.extends: recipes extend each other in a circle: mine -> other -> mine",
        ),
        ("{mine: {extends: nope}}", "3:18: recipes.mine.extends: there is no recipe 'nope'; known here: "),
        ("{mine: {extends: mine}}", "3:18: recipes.mine.extends: there is no recipe 'mine'; did you mean 'mine'?"),
        ("{mine: {extends: [a]}}", "3:18: recipes.mine.extends: must be the name of one recipe"),
        (
            "{mine: {extend: a, specializations: [{target: t}]}}",
            "3:18: recipes.mine.extend: unknown key 'extend'; did you mean 'extends'?",
        ),
        ("{mine: {specializations: []}}", "recipes.mine.specializations: is empty; a recipe needs at least one"),
        (
            "{mine: {specializations: [{target: portable}, {target: xnnpack}]}}",
            (
                "recipes.mine.specializations: `output.form: plain` takes exactly one specialization, and here are 2 "
                "(portable, xnnpack); write one recipe for each"
            ),
        ),
        ("{mine: {specializations: [{}]}}", "recipes.mine.specializations[0].target: is missing"),
        ("{mine: {specializations: [portable]}}", "recipes.mine.specializations[0]: must be a mapping"),
        (
            "{mine: {output: {form: fat}, specializations: [{target: vulkan}, {target: vulkan}]}}",
            "'vulkan' is there more than once; give each a `name` of its own",
        ),
        (
            "{mine: {output: {form: fat}, specializations: [{target: portable, required: false}]}}",
            "the last one is what every device falls back to; it cannot be `required: false`",
        ),
        (
            "{mine: {extends: xnnpack-fp32, output: {form: thin}}}",
            "recipes.mine.output.form: Input should be 'plain' or 'fat' (found 'thin')",
        ),
        (
            "{mine: {extends: xnnpack-fp32, compile: {delegate_alignment: 0}}}",
            "recipes.mine.compile.delegate_alignment: must be a power of two",
        ),
        (
            "{mine: {extends: xnnpack-fp32, verify: {drawn_inputs: -1}}}",
            "recipes.mine.verify.drawn_inputs: Input should be greater than or equal to 0 (found -1)",
        ),
        (
            "{mine: {extends: xnnpack-fp32, edge: {preserve_operator: []}}}",
            "recipes.mine.edge.preserve_operator: unknown key 'preserve_operator'; did you mean 'preserve_operators'?",
        ),
    ],
)
def test_mistakes_in_recipes(failure, recipes, expected):
    """Each mistake in a recipe has one message, and it names the recipe."""
    error = failure(f"version: 1\n{MODELS}recipes: {recipes}\n")
    assert expected in str(error)
    assert str(error).startswith("zoo.yaml:3:")
    assert len(str(error).splitlines()) == 1


def test_plain_takes_one_specialization_in_python_too():
    """The rule holds for recipes made in Python as for those in files."""
    one = Specialization(target="portable")
    with pytest.raises(ValidationError, match="takes exactly one specialization"):
        Recipe(specializations=(one, one))


def test_models_that_a_recipe_is_not_for(load):
    """The first glob that matches a model's name gives the reason; what it extends comes first."""
    recipes = """\
        recipes:
          base: {specializations: [{target: portable}], not_for: {net: no such kernel}}
          mine: {extends: base, not_for: {'n*': no memory}}
        """
    zoo = load(f"version: 1\n{MODELS}{textwrap.dedent(recipes)}").zoo
    mine = zoo.recipes["mine"]
    assert mine.not_for == {"net": "no such kernel", "n*": "no memory"}
    assert mine.reason_against("net") == "no such kernel"
    assert mine.reason_against("nets") == "no memory"
    assert mine.reason_against("other") is None


@pytest.mark.parametrize(
    ("not_for", "telling"),
    [
        ("{nett: slow}", ("recipes.mine.not_for.nett: no model matches 'nett'; did you mean 'net'?",)),
        ("{'r*': slow}", ("recipes.mine.not_for.r*: no model matches 'r*'; known here: net",)),
        ("{net: ''}", ("recipes.mine.not_for.net",)),
        ("[net]", ("recipes.mine.not_for: must be a mapping",)),
    ],
)
def test_models_that_there_are_not(failure, not_for, telling):
    """A recipe that is not for models which the zoo does not have, or gives no reason, is an error with its line."""
    recipe = f"recipes:\n  mine:\n    specializations: [{{target: portable}}]\n    not_for: {not_for}\n"
    error = str(failure(f"version: 1\n{MODELS}{recipe}"))
    assert "zoo.yaml:6:" in error
    for part in telling:
        assert part in error


def test_method_options():
    """What differs for a method is read; what cannot be meant together is refused in words."""
    own = {"decode": {"delegate": False, "edge": {"skip_dim_order": True}, "alloc_graph_input": False}}
    (made,) = Recipe.model_validate({"specializations": [{"target": "xnnpack", "methods": own}]}).specializations
    assert made.methods["decode"].edge == EdgeOptions(skip_dim_order=True)
    assert made.methods["decode"].alloc_graph_output is None

    for wrong, message in [
        ({"decode": {"delegate": False, "target": "xnnpack"}}, "leaves nothing for `target` and `options` to say"),
        ({"two words": {}}, "'two words' is not a method name"),
        ({"decode": {"delgate": False}}, "Extra inputs are not permitted"),
    ]:
        with pytest.raises(ValidationError, match=message):
            Recipe.model_validate({"specializations": [{"target": "xnnpack", "methods": wrong}]})


def test_state_is_shared_in_plain_files_only():
    """In a fat file each method's delegate has memory of its own, so shared state is refused and not lost."""
    fat = {"specializations": [{"target": "portable"}], "output": {"form": "fat"}}
    with pytest.raises(ValidationError, match="each method of a fat file is a delegate of its own"):
        Recipe.model_validate({**fat, "compile": {"share_mutable_buffers": True}})

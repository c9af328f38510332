"""Plans: which steps a model's recipes need, what they read, and which of them are one."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
from pteforge.configs.model import ModelConfig
from pteforge.configs.recipe import Recipe
from pteforge.errors import InputError, SourceError
from pteforge.tasks.bisect_plan import plan_ladders
from pteforge.tasks.catalog import StageName
from pteforge.tasks.model import PlannedModel
from pteforge.tasks.plan import complete_step, plan_model
from pteforge.tasks.recipe_targets import find_targets
from pteforge.tasks.steps import Output


@pytest.fixture
def plan(tmp_path):
    """Plans a model with recipes: name to target, options, and further fields of the recipe."""
    (tmp_path / "planned_builder.py").write_text("def build():\n    return None\n")

    def make(methods=("forward",), watched=None, until=None, planner=plan_model, **recipes):
        planned = []
        for name, (target, options, fields) in recipes.items():
            recipe = Recipe.model_validate({"specializations": [{"target": target, "options": options}], **fields})
            found = find_targets(name, recipe, recipe.verify, lambda problem, field: InputError(f"{field}: {problem}"))
            planned.append(replace(found, until=(until or {}).get(name)))
        model = PlannedModel(
            name="model",
            config=ModelConfig.model_validate({"source": "planned_builder:build"}),
            recipes=tuple(planned),
            drawn_inputs=2,
            python_path=(tmp_path,),
            folder=tmp_path,
        )
        lists = {model.watch_name(method): modules for method, modules in (watched or {}).items()}
        return planner(model, methods, lambda name: lists.get(name, ()))

    return make


PORTABLE = ("portable", {}, {})
XNNPACK = ("xnnpack", {}, {})
ASKED_FOR = {
    StageName.PACK,
    StageName.SOURCE_TRANSFORM,
    StageName.CALIBRATION,
    StageName.QUANTIZE,
    StageName.LADDER,
    StageName.BISECT,
    StageName.BASELINE,
    StageName.EVALUATE,
    StageName.GATE,
}
"""Stages that only some recipes and models have."""


def names(plan, stage):
    """Names of a stage's steps."""
    return [step.name for step in plan.steps if step.stage is stage]


def step(plan, name):
    """One step."""
    return next(each for each in plan.steps if each.name == name)


def test_first_export_alone(plan):
    """Until the methods are known there is one step, and it exports whatever the first method is."""
    first = plan(None, a=PORTABLE, b=XNNPACK)
    (export,) = first.steps
    assert (export.name, export.stage, export.params.method) == ("export", StageName.EXPORT, None)
    assert export.recipes == ("a", "b")
    assert export == plan(("forward",), a=PORTABLE, b=XNNPACK).steps[0]


def test_portable(plan):
    """Without a partitioner, programs go from edge to compile as they are."""
    made = plan(p=PORTABLE)
    assert [each.name for each in made.steps] == [
        "export",
        "edge/forward/p",
        "compile/p",
        "serialize/p",
        "verify/p",
        "report/p",
    ]
    assert step(made, "compile/p").inputs == {
        "program/forward": Output("edge/forward/p", "program"),
        "constants": Output("export", "constants"),
    }
    assert made.reports == {"p": "report/p"}


def test_methods(plan):
    """Each method is exported, made edge and partitioned by itself; preprocess and all after it take all of them."""
    made = plan(("forward", "encode"), x=XNNPACK)
    assert names(made, StageName.EXPORT) == ["export", "export/encode"]
    assert step(made, "export/encode").params.method == "encode"
    assert names(made, StageName.EDGE) == ["edge/forward/x", "edge/encode/x"]
    assert names(made, StageName.PARTITION) == ["partition/forward/x", "partition/encode/x"]
    programs = {f"program/{method}": Output(f"partition/{method}/x", "program") for method in ("forward", "encode")}
    assert step(made, "preprocess/x").inputs == programs
    assert step(made, "compile/x").inputs == programs | {
        "constants": Output("export", "constants"),
        "delegates": Output("preprocess/x", "delegates"),
    }
    examples = {
        "examples/forward": Output("export", "examples"),
        "examples/encode": Output("export/encode", "examples"),
    }
    assert step(made, "verify/x").inputs == {
        "file": Output("serialize/x", "file"),
        "constants": Output("export", "constants"),
        **examples,
    }
    assert step(made, "serialize/x").params.methods == ("forward", "encode")


def test_export_is_shared(plan):
    """However many recipes there are, each method is exported once."""
    made = plan(("forward", "encode"), a=PORTABLE, b=XNNPACK, c=("xnnpack", {"per_operator": True}, {}))
    assert names(made, StageName.EXPORT) == ["export", "export/encode"]
    assert step(made, "export/encode").recipes == ("a", "b", "c")


def test_equal_edge_programs_are_made_once(plan):
    """Options that do not matter for decomposition share the edge step; XNNPACK's is not the portable one."""
    made = plan(p=PORTABLE, a=XNNPACK, b=("xnnpack", {"per_operator": True}, {}))
    assert names(made, StageName.EDGE) == ["edge/forward/p", "edge/forward/a"]
    assert step(made, "edge/forward/a").recipes == ("a", "b")
    assert names(made, StageName.PARTITION) == ["partition/forward/a", "partition/forward/b"]
    assert step(made, "partition/forward/b").inputs == {"program": Output("edge/forward/a", "program")}


@pytest.mark.parametrize(
    "other",
    [
        ("xnnpack", {"precisions": ["fp32"]}, {}),
        ("xnnpack", {"force_non_static_weights_for_f32_linear": True}, {}),
        ("xnnpack", {}, {"edge": {"skip_dim_order": True}}),
        ("xnnpack", {}, {"edge": {"check_ir_validity": False}}),
        ("xnnpack", {}, {"edge": {"preserve_operators": ["aten.hardswish.default"]}}),
    ],
)
def test_other_edge_programs_are_not_shared(other, plan):
    """Options that matter for decomposition make another edge step."""
    assert names(plan(a=XNNPACK, b=other), StageName.EDGE) == ["edge/forward/a", "edge/forward/b"]


@pytest.mark.parametrize(
    ("field", "first_own"),
    [
        ({"compile": {"segment_alignment": 4096}}, StageName.COMPILE),
        ({"verify": {"min_sqnr_db": 10.0}}, StageName.VERIFY),
        ({"description": "the same"}, StageName.REPORT),
    ],
)
def test_recipes_part_where_they_differ(field, first_own, plan):
    """Two recipes share every step before the first that reads what they differ in."""
    made = plan(a=XNNPACK, b=("xnnpack", {}, field))
    own = {each.stage for each in made.steps if each.recipes == ("b",)}
    order = [stage for stage in StageName if stage not in ASKED_FOR]
    assert own == set(order[order.index(first_own) :])


def test_recipe_steps_are_all_that_a_report_needs(plan):
    """What a recipe needs is its report and everything before it, shared steps included, and nothing else."""
    made = plan(("forward", "encode"), p=PORTABLE, a=XNNPACK, b=("xnnpack", {"per_operator": True}, {}))
    for name, needed in made.recipe_steps.items():
        assert set(needed) == {each.name for each in made.steps if name in each.recipes}


@pytest.mark.parametrize("methods", [("forward",), ("b", "a", "c")])
def test_steps_come_after_what_they_read(methods, plan):
    """The order of a plan is one in which it can be run, and every role that is read is given."""
    made = plan(methods, p=PORTABLE, a=XNNPACK, b=("xnnpack", {"per_operator": True}, {}))
    outputs = {
        StageName.EXPORT: {"program", "examples", "methods", "constants", "observed"},
        StageName.EDGE: {"program"},
        StageName.PARTITION: {"program"},
        StageName.PREPROCESS: {"delegates"},
        StageName.COMPILE: {"payload"},
        StageName.SERIALIZE: {"file"},
        StageName.VERIFY: {"figures"},
    }
    known = {}
    for each in made.steps:
        for output in each.inputs.values():
            assert output.role in outputs[known[output.step]]
        known[each.name] = each.stage
    assert len(known) == len(made.steps)


def test_targets_of_steps(plan):
    """A target's code is part of the steps in which it runs, and of no others: edge where it keeps operators."""
    made = plan(p=PORTABLE, x=XNNPACK)
    with_target = {each.name for each in made.steps if each.targets}
    assert with_target == {"edge/forward/x", "partition/forward/x", "preprocess/x"}


def test_reports_get_the_keys_of_their_steps(plan):
    """Before a report can run, the keys of the steps of its recipe are filled in; other steps stay as they are."""
    made = plan(p=PORTABLE, x=XNNPACK)
    keys = {each.name: f"{number:064x}" for number, each in enumerate(made.steps)}
    complete = complete_step(step(made, "report/p"), made, keys)
    stage_keys = complete.params.stage_keys
    assert stage_keys.keys() == {"export", "edge/forward", "compile", "serialize", "verify"}
    assert stage_keys["edge/forward"] == keys["edge/forward/p"]
    assert set(stage_keys.values()) == {keys[name] for name in made.recipe_steps["p"] if name != "report/p"}
    edge = step(made, "edge/forward/x")
    assert complete_step(edge, made, keys) is edge


def test_watched_modules_enter_their_methods_export(plan, tmp_path: Path):
    """What earlier runs loaded for a method is part of that method's params, and of no other's."""
    (tmp_path / "planned_other.py").write_text("VALUE = 1\n")
    bare = plan(("forward", "encode"), p=PORTABLE)
    watching = plan(("forward", "encode"), {"encode": ("planned_other",)}, p=PORTABLE)

    assert step(watching, "export") == step(bare, "export")
    assert "planned_other" not in step(bare, "export/encode").params.source["modules"]
    assert "planned_other" in step(watching, "export/encode").params.source["modules"]


def test_provenance_does_not_depend_on_which_recipes_are_asked_for(plan):
    """A recipe's report says the same whether it is made alone or beside others that share its steps."""
    both = plan(a=XNNPACK, b=("xnnpack", {"per_operator": True}, {}))
    alone = plan(b=("xnnpack", {"per_operator": True}, {}))
    reports = [
        complete_step(step(made, "report/b"), made, {each.name: "0" * 64 for each in made.steps})
        for made in (both, alone)
    ]
    assert reports[0].params == reports[1].params


def test_plans_are_values(plan):
    """Equal configurations give equal plans, in any order of their recipes but for the order of steps."""
    recipes = {"p": PORTABLE, "x": XNNPACK}
    assert plan(**recipes) == plan(**recipes)
    for order in itertools.permutations(recipes):
        made = plan(**{name: recipes[name] for name in order})
        assert {each.name for each in made.steps} == {each.name for each in plan(**recipes).steps}


def test_nothing_names_the_machine(plan, tmp_path: Path):
    """No path is in the params of any step, so that keys do not depend on where a zoo lies."""
    for each in plan(("forward", "encode"), p=PORTABLE, x=XNNPACK).steps:
        assert str(tmp_path) not in each.params.model_dump_json()


def fat(*specializations):
    """A recipe for a fat file: names of targets, or whole specializations."""
    return (
        "",
        {},
        {"output": {"form": "fat"}, "specializations": [as_specialization(each) for each in specializations]},
    )


def as_specialization(given):
    """What a recipe has for a name."""
    return {"target": given} if isinstance(given, str) else given


def work(plan):
    """What a plan's steps do, by name."""
    return {each.name: (each.stage, each.params, tuple(sorted(each.inputs.items()))) for each in plan.steps}


def test_fat_files_pack_all_payloads_by_preference(plan):
    """Every specialization has a chain of its own to its payload; the fallback says how methods are called."""
    made = plan(f=fat("vulkan", "xnnpack", "portable"))
    pack = step(made, "pack/f")
    assert [payload.name for payload in pack.params.payloads] == ["vulkan", "xnnpack", "portable"]
    assert pack.inputs == {
        f"payload/{name}": Output(f"compile/f.{name}", "payload") for name in ("vulkan", "xnnpack", "portable")
    }
    serialize = step(made, "serialize/f")
    assert serialize.inputs == {
        "container": Output("pack/f", "container"),
        "payload": Output("compile/f.portable", "payload"),
    }
    assert serialize.isolated
    assert names(made, StageName.EXPORT) == ["export"]


def test_a_changed_option_of_one_specialization(plan):
    """Params change only in its own chain and in the report; what reads its payload runs since that is another."""
    before = work(plan(f=fat("vulkan", "xnnpack", "portable")))
    after = work(plan(f=fat("vulkan", {"target": "xnnpack", "options": {"per_operator": True}}, "portable")))
    changed = {name for name in after if after[name] != before.get(name)}
    assert changed == {"partition/forward/f.xnnpack", "preprocess/f.xnnpack", "report/f"}


def test_a_specialization_less(plan):
    """Without one of them only pack and the report do other work; what is between reads what pack gives."""
    before, after = work(plan(f=fat("vulkan", "xnnpack", "portable"))), work(plan(f=fat("xnnpack", "portable")))
    assert {name for name in after if after[name] != before.get(name)} == {"pack/f", "report/f"}
    assert {name for name in before.keys() - after.keys() if not name.endswith("f.vulkan")} == set()


def test_what_could_not_be_made_is_left_out(plan):
    """Pack goes on without an optional payload whose chain failed, and the report says so."""
    made = plan(f=fat({"target": "vulkan", "required": False}, "xnnpack", "portable"))
    keys = {each.name: "0" * 64 for each in made.steps if not each.name.endswith("f.vulkan")}
    pack = complete_step(step(made, "pack/f"), made, keys)
    assert pack.optional == {"payload/vulkan"}
    assert [payload.name for payload in pack.params.payloads] == ["xnnpack", "portable"]
    assert set(pack.inputs) == {"payload/xnnpack", "payload/portable"}
    report = complete_step(step(made, "report/f"), made, keys)
    assert report.params.left_out == ("vulkan",)
    assert "compile.xnnpack" in report.params.stage_keys
    assert not any("vulkan" in part for part in report.params.stage_keys)


def test_what_a_step_requires(plan):
    """What leads to an optional payload only is needed by a recipe, and not required."""
    made = plan(f=fat({"target": "vulkan", "required": False}, "xnnpack", "portable"))
    required = made.required_by("report/f")
    assert set(made.recipe_steps["f"]) - set(required) == {
        f"{stage}/f.vulkan" for stage in ("edge/forward", "partition/forward", "preprocess", "compile")
    }
    assert required[0] == "export"


INT8 = {"source_transforms": [{"torchao": "int8_weight_only"}]}


def test_transformed_methods_are_exported_apart(plan):
    """What is lowered comes from transformed modules; the rest from `export`, which fp32 recipes share."""
    made = plan(("forward", "encode"), p=PORTABLE, t=("portable", {}, INT8))
    assert names(made, StageName.EXPORT) == ["export", "export/encode"]
    assert step(made, "export").recipes == ("p", "t")
    assert names(made, StageName.SOURCE_TRANSFORM) == ["source_transform/forward/t", "source_transform/encode/t"]
    assert step(made, "edge/encode/t").inputs == {"program": Output("source_transform/encode/t", "program")}
    assert step(made, "compile/t").inputs["constants"] == Output("export", "constants")
    assert step(made, "verify/t").inputs["examples/encode"] == Output("export/encode", "examples")
    params = step(made, "source_transform/encode/t").params
    assert (params.method, params.source) == ("encode", step(made, "export").params.source)


def test_changed_transforms(plan):
    """Params change in `source_transform` and in no other step; what comes after runs where its program is another."""
    int4 = {"source_transforms": [{"torchao": "int8_weight_only", "params": {"group_size": 32}}]}
    before, after = (work(plan(t=("xnnpack", {}, fields))) for fields in (INT8, int4))
    assert {name for name in after if after[name] != before[name]} == {"source_transform/forward/t"}


def test_equal_transforms_are_done_once(plan):
    """Recipes that write the same transform in other words share the step."""
    other = {"source_transforms": [{"torchao": "Int8WeightOnlyConfig", "filter": "*"}]}
    made = plan(a=("portable", {}, INT8), b=("xnnpack", {}, other))
    assert [each.recipes for each in made.steps if each.stage is StageName.SOURCE_TRANSFORM] == [("a", "b")]


def test_quantizers_take_transformed_programs(plan):
    """PT2E quantizes what transforms gave, and calibrates on the model's own examples."""
    planned = plan(t=("xnnpack", {}, INT8 | {"quantize": {"quantizer": "xnnpack"}}))
    assert step(planned, "quantize/forward/t").inputs == {
        "program": Output("source_transform/forward/t", "program"),
        "examples": Output("export", "examples"),
    }


def test_the_code_of_callables_is_in_the_params(plan, tmp_path: Path):
    """A change of a callable's code changes its stage, and no other."""
    (tmp_path / "planned_transform.py").write_text("def fold(module):\n    return module\n")
    fields = {"source_transforms": [{"callable": "planned_transform:fold", "kwargs": {"deep": True}}]}
    before = work(plan(t=("portable", {}, fields)))
    (tmp_path / "planned_transform.py").write_text("def fold(module):\n    return module.eval()\n")
    after = work(plan(t=("portable", {}, fields)))
    assert {name for name in after if after[name] != before[name]} == {"source_transform/forward/t"}


def test_methods_without_partitioner_go_from_edge_to_compile(plan):
    """`delegate: false` leaves a method out of partition and preprocess, and its edge program is the portable one."""
    one = {"specializations": [{"target": "xnnpack", "methods": {"decode": {"delegate": False}}}]}
    made = plan(["encode", "decode"], p=PORTABLE, x=("xnnpack", {}, one))

    assert names(made, StageName.PARTITION) == ["partition/encode/x"]
    assert set(step(made, "preprocess/x").inputs) == {"program/encode"}
    assert step(made, "compile/x").inputs["program/decode"] == Output("edge/decode/p", "program")


def test_methods_may_have_targets_of_their_own(plan):
    """Another target's code takes part for its method only; what backends make of all methods is one call."""
    own = {"methods": {"decode": {"target": "vulkan", "options": {"force_fp16": True}}}}
    made = plan(["encode", "decode"], x=("xnnpack", {}, {"specializations": [{"target": "xnnpack", **own}]}))

    def targets(name):
        return [each.name for each in step(made, name).targets]

    assert targets("partition/encode/x") == ["xnnpack"]
    assert targets("partition/decode/x") == ["vulkan"]
    assert step(made, "partition/decode/x").params.target.options["force_fp16"] is True
    assert targets("preprocess/x") == ["xnnpack", "vulkan"]
    assert step(made, "serialize/x").params.backends == ("XnnpackBackend", "VulkanBackend")


def test_methods_that_the_model_does_not_have(plan):
    """A recipe that says something of an unknown method is refused when the methods are known, with their names."""
    own = {"specializations": [{"target": "xnnpack", "methods": {"decoed": {"delegate": False}}}]}
    with pytest.raises(SourceError, match=r"'x' names the methods \['decoed'\]; the model has \['encode', 'decode'\]"):
        plan(["encode", "decode"], x=("xnnpack", {}, own))


def test_a_recipe_that_is_cut_short(plan):
    """It has the steps up to its last stage and no report; other recipes of the model are whole."""
    made = plan(a=XNNPACK, b=PORTABLE, until={"a": StageName.PARTITION})
    assert made.recipe_steps["a"] == ("export", "edge/forward/a", "partition/forward/a")
    assert set(made.recipe_parts["a"]) == {"export", "edge/forward", "partition/forward"}
    assert made.reports == {"b": "report/b"}
    assert {each.name for each in made.steps if "a" in each.recipes} == set(made.recipe_steps["a"])
    whole = plan(a=XNNPACK, b=PORTABLE)
    assert [each for each in whole.steps if each in made.steps] == list(made.steps)


def test_passes_make_an_edge_program_of_its_own(plan, monkeypatch):
    """A target with passes shares no edge program with others, and its code is in the key; without, it does."""
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "flows" / "packages" / "flawed")
    passes = {"flaw": "subtracts"}
    made = plan(p=PORTABLE, none=("flawed", {}, {}), a=("flawed", passes, {}), b=("flawed", passes | {"note": "x"}, {}))
    assert names(made, StageName.EDGE) == ["edge/forward/p", "edge/forward/a"]
    assert step(made, "edge/forward/p").recipes == ("p", "none")
    shared = step(made, "edge/forward/a")
    assert shared.recipes == ("a", "b")
    assert [target.name for target in shared.targets] == ["flawed"]
    assert shared.params.passes_of.options == passes


def test_ladder(plan):
    """A recipe that asks for a ladder has one, which verification does not wait for, and its report does without."""
    made = plan(("forward", "encode"), a=("xnnpack", {}, {"verify": {"ladder": True}}), b=XNNPACK)
    ladder = step(made, "ladder/a")
    assert [rung.name for rung in ladder.params.rungs] == ["exported", "edge", "payload"]
    assert ladder.inputs == {
        "examples/forward": Output("export", "examples"),
        "examples/encode": Output("export/encode", "examples"),
        "rung/exported/forward": Output("export", "program"),
        "rung/exported/encode": Output("export/encode", "program"),
        "rung/edge/forward": Output("edge/forward/a", "program"),
        "rung/edge/encode": Output("edge/encode/a", "program"),
        "rung/payload": Output("compile/a", "payload"),
    }
    assert ladder.optional == frozenset(role for role in ladder.inputs if role.startswith("rung/"))
    assert names(made, StageName.LADDER) == ["ladder/a"]
    assert "ladder/a" not in {output.step for output in step(made, "verify/a").inputs.values()}
    assert step(made, "report/a").optional == {"numerics"}
    assert "numerics" not in step(made, "report/b").inputs


def test_plan_up_to_ladders(plan):
    """Finding out where quality is lost takes no file, no verification and no report, and the same steps otherwise."""
    recipes = {"a": XNNPACK, "b": PORTABLE}
    made = plan(planner=plan_ladders, **recipes)
    left_out = {StageName.SERIALIZE, StageName.VERIFY, StageName.REPORT}
    whole = [each for each in plan(**recipes).steps if each.stage not in left_out]
    assert [each for each in made.steps if each.stage is not StageName.LADDER] == whole
    assert made.reports == {"a": "ladder/a", "b": "ladder/b"}
    assert plan(None, planner=plan_ladders, **recipes) == plan(None, **recipes)


def test_ladder_that_is_there_already(plan):
    """A recipe that has a ladder anyway is looked into with the very step that its own runs have made."""
    asking = ("xnnpack", {}, {"verify": {"ladder": True}})
    assert step(plan(planner=plan_ladders, a=asking), "ladder/a") == step(plan(a=asking), "ladder/a")

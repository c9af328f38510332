"""The DAG of a model: which stages its recipes call, what each reads, and what a failure costs."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from pteforge.artifacts.digest import digest_json
from pteforge.artifacts.ref import ArtifactRef
from pteforge.artifacts.store import open_store
from pteforge.configs.model import ModelConfig
from pteforge.configs.recipe import Recipe
from pteforge.configs.verification import resolve_gate
from pteforge.errors import ConfigError, InputError, SourceError, StageFailed
from pteforge.tasks.engine.keys.code import StageKey
from pteforge.tasks.engine.keys.search import ModuleSearch
from pteforge.tasks.engine.runner import CutShort, Done
from pteforge.tasks.engine.stage import unknown_roles
from pteforge.tasks.file.stages.report import Report
from pteforge.tasks.lowering.graph import STAGES, check_stage, lower_model, lower_to_ladder
from pteforge.tasks.lowering.model import PlannedModel, plan_recipe
from pteforge.tasks.lowering.runs import History, ModelRun, run_without_loop
from pteforge.tests.lowering import PORTABLE, XNNPACK, recipe

PER_OPERATOR = recipe({"target": "xnnpack", "options": {"per_operator": True}})


INT8 = {"source_transforms": [{"torchao": "int8_weight_only"}]}
LADDER = {**XNNPACK, "verify": {"ladder": True}}


class Recorder:
    """A runner that runs nothing: it notes the calls, and answers with made-up artifacts that depend on the work."""

    def __init__(self, store, methods, failing, loop, norms, idle):
        self.store = store
        self.idle = idle  # targets to which nothing is delegated
        self.norms = norms  # whether the model has batch norms
        self.calls = {}
        self.failing = failing
        self.loop = loop
        self._methods = store.local.put_artifact("model/methods", str(list(methods)).replace("'", '"').encode())

    async def __call__(self, call):
        if self.loop:
            await asyncio.sleep(0)
        self.calls[str(call.id)] = call
        if str(call.id) in self.failing:
            raise StageFailed(f"{call.id} fails")
        if call.stage.name == "export":  # the key has what the user's code was seen to read
            source = {**call.params.source, "read": {"labels.txt": "1" * 64}}
            call = replace(call, params=call.params.model_copy(update={"source": source}))
        inputs = {role: ref.identity for role, ref in call.inputs.items()}
        key = StageKey(call.stage.name, "0" * 64, {}, inputs, call.params.model_dump(mode="json"))
        made = {
            role: ArtifactRef(ref.kind, ref.root, digest_json([key.digest(), role]))
            for role, ref in unknown_roles(call.stage.Outputs).items()
            if role not in ("weights", "metadata")
            and (role != "batch_norms" or self.norms)
            and (role != "delegated" or call.params.target.name not in self.idle)
        }
        return Done(call, key, {**made, **({"methods": self._methods} if call.stage.name == "export" else {})}, False)

    def names(self, stage):
        """Names of a stage's calls, equal work once."""
        seen = {}
        for name, call in self.calls.items():
            if call.stage.name == stage:
                inputs = {role: ref.identity for role, ref in call.inputs.items()}
                seen.setdefault(digest_json([inputs, call.params.model_dump(mode="json")]), name)
        return list(seen.values())


@pytest.fixture
def lower(tmp_path):
    """Lowers a model with recipes by name, without running anything; gives the runner, and the results."""
    (tmp_path / "planned_builder.py").write_text("def build():\n    return None\n")

    def run(
        methods=("forward",),
        *,
        failing=(),
        until=None,
        lowering=lower_model,
        loop=False,
        norms=False,
        idle=(),
        model=None,
        **recipes,
    ):
        def error_at(problem, field):
            return ConfigError(f"{field}: {problem}")

        planned = []
        for name, fields in recipes.items():
            made = Recipe.model_validate(fields)
            gate = resolve_gate(made.accuracy, None)
            planned.append(plan_recipe(name, made, made.verify, ModuleSearch((tmp_path,)), error_at, gate))
        config = ModelConfig.model_validate({"source": "planned_builder:build", **(model or {})})
        place = {"source": config.source, "python_path": (tmp_path,), "folder": tmp_path}
        planned = PlannedModel.of_config("model", config, tuple(planned), 2, **place)
        with open_store(str(tmp_path / "store")) as store:
            runner = Recorder(store, methods, failing, loop, norms, idle)
            model_run = ModelRun(runner, planned.ending_with(until) if until else planned)
            runner.results = (asyncio.run if loop else run_without_loop)(lowering(model_run))
            runner.run = model_run
        return runner

    return run


def test_portable(lower):
    """Without a partitioner, programs go from edge to compile as they are; every call names model, stage and recipe."""
    made = lower(p=PORTABLE)
    assert list(made.calls) == ["export", "edge/forward/p", "compile/p", "serialize/p", "verify/p", "report/p"]
    edge, export = made.run.recipes["p"].find("edge", method="forward"), made.run.find("export")
    assert made.calls["compile/p"].inputs == {
        "program/forward": edge.outputs.program,
        "constants": export.outputs.constants,
    }
    assert isinstance(made.results["p"], Report.Outputs)


@pytest.mark.parametrize("loop", [False, True])
def test_methods(lower, loop, tmp_path: Path):
    """Each method is exported, made edge and partitioned by itself; preprocess and all after it take all of them."""
    made = lower(("forward", "encode"), loop=loop, x=XNNPACK)
    assert made.names("export") == ["export", "export/encode"]
    assert made.calls["export/encode"].params.method == "encode"
    assert made.names("edge") == ["edge/forward/x", "edge/encode/x"]
    parts = {
        f"program/{method}": made.run.recipes["x"].find("partition", method=method).outputs.program
        for method in ("forward", "encode")
    }
    assert made.calls["preprocess/x"].inputs == parts
    assert made.calls["compile/x"].inputs.items() >= parts.items()
    assert set(made.calls["verify/x"].inputs) >= {"file", "constants", "examples/forward", "examples/encode"}
    assert not any(str(tmp_path) in call.params.model_dump_json() for call in made.calls.values())


def test_equal_work_is_one_call(lower):
    """Recipes share every stage before the first that reads what they differ in: equal calls have equal keys."""
    made = lower(p=PORTABLE, a=XNNPACK, b=PER_OPERATOR)
    assert made.names("export") == ["export"]
    assert made.names("edge") == ["edge/forward/p", "edge/forward/a"]
    assert made.names("partition") == ["partition/forward/a", "partition/forward/b"]
    again = lower(a=XNNPACK, b={**XNNPACK, "verify": {"min_sqnr_db": 20}})
    assert again.names("serialize") == ["serialize/a"]
    assert again.names("verify") == ["verify/a", "verify/b"]


def test_reports_have_the_keys_of_their_recipe(lower):
    """A recipe's report says the same whether it is made alone or next to others that share its stages."""
    both, alone = lower(a=XNNPACK, b=PER_OPERATOR), lower(b=PER_OPERATOR)
    assert both.calls["report/b"].params == alone.calls["report/b"].params
    steps = "export edge/forward partition/forward preprocess compile serialize verify"
    assert set(alone.calls["report/b"].params.stage_keys) == set(steps.split())


def test_fat_files_pack_all_payloads_by_preference(lower):
    """Every specialization has stages of its own up to its payload; the fallback says how methods are called."""
    made = lower(f=recipe("vulkan", "xnnpack", "portable"))
    assert [payload.name for payload in made.calls["pack/f"].params.payloads] == ["vulkan", "xnnpack", "portable"]
    assert made.names("compile") == ["compile/f.vulkan", "compile/f.xnnpack", "compile/f.portable"]
    compiled = made.run.recipes["f"].find("compile", payload="portable")
    assert made.calls["serialize/f"].inputs["payload"] == compiled.outputs.payload


def test_a_specialization_that_is_not_required(lower):
    """Where it fails, the file is made without it and the report says so; a required one fails the recipe."""
    optional = recipe({"target": "vulkan", "required": False}, "xnnpack", "portable")
    made = lower(failing={"partition/forward/f.vulkan"}, f=optional)
    assert [payload.name for payload in made.calls["pack/f"].params.payloads] == ["xnnpack", "portable"]
    assert made.calls["report/f"].params.left_out == ("vulkan",)
    assert made.run.recipes["f"].why_left_out(["vulkan"]) == {
        "vulkan": "partition/forward/f.vulkan: partition/forward/f.vulkan fails"
    }
    made = lower(failing={"partition/forward/f.vulkan"}, f=recipe("vulkan", "xnnpack", "portable"), p=PORTABLE)
    assert made.run.recipes["f"].step_of(made.results["f"]) == "partition/forward/f.vulkan"
    assert "compile/f.xnnpack" in made.calls  # its siblings went on to their payloads
    assert isinstance(made.results["p"], Report.Outputs)


@pytest.mark.parametrize("idle", ["vulkan", "xnnpack"])
def test_a_payload_without_delegates(lower, idle):
    """Every device would run it in place of those after it: a fat file leaves it out; a plain one has nothing else."""
    made = lower(("forward", "encode"), f=recipe("vulkan", "xnnpack", "portable"), idle={idle})
    packed = [payload.name for payload in made.calls["pack/f"].params.payloads]
    assert packed == [name for name in ("vulkan", "xnnpack", "portable") if name != idle]
    assert made.calls["report/f"].params.left_out == (idle,)
    assert "nothing of the model is delegated" in made.run.recipes["f"].why_left_out([idle])[idle]
    made = lower(p=XNNPACK, idle={"xnnpack"})
    assert isinstance(made.results["p"], Report.Outputs)


def test_transformed_methods_are_exported_apart(lower):
    """What is lowered comes from transformed modules; examples and eager's outputs from `export`, which fp32 shares."""
    made = lower(p=PORTABLE, t={**PORTABLE, **INT8}, same={**PORTABLE, **INT8})
    assert made.names("source_transform") == ["source_transform/forward/t"]
    transformed = made.run.recipes["t"].find("source_transform", method="forward").outputs.program
    assert made.calls["edge/forward/t"].inputs == {"program": transformed}
    assert made.calls["verify/t"].inputs["examples/forward"] == made.run.find("export").outputs.examples


def test_batch_norms_are_folded_once(lower):
    """Of a model that has some, before programs are quantized, for all recipes that do not turn it off."""
    asked = {**XNNPACK, **INT8, "quantize": {"quantizer": "xnnpack"}}
    made = lower(norms=True, p=PORTABLE, x=XNNPACK, q=asked, off={**PORTABLE, "fold_batch_norms": False})
    assert made.names("fold_batch_norms") == ["fold_batch_norms/forward/p", "fold_batch_norms/forward/q"]
    exported = made.run.find("export").outputs.program
    folded = made.run.recipes["p"].find("fold_batch_norms", method="forward").outputs.program
    assert made.calls["edge/forward/p"].inputs == made.calls["edge/forward/x"].inputs == {"program": folded}
    assert made.calls["edge/forward/off"].inputs == {"program": exported}
    folded = made.run.recipes["q"].find("fold_batch_norms", method="forward").outputs.program
    assert made.calls["quantize/forward/q"].inputs["program"] == folded


def test_methods_that_share_state_keep_batch_norms(lower):
    """One method may change what another one normalizes by."""
    made = lower(norms=True, p={**PORTABLE, "compile": {"share_mutable_buffers": True}})
    assert made.names("fold_batch_norms") == []


def test_quantized_programs(lower, tmp_path: Path):
    """PT2E quantizes what transforms gave, on the dataset that the model names, or else on its examples."""
    (tmp_path / "planned_data.py").write_text("samples = []\n")
    asked = {**XNNPACK, **INT8, "quantize": {"quantizer": "xnnpack"}}
    made = lower(q=asked)
    assert set(made.calls["quantize/forward/q"].inputs) == {"program", "transformed", "examples"}
    made = lower(q=asked, model={"calibration": {"forward": {"dataset": "planned_data:samples"}}})
    assert set(made.calls["quantize/forward/q"].inputs) == {"program", "transformed", "examples", "samples"}
    with pytest.raises(SourceError, match=r"calibration names .*\['backward'\]"):
        lower(q=asked, model={"calibration": {"backward": {"dataset": "planned_data:samples"}}})


def test_the_users_code_is_in_the_params(lower, tmp_path: Path):
    """A change of a callable's code changes its stage, and no other; which modules are watched is in its key only."""
    (tmp_path / "planned_fold.py").write_text("def fold(module):\n    return module\n")
    asked = {**PORTABLE, "source_transforms": [{"callable": "planned_fold:fold"}]}
    before = lower(t=asked)
    (tmp_path / "planned_fold.py").write_text("def fold(module):\n    return module.eval()\n")
    after = lower(t=asked)
    differing = {name for name, call in after.calls.items() if call.params != before.calls[name].params}
    assert differing == {"source_transform/forward/t", "report/t"}
    assert after.calls["source_transform/forward/t"].user_code.callables[0].builder == "planned_fold:fold"


def test_why_a_stage_takes_the_weights(lower, tmp_path: Path):
    """The record of a run says why a stage did not do with the graph alone."""
    (tmp_path / "planned_passes.py").write_text("def make():\n    return []\n")
    made = lower(p={**PORTABLE, "edge": {"passes": [{"callable": "planned_passes:make"}]}}, x=PORTABLE)
    said = {outcome.step: outcome.message for outcome in History(made.run).outcomes()}
    assert said["edge/forward/p"] == "had not run before; takes the weights: the recipe's passes may read weights"
    assert said["edge/forward/x"] == "had not run before"


def test_eager_is_scored_as_it_was_exported(lower, tmp_path: Path):
    """Scores of eager depend on all that the builder was seen to read, as the export does."""
    (tmp_path / "planned_scores.py").write_text("def top1(program):\n    return 1.0\n")
    made = lower(x={**XNNPACK, "accuracy": {"evaluator": "planned_scores:top1", "max_drop": 0.1}})
    read = {"read": {"labels.txt": "1" * 64}}
    assert made.calls["baseline/x"].params.source == {**made.calls["export"].params.source, **read}
    assert set(made.calls["gate/x"].inputs) == {"scores", "baseline"}


def test_options_by_method(lower):
    """A method may have a target of its own, or none; what backends make of all methods is one call."""
    own = {"methods": {"decode": {"delegate": False}, "encode": {"target": "vulkan", "options": {"force_fp16": True}}}}
    made = lower(("encode", "decode"), x={"specializations": [{"target": "xnnpack", **own}]})
    assert made.names("partition") == ["partition/encode/x"]
    assert made.calls["partition/encode/x"].params.target.name == "vulkan"
    assert [target.name for target in made.calls["preprocess/x"].params.targets] == ["vulkan"]
    result = lower(x={"specializations": [{"target": "xnnpack", **own}]}).results["x"]
    assert "names the methods ['decode', 'encode']; the model has ['forward']" in str(result)


@pytest.mark.parametrize(
    ("until", "last"),
    [("export", "export"), ("partition", "partition/forward/x"), ("serialize", "serialize/x"), ("verify", "verify/x")],
)
def test_until(lower, until, last):
    """A recipe that is cut short has the stages up to its last one, and no report; if one before fails, it fails."""
    made = lower(until=until, x=XNNPACK)
    assert list(made.calls)[-1] == last
    assert isinstance(made.results["x"], CutShort)
    asked = {**XNNPACK, "quantize": {"quantizer": "xnnpack"}}
    made = lower(until="edge", failing={"quantize/forward/q"}, q=asked)
    assert isinstance(made.results["q"], StageFailed)


def test_a_failed_export_is_diagnosed(lower):
    """A diagnosis follows only where `export` has failed, and its own failure is not the model's."""
    assert "diagnose" not in lower(x=XNNPACK).calls
    calls = []

    async def lowering(run):
        calls.append(run.runner.calls)
        return await lower_model(run)

    for failing in ({"export"}, {"export", "diagnose"}):
        with pytest.raises(StageFailed, match="export fails") as caught:
            lower(failing=failing, lowering=lowering, x=XNNPACK)
        assert list(calls[-1]) == ["export", "diagnose"]
        assert caught.value.findings == ()
    assert calls[0]["diagnose"].params.model_dump() == {
        name: value for name, value in calls[0]["export"].params.model_dump().items() if name != "drawn_inputs"
    } | {"host": ""}


def test_stage_names():
    """A stage that does not exist is refused, with one that is close or with all there are."""
    assert [check_stage(stage.name) for stage in STAGES] == [stage.name for stage in STAGES]
    with pytest.raises(InputError, match="did you mean 'edge'"):
        check_stage("to_edge")
    with pytest.raises(InputError, match="stages: export, diagnose, source_transform, "):
        check_stage("lower")


def test_ladder(lower):
    """A recipe that changes numerics has a ladder, and its report does without where that fails."""
    made = lower(a=LADDER, b=XNNPACK)
    assert made.names("ladder") == ["ladder/a"]
    rungs = {"exported/forward", "edge/forward", "payload"}
    assert {role for role in made.calls["ladder/a"].inputs if role.startswith("rung/")} == {f"rung/{r}" for r in rungs}
    assert "findings/numerics//" in made.calls["report/a"].inputs
    made = lower(failing={"ladder/a"}, a=LADDER)
    assert isinstance(made.results["a"], Report.Outputs)
    assert "findings/numerics//" not in made.calls["report/a"].inputs
    whole, alone = lower(a=LADDER), lower(lowering=lower_to_ladder, a=LADDER)
    assert set(whole.calls) - set(alone.calls) == {"serialize/a", "verify/a", "report/a"}
    assert alone.calls == {name: whole.calls[name] for name in alone.calls}


def test_ladder_of_a_recipe_that_fails(lower):
    """Whatever fails, the ladder compares the programs that were made; verification does not wait for it."""
    asking = recipe("vulkan", "xnnpack", "portable", verify={"ladder": True})
    made = lower(failing={"compile/f.vulkan"}, f=asking)
    roles = {role for role in made.calls["ladder/f"].inputs if role.startswith("rung/payload")}
    assert roles == {"rung/payload.xnnpack", "rung/payload.portable"}
    assert made.run.recipes["f"].step_of(made.results["f"]) == "compile/f.vulkan"
    assert "ladder/a" in lower(failing={"verify/a"}, a=LADDER).calls


def test_debug_mode(lower):
    """The report reads the debug outputs of every payload; in a plain file they have no payload's name."""
    made = lower(x={**XNNPACK, "debug": True}, f={**recipe("xnnpack", "portable"), "debug": True})
    assert {"etrecord", "debug_handles", "delegate_map", "debug_sources"} <= set(made.calls["report/x"].inputs)
    assert {"etrecord/xnnpack", "etrecord/portable"} <= set(made.calls["report/f"].inputs)
    assert "edge/forward" in made.calls["compile/x"].inputs

"""An edit reruns the stages that depend on what it means, and no others; key differences name it."""

from __future__ import annotations

import shutil

import pytest
from pteforge.artifacts.store import open_store
from pteforge.tests.flows.conftest import BATCH

PORTABLE = {f"{stage}/portable-fp32" for stage in ("edge/forward", "compile", "serialize", "verify", "report")}
XNNPACK = {
    f"{stage}/xnnpack-fp32"
    for stage in ("edge/forward", "partition/forward", "preprocess", "compile", "serialize", "verify", "report")
}
ALL = {"export"} | PORTABLE | XNNPACK
REPORTS = {"report/portable-fp32", "report/xnnpack-fp32"}


@pytest.fixture(scope="module")
def lowered(lower_project):
    return lower_project(
        {
            "net": {"source": {"builder": "nets:linear", "kwargs": {"width": 8}}, "dynamic_shapes": BATCH},
            "late": {"source": {"builder": "lazily:plugin", "kwargs": {"name": "small"}}, "recipes": ["portable-fp32"]},
        }
    )


def test_edits_without_meaning_run_nothing(made, lower):
    """In another folder, with other comments, docstrings and layout, the zoo is the same work: not even export runs."""
    run = lower(made)
    assert run.outcome.exit_code == 0
    assert run.ran("net") == run.ran("late") == set()
    made.edit("nets.py", "import torch\n\n", "import torch\n\n# a comment\n")
    made.edit("nets.py", '"""Two linear layers."""', '"""Another docstring."""')
    made.edit(
        "nets.py",
        "return self.second(torch.relu(self.first(x)))",
        "return (self.second(\n  torch.relu( self.first(x) )))",
    )
    assert lower(made).ran("net") == set()


def test_other_code_for_the_same_program_runs_export_only(made, lower):
    """Other code, or another module, for the same program runs export, and the reports that have its key."""
    made.edit("nets.py", "kind = getattr(torch, dtype)", "kind = vars(torch)[dtype]")
    run = lower(made)
    assert run.ran("net") == {"export"} | REPORTS
    assert run.changes("net", "export") == {"params.source.modules.nets"}
    (made.folder / "lib").mkdir()
    shutil.move(made.folder / "nets.py", made.folder / "lib" / "networks.py")
    run = lower(made, "models.net.source.builder=lib.networks:linear")
    assert run.ran("net") == {"export"} | REPORTS
    assert "params.source.builder" in run.changes("net", "export")


def test_other_weights_reuse_graphs(made, lower, lower_project):
    """Other weights of the same graph run no stage that does without them; files are those of a new store."""
    run = lower(made, "models.net.seed=1", models="net")
    assert run.ran("net") == ALL - {step for step in ALL if step.startswith(("edge", "partition"))}
    assert run.changes("net", "export") == {"params.seed"}
    assert run.changes("net", "preprocess/xnnpack-fp32") == {"inputs.program/forward"}
    assert run.changes("net", "compile/portable-fp32") == {"inputs.program/forward"}
    source = {"builder": "nets:linear", "kwargs": {"width": 8}}
    anew, _ = lower_project({"net": {"source": source, "dynamic_shapes": BATCH, "seed": 1}})
    for name in ("net/portable-fp32.pte", "net/xnnpack-fp32.pte"):
        assert made.files()[name] == anew.files()[name]


@pytest.mark.parametrize(
    ("override", "field"),
    [
        ("models.net.source.kwargs.width=6", "params.source.kwargs.width"),
        ("models.net.dynamic_shapes.forward=[{0: {min: 1, max: 8}}]", "params.dynamic_shapes.forward"),
    ],
    ids=["sizes", "bound"],
)
def test_another_program_runs_everything(made, lower, override, field):
    """Other sizes or bounds run all stages of the model, and the field is named."""
    run = lower(made, override, models="net")
    assert run.outcome.exit_code == 0, run.outcome.failures
    assert run.ran("net") == ALL
    assert field in run.changes("net", "export")
    assert run.changes("net", "edge/forward/portable-fp32") == {"inputs.program"}


def test_another_bucket_exports_itself_only(made, lower):
    """A bucket that is added later is exported and lowered; others are reused, up to the stages that link methods."""
    shapes = "models.net.dynamic_shapes.forward=[{0: {min: 1, max: 4, name: batch}}]"
    buckets = "models.net.methods={forward: {buckets: {batch: %s}}}"
    for sizes in ("[2]", "[2, 4]"):
        run = lower(made, shapes, buckets % sizes, models="net", recipes="xnnpack-fp32")
        assert run.outcome.exit_code == 0, run.outcome.failures
    linked = {f"{stage}/xnnpack-fp32" for stage in ("preprocess", "compile", "serialize", "verify", "report")}
    own = {"export/forward_4", "edge/forward_4/xnnpack-fp32", "partition/forward_4/xnnpack-fp32"}
    assert run.ran("net") == own | linked


def test_another_dtype_runs_everything_that_differs(made, lower):
    """Another dtype runs all stages. XNNPACK delegates no float64: its file is the portable one, verified once."""
    run = lower(made, "models.net.source.kwargs.dtype=float64", models="net")
    assert run.outcome.exit_code == 0, run.outcome.failures
    assert run.ran("net") == ALL - {"verify/xnnpack-fp32"}
    assert "params.source.kwargs.dtype" in run.changes("net", "export")
    assert made.files()["net/portable-fp32.pte"] == made.files()["net/xnnpack-fp32.pte"]


def test_another_operator_runs_its_model(made, lower):
    """After one operator of one model changed, all stages of that model run, and none of the other."""
    made.edit("nets.py", "torch.relu", "torch.tanh")
    run = lower(made)
    assert run.ran("net") == ALL
    assert run.ran("late") == set()


def test_option_of_a_target_runs_its_chain_only(made, lower):
    """An option of what XNNPACK delegates reruns its chain; one of how it groups operators keeps the edge program."""
    made.edit("zoo.yaml", "models:", "recipes: {xnnpack-fp32: {specializations: [{target: xnnpack}]}}\nmodels:")
    assert lower(made).ran("net") == set()
    option = "recipes.xnnpack-fp32.specializations=[{target: xnnpack, options: {%s}}]"
    run = lower(made, option % "per_operator: true", models="net")
    assert run.ran("net") == XNNPACK - {"edge/forward/xnnpack-fp32"}
    assert run.changes("net", "partition/forward/xnnpack-fp32") == {"params.target.options.per_operator"}
    run = lower(made, option % "precisions: [fp32]", models="net")
    assert "edge/forward/xnnpack-fp32" in run.ran("net") <= XNNPACK
    assert run.changes("net", "edge/forward/xnnpack-fp32") == {"params.preserve_for.options.precisions"}


def test_why_of_new_and_lost_results(made, lower, pteforge):
    """`why` says that a stage ran for the first time, or that its result is no longer in the store."""
    lower(made, "models.net.recipes=[portable-fp32, mine]", "recipes.mine={specializations: [{target: xnnpack}]}")
    lines = {line.split()[1]: line for line in pteforge(made, "why", "net/mine").out.splitlines()[1:]}
    assert lines["export"].startswith("cached")
    assert lines["report/mine"].endswith("had not run before")
    with open_store(str(made.store)) as store:
        store.ledger.forget(*[record.key for record in store.ledger])
    lower(made)
    lines = pteforge(made, "why", "late").out.splitlines()
    assert len(lines) == 7
    assert all("not in the store any more" in line for line in lines[1:])


@pytest.mark.nightly
def test_other_weights_reuse_graphs_of_language_models(lower, lower_project, tmp_path):
    """A checkpoint fine-tuned from another of the same architecture is quantized, and reuses its graphs.

    The file is that of a new store.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    net = LlamaForCausalLM(LlamaConfig(**sizes, num_key_value_heads=1, vocab_size=100, tie_word_embeddings=False))
    net.save_pretrained(tmp_path / "base")
    with torch.no_grad():
        for weight in net.parameters():
            weight.add_(0.01 * torch.randn_like(weight))
    net.save_pretrained(tmp_path / "tuned")

    def source(name: str) -> dict[str, object]:
        return {"huggingface": str(tmp_path / name), "attention": "custom_sdpa", "sequence": 32}

    recipe = "xnnpack-llm-8da4w"
    project, first = lower_project({"chat": {"source": source("base")}}, (recipe,))
    graphs = {f"{stage}/forward/{recipe}" for stage in ("edge", "partition")}
    assert graphs < first.ran("chat")
    project.write_zoo({"chat": {"source": source("tuned")}}, (recipe,))
    tuned = lower(project)
    assert tuned.outcome.exit_code == 0, tuned.outcome.failures
    assert tuned.ran("chat") == first.ran("chat") - graphs
    same, _ = lower_project({"chat": {"source": source("tuned")}}, (recipe,))
    assert project.files() == same.files()

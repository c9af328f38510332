"""A rerun with nothing to do asks for one record per model, which holds only while nothing has changed."""

from __future__ import annotations

import json
import platform
import shutil
import sys
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from pteforge.artifacts import known_files
from pteforge.artifacts.files import LocalFiles
from pteforge.artifacts.gc import collect, verify_store
from pteforge.artifacts.store import open_store
from pteforge.flows.run import whole
from pteforge.flows.run.request import ExportRequest
from pteforge.flows.run.session import open_session
from pteforge.tasks.engine.keys.loaded import changed_code, own_sources
from pteforge.tasks.lowering import graph
from pteforge.tests.conftest import run_process

CODE = {
    "transforms.py": "def double(module):\n    module.weight.data.mul_(2)\n",
    "passes.py": "from executorch.exir.pass_base import ExportPass\n\nclass Idle(ExportPass):\n    pass\n",
    "batches.py": "import torch\n\nCOUNT = 3\n\ndef batches():\n    return [(torch.ones(2, 4),)] * COUNT\n",
    "scores.py": "def score(predict):\n    return 1.0\n",
}
EVERYTHING = {
    "specializations": [{"target": "xnnpack"}],
    "source_transforms": [{"callable": "transforms:double"}],
    "quantize": {"quantizer": "xnnpack"},
    "edge": {"passes": [{"callable": "passes:Idle"}]},
    "verify": {"min_sqnr_db": None},
    "accuracy": {"evaluator": "scores:score", "floor": 0.5},
}


@contextmanager
def counted_walks():
    """By model, the kinds of runners with which it is walked through the graph."""
    walks, export_methods = defaultdict(list), graph.export_methods

    def counting(run):
        walks[run.model.name].append(type(run.runner).__name__)
        return export_methods(run)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(graph, "export_methods", counting)
        yield walks


@pytest.fixture(scope="module")
def cold_walks():
    return {}


@pytest.fixture(scope="module")
def lowered(lower_project, cold_walks):
    """Two models with the same code of the user's of every kind, one of whose modules only watching finds."""
    source = {"builder": "lazily:plugin", "kwargs": {"name": "small"}, "files": ["weights.bin"]}
    model = {"source": source, "calibration": {"forward": {"dataset": "batches:batches"}}}
    zoo = {"net": model, "twin": model}, ("everything", "portable-fp32"), {"everything": EVERYTHING}
    with counted_walks() as walks:
        project = lower_project(*zoo, files={**CODE, "weights.bin": "1"})
    cold_walks |= walks
    return project


@pytest.fixture
def made(made, lower):
    """A copy after a run with nothing to do there: the name of a zoo's records has its folder."""
    shutil.rmtree(made.store / "ledger" / "zoos")
    lower(made)
    return made


@pytest.fixture
def reads(monkeypatch):
    """Names of files of the ledger, in the order in which they were read."""
    names = []
    read = LocalFiles.read

    def noting(self, name, *limit):
        names.append(name)
        return read(self, name, *limit)

    monkeypatch.setattr(LocalFiles, "read", noting)
    return names


def holding(project, *overrides, **options):
    """Names of models whose records hold."""
    asked = {"zoo": project.folder / "zoo.yaml", "store": str(project.store), "out": project.out, **options}
    with open_session(ExportRequest(**asked, overrides=overrides)) as session:
        return {model.name for model in session.models if session.whole_models.find(model)}


def records(project):
    return list((project.store / "ledger" / "zoos").glob("*"))


def by_slot(found):
    """A record or an outcome with its stages in one order: that in which they ended is another one in each run."""
    return replace(found, stages=tuple(sorted(found.stages, key=lambda stage: stage.slot)))


def noted(project):
    """What records say, by model."""
    with open_store(str(project.store)) as store:
        return {
            name: by_slot(record)
            for name, record in store.ledger.whole_models(str(project.folder / "zoo.yaml")).items()
        }


def forget(project, stage, model):
    """Forgets a stage of a model, by the key of its last run."""
    with open_store(str(project.store)) as store:
        for slot in [slot for slot in store.ledger.slots() if slot.slot.startswith(f"{model}/{stage}/")]:
            store.ledger.forget(slot.key)


def test_walks_through_the_graph(made, lower, cold_walks):
    """A model that has to run is walked once to look and once to run; a cached one only where it has no record."""
    assert cold_walks == {name: ["PlanRunner", "LocalRunner"] for name in ("net", "twin")}
    with counted_walks() as walks:
        lower(made)
        assert walks == {}
        forget(made, "report", "net")
        assert lower(made).ran("net") == {"report/everything", "report/portable-fp32"}
        assert walks == {"net": ["PlanRunner", "LocalRunner"], "twin": ["PlanRunner"]}
    assert holding(made) == {"net", "twin"}


_DRIVER = """
import json, sys
from pteforge.tests.command import run_command
from pteforge.tests.flows.run.test_whole import counted_walks
with counted_walks() as walks:
    run_command()
print(json.dumps(walks), file=sys.stderr)
"""


@pytest.mark.slow
def test_walks_in_prefect(project):
    """The same holds for the flow."""
    project.write_zoo({"net": "nets:linear"}, ("portable-fp32",))

    def walks():
        command = [sys.executable, "-c", _DRIVER, "export", "zoo.yaml"]
        said = run_process(*command, cwd=project.folder, env=project.environment(), timeout=project.limit)
        return json.loads(said.stderr.splitlines()[-1]), said.stdout

    cold, said = walks()
    assert (cold, "0 cached" in said) == ({"net": ["PlanRunner", "PrefectRunner"]}, True)
    assert walks()[0] == {}
    forget(project, "report", "net")
    last, said = walks()
    assert (last, "1 stages run" in said) == ({"net": ["PlanRunner", "PrefectRunner"]}, True)


def test_one_read_for_all_models(lowered, lower, reads):
    """After the run that made everything, a run reads one file in place of all stages' records, and says the same."""
    project = lowered[0]
    assert holding(project) == {"net", "twin"}
    (file,) = records(project)
    before = noted(project)

    def run():
        reads.clear()
        found = lower(project)
        asked = [name.split("/")[1] for name in reads if name.startswith("ledger/")]
        return found, [folder for folder in asked if folder not in ("published", "inputs")]

    short, asked = run()
    assert asked == ["zoos"]
    file.unlink()
    long, asked = run()
    assert asked.count("stages") == asked.count("slots") == long.outcome.cached
    assert noted(project) == before
    assert long.outcome.ran == short.outcome.ran == 0
    assert [*map(by_slot, long.outcome.models)] == [*map(by_slot, short.outcome.models)]


EDITS = {
    "builder": ("lazily.py", "def plugin", "EDITED = 1\n\n\ndef plugin"),
    "watched module": ("plugin_small.py", "import torch", "import torch\n\nEDITED = 1"),
    "declared file": ("weights.bin", "1", "2"),
    "source transform": ("transforms.py", "mul_(2)", "mul_(3)"),
    "calibration": ("batches.py", "COUNT = 3", "COUNT = 4"),
    "edge pass": ("passes.py", "pass\n", "kept = 1\n"),
    "evaluator": ("scores.py", "1.0", "0.9"),
    "model's option": ("zoo.yaml", "everything:", "everything:\n    description: other\n"),
}


@pytest.mark.parametrize("kind", EDITS)
def test_edits(made, kind):
    """Another meaning of any code of the user's ends what records say; another layout does not."""
    assert holding(made) == {"net", "twin"}
    name, before, after = EDITS[kind]
    if name.endswith(".py"):
        made.write(name, f"# a comment\n{(made.folder / name).read_text()}")
        assert holding(made) == {"net", "twin"}
    made.edit(name, before, after)
    assert holding(made) == set()


@pytest.mark.parametrize(
    ("overrides", "options"),
    [
        (["models.net.seed=1"], {}),
        (["models.net.dynamic_shapes.forward=[{0: {min: 1, max: 8}}]"], {}),
        (["recipes.everything.compile.segment_alignment=256"], {"models": "net"}),
        ([], {"models": "net", "recipes": "everything"}),
        ([], {"models": "net", "until": "edge"}),
        ([], {"models": "net", "debug": True}),
        ([], {"models": "net", "refresh": True}),
    ],
)
def test_what_is_asked_for(made, overrides, options):
    """Another configuration, selection or way to run is another question, of the models that it concerns."""
    assert holding(made, *overrides, **options) == ({"twin"} if not options else set())
    assert holding(made) == {"net", "twin"}


def _edited(sources, content):
    if content is None:
        raise changed_code(["tasks/backend/stages/edge.py"])
    return {**sources, "tasks/backend/stages/edge.py": content}


def test_another_machine_or_toolchain(made, monkeypatch):
    """Records are of this machine's instructions, these versions, and this code, of stages as of all around them."""
    with monkeypatch.context() as other:
        other.setenv("ATEN_CPU_CAPABILITY", "default")
        assert holding(made) == set()
    sources = own_sources()
    whole._toolchain.cache_clear()
    assert holding(made) == {"net", "twin"}
    for content in (sources["tasks/backend/stages/edge.py"] + b"\n\nEDITED = 1\n", None):
        with monkeypatch.context() as edited:
            edited.setattr(whole, "own_sources", partial(_edited, sources, content))
            whole._toolchain.cache_clear()
            assert holding(made) == set()
    whole._toolchain.cache_clear()
    for module, name, found in (
        (whole, "toolchain_versions", lambda names: dict.fromkeys(names, "0")),
        (platform, "python_version", lambda: "3.99.0"),
    ):
        with monkeypatch.context() as other:
            other.setattr(module, name, found)
            assert holding(made) == set()
            whole._toolchain.cache_clear()
    assert holding(made) == {"net", "twin"}


def outputs(project, stage):
    with open_store(str(project.store)) as store:
        found = [record.outputs for record in store.ledger if record.fields["stage"] == stage]
    return [
        project.store / "objects" / ref.root.digest[:2] / ref.root.digest for refs in found for ref in refs.values()
    ]


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: (path.chmod(0o644), path.write_bytes(b"x"))])
@pytest.mark.parametrize("stage", ["serialize", "report"])
def test_objects_that_are_gone_or_damaged(made, lower, stage, damage):
    """Without a good object of every file and its provenance there is no record; the stages are made again."""
    for path in {*outputs(made, stage)}:
        damage(path)
    assert holding(made) == set()
    assert lower(made).ran("net")
    assert holding(made) == {"net", "twin"}


def test_objects_that_only_led_there(made):
    """A record needs no programs; a stage that needs one again finds out by itself. A deep check drops records."""
    path = outputs(made, "edge")[0]
    path.chmod(0o644)
    path.write_bytes(b"x")
    assert holding(made) == {"net", "twin"}
    with open_store(str(made.store)) as store:
        assert verify_store(store).incomplete
    assert records(made) == []


def test_forgetting(made, lower):
    """Forgetting any stage, and collecting garbage, drops all records; the next run with nothing to do makes them."""
    with open_store(str(made.store)) as store:
        store.ledger.forget(next(iter(store.ledger)).key)
        assert records(made) == []
        lower(made)
        assert holding(made) == {"net", "twin"}
        collect(store, dry_run=True)
        assert len(records(made)) == 1
        collect(store)
    assert records(made) == []


def test_published_files(made, lower, reads, monkeypatch):
    """Files that were removed or written to come back without a stage being looked up; leftovers are removed."""
    monkeypatch.setattr(known_files, "_SETTLING", 0)
    lower(made)
    before = made.files()
    folder = made.out / "net"
    (folder / "everything.pte").unlink()
    (folder / "portable-fp32.json").write_text("{}")
    for name in ("everything.ptd", "everything.etrecord", "everything.rejected.pte"):
        (folder / name).write_text("")
    reads.clear()
    assert lower(made).ran("net") == set()
    assert made.files() == before
    assert not [name for name in reads if name.startswith("ledger/stages")]
    shutil.rmtree(made.out)
    assert lower(made).ran("net") == set()
    assert made.files() == before
    assert not [name for name in reads if name.startswith("ledger/stages")]


def test_damaged_records(made, lower):
    """A record that cannot be read is none: the stages are looked up, and it is written again."""
    (file,) = records(made)
    good = file.read_bytes()
    for content in (b"", good[:-1], b"{}"):
        file.write_bytes(content)
        assert lower(made).ran("net") == set()
        assert file.read_bytes() == good


def test_failures_have_no_record(made, lower):
    """A run that fails drops the record of its model, so that the last keys of its stages are those of its record."""
    made.edit("scores.py", "1.0", "0.1")
    assert lower(made).outcome.exit_code == 1
    made.edit("scores.py", "0.1", "1.0")
    assert holding(made) == set()
    assert lower(made).ran("net") == set()
    assert holding(made) == {"net", "twin"}


def test_plan(made, pteforge, reads):
    """A plan takes the same way: the same number of stages, from one file."""
    long = pteforge(made, "plan", "zoo.yaml", "--json", "--model", "net,twin", "--refresh").json
    reads.clear()
    short = pteforge(made, "plan", "zoo.yaml", "--json")
    assert (short.code, short.json["cached"]) == (0, len(long["stages"]))
    assert not [name for name in reads if name.startswith(("ledger/stages", "ledger/slots"))]

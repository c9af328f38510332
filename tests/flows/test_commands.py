"""The other commands: their output for people and for machines, and their exit codes."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import jsonschema
import numpy as np
import pteforge as package
import pytest
import yaml
from pteforge.artifacts.runs import run_lease
from pteforge.artifacts.store import open_store
from pteforge.formats.pte.reader import open_pte
from pteforge.runtime.quiet import quiet
from pteforge.tasks.results.delivered import Delivered
from pteforge.tasks.results.finding import TAKEN
from pteforge.tasks.results.tables import format_size
from pteforge.tests.flows.conftest import BATCH

FILE = "out/linear/xnnpack-fp32.pte"


@pytest.fixture(scope="module")
def made(lower_project):
    """A lowered model of one input and one of two methods, which no test changes."""
    models = {"linear": {"source": "nets:linear", "dynamic_shapes": BATCH}, "twice": "lazily:encode_and_decode"}
    project = lower_project(models)[0]
    with quiet():
        # The runtime's messages of its first use in a process bypass Python's captured standard error.
        import torch
        from executorch.runtime import Runtime

        program = Runtime.get().load_program(project.folder / FILE)
        program.load_method("forward").execute([torch.ones(1, 4)])
    return project


@pytest.fixture
def own(made, tmp_path):
    """A copy that a test may change."""
    return made.copy(tmp_path / "own")


def test_version_and_help(made, pteforge):
    """`--version` prints the version of the package, in a clone with the commit; `--help` names all commands."""
    said = pteforge(made, "--version")
    assert (said.code, said.err) == (0, "")
    assert re.fullmatch(rf"pteforge {re.escape(package.__version__)}(\+g[0-9a-f]{{7,40}}(\.dirty)?)?\n", said.out)
    said = pteforge(made, "--help")
    assert said.code == 0
    commands = ("export", "bisect", "inspect", "run", "verify", "thin", "extract", "merge", "why", "store", "schema")
    assert [command for command in commands if command not in said.out] == []


def test_pipes_in_the_place_of_files(own, pteforge):
    """No command waits for a pipe's other end; what a pipe replaces counts as not there, or is told."""
    file, inputs = own.folder / FILE, own.folder / "inputs.npz"
    os.mkfifo(inputs)
    pteforge(own, "run", FILE, "--input", str(inputs)).refused("it is a pipe or device")
    file.with_suffix(".json").unlink()
    os.mkfifo(file.with_suffix(".json"))
    pteforge(own, "verify", FILE).refused("it is a pipe or device")
    assert pteforge(own, "run", FILE).code == 0
    said = pteforge(own, "diff", FILE, "out/twice/xnnpack-fp32.pte")
    assert said.code == 0
    assert "is not used, since it is not a file's provenance" in said.err
    os.mkfifo(file.with_suffix(".ptd"))
    pteforge(own, "run", FILE, "--data", str(file.with_suffix(".ptd"))).refused("it is a pipe or device")


def test_export_until_a_stage(own, pteforge):
    """`--until` stops after a stage: the stages up to it are cached, and no file is written."""
    shutil.rmtree(own.out)
    said = pteforge(own, "export", "zoo.yaml", "--until", "edge", "--json")
    assert said.code == 0, said.err
    recipes = [recipe for model in said.json["models"].values() for recipe in model.values()]
    assert {(recipe["status"], recipe["file"]) for recipe in recipes} == {("cached", None)}
    assert not own.out.exists()
    said = pteforge(own, "export", "zoo.yaml", "--until", "edge")
    assert "2 models: stages up to edge done; 0 stages run" in said.out
    assert "verified" not in said.out
    assert "1 model: " in pteforge(own, "export", "zoo.yaml", "--until", "edge", "--model", "linear").out
    pteforge(own, "export", "zoo.yaml", "--until", "lower").refused("there is no stage 'lower'; stages: export, ")


def test_verify(made, pteforge):
    """An unchanged file passes on the examples and the random inputs, method by method."""
    said = pteforge(made, "verify", FILE)
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith("forward: verified on 4 outputs; max abs error ")
    assert pteforge(made, "verify", "out/twice/portable-fp32.pte").out.count(": verified on ") == 2
    provenance = json.loads((made.folder / FILE).with_suffix(".json").read_text())
    assert pteforge(made, "verify", FILE, "--json").json == provenance["findings"]["figures"]


def test_verify_on_a_device(made, pteforge):
    """The former option still names a command, with a note on how it is written now, and is refused next to a place."""
    said = pteforge(made, "verify", FILE, "--device", "./absent")
    assert said.code != 0
    assert "note: `--device COMMAND` is `--place command:COMMAND` now" in said.err
    pteforge(made, "verify", FILE, "--device", "./absent", "--place", "python:python3").refused(
        "--device and --place both say where files run"
    )


def test_verify_folders(own, pteforge):
    """Folders and several files: each passes or fails by itself, also as JSON, and what is missing is said before."""
    said = pteforge(own, "verify", "out")
    assert (said.code, said.err) == (0, "")
    assert f"{FILE}: forward: verified on 4 outputs; " in said.out
    assert said.out.splitlines()[-1] == "4 files verified"
    change_weights(own.out / "linear" / "portable-fp32.pte")
    said = pteforge(own, "verify", "out/linear", "out/twice/portable-fp32.pte", FILE)
    assert (said.code, said.out.splitlines()[-1]) == (1, "2 files verified, 1 failed")
    assert said.err.startswith("out/linear/portable-fp32.pte: the file does not compute what eager computes: ")
    said = pteforge(own, "verify", "out/linear", "--json")
    found = json.loads(said.out)
    assert (said.code, list(found["verified"]), list(found["failed"])) == (1, [FILE], ["out/linear/portable-fp32.pte"])
    assert f"{FILE}: forward: verified on 4 outputs; " in said.err
    (own.out / "twice" / "portable-fp32.json").unlink()
    pteforge(own, "verify", "out").refused("there is no out/twice/portable-fp32.json")
    pteforge(own, "verify", own.store).refused("there is no .pte file in")


@pytest.mark.slow
def test_verify_is_quiet(made):
    """In a process of its own, messages of libraries that are being loaded are not shown."""
    done = made.run("verify", FILE)
    assert (done.code, done.err) == (0, "")


def change_weights(path: Path) -> None:
    """Changes one weight in place; the file stays a valid program."""
    content = bytearray(path.read_bytes())
    largest = max((constant.extent for constant in open_pte(path).constants), key=lambda extent: extent.size)
    weights = np.frombuffer(content, np.float32, count=1, offset=largest.offset)
    content[largest.offset : largest.offset + 4] = (weights + np.float32(0.5)).tobytes()
    path.write_bytes(content)


def test_verify_finds_changed_weights(own, pteforge):
    """A file with one changed weight fails: exit code 1, the output and its figure on standard error."""
    file = own.out / "linear" / "portable-fp32.pte"
    change_weights(file)
    for more in ((), ("--json",)):
        said = pteforge(own, "verify", str(file), *more)
        assert (said.code, said.out) == (1, "")
        assert said.err.startswith("error: the file does not compute what eager computes: ")
        assert "'forward'" in said.err
        assert "SQNR" in said.err


def test_verify_without_what_it_needs(own, pteforge):
    """If the store lacks the inputs, or the provenance is missing or something else, the message says what to do."""
    (own.folder / "another").mkdir()
    pteforge(own, "verify", FILE, "--store", "another").refused("not in the store", "another", "--store")
    path = (own.folder / FILE).with_suffix(".json")
    bounds = b'{"verification": {"bounds": {"drawn_inputs": "x"}}, "artifacts": {}}'
    for content in (b"", b"[]", b"{}", b"7", bounds, b"\xff"):
        path.write_bytes(content)
        pteforge(own, "verify", FILE).refused("xnnpack-fp32.json is not a provenance")
    path.unlink()
    pteforge(own, "verify", FILE).refused("there is no out/linear/xnnpack-fp32.json", "provenance")


def test_inspect(made, pteforge):
    """Text and JSON have methods, inputs and outputs with shapes, and delegates; the text has operators, too."""
    said = pteforge(made, "inspect", FILE)
    assert (said.code, said.err) == (0, "")
    shapes = ("method forward", "input 0: float32 [4, 4]", "output 0: float32 [4, 3]")
    for part in (f"{FILE}: ", "XnnpackBackend", *shapes):
        assert part in said.out
    several = pteforge(made, "inspect", "out/twice/portable-fp32.pte").out
    for part in ("method encode", "method decode", "method version", "aten::tanh.out", "delegates to: none"):
        assert part in several
    assert "kernels to link: portable_ops_lib\n" in several
    described = pteforge(made, "inspect", FILE, "--json").json
    assert described.keys() - Delivered.next_to(made.folder / FILE).recorded().keys() <= set(TAKEN)
    assert described["size"] == (made.folder / FILE).stat().st_size
    assert described["backends"] == ["XnnpackBackend"]
    (method,) = described["methods"]
    assert method["name"] == "forward"
    assert method["inputs"][0]["shape"] == [4, 4]
    assert [delegate["id"] for delegate in method["delegates"]] == ["XnnpackBackend"]


def test_run_with_random_inputs(made, pteforge):
    """Without inputs, `run` uses random ones, which depend on the seed only."""
    first, again, other = (pteforge(made, "run", FILE, "--seed", seed) for seed in ("1", "1", "2"))
    assert first.code == 0
    assert re.fullmatch(r"load \S+ ms, forward \S+ ms\n", first.err)
    assert first.out.startswith("output 0: float32 [4, 3], min ")
    assert first.out == again.out != other.out


def test_run_computes_what_eager_computes(own, pteforge, monkeypatch):
    """`run` reads `--input` and writes eager's numbers to `--output`, whatever the file is called."""
    monkeypatch.syspath_prepend(str(own.folder))
    x = np.arange(12, dtype=np.float32).reshape(3, 4) / 10
    np.savez(own.folder / "x.npz", x)
    said = pteforge(own, "run", FILE, "--input", "x.npz", "--output", "results", "--json")
    with np.load(own.folder / "results") as arrays:
        (name,) = arrays.files
        found = arrays[name]
    import torch
    from nets import linear

    torch.manual_seed(0)  # the default seed of a model
    module, _ = linear()
    expected = module(torch.from_numpy(x)).detach().numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    (output,) = said.json["outputs"]
    assert (output["output"], output["dtype"], output["shape"]) == (0, "float32", [3, 3])
    np.testing.assert_allclose(output["first"], found.flatten()[:6])
    assert list(said.json["milliseconds"]) == ["load", "run"]
    assert 0 < said.json["milliseconds"]["run"] < 1000


def test_run_names_a_method(made, pteforge):
    """`--method` chooses a method; an unknown one is an error with the names of the others."""
    file = "out/twice/portable-fp32.pte"
    assert pteforge(made, "run", file, "--method", "decode", "--json").json["outputs"][0]["shape"] == [2, 4]
    assert pteforge(made, "run", file, "--method", "version").out == "output 0: 3\n"
    pteforge(made, "run", file).refused("no method 'forward'", "encode", "decode")


def savez(*arrays: np.ndarray) -> Callable[[Path], None]:
    return lambda path: np.savez(path, *arrays)


def save_one(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, np.ones((2, 4)))


INPUTS: dict[str, tuple[Callable[[Path], object], tuple[str, ...]]] = {
    "missing": (lambda _: None, ("cannot be read",)),
    "text": (lambda path: path.write_text("one, two"), ("cannot be read",)),
    "damaged": (lambda path: path.write_bytes(b"PK\x03\x04" + bytes(50)), ("cannot be read",)),
    "one array only": (save_one, ("numpy.savez",)),
    "words": (savez(np.array(["a"])), ("cannot be read",)),
    "objects": (savez(np.array([None])), ("cannot be read",)),
    "too many": (savez(np.ones((2, 4)), np.ones(1)), ("2 arrays", "'forward' takes 1")),
    "too few": (savez(), ("0 arrays", "'forward' takes 1")),
    "dimensions": (savez(np.ones(4)), ("array 0 has 1 dimensions", "takes 2")),
    "too large": (savez(np.ones((5, 4))), ("array 0 has size 5 in dimension 0", "takes 1 to 4")),
}


@pytest.mark.parametrize(("write", "parts"), INPUTS.values(), ids=INPUTS)
def test_run_with_inputs_that_do_not_fit(own, pteforge, write, parts):
    """Inputs that cannot be read, or do not fit the method, are an error; no output is written."""
    write(own.folder / "x.npz")
    pteforge(own, "run", FILE, "--input", "x.npz", "--output", "y.npz").refused("x.npz", *parts)
    assert not (own.folder / "y.npz").exists()


def test_run_with_an_output_that_cannot_be_written(own, pteforge):
    """An `--output` that cannot be written is an error before anything runs."""
    for output in ("out", "nowhere/y.npz"):
        pteforge(own, "run", FILE, "--output", output).refused("cannot be written to", output)


def test_store_ls_and_verify(made, pteforge):
    """Text and JSON of `ls` have the same numbers of records, objects, bytes and artifacts of each kind."""
    usage = pteforge(made, "store", "ls", "--json").json
    stages = len(list((made.store / "ledger" / "stages").glob("*/*")))
    objects = list((made.store / "objects").glob("*/*"))
    assert usage["records"] == stages > 0
    assert (usage["objects"], usage["size"]) == (len(objects), sum(path.stat().st_size for path in objects))
    said = pteforge(made, "store", "ls")
    assert said.code == 0
    assert f"{made.store}: {stages} finished stages, {len(objects)} objects, " in said.out
    for kind, count in usage["artifacts"].items():
        assert f"{count}  {kind}" in said.out
    assert list(usage["models"]) == ["linear", "twice"]
    assert sum(model["stages"] for model in usage["models"].values()) == stages
    assert all(0 < share["size"] <= usage["size"] for share in usage["kinds"].values())
    assert len(re.findall(r"\d  (linear|twice) .* KiB  \d+ (s|min|h)( to \d+ (s|min|h))? old", said.out)) == 2
    said = pteforge(made, "store", "verify")
    assert (said.code, said.err) == (0, "")
    assert ": 0 damaged" in said.out
    report = pteforge(made, "store", "verify", "--json").json
    assert (report["damaged"], report["incomplete"], report["objects"]) == ([], [], len(objects))


def test_gc_forgets_old_stages(own, pteforge):
    """`--older-than` drops older stages and their objects; `--dry-run` prints the same and removes nothing."""
    first, needed = (pteforge(own, "store", "gc", "--keep-newer-than", "0s") for _ in range(2))
    assert " and 0 records; kept " in first.out  # programs bound to their weights go: they are made again when needed
    assert needed.out.startswith("removed 0 objects (0 B) and 0 records; kept ")
    before = pteforge(own, "store", "ls", "--json").json
    everything = ("store", "gc", "--older-than", "0s", "--keep-newer-than", "0s")
    tried = pteforge(own, *everything, "--dry-run", "--json").json
    assert pteforge(own, *everything, "--dry-run").out.startswith(f"would remove {before['objects']} objects ")
    assert pteforge(own, "store", "ls", "--json").json == before
    assert (tried["records_dropped"], tried["objects_removed"]) == (before["records"], before["objects"])
    recent = pteforge(own, "store", "gc", "--older-than", "4w", "--json").json
    assert (recent["records_dropped"], recent["objects_removed"]) == (0, 0)
    done = pteforge(own, *everything, "--json").json
    assert done == tried | {"dry_run": False}
    after = pteforge(own, "store", "ls", "--json").json
    assert (after["records"], after["objects"], after["size"]) == (0, 0, 0)


def test_schema(made, pteforge):
    """The schema is JSON Schema, accepts the zoo file, and rejects an unknown key."""
    schema = pteforge(made, "schema").json
    validator = jsonschema.validators.validator_for(schema)
    validator.check_schema(schema)
    zoo = json.loads(json.dumps(yaml.safe_load((made.folder / "zoo.yaml").read_text())))
    assert list(validator(schema).iter_errors(zoo)) == []
    zoo["models"]["linear"]["sed"] = 3
    assert list(validator(schema).iter_errors(zoo)) != []


def test_export_of_a_part(own, pteforge):
    """`--model` and `--recipe` choose by glob; `--set` changes the zoo; `--out` says where files go."""
    assert pteforge(own, "export", "zoo.yaml").err == ""
    part = pteforge(own, "export", "zoo.yaml", "--model", "lin*", "--recipe", "xnn*", "--out", "there", "--json").json
    assert (part["exit_code"], part["stages"]["ran"]) == (0, 0)
    assert {model: set(files) for model, files in part["models"].items()} == {"linear": {"xnnpack-fp32"}}
    made = part["models"]["linear"]["xnnpack-fp32"]
    assert (made["file"], made["size"]) == (
        f"{own.folder}/there/linear/xnnpack-fp32.pte",
        (own.folder / FILE).stat().st_size,
    )
    assert (own.folder / "there/linear/xnnpack-fp32.pte").read_bytes() == (own.folder / FILE).read_bytes()
    one = pteforge(own, "export", "zoo.yaml", "--set", "defaults.recipes=[portable-fp32]", "--json").json
    assert {model: set(files) for model, files in one["models"].items()} == {
        "linear": {"portable-fp32"},
        "twice": {"portable-fp32"},
    }


def test_why(own, pteforge, lower):
    """`why` lists the stages of the last run of a model or of one recipe: whether each ran, and what had changed."""
    first = pteforge(own, "why", "linear").out
    assert first.count("\nran ") == 13
    before = {stage["slot"]: stage for stage in pteforge(own, "why", "linear", "--json").json["stages"]}
    lower(own, "models.linear.verify.min_sqnr_db=70.0")
    said = pteforge(own, "why", "linear")
    assert (said.code, said.err) == (0, "")
    assert "changed since it last ran: params.bounds.min_sqnr_db" in said.out
    assert "params.bounds.min_sqnr_db: 80.0 -> 70.0" in said.out
    assert "cached  export" in said.out
    portable = pteforge(own, "why", "linear/portable-fp32").out
    assert "export" in portable
    assert "xnnpack-fp32" not in portable
    run = pteforge(own, "why", "linear/portable-fp32", "--json").json
    assert run["zoo"] == "zoo"
    stages = {stage["slot"]: stage for stage in run["stages"]}
    assert stages["linear/export"]["status"] == "cached"
    verify = stages["linear/verify/portable-fp32"]
    assert verify["status"] == "ran"
    assert {"field": "params.bounds.min_sqnr_db", "before": 80.0, "after": 70.0} in verify["differs"]
    assert verify["predicted_memory"] == before["linear/verify/portable-fp32"]["peak_memory"]
    assert 0 < verify["peak_memory"] < 2**30
    assert f"expected {format_size(verify['predicted_memory'])})" in said.out
    assert 0 < before["linear/export"]["queued"] < 120  # it waited for the workers
    assert stages["linear/export"]["queued"] == stages["linear/export"]["predicted_memory"] == 0
    pteforge(own, "why", "liner").refused("no run with a model 'liner'")
    pteforge(own, "why", "linear/none").refused("no recipe 'none'", "portable-fp32, xnnpack-fp32")


def test_lost_runs(own, pteforge):
    """A run that does not hold its lease is lost, on whatever machine it was."""
    with open_store(str(own.store)) as store:
        now = datetime.now(UTC).isoformat()
        begun = replace(next(iter(store.runs)), status="running", started=now, pid=os.getpid())
        for name, changes in {"going-on": {}, "gone": {}, "elsewhere": {"host": "another"}}.items():
            store.runs.write(replace(begun, id=name, **changes))
        with store.leases.hold(run_lease("going-on")):
            listed = {run["id"]: run["status"] for run in pteforge(own, "runs", "--json").json["runs"]}
            assert {"going-on": "running", "gone": "lost", "elsewhere": "lost"}.items() <= listed.items()
            assert " lost " in pteforge(own, "runs").out


def test_names_of_runs(own, pteforge):
    """Runs with ids that begin alike are told apart, as are the attempts of one; what names several names none."""
    with open_store(str(own.store)) as store:
        last = next(iter(store.runs))
        for index, name in enumerate(("5ced" * 3, "5ced" * 2 + "0000", "5ced" * 3)):
            store.runs.write(replace(last, id=name, status="running", started=f"2099-01-0{index + 1}T00:00:00+00:00"))
        with store.leases.hold(run_lease("5ced" * 3)):
            listed = pteforge(own, "runs").out
            (second, other, first, *_) = pteforge(own, "runs", "--json").json["runs"]
    assert [line.split()[0] for line in listed.splitlines()[3:6]] == ["5ced5ced5@2", "5ced5ced0", "5ced5ced5@1"]
    assert [(run["attempt"], run["status"]) for run in (second, other, first)] == [
        *((2, "running"), (1, "lost"), (1, "lost"))  # only the last attempt can go on
    ]
    pteforge(own, "why", "linear", "--run", "5ced5ced").refused("begins the ids of 2 runs", "5ced5ced0 (2099-01-02")
    assert pteforge(own, "why", "linear", "--run", "5ced5ced5@1", "--json").json["started"] == first["started"]
    assert "linear in run 5ced5ced5@2 of zoo" in pteforge(own, "why", "linear", "--run", "5ced5ced5").out
    pteforge(own, "diff", "5ced5ced5@3", "out").refused("had attempts 1 to 2")


def test_gc_explains(own, pteforge):
    """`--explain` prints why objects are kept, and with `--json` for each of them; a lost run keeps none."""
    explained = pteforge(own, "store", "gc", "--keep-last", "1", "--dry-run", "--explain").out
    assert "objects" in explained
    assert "used by the newest run of zoo" in explained
    with open_store(str(own.store)) as store:
        store.runs.write(replace(next(iter(store.runs)), id="gone", status="running", models={}))
        objects = {stored.digest for stored in store.objects()}
    gc = ("store", "gc", "--keep-last", "1", "--dry-run", "--json")
    said = pteforge(own, *gc, "--explain").json
    assert said["reasons"].keys() == objects
    assert sum(kept["objects"] for kept in said["kept"].values()) == said["objects_kept"] == len(objects)
    assert "reasons" not in pteforge(own, *gc).json
    everything = ("store", "gc", "--keep-last", "0", "--keep-newer-than", "0s", "--dry-run", "--json")
    assert pteforge(own, *everything).json["objects_kept"] == 0


def test_zoos_of_one_name(own, made, tmp_path, pteforge):
    """An export says where another file's zoo has its name in the store, and what to do; a name of its own is enough.

    A checkout that is gone is no other zoo.
    """
    other = made.copy(tmp_path / "other")
    export = ("export", "zoo.yaml", "--store", str(own.store))
    assert pteforge(own, *export).err == ""
    for _ in range(2):
        warned = pteforge(other, *export)
        assert warned.code == 0
        for part in (f"{own.folder}/zoo.yaml", f"{other.folder}/zoo.yaml", "both named 'zoo'", "`name: ...`"):
            assert part in warned.err
    other.write("zoo.yaml", f"name: mine\n{(other.folder / 'zoo.yaml').read_text()}")
    assert pteforge(other, *export).err == ""
    assert {run["zoo"] for run in pteforge(own, "runs", "--json").json["runs"]} == {"zoo", "mine"}
    (own.folder / "zoo.yaml").rename(own.folder / "gone.yaml")
    (other.folder / "zoo.yaml").write_text((made.folder / "zoo.yaml").read_text())
    assert pteforge(other, *export).err == ""


@pytest.mark.slow
def test_a_bar_in_a_terminal(own):
    """In a terminal, progress is a bar that is gone at the end, and no lines."""
    shutil.rmtree(own.store / "ledger")
    code, shown = own.in_terminal("export", "zoo.yaml", "--model", "linear")
    assert code == 0, shown
    assert "\x1b[" in shown
    assert "stages run" in shown
    assert "0/1" in shown
    assert "2 files verified" in shown
    assert "linear verify/xnnpack-fp32: " not in shown

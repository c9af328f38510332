"""The commands beside `export`: what they say to people and to machines, and how they end."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pteforge as package
import pytest
import yaml
from pteforge.artifacts.pte.reader import open_pte
from pteforge.configs.load import load_zoo
from pteforge.flows.cli.quiet import quiet

pytestmark = pytest.mark.timeout(600)

PTEFORGE = Path(sys.executable).with_name("pteforge")
BATCH = {"forward": [{0: {"min": 1, "max": 4}}]}
FILE = "out/linear/xnnpack-fp32.pte"


@pytest.fixture(scope="module")
def made(tmp_path_factory, make_room, lower):
    """A room in which a model of one input and a model of two methods were lowered. Never changed by a test."""
    room = make_room(tmp_path_factory.mktemp("commands") / "room")
    room.zoo({"linear": {"source": "nets:linear", "dynamic_shapes": BATCH}, "twice": "methods:encode_and_decode"})
    assert lower(room).outcome.exit_code == 0
    with (
        quiet()
    ):  # where tests capture, Python's standard error is another file than C's, and what the runtime says when
        # it runs for the first time in a process gets past the command
        import torch
        from executorch.runtime import Runtime

        program = Runtime.get().load_program(room.folder / FILE)
        program.load_method("forward").execute([torch.ones(1, 4)])
    return room


@pytest.fixture
def own(made, tmp_path):
    """A copy of it that a test may change."""
    return made.copy(tmp_path / "own")


@pytest.fixture
def pteforge(monkeypatch, run_here) -> Callable[..., Any]:
    """Runs the command line in this process, in a room."""

    def run(room, *args: str) -> Any:
        monkeypatch.setenv("PTEFORGE_STORE", str(room.store))
        return run_here(room.folder, *args)

    return run


def test_version(made, pteforge):
    """`--version` prints the package's version."""
    said = pteforge(made, "--version")
    assert (said.code, said.out, said.err) == (0, f"pteforge {package.__version__}\n", "")


def test_help_names_every_command(made, pteforge):
    """`--help` names all commands, and no command is the same as asking for help."""
    said = pteforge(made, "--help")
    assert said.code == 0
    for command in (
        "export",
        "bisect",
        "inspect",
        "run",
        "verify",
        "thin",
        "extract",
        "merge",
        "why",
        "store",
        "schema",
    ):
        assert command in said.out


def test_export_until_a_stage(own, pteforge):
    """`--until` goes no further than a stage: what leads there is cached, and no file is written."""
    shutil.rmtree(own.out)
    said = pteforge(own, "export", "zoo.yaml", "--until", "edge", "--json")
    assert said.code == 0, said.err
    outcomes = [recipe for model in said.json["models"].values() for recipe in model.values()]
    assert {(each["status"], each["file"]) for each in outcomes} == {("cached", None)}
    assert not own.out.exists()
    assert "0 files" in pteforge(own, "export", "zoo.yaml", "--until", "edge").out
    pteforge(own, "export", "zoo.yaml", "--until", "lower").refused("there is no stage 'lower'; stages: export, ")


def test_verify(made, pteforge):
    """A file as it was made passes: the examples and the drawn inputs, method by method."""
    said = pteforge(made, "verify", FILE)
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith("forward: verified on 3 outputs; max abs error ")
    assert pteforge(made, "verify", "out/twice/portable-fp32.pte").out.count(": verified on ") == 2


@pytest.mark.slow
def test_verify_is_quiet(made):
    """In a process of its own, what libraries say when they are loaded is not shown."""
    done = made.run("verify", FILE)
    assert (done.code, done.err) == (0, "")


def test_verify_as_json(made, pteforge):
    """`--json` gives the figures that provenance has: the same file on the same machine computes the same."""
    provenance = json.loads((made.folder / FILE).with_suffix(".json").read_text())
    assert pteforge(made, "verify", FILE, "--json").json == provenance["verification"]["figures"]


def change_weights(path: Path) -> None:
    """Makes one weight another number, in place; the file stays a valid program."""
    content = bytearray(path.read_bytes())
    largest = max(open_pte(path).constants, key=lambda constant: constant.size)
    weights = np.frombuffer(content, np.float32, count=1, offset=largest.offset)
    content[largest.offset : largest.offset + 4] = (weights + np.float32(0.5)).tobytes()
    path.write_bytes(content)


@pytest.mark.parametrize("more", [(), ("--json",)], ids=["text", "json"])
def test_verify_finds_changed_weights(own, pteforge, more):
    """A file with one weight changed loads and runs, and fails: exit 1, the output and its figure on standard error."""
    file = own.out / "linear" / "portable-fp32.pte"
    change_weights(file)
    said = pteforge(own, "verify", str(file), *more)
    assert (said.code, said.out) == (1, "")
    assert said.err.startswith("error: the file does not compute what eager computes: ")
    assert "'forward'" in said.err
    assert "SQNR" in said.err


def test_verify_without_provenance(own, pteforge):
    """Without its provenance a file cannot be verified; the message says what is missing."""
    (own.folder / FILE).with_suffix(".json").unlink()
    pteforge(own, "verify", FILE).refused("there is no out/linear/xnnpack-fp32.json", "provenance")


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", "7", '{"verification": {"bounds": {"drawn_inputs": "x"}}, "artifacts": {}}', "\udcff"],
    ids=["empty", "list", "object", "number", "bad bounds", "not text"],
)
def test_verify_with_another_provenance(own, pteforge, content):
    """Provenance that `export` did not write is refused."""
    path = (own.folder / FILE).with_suffix(".json")
    path.write_bytes(content.encode(errors="surrogateescape"))
    pteforge(own, "verify", FILE).refused("xnnpack-fp32.json is not a provenance")


def test_verify_with_another_store(own, pteforge):
    """Where the store has not the inputs that the file was verified with, the message says what to do."""
    (own.folder / "another").mkdir()
    pteforge(own, "verify", FILE, "--store", "another").refused("not in the store", "another", "--store")


def test_inspect(made, pteforge):
    """People see methods, inputs, outputs with shapes, delegates and operators."""
    said = pteforge(made, "inspect", FILE)
    assert (said.code, said.err) == (0, "")
    for part in (
        f"{FILE}: ",
        "XnnpackBackend",
        "method forward",
        "input 0: float32 [4, 4]",
        "output 0: float32 [4, 3]",
    ):
        assert part in said.out
    several = pteforge(made, "inspect", "out/twice/portable-fp32.pte").out
    for part in ("method encode", "method decode", "method version", "aten::tanh.out", "delegates to: none"):
        assert part in several


def test_inspect_as_json(made, pteforge):
    """Machines see everything."""
    described = pteforge(made, "inspect", FILE, "--json").json
    assert described["size"] == (made.folder / FILE).stat().st_size
    assert described["backends"] == ["XnnpackBackend"]
    (method,) = described["methods"]
    assert method["name"] == "forward"
    assert method["inputs"][0]["shape"] == [4, 4]
    assert [delegate["id"] for delegate in method["delegates"]] == ["XnnpackBackend"]


def test_run_with_drawn_inputs(made, pteforge):
    """Without inputs some are drawn: the same for the same seed, others for another."""
    first, again, other = (pteforge(made, "run", FILE, "--seed", seed) for seed in ("1", "1", "2"))
    assert (first.code, first.err) == (0, "")
    assert first.out.startswith("output 0: float32 [4, 3], min ")
    assert first == again != other


def test_run_computes_what_eager_computes(own, pteforge, monkeypatch):
    """`--input` gives the numbers, `--output` takes them, whatever the file is called; they are eager's."""
    monkeypatch.syspath_prepend(str(own.folder))
    x = np.arange(12, dtype=np.float32).reshape(3, 4) / 10
    np.savez(own.folder / "x.npz", x)
    said = pteforge(own, "run", FILE, "--input", "x.npz", "--output", "results", "--json")
    with np.load(own.folder / "results") as arrays:
        (name,) = arrays.files
        found = arrays[name]
    import torch
    from nets import linear

    torch.manual_seed(0)  # the seed that a model has where the zoo says none

    module, _ = linear()
    expected = module(torch.from_numpy(x)).detach().numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    (told,) = said.json["outputs"]
    assert (told["output"], told["dtype"], told["shape"]) == (0, "float32", [3, 3])
    np.testing.assert_allclose(told["first"], found.flatten()[:6])


def test_run_names_a_method(made, pteforge):
    """`--method` chooses; one that is missing is refused with those that there are."""
    file = "out/twice/portable-fp32.pte"
    assert pteforge(made, "run", file, "--method", "decode", "--json").json["outputs"][0]["shape"] == [2, 4]
    assert pteforge(made, "run", file, "--method", "version").out == "output 0: 3\n"
    pteforge(made, "run", file).refused("no method 'forward'", "encode", "decode")


def savez(*arrays: np.ndarray) -> Callable[[Path], None]:
    """Writes arrays as `--input` takes them."""
    return lambda path: np.savez(path, *arrays)


def save_one(path: Path) -> None:
    """Writes an array as `numpy.save` does."""
    with path.open("wb") as file:
        np.save(file, np.ones((2, 4)))


INPUTS: dict[str, tuple[Callable[[Path], object], tuple[str, ...]]] = {
    "missing": (lambda _: None, ("cannot be read",)),
    "empty": (Path.touch, ("cannot be read",)),
    "text": (lambda path: path.write_text("one, two"), ("cannot be read",)),
    "damaged": (lambda path: path.write_bytes(b"PK\x03\x04" + bytes(50)), ("cannot be read",)),
    "one array only": (save_one, ("numpy.savez",)),
    "words": (savez(np.array(["a"])), ("cannot be read",)),
    "objects": (savez(np.array([None])), ("cannot be read",)),
    "too many": (savez(np.ones((2, 4)), np.ones(1)), ("holds 2 arrays", "'forward' takes 1")),
    "too few": (savez(), ("holds 0 arrays", "'forward' takes 1")),
    "dimensions": (savez(np.ones(4)), ("array 0 has 1 dimensions", "takes 2")),
    "too large": (savez(np.ones((5, 4))), ("array 0 has the shape [5, 4]", "at most [4, 4]")),
}


@pytest.mark.parametrize(("write", "telling"), INPUTS.values(), ids=INPUTS)
def test_run_with_inputs_that_do_not_fit(own, pteforge, write, telling):
    """Inputs that cannot be read, or are not what the method takes, are refused; no output is written."""
    write(own.folder / "x.npz")
    pteforge(own, "run", FILE, "--input", "x.npz", "--output", "y.npz").refused("x.npz", *telling)
    assert not (own.folder / "y.npz").exists()


@pytest.mark.parametrize("output", ["out", "nowhere/y.npz"])
def test_run_with_an_output_that_cannot_be_written(own, pteforge, output):
    """Where outputs cannot go is told before anything runs."""
    pteforge(own, "run", FILE, "--output", output).refused("cannot be written to", output)


def test_store_ls(made, pteforge):
    """People see how much there is of what; machines get the same numbers."""
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


def test_store_verify(made, pteforge):
    """A sound store verifies with 0, in text and in JSON, and no bar is left behind where there is no terminal."""
    said = pteforge(made, "store", "verify")
    assert (said.code, said.err) == (0, "")
    assert ": 0 damaged" in said.out
    report = pteforge(made, "store", "verify", "--json").json
    assert (report["damaged"], report["incomplete"]) == ([], [])
    assert report["objects"] > 0


def test_gc_keeps_what_is_needed(own, pteforge):
    """Whatever the grace period, what finished stages lead to stays."""
    said = pteforge(own, "store", "gc", "--keep-newer-than", "0s")
    assert said.code == 0
    assert said.out.startswith("removed 0 objects (0 B) and 0 records; kept ")
    assert pteforge(own, "store", "verify").code == 0


def test_gc_forgets_old_stages(own, pteforge):
    """`--older-than` drops stages that are older, and their objects; `--dry-run` says the same and removes nothing."""
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
    """The schema is JSON Schema, takes the zoo file, and does not take a key that there is not."""
    schema = pteforge(made, "schema").json
    validator = jsonschema.validators.validator_for(schema)
    validator.check_schema(schema)
    zoo = json.loads(json.dumps(yaml.safe_load((made.folder / "zoo.yaml").read_text())))
    assert list(validator(schema).iter_errors(zoo)) == []
    zoo["models"]["linear"]["sed"] = 3
    assert list(validator(schema).iter_errors(zoo)) != []


def test_export_of_what_is_there(own, pteforge):
    """An export that finds everything prints a row per file, as text without escapes or as JSON."""
    said = pteforge(own, "export", "zoo.yaml")
    assert (said.code, said.err) == (0, "")
    assert "4 files verified in out; 0 stages run" in said.out
    assert "\x1b" not in said.out
    outcome = pteforge(own, "export", "zoo.yaml", "--json").json
    assert outcome["exit_code"] == 0
    assert outcome["stages"]["ran"] == 0
    assert outcome["models"]["linear"]["xnnpack-fp32"]["file"] == str(own.folder / FILE)
    assert outcome["models"]["linear"]["xnnpack-fp32"]["size"] == (own.folder / FILE).stat().st_size


def test_export_of_a_part(own, pteforge):
    """`--model` and `--recipe` choose by glob; `--set` changes the zoo; `--out` says where files go."""
    part = pteforge(own, "export", "zoo.yaml", "--model", "lin*", "--recipe", "xnn*", "--out", "there", "--json").json
    assert {model: set(files) for model, files in part["models"].items()} == {"linear": {"xnnpack-fp32"}}
    assert (own.folder / "there/linear/xnnpack-fp32.pte").read_bytes() == (own.folder / FILE).read_bytes()
    one = pteforge(own, "export", "zoo.yaml", "--set", "defaults.recipes=[portable-fp32]", "--json").json
    assert {model: set(files) for model, files in one["models"].items()} == {
        "linear": {"portable-fp32"},
        "twice": {"portable-fp32"},
    }
    several = ("models.linear.seed=3", "models.linear.limits.memory=2GiB")
    assert load_zoo(own.folder / "zoo.yaml", several).zoo.models["linear"].seed == 3


def test_why(own, pteforge, lower):
    """Each stage of the last run, whether it ran, and what had changed; of one recipe its own stages only."""
    first = pteforge(own, "why", "linear").out
    assert first.count("\nran ") == 13
    lower(own, "models.linear.verify.min_sqnr_db=70.0")
    said = pteforge(own, "why", "linear")
    assert (said.code, said.err) == (0, "")
    assert "changed since it last ran: params.bounds.min_sqnr_db" in said.out
    assert "params.bounds.min_sqnr_db: 80.0 -> 70.0" in said.out
    assert "cached  export" in said.out
    portable = pteforge(own, "why", "linear/portable-fp32").out
    assert "export" in portable
    assert "xnnpack-fp32" not in portable
    told = pteforge(own, "why", "linear/portable-fp32", "--json").json
    assert told["zoo"] == "zoo"
    status = {stage["slot"]: stage["status"] for stage in told["stages"]}
    assert status["linear/export"] == "cached"
    assert status["linear/verify/portable-fp32"] == "ran"
    (verify,) = (stage for stage in told["stages"] if stage["slot"] == "linear/verify/portable-fp32")
    assert {"field": "params.bounds.min_sqnr_db", "before": 80.0, "after": 70.0} in verify["differs"]


def test_why_of_what_there_is_not(made, pteforge):
    """A model or a recipe that the last run had not is refused; the recipes that it had are named."""
    pteforge(made, "why", "liner").refused("no run with a model 'liner'")
    pteforge(made, "why", "linear/none").refused("no recipe 'none'", "portable-fp32, xnnpack-fp32")


@pytest.mark.slow
def test_lines_in_a_pipe_and_a_bar_in_a_terminal(own):
    """Where standard error is no terminal, progress is plain lines; in one it is a bar, gone at the end."""
    other = own.copy(own.folder.parent / "other")
    for room in (own, other):
        shutil.rmtree(room.store / "ledger")
    plain = own.export("--model", "linear")
    assert plain.code == 0, plain.err
    assert "linear verify/xnnpack-fp32: " in plain.err
    assert "\x1b" not in plain.err + plain.out
    code, shown = in_terminal(other, "export", "zoo.yaml", "--model", "linear")
    assert code == 0, shown
    assert "\x1b[" in shown
    assert "stages run" in shown
    assert "0/1" in shown
    assert "2 files verified" in shown
    assert "linear verify/xnnpack-fp32: " not in shown


def in_terminal(room, *args: str) -> tuple[int, str]:
    """Runs the command line in a terminal of its own: its exit code and all that it showed."""
    ours, theirs = pty.openpty()
    environment = {**room._environment(None), "TERM": "xterm", "COLUMNS": "160"}
    with subprocess.Popen(
        [str(PTEFORGE), *args], cwd=room.folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs
    ) as run:
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # how Linux says that the other side was closed
            while chunk := os.read(ours, 65536):
                shown += chunk
        os.close(ours)
        return run.wait(60), shown.decode()

"""Contracts of files on the command line, of a zoo's folder and releases, and as gates of recipes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from pteforge.formats.contract import ANY_PRIM, Contract, read_needs
from pteforge.tasks.lowering.model import find_runtime

FAT, PLAIN = "out/net/fat.pte", "out/net/plain.pte"


def zoo(**verify):
    """Arguments of `write_zoo`: one model, and a plain recipe with stack traces and a fat one."""
    targets = [{"target": "xnnpack"}, {"target": "portable"}]
    recipes = {
        "plain": {"specializations": [{"target": "portable"}], "debug": True, "verify": verify},
        "fat": {"output": {"form": "fat"}, "specializations": targets},
    }
    return {"net": "nets:linear"}, tuple(recipes), recipes


@pytest.fixture(scope="module")
def lowered(lower_project):
    return lower_project(*zoo())


@pytest.fixture
def contract(made, pteforge):
    """The contract of the plain file, as JSON."""
    return pteforge(made, "contract", PLAIN, "--json").json


def less_one(contract):
    """The contract without its first kernel, and that kernel's operator."""
    operator, keys = next(iter(contract["operators"].items()))
    return {**contract, "operators": {**contract["operators"], operator: keys[1:]}}, operator


def test_provenance_and_inspect(made, pteforge, contract):
    """Both say what a runtime must have, and which releases open the file: where it was run, and where it should."""
    provenance = json.loads((made.folder / PLAIN).with_suffix(".json").read_text())
    assert provenance["contract"]["operators"] == contract["operators"]
    derived = {"1.0": "derived", "1.1": "derived", "1.2": "derived", "1.3": "derived", "1.4": "derived"}
    assert provenance["contract"]["runtimes"] == {**derived, "1.5": "run"}
    assert contract["runtimes"] == dict.fromkeys((*derived, "1.5"), "derived")  # of the file alone
    assert "opens in ExecuTorch 1.0 to 1.4 (derived), 1.5 (run)" in pteforge(made, "inspect", PLAIN).out
    assert pteforge(made, "inspect", PLAIN, "--json").json["contract"] == provenance["contract"]
    said = pteforge(made, "inspect", FAT).out
    assert "to link: libnfat_backend" in said
    assert "payload portable: kernels to link: portable_ops_lib" in said
    assert "payload xnnpack: kernels to link: none" in said
    assert "opens in ExecuTorch 1.5 (run)" in said


def test_forms(made, pteforge, contract):
    """The union over a folder: as lines, JSON, selected_operators.yaml, and CMake with all libraries."""
    said = pteforge(made, "contract", "out")
    assert said.code == 0
    assert "libraries to link: portable_ops_lib, nfat_backend\nbackends: NfatBackend, XnnpackBackend\n" in said.out
    assert all(f"{operator}: " in said.out for operator in contract["operators"])
    assert "opens in" not in said.out  # said of single files
    both = pteforge(made, "contract", FAT, PLAIN, "--json").json
    assert both["operators"] == contract["operators"]
    selected = yaml.safe_load(pteforge(made, "contract", PLAIN, "--yaml").out)
    assert selected == Contract.from_json(contract).selected_operators([PLAIN])
    made.write("app.yaml", pteforge(made, "contract", "out", "--yaml").out)
    assert pteforge(made, "contract", "app.yaml", "--json").json["operators"] == contract["operators"]
    said = pteforge(made, "contract", "out", "--cmake").out
    assert f'ROOT_OPS "{",".join(contract["operators"])}"' in said
    assert "set(PTEFORGE_LIBRARIES nfat_backend xnnpack_backend selected_portable_ops_lib)" in said
    assert "DTYPE_SELECTIVE_BUILD" not in said
    said = pteforge(made, "contract", PLAIN, "--cmake").out
    assert said.count('DTYPE_SELECTIVE_BUILD "ON"') == 3
    assert f'OPS_FROM_MODEL "{made.folder / PLAIN}"' in said
    pteforge(made, "contract", PLAIN, "--cmake", "--json").refused("give one of them")
    pteforge(made, "contract", made.store.name).refused("there is no .pte file in")
    pteforge(made, "contract", "zoo.yaml").refused("zoo.yaml:1:1: this is no contract")


def test_diff(made, pteforge, contract):
    """What NEW needs besides: nothing, with exit code 0; or each backend, library and kernel, with exit code 1."""
    made.write("app.yaml", json.dumps(contract))
    said = pteforge(made, "contract", "--diff", "app.yaml", PLAIN)
    assert (said.code, said.out) == (0, f"{PLAIN} needs nothing that app.yaml has not\n")
    said = pteforge(made, "contract", "--diff", PLAIN, "out")
    assert (said.code, said.out) == (1, "backend NfatBackend\nbackend XnnpackBackend\n")
    less, operator = less_one(contract)
    made.write("app.yaml", json.dumps(less))
    said = pteforge(made, "contract", "--diff", "app.yaml", PLAIN)
    assert said.code == 1
    assert said.out.startswith(f"{operator} for ")
    made.write("app.yaml", json.dumps({**contract, "operators": {}}))
    said = pteforge(made, "contract", "--diff", "app.yaml", PLAIN, "--json")
    assert (said.code, said.json["operators"], said.json["libraries"]) == (
        1,
        contract["operators"],
        ["portable_ops_lib"],
    )
    pteforge(made, "contract", "--diff", "app.yaml").refused("--diff takes two paths")


def test_check_contracts(made, pteforge, contract):
    """A contract less a kernel refuses the file with exit code 1, naming operator, dtypes, method and line."""
    made.write("app.yaml", json.dumps(contract))
    said = pteforge(made, "check", PLAIN, "--runtime", "app.yaml")
    assert (said.code, said.out, said.err) == (0, f"{PLAIN} can be loaded by app.yaml\n", "")
    less, operator = less_one(contract)
    made.write("less.yaml", json.dumps(less))
    said = pteforge(made, "check", PLAIN, "--runtime", "less.yaml")
    assert said.code == 1
    assert f"error: {PLAIN} cannot be loaded by less.yaml:\n  {operator} for " in said.err
    assert "x float32(" in said.err
    assert "method forward at " in said.err
    assert ".py:" in said.err
    found = pteforge(made, "check", PLAIN, "--runtime", "less.yaml", "--json")
    assert (found.code, found.json["loads"], found.json["how"], len(found.json["problems"])) == (
        1,
        False,
        "contract",
        1,
    )
    said = pteforge(made, "check", FAT, "--runtime", "app.yaml")
    assert (said.code, "it needs the backend NfatBackend" in said.err) == (1, True)
    made.write("fat.yaml", json.dumps({**contract, "backends": ["NfatBackend"]}))
    said = pteforge(made, "check", FAT, "--runtime", "fat.yaml")
    assert (said.code, said.err) == (0, "payload xnnpack: passed over: the runtime lacks XnnpackBackend\n")
    made.write("selected.yaml", pteforge(made, "contract", PLAIN, "--yaml").out)
    said = pteforge(made, "check", PLAIN, "--runtime", "selected.yaml")
    assert (said.code, said.err) == (0, "selected.yaml does not say which backends the runtime has\n")


def test_prim_operators(project):
    """A selective build that names none leaves all of them in; one that names some, and a contract, say which."""
    path = project.folder / "app.yaml"
    kernels = {"aten::add.out": ["default"]}
    for names, every in ((["aten::add.out"], True), (["aten::add.out", "executorch_prim::add.Scalar"], False)):
        project.write("app.yaml", yaml.safe_dump({"operators": {name: {} for name in names}}))
        assert (ANY_PRIM in find_runtime(str(path)).operators) == every
    project.write("app.yaml", json.dumps({"format": 1, "operators": kernels, "backends": []}))
    assert find_runtime(str(path)).operators == {"aten::add.out": ("default",)}


def test_check_releases(made, pteforge):
    """Without an interpreter to open the file in, what a release can load is derived; with one, it is run."""
    said = pteforge(made, "check", PLAIN, "--runtime", "1.4")
    assert (said.code, said.out) == (0, f"{PLAIN} can be loaded by ExecuTorch 1.4 (derived)\n")
    said = pteforge(made, "check", FAT, "--runtime", "1.4")
    assert (said.code, "libnfat_backend is made for ExecuTorch 1.5" in said.err) == (1, True)
    pteforge(made, "check", PLAIN, "--runtime", "0.7").refused("0.7 is not a known release")
    pteforge(made, "check", PLAIN, "--runtime", "app.yaml", "--python", "x").refused("cannot read app.yaml")
    pteforge(made, "check", PLAIN, "--runtime", "1.5", "--python", "missing").refused("missing cannot be started")


@pytest.mark.nightly
def test_check_in_another_interpreter(made, pteforge):
    """A file, and every payload of a fat one, is opened by the interpreter's runtime, which has to be that release."""
    for file in (PLAIN, FAT):
        said = pteforge(made, "check", file, "--runtime", "1.5", "--python", sys.executable)
        assert (said.code, said.out) == (0, f"{file} can be loaded by ExecuTorch 1.5 (run)\n"), said.err
    pteforge(made, "check", PLAIN, "--runtime", "1.4", "--python", sys.executable).refused("and not 1.4")


def test_gates(made, lower, contract):
    """A recipe's contract is a gate: it decides again when it changes, and names what is missing of the runtime."""
    made.write("contracts/app-7.yaml", json.dumps(contract))
    made.write_zoo(*zoo(runtime="contracts/app-7.yaml"))
    run = lower(made)
    assert run.outcome.exit_code == 0, run.outcome.failures
    assert run.ran("net") == {"verify/plain", "report/plain"}
    more = {**contract, "operators": {**contract["operators"], "own::op.out": ["default"]}}
    made.write("contracts/app-7.yaml", json.dumps(more))
    assert lower(made).changes("net", "verify/plain") == {"params.runtime.operators.own::op.out"}
    less, operator = less_one(contract)
    made.write("contracts/app-7.yaml", json.dumps(less))
    run = lower(made)
    assert run.outcome.exit_code == 1
    (failure,) = run.outcome.failures
    assert f"the runtime app-7.yaml cannot load the file: {operator} for " in str(failure)
    made.write_zoo(*zoo(runtime="1.4"))
    assert lower(made).outcome.exit_code == 0


@pytest.mark.parametrize(
    ("runtime", "problem"),
    [
        ("app-7.yaml", "zoo.yaml:15:7: recipes.plain.verify.runtime: "),
        ("zoo.yaml", "zoo.yaml:1:1: this is no contract, which has `operators`; write one with"),
        ("0.1", "recipes.plain.verify.runtime: 0.1 is not a known release of ExecuTorch; known are 1.0 to "),
        (1.4, "recipes.plain.verify.runtime: must be text (found 1.4)"),
    ],
)
def test_unusable_gates(made, pteforge, runtime, problem):
    """Before work starts, an error names the zoo file's line and field, and what is wrong with the contract."""
    made.write_zoo(*zoo(runtime=runtime))
    pteforge(made, "export", "zoo.yaml").refused(problem)


def test_releases(made, pteforge, contract):
    """The contract of a release is that of the provenances in it; one without says what to do."""
    assert pteforge(made, "publish", "out", "--to", "releases").code == 0
    assert pteforge(made, "contract", "releases", "--json").json["operators"] == contract["operators"]
    assert pteforge(made, "contract", "--diff", "releases#latest", "out").code == 0
    path = (made.folder / PLAIN).with_suffix(".json")
    provenance = json.loads(path.read_text())
    del provenance["contract"]
    path.write_text(json.dumps(provenance))
    assert pteforge(made, "publish", "out", "--to", "releases").code == 0
    pteforge(made, "contract", "releases").refused("net/plain of the release", "has no contract")


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_earlier_releases(made, pteforge, tmp_path):
    """What is derived of ExecuTorch 1.4 holds: it opens the plain file, and both payloads of the fat one."""
    environment = tmp_path / "earlier"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    (site,) = environment.glob("lib/python*/site-packages")
    install = ["--no-deps", "--only-binary=:all:", "--target", str(site), "executorch==1.4.0"]
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", *install], check=True)
    (site / "torch.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    python = str(environment / "bin" / "python")
    said = pteforge(made, "check", PLAIN, "--runtime", "1.4", "--python", python)
    assert (said.code, said.out) == (0, f"{PLAIN} can be loaded by ExecuTorch 1.4 (run)\n"), said.err
    assert "1.4" in Contract.of(read_needs(made.folder / PLAIN)).runtimes
    container = Path(FAT).with_name("payload.pte")
    for payload in ("xnnpack", "portable"):
        assert pteforge(made, "extract", FAT, payload, "--out", str(container)).code == 0
        said = pteforge(made, "check", str(container), "--runtime", "1.4", "--python", python)
        assert (said.code, said.out) == (0, f"{container} can be loaded by ExecuTorch 1.4 (run)\n"), said.err

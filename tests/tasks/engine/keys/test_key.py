"""Stage keys, and the digest of the code that a stage runs."""

import ast
import dataclasses
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import types
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import pteforge
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pteforge.artifacts.digest import digest_bytes
from pteforge.tasks.engine.keys.code import CARRIERS, StageKey, stage_code_digest

KEY = StageKey(
    stage="edge",
    code=digest_bytes(b"code"),
    versions={"torch": "2", "executorch": "1"},
    inputs={"program": digest_bytes(b"program"), "other": digest_bytes(b"other")},
    params={"a": 1, "b": [1.5, None, True, "x"]},
)


@pytest.mark.parametrize(
    "change",
    [
        {"stage": "export"},
        {"code": digest_bytes(b"other code")},
        {"versions": {"torch": "2", "executorch": "2"}},
        {"versions": {"torch": "2"}},
        {"inputs": {"program": digest_bytes(b"other"), "other": digest_bytes(b"program")}},
        {"params": {"a": 1, "b": [1.5, None, True, "y"]}},
        {"params": {"a": 1.0, "b": [1.5, None, True, "x"]}},
        {"params": {"a": True, "b": [1.5, None, True, "x"]}},
        {"params": None},
    ],
)
def test_each_field_decides(change):
    """Another value of any field is another key, and shows in that field alone."""
    other = dataclasses.replace(KEY, **change)
    assert other.digest() != KEY.digest()
    mine, theirs = KEY.fields(), other.fields()
    assert {name for name in mine if json.dumps(mine[name]) != json.dumps(theirs[name])} == set(change)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(JSON_VALUES, JSON_VALUES)
def test_equal_keys_are_equal_params(one, other):
    """Digests of keys agree exactly where their parameters have the same JSON text."""
    first, second = (dataclasses.replace(KEY, params=params) for params in (one, other))
    same = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    assert (first.digest() == second.digest()) == same


def test_other_values():
    """Mappings are compared by content, whatever their order or kind; what is not JSON cannot be part of a key."""
    versions = types.MappingProxyType(dict(reversed(KEY.versions.items())))
    inputs, params = dict(reversed(KEY.inputs.items())), dict(reversed(KEY.params.items()))
    assert dataclasses.replace(KEY, versions=versions, inputs=inputs, params=params).digest() == KEY.digest()
    for value in (float("nan"), object()):
        with pytest.raises((ValueError, TypeError)):
            dataclasses.replace(KEY, params={"a": value}).digest()


ROOT = Path(pteforge.__file__).parent
MODULES = {path.stem: path for path in (ROOT / "tasks").glob("*/stages/[!_]*.py")}
STAGES = frozenset(MODULES)


CODES = """
import json, sys
sys.path.insert(0, sys.argv[1])
from pteforge.tasks.engine.keys.code import stage_code_digest
import pteforge
codes = {name: stage_code_digest(name) for name in sys.argv[2:]}
print(json.dumps([codes, pteforge.__file__, sorted({"torch", "executorch"} & set(sys.modules))]))
"""


@dataclass(frozen=True)
class Edit:
    """An edit of a module, and the stages that run other code after it."""

    file: str
    pattern: str
    replacement: str
    stages: frozenset[str] = frozenset()


MORE_CODE = (r"\Z", "\nMORE = 1\n")

WITHOUT_CONSEQUENCE = (
    Edit("tasks/backend/stages/edge.py", r'\A"""', '# a comment\n"""Other words in a docstring. '),
    Edit("errors.py", "is damaged; moved to", "is broken; moved to"),
    Edit("configs/recipe.py", r"(class CompileOptions\(.*\):\n)", r"\1    new: int = 0\n"),
    Edit("configs/verification.py", r"\b80\.0", "60.0"),
    Edit("flows/cli/main.py", *MORE_CODE),
    Edit("artifacts/local_store.py", *MORE_CODE),
    Edit("tasks/engine/stage.py", *MORE_CODE),
    Edit("tasks/engine/keys/search.py", *MORE_CODE),
    Edit("__init__.py", *MORE_CODE),
    Edit("formats/__init__.py", *MORE_CODE),
)

WITHOUT_PROGRAMS = {"calibration", "diagnose", "pack", "serialize", "baseline", "gate", "report"}
EXPORTING = {"export", "diagnose", "source_transform", "quantize"}  # export tries sizes against eager
NEW_FIELD = r"\1\2\1new: int = 0\n"

EDITS = (
    Edit("tasks/backend/stages/edge.py", r"( +)(return Edge\.Outputs)", r"\1del config\n\1\2", frozenset({"edge"})),
    Edit("tasks/verify/stages/verify.py", r'( +)(host: str = "".*\n)', NEW_FIELD, frozenset({"verify"})),
    Edit("tasks/file/stages/report.py", r"( +)(model: str\n)", NEW_FIELD, frozenset({"report"})),
    Edit("tasks/explain/node_losses.py", *MORE_CODE, frozenset({"bisect", "bisect_payload"})),
    Edit(
        "tasks/results/figures.py",
        *MORE_CODE,
        frozenset({"ladder", "bisect", "bisect_payload", "verify", "search_inputs", "evaluate"})
        | frozenset({"pack", "prove", "report", "bench"})
        | EXPORTING,
    ),
    Edit("tasks/programs/program.py", *MORE_CODE, STAGES - WITHOUT_PROGRAMS),
)


@pytest.fixture(scope="module")
def codes(tmp_path_factory):
    """Copies the package's sources, and says which code stages and targets have in the copy."""
    folder = tmp_path_factory.mktemp("copy")
    ignored = shutil.ignore_patterns("tests", "out", "build", "dist", "__pycache__", ".*", "*.egg-info")
    shutil.copytree(ROOT, folder / "pteforge", ignore=ignored)

    def read() -> dict[str, str]:
        names = [".".join(path.relative_to(ROOT / "tasks").with_suffix("").parts) for path in MODULES.values()]
        names.append("targets.xnnpack")
        command = [sys.executable, "-c", CODES, folder, *(f"pteforge.tasks.{name}" for name in names)]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=240)
        assert done.returncode == 0, done.stderr
        digests, file, heavy = json.loads(done.stdout)
        assert Path(file).is_relative_to(folder)
        assert heavy == []
        return {name.removeprefix("pteforge.tasks."): digest for name, digest in digests.items()}

    return folder / "pteforge", read, read()


@pytest.mark.parametrize("edits", [WITHOUT_CONSEQUENCE, *((edit,) for edit in EDITS)], ids=lambda edits: edits[-1].file)
def test_an_edit_changes_the_code_that_it_decides(edits, codes):
    """What only carries changes no key, a stage's own module changes its own, a helper those of its users."""
    package, read, before = codes
    sources = {edit.file: (package / edit.file).read_text(encoding="utf-8") for edit in edits}
    try:
        for edit in edits:
            edited, count = re.subn(edit.pattern, edit.replacement, sources[edit.file], count=1)
            assert count == 1
            (package / edit.file).write_text(edited, encoding="utf-8")
        after = read()
    finally:
        for file, source in sources.items():
            (package / file).write_text(source, encoding="utf-8")
    changed = {name for name in before if before[name] != after[name]}
    assert {name.rpartition(".")[2] for name in changed} == {stage for edit in edits for stage in edit.stages}


def test_the_copy_has_the_same_code(codes):
    """The place of the sources does not matter; names without code have no key, and are not among the carriers."""
    _, _, digests = codes
    assert digests == {name: stage_code_digest(f"pteforge.tasks.{name}") for name in digests}
    with pytest.raises(ValueError, match=r"no module pteforge\.nowhere"):
        stage_code_digest("pteforge.nowhere")
    assert all(importlib.util.find_spec(f"pteforge.{carrier}") for carrier in CARRIERS if "*" not in carrier)


def test_stages_import_other_stages_for_their_types_only():
    """Another stage's code is in no key but its own, so no stage may run it; params and roles are in the key anyway."""
    for stage, path in MODULES.items():
        nodes = list(ast.walk(ast.parse(path.read_bytes())))
        used = defaultdict(set)
        for node in nodes:
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                used[node.value.id].add(node.attr)
        imports = (node for node in nodes if isinstance(node, ast.ImportFrom) and node.module)
        of_stages = (node for node in imports if node.level == 1 or ".stages." in node.module)
        for name in (alias.name for node in of_stages for alias in node.names):
            assert name.endswith("Params") or (used[name] and used[name] <= {"Params", "Inputs"}), stage


def test_packages_only_define_and_export():
    """What lets parents be left out: no ``__init__`` of pteforge does anything when it is imported."""
    packages = ("api", "artifacts", "configs", "flows", "native", "tasks")
    inits = [ROOT / "__init__.py", *(init for package in packages for init in (ROOT / package).rglob("__init__.py"))]
    harmless = ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef
    for init in inits:
        for statement in ast.parse(init.read_text(encoding="utf-8")).body:
            match statement:
                case ast.Expr(value=ast.Constant()):
                    continue
                case ast.If(test=ast.Name(id="TYPE_CHECKING"), orelse=[]):
                    continue  # never runs
                case ast.Assign(value=value) | ast.AnnAssign(value=value):
                    ast.literal_eval(value)
                case _:
                    assert isinstance(statement, harmless), f"{init}:{statement.lineno}"


def test_third_partys_target_counts_with_its_own_package(write_tree, run_python):
    """A target of another distribution is digested with its own modules and the pteforge ones it imports."""
    files = {
        "acme/__init__.py": "",
        "acme/target.py": "import torch\nfrom .passes import fuse\nfrom pteforge.formats.pte.reader import read_pte",
        "acme/passes.py": "import pass_library\nfuse = 1",
        "pass_library.py": "x = 1",
    }
    seen = []
    for change in ({}, {"pass_library.py": "x = 2"}, {"acme/passes.py": "fuse = 2"}):
        folder = write_tree({**files, **change})
        seen.append(run_python(CODES, folder, "acme.target")[0])
    assert seen[0] == seen[1] != seen[2]

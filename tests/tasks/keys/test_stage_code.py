"""The digest of the code that a stage runs."""

import ast
import shutil
from pathlib import Path

import pteforge
import pytest
from pteforge.tasks.keys import stage_code as stage_code_module
from pteforge.tasks.keys.stage_code import stage_code_digest

DIGEST = """
import json, sys
sys.path[:0] = sys.argv[1:2]
from pteforge.tasks.keys.stage_code import stage_code_digest
import pteforge
heavy = sorted({"torch", "executorch"} & set(sys.modules))
print(json.dumps([stage_code_digest(sys.argv[2]), pteforge.__file__, heavy]))
"""


@pytest.fixture
def copied_package(tmp_path):
    """A copy of the package's sources, importable from the returned folder."""
    source = Path(pteforge.__file__).parent
    ignored = shutil.ignore_patterns("tests", "out", "build", "dist", "__pycache__", ".*", "*.egg-info")
    shutil.copytree(source, tmp_path / "copy" / "pteforge", ignore=ignored)
    return tmp_path / "copy"


def test_comment_is_no_miss_and_code_is(copied_package, run_python):
    """Editing a comment of an imported module keeps the digest, in another folder too; editing code does not."""
    module = "pteforge.artifacts.manifest"
    original, _, _ = run_python(DIGEST, "", module)
    copied, file, loaded = run_python(DIGEST, copied_package, module)
    assert Path(file).is_relative_to(copied_package)
    assert (copied, loaded) == (original, [])
    imported = copied_package / "pteforge" / "artifacts" / "digest.py"
    source = imported.read_text(encoding="utf-8")
    imported.write_text("# a comment\n" + source, encoding="utf-8")
    assert run_python(DIGEST, copied_package, module)[0] == original
    imported.write_text(source + "\nEXTRA = 1\n", encoding="utf-8")
    assert run_python(DIGEST, copied_package, module)[0] != original


def test_modules_that_are_not_imported_do_not_count(copied_package, run_python):
    """A change elsewhere in pteforge is no miss."""
    module = "pteforge.artifacts.manifest"
    original, _, _ = run_python(DIGEST, copied_package, module)
    unrelated = copied_package / "pteforge" / "tasks" / "keys" / "bindings.py"
    unrelated.write_text(unrelated.read_text(encoding="utf-8") + "\nEXTRA = 1\n", encoding="utf-8")
    assert run_python(DIGEST, copied_package, module)[0] == original


def test_mere_parents_do_not_count(copied_package, run_python):
    """A new version number, or a re-export added to a package, is no miss for the modules within."""
    module = "pteforge.artifacts.pte.reader"
    original, _, _ = run_python(DIGEST, copied_package, module)
    for package in ("", "artifacts"):
        init = copied_package / "pteforge" / package / "__init__.py"
        init.write_text(init.read_text(encoding="utf-8") + "\n__version__ = '99'\n", encoding="utf-8")
    assert run_python(DIGEST, copied_package, module)[0] == original


def test_packages_only_define_and_export():
    """What lets parents be left out: no ``__init__`` of pteforge does anything when it is imported."""
    root = Path(pteforge.__file__).parent
    inits = [root / "__init__.py"]
    for package in ("api", "artifacts", "configs", "flows", "native", "tasks"):
        inits += (root / package).rglob("__init__.py")
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
        "acme/target.py": "import torch\nfrom .passes import fuse\nfrom pteforge.artifacts.digest import Digest",
        "acme/passes.py": "import pass_library\nfuse = 1",
        "pass_library.py": "x = 1",
    }
    seen = []
    for change in ({}, {"pass_library.py": "x = 2"}, {"acme/passes.py": "fuse = 2"}):
        folder = write_tree({**files, **change})
        seen.append(run_python(DIGEST, folder, "acme.target")[0])
    assert seen[0] == seen[1] != seen[2]


def test_missing_module_is_an_error():
    """A stage name without code cannot have a key."""
    with pytest.raises(ValueError, match=r"no module pteforge\.nowhere"):
        stage_code_digest("pteforge.nowhere")


def test_digest_is_made_once_per_process(monkeypatch):
    """The second question reads no file."""
    first = stage_code_digest("pteforge.artifacts.ref")
    monkeypatch.setattr(stage_code_module, "walk_imports", None)
    assert stage_code_digest("pteforge.artifacts.ref") == first

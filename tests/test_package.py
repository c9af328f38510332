"""The package as a whole: its public names, what importing it costs, how its parts depend on each other."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from dataclasses import fields
from functools import cached_property
from graphlib import TopologicalSorter
from importlib import import_module
from pathlib import Path
from types import FunctionType
from typing import NamedTuple

import pteforge
import pytest
from pteforge.flows.run.progress import Progress
from pteforge.flows.run.recording import Recording
from pteforge.flows.run.session import PrefectState, Session

ROOT = Path(pteforge.__file__).parent
BESIDE_THE_PACKAGE = {"benchmarks", "build", "dist", "docker", "docs", "examples", "out", "scripts", "tests"} | {
    "runtime/build",  # the C++ library and its own Python package are another project, in the same folder as the host
    "runtime/python",
}

# What each part may import of the others; its own modules always.
MAY_IMPORT = {
    "__init__": {"api", "configs", "errors", "flows", "runtime", "tasks"},
    "errors": set(),
    "artifacts": {"errors"},
    "formats": {"artifacts", "errors"},
    "configs": {"errors", "formats"},
    "evaluators": {"configs", "errors", "formats", "tasks"},
    "tasks": {"artifacts", "configs", "errors", "formats"},
    "runtime": {"artifacts", "errors", "formats"},
    "api": {"artifacts", "configs", "errors", "formats", "runtime", "tasks"},
    "native": {"artifacts", "configs", "errors", "formats", "runtime", "tasks"},
    "flows": {"__init__", "artifacts", "configs", "errors", "formats", "runtime", "tasks"},
}

# Rooms of a part, each of which may import those before it, for types and inside functions too.
ROOMS = {
    "flows": ("reports", "releases", "run", "prefect", "cli"),
    "tasks": (
        *("upstream", "results", "engine", "programs", "targets", "sources", "usercode"),
        *("backend", "file", "verify", "export", "quantize", "explain", "lowering"),
    ),
}

# The only modules that may load torch and ExecuTorch when they are imported: they run in worker processes, or in the
# process of somebody who has torch already.
HEAVY = (
    *("api", "evaluators", "native", "tasks.programs", "tasks.engine.workers.entry", "tasks.lowering.preload"),
    *("tasks.explain", "tasks.export", "tasks.backend.", "tasks.quantize", "tasks.upstream", "tasks.usercode"),
    "tasks.verify",
    *(f"tasks.sources.{name}" for name in ("adapters", "audio_text", "encoder_decoder", "executorch_attention")),
    *(f"tasks.sources.{name}" for name in ("huggingface", "image_models", "kv_cache", "multimodal")),
    *(f"tasks.sources.{name}" for name in ("prequantized", "processors", "sentences", "text_generation")),
)

PARTS = ("", ".artifacts", ".configs", ".formats", ".flows", ".flows.cli", ".runtime", ".tasks")
LIGHT = [f"pteforge{part}" for part in PARTS]


def modules() -> Iterator[tuple[str, Path]]:
    """Dotted name inside the package, and path, of every module on disk. The root's own name is `__init__`."""
    for path in sorted(ROOT.rglob("*.py")):
        inside = path.relative_to(ROOT)
        if any(map(inside.is_relative_to, BESIDE_THE_PACKAGE)) or inside.parts[0].startswith("."):
            continue
        yield ".".join(inside.with_suffix("").parts).removesuffix(".__init__"), path


MODULES = dict(modules())
GENERATED = {name for name in MODULES if name.endswith("_generated")}  # by formats/codegen.py


class Import(NamedTuple):
    """One imported name: dotted, from the top (``pteforge.artifacts.digest.Digest``), however it is written."""

    name: str
    relative: bool
    line: int
    for_types: bool  # under ``if TYPE_CHECKING:``


def imports(path: Path) -> Iterator[Import]:
    """Every import in a module, at any depth."""
    here, tree = ["pteforge", *path.relative_to(ROOT).with_suffix("").parts], ast.parse(path.read_bytes())
    checked = [
        node.body for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
    ]
    for_types = {node for body in checked for statement in body for node in ast.walk(statement)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, False, node.lineno, node in for_types) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = [*here[: -node.level], *filter(None, [node.module])] if node.level else [node.module]
            for alias in node.names:
                yield Import(".".join([*base, alias.name]), bool(node.level), node.lineno, node in for_types)


def module_of(name: str) -> str:
    """The module that an imported name is, or is from; empty for the root's own, and outside of the package."""
    top, _, inside = name.partition(".")
    while top == "pteforge" and inside and inside not in MODULES:
        inside = inside.rpartition(".")[0]
    return inside if top == "pteforge" else ""


def run_python(program: str) -> str:
    """Standard output of a Python program in a process of its own."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_public_names():
    """`pteforge` offers exactly these names, and each of them exists: adding or removing one is a decision."""
    expected = [
        "Exported",
        "MethodCall",
        "MethodDefinition",
        "ModelDefinition",
        "PteforgeError",
        "PteforgeStore",
        "__version__",
        "configs",
        "export",
        "load_weights",
        "recipe_from_executorch",
    ]
    assert expected == pteforge.__all__
    assert all(hasattr(pteforge, name) for name in pteforge.__all__)
    assert set(expected) <= set(dir(pteforge)) <= {*expected, "evaluators", "native", "runtime"}
    for module in map(import_module, ("pteforge.configs", "pteforge.evaluators", "pteforge.runtime")):
        assert dir(module) == sorted(module.__all__)


def test_importing_is_light():
    """Importing the front of the package loads neither torch nor ExecuTorch nor Prefect: a no-op rerun must be fast."""
    loaded = run_python(f"import {', '.join(LIGHT)}, sys; print(*sys.modules)").split()
    assert {"torch", "executorch", "prefect"}.isdisjoint(loaded)


def test_only_stage_bodies_load_torch():
    """No module but those that run in workers loads torch or ExecuTorch, and none outside `flows.prefect` Prefect."""
    light = [name for name in MODULES if name != "__init__" and (".stages" in name or not name.startswith(HEAVY))]
    light.sort(key=lambda name: name.startswith("flows.prefect"))
    culprit = run_python(
        "import importlib, sys\n"
        f"for name in {light!r}:\n"
        "    importlib.import_module('pteforge.' + name)\n"
        "    heavy = ['torch', 'executorch'] + ['prefect'] * (not name.startswith('flows.prefect'))\n"
        "    if loaded := [module for module in heavy if module in sys.modules]:\n"
        "        sys.exit(print(name, 'loads', *loaded))\n"
    )
    assert culprit == ""


def test_packages_are_listed():
    """Every package on disk is in pyproject's list and the other way round, so that a wheel has all modules."""
    assert [path for path in MODULES.values() if not path.with_name("__init__.py").exists()] == []
    folders = [path.parent.relative_to(ROOT.parent) for path in MODULES.values() if path.name == "__init__.py"]
    on_disk = {".".join(["pteforge", *folder.parts[1:]]) for folder in folders}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert on_disk == set(project["tool"]["setuptools"]["packages"])


@pytest.mark.slow
def test_what_is_built(tmp_path):
    """The wheel, which is built from the sdist, has the package with its data and the example; neither has tests."""
    ignored = shutil.ignore_patterns(".*", "__pycache__", "build", "out")
    shutil.copytree(ROOT, tmp_path / "source", ignore=ignored)  # a build leaves files in its source
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", tmp_path, tmp_path / "source"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,), (sdist,) = tmp_path.glob("*.whl"), tmp_path.glob("*.tar.gz")
    built = {name.removeprefix("pteforge/") for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert built >= {path.relative_to(ROOT).as_posix() for path in MODULES.values()}
    assert {name for name in built if name.split("/")[0] in BESIDE_THE_PACKAGE} == {
        "examples/zoo/starter.yaml",
        "examples/zoo/starter_models.py",
    }
    assert {"configs/presets/portable-fp32.yaml", "flows/reports/page.html.jinja", "runtime/CMakeLists.txt"} <= built
    with tarfile.open(sdist) as archive:
        assert not [name for name in archive.getnames() if "/tests/" in name]


@pytest.mark.nightly
def test_types_of_an_editable_installation(tmp_path):
    """Installed as docs/how-to/install.md says, mypy has the types of the package, and Python its modules."""
    shutil.copytree(ROOT, tmp_path / "clone", ignore=shutil.ignore_patterns(".*", "__pycache__", "build", "out"))
    venv.create(tmp_path / "venv", symlinks=True)
    python, folder = tmp_path / "venv/bin/python", sysconfig.get_path("purelib")
    own = Path(sysconfig.get_path("purelib", vars={"base": str(tmp_path / "venv")}))
    (own / "dependencies.pth").write_text(folder)  # without the hooks of what is editable there
    pip = (sys.executable, "-m", "pip", "--python", str(python))
    install = ("install", "--no-deps", "--no-build-isolation", "--ignore-installed", "-e", str(tmp_path / "clone"))
    subprocess.run([*pip, *install, "--config-settings", "editable_mode=strict"], capture_output=True, check=True)
    uses = tmp_path / "uses.py"
    uses.write_text("import pteforge\nsaved: int = pteforge.Exported.save\nprint(pteforge.__file__)\n")
    mypy = (sys.executable, "-m", "mypy", "--strict", "--python-executable", python, "--cache-dir", tmp_path / "cache")
    said = subprocess.run([*mypy, uses], capture_output=True, text=True, check=False).stdout
    assert 'expression has type "Callable[[Exported' in said, said
    assert "missing library stubs" not in said
    assert str(tmp_path / "clone") in subprocess.run([python, uses], capture_output=True, text=True, check=True).stdout


def test_modules_have_docstrings():
    """Every module that a person wrote says what it is for, and not just its own name."""
    docstrings = {name: ast.get_docstring(ast.parse(MODULES[name].read_bytes())) for name in MODULES.keys() - GENERATED}
    assert [
        name for name, text in docstrings.items() if not text or text.rstrip(".") in {name, name.rpartition(".")[2]}
    ] == []


def test_docstrings_parse_by_themselves():
    """None begins with a preposition or a conjunction, as if it went on from the name above it."""
    opening = re.compile(
        r"\s*(About|After|Among|And|As|At|Because|Before|Between|But|By|During|For|From|If|In|Into|Like|Nor"
        r"|Of|On|Or|Over|Per|Since|So|Than|That|Though|To|Under|Unless|Until|When|Where|While|With|Without)\b"
    )
    found = []
    for name in sorted(MODULES.keys() - GENERATED):
        for node in ast.walk(ast.parse(MODULES[name].read_bytes())):
            match node:
                case ast.Expr(ast.Constant(str(text))) if opening.match(text):
                    found.append(f"{name}:{node.lineno}: {text}")
    assert found == []


def test_imports_go_down():
    """Flows import tasks, tasks import artifacts and configs, those import neither: never up, and always relatively.

    So do the rooms of flows and tasks. Prefect itself is imported only by `flows.prefect`, at any depth.
    """
    wrong = []
    for name, path in MODULES.items():
        part = name.partition(".")[0]
        allowed = MAY_IMPORT[part] | {part}
        for imported in imports(path):
            top, _, inside = imported.name.partition(".")
            # A name that no part of the package has is one of the root's own, such as `__version__`.
            target = inside.partition(".")[0] if inside.partition(".")[0] in MAY_IMPORT else "__init__"
            known = imported.relative and target in allowed if top == "pteforge" else True
            if part == inside.partition(".")[0] and part in ROOMS and "." in name:
                rooms, room, other = ROOMS[part], name.split(".")[1], inside.split(".")[1]
                known &= rooms.index(other) <= rooms.index(room)
            if not known or (top.startswith("prefect") and not name.startswith("flows.prefect")):
                wrong.append(f"{path}:{imported.line}: {part} imports {imported.name}")
    assert wrong == []


def test_no_module_imports_itself():
    """No module imports itself by way of others, inside functions or not; imports for types are apart."""
    graph = {
        name: {module_of(each.name) for each in imports(path) if not each.for_types} - {name, ""}
        for name, path in MODULES.items()
    }
    TopologicalSorter(graph).prepare()  # raises CycleError, which names a circle


@pytest.mark.parametrize("part", [Session, Progress, Recording, PrefectState])
def test_parts_of_a_session_are_small(part):
    """What a run is, how far it is, and its record have at most 12 fields and 12 methods and properties each."""
    kinds = FunctionType, property, cached_property
    methods = [name for name, value in vars(part).items() if isinstance(value, kinds) and not name.startswith("__")]
    assert len(fields(part)) <= 12
    assert len(methods) <= 12, methods


def test_only_sessions_change_their_parts():
    """Nothing outside of `flows/run/session.py` assigns to a part of a session, or changes a collection of it."""
    session = {"session", "progress", "recording"}
    wrong = []
    for path in (path for name, path in MODULES.items() if name.startswith(("flows.", "api."))):
        for node in ast.walk(ast.parse(path.read_bytes())):
            changed = [getattr(node, "target", None), *getattr(node, "targets", ())]
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith((".append", ".setdefault", ".update")):
                changed = [node.func.value]
            for target in changed:
                names = ast.unparse(target).partition("[")[0].split(".") if target else []
                if session & {*names[:-1]} and path != MODULES["flows.run.session"]:
                    wrong.append(f"{path}:{node.lineno}: {ast.unparse(node)}")
    assert wrong == []

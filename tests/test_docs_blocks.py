"""Every command, zoo and piece of Python in the documentation works, or says why it is not run.

An HTML comment before a block says who runs it: `<!-- run by: tests/FILE.py -->`, a test file that names the page, and
more after a comma; or why nobody does: `<!-- not run: REASON -->`. On top of a page, it is for all blocks of the page
that have none of their own. All other blocks run here, in the folder that `example` makes, those of one page in order.
The options of every `pteforge` command are checked, whoever runs it.
"""

from __future__ import annotations

import builtins
import dis
import inspect
import itertools
import os
import re
import shlex
import shutil
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType

import pteforge
import pytest
import typer
import yaml
from pteforge.configs import load_zoo
from pteforge.flows.cli.main import app
from pteforge.tests.conftest import run_process

ROOT = Path(pteforge.__file__).parent
pytestmark = pytest.mark.timeout(900)  # the first slow test lowers the zoo

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SHELL = ("bash", "sh", "console")
CHANGES_MACHINES = re.compile(
    r"^(sudo |apt|pip install|docker|kubectl|helm|prefect )|--install-completion", re.MULTILINE
)
MARK = re.compile(r"<!-- (run by|not run|ci): (.+?) -->")  # `ci` is for `.ci/run`
LEAST = ("version: 1", "models: {net: {source: nets:net}}", "defaults: {recipes: [portable-fp32]}")
"""What a zoo of a part of one needs to be whole."""
TAKE_LONG = ("accuracy", "bench", "debugging")
STAND_INS = {"s3://": "shared/", "=...": "=0123456789abcdef0123456789abcdef"}
"""What commands have here in place of a bucket, which is a folder, and of a signing key."""


@dataclass(frozen=True)
class Block:
    """A block of code, the line before it, and who runs it: `here`, `run by` another test, `ci`, or `not run`."""

    page: Path
    line: int
    language: str
    text: str
    before: str
    run: str = "here"
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def commands(self) -> Iterator[list[str]]:
        """The words of each `pteforge` command in a block for a shell."""
        text = self.text.replace("\\\n", " ")
        lines = text.splitlines()
        if self.language == "console":
            lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        for line in lines:
            if line.startswith("pteforge "):
                lexer = shlex.shlex(re.sub(r"\s#\s.*|\b2(?=>)", "", line), posix=True, punctuation_chars="|&;<>")
                lexer.whitespace_split, lexer.commenters = True, ""
                yield [*itertools.takewhile(lambda word: word[0] not in "|&;<>", lexer)][1:]


def blocks_of(page: Path) -> list[Block]:
    """The blocks of a page that a shell, Python or a zoo's loader takes, with their marks."""
    text = page.read_text(encoding="utf-8")
    of_page = MARK.match(text)
    found = []
    for block in re.finditer(r"^( *)```(\w+)[^\n]*\n(.*?)^\1```", text, re.MULTILINE | re.DOTALL):
        indent, language, code = block.groups()
        if language in (*SHELL, "python", "yaml"):
            before = text[: block.start()].rstrip().rpartition("\n")[2]
            mark = MARK.fullmatch(before.strip()) or of_page
            code = re.sub(f"^{indent}", "", code, flags=re.MULTILINE)
            line = text.count("\n", 0, block.start()) + 1
            found.append(Block(page, line, language, code, before, *(mark.groups() if mark else ())))
    return found


BLOCKS = {page: blocks_of(page) for page in PAGES}
HERE = {page: [block for block in found if block.run == "here"] for page, found in BLOCKS.items()}


def pages_with(*languages: str, nightly: Collection[str] = ()) -> list:
    """Pages with blocks in some language that run here, as parameters of a test, and which are for the night."""
    return [
        pytest.param(page, id=page.stem, marks=[pytest.mark.nightly] if page.stem in nightly else [])
        for page, found in HERE.items()
        if any(block.language in languages for block in found)
    ]


def test_other_tests_run_what_they_should():
    """A test file that is said to run a block exists, and names the page; a reason is more than a word.

    Nothing that would install packages or start services runs here.
    """
    for block in (block for found in BLOCKS.values() for block in found):
        if block.run in {"run by", "ci"}:
            runner = ROOT / (block.reason.partition(",")[0] if block.run == "run by" else ".ci/run")
            assert block.page.name in runner.read_text(encoding="utf-8"), str(block)
        assert block.run != "not run" or len(block.reason.split()) > 2, str(block)
    for block in (block for found in HERE.values() for block in found):
        assert not CHANGES_MACHINES.search(block.text), f"{block} changes this machine: mark it"


def test_count(record_property):
    """Most blocks run; the rest says why not."""
    counts = dict.fromkeys(("here", "run by", "ci", "parsed", "not run"), 0)
    for block in (block for found in BLOCKS.values() for block in found):
        counts["parsed" if block.run == "not run" and any(block.commands) else block.run] += 1
    record_property("blocks", counts)
    print(counts)  # noqa: T201 - shown with `pytest -rP`
    assert counts["here"] + counts["run by"] + counts["ci"] > sum(counts.values()) / 2, counts


def check(words: list[str]) -> None:
    """Checks a command against the command line: subcommand, options, values and the number of arguments."""
    command = typer.main.get_command(app)
    while commands := getattr(command, "commands", None):
        _, words, _ = command.make_parser(command.context_class(command)).parse_args(words)
        assert words, f"{command.name} needs a subcommand"
        assert words[0] in commands, f"there is no command {words[0]}"
        command, words = commands[words[0]], words[1:]
    command.make_context(command.name, words)


@pytest.mark.parametrize("page", [pytest.param(page, id=page.stem) for page in PAGES])
def test_commands_exist(page):
    """Every command of a page, whether it runs or not, is one that the command line takes."""
    for block in BLOCKS[page]:
        for words in block.commands if block.language in SHELL else ():
            if "--install-completion" not in words:
                try:
                    check(words)
                except Exception as error:
                    raise AssertionError(f"{block}: pteforge {shlex.join(words)}: {error}") from error


@pytest.mark.filterwarnings("ignore:This API and all of its related")
@pytest.mark.parametrize("page", pages_with("yaml"))
def test_zoos_load(page, tmp_path, monkeypatch):
    """Each YAML block is a zoo, or the part of one; files and functions that it names are those of `example`."""
    fill(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for block in HERE[page]:
        if block.language == "yaml":
            written = yaml.safe_load(block.text)
            rest = "".join(f"{field}\n" for field in LEAST if field.partition(":")[0] not in written)
            (tmp_path / "zoo.yaml").write_text(rest + block.text, encoding="utf-8")
            try:
                load_zoo(tmp_path / "zoo.yaml")
            except Exception as error:
                raise AssertionError(f"{block}: {error}") from error


NETS = """
import torch


def net():
    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(256, 5)]
    return torch.nn.Sequential(*layers), (torch.rand(1, 3, 8, 8),)
"""
ZOO = """
version: 1
defaults: {recipes: [portable-fp32, xnnpack-fp32]}
models:
  resnet8:
    source: nets:net
    metadata: {labels: [cat, dog, bird, fish, snake]}
    recipes: [portable-fp32, xnnpack-fp32, xnnpack-int8, fat]
  classifier: {source: {builder: nets:net}, seed: 1}
recipes:
  xnnpack-int8: {extends: xnnpack-int8-static, verify: {min_sqnr_db: 10}}
  fat: {output: {form: fat}, specializations: [{target: vulkan}, {target: xnnpack}, {target: portable}]}
"""
RELEASES = """
pteforge export zoo.yaml --recipe xnnpack-int8
pteforge publish out --to s3://models/releases
pteforge release promote s3://models/releases latest --channel stable
pteforge export zoo.yaml
pteforge publish out --to s3://models/releases
"""
DENOISER = """
import torch
from nets import net

torch.export.save(torch.export.export(*net()), "exported/denoiser.pt2")
"""
RECIPES = """
import pteforge
from executorch.backends.xnnpack.recipes.xnnpack_recipe_types import XNNPackRecipeType
from executorch.export import ExportRecipe


def ours() -> pteforge.configs.Recipe:
    return pteforge.recipe_from_executorch(ExportRecipe.get_recipe(XNNPackRecipeType.FP32))
"""


def fill(folder: Path) -> None:
    """Writes what commands and zoos of the documentation find in the folder that they run in."""
    for name, text in {
        "zoo.yaml": ZOO,
        "nets/__init__.py": NETS,
        "nets/segmenter.py": f"{NETS}\n\nbuild = net\n",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "recipes.py").write_text(RECIPES, encoding="utf-8")
    for name in ("examples", "docker", "requirements"):
        (folder / name).symlink_to(ROOT / name)


def shell(text: str, folder: Path) -> str:
    """Runs commands in a folder, which also has the store and the cache; returns what they print."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "PTEFORGE_STORE": str(folder / "store")}
    for written, stand_in in STAND_INS.items():
        text = text.replace(written, stand_in)
    done = run_process("bash", "-euo", "pipefail", "-c", text, cwd=folder, env=environment)
    assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def lowered(made_once) -> Path:
    """The folder in which blocks run, with lowered files, copies of them by other names, and releases."""

    def make(folder: Path) -> None:
        fill(folder)
        shell(RELEASES, folder)
        shell(
            "pteforge contract out --json > app-7.yaml && mkdir contracts exported && mv app-7.yaml contracts", folder
        )
        (folder / "denoiser.py").write_text(DENOISER, encoding="utf-8")
        shell("python denoiser.py", folder)
        shutil.copytree(folder / "out", folder / "last-release")
        results = {"model": "fat", "portable": "portable-fp32", "xnnpack": "xnnpack-fp32", "coreml": "xnnpack-int8"}
        for name, result in results.items():
            shutil.copy(folder / f"out/resnet8/{result}.pte", folder / f"{name}.pte")

    return made_once("documentation", make)


@pytest.fixture
def example(lowered, tmp_path) -> Path:
    """A copy of that folder, for one page."""
    return Path(shutil.copytree(lowered, tmp_path / "example", symlinks=True))


def unknown_names(code: CodeType, names: dict[str, object]) -> set[str]:
    """Names that a block, or a function of it, reads, and that nothing defines."""
    read = {step.argval for step in dis.get_instructions(code) if step.opname in {"LOAD_GLOBAL", "LOAD_NAME"}}
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return set().union(read - {*names, *dir(builtins)}, *(unknown_names(function, names) for function in inner))


def run_python(text: str, names: dict[str, object]) -> None:
    """Runs a block with the names of those before it, then each function of it that takes no arguments."""
    known = set(names)
    code = compile(text, "block", "exec")
    exec(code, names)  # noqa: S102 - our own pages
    assert not unknown_names(code, names)
    for name in set(names) - known:
        if isinstance(names[name], FunctionType) and not inspect.signature(names[name]).parameters:
            names[name]()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This API and all")  # these are upstream's
@pytest.mark.filterwarnings("ignore:Output Buffer not", "ignore:Unsupported kwarg", "ignore:The inplace keyword")
@pytest.mark.parametrize("page", pages_with(*SHELL, "python", nightly=TAKE_LONG))
def test_blocks_run(page, example, monkeypatch):
    """The commands of a page succeed and its Python runs, one after another; its functions find the names they read."""
    monkeypatch.chdir(example)
    monkeypatch.setenv("PTEFORGE_STORE", str(example / "store"))
    names: dict[str, object] = {}
    exec(f"import pteforge, torch\n{NETS}\nmodel, (x,) = net()\nimage = x", names)  # noqa: S102 - written above
    for block in HERE[page]:
        try:
            if block.language in SHELL:
                shell(block.text, example)
            elif block.language == "python":
                if named := re.search(r"`(\w+\.py)`:$", block.before):
                    (example / named[1]).write_text(block.text, encoding="utf-8")
                run_python(block.text, names)
        except BaseException as error:
            raise AssertionError(f"{block}: {error}") from error

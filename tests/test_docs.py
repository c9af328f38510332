"""The examples in the README and the documentation work, tables are complete, and links lead somewhere."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from inspect import signature
from pathlib import Path

import pteforge
import pytest
import torch
from pteforge import evaluators
from pteforge.configs import Zoo, load_zoo, preset_names
from pteforge.tasks.targets import target_names
from pteforge.tasks.targets.find import find_target_class
from pteforge.tests.conftest import run_process

ROOT = Path(pteforge.__file__).parent
FOLDERS = ("docs", "benchmarks", "changelog.d", "examples", "formats", "native", "runtime", "tasks", "tests")
PAGES = [*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md"))]
MODELS = "version: 1\ndefaults: {recipes: [portable-fp32]}\nmodels: {net: {source: nets:net}}\n"
README, METHODS, QUANTIZATION, ZOOS, RECIPE, ACCURACY, FAT_FILES = (
    (ROOT / page).read_text(encoding="utf-8")
    for page in (
        "README.md",
        *(f"docs/how-to/{name}.md" for name in ("methods", "quantization", "zoos", "recipes", "accuracy", "fat-files")),
    )
)


def blocks(text: str, language: str) -> list[str]:
    """The code blocks of a page."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@pytest.fixture
def load(tmp_path: Path):
    """Loads text as a zoo file."""

    def load(text: str, *overrides: str) -> Zoo:
        (tmp_path / "zoo.yaml").write_text(text, encoding="utf-8")
        return load_zoo(tmp_path / "zoo.yaml", overrides).zoo

    return load


ZOO, RECIPES, GATES, FAT = (blocks(page, "yaml")[0] for page in (ZOOS, RECIPE, ACCURACY, FAT_FILES))
ROWS = [
    [cell.strip().strip("`") for cell in line.split("|")[1:-1]]
    for line in QUANTIZATION.splitlines()
    if line.startswith("| `")
]


def test_commands_of_ci():
    """README has the command that sets everything up, and then the one that runs the tests; CI takes both from here.

    The first command installs what users get: no extra, which only tests need.
    """
    assert re.findall(r"^<!-- ci: ([\w-]+) -->\n```bash\n(.*?)^```", README, re.MULTILINE | re.DOTALL) == [
        ("set-up", "pip install torch==2.13.0 -e . && pteforge export examples/zoo/starter.yaml\n"),
        ("tests", 'pip install -e ".[test]" && scripts/test\n'),
    ]


def test_the_clock_selects_what_ci_runs():
    """The part of the nightly tests that CI runs depends on the day alone: 24 days see all of them."""
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    (line,) = [line for line in script.splitlines() if line.startswith("nightly=")]
    days = f"for day in {{0..24}}; do\ndate() {{ echo $((day * 86400 + 43200)); }}\n{line}\necho $nightly\ndone"
    said = run_process("bash", "-c", days).stdout.split()
    assert said == [*map(str, range(1, 25)), "1"]
    assert 'TEST_OPTIONS="--all --part $nightly"' in script


@pytest.mark.slow
def test_first_file(tmp_path):
    """README's first model is lowered as README says, and its zoo is one."""
    model, _ = blocks(README, "python")
    (tmp_path / "mymodel.py").write_text(model, encoding="utf-8")
    environment = {**os.environ, "PTEFORGE_CACHE": str(tmp_path / "cache"), "PREFECT_HOME": str(tmp_path / "prefect")}
    done = run_process(
        Path(sys.executable).with_name("pteforge"), "export", "mymodel:build", cwd=tmp_path, env=environment
    )
    assert "1 file verified in out" in done.stdout, done.stdout + done.stderr
    assert {path.name for path in (tmp_path / "out" / "build").iterdir()} == {"xnnpack-fp32.pte", "xnnpack-fp32.json"}


def test_readme_zoo_is_valid(load):
    """README's zoo is one, and is as short as a first look takes: 150 lines and 3 pictures."""
    (zoo,) = blocks(README, "yaml")
    assert [spec.payload for spec in load(zoo).recipes["fat"].specializations] == ["vulkan", "xnnpack", "portable"]
    assert len(README.splitlines()) <= 150
    assert len(re.findall(r"!\[", README)) <= 3


def test_torch_is_the_one_that_the_package_needs():
    """README and scripts/install pin the same torch as the lock file."""
    lock = (ROOT / "requirements/lock.txt").read_text(encoding="utf-8")
    pinned = re.search(r"^torch==[\d.]+$", lock, re.MULTILINE)[0]
    assert f"pip install {pinned} " in README
    assert f"pip install {pinned} " in (ROOT / "scripts" / "install").read_text(encoding="utf-8")


def test_zoo_example_is_valid(load):
    """The zoo and the recipes of the documentation load as one file, and mean what the text says."""
    text = ZOO + RECIPES + FAT.removeprefix("recipes:\n")
    zoo = load(text, "models.segmenter.source.kwargs.width=0.25")
    assert zoo.recipes_of("keywords") == ("portable-fp32", "xnnpack-fp32")
    assert zoo.recipes_of("segmenter") == ("xnnpack-fp32",)
    assert zoo.models["segmenter"].source.kwargs == {"width": 0.25}
    assert zoo.models["segmenter"].limits.timeout == 20 * 60
    assert zoo.recipes["xnnpack-paged"].specializations == zoo.recipes["xnnpack-fp32"].specializations
    assert zoo.recipes["xnnpack-per-operator"].verify.max_abs_error == 0.001
    assert [spec.payload for spec in zoo.recipes["fat"].specializations] == ["vulkan", "xnnpack", "portable"]


def test_gate_example_is_valid(load):
    """The gate of docs/how-to/accuracy.md has the fields of both the model and the recipe."""
    gate = load("version: 1\n" + GATES).accuracy_gate("scenes", "int8-scored")
    assert (gate.evaluator.builder, gate.evaluator.kwargs) == ("vision.score:mean_iou", {"images": 500})
    assert (gate.floor, gate.max_drop) == (0.7, 0.005)


def test_builder_example_runs():
    """The builder of docs/how-to/zoos.md returns a definition whose module accepts its example input."""
    source = re.search(r"^  ```python\n(.*?)^  ```", ZOOS, re.MULTILINE | re.DOTALL)[1]
    names = {
        "torch": torch,
        "ModelDefinition": pteforge.ModelDefinition,
        "MethodDefinition": pteforge.MethodDefinition,
        "KeywordNet": lambda: torch.nn.Conv2d(1, 4, 3),
    }
    exec("if True:\n" + source, names)  # noqa: S102 - our own page
    definition = names["keyword_spotter"]()
    forward = definition.methods["forward"]
    assert forward.module(*forward.example_inputs[0]).shape == (1, 4, 47, 8)
    assert definition.constant_methods == {"sample_rate": 16000}


def test_recipes_for_methods(load):
    """The recipes of docs/how-to/methods.md load, and mean what the text says."""
    written = [block for block in blocks(METHODS, "yaml") if block.startswith("recipes:\n")]
    recipes = "".join(block.removeprefix("recipes:\n") for block in written)
    made = load(f"{MODELS}recipes:\n{recipes}").recipes
    (mixed,) = made["mixed"].specializations
    assert not mixed.methods["decode"].delegate
    assert mixed.methods["embed"].target == "vulkan"
    assert made["chat"].compile.share_mutable_buffers


def recipe_types(file: str) -> list[str]:
    """Members of the only enum in a module of ExecuTorch, read without importing it."""
    root = importlib.util.find_spec("executorch").submodule_search_locations[0]
    (found,) = [node for node in ast.parse(Path(root, file).read_text()).body if isinstance(node, ast.ClassDef)]
    return [node.targets[0].id for node in found.body if isinstance(node, ast.Assign)]


@pytest.mark.parametrize(
    ("target", "file"),
    [
        ("xnnpack", "backends/xnnpack/recipes/xnnpack_recipe_types.py"),
        ("coreml", "backends/apple/coreml/recipes/coreml_recipe_types.py"),
    ],
)
def test_every_recipe_type_has_a_recipe(target, file):
    """The table of quantization.md has just upstream's recipe types for a backend, each with a shipped recipe.

    Recipes that upstream has no type for have rows of their own.
    """
    types = [(kind, name) for kind, name, *_ in ROWS if name.startswith(f"{target}-") and kind not in preset_names()]
    listed = {kind.partition(".")[2] or kind: name for kind, name in types}
    assert sorted(listed) == sorted(recipe_types(file))
    own = {name for name, *_ in ROWS if name in preset_names()}
    assert sorted({*listed.values(), *own}) == [
        name for name in preset_names() if name.startswith((f"{target}-", *own))
    ]


def test_every_evaluator_is_listed():
    """docs/how-to/accuracy.md has a row for each shipped evaluator, that on calibration one for each dataset."""
    listed = []
    for page, column in (("accuracy", "evaluator"), ("quantization-calibrate", "dataset")):
        text = (ROOT / "docs" / "how-to" / f"{page}.md").read_text(encoding="utf-8")
        table = text.partition(f"| {column} |")[2].partition("\n\n")[0]
        listed += re.findall(r"^\| `(\w+)`", table, re.MULTILINE)
    assert sorted(listed) == evaluators.__all__


def test_every_argument_of_export_is_listed():
    """The table of the Python API has what `pteforge.export` takes, and nothing else."""
    page = (ROOT / "docs" / "reference" / "python-api.md").read_text(encoding="utf-8")
    table = page[page.index("| argument |") :].partition("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == set(signature(pteforge.export).parameters)


def test_every_quantizer_is_listed():
    """That table has each target with a quantizer, with all of its options."""
    listed = {name: cell for names, cell, *_ in ROWS for name in re.findall(r"\w+", names) if name in target_names()}
    having = {name: find_target_class(name).QuantizerOptions for name in target_names()}
    assert {name: set(re.findall(r"\w+", cell)) for name, cell in listed.items()} == {
        name: set(options.model_fields) for name, options in having.items() if options
    }


def test_quantization_examples(load):
    """The YAML blocks of the pages about quantization load as one zoo, and mean what the text says."""
    pages = sorted((ROOT / "docs" / "how-to").glob("quantization*.md"))
    found = [block for page in pages for block in blocks(page.read_text(encoding="utf-8"), "yaml")]
    models = [block.removeprefix("models:\n") for block in found if block.startswith("models:\n")]
    recipes = "".join(block.removeprefix("recipes:\n") for block in found if block.startswith("recipes:\n"))
    models = "".join(f"{model}    recipes: [mixed-int8]\n" for model in models)
    zoo = load(f"version: 1\nrecipes:\n{recipes}models:\n{models}")
    assert [transform.torchao for transform in zoo.recipes["mixed"].source_transforms[:2]] == [
        "int8_weight_only",
        "int8_dynamic_activation_intx_weight",
    ]
    linear = {"only_rules": True, "rules": [{"operator": "aten.linear.default", "dynamic": True}]}
    assert [quantizer.options for quantizer in zoo.recipes["mixed-int8"].quantize.chosen] == [linear, {}]
    assert zoo.models["segmenter"].calibration["forward"].samples == 256
    assert zoo.models["classifier"].calibration["forward"].source.files == (Path("images/calibration"),)


def test_every_ability_has_a_test():
    """Each row of tests/correspondence.md names its counterpart here and an existing test; no cell is empty."""
    text = Path(__file__).with_name("correspondence.md").read_text(encoding="utf-8")
    rows = [line.strip("|").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    rows = [[cell.strip() for cell in row] for row in rows if row[0].strip() != "ability"]
    assert len(rows) > 40
    for row in rows:
        assert len(row) == 3, row
        assert all(row), row
        path, _, name = row[2].strip("`").partition("::")
        functions = {
            node.name
            for node in ast.parse((ROOT / path).read_text(encoding="utf-8")).body
            if isinstance(node, ast.FunctionDef)
        }
        assert name in functions, row[2]


def test_fragments_make_a_changelog(tmp_path):
    """Towncrier takes all fragments and shows the text of each; a file of another kind is an error."""
    shutil.copytree(ROOT / "changelog.d", tmp_path / "changelog.d")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "changelog.d" / "new-thing.added.md").write_text("A new\nthing.\n")

    def draft() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "towncrier", "build", "--draft", "--version", "9.9", "--date", "2030-01-01"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    said = draft()
    assert said.returncode == 0, said.stderr
    assert said.stdout.startswith("## 9.9 (2030-01-01)\n\n### Added\n\n- ")
    assert "\n- A new\n  thing.\n" in said.stdout
    fragments = {file for file in (ROOT / "changelog.d").glob("*.md") if file.name != "README.md"}
    assert [file.name for file in fragments if file.read_text().split()[0] not in said.stdout] == []
    (tmp_path / "changelog.d" / "new-thing.improved.md").write_text("Better.\n")
    assert draft().returncode != 0


def headings(page: Path) -> set[str]:
    """Anchors of a Markdown page: those that GitHub makes of headings, and those that are written."""
    text = page.read_text(encoding="utf-8")
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    made = {re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-") for title in titles}
    return {*made, *re.findall(r'<a id="([^"]+)">', text)}


def test_links_lead_somewhere():
    """Every relative link of a page leads to a file, and to a heading if it has an anchor."""
    wrong = []
    for page in PAGES:
        for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
            path, _, anchor = link.partition("#")
            if not link.startswith(("https://", "http://")):
                linked = page.parent / path if path else page
                if not linked.exists() or (anchor and anchor not in headings(linked)):
                    wrong.append(f"{page.relative_to(ROOT)}: {link}")
    assert wrong == []


def test_names_of_modules_are_right():
    """Every dotted name in backticks that begins with a folder of the package leads to a module, and what it names."""
    folders = {path.name for path in ROOT.iterdir() if (path / "__init__.py").exists()} - {"tests"}
    name = re.compile(rf"`((?:{'|'.join(folders)})(?:\.\w+)+)`")
    texts = [*ROOT.glob("*.md"), *(ROOT / "docs" / "internals").glob("*.md")]
    texts += [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    named = {(text, found) for text in texts for found in name.findall(text.read_text(encoding="utf-8"))}
    assert {found.split(".")[0] for _, found in named} >= {"artifacts", "configs", "tasks"}
    assert [(str(text.relative_to(ROOT)), found) for text, found in sorted(named) if not names_something(found)] == []


def names_something(name: str) -> bool:
    """Whether a dotted name is that of a folder or a module, or of something that its module mentions."""
    place, *rest = ROOT, *name.split(".")
    while rest and (place / rest[0]).is_dir():
        place = place / rest.pop(0)
    if rest and (place / f"{rest[0]}.py").exists():
        place = place / f"{rest.pop(0)}.py"
    source = place if place.is_file() else place / "__init__.py"
    words = set(re.findall(r"\w+", source.read_text(encoding="utf-8"))) if rest else set()
    return set(rest) <= words


def test_documents_name_what_there_is():
    """Paths and identifiers in backticks exist: in CONTRIBUTING.md, and on the pages about the inside.

    `upstream.md` is left out: it names what other projects have.
    """
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    words = {part for path in listed for part in re.findall(r"\w+", path)}
    for path in listed:
        if path.endswith((".py", ".toml", ".yml", ".yaml")) and (ROOT / path).exists():
            words |= set(re.findall(r"\w+", (ROOT / path).read_text(encoding="utf-8")))
    wrong = [
        f"{folder}/ is not in CONTRIBUTING.md's map"
        for folder in sorted({p.split("/")[0] for p in listed if "/" in p})
        if not folder.startswith(".") and f"`{folder}/`" not in (ROOT / "CONTRIBUTING.md").read_text()
    ]
    for page in (ROOT / "CONTRIBUTING.md", *(ROOT / "docs" / "internals").glob("[!u]*.md")):
        text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        names = re.findall(r"`([\w./-]+)`", text.replace("NAME", ""))
        wrong += [f"{page.name}: {name}" for name in names if not set(re.findall(r"[A-Za-z_]\w*", name)) <= words]
    assert wrong == []


def test_the_gallery_shows_its_zoo():
    """The page has a row for each model of the gallery, and its recipes and models are the zoo's, word for word."""
    page, zoo = (ROOT / "docs" / "gallery.md").read_text(), (ROOT / "benchmarks" / "gallery.yaml").read_text()
    loaded = load_zoo(ROOT / "benchmarks" / "gallery.yaml").zoo
    assert {f"`{recipe}`" for name in loaded.models for recipe in loaded.recipes_of(name)} == {
        line.split("|")[3].strip() for line in page.splitlines() if line.startswith("| ") and "`" in line
    }
    for block in blocks(page, "yaml"):
        head, _, content = block.partition("\n")
        assert content in zoo.partition(f"\n{head}\n")[2]

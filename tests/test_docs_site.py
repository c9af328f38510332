"""What the documentation site has of the code is whole, and pages that load from elsewhere are found."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pteforge
import pytest
import typer
from pteforge.configs.zoo import zoo_schema
from pteforge.flows.cli.main import app
from pteforge.flows.run.request import ExportRequest, describe
from pteforge.tasks.lowering.graph import STAGES

ROOT = Path(pteforge.__file__).parent


@pytest.fixture(scope="module")
def pages():
    """The hooks of MkDocs."""
    spec = importlib.util.spec_from_file_location("docs_pages", ROOT / "docs" / "hooks" / "pages.py")
    module = importlib.util.module_from_spec(spec)
    path = sys.path[:]
    spec.loader.exec_module(module)
    sys.path[:] = path
    return module


def test_every_command_and_option_is_there(pages):
    """Each command has a heading; each of its options and arguments a row with its help, but for former spellings."""
    text = pages.generated.commands()
    for name in ExportRequest.model_fields:
        assert pages.generated._plain(describe(name)) in text, name

    def walk(command, path):
        section = text.partition(f"### {path}\n")[2].partition("\n### ")[0]
        assert section, path
        for param in (param for param in command.params if not getattr(param, "hidden", False)):
            written = param.opts[0] if param.param_type_name == "option" else (param.metavar or param.name)
            assert written in section, (path, written)
        for name, child in getattr(command, "commands", {}).items():
            walk(child, f"{path} {name}")

    walk(typer.main.get_command(app), "pteforge")


def test_every_field_of_a_zoo_is_there(pages):
    """Each field has a row with a type and a meaning, and each type that is linked to a table."""
    text = pages.generated.zoo()
    schema = zoo_schema()
    objects = [part for part in [schema, *schema["$defs"].values()] if part.get("properties")]
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| `")]
    assert len(rows) == sum(len(part["properties"]) for part in objects)
    assert all(len(row[1]) > 2 and len(row[2].strip("| ")) > 10 for row in rows)
    headings = [line.removeprefix("### ") for line in text.splitlines() if line.startswith("### ")]
    assert len(headings) == len(objects) == len(set(headings))
    assert "models.NAME.limits" in headings
    assert "| `timeout` | number or text | Wall time of one stage" in text
    assert "[models.NAME.limits](#modelsnamelimits)" in text


def test_options_of_targets_are_there(pages):
    """Options of targets and quantizers have the meaning that the docstrings of their class and its bases have."""
    text = pages.generated.targets()
    assert "| `per_operator` | boolean | One delegate per operator pattern instead of the largest subgraphs" in text
    assert "### quantizer xnnpack\n" in text
    rows = [line.split(" | ")[2] for line in text.splitlines() if line.startswith("| `")]
    assert not [row for row in rows if row.startswith(("Default: ", "Example: "))]


def test_every_stage_is_in_the_picture():
    """The picture of the architecture has each stage of a run; others are those of commands and of failures."""
    picture = (ROOT / "docs" / "images" / "stages.svg").read_text(encoding="utf-8")
    missing = {stage.name for stage in STAGES if f">{stage.name}<" not in picture}
    assert missing == {"diagnose", "bisect", "bisect_payload"}


@pytest.mark.parametrize(
    "written",
    [
        '<script src="https://unpkg.com/x.js"></script>',
        '<link rel="stylesheet" href="https://fonts.googleapis.com/css">',
        '<link rel="preconnect" href="//fonts.gstatic.com">',
        '<img src="http://shields.io/x.svg">',
        '<pre class="mermaid"></pre>',
        '<style>@import "https://x.org/x.css"; a {background: url(//x.org/a.png)}</style>',
    ],
)
def test_what_is_loaded_from_elsewhere_is_found(pages, tmp_path, written):
    """Scripts, styles, fonts, pictures and diagrams of other hosts are found; links for people to follow are not."""
    (tmp_path / "a.html").write_text(
        '<a href="https://x.org">x</a><img src="images/a.png"><script src="/a.js"></script>'
    )
    assert pages.external_resources(tmp_path) == []
    (tmp_path / "b.html").write_text(written)
    assert pages.external_resources(tmp_path)[0].startswith("b.html: ")


def test_notebooks_become_pages(pages, tmp_path):
    """A page has a notebook's text, code, and what the code printed and showed."""
    shown = {"text/html": ["<table>\n", "\n", "</table>"], "text/plain": ["no table"]}
    outputs = [
        {"text": ["printed\n"]},
        {"data": shown},
        {"data": {"image/png": "aGk=\n"}},
        {"data": {"text/plain": "3"}},
    ]
    cells = [
        {"cell_type": "markdown", "source": ["# A title"]},
        {"cell_type": "code", "source": ["x = 1\n", "x"], "outputs": outputs},
    ]
    (tmp_path / "notebook.ipynb").write_text(json.dumps({"cells": cells}))
    assert pages._notebook(tmp_path / "notebook.ipynb").split("\n\n") == [
        "# A title",
        "```python\nx = 1\nx\n```",
        "```text\nprinted\n```",
        "<table>\n</table>",
        '<img alt="" src="data:image/png;base64,aGk=">',
        "```text\n3\n```",
    ]


def test_links_lead_to_pages_of_the_site(pages):
    """Links to other folders lead into the site, with their anchors; code and links to other sites stay as they are."""
    assert pages._uri(ROOT / "README.md") == "index.md"
    page = type("Page", (), {"file": type("File", (), {"src_uri": "how-to/zoos.md"})})
    links = "[a](../../examples/zoo/fat.yaml) [b](../../runtime/README.md#c) [c](https://x.org) `[d](../../README.md)`"
    assert pages.on_page_markdown(f"<!-- not run: for a test -->\n{links}", page) == (
        "[a](../repository/examples/zoo/fat.yaml.md) [b](../repository/runtime/README.md#c) [c](https://x.org) "
        "`[d](../../README.md)`"
    )

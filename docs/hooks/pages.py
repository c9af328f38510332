"""Makes the site of the pages in docs/, of files that they link to in other folders, and of the code.

Links in pages work on GitHub. In the site, `repository/` has the files outside of docs/ that pages link to, as pages.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parent))
import generated

DOCS = Path(__file__).parents[1]
ROOT = DOCS.parent
CODE_OR_LINK = re.compile(r"^ *```.*?^ *```|`[^`\n]+`|(?<=\]\()(?P<link>[^)\s]+)(?=\))", re.MULTILINE | re.DOTALL)
PART = re.compile(r"^<!-- generated: (\w+) -->$.*?^<!-- end -->$", re.MULTILINE | re.DOTALL)
DIRECTIVE = re.compile(r"^<!-- (::: .*?) -->$", re.MULTILINE)
COMMENT = re.compile(r"^ {0,3}<!--.*?-->\n", re.MULTILINE | re.DOTALL)
LANGUAGES = {".py": "python", ".yml": "yaml", ".h": "cpp"}
SECTIONS = {"tutorials": "Tutorials", "how-to": "How-to", "reference": "Reference", "internals": "Internals"}


def on_config(config: MkDocsConfig) -> None:
    """Adds pages that the navigation does not name: to the section of their folder, or in the end."""
    named = {*_paths(config.nav)}
    config.nav += [uri for uri in map(_uri, sorted(DOCS.glob("*.md"))) if uri not in named]
    for folder, title in SECTIONS.items():
        pages = (path for path in (DOCS / folder).iterdir() if path.suffix in {".md", ".ipynb"})
        found = sorted(path.with_suffix(".md") for path in pages)
        section = next(entry[title] for entry in config.nav if title in entry)
        section += [uri for uri in map(_uri, found) if uri not in named]


def _paths(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    else:
        for entry in nav.values() if isinstance(nav, dict) else nav:
            yield from _paths(entry)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds notebooks as pages, and all files outside of docs/ that pages link to."""
    for notebook in sorted(DOCS.rglob("*.ipynb")):
        files.append(File.generated(config, _uri(notebook), content=_notebook(notebook)))
    found = {ROOT / path.removeprefix("repository/") for path in _paths(config.nav) if path.startswith("repository/")}
    waiting = [*found, *DOCS.rglob("*.md")]
    while waiting:
        page = waiting.pop()
        for link in CODE_OR_LINK.finditer(page.read_text(encoding="utf-8")):
            target = _target(page, link["link"]) if link["link"] else None
            if target and not target.is_relative_to(DOCS) and target not in {*found, ROOT / "README.md"}:
                found.add(target)
                waiting += [target] if target.suffix == ".md" else []
    for target in sorted(found):
        if target.suffix in {".png", ".svg"}:
            files.append(File.generated(config, _uri(target), abs_src_path=str(target)))
        else:
            files.append(File.generated(config, _uri(target), content=_page(target)))
    return files


def _target(page: Path, link: str) -> Path | None:
    """The file or folder of the repository that a link of a page leads to, or its README; None for other links."""
    path = link.partition("#")[0]
    if not path or "://" in path:
        return None
    target = Path(os.path.normpath(page.parent / path))
    target = target / "README.md" if (target / "README.md").exists() else target
    return target if target.is_relative_to(ROOT) and target.exists() else None


def _uri(target: Path) -> str:
    """The path of a file of the repository among the sources of the site."""
    if target == ROOT / "README.md":
        return "index.md"
    if target.is_relative_to(DOCS):
        return target.relative_to(DOCS).as_posix().replace(".ipynb", ".md")
    suffix = "" if target.suffix in {".md", ".png", ".svg"} else ".md"
    return f"repository/{target.relative_to(ROOT).as_posix()}{suffix}"


def _page(target: Path) -> str:
    """A file outside of docs/, or all of a folder, as Markdown."""
    if target.suffix == ".md":
        return target.read_text(encoding="utf-8")
    parts = [f"# {target.name}\n"]
    for path in (path for path in sorted([target, *target.rglob("*")]) if path.is_file()):
        title = "" if path == target else f"## {path.name}\n\n"
        language = LANGUAGES.get(path.suffix, path.suffix[1:])
        parts.append(f"{title}````{language}\n{path.read_text(encoding='utf-8')}\n````\n")
    return "\n".join(parts)


def _notebook(path: Path) -> str:
    """A notebook as Markdown: its code, and what that printed and showed."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            shown = {kind: "".join(content) for kind, content in output.get("data", {}).items()}
            if "text/html" in shown:
                parts.append(re.sub(r"\n\s*\n", "\n", shown["text/html"]))
            elif "image/png" in shown:
                parts.append(f'<img alt="" src="data:image/png;base64,{shown["image/png"].strip()}">')
            elif text := "".join(output.get("text", ())) or shown.get("text/plain"):
                parts.append(f"```text\n{text.rstrip()}\n```")
    return "\n\n".join(parts)


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Puts in what is made of the code, takes comments out, and has links lead to the site's own pages."""
    uri = page.file.src_uri
    source = ROOT / uri.removeprefix("repository/") if uri.startswith("repository/") else DOCS / uri

    def lead(found: re.Match[str]) -> str:
        target = _target(source, found["link"]) if found["link"] else None
        if target is None:
            return found[0]
        _, mark, anchor = found[0].partition("#")
        return os.path.relpath(_uri(target), PurePosixPath(uri).parent) + mark + anchor

    markdown = PART.sub(lambda part: getattr(generated, part[1])(), markdown)
    return CODE_OR_LINK.sub(lead, COMMENT.sub("", DIRECTIVE.sub(r"\1", markdown)))


class _Loaded(HTMLParser):
    """What a page loads by itself, unlike links that people follow."""

    def __init__(self) -> None:
        super().__init__()
        self.urls: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Notes addresses of scripts, styles, pictures and frames; and diagrams, whose script comes from a CDN."""
        given = {name: value or "" for name, value in attrs}
        names = ["src", "srcset", "data", "poster"]
        names += ["href"] if tag == "link" and given.get("rel") not in {"canonical", "next", "prev"} else []
        self.urls += [given[name] for name in names if name in given]
        self.urls += ["https://unpkg.com/mermaid"] if "mermaid" in given.get("class", "").split() else []


def external_resources(site: Path) -> list[str]:
    """What pages and styles of a site would load from other hosts."""
    found = []
    for path in sorted([path for path in site.rglob("*") if path.suffix in {".html", ".css", ".svg"}]):
        text = path.read_text(encoding="utf-8")
        loaded = _Loaded()
        loaded.feed(text if path.suffix == ".html" else "")
        urls = [*loaded.urls, *re.findall(r"(?:url\(|@import )[\"']?([^\"')]+)", text)]
        found += [f"{path.relative_to(site)}: {url}" for url in urls if re.match(r"(https?:)?//", url)]
    return found


def on_post_build(config: MkDocsConfig) -> None:
    """Fails if a page would load anything from another host."""
    if found := external_resources(Path(config.site_dir)):
        raise PluginError("pages load from other hosts: " + "; ".join(found))

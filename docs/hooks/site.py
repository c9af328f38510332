"""Makes the site of the pages in docs/, of pages that they link to in other folders, and of the code.

Links in pages are paths that work on GitHub. In the site, `repository/` has the files outside of docs/ that pages link
to, each as a page, and links lead there.
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

ROOT = Path(__file__).parents[2]
CODE_OR_LINK = re.compile(r"(?P<code>^ *```.*?^ *```|`[^`\n]+`)|(?<=\]\()(?P<link>[^)\s]+)(?=\))", re.MULTILINE | re.DOTALL)
PART = re.compile(r"^<!-- generated: (\w+) -->$.*?^<!-- end -->$", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"^ {0,3}<!--.*?-->\n", re.MULTILINE | re.DOTALL)
LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".cpp": "cpp", ".h": "cpp", ".toml": "toml", ".sh": "bash"}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Adds pages that the navigation does not name to their sections, and a section for tutorials."""
    docs = Path(config.docs_dir)
    named = {*_paths(config.nav)}
    for folder, title, at in (("tutorials", "Tutorials", 1), ("how-to", "How-to", 2), ("reference", "Reference", 3), ("internals", "Internals", 4)):
        pages = sorted(p.relative_to(docs).with_suffix(".md").as_posix() for p in (docs / folder).glob("*") if p.suffix in {".md", ".ipynb"})
        rest = [page for page in pages if page not in named]
        section = next((entry for entry in config.nav if isinstance(entry, dict) and title in entry), None)
        if section is None and rest:
            config.nav.insert(at, {title: rest})
        elif section is not None:
            section[title] += rest
    return config


def _paths(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    else:
        for entry in nav.values() if isinstance(nav, dict) else nav:
            yield from _paths(entry)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds notebooks as pages, and all files outside of docs/ that pages link to."""
    docs = Path(config.docs_dir)
    for notebook in [file for file in files if file.src_uri.endswith(".ipynb")]:
        files.append(_page(config, str(PurePosixPath(notebook.src_uri).with_suffix(".md")), _notebook(docs / notebook.src_uri)))
    done = {ROOT / path.removeprefix("repository/") for path in _paths(config.nav) if path.startswith("repository/")}
    waiting = [*done, *(docs / file.src_uri for file in files.documentation_pages() if (docs / file.src_uri).exists())]
    while waiting:
        page = waiting.pop()
        for link in _links(page.read_text(encoding="utf-8")):
            target = _target(page, link)
            if target and not target.is_relative_to(docs) and target not in done and target != ROOT / "README.md":
                done.add(target)
                if target.suffix == ".md":
                    waiting.append(target)
    for target in sorted(done):
        if target.is_file():
            files.append(_outside(config, target))
    return files


def _links(markdown: str) -> Iterator[str]:
    for found in CODE_OR_LINK.finditer(markdown):
        if found["link"] and "://" not in found["link"]:
            yield found["link"].partition("#")[0]


def _target(page: Path, link: str) -> Path | None:
    """The file that a link of a page leads to: of a folder its README; None if it leads out of the repository."""
    target = Path(os.path.normpath(page.parent / link)) if link else page
    target = target / "README.md" if target.is_dir() else target
    return target if target.is_relative_to(ROOT) else None


def _uri(target: Path) -> str:
    """The path of a file of the repository in the sources of the site."""
    docs = ROOT / "docs"
    if target == ROOT / "README.md":
        return "index.md"
    if target.is_relative_to(docs):
        path = target.relative_to(docs)
        return path.with_suffix(".md").as_posix() if path.suffix == ".ipynb" else path.as_posix()
    path = PurePosixPath("repository") / target.relative_to(ROOT).as_posix()
    return str(path) if path.suffix in {".md", ".png", ".svg"} else f"{path}.md"


def _page(config: MkDocsConfig, uri: str, content: str) -> File:
    return File.generated(config, uri, content=content)


def _outside(config: MkDocsConfig, target: Path) -> File:
    """A file outside of docs/: a page as it is, code as a page, a picture."""
    if target.suffix in {".png", ".svg"}:
        return File.generated(config, _uri(target), abs_src_path=str(target))
    text = target.read_text(encoding="utf-8")
    if target.suffix != ".md":
        text = f"# {target.relative_to(ROOT)}\n\n````{LANGUAGES.get(target.suffix, 'text')}\n{text}\n````\n"
    return _page(config, _uri(target), text)


def _notebook(path: Path) -> str:
    """A notebook as Markdown: its code, and what that printed and showed."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if "text/html" in data:
                parts.append(re.sub(r"\n\s*\n", "\n", "".join(data["text/html"])))
            elif "image/png" in data:
                parts.append(f'<img alt="" src="data:image/png;base64,{"".join(data["image/png"]).strip()}">')
            elif text := "".join(output.get("text") or data.get("text/plain") or ()):
                parts.append(f"```text\n{text.rstrip()}\n```")
    return "\n\n".join(parts)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001 - as MkDocs calls it
    """Puts in what is made of the code, takes comments out, and has links lead to the site's own pages."""
    markdown = PART.sub(lambda part: getattr(generated, part[1])(), markdown)
    uri = page.file.src_uri
    source = ROOT / uri.removeprefix("repository/") if uri.startswith("repository/") else ROOT / "docs" / uri

    def lead(found: re.Match[str]) -> str:
        path, hash_, anchor = (found["link"] or "").partition("#")
        target = None if found["code"] or "://" in path or not path else _target(source, path)
        if target is None or not target.exists():
            return found[0]
        return os.path.relpath(_uri(target), PurePosixPath(uri).parent) + hash_ + anchor

    return CODE_OR_LINK.sub(lead, COMMENT.sub("", markdown))


class _Loaded(HTMLParser):
    """What a page loads by itself: not links that people follow."""

    def __init__(self) -> None:
        super().__init__()
        self.urls: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Notes the address of scripts, styles, pictures, frames and anything else that is loaded, and diagrams."""
        given = dict(attrs)
        if tag == "link" and given.get("rel") not in {"canonical", "next", "prev", "alternate"}:
            self.urls.append(given.get("href") or "")
        elif tag != "a":
            self.urls += [given.get(name) or "" for name in ("src", "srcset", "data", "poster", "action")]
        if "mermaid" in (given.get("class") or "").split():
            self.urls.append("https://unpkg.com/mermaid")


def external_resources(site: Path) -> list[str]:
    """What pages and styles of a site would load from other hosts."""
    found = []
    for path in sorted(site.rglob("*.html")):
        page = _Loaded()
        page.feed(path.read_text(encoding="utf-8"))
        found += [f"{path.relative_to(site)}: {url}" for url in page.urls if re.match(r"(https?:)?//", url)]
    for path in sorted(site.rglob("*.css")):
        urls = re.findall(r"(?:url\(|@import )[\"']?((?:https?:)?//[^\"')]+)", path.read_text(encoding="utf-8"))
        found += [f"{path.relative_to(site)}: {url}" for url in urls]
    return found


def on_post_build(config: MkDocsConfig) -> None:
    """Fails if a page would load anything from another host."""
    if found := external_resources(Path(config.site_dir)):
        raise PluginError("pages load from other hosts: " + "; ".join(found))

"""The contents of a release: results of an export with their provenance, a card for each model, and one for the Hub."""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ... import __version__
from ...artifacts.digest import Digest, digest_bytes, digest_file
from ...artifacts.files import read_sidecar
from ...artifacts.hub_files import HubFiles
from ...artifacts.runs import RunRecord
from ...configs.base import NAME_PATTERN
from ...errors import InputError, convert_os_errors
from ...tasks.lowering.model import PlannedModel
from ...tasks.results.delivered import NO_PROVENANCE, Delivered, columns_of
from ..reports.comparison import compared, read_delivered
from ..reports.figures_text import markdown, markdown_table
from .records import FileContent, Manifest, ReleasedFile, ReleasedModel, files_of

_RUN = ("id", "started", "host", "version", "commit", "zoo_digest")
_CARD = "README.md"
_MARK = "<!-- Written by `pteforge publish`, again with each release. Remove this line to keep the card as it is. -->"
_SHOWN = "shown.txt"  # names of the files that the last call of `show_release` wrote, a line each

ResultFiles = dict[str, dict[str, Path]]
"""Model name -> recipe name -> its `.pte`."""


@dataclass(frozen=True)
class ReleaseContents:
    """Models as they will be in a manifest, and the sources of their contents: files or bytes."""

    zoo: str
    run: Mapping[str, str]
    models: Mapping[str, ReleasedModel]
    sources: Mapping[FileContent, Path | bytes]

    @property
    def files(self) -> Iterator[tuple[str, ReleasedFile]]:
        return files_of(self.models)


def read_contents(zoo: str, results: ResultFiles, runs: Iterable[RunRecord]) -> ReleaseContents:
    """Reads files with their provenance and finds their newest run; InputError without provenance of that file."""
    files = {
        model: {recipe: _read_file(path) for recipe, path in sorted(paths.items())} for model, paths in results.items()
    }
    run = _find_run(files, runs)
    zoo = run.zoo if run else zoo
    models, sources = {}, dict[FileContent, Path | bytes]()
    for model, recipes in files.items():
        for recipe, released in recipes.items():
            path = results[model][recipe]
            sources |= dict(zip(released.contents, (path, path.with_suffix(".ptd")), strict=False))
        assets = _read_assets(model, recipes, results[model])
        sources |= {content: path for path, content in assets.items()}
        named = {path.name: content for path, content in assets.items()}
        text = write_card(zoo, model, recipes, named).encode()
        card = FileContent(digest_bytes(text), len(text))
        sources[card] = text
        models[model] = ReleasedModel(card, recipes, named)
    origin = {name: getattr(run, name) for name in _RUN} if run else {"host": platform.node(), "version": __version__}
    return ReleaseContents(zoo, dict.fromkeys(_RUN, "") | origin, models, sources)


def _find_run(files: Mapping[str, Mapping[str, ReleasedFile]], runs: Iterable[RunRecord]) -> RunRecord | None:
    wanted = [(model, recipe, file.file.sha256) for model in files for recipe, file in files[model].items()]

    def has_made(run: RunRecord, model: str, recipe: str, sha256: str) -> bool:
        result = Delivered.of_run(run, model, recipe)
        return result is not None and result.sha256 == sha256

    return next((run for run in runs if all(has_made(run, *file) for file in wanted)), None)


def find_results(out: Path) -> ResultFiles:
    """All verified files in a folder that `pteforge export` wrote to; raises InputError if there are none."""
    files: ResultFiles = {}
    for path in sorted(out.glob("*/*.pte")):
        if not path.name.endswith(".rejected.pte"):
            files.setdefault(path.parent.name, {})[path.stem] = path
    if not files:
        raise InputError(f"there are no files in {out}, such as MODEL/RECIPE.pte; run `pteforge export` first")
    return files


def find_results_of(models: Iterable[PlannedModel], out: Path) -> ResultFiles:
    """The files of models and their recipes in a folder; raises InputError if one is missing."""
    files = {
        model.name: {recipe.name: out / model.name / f"{recipe.name}.pte" for recipe in model.recipes}
        for model in models
        if model.recipes
    }
    if missing := [str(path) for paths in files.values() for path in paths.values() if not path.is_file()]:
        more = f" and {len(missing) - 1} more" if missing[1:] else ""
        raise InputError(f"there is no file {missing[0]}{more}; run `pteforge export` first, or give its --out folder")
    return files


def merge_results(folders: Sequence[ResultFiles]) -> ResultFiles:
    """Joins the results of several folders; raises InputError if a file is in two of them."""
    merged: ResultFiles = {}
    for results in folders:
        for model, paths in results.items():
            merged_paths = merged.setdefault(model, {})
            if both := sorted(paths.keys() & merged_paths.keys()):
                raise InputError(f"{model}/{both[0]} is given twice: {merged_paths[both[0]]} and {paths[both[0]]}")
            merged_paths |= paths
    return merged


def write_card(zoo: str, model: str, recipes: Mapping[str, ReleasedFile], assets: Mapping[str, FileContent]) -> str:
    """A model card in Markdown, without the release, so that equal files have equal cards."""
    names = [*columns_of(released.result for released in recipes.values())]
    cells = (_cells(recipe, released.result, names) for recipe, released in recipes.items())
    rows = markdown_table(("recipe", "backends", "methods", *names), cells)
    ran = all(released.result.measured for released in recipes.values())
    verified = "Each file" if ran else "Each file with figures"
    notes = []
    for recipe, released in recipes.items():
        notes.append(_listed(f"{recipe}.pte", released.file))
        notes += [_listed(f"{recipe}.ptd", released.data)] if released.data else []
        notes += [f"  - {markdown(fact.note)}" for fact in released.result.notes]
    notes += [_listed(name, content) for name, content in assets.items()]
    toolchain = next(iter(recipes.values())).result.toolchain
    versions = "\n".join(f"- {name} {version}" for name, version in sorted(toolchain.items()))
    return f"""# {model}

From the zoo `{zoo}`, lowered to ExecuTorch by pteforge. {verified} was run on the ExecuTorch runtime and compared with
the model in PyTorch; figures are the worst over all inputs.

{chr(10).join(rows)}

## Files

{chr(10).join(notes)}

## Made with

{versions}
"""


def show_release(files: HubFiles, manifest: Manifest) -> None:
    """Gives a release's files their names, replacing another's; writes the card unless somebody else wrote it."""
    names: dict[str, FileContent] = {}
    for model, released in manifest.models.items():
        names |= {f"{model}/{name}": content for name, content in released.assets.items()}
    for name, file in manifest.files:
        names |= {f"{name}.{ending}": content for ending, content in zip(("pte", "ptd"), file.contents, strict=False)}
        files.write(f"{name}.json", json.dumps(file.provenance, indent=2, sort_keys=True).encode() + b"\n")
    for name, content in names.items():
        files.copy(f"files/{content.sha256}", name)
    shown = [*names, *(f"{name}.json" for name, _ in manifest.files)]
    for name in set((files.read(_SHOWN) or b"").decode().splitlines()) - set(shown):
        files.delete(name)
    files.write(_SHOWN, "\n".join(shown).encode())
    if _MARK.encode() in (files.read(_CARD) or _MARK.encode()):
        cards = [files.read(f"files/{released.card.sha256}") or b"" for released in manifest.models.values()]
        files.write(_CARD, _hub_card(files.url, manifest, [card.decode() for card in cards]).encode())


def _hub_card(url: str, manifest: Manifest, cards: list[str]) -> str:
    """A card in Markdown with the head that the Hub reads (huggingface.co/docs/hub/model-cards), and models' cards."""
    heads = [dict(_head(file)) for _, file in manifest.files]
    common = {key: value for key, value in heads[0].items() if all(head.get(key, value) == value for head in heads)}
    base = sorted({head["base_model"] for head in heads if "base_model" in head})
    head = {**common, "library_name": "executorch", "tags": ["executorch", "pteforge"]}
    head |= {"base_model": base} if base else {}
    name, _ = next(manifest.files)
    text = "\n".join(card.replace("\n## ", "\n### ").replace("# ", "## ", 1) for card in cards)
    return f"""---
{yaml.safe_dump(head).strip()}
---

{_MARK}

# {manifest.zoo}

Models for [ExecuTorch](https://github.com/pytorch/executorch), lowered by pteforge {manifest.run.get("version", "")}.

```bash
pip install "pteforge[hf]"
pteforge release fetch {url} '{name}' -o models # checks each file's SHA-256
pteforge run models/{name}.pte
```

{text}"""


def _head(file: ReleasedFile) -> Iterator[tuple[str, str]]:
    metadata: Mapping[str, Any] = file.provenance.get("metadata", {})
    if license_name := metadata.get("general.license"):
        yield "license", license_name
    if (source := str(metadata.get("general.source", ""))).startswith("hf:"):
        yield "base_model", source.removeprefix("hf:")
    methods = set(file.result.methods)
    kinds = {
        "automatic-speech-recognition": "encoder" in methods and "audio.sampling_rate" in metadata,
        "image-text-to-text": "vision_encoder" in methods,
        "audio-text-to-text": "audio_encoder" in methods,
        "text-generation": "context.length" in metadata,
        "image-classification": {"output.labels", "image.size"} <= metadata.keys(),
    }
    if fitting := [kind for kind, fits in kinds.items() if fits]:
        yield "pipeline_tag", fitting[0]


def _listed(name: str, content: FileContent) -> str:
    return f"- `{name}`: {content.size} bytes, SHA-256 `{content.sha256}`"


def _cells(recipe: str, result: Delivered, names: Iterable[str]) -> list[str]:
    backends, methods = ", ".join(result.backends) or "portable kernels", ", ".join(result.methods)
    figures = (result.columns[name].text if name in result.columns else "" for name in names)
    return [f"`{recipe}`", backends, methods, *figures]


def _read_file(path: Path) -> ReleasedFile:
    described = path.with_suffix(".json")
    with convert_os_errors(InputError, f"cannot read {described}", "publish a folder that `pteforge export` made"):
        text = read_sidecar(described)
    try:
        provenance = json.loads(text)
        result = Delivered.of_provenance(provenance)
    except NO_PROVENANCE as error:
        raise InputError(f"{described} is not a file's provenance: {error}; run `pteforge export` again") from error
    if not all(re.fullmatch(NAME_PATTERN, name) for name in result.assets):
        raise InputError(f"the provenance of {result.name} names assets that are no names of files")
    files = {ending: _content(path.with_suffix(f".{ending}"), digest) for ending, digest in result.digests.items()}
    return ReleasedFile(files["pte"], files.get("ptd"), compared(read_delivered(path)), provenance)


def _read_assets(model: str, recipes: Mapping[str, ReleasedFile], paths: Mapping[str, Path]) -> dict[Path, FileContent]:
    """The assets of a model, which are those of all its files; raises InputError if there are two of one name."""
    contents: dict[str, tuple[Path, FileContent]] = {}
    for recipe, released in recipes.items():
        for name, digest in released.result.assets.items():
            path = paths[recipe].with_name(name)
            content = _content(path, digest)
            if contents.setdefault(name, (path, content))[1] != content:
                raise InputError(f"files of {model} were made with different assets {name}: export all of them again")
    return dict(contents.values())


def _content(path: Path, digest: Digest) -> FileContent:
    with convert_os_errors(InputError, f"cannot read {path}", "run `pteforge export` again"):
        content = FileContent(digest_file(path), path.stat().st_size)
    if content.sha256 != digest:
        raise InputError(f"{path} was changed after it was verified: its SHA-256 is not {digest}")
    return content

"""The front of a release in a repository of the Hugging Face Hub: files under their own names, and a model card."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from ...artifacts.hub_files import HubFiles
from .records import Content, Manifest, ReleasedFile

_CARD = "README.md"
_MARK = "<!-- Written by `pteforge publish`, again with each release. Remove this line to keep the card as it is. -->"
_SHOWN = "shown.txt"  # names of the files that the last call of `show_release` wrote, a line each


def show_release(files: HubFiles, manifest: Manifest) -> None:
    """Gives the files of a release their names, replacing those of another release, and writes the card.

    Keeps a card that somebody else wrote.
    """
    names: dict[str, Content] = {}
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
    """The head of a card for one file."""
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

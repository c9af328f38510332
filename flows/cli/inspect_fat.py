"""What `pteforge inspect` says about the container of a fat file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...artifacts.nfat.contents import Payload
from ...artifacts.nfat.fat_file import FatFile
from .fat_sizes import PayloadSizes, payload_sizes
from .printable import printable
from .summary import format_size

_SHORT_DIGEST = 12


def describe_container(fat: FatFile) -> dict[str, Any]:
    """A JSON object of everything in the container; sizes are bytes.

    ``sum`` is what the payloads have as plain files. Of a payload, ``adds`` is stored for it only, ``shared`` for it
    and for others. ``outside`` are blobs that are not in the `.pte`; those of ``missing_blobs`` were not found.
    """
    container, manifest = fat.container, fat.container.manifest
    inside = {named.key for named in fat.outer.named_data}
    outside = [blob for blob in manifest.blobs if blob.digest not in inside]
    sizes = payload_sizes(manifest)
    return {
        "version": container.version,
        "alignment": manifest.alignment,
        "metadata": dict(manifest.metadata),
        "sum": sum(payload.size for payload in manifest.payloads),
        "inline": len(container.inline),
        "blobs": {"count": len(manifest.blobs), "bytes": sum(blob.size for blob in manifest.blobs)},
        "outside": {"count": len(outside), "bytes": sum(blob.size for blob in outside)},
        "payloads": [
            _payload(fat, payload, of_payload) for payload, of_payload in zip(manifest.payloads, sizes, strict=True)
        ],
    }


def _payload(fat: FatFile, payload: Payload, sizes: PayloadSizes) -> dict[str, Any]:
    digests = [fat.container.manifest.blobs[index].digest for index in payload.blobs]
    return {
        "name": payload.name,
        "backends": list(payload.description.backends),
        "methods": list(payload.description.methods),
        "size": sizes.alone,
        "adds": sizes.adds,
        "shared": sizes.shared,
        "sha256": payload.sha256,
        "parts_sha256": payload.parts_sha256,
        "executorch_version": payload.description.executorch_version,
        "features": payload.features,
        "metadata": dict(payload.description.metadata),
        "missing_blobs": [digest for digest in digests if digest not in fat.container.named_data],
    }


def print_container(console: Console, file: Path, description: dict[str, Any]) -> None:
    """Shows a fat file's payloads, by priority; `description` is that of the file, with its ``container``."""
    for line in _lines(file, description):
        console.print(Text(line), soft_wrap=True)
    console.print(_table(description["container"]["payloads"]))


def _lines(file: Path, description: dict[str, Any]) -> Iterator[str]:
    container = description["container"]
    payloads, outside = container["payloads"], container["outside"]
    total = description["size"] + outside["bytes"]
    what = f"NFAT version {container['version']} with {_count(len(payloads), 'payload')}"
    yield f"{printable(str(file))}: {format_size(description['size'])}, {what}"
    ratio = f", {total / container['sum']:.2f} of that" if container["sum"] else ""
    yield f"alone they have {format_size(container['sum'])}; together {format_size(total)}{ratio}"
    if outside["count"]:
        yield f"kept outside, in .ptd files: {_count(outside['count'], 'blob')}, {format_size(outside['bytes'])}"
    methods = sorted(method["name"] for method in description["methods"])
    for payload in payloads:
        if missing := payload["missing_blobs"]:
            yield f"payload {payload['name']} lacks {_count(len(missing), 'blob')}: --data names the file that has them"
        if payload["methods"] and sorted(payload["methods"]) != methods:
            yield f"payload {payload['name']} has other methods: {printable(', '.join(payload['methods']))}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _table(payloads: list[dict[str, Any]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("", justify="right")
    for name in ("payload", "needs"):
        table.add_column(name, overflow="fold")
    for name in ("methods", "size", "adds", "shared"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("ExecuTorch", overflow="fold")
    table.add_column("SHA-256", no_wrap=True)
    for place, payload in enumerate(payloads, 1):
        needs = ["a newer runtime"] if payload["features"] else payload["backends"]
        table.add_row(
            str(place),
            Text(payload["name"]),
            Text(", ".join(needs) or "nothing"),
            str(len(payload["methods"]) or ""),
            *(format_size(payload[size]) for size in ("size", "adds", "shared")),
            Text(payload["executorch_version"]),
            (payload["sha256"] or "")[:_SHORT_DIGEST],
        )
    return table

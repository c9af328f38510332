"""`pteforge inspect` and `metadata`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import starmap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...artifacts.digest import digest_file, digest_json
from ...artifacts.files import read_sidecar
from ...errors import FileFormatError, InputError, printable
from ...tasks.results.tables import fat_cost, format_size
from ..reports.figures_text import format_runtimes, open_table
from .options import AS_JSON, DATA, argument
from .terminal import open_console, print_json, styled
from .weights import data_files, open_fat_file

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from ...formats.contract import Contract
    from ...formats.pte.metadata import MetadataValue
    from ...tasks.results.delivered import Delivered


_SHORT_DIGEST = 12
_MAX_OPERATORS = 12
_MAX_LENGTH = 80


def inspect_file(
    file: Annotated[Path, argument("A .pte file.")], *, data: DATA = None, as_json: AS_JSON = False
) -> None:
    """Show the contents of a .pte file: metadata, methods, operators, delegates, named data; payloads if it is fat."""
    from ...formats.describe import describe, describe_container, describe_external, weight_bytes
    from ...formats.nfat.container import is_fat
    from ...formats.pte.buckets import BUCKETS
    from ...formats.pte.contents import SIZES
    from ...formats.pte.metadata import metadata_json, read_metadata, returning_methods
    from ...formats.pte.reader import map_file, open_pte

    pte, weights = open_pte(file), data_files(file, data)
    fat = open_fat_file(file, data) if is_fat(pte) else None
    metadata = read_metadata(file)
    delivered = delivered_of(file, weights)
    contract = _contract(file, data, delivered)
    description = {
        **describe(pte),
        "metadata": metadata_json(metadata),
        "container": describe_container(fat) if fat else None,
        **delivered.recorded(),
        "contract": contract and contract.described(),
    }
    if not fat:
        description["weights"] = asdict(weight_bytes(pte, map_file(file)))
        description["outside"] = describe_external(file, pte, weights)
    if as_json:
        print_json(description)
        return
    console = open_console()
    if fat:
        for line in _fat_lines(file, description):
            console.print(line, soft_wrap=True)
        console.print(_table(description["container"]["payloads"]))
    else:
        _print_file(console, file, description)
    console.print(format_runtimes(contract.runtimes if contract else None), soft_wrap=True)
    for fact in (fact for fact in delivered.notes if fact.area != "payloads"):  # those are printed above
        console.print(printable(fact.note, keep="\n"), soft_wrap=True)
    entries = {key: value for key, value in metadata.items() if not key.startswith((SIZES, BUCKETS))}
    for line in _metadata_lines(entries, limit=_MAX_LENGTH):
        console.print(line, soft_wrap=True)
    _print_buckets(console, metadata, description)
    returning = returning_methods(pte, metadata)
    for method in [method for method in description["methods"] if method["name"] not in returning]:
        _print_method(console, method)
    if not fat:
        _print_named_data(console, description)


def _contract(file: Path, data: list[Path] | None, delivered: Delivered) -> Contract | None:
    """What a runtime must have, from the provenance or else the file; None if a payload cannot be read."""
    from ...formats.contract import Contract, read_needs

    if delivered.contract:
        return delivered.contract
    try:
        return Contract.of(read_needs(file, data_files(file, data)))
    except FileFormatError:
        return None


def delivered_of(file: Path, weights: Sequence[Path]) -> Delivered:
    """What the provenance says, with the planned memory read from the file where the provenance lacks it."""
    from ...formats.describe import planned_memory
    from ...tasks.results.costs import MemoryUse
    from ...tasks.results.delivered import Delivered

    delivered = Delivered.next_to(file)
    if delivered is None:
        delivered = Delivered(file.absolute().parent.name, file.stem, "made", digests={"pte": digest_file(file)})
    planned = () if delivered.every(MemoryUse) else starmap(MemoryUse, planned_memory(file, weights))
    return replace(delivered, findings=(*delivered.findings, *planned))


def _fat_lines(file: Path, description: dict[str, Any]) -> Iterator[str]:
    container = description["container"]
    payloads, external = container["payloads"], container["outside"]
    total = description["size"] + external["bytes"]
    nfat = f"NFAT version {container['version']} with {_count(len(payloads), 'payload')}"
    yield f"{printable(str(file))}: {format_size(description['size'])}, {nfat}"
    ratio = f", {total / container['sum']:.2f} of that" if container["sum"] else ""
    cost = fat_cost(total, {payload["name"]: payload["size"] for payload in payloads}) if payloads else ""
    yield f"separately they have {format_size(container['sum'])}; together {format_size(total)}{ratio}, {cost}"
    if external["count"]:
        yield f"external, in .ptd files: {_count(external['count'], 'blob')}, {format_size(external['bytes'])}"
    yield "to link: libnfat_backend, and for payloads that are to run, their backends and kernels"
    methods = sorted(method["name"] for method in description["methods"])
    for payload in payloads:
        if payload["kernels"] is not None:
            yield f"payload {payload['name']}: kernels to link: {printable(', '.join(payload['kernels'])) or 'none'}"
        if missing := payload["missing_blobs"]:
            yield f"payload {payload['name']} lacks {_count(len(missing), 'blob')}: --data names the file that has them"
        for field, extents in (("transposed", "transposed extents"), ("half", "half extents")):
            if payload[field]:
                needs = f"a delegate with {extents} (features {payload['features']:#x})"
                yield f"payload {payload['name']} needs {needs}, which share {format_size(payload[field])} of it"
        if check := payload["self_check"]:
            cases = "golden cases" if check["cases"] is None else _count(check["cases"], "golden case")
            times = f"run {_count(check['repeats'], 'time')} with a tolerance of {check['tolerance']:.3g}"
            yield f"payload {payload['name']} checks itself: {cases}, {format_size(check['bytes'])}, {times}"
        if payload["methods"] and sorted(payload["methods"]) != methods:
            yield f"payload {payload['name']} has other methods: {printable(', '.join(payload['methods']))}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _table(payloads: list[dict[str, Any]]) -> Table:
    table = open_table(("", "payload", "needs"), ("methods", "size", "adds", "shared"))
    table.add_column("ExecuTorch", overflow="fold")
    table.add_column("SHA-256", no_wrap=True)
    for priority, payload in enumerate(payloads, 1):
        needs = ["a newer runtime"] if payload["unknown_features"] else payload["backends"]
        table.add_row(
            str(priority),
            payload["name"],
            ", ".join(needs) or "nothing",
            str(len(payload["methods"]) or ""),
            *(format_size(payload[size]) for size in ("size", "adds", "shared")),
            payload["executorch_version"],
            (payload["sha256"] or "")[:_SHORT_DIGEST],
        )
    return table


def _print_file(console: Console, file: Path, description: dict[str, Any]) -> None:
    backends, kernels = (printable(", ".join(description[key])) or "none" for key in ("backends", "kernels"))
    line = f"{printable(str(file))}: {format_size(description['size'])}, delegates to: {backends}"
    console.print(line, soft_wrap=True)
    console.print(f"kernels to link: {kernels}", soft_wrap=True)
    constants = description["constants"]
    console.print(f"{constants['tensors']} constant tensors, {format_size(constants['bytes'])}")
    sizes, unread = description["weights"]["sizes"], description["weights"]["unread"]
    total = sum(sizes.values())
    weights = [f"{dtype} {format_size(size)} ({size / total:.0%})" for dtype, size in sizes.items()]
    if unread:
        weights.append(f"those of {printable(', '.join(unread))} are not read")
    if weights:
        console.print(f"weights: {', '.join(weights)}", soft_wrap=True)


def _print_buckets(console: Console, metadata: Mapping[str, MetadataValue], description: dict[str, Any]) -> None:
    from ...formats.pte.buckets import read_buckets

    planned = {method["name"]: method["planned_memory"] for method in description["methods"]}
    for method, buckets in read_buckets(metadata).items():
        console.print(f"\nbuckets of {printable(method)}", style="bold")
        for bucket in buckets:
            size = format_size(sum(planned.get(bucket.name, ())))
            console.print(f"  {printable(str(bucket))}: planned memory {size}", soft_wrap=True)
        by = "pteforge.runtime" if all(bucket.padding for bucket in buckets) else "the caller"
        console.print(f"  smaller inputs are padded by {by}")


def _print_method(console: Console, method: dict[str, Any]) -> None:
    name = printable(method["name"])
    if method["constant"]:
        values = ", ".join(map(_value, method["outputs"]))
        console.print(styled("\n", (f"constant method {name}", "bold"), f": {values}"), soft_wrap=True)
        return
    console.print(f"\nmethod {name}", style="bold")
    for direction in ("inputs", "outputs"):
        for position, value in enumerate(method[direction]):
            console.print(f"  {direction[:-1]} {position}: {_value(value)}", soft_wrap=True)
    planned = ", ".join(format_size(size) for size in method["planned_memory"] if size)
    console.print(f"  planned memory: {planned or 'none'}")
    table = open_table(("operator or delegate",), ("calls", "size"))
    for backend in sorted({delegate["id"] for delegate in method["delegates"]}):
        sizes = [delegate["size"] for delegate in method["delegates"] if delegate["id"] == backend]
        table.add_row(f"delegate {printable(backend)}", str(len(sizes)), format_size(sum(sizes)))
    operators = sorted(method["operators"], key=lambda operator: -operator["calls"])
    for operator in operators[:_MAX_OPERATORS]:
        table.add_row(printable(operator["name"]), str(operator["calls"]))
    if len(operators) > _MAX_OPERATORS:
        table.add_row(f"and {len(operators) - _MAX_OPERATORS} more operators (--json shows all)")
    if table.row_count:
        console.print(table)


def _print_named_data(console: Console, description: dict[str, Any]) -> None:
    if named := description["named_data"]:
        total = sum(entry["size"] for entry in named)
        console.print(f"\nnamed data: {len(named)} entries, {format_size(total)}")
    external = description["outside"]
    if external["count"]:
        size = "" if external["bytes"] is None else f", {format_size(external['bytes'])}"
        console.print(f"\nexternal, in a .ptd file: {external['count']} weights{size}")


def _value(value: dict[str, Any]) -> str:
    """A tensor's dtype, shape, and unusual order in memory, or the kind and value of a scalar."""
    from ...formats.pte.contents import DimensionSizes

    if "shape" in value:
        dimensions = [f"dimension {sizes['dimension']}: {DimensionSizes(**sizes)}" for sizes in value["sizes"]]
        bounds = "" if value["dynamism"] == "static" else f" ({', '.join(dimensions) or value['dynamism']})"
        order = value["dim_order"]
        memory = "" if order == sorted(order) else f", in memory by dimensions {order}"
        return f"{value['dtype']} {value['shape']}{bounds}{memory}"
    content, kind = value["value"], value["kind"].replace("_", " ")
    if content is None:
        return "none"
    if isinstance(content, str) and kind == "string":
        return f'string "{printable(content)}"'
    return f"{kind} {content}"


def show_metadata(file: Annotated[Path, argument("A .pte file.")], *, as_json: AS_JSON = False) -> None:
    """Show what a .pte file says about its model: labels, preprocessing, licence, where it comes from.

    The digest of its provenance is checked against the file next to it, FILE.json, if there is one.
    """
    from ...configs.metadata import PROVENANCE
    from ...formats.pte.metadata import metadata_json, read_metadata

    metadata = read_metadata(file)
    origin = _origin(file, metadata[PROVENANCE]) if PROVENANCE in metadata else None
    if as_json:
        print_json({"metadata": metadata_json(metadata), "origin": origin})
        return
    for line in _metadata_lines(metadata):
        typer.echo(line)
    if not metadata:
        typer.echo(f"{printable(str(file))} has no metadata", err=True)
    elif origin:
        toolchain = ", ".join(f"{name} {version}" for name, version in (origin.get("toolchain") or {}).items())
        source = f"model {origin.get('model')}, recipe {origin.get('recipe')}"
        typer.echo(printable(f"made from: {source}, with {toolchain}"))


def _metadata_lines(metadata: Mapping[str, MetadataValue], limit: int | None = None) -> Iterator[str]:
    """A line for each entry, cut at `limit` characters of its value."""
    width = max(map(len, metadata), default=0)
    for key, value in metadata.items():
        text = f"{len(value)} bytes" if isinstance(value, bytes) else str(value)
        text = ", ".join(map(str, value)) if isinstance(value, tuple) else text
        if limit is not None and len(text) > limit:
            count = f" ({len(value)} in all)" if isinstance(value, tuple) else ""
            text = f"{text[:limit]}...{count}"
        yield f"{printable(key):{width}}  {printable(text)}"


def _origin(file: Path, digest: object) -> Any | None:
    """The provenance's `origin`, None without one or if it is another file's; InputError if it was changed."""
    from ...tasks.results.delivered import NO_PROVENANCE, Delivered

    path = file.with_suffix(".json")
    try:
        provenance = json.loads(read_sidecar(path))
        origin, delivered = provenance["origin"], Delivered.of_provenance(provenance)
    except (OSError, *NO_PROVENANCE):
        return None
    if digest_file(file) != delivered.sha256:
        return None
    if (changed := digest_json(origin)) != digest:
        raise InputError(f"{path} was changed: the SHA-256 of its `origin` is {changed}, and {file} says {digest}")
    return origin

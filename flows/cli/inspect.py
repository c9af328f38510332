"""`pteforge inspect`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...artifacts.nfat.data_file import check_data_file, kept_outside
from ...artifacts.nfat.fat_file import is_fat
from ...artifacts.nfat.named_data import map_file, ptd_places
from ...artifacts.pte.contents import PteFile
from ...artifacts.pte.describe import describe
from ...artifacts.pte.reader import open_pte
from .fat_input import data_files, open_fat_file
from .inspect_fat import describe_container, print_container
from .options import DATA
from .printable import printable
from .summary import format_size, open_console

_SHOWN = 12


def inspect_file(
    file: Annotated[Path, typer.Argument(help="A .pte file.", show_default=False)],
    *,
    data: DATA = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Show what a .pte file holds: methods, operators, delegates, segments, named data; payloads, if it is fat."""
    pte = open_pte(file)
    fat = open_fat_file(file, data) if is_fat(pte) else None
    description = {**describe(pte), "container": describe_container(fat) if fat else None}
    if not fat:
        description["outside"] = _outside(file, pte, data_files(file, data))
    if as_json:
        typer.echo(json.dumps(description, indent=2))
        return
    console = open_console()
    if description["container"]:
        print_container(console, file, description)
    else:
        _print_file(console, file, description)
    for method in description["methods"]:
        _print_method(console, method)
    if not fat:
        _print_named_data(console, description)


def _outside(file: Path, pte: PteFile, files: Sequence[Path]) -> dict[str, int | None]:
    """What is in `.ptd` files; without those, what the `.pte` says of it, which is no sizes for delegates."""
    for path in files:
        check_data_file(file, pte, path)
    sizes: list[int | None] = [size for path in files for _, _, size in ptd_places(map_file(path))]
    sizes = sizes if files else list(kept_outside(file, pte).values())
    return {"count": len(sizes), "bytes": None if None in sizes else sum(size or 0 for size in sizes)}


def _print_file(console: Console, file: Path, description: dict[str, Any]) -> None:
    backends = printable(", ".join(description["backends"])) or "none"
    constants = description["constants"]
    shown = f"{printable(str(file))}: {format_size(description['size'])}, delegates to: {backends}"
    console.print(Text(shown), soft_wrap=True)
    console.print(f"{constants['tensors']} constant tensors, {format_size(constants['bytes'])}", highlight=False)


def _print_method(console: Console, method: dict[str, Any]) -> None:
    name = printable(method["name"])
    if method["constant"]:
        values = ", ".join(map(_value, method["outputs"]))
        console.print(Text.assemble("\n", (f"constant method {name}", "bold"), f": {values}"), soft_wrap=True)
        return
    console.print(Text(f"\nmethod {name}", "bold"))
    for direction in ("inputs", "outputs"):
        for position, value in enumerate(method[direction]):
            console.print(Text(f"  {direction[:-1]} {position}: {_value(value)}"), soft_wrap=True)
    planned = ", ".join(format_size(size) for size in method["planned_memory"] if size)
    console.print(f"  planned memory: {planned or 'none'}", highlight=False)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("calls", justify="right")
    table.add_column("what", overflow="fold")
    table.add_column("size", justify="right")
    for backend in sorted({delegate["id"] for delegate in method["delegates"]}):
        sizes = [delegate["size"] for delegate in method["delegates"] if delegate["id"] == backend]
        table.add_row(str(len(sizes)), Text(f"delegate {printable(backend)}"), format_size(sum(sizes)))
    operators = sorted(method["operators"], key=lambda operator: -operator["calls"])
    for operator in operators[:_SHOWN]:
        table.add_row(str(operator["calls"]), Text(printable(operator["name"])), "")
    if len(operators) > _SHOWN:
        table.add_row("", f"and {len(operators) - _SHOWN} more operators (--json shows all)", "")
    if table.row_count:
        console.print(table)


def _print_named_data(console: Console, description: dict[str, Any]) -> None:
    if named := description["named_data"]:
        total = sum(entry["size"] for entry in named)
        console.print(f"\nnamed data: {len(named)} entries, {format_size(total)}", highlight=False)
    outside = description["outside"]
    if outside["count"]:
        size = "" if outside["bytes"] is None else f", {format_size(outside['bytes'])}"
        shown = f"{outside['count']} weights{size}"
        console.print(f"\nkept outside, in a .ptd file: {shown}", highlight=False)


def _value(value: dict[str, Any]) -> str:
    """A tensor's dtype and shape; kind and value of anything else."""
    if "shape" in value:
        bounds = "" if value["dynamism"] == "static" else f" ({value['dynamism']})"
        return f"{value['dtype']} {value['shape']}{bounds}"
    content, kind = value["value"], value["kind"].replace("_", " ")
    if content is None:
        return "none"
    if isinstance(content, str) and value["kind"] == "string":
        return f'string "{printable(content)}"'
    return f"{kind} {content}"

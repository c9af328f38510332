"""`pteforge inspect`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...artifacts.pte.describe import describe
from ...artifacts.pte.reader import open_pte
from .summary import format_size

_SHOWN = 12


def inspect_file(
    file: Annotated[Path, typer.Argument(help="A .pte file.", show_default=False)],
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Show what a .pte file holds: methods, operators, delegates, segments, named data."""
    description = describe(open_pte(file))
    if as_json:
        typer.echo(json.dumps(description, indent=2))
        return
    console = Console()
    backends = ", ".join(description["backends"]) or "none"
    constants = description["constants"]
    console.print(Text(f"{file}: {format_size(description['size'])}, delegates to: {backends}"), soft_wrap=True)
    console.print(f"{constants['tensors']} constant tensors, {format_size(constants['bytes'])}", highlight=False)
    for method in description["methods"]:
        _print_method(console, method)
    _print_named_data(console, description["named_data"])


def _print_method(console: Console, method: dict[str, Any]) -> None:
    console.print(Text(f"\nmethod {method['name']}", "bold"))
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
        table.add_row(str(len(sizes)), Text(f"delegate {backend}"), format_size(sum(sizes)))
    operators = sorted(method["operators"], key=lambda operator: -operator["calls"])
    for operator in operators[:_SHOWN]:
        table.add_row(str(operator["calls"]), Text(operator["name"]), "")
    if len(operators) > _SHOWN:
        table.add_row("", f"and {len(operators) - _SHOWN} more operators (--json shows all)", "")
    if table.row_count:
        console.print(table)


def _print_named_data(console: Console, named: list[dict[str, Any]]) -> None:
    if not named:
        return
    total = sum(entry["size"] for entry in named)
    console.print(f"\nnamed data: {len(named)} entries, {format_size(total)}", highlight=False)


def _value(value: dict[str, Any]) -> str:
    if "shape" in value:
        bounds = "" if value.get("dynamism", "static") == "static" else f" ({value['dynamism']})"
        return f"{value['dtype']} {value['shape']}{bounds}"
    return json.dumps(value)

"""Plots of where a recipe loses quality: SQNR by rung, and the operators that lose most."""

from __future__ import annotations

import io
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import InputError, convert_os_errors
from ..tasks.figures import Worst
from ..tasks.numerics import CLEAN_DB, NodeLoss
from .bisect import Bisection

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_NODES = 12
_EXACT_DB = 160.0  # plotted for equal outputs; fp32 reaches about 150


def check_plot(path: Path) -> None:
    """Raises InputError, before any work, if a plot cannot be made or written."""
    if find_spec("matplotlib") is None:
        raise InputError("plots need Matplotlib: pip install 'pteforge[plot]'")
    if path.suffix.lower() != ".png":
        raise InputError(f"plots are PNG files: {path} should end in .png")
    if not path.absolute().parent.is_dir():
        raise InputError(f"the plot cannot be written to {path}: there is no folder {path.absolute().parent}")


def draw(found: Bisection) -> bytes:
    """The plot as a PNG file."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - slow import, and an optional dependency

    nodes = found.nodes.losing[:_NODES] if found.nodes else ()
    columns = 2 if nodes else 1
    figure = Figure(figsize=(6.0 * columns, 4.5), layout="constrained")
    axes = figure.subplots(1, columns, squeeze=False)[0]
    _draw_rungs(axes[0], found)
    if nodes:
        _draw_nodes(axes[1], nodes, found)
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=120)
    return content.getvalue()


def write_plot(found: Bisection, path: Path) -> None:
    """Writes the plot to a file; raises InputError if that fails."""
    with convert_os_errors(InputError, f"the plot cannot be written to {path}"):
        path.write_bytes(draw(found))


def _draw_rungs(axes: Axes, found: Bisection) -> None:
    for path in found.ladder.paths():
        measured = [rung for rung in path if rung.figures]
        label = " ".join(filter(None, ("+".join(path[-1].specializations), path[-1].method)))
        axes.plot([rung.name for rung in measured], [_decibels(rung.figures) for rung in measured], "o-", label=label)
    if found.loss:
        axes.plot([found.loss.rung.name], [_decibels(found.loss.rung.figures)], "rx", markersize=12, label="loses")
    axes.axhspan(CLEAN_DB, _EXACT_DB + 5, color="tab:green", alpha=0.1)
    axes.set_ylabel("SQNR against eager, dB (equal: on top)")
    axes.set_title(found.name)
    axes.legend()


def _draw_nodes(axes: Axes, nodes: Sequence[NodeLoss], found: Bisection) -> None:
    names = [" + ".join(node.sources) for node in nodes]
    axes.plot([_decibels(node.own) for node in nodes], names, "o", color="tab:orange", label="alone")
    axes.plot([_decibels(node.passed_on) for node in nodes], names, "x", color="tab:gray", label="so far")
    axes.invert_yaxis()
    axes.set_xlim(left=min(0.0, axes.get_xlim()[0]))
    axes.grid(axis="x", alpha=0.3)
    axes.set_xlabel("SQNR of operators, dB")
    axes.set_title(f"loses most in {found.loss.rung.label}" if found.loss else "")
    axes.legend()


def _decibels(worst: Worst | None) -> float:
    if worst is None:
        return 0.0
    return _EXACT_DB if worst.sqnr_db is None else worst.sqnr_db

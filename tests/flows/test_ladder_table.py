"""Ladders as tables: one recipe in full, several in short."""

from __future__ import annotations

import io

from pteforge.flows.reports.figures_text import ladders_table, rungs_table
from pteforge.tasks.results.figures import Worst
from pteforge.tasks.results.numerics import Ladder, Rung
from rich.console import Console


def shown(table):
    """Words of the lines of a table, without its rules."""
    text = io.StringIO()
    Console(file=text, width=120).print(table)
    lines = [line.split() for line in text.getvalue().splitlines()]
    return [line for line in lines if line and "─" not in line[0]]


def rung(name, ratio, specializations=(), method="forward", top1=None):
    """A rung with figures; a ratio of None means equal to eager."""
    return Rung(name, specializations, method, Worst(3, 0.5, 0.25, ratio, top1))


PLAIN = Ladder((rung("exported", None), rung("quantized", 34.25, top1=0.875), rung("payload", 33.0, top1=0.75)))
FAT = Ladder(
    (
        rung("exported", None),
        rung("exported", None, method="encode"),
        rung("edge", 140.0, ("a", "b")),
        rung("edge", 130.0, ("a", "b"), "encode"),
        Rung("payload", ("a",), "forward", None, "needs AcmeBackend"),
        rung("payload", 139.0, ("b",)),
        rung("payload", 129.0, ("b",), "encode"),
    )
)


def test_one_ladder():
    """Each rung has all figures, the method if there are several, and the reason if it could not run."""
    assert shown(rungs_table(PLAIN)) == [
        ["rung", "max", "abs", "error", "relative", "SQNR", "top-1"],
        ["exported", "0.5", "0.25", "exact"],
        ["quantized", "0.5", "0.25", "34.2", "dB", "87.5", "%"],
        ["payload", "0.5", "0.25", "33.0", "dB", "75.0", "%"],
    ]
    lines = shown(rungs_table(FAT))
    assert lines[0][:2] == ["rung", "method"]
    assert lines[2][:2] == ["exported", "encode"]
    assert lines[5] == ["payload.a", "forward", "not", "run:", "needs", "AcmeBackend"]


def test_many_ladders():
    """Each path to a payload is a row, with the columns that any of them has; top-1 is that of the last rung."""
    assert shown(ladders_table([("net/int8", PLAIN), ("other/fat", FAT)])) == [
        ["SQNR", "against", "eager", "exported", "quantized", "edge", "payload", "top-1"],
        ["net/int8", "exact", "34.2", "dB", "33.0", "dB", "75.0", "%"],
        ["other/fat.a", "exact", "140.0", "dB", "not", "run"],
        ["other/fat.b", "exact", "140.0", "dB", "139.0", "dB"],
        ["other/fat.b", "encode", "exact", "130.0", "dB", "129.0", "dB"],
    ]

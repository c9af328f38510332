"""Writes each stage's programs of a zoo to a file of its own, to measure their size.

Usage: ``python benchmarks/apart.py ZOO FOLDER``. For each lowering, the ATen program goes to ``<recipe>.aten.pt2``
(`torch.export.save`) and the edge program to ``<recipe>.edge.pt2``. The latter uses ExecuTorch's own saver, which
writes the same format, because `torch.export.save` rejects some edge operators, such as those of an LSTM. Programs with
delegates are not written: that saver writes a delegate's bytes as text, which would flatter the comparison.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from executorch.exir import to_edge
from executorch.exir.serde import serialize as edge_files
from zoos import lowerings


def main(zoo: str, folder: Path) -> None:
    """Exports every model, lowers it to the edge dialect, and saves both programs."""
    for lowering in lowerings(zoo):
        file = folder / lowering.file
        file.parent.mkdir(parents=True, exist_ok=True)
        aten = torch.export.export(lowering.module, lowering.example_inputs)
        torch.export.save(aten, file.with_suffix(".aten.pt2"))
        edge_files.save(to_edge(aten).exported_program(), file.with_suffix(".edge.pt2"))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))

"""What keeping the output of every stage apart takes: writes the programs of the starter zoo, each into a file.

Usage: ``python benchmarks/apart.py FOLDER``. Per lowering, the ATen program goes to ``<recipe>.aten.pt2``
(`torch.export.save`) and the edge program to ``<recipe>.edge.pt2``. The latter takes ExecuTorch's own saver, which
makes the same format: `torch.export.save` refuses some edge operators, such as those of an LSTM. Programs with
delegates inside are left out, since that saver writes a delegate's bytes as text, which would flatter the comparison.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from executorch.exir import to_edge
from executorch.exir.serde import serialize as edge_files
from starter import lowerings


def main(folder: Path) -> None:
    """Exports everything, takes it to the edge dialect, and saves both."""
    for lowering in lowerings():
        file = folder / lowering.file
        file.parent.mkdir(parents=True, exist_ok=True)
        aten = torch.export.export(lowering.module, lowering.example_inputs)
        torch.export.save(aten, file.with_suffix(".aten.pt2"))
        edge_files.save(to_edge(aten).exported_program(), file.with_suffix(".edge.pt2"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""The peer: lowers a zoo with `executorch.export` sessions, one after another in one process.

Usage: ``python benchmarks/peer.py ZOO FOLDER``. The ``.pte`` files are written into the folder.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from executorch.export import ExportRecipe, LoweringRecipe, export
from zoos import lowerings


def main(zoo: str, folder: Path) -> None:
    """Lowers everything, paying for imports once."""
    torch.backends.mha.set_fastpath_enabled(False)  # sessions trace without gradients, and fused layers do not lower
    for lowering in lowerings(zoo):
        session = export(
            model=lowering.module,
            example_inputs=[lowering.example_inputs],
            export_recipe=ExportRecipe(
                name=lowering.recipe, lowering_recipe=LoweringRecipe(partitioners=lowering.partitioners)
            ),
        )
        file = folder / lowering.file
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(session.get_pte_buffer())


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))

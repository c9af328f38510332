"""Runs programs with the C++ library: `run.py BUILD FOLDER` writes NAME.outputs.pt for each NAME.calls.pt.

Calls are pairs of a method's name and its inputs, in order; all calls of a method go to one instance of it.
"""

import sys
from pathlib import Path

import executorch.kernels.quantized  # noqa: F401 - what the fallback of quantized partitions calls
import pteforge_nfat
import torch
from executorch.runtime import Runtime, Verification


def main(build: Path, folder: Path) -> None:
    library = pteforge_nfat.load(build)
    for file in sorted(folder.glob("*.calls.pt")):
        name = file.name.removesuffix(".calls.pt")
        program = Runtime.get().load_program(folder / f"{name}.pte", verification=Verification.Minimal)
        methods, reports, outputs = {}, {}, []
        for method, inputs in torch.load(file):
            if method not in methods:
                methods[method] = program.load_method(method)
                reports[method] = library.report()
            outputs.append([output.clone() for output in methods[method].execute(inputs)])
        torch.save({"outputs": outputs, "reports": reports}, folder / f"{name}.outputs.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

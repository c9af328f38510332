"""Runs all programs of a folder in ExecuTorch's Python runtime: `run.py BUILD FOLDER` writes FOLDER/outcomes.json."""

import json
import sys
from pathlib import Path
from typing import Any

import pteforge_nfat
import torch
from executorch.runtime import Runtime, Verification


def call(path: Path, calls: dict[str, list[tuple[Any, ...]]]) -> list[torch.Tensor]:
    """Outputs of all calls of all methods, each method loaded once; raises what the runtime raises."""
    program = Runtime.get().load_program(path, verification=Verification.Minimal)
    outputs = []
    for name, inputs in calls.items():
        method = program.load_method(name)
        assert method is not None
        outputs += [output.clone() for arguments in inputs for output in method.execute(arguments)]
    return outputs


def outcome(library: pteforge_nfat.Library, folder: Path, name: str) -> dict[str, Any]:
    calls = torch.load(folder / f"{name}.calls.pt")
    expected = folder / f"{name}.payload"
    try:
        outputs = call(folder / f"{name}.pte", calls)
    except (RuntimeError, KeyError) as error:
        return {"error": str(error), "report": library.report(), "equal": False}
    report = library.report()
    torch.save(outputs, folder / f"{name}.outputs.pt")
    wanted = call(expected, calls) if expected.stat().st_size else []
    equal = len(outputs) == len(wanted) and all(map(torch.equal, outputs, wanted))
    return {"error": "", "report": report, "equal": equal}


def main(build: Path, folder: Path) -> None:
    library = pteforge_nfat.load(build)
    names = json.loads((folder / "programs.json").read_text())
    outcomes = {name: outcome(library, folder, name) for name in names}
    (folder / "outcomes.json").write_text(json.dumps(outcomes))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

"""Makes `nfat_generated.py` from `nfat.fbs`: ``python -m pteforge.artifacts.nfat.codegen``."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

SCHEMA = Path(__file__).with_name("nfat.fbs")
GENERATED = Path(__file__).with_name("nfat_generated.py")

_FIRST_LINES = """\
# ruff: noqa: ANN001, ANN201, ANN206, D100, D101, D102, D103, E501, ERA001, I001, N802, N803, Q000, RET505, UP004
# fmt: off
# mypy: ignore-errors
# Made by codegen.py: the rules above are not the generator's.
"""


def generate() -> str:
    """Python code for the schema, by the flatc of the installed ExecuTorch wheel.

    Raises:
        RuntimeError: there is no ExecuTorch wheel, or its flatc refuses the schema.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [str(_flatc()), "--python", "--gen-onefile", "-o", folder, str(SCHEMA)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - the wheel's flatc
        if done.returncode:
            raise RuntimeError(f"flatc cannot read {SCHEMA}: {done.stdout}{done.stderr}")
        return _FIRST_LINES + (Path(folder) / GENERATED.name).read_text(encoding="utf-8").rstrip() + "\n"


def _flatc() -> Path:
    executorch = find_spec("executorch")
    for folder in (executorch.submodule_search_locations or ()) if executorch else ():
        found = Path(folder) / "data" / "bin" / "flatc"
        if found.is_file():
            return found
    raise RuntimeError("no flatc: install the executorch wheel, it has one in data/bin")


if __name__ == "__main__":
    GENERATED.write_text(generate(), encoding="utf-8")
    sys.stdout.write(f"wrote {GENERATED}\n")

"""Writes VERSION.tar.xz next to this file: what this version of pteforge stores, for tests of later versions.

python tests/flows/upgrades/make.py

It has a zoo, its store after two runs, the second with another seed, the files that they made with the page about the
second run, and a release of each run. Make it in a clone that is at the release.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from pteforge import __version__

HERE = Path(__file__).parent

ZOO = """\
version: 1
defaults: {recipes: [portable-fp32, fat]}
models: {mixer: {source: nets:mixer}}
recipes:
  fat:
    output: {form: fat}
    specializations:
      - {name: xnnpack, target: xnnpack}
      - {name: portable, target: portable}
publish: {url: releases, channel: latest}
"""

NETS = """\
import torch


def mixer():
    net = torch.nn.Sequential(torch.nn.Linear(24, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    return net, (torch.arange(24.0).reshape(1, 24) / 24,)
"""

# The host's name is in records, and is nobody's business.
COMMAND = """\
import os
import platform
platform.node = lambda: "builder"
import sys
from pteforge.tests.command import run_command
code = run_command()
sys.stdout.flush()
os._exit(code)
"""


def make(folder: Path) -> None:
    """Runs the zoo twice in a folder."""
    (folder / "zoo.yaml").write_text(ZOO)
    (folder / "nets.py").write_text(NETS)
    environment = {**os.environ, "PTEFORGE_CACHE": str(folder / "cache"), "PREFECT_HOME": str(folder / "prefect")}
    for seed in "01":
        options = ["--store", "store", "--set", f"models.mixer.seed={seed}"]
        command = [sys.executable, "-c", COMMAND, "export", "zoo.yaml", *options]
        subprocess.run(command, cwd=folder, env=environment, check=True)


def main() -> None:
    """Makes it in a folder whose name says nothing about this machine."""
    with tempfile.TemporaryDirectory() as room:
        folder = Path(room)
        make(folder)
        with tarfile.open(HERE / f"{__version__}.tar.xz", "w:xz", preset=9) as archive:
            for name in ("zoo.yaml", "nets.py", "store", "out", "releases"):
                archive.add(folder / name, name, filter=_anonymous)


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


if __name__ == "__main__":
    main()

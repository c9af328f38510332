"""Makes fat files of the zoo `fat_size.yaml` and compares their size with what else could be delivered.

`benchmarks/README.md` says what is measured and how to read it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from pteforge.artifacts.nfat.fat_file import open_fat
from pteforge.artifacts.pte.reader import read_pte

ZOO = Path(__file__).with_name("fat_size.yaml")


@dataclass(frozen=True)
class Sizes:
    """Bytes of one model's files.

    Attributes:
        payloads: of each payload as a file of its own.
        segments: of all payloads, if equal segments were stored once.
        fat: of the fat file.
    """

    payloads: dict[str, int]
    segments: int
    fat: int

    @property
    def sum(self) -> int:
        """Delivering every payload."""
        return sum(self.payloads.values())

    @property
    def largest(self) -> int:
        """The least that a file with all payloads can have, or nearly so."""
        return max(self.payloads.values())


def make(room: Path) -> list[Path]:
    """Lowers the zoo; gives the fat files."""
    pteforge = Path(sys.executable).with_name("pteforge")
    environment = os.environ | {"PTEFORGE_CACHE": str(room / "cache")}
    done = subprocess.run(
        [pteforge, "export", ZOO, "--store", room / "store", "--out", room / "out"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{done.stdout}\n{done.stderr}\nthe zoo could not be lowered")
    return sorted((room / "out").glob("*/*.pte"))


def measure(file: Path) -> Sizes:
    """Sizes of a fat file and of what is in it."""
    container = open_fat(file).container
    contents = {payload.name: container.rebuild(payload) for payload in container.payloads}
    unique: dict[bytes, int] = {}
    rest = 0
    for content in contents.values():
        pieces = [content[each.offset : each.offset + each.size] for each in read_pte(content).segments]
        unique |= {hashlib.sha256(piece).digest(): len(piece) for piece in pieces}
        rest += len(content) - sum(map(len, pieces))
    return Sizes(
        payloads={name: len(content) for name, content in contents.items()},
        segments=sum(unique.values()) + rest,
        fat=file.stat().st_size,
    )


def main() -> None:
    """Measures and prints; leaves nothing behind."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pteforge-bench-") as folder:
        sizes = {file.parent.name: measure(file) for file in make(Path(folder))}
    if arguments.json:
        derived = {name: {"sum": each.sum, "largest": each.largest} for name, each in sizes.items()}
        print(json.dumps({name: asdict(each) | derived[name] for name, each in sizes.items()}, indent=2))
        return
    print(f"{'bytes':<20}{'payloads':<32}{'sum':>12}{'segments':>12}{'fat':>12}{'largest':>12}{'fat/largest':>13}")
    for name, each in sizes.items():
        print(
            f"{name:<20}{', '.join(each.payloads):<32}{each.sum:>12}{each.segments:>12}{each.fat:>12}{each.largest:>12}"
            f"{each.fat / each.largest:>13.4f}"
        )


if __name__ == "__main__":
    main()

"""Makes fat files of the zoo `fat_size.yaml` and compares their size with the alternatives; see README.md."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from measuring import HERE, arguments_of, export, temporary_folder
from pteforge.formats.nfat.container import open_fat
from pteforge.formats.pte.reader import read_pte

ZOO = HERE / "fat_size.yaml"


@dataclass(frozen=True)
class Sizes:
    """Bytes of one model's files."""

    payloads: dict[str, int]  # as separate files
    segments: int  # of all payloads, if equal segments were stored once
    fat: int
    sum: int  # of all payloads
    largest: int  # of the payloads: about the lower bound for a file with all of them


def payloads_of(file: Path) -> dict[str, bytes | memoryview]:
    """The payloads of a fat file, as separate files."""
    container = open_fat(file).container
    return {payload.name: b"".join(container.verified(payload)) for payload in container.payloads}


def measure(file: Path) -> Sizes:
    """Sizes of a fat file and of its payloads."""
    contents = payloads_of(file)
    unique: dict[bytes, int] = {}
    rest = 0
    for content in contents.values():
        pieces = [content[segment.offset : segment.offset + segment.size] for segment in read_pte(content).segments]
        unique |= {hashlib.sha256(piece).digest(): len(piece) for piece in pieces}
        rest += len(content) - sum(map(len, pieces))
    sizes = {name: len(content) for name, content in contents.items()}
    segments, fat = sum(unique.values()) + rest, file.stat().st_size
    return Sizes(sizes, segments, fat, sum(sizes.values()), max(sizes.values()))


def main() -> None:
    """Measures and prints."""
    arguments = arguments_of(__doc__).parse_args()
    with temporary_folder() as folder:
        export(ZOO, folder)
        sizes = {file.parent.name: measure(file) for file in sorted((folder / "out").glob("*/*.pte"))}
    if arguments.json:
        print(json.dumps({name: asdict(size) for name, size in sizes.items()}, indent=2))
        return
    print(f"{'bytes':<20}{'payloads':<32}{'sum':>12}{'segments':>12}{'fat':>12}{'largest':>12}{'fat/largest':>13}")
    for name, size in sizes.items():
        print(
            f"{name:<20}{', '.join(size.payloads):<32}{size.sum:>12}{size.segments:>12}{size.fat:>12}{size.largest:>12}"
            f"{size.fat / size.largest:>13.4f}"
        )


if __name__ == "__main__":
    main()

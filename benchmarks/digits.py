"""Lowers `examples/digits` and compares its recipes: what each costs in accuracy, and what it saves in bytes.

`benchmarks/README.md` says what is measured and how to read it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pteforge.artifacts.nfat.fat_file import open_fat
from pteforge.artifacts.pte.reader import read_pte

ZOO = Path(__file__).parents[1] / "examples" / "digits" / "digits.yaml"
REFERENCE = "fp32"


@dataclass(frozen=True)
class Payload:
    """One payload of one recipe's file.

    Attributes:
        recipe: name of the recipe.
        payload: name of the payload.
        accuracy: share of test images that it reads correctly.
        drop: eager's share less that.
        size: bytes of the payload as a file of its own.
        ratio: that by the bytes of the fp32 recipe's payload of that name.
    """

    recipe: str
    payload: str
    accuracy: float
    drop: float
    size: int
    ratio: float


@dataclass(frozen=True)
class Digits:
    """All of one run.

    Attributes:
        eager: share of test images that the eager model reads correctly.
        weights: bytes of the weights in fp32's XNNPACK payload.
        payloads: every payload of every recipe.
        files: bytes of each recipe's fat file.
    """

    eager: float
    weights: int
    payloads: tuple[Payload, ...]
    files: dict[str, int]


def lower(room: Path) -> dict[str, Any]:
    """Lowers the example from nothing; gives what `--json` says of each recipe."""
    pteforge = Path(sys.executable).with_name("pteforge")
    done = subprocess.run(
        [pteforge, "export", ZOO, "--store", room / "store", "--out", room / "out", "--json"],
        env=os.environ | {"PTEFORGE_CACHE": str(room / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{done.stdout}\n{done.stderr}\nthe example could not be lowered, or lost too much accuracy")
    recipes: dict[str, Any] = json.loads(done.stdout)["models"]["digits"]
    return recipes


def measure(recipes: dict[str, Any]) -> Digits:
    """Figures of the files."""
    contents = {name: _payloads(Path(recipe["file"])) for name, recipe in recipes.items()}
    payloads = []
    for name, recipe in recipes.items():
        for scored in recipe["accuracy"]["file"]["scores"]:
            payload = scored["payload"]
            size = len(contents[name][payload])
            payloads.append(
                Payload(
                    recipe=name,
                    payload=payload,
                    accuracy=scored["score"],
                    drop=recipe["accuracy"]["eager"] - scored["score"],
                    size=size,
                    ratio=size / len(contents[REFERENCE][payload]),
                )
            )
    pte = read_pte(contents[REFERENCE]["xnnpack"])
    return Digits(
        eager=recipes[REFERENCE]["accuracy"]["eager"],
        weights=sum(pte.segments[each.segment].size for each in pte.named_data),
        payloads=tuple(payloads),
        files={name: recipe["size"] for name, recipe in recipes.items()},
    )


def _payloads(file: Path) -> dict[str, bytes | memoryview]:
    container = open_fat(file).container
    return {payload.name: container.rebuild(payload) for payload in container.payloads}


def main() -> None:
    """Measures and prints; leaves nothing behind."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pteforge-bench-") as folder:
        digits = measure(lower(Path(folder)))
    if arguments.json:
        print(json.dumps(asdict(digits), indent=2))
        return
    print(f"eager reads {digits.eager:.2%} of the test images; weights in fp32: {digits.weights} bytes")
    print(f"{'recipe':<16}{'payload':<12}{'accuracy':>10}{'drop':>8}{'bytes':>10}{'by fp32':>9}{'by weights':>12}")
    for each in digits.payloads:
        print(
            f"{each.recipe:<16}{each.payload:<12}{each.accuracy:>10.2%}{each.drop * 100:>8.2f}{each.size:>10}"
            f"{each.ratio:>9.2f}{each.size / digits.weights:>12.2f}"
        )
    for name, size in digits.files.items():
        print(f"{name:<16}{'fat file':<12}{'':>18}{size:>10}{size / digits.files[REFERENCE]:>9.2f}")


if __name__ == "__main__":
    main()

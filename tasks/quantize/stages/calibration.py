"""calibration: the samples that quantizers observe, from the user's dataset into the store."""

from __future__ import annotations

import itertools
import os
from typing import Any

from ...engine import kinds, stage


class Calibration(stage.Stage, name="calibration"):
    """Takes samples of a model's dataset. Without one, `quantize` observes the example inputs."""

    class Params(stage.Params):
        source: dict[str, Any]  # key fields of the dataset (`tasks.engine.keys.source`): code, arguments and files
        seed: int  # seeds torch, numpy and random before the dataset is made
        samples: int  # how many to take at most
        shuffle: int | None = None  # seed by which they are drawn from the whole dataset; None: the first ones

    class Inputs(stage.Roles):
        """None."""

    class Outputs(stage.Roles):
        samples: kinds.Samples  # flat inputs, at most `Params.samples`

    @staticmethod
    def run(inputs: Inputs, params: Params, work: stage.Workspace) -> Outputs:
        """Stores the samples; raises SourceError if the dataset fails, is empty, or has one that cannot be an input."""
        from ...usercode.model_source import seed_everything
        from ..samples import drawn, flat_samples, length_of, load_dataset, save_samples

        del inputs
        os.chdir(work.folder)
        seed_everything(params.seed)
        what = f"dataset {params.source['builder']}"
        dataset = load_dataset(what, params.source["builder"], params.source["kwargs"])
        if params.shuffle is not None:
            dataset = drawn(what, dataset, params.samples, params.shuffle)
        samples = itertools.islice(flat_samples(what, dataset), params.samples)
        total = length_of(dataset, params.samples)
        saved = save_samples(what, samples, work.store, total=total, progressed=work.progressed)
        return Calibration.Outputs(samples=saved)

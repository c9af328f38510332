"""diagnose: finds out why torch.export refuses a method: in both modes, and as draft_export reports it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ...engine import kinds, stage
from ...export.stages.export import MethodParams

if TYPE_CHECKING:
    from ....artifacts.local_store import LocalStore
    from ...usercode.model_source import BuiltModel


class Diagnose(stage.Stage, name="diagnose"):
    """Runs after `export` has failed, and for `pteforge doctor`. No other stage depends on it."""

    class Params(MethodParams):
        """The method, and the setting of `strict`, that `export` has."""

    class Inputs(stage.Roles):
        """None: the model is built as `export` builds it."""

    class Outputs(stage.Roles):
        diagnosis: kinds.Diagnosis
        observed: kinds.Observed | None = None  # what the user's code loaded and read; None for a live model

    @staticmethod
    def run(inputs: Inputs, params: Params, work: stage.Workspace) -> Outputs:
        """Diagnoses the method; raises SourceError if the builder fails, or the example inputs do not fit the model."""
        from ...usercode.model_source import build_model, observed

        del inputs
        with observed(work, params.source) as observation:
            model = build_model(params.source, params.seed, work)
            outputs = diagnose_built(model, params, work.store, (work.folder, *work.python_path))
            return Diagnose.Outputs(diagnosis=outputs.diagnosis, observed=observation.save(work))


def diagnose_built(
    model: BuiltModel, params: Diagnose.Params, store: LocalStore, folders: tuple[Path, ...] = ()
) -> Diagnose.Outputs:
    """Diagnoses one method of a model that has been built, or raises SourceError; names files relative to `folders`."""
    from ...export.method import choose_method
    from ..diagnosing import diagnose_method

    model, name, shapes, _ = choose_method(model, params)
    with store.scratch() as scratch:
        diagnosis = diagnose_method(model, name, shapes, folders, scratch, strict=params.strict)
    return Diagnose.Outputs(diagnosis=store.put_artifact("report/diagnosis", diagnosis.encode()))

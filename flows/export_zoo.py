"""A whole zoo as a Prefect flow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prefect import flow
from prefect.task_runners import ThreadPoolTaskRunner

from .export_model import run_models
from .session import open_session, prepared

_MODELS_AT_ONCE = 16  # threads that mostly wait; how many stages run at once is the workers' to decide


@flow(
    name="export-zoo",
    flow_run_name="export {zoo.name}",
    task_runner=ThreadPoolTaskRunner(max_workers=_MODELS_AT_ONCE),  # type: ignore[arg-type]  # Prefect's own example
    persist_result=False,
)
def export_zoo(
    zoo: Path,
    models: str = "*",
    recipes: str = "*",
    store: str | None = None,
    out: Path = Path("out"),
    overrides: tuple[str, ...] = (),
    jobs: int | None = None,
) -> Any:
    """Lowers a zoo: every model with every recipe, each file verified against eager on the ExecuTorch runtime.

    Models and recipes that fail do not keep others from being made; the run's state is failed if any did.

    Args:
        zoo: the zoo file.
        models: glob of model names, or several with commas between.
        recipes: glob of recipe names, or several with commas between.
        store: URL or folder of the artifact store; None for the user's own.
        out: folder for the produced files.
        overrides: ``KEY=VALUE`` each, as ``--set``.
        jobs: stages at once; None for one per core.

    Returns:
        A state; where all went well its result is the JSON of `flows.outcome.ZooOutcome`.
    """
    if session := prepared.get():
        return run_models(session)
    with open_session(
        Path(zoo), models=models, recipes=recipes, store=store, out=Path(out), overrides=overrides, jobs=jobs
    ) as session:
        return run_models(session)

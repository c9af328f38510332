"""What scores a file, from what its recipe and its model say."""

from __future__ import annotations

from ..configs.accuracy import AccuracyGate
from ..configs.load import LoadedZoo
from ..errors import SourceError
from ..tasks.keys.builder import find_builder
from ..tasks.keys.search import ModuleSearch


def select_gate(loaded: LoadedZoo, model: str, recipe: str) -> AccuracyGate | None:
    """The gate for one file, if it has one; InputError, with where it is written, for one that cannot be used."""
    own = loaded.zoo.models[model].accuracy
    ours = ("models", model, "accuracy")
    asked = ("recipes", recipe, "accuracy") if loaded.zoo.recipes[recipe].accuracy else ours
    try:
        gate = loaded.zoo.accuracy_gate(model, recipe)
    except ValueError as error:
        raise loaded.locations.error(str(error), asked) from error
    if gate is None:
        return None
    place = ours if own and "evaluator" in own.model_fields_set else asked
    try:
        find_builder(gate.evaluator.builder, ModuleSearch(loaded.zoo.python_path))
    except SourceError as error:
        raise loaded.locations.error(str(error), (*place, "evaluator")) from error
    for position, file in enumerate(gate.evaluator.files):
        if not file.is_file():
            where = (*(ours if own and "files" in own.model_fields_set else place), "files", position)
            raise loaded.locations.error(f"there is no file {file}", where)
    return gate

"""Zoos of one model that is named by its builder alone, without a file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import filter as matching
from pathlib import Path

from .base import check_object_reference
from .load import LoadedZoo, load_zoo
from .presets import preset_names

DEFAULT_RECIPE = "xnnpack-fp32"


def names_builder(path: Path) -> bool:
    """Whether a path is no file but ``package.module:builder``, in the folder that the module is imported from."""
    try:
        check_object_reference(path.name)
    except ValueError:
        return False
    return not path.exists()


def model_name(builder: str) -> str:
    """The name that a builder's model gets: ``linear`` for ``nets:linear``."""
    name = re.sub(r"[^A-Za-z0-9._-]", "-", builder.rpartition(":")[2])
    return name.lstrip("._-") or "model"


def recipe_names(globs: str) -> tuple[str, ...]:
    """Shipped recipes that match comma-separated globs, for a model that names none; ``*`` is `DEFAULT_RECIPE`.

    A name that matches none stays, so that whoever looks for it can say what is close to it.
    """
    if globs == "*":
        return (DEFAULT_RECIPE,)
    return tuple(dict.fromkeys(name for glob in globs.split(",") for name in matching(preset_names(), glob) or [glob]))


def load_builder(path: Path, recipes: Sequence[str], overrides: Sequence[str] = ()) -> LoadedZoo:
    """The zoo that `zoo_text` describes, as if it were a file in the folder of `path`; raises as `load_zoo`."""
    return load_zoo(path, overrides, text=zoo_text(path.name, recipes))


def zoo_text(builder: str, recipes: Sequence[str], arguments: Sequence[str] = (), needed: Sequence[str] = ()) -> str:
    """A zoo file with one model, and comments that say how to go on.

    Args:
        builder: ``package.module:name``.
        recipes: names of shipped recipes.
        arguments: what the builder takes and need not get.
        needed: what it has to get.
    """
    kwargs = "".join(f"        {name}: null # has no default: write a value\n" for name in needed)
    kwargs = f"      kwargs:\n{kwargs}" if kwargs else ""
    more = f"      # Arguments that it takes: {', '.join(arguments)}.\n" if arguments else ""
    more += "      # kwargs: {NAME: VALUE}\n" if arguments and not needed else ""
    return f"""\
# Lower this zoo with: pteforge export FILE. What is cached does not run again; `pteforge plan FILE` says what would.
# The documentation describes all fields; `pteforge schema` prints a JSON Schema with which editors complete them.
version: 1

models:
  {model_name(builder)}:
    source:
      # Returns a module and its example inputs, (module, (x, y)), or a pteforge.ModelDefinition.
      builder: {builder}
{kwargs}{more}\
      # Files that it reads, relative to this one: the model is exported again when they change.
      # files: [checkpoint.pt]

    # How to lower it: names of shipped recipes, or of your own below `recipes:`.
    recipes: [{", ".join(recipes)}]

    # Set before the builder runs, so that random weights are the same each time.
    # seed: 0

    # Sizes that vary on the device: for each method, one entry for each input, {{dimension: {{min, max}}}}.
    # dynamic_shapes: {{forward: [{{0: {{min: 1, max: 8}}}}]}}

    # Samples that quantizers calibrate on; without, they use the example inputs.
    # calibration: {{forward: {{dataset: package.module:images}}}}

# Recipes of your own, for example a shipped one with another bound.
# recipes:
#   strict:
#     extends: {recipes[0]}
#     verify: {{min_sqnr_db: 90}}
"""

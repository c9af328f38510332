"""Zoos of one model that is named by its builder, or by itself, without a file."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from fnmatch import filter as matching
from pathlib import Path

from .base import check_object_reference
from .load import LoadedZoo, load_zoo
from .presets import preset_names
from .sources import names_model

DEFAULT_RECIPE = "xnnpack-fp32"


def split_source(path: Path) -> tuple[Path, str] | None:
    """The folder and the source where a path is no file: ``package.module:builder``, or ``hf:org/name``.

    Modules are imported from that folder, and relative paths begin there.
    """
    for position in range(len(path.parts)):
        name = "/".join(path.parts[position:])
        if names_model(name):
            return Path(*path.parts[:position]), name
    try:
        check_object_reference(path.name)
    except ValueError:
        return None
    return None if path.exists() else (path.parent, path.name)


def model_name(source: str) -> str:
    """The name that a model gets: ``linear`` for ``nets:linear``, and ``name`` for ``hf:org/name``."""
    last = source.rpartition(":")[2].rstrip("/").rpartition("/")[2]
    name = re.sub(r"[^A-Za-z0-9._-]", "-", last)
    return name.lstrip("._-")[:128] or "model"


def recipe_names(globs: str) -> tuple[str, ...]:
    """Shipped recipes that match comma-separated globs, for a model that names none; ``*`` is `DEFAULT_RECIPE`.

    A name that matches none stays, so that whoever looks for it can say what is close to it.
    """
    if globs == "*":
        return (DEFAULT_RECIPE,)
    return tuple(dict.fromkeys(name for glob in globs.split(",") for name in matching(preset_names(), glob) or [glob]))


def load_source(folder: Path, source: str, recipes: Sequence[str], overrides: Sequence[str] = ()) -> LoadedZoo:
    """The zoo that `zoo_text` describes, as if it were a file in a folder; raises as `load_zoo`."""
    return load_zoo(folder / source.replace("/", "-"), overrides, text=zoo_text(source, recipes))


def zoo_text(builder: str, recipes: Sequence[str], arguments: Sequence[str] = (), needed: Sequence[str] = ()) -> str:
    """A zoo file with one model, and comments that say how to go on.

    Args:
        builder: ``package.module:name``, or the name of a model, such as ``hf:org/name``.
        recipes: names of shipped recipes.
        arguments: what the builder takes and need not get.
        needed: what it has to get.
    """
    kwargs = "".join(f"        {name}: null # has no default: write a value\n" for name in needed)
    kwargs = f"      kwargs:\n{kwargs}" if kwargs else ""
    more = f"      # Arguments that it takes: {', '.join(arguments)}.\n" if arguments else ""
    more += "      # kwargs: {NAME: VALUE}\n" if arguments and not needed else ""
    if names_model(builder):
        source = f"    source: {json.dumps(builder)}\n"
    else:
        source = f"""\
    source:
      # Returns a module and its example inputs, (module, (x, y)), or a pteforge.ModelDefinition.
      builder: {builder}
{kwargs}{more}\
      # Files that it reads, relative to this one: the model is exported again when they change.
      # files: [checkpoint.pt]
"""
    return f"""\
# Lower this zoo with: pteforge export FILE. What is cached does not run again; `pteforge plan FILE` says what would.
# The documentation describes all fields; `pteforge schema` prints a JSON Schema with which editors complete them.
version: 1

models:
  {model_name(builder)}:
{source}
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

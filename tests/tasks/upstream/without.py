"""`python without.py NAME...` lowers one model with each name of torch or ExecuTorch taken away; prints JSON.

Names that lowering does not look up are taken away together.
"""

import json
import logging
import sys
import tempfile
import traceback
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pteforge.api.probes import in_fork

ZOO = Path(__file__).parents[2] / "zoo"
RECIPES = ("portable-fp32", "xnnpack-int8-static")


def tried(recipe: Mapping[str, Any], folder: Path) -> str:
    """``made``, or the error."""
    from pteforge.artifacts.local_store import LocalStore
    from pteforge.errors import PteforgeError
    from pteforge.tests.lowering import Stages

    try:
        Stages(LocalStore.open(folder / "store"), folder, {}).lower("builders:conv_net", recipe)
    except PteforgeError as error:
        return f"refused: {error}"
    except Exception as error:  # noqa: BLE001 - torch's and ExecuTorch's
        traceback.print_exception(error, limit=-4)
        return f"{type(error).__name__}: {error}"
    return "made"


def all_tried(recipes: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """What came of each recipe, and what `doctor --toolchain` says if one is not made."""
    with tempfile.TemporaryDirectory() as folder:
        results = {name: tried(recipe, Path(folder) / name) for name, recipe in recipes.items()}
    if set(results.values()) != {"made"}:
        from pteforge.tasks.lowering.toolchain import describe

        results["doctor"] = str(describe())
    return results


def looked_up(recipes: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The names that are looked up while the recipes are lowered, as dotted names."""
    from pteforge.tasks.upstream import compat, patches

    names, find = set(), compat.find

    def note(path: str) -> Any:
        first, dot, rest = path.partition(".")
        names.add(f"{compat.PATHS.get(first, first)}{dot}{rest}")
        return find(path)

    compat.find = patches.find = note
    all_tried(recipes)
    return sorted(names)


def main(*names: str) -> None:
    from pteforge.configs.recipe_lookup import load_preset
    from pteforge.tasks.upstream.compat import WITHOUT

    logging.disable()
    torch.set_num_threads(1)
    sys.path.insert(0, str(ZOO))
    recipes = {name: load_preset(name).recipe.model_dump(mode="json", exclude_unset=True) for name in RECIPES}
    used = in_fork({}, partial(looked_up, recipes))
    groups = [[name] for name in names if name in used]
    groups += filter(None, [[name for name in names if name not in used]])
    results = {}
    for group in groups:
        came = in_fork({WITHOUT: ",".join(group)}, partial(all_tried, recipes)) or dict.fromkeys(recipes, "died")
        results |= dict.fromkeys(group, came)
    for name in names:
        sys.stdout.write(json.dumps({"subject": name, "results": results[name]}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])

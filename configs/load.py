"""Loads a zoo file: everything that can be checked without torch is checked here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from ..errors import ConfigError
from .defaults import with_defaults
from .extends import Recipes, read_preset
from .fields import format_field
from .includes import Gathered, gather
from .locations import Locations
from .nodes import Node
from .overrides import Override, assign, parse_override
from .paths import absolute_paths
from .problems import check, raise_all
from .suggestions import did_you_mean
from .zoo import Zoo


@dataclass(frozen=True, slots=True)
class LoadedZoo:
    """A zoo, and where it was written.

    Attributes:
        zoo: everything resolved: each model names its recipes, each recipe named is there in full, paths are absolute.
        locations: finds the file, line and column of any value in `zoo`.
        files: every file that was read, absolute, the zoo file first.
    """

    zoo: Zoo
    locations: Locations
    files: tuple[Path, ...]


def load_zoo(path: Path, overrides: Sequence[str] = ()) -> LoadedZoo:
    """Reads a zoo file.

    Args:
        path: the YAML file.
        overrides: ``KEY=VALUE`` texts, applied in order over what the file and its includes say, defaults included, and
            before ``extends`` is worked in. Paths in them are relative to the current folder.

    Raises:
        ConfigError: anything that is wrong with the files or the overrides; a line for each problem.
    """
    changes = [_with_absolute_paths(parse_override(text)) for text in overrides]
    of_entries = [change for change in changes if change.path[0] in ("models", "recipes")]
    gathered = gather(path, [change for change in changes if change not in of_entries])
    for change in of_entries:
        _apply(change, gathered)
    recipes, problems = _resolve_recipes(gathered)
    root = gathered.root
    tree = Node(
        {
            "version": root.entries["version"],
            "name": root.entries.get("name", Node(path.stem, root.location, ("name",))),
            "python_path": Node(gathered.python_path, root.location, ("python_path",)),
            "models": Node(gathered.models, root.entries.get("models", root).location, ("models",)),
            "recipes": Node(recipes, root.entries.get("recipes", root).location, ("recipes",)),
        },
        root.location,
    )
    zoo, findings = check(Zoo, tree)
    raise_all([*problems, *findings])
    if zoo is None or not zoo.models:
        raise Locations(tree).error("the zoo has no models; add one, or include a file that has some", ("models",))
    raise_all(_pointless_exclusions(zoo, Locations(tree)))
    return LoadedZoo(zoo, Locations(tree), tuple(gathered.files))


def _pointless_exclusions(zoo: Zoo, locations: Locations) -> Iterator[ConfigError]:
    """Recipes that say they are not for a model that there is not: its name is misspelt, or it was renamed."""
    for name, recipe in zoo.recipes.items():
        for glob in recipe.not_for:
            if not any(fnmatchcase(model, glob) for model in zoo.models):
                problem = f"no model matches {glob!r}{did_you_mean(glob, tuple(zoo.models))}"
                yield locations.error(problem, ("recipes", name, "not_for", glob))


def _with_absolute_paths(change: Override) -> Override:
    return Override(change.path, absolute_paths(change.value, Path.cwd(), change.path))


def _apply(change: Override, gathered: Gathered) -> None:
    """Works an override of a model or a recipe in. A model that is new gets the zoo file's defaults."""
    location, field = change.value.location, format_field(change.path)
    match change.path:
        case ("models", str() as name, *below):
            kind, section, entries, known = "model", "models", gathered.models, gathered.models
        case ("recipes", str() as name, *below):
            kind, section, entries, known = "recipe", "recipes", gathered.recipes, gathered.recipes
            if name not in entries and (preset := read_preset(name)) is not None:
                known = {**entries, name: preset}
        case _:
            problem = f"name the entry to set, as in {change.path[0]}.NAME.FIELD=VALUE"
            raise ConfigError(problem, location=location, field=field)
    if below and name not in known:
        problem = f"there is no {kind} {name!r}{did_you_mean(name, tuple(known))}"
        raise ConfigError(problem, location=location, field=field)
    tree = Node({section: Node(known, location)}, location)
    changed = assign(tree, change).entries[section].entries[name]
    defaults = Node({}, location) if below else gathered.defaults
    entries[name] = with_defaults(changed, defaults) if kind == "model" else changed


def _resolve_recipes(gathered: Gathered) -> tuple[dict[str, Node], list[ConfigError]]:
    """The recipes that models use and the zoo's own ones, and what is wrong with the names."""
    folders = tuple(Path(str(node.value)) for node in gathered.python_path)
    recipes = Recipes(gathered.recipes, python_path=folders)
    problems: list[ConfigError] = []
    asked = [(name, node) for name, node in gathered.recipes.items()]
    used = set()
    for config in gathered.models.values():
        named = config.child("recipes")
        if named is None and isinstance(config.value, dict):
            field = format_field((*config.written, "recipes"))
            problem = "is missing; name recipes here, or for all models in `defaults.recipes`"
            problems.append(ConfigError(problem, location=config.location, field=field))
        for node in named.items if named else ():
            if isinstance(node.value, str):
                asked.append((node.value, node))
                used.add(node.value)
    for name, node in asked:
        try:
            recipes.resolve(name, node)
        except ConfigError as error:
            problems.append(error)
    unfinished = recipes.bases - used
    return {name: node for name, node in recipes.resolved.items() if name not in unfinished}, problems

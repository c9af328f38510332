"""Loads and merges zoo files, or makes the zoo of one model by its builder or name; checks what needs no torch."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fnmatch import filter as matching
from fnmatch import fnmatchcase
from pathlib import Path

from ..errors import ConfigError, Location
from . import nodes
from .base import check_object_reference, did_you_mean
from .contract_file import RELEASE
from .model import ModelConfig
from .nodes import FieldPath, Locations, Node, Scalar
from .places import HOST
from .presets import preset_names
from .problems import check, raise_all
from .recipe_lookup import RecipeLookup, read_preset
from .sources import PROGRAM_SUFFIX, expand_source, is_folder, is_program, names_model
from .zoo import Zoo, ZooFile


@dataclass(frozen=True, slots=True)
class LoadedZoo:
    """A zoo, and where it was written."""

    zoo: Zoo  # each model names its recipes, each recipe is complete, paths are absolute
    locations: Locations  # finds the file, line and column of any value in `zoo`
    files: tuple[Path, ...]  # every file that was read, absolute, the zoo file first


def load_zoo(
    path: Path, overrides: Sequence[str] = (), *, text: str | None = None, recipes: Sequence[str] = ()
) -> LoadedZoo:
    """Reads a zoo file; raises ConfigError, with a line for each problem in the files or the overrides.

    The overrides are ``KEY=VALUE`` texts. They are applied in order after includes and defaults have been merged and
    before ``extends`` is. Paths in them are relative to the current folder. `text` replaces a file that does not exist.
    Of the `recipes`, all models get shipped ones that nothing in the zoo is named after.
    """
    changes = [parse_override(text) for text in overrides]
    of_entries = [change for change in changes if change.written[0] in ("models", "recipes")]
    gathered = _gather(path, [change for change in changes if change not in of_entries], text)
    for change in of_entries:
        gathered.set_entry(change)
    gathered.add_presets(recipes)
    resolved, problems = _resolve_recipes(gathered)
    root = gathered.root
    defaults: dict[str, Scalar | dict[str, Node]] = {
        "name": path.stem,
        "run": {},
        "publish": None,
        "places": {},
        "toolchains": {},
    }
    sections = {name: Node(value, root.location, (name,)) for name, value in defaults.items()}
    sections |= {name: node for name, node in root.entries.items() if name in (*defaults, "version")}
    for name, entries in (("models", gathered.models), ("recipes", resolved)):
        sections[name] = Node(entries, root.entries.get(name, root).location, (name,))
    sections["python_path"] = Node(gathered.python_path, root.location, ("python_path",))
    tree = Node(sections, root.location)
    locations = Locations(tree)
    zoo, findings = check(Zoo, tree)
    raise_all([*problems, *findings])
    if zoo is None or not zoo.models:
        raise locations.error("the zoo has no models; add one, or include a file that has some", ("models",))
    raise_all([*_unmatched_exclusions(zoo, locations), *_unknown_places(zoo, locations)])
    return LoadedZoo(zoo, locations, tuple(gathered.files))


def parse_override(text: str) -> Node:
    """Reads ``KEY=VALUE``, a dotted field name and YAML; raises ConfigError for other text.

    The key is the path where the value is `written`. The location names the key, but not the value: it may be private.
    """
    path, rest = nodes.read_field(text)
    if not path or not rest.startswith("="):
        problem = "write KEY=VALUE, for example models.resnet8.seed=3 or models.resnet8.recipes[0]=mine"
        raise ConfigError(problem, location=Location(f"--set {text.partition('=')[0].strip()}"))
    location = Location(f"--set {nodes.format_field(path)}")
    return _absolute_paths(nodes.parse_yaml(rest[1:], location.file, fixed=location, at=path), Path.cwd(), path)


def _resolve_recipes(gathered: _Gathered) -> tuple[dict[str, Node], list[ConfigError]]:
    """The zoo's own recipes and those that models use, and the problems with their names."""
    folders = tuple(Path(str(node.value)) for node in gathered.python_path)
    lookup = RecipeLookup(gathered.recipes, python_path=folders)
    problems: list[ConfigError] = []
    wanted = list(gathered.recipes.items())
    used = set()
    for model in gathered.models.values():
        names = model.child("recipes")
        if names is None and isinstance(model.value, dict):
            problem = "is missing; name recipes here, or for all models in `defaults.recipes`"
            problems.append(replace(model, written=(*model.written, "recipes")).error(problem))
        for node in names.items if names else ():
            if isinstance(node.value, str):
                wanted.append((node.value, node))
                used.add(node.value)
    for name, node in wanted:
        try:
            lookup.resolve(name, node)
        except ConfigError as error:
            problems.append(error)
    unfinished = lookup.bases - used
    return {name: node for name, node in lookup.resolved.items() if name not in unfinished}, problems


def _unmatched_exclusions(zoo: Zoo, locations: Locations) -> Iterator[ConfigError]:
    """Globs in ``not_for`` that match no model: its name is misspelt, or it was renamed."""
    for name, recipe in zoo.recipes.items():
        for glob in recipe.not_for:
            if not any(fnmatchcase(model, glob) for model in zoo.models):
                problem = f"no model matches {glob!r}{did_you_mean(glob, tuple(zoo.models))}"
                yield locations.error(problem, ("recipes", name, "not_for", glob))


def _unknown_places(zoo: Zoo, locations: Locations) -> Iterator[ConfigError]:
    """Names in ``verify.on`` that are no places of the zoo."""
    known = (HOST, *zoo.places)
    for name, recipe in zoo.recipes.items():
        for position, place in enumerate(recipe.verify.on):
            if place not in known:
                problem = f"the zoo has no place {place!r}{did_you_mean(place, known)}; places are in `places:`"
                yield locations.error(problem, ("recipes", name, "verify", "on", position))


@dataclass
class _Gathered:
    """The contents of a zoo file and its includes."""

    root: Node
    defaults: Node  # of models that are added to the zoo file
    models: dict[str, Node] = field(default_factory=dict)  # of all files, each over its defaults
    recipes: dict[str, Node] = field(default_factory=dict)
    python_path: list[Node] = field(default_factory=list)  # one node per folder, without repeats
    files: list[Path] = field(default_factory=list)
    # real path of a file -> the defaults it was first read under, and whether it or its includes have models
    visits: dict[str, tuple[object, bool]] = field(default_factory=dict)

    def add(self, file: Node, path: Path, inherited: Node, trail: tuple[Path, ...]) -> None:
        """Adds one file that has been read, and then those it includes; `trail` leads to it from the zoo file."""
        outline, problems = check(ZooFile, file)
        raise_all([*problems, *(_check_defaults(file) if outline else ())])
        models_before = len(self.models)
        self.files.append(_absolute(path))
        defaults = _model_defaults(file, inherited)
        for kind, entries in (("model", self.models), ("recipe", self.recipes)):
            for name, node in (file.child(f"{kind}s") or _nothing(file)).entries.items():
                if name in entries:
                    defined = f"the {kind} {name!r} is defined already, at {entries[name].location}"
                    raise node.error(f"{defined}; give one of them another name")
                entries[name] = _with_defaults(node, defaults) if kind == "model" else node
        written = file.child("python_path")
        folders = written.items if written else [Node(str(_absolute(path).parent), file.location, ("python_path",))]
        known = {node.value for node in self.python_path}
        self.python_path += [node for node in folders if node.value not in known]
        for item in (file.child("include") or _nothing(file)).items:
            self._include(item, defaults, trail)
        self.visits[os.path.realpath(path)] = (nodes.plain(inherited), len(self.models) > models_before)

    def _include(self, item: Node, defaults: Node, trail: tuple[Path, ...]) -> None:
        path = Path(str(item.value))
        real = os.path.realpath(path)
        if real in map(os.path.realpath, trail):
            circle = " -> ".join(_relative(step) for step in (*trail, path))
            raise item.error(f"files include each other in a circle: {circle}")
        if real in self.visits:
            first_defaults, has_models = self.visits[real]
            if has_models and first_defaults != nodes.plain(defaults):
                raise item.error(
                    f"{_relative(path)} is included twice, and its models would get different defaults each time; "
                    "include it once"
                )
            return
        self.add(_read(path, _relative(path), item), path, defaults, (*trail, path))

    def set_entry(self, change: Node) -> None:
        """Applies an override of a model or a recipe. A new model gets the zoo file's defaults."""
        section, entries = ("models", self.models) if change.written[0] == "models" else ("recipes", self.recipes)
        match change.written:
            case (_, str() as name, *below):
                pass
            case _:
                raise change.error(f"name the entry to set, as in {section}.NAME.FIELD=VALUE")
        known = entries
        if section == "recipes" and name not in entries and (preset := read_preset(name)) is not None:
            known = {**entries, name: preset}
        if below and name not in known:
            raise change.error(f"there is no {section[:-1]} {name!r}{did_you_mean(name, tuple(known))}")
        tree = Node({section: Node(known, change.location)}, change.location)
        changed = nodes.assign(tree, change).entries[section].entries[name]
        defaults = _nothing(change) if below else self.defaults
        entries[name] = _with_defaults(changed, defaults) if section == "models" else changed

    def add_presets(self, names: Sequence[str]) -> None:
        """Gives all models the shipped recipes among these that nothing in the zoo is named after."""
        listed = {key: recipes for key, model in self.models.items() if (recipes := model.child("recipes"))}
        named = {*self.recipes, *(node.value for recipes in listed.values() for node in recipes.items)}
        for name in [name for name in names if name in preset_names() and name not in named]:
            for key, recipes in listed.items():
                added = Node(name, Location("--recipe"), recipes.written)
                model = self.models[key]
                listed[key] = replace(recipes, value=[*recipes.items, added])
                self.models[key] = model.with_entries({"recipes": listed[key]})


def _gather(path: Path, overrides: Sequence[Node], text: str | None) -> _Gathered:
    """Reads the zoo file at `path`, applies `overrides` to it, and reads the files that it includes."""
    if text is None and (problem := _other_kind(path)):
        raise ConfigError(problem, location=Location(str(path)))
    root = _read(path, str(path), text=text)
    for override in overrides:
        root = nodes.assign(root, override)
    gathered = _Gathered(root, _model_defaults(root, _nothing(root)))
    gathered.add(root, path, _nothing(root), (path,))
    return gathered


_NAME_A_BUILDER = "name a function that returns the model and its example inputs: `pteforge export {}:FUNCTION`"


def _other_kind(path: Path) -> str:
    """What to give in place of a file that is no zoo, where it is Python code or no text; empty for all others."""
    code = path if path.suffix == ".py" else path.with_name(f"{path.name}.py")
    if code.is_file() and (code == path or not path.exists()):
        return f"{code.name} is Python code; {_NAME_A_BUILDER.format(code.with_suffix(''))}"
    if path.is_file():
        with suppress(OSError), path.open("rb") as file:
            if b"\0" in file.read(1 << 12):
                return (
                    "no zoo file (YAML), since it is no text; where it has weights, "
                    f"{_NAME_A_BUILDER.format('MODULE')}, and let it load them; a program of torch.export.save ends in "
                    ".pt2"
                )
    return ""


def _nothing(node: Node) -> Node:
    return Node({}, node.location)


def _read(path: Path, name: str, included_by: Node | None = None, text: str | None = None) -> Node:
    if text is None:
        tree = nodes.read_yaml(path, name, included_by)
    else:
        tree = nodes.parse_yaml(text, name, fixed=Location(name))
    if tree.value is None:
        raise tree.error("the file is empty; write at least `version: 1` and `models:`")
    if not isinstance(tree.value, dict):
        raise tree.error("a zoo file is a mapping with `version: 1` and `models:`")
    return _absolute_paths(tree, _absolute(path).parent)


def _absolute(path: Path) -> Path:
    return Path(os.path.abspath(path))  # noqa: PTH100 - resolve() would follow links


def _relative(path: Path) -> str:
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def _absolute_paths(tree: Node, folder: Path, at: FieldPath = ()) -> Node:
    def change(path: FieldPath, value: Scalar) -> Scalar:
        if not isinstance(value, str) or not _is_path(path, value):
            return value
        scheme = value[: len("hf:")] if names_model(value) else ""
        return f"{scheme}{_absolute(folder / Path(value.removeprefix(scheme)).expanduser())}"

    return nodes.map_scalars(tree, change, at)


def _is_path(path: FieldPath, text: str) -> bool:
    match path:
        case (
            ("python_path" | "include", int())
            | ("publish", "sign")
            | ("places", _, "library", *_)
            | ("toolchains", _, "python")
        ):
            return True
        case ("publish", "url"):
            return "://" not in text
        case ("models" | "recipes", _, *field) | ("defaults", "model", *field):
            return _is_path_of_entry(field, text)
    return False


def _is_path_of_entry(field: Sequence[str | int], text: str) -> bool:
    match field:
        case ["source"]:
            return _is_source_path(*expand_source(text))
        case ["source", str() as key]:
            return _is_source_path(key, text)
        case ["source" | "accuracy", "files", int()] | ["calibration", _, "files", int()]:
            return True
        case ["source_transforms", int(), "files", int()] | ["metadata", "labels_file"]:
            return True
        case ["verify", "runtime"]:
            return not RELEASE.fullmatch(text)
    return False


def _is_source_path(key: str, text: str) -> bool:
    """Whether the value of a source's key is the path of a file or a folder."""
    return key == "program" or (key in {"huggingface", "adapter"} and is_folder(text))


def _model_defaults(file: Node, inherited: Node) -> Node:
    """The defaults of the models of `file`: the file's own over those of the file that includes it."""
    section = file.child("defaults") or _nothing(file)
    own = section.child("model")
    merged = nodes.deep_merge(inherited, _expand_source(own)) if own is not None and own.entries else inherited
    recipes = section.child("recipes")
    return merged if recipes is None or recipes.value is None else merged.with_entries({"recipes": recipes})


def _with_defaults(model: Node, defaults: Node) -> Node:
    """A model as written, over its defaults. A source of another kind replaces the default one altogether."""
    model = _expand_source(model)
    if (recipes := model.child("recipes")) is not None and recipes.value is None:
        model = model.without("recipes")
    own, default = model.child("source"), defaults.child("source")
    if own and default and {"builder", "program"} <= own.entries.keys() | default.entries.keys():
        defaults = defaults.without("source")
    return nodes.deep_merge(defaults, model)


def _check_defaults(file: Node) -> list[ConfigError]:
    """Problems of ``defaults.model`` by itself, whether or not a model of the file uses it."""
    section = (file.child("defaults") or file).child("model")
    if section is None or not section.entries:
        return []
    if recipes := section.child("recipes"):
        return [recipes.error("name default recipes in `defaults.recipes`")]
    builder = Node({"builder": Node("package.module:callable", section.location)}, section.location)
    return check(ModelConfig, _with_defaults(section, replace(section, value={"source": builder})))[1]


def _expand_source(model: Node) -> Node:
    """The model with the short form of its source expanded, so that mappings can be merged with it."""
    source = model.child("source")
    if source is None or not isinstance(source.value, str):
        return model
    key, value = expand_source(source.value)
    return model.with_entries({"source": replace(source, value={key: replace(source, value=value)})})


DEFAULT_RECIPE = "xnnpack-fp32"


def split_source(path: Path) -> tuple[Path, str] | None:
    """The folder of modules and the source, if a path is ``package.module:builder``, ``hf:org/name`` or ``x.pt2``."""
    for position in range(len(path.parts)):
        name = "/".join(path.parts[position:])
        if names_model(name):
            return Path(*path.parts[:position]), name
    if is_program(path.name):
        return path.parent, path.name
    try:
        check_object_reference(path.name)
    except ValueError:
        return None
    return None if path.exists() else (path.parent, path.name)


def model_name(source: str) -> str:
    """The name that a model gets: ``linear`` for ``nets:linear``, ``name`` for ``hf:org/name``, ``x`` for ``x.pt2``."""
    last = source.removesuffix(PROGRAM_SUFFIX).rpartition(":")[2].rstrip("/").rpartition("/")[2]
    name = re.sub(r"[^A-Za-z0-9._-]", "-", last)
    return name.lstrip("._-")[:128] or "model"


def recipe_names(globs: str) -> tuple[str, ...]:
    """Shipped recipes that match comma-separated globs; unknown names stay. ``*`` is `DEFAULT_RECIPE`."""
    if globs == "*":
        return (DEFAULT_RECIPE,)
    return tuple(dict.fromkeys(name for glob in globs.split(",") for name in matching(preset_names(), glob) or [glob]))


def load_source(folder: Path, source: str, recipes: Sequence[str], overrides: Sequence[str] = ()) -> LoadedZoo:
    """The zoo that `zoo_text` describes, as if in a folder; overrides of ``source`` are those of its only model."""
    of_model = nodes.format_field(("models", model_name(source)))
    overrides = [f"{of_model}.{text}" if text.startswith("source.") else text for text in overrides]
    return load_zoo(folder / source.replace("/", "-"), overrides, text=zoo_text(source, recipes))


def zoo_text(builder: str, recipes: Sequence[str], arguments: Sequence[str] = (), needed: Sequence[str] = ()) -> str:
    """A zoo file for one model, with comments that say how to go on, and the builder's `needed` and other arguments."""
    kwargs = "".join(f"        {name}: null # has no default: write a value\n" for name in needed)
    kwargs = f"      kwargs:\n{kwargs}" if kwargs else ""
    more = f"      # Arguments that it takes: {', '.join(arguments)}.\n" if arguments else ""
    more += "      # kwargs: {NAME: VALUE}\n" if arguments and not needed else ""
    if expand_source(builder)[0] != "builder":
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

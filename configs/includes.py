"""Reads a zoo file and the files that it includes, and puts them together."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import ConfigError, Location
from .defaults import check_defaults, model_defaults, with_defaults
from .fields import format_field
from .nodes import Node, plain
from .overrides import Override, assign
from .paths import absolute_paths
from .problems import check, raise_all
from .yaml_nodes import parse_yaml
from .zoo import ZooFile


@dataclass
class Gathered:
    """What a zoo file and its includes say together.

    Attributes:
        root: the zoo file itself, as written.
        defaults: what a model gets that is added to the zoo file.
        models: the models of all files, each over its defaults.
        recipes: the recipes of all files, as written.
        python_path: one node per folder, without repeats.
        files: every file read, the zoo file first.
    """

    root: Node
    defaults: Node
    models: dict[str, Node] = field(default_factory=dict)
    recipes: dict[str, Node] = field(default_factory=dict)
    python_path: list[Node] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)


def gather(path: Path, overrides: Sequence[Override]) -> Gathered:
    """Reads the zoo file at `path`, with `overrides` worked into it, and all that it includes.

    Raises:
        ConfigError: a file cannot be read or is not YAML, its outline is not that of a zoo file, files include each
            other in a circle, or two of them define the same name.
    """
    root = _read(path, str(path), None)
    for override in overrides:
        root = assign(root, override)
    nothing = Node({}, root.location)
    gathered = Gathered(root, model_defaults(root, nothing))
    _Gathering(gathered).add(root, path, nothing, (path,))
    return gathered


@dataclass
class _Gathering:
    """The walk over the files.

    Attributes:
        into: what has been found so far.
        visits: real path of a file, to the defaults it was first read under and whether there are models in it.
    """

    into: Gathered
    visits: dict[str, tuple[object, bool]] = field(default_factory=dict)

    def add(self, file: Node, path: Path, inherited: Node, trail: tuple[Path, ...]) -> None:
        """Adds one file that has been read, and then those it includes."""
        outline, problems = check(ZooFile, file)
        raise_all([*problems, *(check_defaults(file) if outline else ())])
        folder = Path(os.path.abspath(path)).parent  # noqa: PTH100  # resolve() would follow links
        models_before = len(self.into.models)
        self.into.files.append(Path(os.path.abspath(path)))  # noqa: PTH100  # as above
        defaults = model_defaults(file, inherited)
        for kind, found in (("model", self.into.models), ("recipe", self.into.recipes)):
            for name, node in self._section(file, f"{kind}s").items():
                if name in found:
                    other = found[name].location
                    raise ConfigError(
                        f"the {kind} {name!r} is defined already, at {other}; give one of them another name",
                        location=node.location,
                        field=format_field(node.written),
                    )
                found[name] = with_defaults(node, defaults) if kind == "model" else node
        self._add_folders(file, folder)
        include = file.child("include")
        for item in include.items if include else ():
            self._include(item, defaults, trail)
        self.visits[os.path.realpath(path)] = (plain(inherited), len(self.into.models) > models_before)

    def _include(self, item: Node, defaults: Node, trail: tuple[Path, ...]) -> None:
        path = Path(str(item.value))
        real = os.path.realpath(path)
        if real in map(os.path.realpath, trail):
            circle = " -> ".join(_shown(step) for step in (*trail, path))
            problem = f"files include each other in a circle: {circle}"
            raise ConfigError(problem, location=item.location, field=_name(item))
        if real in self.visits:
            under, has_models = self.visits[real]
            if has_models and under != plain(defaults):
                raise ConfigError(
                    f"{_shown(path)} is included twice, and its models would get different defaults each time; "
                    "include it once",
                    location=item.location,
                    field=_name(item),
                )
            return
        self.add(_read(path, _shown(path), item), path, defaults, (*trail, path))

    def _add_folders(self, file: Node, folder: Path) -> None:
        written = file.child("python_path")
        folders = written.items if written else [Node(str(folder), file.location, ("python_path",))]
        known = {node.value for node in self.into.python_path}
        self.into.python_path += [node for node in folders if node.value not in known]

    @staticmethod
    def _section(file: Node, name: str) -> dict[str, Node]:
        section = file.child(name)
        return dict(section.entries) if section else {}


def read_tree(path: Path, shown: str, included_by: Node | None = None) -> Node:
    """The tree of a YAML file.

    Args:
        path: the file.
        shown: how messages name it.
        included_by: where another file names it.

    Raises:
        ConfigError: it cannot be read, or is not YAML.
    """
    location = included_by.location if included_by else Location(shown)
    fields = _name(included_by) if included_by else None
    try:
        content = path.read_bytes()
    except OSError as error:
        problem = f"cannot read {shown}: {error.strerror or error}"
        raise ConfigError(problem, location=location, field=fields) from error
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = content[: error.start].decode("utf-8-sig", errors="replace")
        location = Location(shown, before.count("\n") + 1, len(before) - before.rfind("\n"))
        raise ConfigError("not UTF-8 text", location=location) from error
    return parse_yaml(text, shown)


def _read(path: Path, shown: str, included_by: Node | None) -> Node:
    """The file's tree with paths made absolute."""
    tree = read_tree(path, shown, included_by)
    if tree.value is None:
        raise ConfigError("the file is empty; write at least `version: 1` and `models:`", location=tree.location)
    if not isinstance(tree.value, dict):
        raise ConfigError("a zoo file is a mapping with `version: 1` and `models:`", location=tree.location)
    folder = Path(os.path.abspath(path)).parent  # noqa: PTH100  # resolve() would follow links
    return absolute_paths(tree, folder)


def _shown(path: Path) -> str:
    """How messages name an included file: relative where it lies below the current folder."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def _name(node: Node) -> str:
    return format_field(node.written)

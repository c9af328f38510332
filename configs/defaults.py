"""How the defaults of files reach the models."""

from __future__ import annotations

from dataclasses import replace

from ..errors import ConfigError
from .fields import format_field
from .model import ModelConfig
from .nodes import Node, deep_merge
from .problems import check


def model_defaults(file: Node, inherited: Node) -> Node:
    """What a model of `file` gets: the file's own ``defaults`` over those of the file that includes it."""
    section = file.child("defaults") or Node({}, file.location)
    own = section.child("model")
    merged = deep_merge(inherited, _spelled_out(own)) if own is not None and own.entries else inherited
    recipes = section.child("recipes")
    return merged if recipes is None or recipes.value is None else merged.with_entries({"recipes": recipes})


def with_defaults(model: Node, defaults: Node) -> Node:
    """A model as written, over its defaults. A source of the other kind replaces the default one altogether."""
    model = _spelled_out(model)
    if (recipes := model.child("recipes")) is not None and recipes.value is None:
        model = model.without("recipes")
    own, given = model.child("source"), defaults.child("source")
    if own and given and {"builder", "program"} <= own.entries.keys() | given.entries.keys():
        defaults = defaults.without("source")
    return deep_merge(defaults, model)


def check_defaults(file: Node) -> list[ConfigError]:
    """What is wrong with ``defaults.model`` by itself, whether or not a model of the file uses it."""
    section = (file.child("defaults") or file).child("model")
    if section is None or not section.entries:
        return []
    if recipes := section.child("recipes"):
        field = format_field(recipes.written)
        return [ConfigError("name default recipes in `defaults.recipes`", location=recipes.location, field=field)]
    builder = Node({"builder": Node("package.module:callable", section.location)}, section.location)
    return check(ModelConfig, with_defaults(section, replace(section, value={"source": builder})))[1]


def _spelled_out(model: Node) -> Node:
    """The same model with the short form of its source written out, so that mappings can be merged with it."""
    source = model.child("source")
    if source is None or not isinstance(source.value, str):
        return model
    kind = "program" if source.value.endswith(".pt2") else "builder"
    return model.with_entries({"source": replace(source, value={kind: source})})

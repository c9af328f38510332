"""The parts of the reference that are made of the code: commands, fields of zoo files, options of targets, the API."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import typer
from pteforge.configs.zoo import zoo_schema
from pteforge.flows.cli.main import app
from pteforge.tasks.targets import target_names
from pteforge.tasks.targets.find import find_target_class
from pymdownx.slugs import slugify
from typer.core import TyperArgument

Schema = dict[str, Any]


def _table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    rows = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    head = [*header]
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def commands() -> str:
    """All commands with their arguments and options, as ``--help`` prints them."""
    return "\n".join(_commands(typer.main.get_command(app), "pteforge"))


def _commands(command: Any, name: str) -> Iterator[str]:
    context = command.make_context(name, [], resilient_parsing=True)
    inner = getattr(command, "commands", {})
    if not inner or name != "pteforge":
        yield f"### {name}\n\n{command.help or ''}\n"
        usage = " ".join(command.collect_usage_pieces(context))
        yield f"```text\n{name} {usage}\n```\n"
    rows = {TyperArgument: [], object: []}
    for param in command.get_params(context):
        if record := param.get_help_record(context):
            names, text = record
            rows[TyperArgument if isinstance(param, TyperArgument) else object].append((f"`{names}`", _plain(text)))
    if name == "pteforge":
        yield "Options before the command:\n"
    for kind, title in ((TyperArgument, "argument"), (object, "option")):
        if rows[kind]:
            yield _table((title, ""), rows[kind])
    for child, subcommand in inner.items():
        yield from _commands(subcommand, f"{name} {child}")


def _plain(text: str) -> str:
    """Text as it is: no emphasis, no HTML."""
    return text.replace("*", "\\*").replace("_", "\\_").replace("<", "&lt;").replace("[", "\\[")


def zoo() -> str:
    """Every field of a zoo file, section by section, in the order in which they are met."""
    return "\n".join(_sections(zoo_schema(), "The file", ""))


def targets() -> str:
    """The options of all targets and of their quantizers."""
    text = []
    for name in target_names():
        found = find_target_class(name)
        for title, options in ((name, found.Options), (f"quantizer {name}", found.QuantizerOptions)):
            if options and options.model_fields:
                text += _sections(options.model_json_schema(), title, f"{title}.")
    return "\n".join(text)


def _sections(schema: Schema, title: str, path: str) -> Iterator[str]:
    """A table of fields for an object, and one for each object in its fields, with their paths as titles."""
    parts: dict[str, Schema] = schema.get("$defs", {})
    titles: dict[str, str] = {}
    waiting = [(title, path, schema)]
    for _, path_of, part in waiting:
        for name, field in part["properties"].items():
            inner = [ref for ref in dict.fromkeys(_refs(field)) if parts[ref].get("properties")]
            for ref in inner:
                if ref not in titles:
                    field_path = f"{path_of}{name}" + (".NAME" if "additionalProperties" in str(field) else "")
                    titles[ref] = f"{field_path} ({ref})" if len(inner) > 1 else field_path
                    waiting.append((titles[ref], f"{field_path}.", parts[ref]))
    for title_of, _, part in waiting:
        required = part.get("required", ())
        rows = [
            (f"`{name}`", _type(field, parts, titles), _meaning(name, field, parts, name in required))
            for name, field in part["properties"].items()
        ]
        table = _table(("field", "type", "meaning"), rows)
        yield f"### {title_of}\n\n{_text(part.get('description', ''))}\n\n{table}"


def _meaning(name: str, field: Schema, parts: dict[str, Schema], required: bool) -> str:
    """What a field is for, its default, and an example: the schema's, or a value that is not the default."""
    text = field.get("description") or next((parts[ref].get("description", "") for ref in _refs(field)), "")
    default = field.get("default")
    told = "Required." if required else "" if default in (None, [], {}) or isinstance(default, dict) else f"Default: {_value(default)}."
    examples = [value for key in ("examples", "enum", "const") for value in _found(field, key) if value != default]
    if not examples and isinstance(default, bool):
        examples = [not default]
    for kind, value in (("integer", 8), ("number", 0.5)):
        if not examples and not isinstance(default, bool) and kind in _found(field, "type"):
            examples = [value]
    example = f"Example: `{name}: {_yaml(examples[0])}`." if examples else ""
    return " ".join(filter(None, (_text(text), told, example)))


def _text(docstring: str) -> str:
    """The first paragraph of a description, with code as Markdown has it."""
    return " ".join(docstring.partition("\n\nAttributes:")[0].replace("``", "`").split())


def _yaml(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _value(value: Any) -> str:
    return f"`{_yaml(value)}`"


def _found(field: Schema, key: str) -> Iterator[Any]:
    value = field.get(key)
    yield from value if isinstance(value, list) else () if value is None else (value,)
    for kind in ("anyOf", "oneOf"):
        for choice in field.get(kind, ()):
            yield from _found(choice, key)


def _refs(field: Any) -> Iterator[str]:
    """Names of the definitions that a field refers to."""
    if isinstance(field, dict):
        if isinstance(ref := field.get("$ref"), str):
            yield ref.rpartition("/")[2]
        field = [value for key, value in field.items() if key not in {"discriminator", "default", "examples"}]
    if isinstance(field, list):
        for value in field:
            yield from _refs(value)


def _type(field: Schema, parts: dict[str, Schema], titles: dict[str, str]) -> str:
    """The type of a field, with links to the tables of objects."""

    def of(inner: Schema) -> str:
        return _type(inner, parts, titles)

    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        if name in titles:
            return f"[{name}](#{slugify(case='lower')(titles[name], '-')})"
        return name if {"anyOf", "oneOf"} & {*parts[name]} or not parts[name] else of(parts[name])
    for key in ("enum", "const"):
        if key in field:
            return " or ".join(_value(value) for value in _found(field, key))
    for key in ("anyOf", "oneOf"):
        if key in field:
            return " or ".join(dict.fromkeys(of(choice) for choice in field[key] if choice.get("type") != "null"))
    kind = field.get("type", "anything")
    if kind == "array":
        return f"list of {of(field.get('items') or (field.get('prefixItems') or [{}])[0])}"
    if kind == "object" and isinstance(field.get("additionalProperties"), dict):
        return f"mapping to {of(field['additionalProperties'])}"
    return {"object": "mapping", "string": "text"}.get(kind, kind)


API = {
    "Lowering a model": ("pteforge.export", "pteforge.Exported", "pteforge.recipe_from_executorch"),
    "What builders return": ("pteforge.ModelDefinition", "pteforge.MethodDefinition", "pteforge.MethodCall"),
    "Running files": ("pteforge.runtime.load", "pteforge.runtime.LoadedProgram", "pteforge.runtime.metadata"),
    "Evaluators": ("pteforge.evaluators",),
    "Stores on Prefect's server": ("pteforge.PteforgeStore",),
    "Errors": ("pteforge.errors",),
}


def api() -> str:
    """The public names of the package, for mkdocstrings."""
    return "\n\n".join(f"## {title}\n\n" + "\n\n".join(f"::: {name}" for name in names) for title, names in API.items())

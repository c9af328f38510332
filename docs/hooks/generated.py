"""The parts of the reference that are made of the code: all commands, fields of zoo files, options of targets."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

import typer
from pteforge.configs.zoo import zoo_schema
from pteforge.flows.cli.main import app
from pteforge.tasks.targets import target_names
from pteforge.tasks.targets.base import TargetOptions
from pteforge.tasks.targets.find import find_target_class
from pymdownx.slugs import slugify
from typer.core import TyperArgument

Schema = dict[str, Any]
ATTRIBUTE = re.compile(r"^    (\w+): (.*(?:\n {8}.*)*)", re.MULTILINE)


def commands() -> str:
    """All commands with their arguments and options, as ``--help`` prints them."""
    return "\n".join(_commands(typer.main.get_command(app), "pteforge"))


def _commands(command: Any, name: str) -> Iterator[str]:
    context = command.make_context(name, [], resilient_parsing=True)
    usage = " ".join(command.collect_usage_pieces(context))
    yield f"### {name}\n\n{command.help or ''}\n\n```text\n{name} {usage}\n```\n"
    records = [(param, param.get_help_record(context)) for param in command.get_params(context)]
    for title in ("argument", "option"):
        rows = [
            (f"`{record[0]}`", _plain(record[1]))
            for param, record in records
            if record and isinstance(param, TyperArgument) == (title == "argument")
        ]
        if rows:
            yield _table((title, ""), rows)
    for child, subcommand in getattr(command, "commands", {}).items():
        yield from _commands(subcommand, f"{name} {child}")


def _table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [header, ("---",) * len(header), *rows]
    cells = (" | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in line) for line in lines)
    return "".join(f"| {line} |\n" for line in cells)


def _plain(text: str) -> str:
    """Text as it is: no emphasis, no HTML."""
    return text.replace("*", "\\*").replace("_", "\\_").replace("<", "&lt;").replace("[", "\\[")


def zoo() -> str:
    """Every field of a zoo file, section by section."""
    return "\n".join(_sections(zoo_schema(), "The file", ""))


def targets() -> str:
    """The options of all targets and of their quantizers."""
    found = {name: find_target_class(name) for name in target_names()}
    options = {name: target.Options for name, target in found.items()}
    options |= {f"quantizer {name}": target.QuantizerOptions for name, target in found.items()}
    made = {title: model.model_json_schema() for title, model in options.items() if model and model.model_fields}
    return "\n".join(text for title, schema in made.items() for text in _sections(schema, title, f"{title}."))


def _sections(schema: Schema, title: str, path: str) -> Iterator[str]:
    """A table of the fields of an object, and one for each object in them, whose title is its path."""
    parts: dict[str, Schema] = schema.get("$defs", {})
    titles: dict[str, str] = {}
    sections = [(title, path, schema)]
    for _, path_of, part in sections:
        for name, field in part["properties"].items():
            inner = _objects(field, parts)
            of_field = f"{path_of}{name}" + (".NAME" if _by_name(field) else "")
            for ref in (ref for ref in inner if ref not in titles):
                titles[ref] = f"{of_field} ({ref})" if len(inner) > 1 else of_field
                sections.append((titles[ref], f"{of_field}.", parts[ref]))
    for title_of, _, part in sections:
        required = part.get("required", ())
        rows = [
            (f"`{name}`", _type(field, parts, titles), _meaning(name, part, parts))
            for name, field in sorted(part["properties"].items(), key=lambda entry: entry[0] not in required)
        ]
        told = _text(part.get("description", ""))
        yield f"### {title_of}\n\n{told}\n\n{_table(('field', 'type', 'meaning'), rows)}"


def _meaning(name: str, part: Schema, parts: dict[str, Schema]) -> str:
    """What a field is for, its default, and an example: the schema's, or a value that is not the default."""
    field = part["properties"][name]
    told = [parts[ref].get("description", "") for ref in _refs(field)]
    text = next(filter(None, (field.get("description"), _attributes(part).get(name), *told)), "")
    default = field.get("default")
    default = None if isinstance(default, dict) or default == [] else default
    of_kind = {"boolean": default is not True, "integer": 8, "number": 0.5}
    examples = [*_found(field, "examples"), *_found(field, "enum"), *_found(field, "const")]
    examples += [of_kind[kind] for kind in _found(field, "type") if kind in of_kind]
    example = next((value for value in examples if value != default), None)
    parts_of_text = [_text(text), "Required." if name in part.get("required", ()) else ""]
    parts_of_text += [f"Default: `{_yaml(default)}`."] if default is not None else []
    parts_of_text += [f"Example: `{name}: {_yaml(example)}`."] if example is not None else []
    return " ".join(filter(None, parts_of_text))


def _attributes(part: Schema) -> dict[str, str]:
    """What docstrings say of an object's fields; of options also those of the classes that they extend."""
    classes = [TargetOptions]
    for options in classes:  # grows
        classes += options.__subclasses__()
    bases = next((options.__mro__ for options in classes if options.__name__ == part.get("title")), ())
    texts = [*(inspect.cleandoc(base.__doc__ or "") for base in reversed(bases)), part.get("description", "")]
    return {name: told[0].upper() + told[1:] for text in texts for name, told in ATTRIBUTE.findall(text)}


def _text(docstring: str) -> str:
    """A description without what it says of attributes, with code as Markdown has it."""
    return " ".join(docstring.partition("\n\nAttributes:")[0].replace("``", "`").split())


def _yaml(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _by_name(field: Schema) -> Schema | None:
    """What a mapping of free names has for each of them."""
    values = [*field.get("patternProperties", {}).values(), field.get("additionalProperties")]
    values += [_by_name(choice) for choice in field.get("anyOf", ())]
    return next((value for value in values if isinstance(value, dict)), None)


def _found(field: Schema, key: str) -> Iterator[Any]:
    """The values of a key in a field and in its choices."""
    value = field.get(key, [])
    yield from value if isinstance(value, list) else [value]
    for choice in [*field.get("anyOf", ()), *field.get("oneOf", ())]:
        yield from _found(choice, key)


def _objects(field: Schema, parts: dict[str, Schema]) -> list[str]:
    """Names of the objects that a field refers to, also by definitions without fields, such as shapes in shapes."""
    found = [*dict.fromkeys(_refs(field))]
    for ref in found:
        found += [] if parts[ref].get("properties") else [name for name in _refs(parts[ref]) if name not in found]
    return [ref for ref in found if parts[ref].get("properties")]


def _refs(field: Any) -> Iterator[str]:
    """Names of the definitions that a field refers to."""
    if isinstance(field, dict):
        if isinstance(ref := field.get("$ref"), str):
            yield ref.rpartition("/")[2]
        field = [value for key, value in field.items() if key not in {"discriminator", "default", "examples"}]
    for value in field if isinstance(field, list) else ():
        yield from _refs(value)


def _type(field: Schema, parts: dict[str, Schema], titles: dict[str, str]) -> str:
    """The type of a field, with links to the tables of objects."""
    name = field.get("$ref", "").rpartition("/")[2]
    choices = field.get("anyOf") or field.get("oneOf")
    if name in titles:
        shown = titles[name].partition(" (")[2].rstrip(")") or titles[name]  # one of several kinds: its name
        text = f"[{shown}](#{slugify(case='lower')(titles[name], '-')})"
    elif name:  # without fields: plain, or of itself, such as JSON
        text = _type(parts[name], parts, titles) if parts[name].get("type") else name
    elif {"enum", "const"} & {*field}:
        text = " or ".join(f"`{_yaml(value)}`" for key in ("enum", "const") for value in _found(field, key))
    elif choices:
        kinds = dict.fromkeys(_type(choice, parts, titles) for choice in choices if choice.get("type") != "null")
        text = " or ".join(kind for kind in kinds if "text" not in kinds or " or " not in kind)
    elif field.get("type") == "array":
        text = f"list of {_type(field.get('items') or field.get('prefixItems', [{}])[0], parts, titles)}"
    elif inner := _by_name(field):
        text = f"mapping to {_type(inner, parts, titles)}"
    else:
        kind = field.get("type", "anything")
        text = {"object": "mapping", "string": "text"}.get(kind, kind)
    return text

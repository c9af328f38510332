"""Turns pydantic's findings into errors that name file, line, column and field."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from ..errors import ConfigError
from .base import did_you_mean
from .nodes import FieldPath, Locations, Node, plain
from .zoo import zoo_schema

_Model = TypeVar("_Model", bound=BaseModel)

_ADDED = re.compile(r"\[key\]|<[a-z ]+>|")
_MAX_SHOWN = 40
_MESSAGES = {
    "missing": "is missing; it has to be given",
    "model_type": "must be a mapping",
    "dict_type": "must be a mapping",
    "tuple_type": "must be a list",
    "string_type": "must be text",
    "path_type": "must be a path, as text",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "bool_type": "must be true or false",
    "float_type": "must be a number",
    "none_required": "must be null",
}
"""pydantic's error types to messages in the terms of YAML."""


def check(model: type[_Model], tree: Node) -> tuple[_Model | None, list[ConfigError]]:
    try:
        return model.model_validate(plain(tree)), []
    except ValidationError as error:
        locations = Locations(tree)
        details = error.errors(include_url=False, include_context=False)
        return None, [_explain(detail, model, locations) for detail in details]


def checked(model: type[_Model], tree: Node) -> _Model:
    """The model of a tree; raises one ConfigError with a line for each problem."""
    value, problems = check(model, tree)
    raise_all(problems)
    assert value is not None  # noqa: S101 - there are problems otherwise
    return value


def raise_all(problems: Iterable[ConfigError]) -> None:
    """Raises one error with a line for each different problem, in the order of the file; returns if there are none."""
    distinct = {str(problem): problem for problem in problems}
    files = list(dict.fromkeys(problem.location.file for problem in distinct.values() if problem.location))

    def position(problem: ConfigError) -> tuple[int, int, int]:
        where = problem.location
        return (files.index(where.file), where.line or 0, where.column or 0) if where else (-1, 0, 0)

    if distinct:
        first, *others = sorted(distinct.values(), key=position)
        text = "\n".join([first.problem, *map(str, others)])
        raise ConfigError(text, location=first.location, field=first.field) from first.__cause__


def _explain(detail: ErrorDetails, model: type[BaseModel], locations: Locations) -> ConfigError:
    # pydantic adds "[key]" for a bad key, and the tags of unions, which are in angle brackets here
    *parts, last = detail["loc"] or ("",)
    kind, found = detail["type"], detail["input"]
    added = [*parts, *([] if kind == "extra_forbidden" else [last])]  # an unknown key is the user's, whatever it is
    path: FieldPath = tuple(part for part in added if not (isinstance(part, str) and _ADDED.fullmatch(part)))
    if kind == "extra_forbidden":
        key, path = str(last), (*path, last)
        return locations.error(f"unknown key {key!r}{did_you_mean(key, _known_keys(model, path[:-1]))}", path)
    problem = _MESSAGES.get(kind) or detail["msg"].removeprefix("Value error, ")
    if kind != "value_error" and (found is None or isinstance(found, str | int | float)):
        problem += f" (found {_format_scalar(found)})"
    return locations.error(problem, path)


def _format_scalar(found: str | float | None) -> str:
    """The scalar as YAML has it, cut short if it is long."""
    match found:
        case None:
            return "null"
        case bool():
            return str(found).lower()
        case str():
            return repr(found if len(found) <= _MAX_SHOWN else found[:_MAX_SHOWN] + "...")
    return str(found)


def _known_keys(model: type[BaseModel], path: FieldPath) -> tuple[str, ...]:
    """Keys that the mapping at `path` below `model` may have, by the JSON Schema; none if it may have any."""
    whole = zoo_schema()
    parts = list(_alternatives(whole["$defs"].get(model.__name__, whole), whole))
    for key in path:
        inner = [
            part.get("properties", {}).get(key) or part.get("additionalProperties") or part.get("items")
            for part in parts
        ]
        parts = [found for schema in inner if isinstance(schema, dict) for found in _alternatives(schema, whole)]
    return tuple(key for part in parts for key in part.get("properties", ()))


def _alternatives(schema: dict[str, Any], whole: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if "$ref" in schema:
        schema = whole["$defs"][schema["$ref"].rpartition("/")[2]]
    if union := schema.get("anyOf") or schema.get("oneOf"):
        for member in union:
            yield from _alternatives(member, whole)
    else:
        yield schema

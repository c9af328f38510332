"""From pydantic's findings to errors that name file, line, column and field."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from ..errors import ConfigError
from .fields import FieldPath
from .known_keys import known_keys
from .locations import Locations
from .nodes import Node, plain
from .suggestions import did_you_mean

_Model = TypeVar("_Model", bound=BaseModel)

_LONGEST_SHOWN = 40
_PLAIN_WORDS = {
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


def check(model: type[_Model], tree: Node) -> tuple[_Model | None, list[ConfigError]]:
    """Validates a tree against a model: the instance, or None and what is wrong with it."""
    try:
        return model.model_validate(plain(tree)), []
    except ValidationError as error:
        locations = Locations(tree)
        details = error.errors(include_url=False, include_context=False)
        return None, [_explain(detail, model, locations) for detail in details]


def raise_all(problems: Iterable[ConfigError]) -> None:
    """Raises one error with a line for each different problem, in the order of the file; returns if there are none."""
    distinct = {str(problem): problem for problem in problems}
    files = list(dict.fromkeys(problem.location.file for problem in distinct.values() if problem.location))

    def place(problem: ConfigError) -> tuple[int, int, int]:
        where = problem.location
        return (files.index(where.file), where.line or 0, where.column or 0) if where else (-1, 0, 0)

    if distinct:
        first, *others = sorted(distinct.values(), key=place)
        text = "\n".join([first.problem, *map(str, others)])
        raise ConfigError(text, location=first.location, field=first.field) from first.__cause__


def _explain(detail: ErrorDetails, model: type[BaseModel], locations: Locations) -> ConfigError:
    # pydantic adds "[key]" for a bad key, and the tags of our unions, which we write in angle brackets
    path: FieldPath = tuple(
        part for part in detail["loc"] if part != "[key]" and not (isinstance(part, str) and part.startswith("<"))
    )
    kind, found = detail["type"], detail["input"]
    if kind == "extra_forbidden":
        key = str(path[-1])
        return locations.error(f"unknown key {key!r}{did_you_mean(key, known_keys(model, path[:-1]))}", path)
    problem = _PLAIN_WORDS.get(kind) or detail["msg"].removeprefix("Value error, ")
    if kind != "value_error" and (found is None or isinstance(found, str | int | float)):
        problem += f" (found {_shown(found)})"
    return locations.error(problem, path)


def _shown(found: str | float | None) -> str:
    """A scalar as YAML has it, if it is not too long."""
    match found:
        case None:
            return "null"
        case bool():
            return str(found).lower()
        case str():
            return repr(found if len(found) <= _LONGEST_SHOWN else found[:_LONGEST_SHOWN] + "...")
    return str(found)

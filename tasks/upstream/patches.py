"""What patches of torch, torchao, transformers and ExecuTorch mend, and whether the installed releases take them."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import ContextDecorator, nullcontext
from dataclasses import dataclass
from functools import cache, wraps
from importlib.metadata import PackageNotFoundError, version
from types import CodeType, FunctionType
from typing import Any, ParamSpec, TypeVar, cast

from . import compat
from .compat import PATHS, find, is_missing

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Patch:
    """A change of upstream's code while models are lowered."""

    name: str  # of the function that makes it
    fault: str  # what happens without it
    replaces: tuple[str, ...]  # what it replaces: dotted names, or names of `compat`, with or without attributes
    releases: str  # of ExecuTorch, that it is for
    function: Callable[..., Any]

    def missing(self) -> tuple[str, ...]:
        """What it replaces or uses, and upstream lacks, as dotted names."""
        return _missing(self)


@cache
def holds(releases: str) -> bool:
    """Whether the installed release of ExecuTorch is one of those of a patch or a limit; empty for all."""
    if not releases:
        return True
    from packaging.specifiers import SpecifierSet  # noqa: PLC0415 - users' modules may have that name

    try:
        return version("executorch") in SpecifierSet(releases, prereleases=True)
    except PackageNotFoundError:
        return False


OFF = "PTEFORGE_UPSTREAM_OFF"  # environment variable: names, joined by commas, of what is not applied
LIBRARY = "PTEFORGE_VULKAN_LIBRARY"  # environment variable: a library that registers `VulkanBackend`, to run cases on
NOT_TRIED = "not tried: needs a Vulkan driver"


def is_off(name: str) -> bool:
    """Whether a patch or a limit is turned off."""
    return name in os.environ.get(OFF, "").split(",")


PATCHES: dict[str, Patch] = {}
"""Those of the modules that have been imported, by name."""


def mends(
    fault: str, *replaces: str, releases: str = ""
) -> Callable[[Callable[_Parameters, _Result]], Callable[_Parameters, _Result]]:
    """Makes a function a patch. Called where upstream lacks what it needs, it changes nothing.

    It returns nothing or a context manager, or changes a program in place.
    """

    def decorate(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
        patch = Patch(function.__name__.strip("_"), fault, replaces, releases, function)
        PATCHES[patch.name] = patch

        @wraps(function)
        def apply(*args: _Parameters.args, **options: _Parameters.kwargs) -> _Result:
            if not holds(patch.releases) or patch.missing() or is_off(patch.name):
                return cast("_Result", _Nothing())
            return function(*args, **options)

        return apply

    return decorate


class _Nothing(nullcontext[None], ContextDecorator):
    """A patch that is not applied, as a context manager and as a decorator."""


@cache
def _missing(patch: Patch) -> tuple[str, ...]:
    replaced = (path for path in patch.replaces if is_missing(find(path)))
    return tuple(dict.fromkeys((*replaced, *_mentioned(inspect.unwrap(patch.function), set()))))


def _mentioned(function: Any, seen: set[Any]) -> Iterator[str]:
    """Names that upstream lacks, and that a function or one of the same module that it calls mentions."""
    seen.add(function)
    for name in _names(function.__code__):
        value = getattr(compat, name) if name in PATHS else function.__globals__.get(name)
        if is_missing(value):
            yield value.path
        value = inspect.unwrap(value) if callable(value) and not is_missing(value) else value
        if isinstance(value, FunctionType) and value.__module__ == function.__module__ and value not in seen:
            yield from _mentioned(value, seen)


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)

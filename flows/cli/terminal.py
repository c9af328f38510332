"""Output of commands: consoles, tables, JSON, text that is safe for terminals, and silence from libraries."""

from __future__ import annotations

import functools
import json
import logging
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import StringIO
from typing import TYPE_CHECKING, Any, TextIO

import typer

from ...errors import printable

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment
    from rich.text import Text

_log = logging.getLogger(__name__)
_OF_A_PIPE = 160  # columns


def open_console(*, stderr: bool = False) -> Console:
    """Opens standard output or error for text without markup, made safe to print; a pipe is wide enough for tables."""
    from rich.console import Console

    _guard_rich()
    stream = _innermost(sys.stderr if stderr else sys.stdout)
    console = Console(file=stream, stderr=stderr, markup=False, emoji=False, highlight=False)
    if not console.is_terminal:
        console.width = _OF_A_PIPE
    return console


def open_page() -> Console:
    """Keeps what is printed, for ``export_html``."""
    from rich.console import Console

    return Console(record=True, file=StringIO(), width=_OF_A_PIPE, markup=False, emoji=False, highlight=False)


class SafeStream:
    """A text stream in which unprintable characters are escaped, except for line feeds and tabs.

    Rich, whose texts are escaped before, writes to the stream behind it: it has to control colours and the cursor.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        if name == "buffer":  # typer would write there where it dislikes the encoding
            raise AttributeError(name)
        return getattr(self._stream, name)

    @property
    def rich_proxied_file(self) -> TextIO:
        """The stream that Rich's consoles write to instead; the name is Rich's."""
        _guard_rich()
        return _innermost(self._stream)

    def write(self, text: str) -> int:
        self._stream.write(printable(text, keep="\n\t"))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)


def guard_streams() -> None:
    """Makes everything that Python code writes to standard output and error safe for terminals."""
    for name in ("stdout", "stderr"):
        if not isinstance(stream := getattr(sys, name), SafeStream):
            setattr(sys, name, SafeStream(stream))


@contextmanager
def guarded_streams() -> Iterator[None]:
    """Applies `guard_streams` while the context is open."""
    before = sys.stdout, sys.stderr
    guard_streams()
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def _innermost(stream: TextIO) -> TextIO:
    """The stream behind a `SafeStream`, and behind the one that Rich replaces it with for a live display."""
    while hasattr(stream, "rich_proxied_file"):
        stream = stream.rich_proxied_file
    return stream


@functools.cache
def _guard_rich() -> None:
    """Makes all consoles of Rich, also those of typer and Prefect, escape the texts that they render.

    Strings are escaped before they are measured, for tables; all other text when it is rendered.
    """
    from rich.console import Console
    from rich.segment import Segment

    render, render_str = Console.render, Console.render_str

    def render_safely(
        console: Console, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        for segment in render(console, renderable, options):
            text = segment.text if segment.control else printable(segment.text, keep="\n\t")
            yield segment if text is segment.text else Segment(text, segment.style)

    def render_safe_str(console: Console, text: str, **options: Any) -> Text:
        return render_str(console, printable(text, keep="\n\t"), **options)

    Console.render = render_safely  # type: ignore[assignment,method-assign]  # Rich has no hook for text
    Console.render_str = render_safe_str  # type: ignore[assignment,method-assign]  # as above


def styled(*parts: str | Text | tuple[str, str]) -> Text:
    """A text from parts, some of which are pairs of a text and its style."""
    from rich.text import Text

    return Text.assemble(*parts)


def print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2))


def verbose() -> bool:
    """Whether ``--verbose`` is given."""
    return _log.isEnabledFor(logging.INFO)

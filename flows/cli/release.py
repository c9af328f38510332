"""`pteforge diff`, `publish`, `release` and `reproduce`: versions of files, compared, released and made again."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from html import escape
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from ...artifacts.digest import is_digest
from ...artifacts.files import replace_file
from ...errors import InputError, convert_os_errors, printable
from ...tasks.results.tables import format_size
from ..reports.figures_text import markdown, markdown_table, open_table
from ..run.interrupt import leave_interrupted
from ..run.request import ExportRequest
from . import completion
from .options import AS_JSON, FOLDER, JOBS, STORE, argument, flag, open_existing_store, option, takes_request
from .terminal import open_console, open_page, print_json, styled

if TYPE_CHECKING:
    from rich.console import Console

    from ...configs.load import LoadedZoo
    from ...configs.zoo import PublishConfig
    from ..releases.difference import FileDifference
    from ..releases.releases import Releases
    from ..reports.comparison import Limit
    from ..reports.snapshot import Difference, Value


_SIDE = (
    "A .pte file, a folder that `export --out` wrote, the id of a run (or its beginning), or a release: URL#RELEASE, "
    "URL#CHANNEL, or URL for its channel latest."
)
_LIMITS = "Exit with 1 if B is worse than such limits: growth=2%,sqnr=1dB,score=0.5%,delegation."
_FAIL_ON = Annotated[str | None, option(_LIMITS, "LIMITS")]
_MARKDOWN = Annotated[bool, flag("--markdown", "Print Markdown to standard output.")]
_MAX_PER_AREA = 10
_SHORT_DIGEST = 8
_STYLES = {"added": "green", "removed": "bold red", "changed": "yellow"}


def diff(
    before: Annotated[str, argument(_SIDE, "A", complete=completion.begun_runs)],
    after: Annotated[str, argument("What to compare with it.", "B", complete=completion.begun_runs)],
    *,
    fail_on: _FAIL_ON = None,
    store: STORE = None,
    as_json: AS_JSON = False,
    markdown: _MARKDOWN = False,
) -> None:
    """Show what differs between two files, folders of results, runs or releases: contents, figures, toolchain."""
    from ..releases.difference import compare, find_side

    limits = _limits(fail_on, as_json=as_json, markdown=markdown)
    with ExitStack() as stack:
        opened = cache(lambda: stack.enter_context(open_existing_store(store)))
        files = list(compare(find_side(before, opened), find_side(after, opened), limits))
    _show(before, after, files, [sentence for file in files for sentence in file.regressions], as_json, markdown)


def _limits(text: str | None, *, as_json: bool, markdown: bool) -> Sequence[Limit]:
    from ..reports.comparison import parse_limits

    if as_json and markdown:
        raise InputError("--json and --markdown exclude each other; give one of them")
    return () if text is None else parse_limits(text)


def _show(
    before: str,
    after: str,
    files: Sequence[FileDifference],
    exceeded: Sequence[str],
    as_json: bool,
    markdown: bool,
    more: Mapping[str, Any] = MappingProxyType({}),
    *,
    lines: Sequence[str] = (),
) -> NoReturn:
    """Prints differences in one of three forms, and exits with 1 if limits are exceeded.

    JSON has `more`, and Markdown has `lines`.
    """
    if as_json:
        shown = [file.to_json() for file in files]
        models = {status: list(_models(files, status)) for status in ("added", "removed")}
        of_files = {"models": models, "files": shown, "regressions": list(exceeded)}
        print_json({"before": before, "after": after, **more, **of_files})
    elif markdown:
        typer.echo("\n".join(_markdown(before, after, files, lines)))
    else:
        print_differences(open_console(), files)
    for sentence in exceeded:
        sys.stderr.write(f"worse: {printable(sentence)}\n")
    raise typer.Exit(1 if exceeded else 0)


@takes_request("upgrade")
def upgrade(
    request: ExportRequest,
    *,
    to: Annotated[str, option("A toolchain of the zoo, or the Python of an environment with pteforge.", "NAME", False)],
    out: Annotated[Path, option("Folder for the files: DIR/now and DIR/next.", "DIR")] = Path("upgrade"),
    fail_on: _FAIL_ON = None,
    as_json: AS_JSON = False,
    markdown: _MARKDOWN = False,
) -> None:
    """Export a zoo with this toolchain and with another one, and show what an upgrade changes in every file.

    Exits with 1 if a file is not made any more, or is worse than the limits.
    """
    from ..reports.page import NAME
    from ..run.toolchains import Rehearsal

    limits = _limits(fail_on, as_json=as_json, markdown=markdown)
    with ExitStack() as stack:
        opened = cache(lambda: stack.enter_context(open_existing_store(request.store)))
        rehearsal = Rehearsal.of(request, to, out, opened, limits)
    sides, lines = (rehearsal.now.title, rehearsal.next.title), [printable(line) for line in rehearsal.lines()]
    page = open_page()
    worse = [f"worse: {printable(sentence)}" for sentence in rehearsal.problems]
    page.print(f"From {sides[0]}", f"to {sides[1]}", "", *worse, *lines, "", sep="\n")
    page.print(styled("all files: ", ("now", f"link now/{NAME}"), ", ", ("next", f"link next/{NAME}")), "")
    print_differences(page, rehearsal.files)
    with convert_os_errors(InputError, f"the page cannot be written to {out}"):
        html = page.export_html().replace("<head>", f"<head>\n<title>{escape(request.zoo.name)}: upgrade</title>", 1)
        replace_file(out / NAME, html.encode(), out)
    sys.stderr.write("".join(f"{line}\n" for line in (*lines, f"see {printable(str(out / NAME))}")))
    _show(*sides, rehearsal.files, rehearsal.problems, as_json, markdown, rehearsal.to_json(), lines=lines)


def print_differences(console: Console, files: Sequence[FileDifference]) -> None:
    """Prints a table for each file that differs, and how many files do."""
    for file in (file for file in files if file.is_shown):
        size = f", {_size(file)}" if file.status in {"added", "removed"} else ""
        status = (file.status, _STYLES.get(file.status, ""))
        console.print(styled((printable(file.name), "bold"), ": ", status, size), soft_wrap=True)
        for note in file.notes:
            console.print(f"  {printable(note)}", style="dim")
        if rows := list(_rows((*file.changes, *file.times))):
            table = open_table(("", ""))
            for side in ("before", "after"):
                table.add_column(side, justify="right", overflow="fold")
            table.add_column("", justify="right", no_wrap=True)
            for row in rows:
                table.add_row(*map(printable, row))
            console.print(table)
    for side in ("added", "removed"):
        for model in _models(files, side):
            line = styled("model ", (printable(model), "bold"), ": ", (side, _STYLES[side]))
            console.print(line, soft_wrap=True)
    console.print(_total(files))


def _markdown(before: str, after: str, files: Sequence[FileDifference], lines: Sequence[str]) -> Iterator[str]:
    yield f"# From {markdown(before)} to {markdown(after)}\n\n{_total(files)}\n"
    yield from (f"- {markdown(line)}" for line in lines)
    for status in ("added", "removed"):
        yield from (f"\nModel {markdown(model)}: {status}" for model in _models(files, status))
    if exceeded := [sentence for file in files for sentence in file.regressions]:
        yield "\n## Worse than allowed\n"
        yield from (f"- {markdown(sentence)}" for sentence in exceeded)
    for file in (file for file in files if file.is_shown):
        yield f"\n## {markdown(file.name)}: {file.status}"
        if file.status in {"added", "removed"}:
            yield f"\n{_size(file)}"
        yield from (f"\n{markdown(note)}" for note in file.notes)
        if rows := [map(markdown, row) for row in _rows((*file.changes, *file.times))]:
            yield ""
            yield from markdown_table(("", "", "before", "after", "change"), rows, numbers=3)


def _total(files: Sequence[FileDifference]) -> str:
    counts = Counter[str](file.status for file in files)
    if set(counts) == {"equal"}:
        return "no differences"
    statuses = [status for status in ("changed", "added", "removed", "equal") if counts[status]]
    return "files: " + ", ".join(f"{counts[status]} {status}" for status in statuses)


def _models(files: Sequence[FileDifference], status: str) -> Iterator[str]:
    """Models whose files are all on one side."""
    statuses_of: defaultdict[str, set[str]] = defaultdict(set)
    for file in files:
        statuses_of[file.name.rpartition("/")[0]].add(file.status)
    return (name for name, statuses in statuses_of.items() if name and statuses == {status})


def _size(file: FileDifference) -> str:
    """The size of a file that is on one side only."""
    result = file.after or file.before
    return format_size(result.size) if result else ""


def _rows(changes: Sequence[Difference]) -> Iterator[tuple[str, str, str, str, str]]:
    """Area (in its first row only), name, before, after, and change in percent."""
    by_area: defaultdict[str, list[Difference]] = defaultdict(list)
    for change in changes:
        by_area[change.area].append(change)
    for area, of_area in by_area.items():
        for index, change in enumerate(of_area[:_MAX_PER_AREA]):
            yield "" if index else area, change.name, *_format(change), _percent(change)
        if more := len(of_area[_MAX_PER_AREA:]):
            yield "", f"and {more} more (--json shows all)", "", "", ""


def _format(change: Difference) -> tuple[str, str]:
    """Short texts; longer digests and all decimals where the values would look alike."""
    before, after = _text(change.before, exact=False), _text(change.after, exact=False)
    if before != after:
        return before, after
    return _text(change.before, exact=True), _text(change.after, exact=True)


def _text(value: Value | None, *, exact: bool) -> str:
    from ..reports.snapshot import Content, Size

    match value:
        case None:
            return "-"
        case Content(_, sha256, _):
            several = "" if value.count == 1 else f"{value.count}: "
            return several + format_size(value.size) + (f" {sha256[:_SHORT_DIGEST]}" if exact else "")
        case Size(size):
            return f"{size} B" if exact else format_size(size)
        case float() if not exact:
            return f"{value:.4g}"
        case str() if is_digest(value) and not exact:
            return value[:_SHORT_DIGEST]
    return str(value)


def _percent(change: Difference) -> str:
    """Relative change of a size, a count or a time."""
    from ..reports.snapshot import Content, Size

    match change.before, change.after:
        case Content(before, _, _) | Size(before) | int(before), Content(after, _, _) | Size(after) | int(after):
            return _by_percent(before, after)
        case float(before), float(after) if change.area == "times":
            return _by_percent(before, after)
    return ""


def _by_percent(before: float, after: float) -> str:
    return f"{100 * (after / before - 1):+.1f} %" if before and before != after else ""


_CHANNEL = Annotated[str, option("The channel.", "NAME", complete=completion.channels)]
_VERIFY = Annotated[Path | None, option("Public key: the release must be signed by its owner.", "KEY", "not checked")]
_URL = Annotated[str, argument("Folder or URL of the releases.", "URL")]

app = typer.Typer(help="List releases, move channels, and fetch files.", no_args_is_help=True)


def publish(  # noqa: PLR0913 - one parameter per option
    results: Annotated[list[Path], argument("Folders of results, or zoo files.", "OUT_OR_ZOO...")],
    *,
    to: Annotated[str | None, option("Folder or URL of the releases.", "URL", "as the zoo says")] = None,
    channel: Annotated[str | None, option("The channel to move.", "NAME", "latest")] = None,
    keep: Annotated[
        int | None, typer.Option(min=1, help="Releases to keep, besides those of channels.", show_default="30")
    ] = None,
    gate: Annotated[
        str | None,
        option(
            "How much worse than the present release a file may be, such as growth=2%,sqnr=1dB,delegation.",
            "GATES",
            "none",
        ),
    ] = None,
    sign: Annotated[Path | None, option("Private key to sign with.", "KEY", "not signed")] = None,
    out: FOLDER = Path("out"),
    store: STORE = None,
    as_json: AS_JSON = False,
) -> None:
    """Release verified files: a channel moves to them if they pass its gates; exits with 1 if they do not."""
    from ...configs.load import load_zoo
    from ..releases.contents import find_results, find_results_of, merge_results, read_contents
    from ..releases.publish import Publication
    from ..run.select import select_models
    from .progress import print_published

    zoos = {path: load_zoo(path) for path in results if not path.is_dir()}
    options = {"url": to, "channel": channel, "keep": keep, "gates": gate, "sign": sign}
    publication = Publication.of(_settings(list(zoos.values()), options))
    results_of = merge_results(
        [find_results_of(select_models(zoos[path]), out) if path in zoos else find_results(path) for path in results]
    )
    name = next(iter(zoos.values())).zoo.name if zoos else results[0].absolute().name
    with open_existing_store(store) as opened:
        contents = read_contents(name, results_of, opened.runs)
    published = publication.publish(contents)
    if as_json:
        print_json(published.to_json())
    else:
        print_published(published)
    raise typer.Exit(1 if published.regressions else 0)


def _settings(zoos: Sequence[LoadedZoo], options: Mapping[str, Any]) -> PublishConfig:
    """The `publish` of the zoos, with those options that are not None in place of its fields."""
    from ...configs.zoo import PublishConfig
    from ..releases.releases import check_channel

    written = {loaded.zoo.publish for loaded in zoos if loaded.zoo.publish}
    if len(written) > 1:
        raise InputError("these zoos are published in different ways; publish them one by one")
    fields: dict[str, Any] = next(iter(written)).model_dump() if written else {}
    fields |= {name: value for name, value in options.items() if value is not None}
    if "url" not in fields:
        raise InputError("say where to publish: --to URL, or `publish: {url: ...}` in the zoo file")
    check_channel(fields.get("channel", "latest"))
    return PublishConfig.model_validate(fields)


@app.command("list")
def list_releases(url: _URL, *, as_json: AS_JSON = False) -> None:
    """Show all releases, the newest first, and the channels that name them."""
    from ..releases.records import digest_files

    releases = _open(url)
    channels, signed = releases.channels(), set(releases.signed())
    manifests = {name: releases.manifest(name) for name in reversed(releases.names())}
    withdrawn = {
        name: [label for label, of in channels.items() if of.withdrew(name, digest_files(manifest.models))]
        for name, manifest in manifests.items()
    }
    if as_json:
        listed = [
            {
                "release": name,
                "zoo": manifest.zoo,
                "published": manifest.published,
                "run": dict(manifest.run),
                "files": [file for file, _ in manifest.files],
                "size": manifest.size,
                "signed": name in signed,
                "withdrawn": withdrawn[name],
            }
            for name, manifest in manifests.items()
        ]
        print_json({"channels": {name: channel.to_json() for name, channel in channels.items()}, "releases": listed})
        return
    table = open_table(("release", "zoo", "commit", "channels", "signed"), ("files", "size"))
    for name, manifest in manifests.items():
        commit, dirty, _ = manifest.run.get("commit", "").partition("-dirty")
        labels = [label for label, channel in channels.items() if channel.release == name]
        labels += [f"rolled back from {label}" for label in withdrawn[name]]
        cells = [name, manifest.zoo, commit[:12] + dirty, ", ".join(labels), "yes" if name in signed else ""]
        table.add_row(*cells, str(sum(1 for _ in manifest.files)), format_size(manifest.size))
    open_console().print(table)


@app.command()
def promote(
    url: _URL,
    release: Annotated[str, argument("Name, part of a name, or a channel.", "RELEASE", complete=completion.releases)],
    *,
    channel: _CHANNEL = "stable",
) -> None:
    """Make a channel name a release, without any gate."""
    typer.echo(f"{channel} is {_open(url).promote(release, channel).release}")


@app.command()
def rollback(url: _URL, *, channel: _CHANNEL = "latest") -> None:
    """Make a channel name the release that it named before; exports will not move it to the present one again."""
    releases = _open(url)
    before = releases.channel(channel)
    typer.echo(f"{channel} is {releases.roll_back(channel).release}")
    if before:
        typer.echo(
            f"only a command moves {channel} to {before.release} again: "
            f"pteforge release promote {url} {before.release} --channel {channel}",
            err=True,
        )


@app.command()
def fetch(
    url: _URL,
    name: Annotated[str, argument("A file, or a glob such as 'resnet*/*'.", "MODEL/RECIPE")],
    *,
    channel: _CHANNEL = "latest",
    release: Annotated[
        str | None,
        option("A release instead of a channel's.", "RELEASE", "the channel's", complete=completion.releases),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="DIR", help="Folder for the files: DIR/MODEL/RECIPE.pte.")
    ] = Path("out"),
    verify: _VERIFY = None,
) -> None:
    """Download files of a release; each is compared with its SHA-256."""
    releases = _open(url)
    for path in releases.fetch(releases.find(release or channel), name, out, public_key=verify):
        typer.echo(str(path))


def _open(url: str) -> Releases:
    from ..releases.releases import open_releases

    return open_releases(url)


def reproduce_file(
    manifest: Annotated[
        str, argument("URL#RELEASE, URL#CHANNEL, URL for its channel latest, or the address of a manifest.", "RELEASE")
    ],
    name: Annotated[str, argument("The file.", "MODEL/RECIPE")],
    *,
    source: Annotated[
        Path,
        option(
            "A folder in the checkout of the repository that the zoo was in; without git, the zoo's folder.",
            "DIR",
            "the current folder",
        ),
    ] = Path(),
    verify: _VERIFY = None,
    jobs: JOBS = None,
    as_json: AS_JSON = False,
) -> None:
    """Make a file of a release again from what its manifest records, and compare; exits with 1 if it is not the same.

    Nothing is taken from your store. Versions and a git commit that differ are reported before any work.
    """
    from ..releases.releases import open_release
    from ..run.reproduction import reproduce
    from .progress import observe

    releases, release = open_release(manifest)
    try:
        reproduction = reproduce(
            releases,
            release,
            name,
            source=source,
            observe=lambda session: observe(session, quiet=as_json),
            jobs=jobs,
            public_key=verify,
        )
    except KeyboardInterrupt:
        leave_interrupted()
    if as_json:
        print_json(reproduction.to_json())
    elif reproduction.difference is None:
        typer.echo(f"reproduced {reproduction.name} of {reproduction.release}: SHA-256 {reproduction.sha256}")
    else:
        console = open_console()
        print_differences(console, [reproduction.difference])
        for note in reproduction.notes:
            console.print(printable(note), soft_wrap=True)
        title = f"{reproduction.name} of {reproduction.release}"
        console.print(f"{title} is not reproduced", style="bold red", soft_wrap=True)
    raise typer.Exit(1 if reproduction.difference else 0)

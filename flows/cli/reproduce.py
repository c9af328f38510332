"""`pteforge reproduce`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ...errors import printable
from ..interrupt import leave_interrupted
from .diff import print_differences
from .options import AS_JSON, JOBS
from .release import VERIFY
from .terminal import open_console, print_json


def reproduce_file(
    manifest: Annotated[
        str,
        typer.Argument(
            metavar="RELEASE",
            help="URL#RELEASE, URL#CHANNEL, URL for its channel latest, or the address of a manifest.",
            show_default=False,
        ),
    ],
    name: Annotated[str, typer.Argument(metavar="MODEL/RECIPE", help="The file.", show_default=False)],
    *,
    source: Annotated[
        Path,
        typer.Option(
            metavar="DIR",
            help="A folder in the checkout of the repository that the zoo was in; without git, the zoo's folder.",
            show_default="the current folder",
        ),
    ] = Path(),
    verify: VERIFY = None,
    jobs: JOBS = None,
    as_json: AS_JSON = False,
) -> None:
    """Make a file of a release again from what its manifest records, and compare; exits with 1 if it is not the same.

    Nothing is taken from your store. Versions and a git commit that differ are reported before any work.
    """
    from rich.text import Text

    from ..releases import open_release
    from ..reproduction import reproduce
    from .progress import observe

    releases, release = open_release(manifest)
    try:
        found = reproduce(
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
        print_json(found.to_json())
    elif found.difference is None:
        typer.echo(f"reproduced {found.name} of {found.release}: SHA-256 {found.sha256}")
    else:
        console = open_console()
        print_differences(console, [found.difference])
        for note in found.notes:
            console.print(Text(printable(note)), soft_wrap=True)
        console.print(Text(f"{found.name} of {found.release} is not reproduced", "bold red"), soft_wrap=True)
    raise typer.Exit(1 if found.difference else 0)

"""Exports with nothing cached in two ways, in turn: wall and CPU time, and equality of the files.

    python benchmarks/pairs.py [ZOO] [--models N]      # this machine's processes, and a Dask cluster
    python benchmarks/pairs.py --pool [ZOO] [--models N]               # this machine's, and two workers of a work pool
    python benchmarks/pairs.py ZOO --base REVISION [--other REVISION]    # two revisions of pteforge

`benchmarks/README.md` explains the figures.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median

import psutil
from measuring import HERE, SCRIPTS, Seconds, arguments_of, exporting, files_in, prepared_folder, read_libraries, run
from networks import write_generated

POOL = ("--on", "pool", "--set", "run.pool=pairs")
PROGRAM = "import sys; from pteforge.flows.cli import main; sys.argv[0] = 'pteforge'; main()"


@dataclass(frozen=True)
class Side:
    """One way to export: further options, and the checkout of a revision, where it is not what is installed."""

    name: str
    options: tuple[str, ...] = ()
    checkout: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    others: tuple[int, ...] = ()  # processes that run already, and do a part of the work

    def export(self, zoo: Path, folder: Path, environment: Mapping[str, str]) -> Seconds:
        """One run with a store, a cache and an output folder of its own."""
        folder.mkdir(parents=True)
        command = exporting(zoo, folder, *self.options)
        if self.checkout:
            command = [sys.executable, "-c", PROGRAM, *command[1:]]
        environment = {**environment, **self.environment, "PTEFORGE_CACHE": str(folder / "cache")}
        before = sum(map(cpu_seconds, self.others))
        seconds = run(command, environment, folder / "log", self.checkout)
        return replace(seconds, cpu=seconds.cpu + sum(map(cpu_seconds, self.others)) - before)


def cpu_seconds(process: int) -> float:
    """CPU time so far of a process, and of its children that have ended."""
    return sum(psutil.Process(process).cpu_times()[:4])


@contextmanager
def revision(name: str, of: str, folder: Path) -> Iterator[Side]:
    """A revision's tree as the package `pteforge` in a folder, for as long as the context is open."""
    tree = folder / name / "pteforge"
    git("worktree", "add", "--detach", str(tree), of)
    try:
        home = {"PYTHONPATH": str(tree.parent), "PREFECT_HOME": str(tree.parent / "prefect")}
        yield Side(name, checkout=tree, environment=home)
    finally:
        git("worktree", "remove", "--force", str(tree))


@contextmanager
def work_pool(zoo: Path, folder: Path, environment: Mapping[str, str]) -> Iterator[Side]:
    """A work pool of a Prefect server of its own, with two workers on this machine, as long as the context is open."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}/api"
    environment = {**environment, "PREFECT_API_URL": url, "PREFECT_CLI_PROMPT": "false"}
    with ExitStack() as stack:

        def start(name: str, *command: str) -> int:
            log = stack.enter_context((folder / f"{name}.log").open("wb"))
            process = subprocess.Popen([SCRIPTS / "prefect", *command], env=environment, stdout=log, stderr=log)
            stack.callback(process.wait)
            stack.callback(process.terminate)
            return process.pid

        # as in docker/compose.yaml
        recorder = "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER"
        environment |= {f"{recorder}_BATCH_SIZE": "100", f"{recorder}_READ_BATCH_SIZE": "100"}
        server = start("server", "server", "start", "--host", "127.0.0.1", "--port", str(port))
        while not answers(f"{url}/ready"):
            time.sleep(0.2)
        run([SCRIPTS / "prefect", "work-pool", "create", "pairs", "--type", "process"], environment, folder / "log")
        run([SCRIPTS / "pteforge", "deploy", zoo, "--pool", "pairs", *POOL], environment, folder / "log")
        workers = [start(name, "worker", "start", "--pool", "pairs", "--name", name) for name in ("one", "two")]
        yield Side("pool", POOL, environment={"PREFECT_API_URL": url}, others=(server, *workers))


def answers(url: str) -> bool:
    """Whether a server answers."""
    with suppress(OSError), urllib.request.urlopen(url, timeout=5):  # noqa: S310 - our own address
        return True
    return False


def git(*arguments: str) -> None:
    """Runs git in this repository."""
    subprocess.run(["git", *arguments], cwd=HERE.parent, check=True, capture_output=True)


def measure(
    sides: tuple[Side, Side], zoo: Path, folder: Path, environment: Mapping[str, str], count: int
) -> Iterator[dict[str, Seconds]]:
    """So many pairs of runs, whose sides take turns in going first; exits where a pair did not make equal files."""
    for number in range(count):
        pair = folder / str(number)
        order = sides if number % 2 == 0 else sides[::-1]
        seconds = {side.name: side.export(zoo, pair / side.name, environment) for side in order}
        first, second = (files_in(pair / side.name / "out") for side in sides)
        if not first or first != second:
            sys.exit(f"the files differ: {sides[0].name} made {sorted(map(str, first))}, {sides[1].name} others")
        shutil.rmtree(pair)
        yield seconds


def main() -> None:
    """Measures and prints."""
    parser = arguments_of(__doc__, repeat="pairs of runs")
    parser.add_argument("zoo", nargs="?", type=Path, help="a zoo file; by default, models are generated")
    parser.add_argument("--models", type=int, default=20, metavar="N", help="how many are generated (%(default)s)")
    parser.add_argument("--pool", action="store_true", help="compare with a work pool of two workers")
    parser.add_argument("--base", metavar="REVISION", help="compare revisions: this one")
    parser.add_argument("--other", metavar="REVISION", default="HEAD", help="and this one (%(default)s)")
    arguments = parser.parse_args()
    with prepared_folder() as (folder, environment), ExitStack() as stack:
        zoo = arguments.zoo.resolve() if arguments.zoo else write_generated(folder / "zoo", arguments.models)
        sides = Side("local"), Side("dask", ("--on", "dask", "--set", "run.workers=2"))
        if arguments.base:
            named = {"base": arguments.base, "other": arguments.other}
            sides = tuple(stack.enter_context(revision(name, of, folder)) for name, of in named.items())
            for side in sides:  # compiles Python, makes Prefect's database
                side.export(zoo, folder / "first" / side.name, environment)
        elif arguments.pool:
            read_libraries(environment, folder, "prefect")
            sides = sides[0], stack.enter_context(work_pool(zoo, folder, environment))
        else:
            read_libraries(environment, folder, "distributed", "prefect_dask")
        pairs = []
        for seconds in measure(sides, zoo, folder, environment, arguments.repeat):
            pairs.append(seconds)
            if not arguments.json:
                times = (f"{name} {each.wall:.1f} s, CPU {each.cpu:.1f} s;" for name, each in seconds.items())
                print(*times, flush=True)
    one, two = (side.name for side in sides)
    ratios = {
        figure: median(getattr(pair[two], figure) / getattr(pair[one], figure) for pair in pairs)
        for figure in ("wall", "cpu")
    }
    if arguments.json:
        runs = [{side: asdict(seconds) for side, seconds in pair.items()} for pair in pairs]
        print(json.dumps({"runs": runs, f"{two}_to_{one}": ratios["wall"]}, indent=2))
    else:
        print(f"{two} to {one}, medians of {len(pairs)} pairs: wall {ratios['wall']:.2f}, CPU {ratios['cpu']:.2f}")


if __name__ == "__main__":
    main()

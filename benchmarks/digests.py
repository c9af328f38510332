"""The share of CPU time that a run with nothing cached takes to digest what its stages read; see README.md."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from measuring import arguments_of, exporting, prepared_folder, run
from peer import ZOOS

LIMIT = 0.02
"""Share of the CPU time that digests may take in the starter zoo. Larger weights take more."""

# Every Python process of the command imports this as it starts. Workers are killed, so each call is written at once.
_HOOK = """
import os, time
from pteforge.artifacts.local_store import ObjectFolder

log = os.open(os.environ["DIGESTS_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

def timed(function):
    def call(self, blob):
        start = time.thread_time_ns()
        try:
            return function(self, blob)
        finally:
            os.write(log, b"%d %d\\n" % (time.thread_time_ns() - start, blob.size))
    return call

ObjectFolder.path, ObjectFolder.read = timed(ObjectFolder.path), timed(ObjectFolder.read)
"""


@dataclass(frozen=True)
class Digests:
    """One run."""

    total: float  # CPU seconds of all its processes
    digesting: float  # those of reading objects and digesting them
    objects: int  # how many were read, with repetitions
    size: int  # bytes of these

    @property
    def share(self) -> float:
        """Of the CPU time."""
        return self.digesting / self.total


def measure(zoo: str, folder: Path, environment: dict[str, str]) -> Digests:
    """Lowers a zoo from nothing, in a new folder."""
    hooks, log = folder / "hooks", folder / "digests"
    hooks.mkdir(parents=True)
    (hooks / "sitecustomize.py").write_text(_HOOK, encoding="utf-8")
    paths = [str(hooks), *filter(None, [environment.get("PYTHONPATH")])]
    environment = environment | {
        "PTEFORGE_CACHE": str(folder / "cache"),
        "PYTHONPATH": os.pathsep.join(paths),
        "DIGESTS_LOG": str(log),
    }
    seconds = run(exporting(ZOOS[zoo].file, folder), environment, folder / "log")
    calls = [tuple(map(int, line.split())) for line in log.read_text(encoding="utf-8").splitlines()]
    times, sizes = zip(*calls, strict=True)
    return Digests(seconds.cpu, sum(times) / 1e9, len(calls), sum(sizes))


def main() -> int:
    """Measures and prints; 1 if digests take more than they may."""
    parser = arguments_of(__doc__, repeat="runs; the median counts")
    parser.add_argument("--zoo", choices=list(ZOOS), default="starter", help="which one (%(default)s)")
    arguments = parser.parse_args()
    with prepared_folder() as (folder, environment):
        runs = [measure(arguments.zoo, folder / str(number), environment) for number in range(arguments.repeat)]
    middle = sorted(runs, key=lambda each: each.share)[len(runs) // 2]
    if arguments.json:
        print(json.dumps({"runs": [asdict(each) for each in runs], "share": middle.share}, indent=2))
    else:
        print(f"{arguments.zoo} zoo, nothing cached, median of {len(runs)} runs")
        print(f"{'CPU seconds':<28}{middle.total:>10.1f}")
        print(f"{'of these, digests':<28}{middle.digesting:>10.2f}{middle.share:>10.2%}")
        print(f"{'objects read':<28}{middle.objects:>10,}")
        print(f"{'MB read':<28}{middle.size / 1e6:>10,.0f}")
    return 1 if arguments.zoo == "starter" and middle.share > LIMIT else 0


if __name__ == "__main__":
    sys.exit(main())

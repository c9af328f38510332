"""Hundreds of models through one process: descriptors, threads, memory and temporary files stay what they were.

`python -m pteforge.tests.faults.leaks` draws the picture in docs/internals/reliability.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn
from unittest import mock

import psutil
from pteforge.tasks.engine.keys.code import StageKey
from pteforge.tasks.engine.runner import Done, Observer, StageCall
from pteforge.tasks.engine.workers import Workers
from pteforge.tests.conftest import isolate
from pteforge.tests.faults.campaign import Campaign, trying
from pteforge.tests.flows.conftest import PTEFORGE, ZOO, Project

MODELS = 50  # of one trial
_WARM_UP = 20  # models
_WIDTHS = range(4, 4000)  # of the models' hidden layer, so that no two of a process are alike
_GROWTH = 20_000_000  # bytes that one trial may add; docs/internals/reliability.md has what it adds
_MORE = 8  # descriptors, threads or files: stages that run at the same time vary
_STAGES = 6  # of one model
_REPLAY = 0.1  # seconds that a stage takes that is not run
_EXPORT, _REPLAYED = "pteforge.export", "main process of pteforge export, stages replayed"
_KINDS = {_EXPORT: 2, _REPLAYED: 2, "main process of pteforge export": 1}
"""How often each is tried, relative to the others."""


@dataclass(frozen=True)
class Held:
    """What a process holds.

    Attributes:
        memory: resident, in bytes.
        temporary: files and folders in its folder for temporary files.
    """

    descriptors: int
    threads: int
    memory: int
    temporary: int

    @classmethod
    def by(cls, pid: int, temporary: Path) -> Held:
        process = psutil.Process(pid)
        return cls(process.num_fds(), process.num_threads(), process.memory_info().rss, len(list(temporary.iterdir())))

    def check(self, before: Held) -> None:
        """Fails if it is more than before."""
        for name in ("descriptors", "threads", "temporary"):
            assert getattr(self, name) <= getattr(before, name) + _MORE, (name, before, self)
        assert self.memory - before.memory <= _GROWTH, (before, self)


class Exporter:
    """A process that calls `pteforge.export` for one model after the other."""

    def __init__(self, folder: Path) -> None:
        self._temporary, self._log = folder / "tmp", folder / "log"
        self._temporary.mkdir(parents=True)
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", "from pteforge.tests.faults.leaks import serve; serve()"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=os.environ | {"TMPDIR": str(self._temporary)},
            )

    def export(self, widths: Sequence[int], store: Path) -> Iterator[Held]:
        """Lowers models into a store; yields what the process holds after each."""
        for width in widths:
            assert self._process.stdin
            assert self._process.stdout
            self._process.stdin.write(json.dumps([width, str(store)]) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
            assert answer == f"{_STAGES}\n", f"{width}: {answer or self._log.read_text(encoding='utf-8')}"
            yield Held.by(self._process.pid, self._temporary)

    def close(self) -> None:
        self._process.communicate()


def serve() -> None:
    """Lowers the models that standard input asks for; prints how many stages ran for each."""
    sys.path.insert(0, str(ZOO))
    import nets  # type: ignore[import-not-found] # by the line above
    import pteforge

    out, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        width, store = json.loads(line)
        model, inputs = nets.linear(width)
        exported = pteforge.export(model.eval(), inputs, recipe="portable-fp32", store=store)
        out.write(f"{sum(stage.status == 'ran' for stage in exported.stages)}\n")
        out.flush()


def run_zoo(folder: Path, widths: Sequence[int], *, replayed: bool) -> Iterator[Held]:
    """Lowers a zoo of models with the command line; yields what its main process holds after each.

    Where stages are replayed, only those of the first model run, see `replay`.
    """
    folder.mkdir(parents=True)
    temporary, project = folder / "tmp", Project(folder)
    temporary.mkdir()
    models = {f"model{width}": {"source": {"builder": "nets:linear", "kwargs": {"width": width}}} for width in widths}
    project.write("nets.py", (ZOO / "nets.py").read_text(encoding="utf-8"))
    project.write_zoo(models, ("portable-fp32",))
    command = [str(PTEFORGE)]
    if replayed:
        done = project.export("--model", f"model{widths[0]}")
        assert done.code == 0, done.err
        command = [sys.executable, "-c", f"from pteforge.tests.faults.leaks import replay; replay('model{widths[0]}')"]
    environment = project.environment({"TMPDIR": str(temporary)})
    with subprocess.Popen(
        [*command, "export", "zoo.yaml"],
        cwd=folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr
        for line in process.stderr:
            if ": verified (" in line:
                with contextlib.suppress(psutil.NoSuchProcess):
                    yield Held.by(process.pid, temporary)
        assert process.wait() == 0
    assert not [path for path in temporary.iterdir() if not path.name.startswith("torchinductor_")]


def replay(first: str) -> NoReturn:
    """The command line, in whose runs each stage of a model has the result that the store has of the first model's.

    All else is done: keys, records, tasks of Prefect, files. So thousands of stages take minutes.
    """
    from pteforge.artifacts.store import open_store
    from pteforge.tasks.engine.executor import Executor
    from pteforge.tests.command import run_command

    with open_store(os.environ["PTEFORGE_STORE"]) as store:
        found = {record.slot: store.ledger.lookup(record.key) for record in store.ledger.slots()}
    key_of = Executor.key

    def key(self: Executor, call: StageCall) -> StageKey:
        """With the model: the inputs of all are the same."""
        own = key_of(self, call)
        return own if call.model == first else replace(own, params={**own.params, "model": call.model})

    def run(self: Executor, call: StageCall, observer: Observer, _progressed: object = None) -> Done:
        observer.started(call)
        time.sleep(_REPLAY)  # or Prefect's server could not follow
        record = found[call.id.slot(first)]
        assert record
        done = self._commit(call, self.key(call), record.outputs, _REPLAY)
        observer.finished(done)
        return done

    with mock.patch.multiple(Executor, key=key, run=run), mock.patch.object(Workers, "start"):
        code = run_command()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # as `pteforge` itself does


def trial(exporter: Exporter, rng: random.Random, folder: Path) -> str:
    """So many more models through one process, which holds no more after the last than after the first of them."""
    kind, start = rng.choices([*_KINDS], [*_KINDS.values()])[0], rng.choice(_WIDTHS)
    count = MODELS if kind == _EXPORT else MODELS + _WARM_UP
    widths = range(start, start + count)
    with trying(kind):
        if kind == _EXPORT:
            held = list(exporter.export(widths, folder / "store"))
        else:
            held = list(run_zoo(folder / "zoo", widths, replayed=kind == _REPLAYED))
        assert len(held) >= count - 2  # the main process may end while the last line is read
        first, last = held[-MODELS:][:10], held[-10:]
        usual(last).check(usual(first))
    return f"{MODELS} models, {kind}"


def usual(held: Sequence[Held]) -> Held:
    """The median of each."""
    return Held(*(statistics.median_low(getattr(one, name) for one in held) for name in Held.__annotations__))


def prepare(folder: Path) -> Exporter:
    """Starts the process that all trials with `pteforge.export` share, and warms it up."""
    exporter = Exporter(folder / "exporter")
    assert len(list(exporter.export(range(4, 4 + _WARM_UP), folder / "store"))) == _WARM_UP
    return exporter


LEAKS = Campaign("Leaks", prepare, trial, 20)


def main() -> None:
    """Lowers models in both ways, and draws what the process holds after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=500, help="%(default)s")
    parser.add_argument("--plot", type=Path, required=True, metavar="FILE", help="a .png or .svg")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pteforge-leaks-", ignore_cleanup_errors=True) as room:
        isolate(Path(room))
        widths = range(4, 4 + arguments.models)
        exporter = Exporter(Path(room, "exporter"))
        with ThreadPoolExecutor() as threads:
            ways = {
                "pteforge.export": threads.submit(list, exporter.export(widths, Path(room, "store"))),
                "pteforge export, main process": threads.submit(
                    list, run_zoo(Path(room, "zoo"), widths, replayed=True)
                ),
            }
        exporter.close()
        curves = {name: way.result() for name, way in ways.items()}
    for name, held in curves.items():
        sys.stdout.write(f"{name}: after {MODELS} models {held[MODELS - 1]}, after {len(held)} {held[-1]}\n")
    draw(curves, arguments.plot)


def draw(curves: dict[str, list[Held]], file: Path) -> None:
    """One panel for each thing that a process holds, over the number of models."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5), layout="constrained")
    panels = {"memory": "resident memory (MB)", "descriptors": "descriptors", "threads": "threads"}
    for axes, (name, title) in zip(
        figure.subplots(2, 2).flat, {**panels, "temporary": "temporary files"}.items(), strict=True
    ):
        for label, held in curves.items():
            values = [getattr(one, name) / (1e6 if name == "memory" else 1) for one in held]
            axes.plot(range(1, len(values) + 1), values, label=label, linewidth=1)
        axes.set_title(title, fontsize="medium")
        axes.set_xlabel("models")
        axes.set_ylim(bottom=0)
    figure.axes[0].legend(frameon=False, fontsize="small")
    figure.savefig(file, dpi=110)


if __name__ == "__main__":
    main()

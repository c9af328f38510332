"""Memory of every stage that lowers a large language model, the disk that it takes, and the seconds.

    python benchmarks/memory.py --model llama-8b-bf16 --scratch /data/llama --keep --log progress.log

`benchmarks/README.md` explains the figures. With `--scratch` and `--keep`, a run continues where the last one stopped.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Event, Lock, Thread
from typing import IO, Any

import measuring
import psutil
from breadth import write_section
from checkpoints import CHECKPOINTS, TEXT, size_of_tensor, write_checkpoint
from networks import LLAMAS
from pteforge.formats.nfat.container import is_fat, open_fat
from pteforge.formats.pte.reader import open_pte
from pteforge.tasks.engine.workers.memory import own_memory

PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "memory.md"
MIB, GIB = 1 << 20, 1 << 30
FAT = {"output": {"form": "fat"}, "specializations": [{"target": "xnnpack"}, {"target": "portable"}]}
SMALL = ("edge", "partition")
"""Stages that read no weights."""
LOADING = ("verify", "evaluate", "ladder")
"""Stages that load the file: what XNNPACK packs then is in memory, as on the device."""
PACKED = """
import os, sys
import executorch.extension.llm.custom_ops.custom_ops, executorch.kernels.quantized
from executorch.runtime import Runtime
from pteforge.tasks.engine.workers.memory import own_memory

before, program = own_memory(os.getpid()), Runtime.get().load_program(sys.argv[1])
methods = [program.load_method(name) for name in sorted(program.method_names)]
print(own_memory(os.getpid()) - before)
"""
DRIVER = 300e6  # bytes for the command's own process
STAGE_LIMIT = 6 * 3600  # seconds for a stage
MAX_DROP = 1e5  # of perplexity: with random weights, it is about the number of tokens
EVERY, DISK_EVERY, LOG_EVERY = 0.2, 2.0, 30.0  # seconds


@dataclass(frozen=True)
class Model:
    """A model: its entry in a zoo, and the bytes that bounds are about."""

    fields: Mapping[str, Any]
    weights: int
    largest: int  # bytes of its largest tensor; 0 for a model that a builder makes, which is in memory
    recipe: str  # by default

    def bound(self, step: str, packed: int) -> float:
        """The limit for a stage; for any worker if `step` is empty. The runtime has `packed` bytes of its own."""
        stage = step.split("/", maxsplit=1)[0]
        if self.largest:
            return 2 * GIB + 2 * self.largest + (packed if stage in ("", *LOADING) else 0)
        return GIB / 2 if stage in SMALL else 1.6 * self.weights + 0.6 * GIB

    def disk_bound(self, results: int) -> float:
        """The limit for the store, what is on its way into it, and the results."""
        return 1.1 * (self.weights + results) + (2e9 if self.largest else 0.1e9)


@dataclass
class Step:
    """A stage: how it ended, its seconds, the peak of its process beyond the server that it was forked from, in bytes.

    `resident` is the largest sample of the process's resident memory, mapped files included; 0 if it has none.
    """

    status: str = "running"
    seconds: float = 0.0
    peak: int = 0
    resident: int = 0


@dataclass
class Measured:
    """What was measured so far, in all runs in a folder; in bytes and seconds."""

    seconds: float = 0.0
    driver: int = 0  # peak of anonymous memory of the command's own process
    worker: int = 0  # peak of anonymous memory of any other of its processes, with what it shares with the server
    disk: int = 0
    results: int = 0
    packed: int = 0  # anonymous memory that ExecuTorch's runtime takes to load a file, at most
    problem: str = ""
    steps: dict[str, Step] = field(default_factory=dict)

    @classmethod
    def read(cls, file: Path) -> Measured:
        """What earlier runs have measured."""
        if not file.exists():
            return cls()
        fields = json.loads(file.read_text(encoding="utf-8"))
        return cls(**{**fields, "steps": {name: Step(**step) for name, step in fields["steps"].items()}})

    def write(self, file: Path) -> None:
        part = file.with_suffix(".part")
        part.write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")
        part.replace(file)


class Log:
    """Lines with the time, on standard error and, if there is one, at the end of a file."""

    def __init__(self, file: Path | None) -> None:
        """Opens the file."""
        self._file = file.open("a", encoding="utf-8") if file else None

    def __call__(self, text: str) -> None:
        line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n"
        for stream in filter(None, [sys.stderr, self._file]):
            stream.write(line)
            stream.flush()


@dataclass
class Watch:
    """Watches a command: its log of events, its processes, and its folder on the disk."""

    process: psutil.Popen
    folder: Path
    measured: Measured
    log: Log
    running: set[str] = field(default_factory=set)  # steps
    ended: Event = field(default_factory=Event)
    lock: Lock = field(default_factory=Lock)

    def follow(self, lines: IO[str]) -> None:
        """Notes when stages begin and end; other lines of the command's log go into ours."""
        with (self.folder / "log").open("a", encoding="utf-8") as copy:
            for line in lines:
                copy.write(line)
                copy.flush()
                try:
                    event = json.loads(line)
                except ValueError:
                    continue  # of a library
                with self.lock:
                    self._note(event)

    def _note(self, event: Mapping[str, Any]) -> None:
        message = str(event.get("message", "")).strip()
        match event.get("event"):
            case "stage_started":
                self.running.add(event["step"])
                self.measured.steps[event["step"]] = Step()
                self.log(message)
            case "stage_finished":
                self.running.discard(event["step"])
                step = self.measured.steps.setdefault(event["step"], Step())
                step.status, step.seconds = event["status"], event["seconds"]
                step.peak = event["peak_memory"] or step.peak
                self.log(f"{message}, {step.seconds:.1f} s, {step.peak / MIB:,.0f} MiB")
            case "recipe_finished" if event["status"] == "failed":
                self.measured.problem = f"{event.get('failed_step', '')}: {event.get('problem', '')}".strip(": ")
                self.log(f"{message}\n{event.get('log', '')}")
            case _:
                self.log(message)

    def sample(self) -> None:
        """Samples until the command has ended."""
        disk_at = log_at = 0.0
        began, before = time.monotonic(), self.measured.seconds
        while not self.ended.wait(EVERY):
            now = time.monotonic()
            workers = [*self._workers()]
            with self.lock, contextlib.suppress(psutil.Error):
                made = self.measured
                made.seconds = before + now - began
                made.driver = max(made.driver, own_memory(self.process.pid))
                made.worker = max([made.worker, *(anonymous for anonymous, _ in workers)])
                if len(self.running) == 1 and workers:
                    step = made.steps[next(iter(self.running))]
                    step.resident = max(step.resident, *(resident for _, resident in workers))
            if now - disk_at >= DISK_EVERY:
                size = disk_of(self.folder, self.process)
                with self.lock:
                    self.measured.disk = max(self.measured.disk, size)
                    self.measured.write(self.folder / "measured.json")
                disk_at = time.monotonic()
            if now - log_at >= LOG_EVERY:
                largest = max((anonymous for anonymous, _ in workers), default=0)
                running = ", ".join(sorted(self.running)) or "no stage"
                self.log(f"  {running}: worker {largest / MIB:,.0f} MiB, disk {size / MIB:,.0f} MiB")
                log_at = now

    def _workers(self) -> Iterator[tuple[int, int]]:
        """Anonymous and resident memory of each process of the command but its own."""
        with contextlib.suppress(psutil.Error):
            for child in self.process.children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    yield own_memory(child.pid), child.memory_info().rss


def disk_of(folder: Path, process: psutil.Popen) -> int:
    """Bytes on the disk of a folder's files but the checkpoint, and of deleted ones that processes have mapped."""
    sizes: dict[int, int] = {}
    checkpoint = set()
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                status = os.lstat(f"{place}/{name}")
                sizes[status.st_ino] = status.st_blocks * 512
                if Path(place).name == "checkpoint":
                    checkpoint.add(status.st_ino)
    with contextlib.suppress(psutil.Error):
        for each in [process, *process.children(recursive=True)]:
            with contextlib.suppress(OSError):
                mapped = Path(f"/proc/{each.pid}/maps").read_text(encoding="utf-8", errors="replace")
                for start, end, offset, inode in re.findall(_DELETED.format(re.escape(str(folder))), mapped):
                    last = int(offset, 16) + int(end, 16) - int(start, 16)
                    sizes[int(inode)] = max(sizes.get(int(inode), 0), last)
    return sum(size for inode, size in sizes.items() if inode not in checkpoint)


_DELETED = r"(?m)^([0-9a-f]+)-([0-9a-f]+) \S+ ([0-9a-f]+) \S+ (\d+) +{}/.* \(deleted\)$"


def model_of(name: str, chosen: Any, folder: Path, log: Log) -> Model:
    """A model of this benchmark; writes its checkpoint, if it has one and it is not in the folder yet."""
    if name in LLAMAS:
        verify = {"verify": {"min_sqnr_db": 20}} if name.endswith("bf16") else {}
        source = {"builder": "networks:llama", "kwargs": {"size": name}}
        return Model({"source": source, **verify}, LLAMAS[name].weights, 0, "xnnpack-fp32")
    geometry = CHECKPOINTS[name]
    if chosen.layers:
        geometry = geometry.with_layers(chosen.layers)
    sizes = [size_of_tensor(shape) for shape in geometry.shapes().values()]
    log(f"checkpoint of {sum(sizes) / GIB:.2f} GiB")
    for file in write_checkpoint(geometry, folder / "checkpoint"):
        log(f"  {file.name}")
    source = {"huggingface": "./checkpoint", "sequence": chosen.context, "attention": "custom_sdpa"}
    source |= {"dtype": chosen.dtype} if chosen.dtype else {}
    (folder / "text.txt").write_text(TEXT, encoding="utf-8")
    kwargs = {"text": "text.txt", "tokenizer": "./checkpoint", "tokens": 20, "prompt": 16}
    # Random weights lose more than trained ones: what counts here is that the file computes.
    fields = {
        "source": source,
        "verify": {"min_sqnr_db": 3},
        "accuracy": {"evaluator": "pteforge.evaluators:neg_perplexity", "kwargs": kwargs, "max_drop": MAX_DROP},
        "limits": {"timeout": STAGE_LIMIT},
    }
    return Model(fields, sum(sizes), max(sizes), "xnnpack-llm-8da4w")


def measure(model: Model, chosen: Any, folder: Path, log: Log) -> Measured:
    """Lowers a model; continues what an earlier run in the folder has begun."""
    recipes = chosen.recipe or [model.recipe]
    zoo = measuring.write_zoo(folder, {chosen.model: {**model.fields, "recipes": recipes}}, recipes={"fat": FAT})
    environment = measuring.environment_of(folder) | {"TMPDIR": str(folder / "tmp")}
    (folder / "tmp").mkdir(exist_ok=True)
    if not (folder / "prefect").exists():
        measuring.prepare_database(folder, environment)
    command = measuring.exporting(zoo, folder, "--jobs", str(chosen.jobs), "--log-format", "json")
    measured = Measured.read(folder / "measured.json")
    measured.problem, before = "", measured.seconds
    log(f"lowers {chosen.model} with {', '.join(recipes)}")
    began = time.monotonic()
    process = psutil.Popen(
        [*map(str, command)],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    watch = Watch(process, folder, measured, log)
    threads = [Thread(target=watch.follow, args=(process.stderr,)), Thread(target=watch.sample)]
    for thread in threads:
        thread.start()
    try:
        process.wait()
    except (KeyboardInterrupt, SystemExit) as stopped:
        measured.problem = f"stopped: {stopped or 'interrupted'}"
        process.terminate()
        process.wait()
    watch.ended.set()
    for thread in threads:
        thread.join()
    if process.returncode and not measured.problem:
        measured.problem = f"pteforge ended with {process.returncode}; see {folder / 'log'}"
    measured.seconds = before + time.monotonic() - began
    measured.results = measuring.size_of((folder / "out").rglob("*"))
    measured.disk = max(measured.disk, disk_of(folder, process))
    measured.packed = max(map(packed_when_loaded, (folder / "out").rglob("*.pte")), default=0)
    measured.write(folder / "measured.json")
    return measured


def packed_when_loaded(file: Path) -> int:
    """The most anonymous memory that the runtime takes to load a file or a payload; mostly what XNNPACK packs."""
    if is_fat(open_pte(file)):
        container = open_fat(file).container
        with measuring.temporary_folder() as folder:
            for payload in container.payloads:
                container.write(payload, folder / f"{payload.name}.pte")
            return max(map(packed_when_loaded, folder.iterdir()))
    done = subprocess.run([sys.executable, "-c", PACKED, file], capture_output=True, text=True, check=True)
    return int(done.stdout.split()[-1])


def rows_of(model: Model, measured: Measured) -> Iterator[tuple[str, str, str, str, str]]:
    """A table of the stages that ran in workers, and of totals with their limits."""
    yield "stage", "peak, MiB", "by the weights", "with mapped files, MiB", "seconds"
    for name, step in measured.steps.items():
        if step.peak or step.status not in ("ran", "cached"):
            failed = f" ({step.status})" if step.status not in ("ran", "cached") else ""
            resident = f"{step.resident / MIB:,.0f}" if step.resident else ""
            peak = f"{step.peak / MIB:,.0f}", f"{step.peak / model.weights:.2f}"
            yield f"`{name}`{failed}", *peak, resident, f"{step.seconds:.1f}"


def limits_of(model: Model, measured: Measured) -> Iterator[tuple[str, float, float]]:
    """Name, value and limit of what is limited, in bytes."""
    for name, step in measured.steps.items():
        yield name, step.peak, model.bound(name, measured.packed)
    if model.largest:
        every = model.bound("", measured.packed)
        yield "any worker, with what it shares with the worker server", measured.worker, every
    yield "the command's own process", measured.driver, DRIVER
    yield "disk: store, scratch and results", measured.disk, model.disk_bound(measured.results)


def text_of(name: str, model: Model, measured: Measured, recipes: str) -> str:
    """The tables, in Markdown."""
    largest = f", the largest tensor {model.largest / MIB:,.0f} MiB" if model.largest else ""
    both = model.weights + measured.results
    stages = [(value, what, limit) for what, value, limit in limits_of(model, measured) if what in measured.steps]
    others = [entry for entry in limits_of(model, measured) if entry[0] not in measured.steps]
    for loading in (True, False):
        if alike := [stage for stage in stages if stage[1].startswith(LOADING) == loading]:
            value, what, limit = max(alike)
            kind = "any stage that loads the file" if loading else "any other stage"
            others.insert(0, (f"{kind}; the largest: `{what}`", value, limit))
    totals = [("in all", "MiB", "limit, MiB", "")]
    for what, value, limit in others:
        totals.append((what, f"{value / MIB:,.0f}", f"{limit / MIB:,.0f}", "pass" if value <= limit else "**fail**"))
    return (
        f"`{name}`, {recipes}: {model.weights / MIB:,.0f} MiB of weights{largest}; {measured.seconds:,.0f} seconds; "
        f"results {measured.results / MIB:,.0f} MiB; the runtime takes {measured.packed / MIB:,.0f} MiB to load "
        f"them; disk {measured.disk / both:.2f} of weights and results"
        f"{f'; failed: {measured.problem}' if measured.problem else ''}\n\n"
        f"{measuring.markdown(rows_of(model, measured))}\n{measuring.markdown(totals)}"
    )


@contextlib.contextmanager
def chosen_folder(chosen: Any) -> Iterator[Path]:
    """The folder to work in, removed afterwards unless it is to be kept."""
    if chosen.scratch is None:
        with measuring.temporary_folder() as folder:
            yield folder
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    folder = chosen.scratch.absolute() / chosen.model
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield folder
    finally:
        if not chosen.keep:
            shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    """Prints tables; exits with 1 if the model was not lowered, or something exceeds its limit."""
    parser = measuring.arguments_of(__doc__)
    parser.add_argument("--model", default="135M", choices=[*LLAMAS, *CHECKPOINTS], help="%(default)s")
    parser.add_argument("--recipe", action="append", help="one or more; fat: xnnpack and portable in one file")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), help="of a checkpoint's source")
    parser.add_argument("--context", type=int, default=128, help="tokens of a checkpoint's model (%(default)s)")
    parser.add_argument("--layers", type=int, help="of a checkpoint; those of its model if left out")
    parser.add_argument("--jobs", type=int, default=1, help="stages at once (%(default)s)")
    parser.add_argument("--scratch", type=Path, metavar="DIR", help="where to work; a temporary folder if left out")
    parser.add_argument("--keep", action="store_true", help="leave everything in --scratch, for a later run")
    parser.add_argument("--log", type=Path, metavar="FILE", help="append progress, with the time, to a file as well")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/how-to/memory.md")
    chosen = parser.parse_args()
    if chosen.keep and not chosen.scratch:
        parser.error("--keep: name the folder to keep with --scratch")
    log = Log(chosen.log)
    with chosen_folder(chosen) as folder:
        model = model_of(chosen.model, chosen, folder, log)
        measured = measure(model, chosen, folder, log)
    exceeded = [what for what, value, limit in limits_of(model, measured) if value > limit]
    if chosen.json:
        print(json.dumps({"weights": model.weights, "largest": model.largest, **asdict(measured)}, indent=2))
    else:
        text = text_of(chosen.model, model, measured, ", ".join(chosen.recipe or [model.recipe]))
        print(text)
        if chosen.write:
            options = [f"--model {chosen.model}", *(f"--recipe {recipe}" for recipe in chosen.recipe or ())]
            write_section(PAGE, f"benchmarks/memory.py {' '.join(options)} --write", text)
    if measured.problem or exceeded:
        sys.exit(measured.problem or f"more than the limit: {', '.join(exceeded)}")


if __name__ == "__main__":
    main()

"""ExecuTorch's own operator tests (`executorch.backends.test.suite`), lowered by pteforge and by ExecuTorch's testers.

    python benchmarks/upstream_suite.py [--only add,conv2d] [--cases N] [--flows FLOW,...] [--folder DIR] [--write]

A case is one model and its inputs, as a test of the wheel passes them to its runner. One side is `pteforge.export`, the
other the stages of the suite's tester for the same flow, with its quantizer and its partitioner. The file of either
side is run on the case's inputs and compared with eager, by the bound of the flow; of files with a payload for Vulkan,
which the wheel has no runtime for, only the operators outside of it are looked up. A case that ends its process fails;
the next one has another. A run continues where the last in the folder stopped. `--write` updates internals/upstream.md.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import logging
import multiprocessing
import os
import pkgutil
import re
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from unittest import SkipTest

from breadth import Record, write_section

PAGE = Path(__file__).parents[1] / "docs" / "internals" / "upstream.md"
SUITE = "executorch.backends.test.suite"
SIDES = ("ours", "direct")
LIMIT = 600  # seconds of one side of one case, on a machine that may be busy
NOTHING = "finds no operator in the program that it could quantize"  # in the message of a refusal, which is meant
SKIPPED = "not run: "  # how the result of a case begins that eager does not run


@dataclass(frozen=True)
class Flow:
    """A recipe of ours and the flow of the suite that does the same."""

    recipe: Any
    module: str
    constant: str
    bound: float  # least SQNR in dB


FLOWS = {
    "xnnpack-fp32": Flow("xnnpack-fp32", "xnnpack", "XNNPACK_TEST_FLOW", 80),
    "portable-fp32": Flow("portable-fp32", "portable", "PORTABLE_TEST_FLOW", 80),
    "xnnpack-int8-static": Flow("xnnpack-int8-static", "xnnpack", "XNNPACK_STATIC_INT8_PER_CHANNEL_TEST_FLOW", 20),
    "xnnpack-int8-dynamic": Flow("xnnpack-int8-dynamic", "xnnpack", "XNNPACK_DYNAMIC_INT8_PER_CHANNEL_TEST_FLOW", 20),
    "vulkan-fp32": Flow(
        {
            "specializations": [{"target": "vulkan", "options": {"skip_bool_tensors": True}}],
            "verify": {"required": False},
        },
        "vulkan",
        "VULKAN_TEST_FLOW",
        80,
    ),
}

PROCESSES = multiprocessing.get_context("forkserver")  # whose server has all these imported
PROCESSES.set_forkserver_preload(
    ["pteforge.api.export", "executorch.runtime", f"{SUITE}.flows.portable", f"{SUITE}.flows.xnnpack"]
)


@dataclass(frozen=True, order=True)
class Case:
    """One call of the runner: the test's file, its function and parameters, and the position of the call."""

    operator: str
    test: str
    index: int

    def __str__(self) -> str:
        return f"{self.operator}/{self.test}/{self.index}"


class Recorder:
    """Stands in for the runner that the suite's tests call, and keeps what it gets."""

    def __init__(self, flow: Any) -> None:
        self._flow = flow  # read by tests that have other models for quantized flows
        self.calls: list[tuple[Any, tuple[Any, ...], Any]] = []

    def lower_and_run_model(
        self,
        model: Any,
        inputs: Any,
        generate_random_test_inputs: bool = True,  # noqa: ARG002 - as the suite's
        dynamic_shapes: Any = None,
    ) -> None:
        self.calls.append((model.eval(), tuple(inputs), dynamic_shapes))


def operators(only: str) -> list[str]:
    package = importlib.import_module(f"{SUITE}.operators")
    names = [found.name.removeprefix("test_") for found in pkgutil.iter_modules(package.__path__)]
    return sorted(name for name in names if not only or name in only.split(","))


def tests(operator: str) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Name, function and parameters of each test of a file, in its order."""
    module = importlib.import_module(f"{SUITE}.operators.test_{operator}")
    for name, function in list(vars(module).items()):
        if not name.startswith("test_") or not callable(function):
            continue
        marks = [mark.args for mark in getattr(function, "pytestmark", ()) if mark.name == "parametrize"]
        for values in itertools.product(*(list(given) for _, given in marks)):
            params = dict(zip((names for names, _ in marks), values, strict=True))
            yield "-".join([name, *map(str, params.values())]), function, params


def calls(operator: str, test: str, flow: Flow) -> list[tuple[Any, tuple[Any, ...], Any]]:
    """Models, inputs and dynamic shapes of one test, the same each time."""
    import torch

    torch.manual_seed(0)
    recorder = Recorder(suite_flow(flow))
    for name, function, params in tests(operator):
        if name == test:
            with suppress(SkipTest):
                function(recorder, **params)
    return recorder.calls


def suite_flow(flow: Flow) -> Any:
    return getattr(importlib.import_module(f"{SUITE}.flows.{flow.module}"), flow.constant)


def list_cases(names: Iterable[str], flow: Flow, most: int | None) -> list[Case]:
    """The first cases of each file."""
    found = []
    for operator in names:
        of_file = (
            Case(operator, test, index)
            for test, _, _ in tests(operator)
            for index in range(len(calls(operator, test, flow)))
        )
        found += itertools.islice(of_file, most)
    return found


class Worker:
    """A process that runs one side of cases one after another; one that a case ends is replaced."""

    def __init__(self) -> None:
        self._process: Any = None
        self._pipe: Any = None

    def problem_of(self, case: Case, flow: str, side: str) -> str:
        """The problem of one side of a case; empty for a file that is right."""
        if self._process is None:
            self._pipe, theirs = PROCESSES.Pipe()
            self._process = PROCESSES.Process(target=serve, args=(theirs,), daemon=True)
            self._process.start()
            theirs.close()
        self._pipe.send((case, flow, side))
        try:
            if self._pipe.poll(LIMIT):
                return str(self._pipe.recv())
            problem = f"took more than {LIMIT} s"
        except EOFError:
            self._process.join()
            problem = f"process ended with {self._process.exitcode}"
        self.stop()
        return problem

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None


def serve(pipe: Any) -> None:
    import torch

    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    with suppress(EOFError):
        while True:
            pipe.send(outcome(*pipe.recv()))


def outcome(case: Case, flow_name: str, side: str) -> str:
    import torch
    from pteforge.formats.pte.reader import read_pte
    from pteforge.tasks.verify.running import missing_backends, missing_kernels

    flow = FLOWS[flow_name]
    module, inputs, dynamic_shapes = calls(case.operator, case.test, flow)[case.index]
    try:
        with torch.no_grad():
            wanted = module(*inputs)
    except Exception as error:  # noqa: BLE001 - the suite skips such cases, too
        return f"{SKIPPED}{type(error).__name__}"
    try:
        file = {"ours": ours, "direct": direct}[side](module, inputs, dynamic_shapes, flow)
        described = read_pte(file)
        if missing := missing_kernels(described.methods):
            return f"no kernel for {', '.join(missing)}"
        if not missing_backends(described.backends):
            compare(run(file, inputs), wanted, flow.bound)
    except Exception as error:  # noqa: BLE001 - whatever a library raises is the result
        return f"{type(error).__name__}: {str(error).strip()}"
    return ""


def ours(module: Any, inputs: tuple[Any, ...], dynamic_shapes: Any, flow: Flow) -> bytes:
    import pteforge
    from pteforge.configs import Recipe

    recipe = flow.recipe if isinstance(flow.recipe, str) else Recipe.model_validate(flow.recipe)
    with tempfile.TemporaryDirectory() as store:
        return pteforge.export(module, inputs, recipe=recipe, dynamic_shapes=dynamic_shapes, store=store).pte


def direct(module: Any, inputs: tuple[Any, ...], dynamic_shapes: Any, flow: Flow) -> bytes:
    from executorch.backends.test.harness.stages import StageType

    upstream = suite_flow(flow)
    tester = upstream.tester_factory(module, inputs)
    if upstream.quantize:
        tester.quantize(upstream.quantize_stage_factory())
    stage = tester._get_default_stage(StageType.EXPORT, dynamic_shapes=dynamic_shapes)  # noqa: SLF001 - as the suite
    tester.export(stage)
    tester.to_edge_transform_and_lower().to_executorch().serialize()
    return bytes(tester.get_artifact())


def run(file: bytes, inputs: Sequence[Any]) -> list[Any]:
    from executorch.runtime import Runtime
    from torch.utils import _pytree as pytree

    return list(Runtime.get().load_program(file).load_method("forward").execute(pytree.tree_leaves(list(inputs))))


def compare(found: Sequence[Any], wanted: Any, bound: float) -> None:
    """Raises ValueError for an output below the bound; integers and booleans must agree where the bound is fp32's."""
    import torch
    from torch.utils import _pytree as pytree

    for output, value in zip(found, pytree.tree_leaves(wanted), strict=True):
        if output.shape != value.shape:
            raise ValueError(f"wrong output: shape {tuple(output.shape)}, eager's is {tuple(value.shape)}")
        differing = ~torch.isclose(output, value, rtol=0, atol=0, equal_nan=True)
        if not value.is_floating_point():
            if (share := float(differing.double().mean())) > (0 if bound >= FLOWS["xnnpack-fp32"].bound else 0.1):
                raise ValueError(f"wrong output: {100 * share:.0f} % of the integers differ from eager's")
            continue
        noise = (output.double() - value.double())[differing].pow(2).sum()
        sqnr = 10 * torch.log10(value.double()[value.isfinite()].pow(2).sum() / noise)
        if differing.any() and not sqnr >= bound:
            raise ValueError(f"wrong output: {sqnr:.1f} dB from eager; the bound is {bound:.0f}")


def measure(cases: Sequence[Case], flow: str, records: Mapping[str, Record], jobs: int) -> None:
    """Adds what the records do not have; where ours finds nothing to quantize, the other side is not run."""
    idle = SimpleQueue[Worker]()
    workers = [Worker() for _ in range(jobs)]
    for worker in workers:
        idle.put(worker)

    def problems_of(case: Case) -> dict[str, str]:
        worker = idle.get()
        found: dict[str, str] = {}
        try:
            for side, record in records.items():
                if str(case) not in record.problems and NOTHING not in found.get(SIDES[0], ""):
                    found[side] = worker.problem_of(case, flow, side)
        finally:
            idle.put(worker)
        return found

    left = [case for case in cases if is_left(str(case), records)]
    with ThreadPoolExecutor(jobs) as pool:
        for case, problems in zip(left, pool.map(problems_of, left), strict=True):
            for side, problem in problems.items():
                records[side].add({str(case): problem})
    for worker in workers:
        worker.stop()


def is_left(case: str, records: Mapping[str, Record]) -> bool:
    ours, direct = (records[side].problems.get(case) for side in SIDES)
    return ours is None or (direct is None and NOTHING not in ours)


def owners(cases: Sequence[Case], records: Mapping[str, Record]) -> dict[str, str]:
    """Who fails each case that ran: ours, upstream or both; empty if both are right, ``nothing`` where all is float."""
    found = {}
    for case in map(str, cases):
        ours, direct = (records[side].problems.get(case) for side in SIDES)
        if ours is not None and NOTHING in ours:
            found[case] = "nothing"
        elif ours is not None and direct is not None and not ours.startswith(SKIPPED):
            found[case] = "both" if ours and direct else "ours" if ours else "upstream" if direct else ""
    return found


def section(results: Mapping[str, tuple[Sequence[Case], Mapping[str, Record]]], sample: str) -> str:
    """Counts of each flow, and its failures by owner."""
    lines = [f"{sample}\n\n" if sample else ""]
    lines.append("| flow | cases | nothing to quantize | both right | ours alone | upstream alone | both wrong |\n")
    lines.append("|---|---:|---:|---:|---:|---:|---:|\n")
    failures = []
    for flow, (cases, records) in results.items():
        of_each = owners(cases, records)
        cells = [flow, len(of_each)]
        cells += [[*of_each.values()].count(owner) for owner in ("nothing", "", "ours", "upstream", "both")]
        lines.append(f"| {' | '.join(map(str, cells))} |\n")
        for owner, side in {"ours": "ours", "both": "ours", "upstream": "direct"}.items():
            problems = records[side].problems
            failures += failed(flow, owner, {case: problems[case] for case in of_each if of_each[case] == owner})
    return "".join([*lines, "\n", *failures])


def failed(flow: str, owner: str, problems: Mapping[str, str]) -> list[str]:
    """The cases of one owner by message, shortened."""
    alike: dict[str, list[str]] = {}
    for case, problem in problems.items():
        message = " ".join(re.sub(r"[`|<>*]", "", problem.partition("\n")[0])[:160].split())
        alike.setdefault(message, []).append(case)
    named = {"ours": "ours alone", "upstream": "upstream alone", "both": "both"}[owner]
    lines = [f"\n{flow}, {named}:\n\n"] if alike else []
    for message, cases in sorted(alike.items(), key=lambda item: -len(item[1])):
        shown = ", ".join(cases[:6]) + (f" and {len(cases) - 6} more" if len(cases) > 6 else "")
        lines.append(f"- {shown}: {message}\n")
    return lines


def main() -> None:
    """Runs everything that is not in the folder yet, and prints counts and failures by flow."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="operators, by the names of their files; all by default")
    parser.add_argument("--cases", type=int, help="how many of each file; all by default")
    parser.add_argument("--flows", default=",".join(FLOWS))
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "pteforge-upstream-suite")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--retry", action="store_true", help="run again what failed before")
    parser.add_argument("--table", action="store_true", help="run nothing; print what the folder has")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/internals/upstream.md")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)

    def again(problem: str) -> bool:
        return options.retry and NOTHING not in problem

    results = {}
    for flow in options.flows.split(","):
        cases = list_cases(operators(options.only), FLOWS[flow], options.cases)
        records = {side: Record(options.folder, f"{flow}, {side}", again, "right") for side in SIDES}
        if not options.table:
            measure(cases, flow, records, options.jobs)
        results[flow] = (cases, records)
    first = "first case" if options.cases == 1 else f"first {options.cases} cases"
    sample = f"A sample: the {first} of each file." if options.cases else ""
    text = section(results, sample)
    print(text)
    if options.write:
        write_section(PAGE, "benchmarks/upstream_suite.py --write", text)


if __name__ == "__main__":
    main()

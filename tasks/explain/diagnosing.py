"""Why torch.export refuses a method, in words: each finding with the line of the model's code, and the ways out.

Reads torch 2.13's `torch.export.draft_export` (torch/export/_draft_export.py), with real values where fakes fail.
"""

from __future__ import annotations

import contextlib
import os
import re
import sysconfig
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import torch
from torch.export import Dim, ExportedProgram

from ...configs.model import MethodDefinition
from ...errors import SourceError
from ..export.eager import run_eager
from ..export.method import Shapes, dynamic_shapes_of, export_method, export_sized
from ..export.sizes import asked_sizes
from ..programs.weights import weights_on_use
from ..results.causes import known_causes
from ..results.diagnosis import Cause, Diagnosis, Mode, Trace, without_advice
from ..upstream import compat
from ..usercode.model_source import BuiltModel
from ..usercode.modules import copy_module
from .conditions import LEAVE_OUT, branch_finding, in_python, size_finding, with_shapes

_LENGTH = 2000  # characters of an error that are kept
_FINDINGS = 20  # of one method
_NOT_THE_MODEL = (Path(torch.__file__).parent, Path(__file__).parents[1])
_TORCHS = ("aten", "prim", "prims", "quantized", "quantized_decomposed", "torchao")  # namespaces of its own operators
_EDITS = ("data-dependent", "dynamic dimension", "graph break")  # findings whose ways out are edits of a line
_AROUND = (
    (
        "the line is in the installed package {package}: let the model end before it, as a detector with its backbone "
        "and head, and let the application do the rest, such as NMS, or call a second method after it"
    ),
    "or see whether {package} has an option, or another class, that does without",
)

# torch's messages: where they turn to advice for whoever debugs torch, and hints that do not help
_ADVICE = re.compile(
    r"\n+ *(The error above occurred|For more (information|debugging)|If you suspect|For C\+\+|from user code:"
    r"|For extended|Set TORCHDYNAMO_VERBOSE|For more details about this graph|User [Ss]tack|Caused by:|While executing"
    r"|Original traceback|Developer debug context|consider using data-dependent|The following call raised)"
)
_UNHELPFUL = re.compile(
    r"report an issue|file an issue|fundamental|^see http|may result in an error|TORCH|allow_in_graph"
)
_RESUMED = re.compile(r"torch_dynamo_resume_in_(\w+)_at_\d+")  # what follows a graph break in a function
_FIX = re.compile(r"^  (\w+) = (.+)$", re.MULTILINE)
_MULTIPLE = re.compile(r"(?P<step>\d+)\*(?P<part>_\w+)")
_NARROWED = re.compile(
    r"marked (?P<name>\w+) as dynamic but your code specialized it to be a constant \((?P<size>\d+)\)"
    r"|Not all values of .+ satisfy the generated guard (?P<guard>.+?)\.?$",
    re.MULTILINE,
)
_REFUSED = re.compile(r"(?:Constraints violated|Specializations unexpectedly required) \((.+?)\)")
_DIM = re.compile(r"Dim\('\w+'(?:, min=(\d+))?(?:, max=(\d+))?\)")


def diagnose_method(
    model: BuiltModel, name: str, shapes: Shapes, folders: Sequence[Path], scratch: Path, *, strict: bool
) -> Diagnosis:
    """Exports a method in both modes and as a draft, and explains what failed. The model is not changed.

    Files in `folders` are named relative to them; torch's trace is in `scratch`; `strict` is the mode of `export`.
    Raises SourceError if the example inputs or dynamic shapes do not fit the model, have no upper bound, or ask for
    sizes that the program is not for, or if a prepared module was never trained.
    """
    methods = tuple(model.definition.methods)
    if model.program is not None:  # it is exported already
        return Diagnosis(name, methods, strict, (Trace(strict=False), Trace(strict=True)))
    method = model.definition.methods[name]
    run_eager(method.module, (method.example_inputs[0], {}), f"its own example inputs of method {name!r}")
    frames = Frames(folders)
    recurrent = any(isinstance(module, torch.nn.RNNBase) for module in method.module.modules())
    with _quiet(scratch):
        errors = {mode: _error(_exported(name, method, shapes, strict=mode)) for mode in (False, True)}
        if isinstance(error := errors[strict], SourceError):
            raise error  # not torch's: it says all there is to say
        fixes = () if recurrent else _fixes(errors, name, method, shapes)
        attempts = tuple(frames.attempt(mode, error) for mode, error in errors.items())
        causes = list(_modes(attempts, strict=strict))
        # for just what `export` is given
        with mock.patch.object(torch.export, "export", compat.draft_export.draft_export):
            drafted = _exported(name, method, shapes, strict=False, drafted=True)
        if isinstance(drafted, ExportedProgram):
            only: Mode | None = "non-strict" if attempts[True].exported else None
            causes += _drafted(drafted, errors[False], attempts[False], only, frames, fixes, recurrent=recurrent)
        if isinstance(error := errors[True], compat.Unsupported):
            causes += _graph_breaks(error, method, frames)
    for attempt in attempts:
        if (narrowed := _NARROWED.search(attempt.problem)) and not _explained(attempt, causes):
            name_is = f"{narrowed['name']} == {narrowed['size']}"
            needed, at = name_is if narrowed["name"] else with_shapes(narrowed["guard"]), (attempt.where, attempt.code)
            causes.append(_unrolled(needed, *at) if recurrent else size_finding(needed, fixes, *at))
    causes += _known([attempt for attempt in attempts if not _explained(attempt, causes)])
    draft = "" if isinstance(drafted, ExportedProgram) else frames.message(drafted)
    causes = list(_distinct(map(frames.without_edits, causes)))
    return Diagnosis(name, methods, strict, attempts, tuple(causes[:_FINDINGS]), draft)


def _exported(
    name: str, method: MethodDefinition, shapes: Shapes, *, strict: bool, drafted: bool = False
) -> ExportedProgram | Exception:
    """A program, or what torch raised, or the SourceError that says what is wrong with it."""
    compat.dynamo_reset()
    try:
        if drafted:
            return export_method(name, method, shapes, strict=strict)
        return export_sized(name, method, shapes, strict=strict)[0]
    except SourceError as error:
        return error.__cause__ if isinstance(error.__cause__, Exception) else error
    except Exception as error:  # noqa: BLE001 - whatever torch raises is what is to be explained
        return error


@contextlib.contextmanager
def _quiet(scratch: Path) -> Iterator[None]:
    """Keeps torch's trace in a folder, and draft_export from announcing its report."""
    upstreams = compat.CaptureStructuredTrace  # before it is replaced
    traces: list[compat.CaptureStructuredTrace] = []

    def capture() -> compat.CaptureStructuredTrace:
        traces.append(upstreams())
        return traces[-1]

    with (
        contextlib.ExitStack() as stack,
        mock.patch.dict(os.environ, {compat.DTRACE_ENV_VAR: str(scratch)}),
        mock.patch.object(compat.draft_export, "CaptureStructuredTrace", capture),
        mock.patch.object(compat.draft_export.log, "disabled", new=True),
        mock.patch.object(compat.guards.log, "disabled", new=True),  # strict mode logs the guards that do not hold
        torch.no_grad(),
        weights_on_use(),
    ):
        stack.callback(lambda: [trace.close() for trace in traces])  # draft_export leaves their files open
        yield


class Frames:
    """Finds the line of the model's code in a stack, and names files as their reader does."""

    def __init__(self, folders: Sequence[Path]) -> None:
        """Files in these folders are named relative to them, others relative to where packages are installed."""
        self._folders = [*folders, *(Path(sysconfig.get_path(name)) for name in ("purelib", "platlib"))]
        self._library = Path(sysconfig.get_path("stdlib"))

    def attempt(self, strict: bool, error: Exception | None) -> Trace:
        return Trace(strict, self.message(error), *self.of_error(error)) if error else Trace(strict)

    def message(self, error: Exception) -> str:
        """Type and message of what torch raised, with the fixes that it suggests, and files relative to the folders."""
        text, _, fixes = str(error).strip().partition("\nSuggested fixes:")
        text = without_advice(_ADVICE.split(text)[0]).strip()
        if fixes:
            text += "\nSuggested fixes:" + _ADVICE.split(fixes)[0].rstrip()
        text = f"{type(error).__name__}: {text}"[:_LENGTH].removesuffix(": ")
        for folder in self._folders:
            text = text.replace(f"{folder}/", "")
        return text

    def of_error(self, error: BaseException) -> tuple[str, str]:
        """Place and text of the innermost line of the model's code; empty if there is none."""
        dynamos = getattr(error, "real_stack", None) or ()  # since it does not call the code that it traces
        stacks = (dynamos, traceback.extract_tb(error.__traceback__))
        return next((line for stack in stacks if (line := self.of_stack(_summaries(stack)))[0]), ("", ""))

    def of_stack(self, frames: Iterable[tuple[str, int, str, str]]) -> tuple[str, str]:
        """The same for file, line number, function and text of each frame, the innermost last."""
        for file, number, function, text in reversed(list(frames)):
            path = Path(file)
            if path.is_absolute() and not self._is_foreign(path):
                resumed = _RESUMED.fullmatch(function)
                return f"{self._name(path)}:{number} in {resumed[1] if resumed else function}", text.strip()
        return "", ""

    def without_edits(self, finding: Cause) -> Cause:
        """A finding with other ways out than edits of its line if that is in an installed package."""
        file, package = Path(finding.where.partition(":")[0]), finding.where.partition("/")[0]
        if finding.kind not in _EDITS or not any((folder / file).is_file() for folder in self._folders[-2:]):
            return finding
        kept = [remedy for remedy in finding.remedies if "dynamic shapes" in remedy]
        return replace(finding, remedies=(*kept, *(remedy.format(package=package) for remedy in _AROUND)))

    def _is_foreign(self, path: Path) -> bool:
        if any(path.is_relative_to(folder) for folder in _NOT_THE_MODEL):
            return True
        return path.is_relative_to(self._library) and not {"site-packages", "dist-packages"} & set(path.parts)

    def _name(self, path: Path) -> str:
        folder = next((folder for folder in self._folders if path.is_relative_to(folder)), path.parent)
        return path.relative_to(folder).as_posix()


def _summaries(stack: Iterable[traceback.FrameSummary]) -> list[tuple[str, int, str, str]]:
    return [(frame.filename, frame.lineno or 0, frame.name, frame.line or "") for frame in stack]


def _error(outcome: ExportedProgram | Exception) -> Exception | None:
    return outcome if isinstance(outcome, Exception) else None


def _modes(attempts: Sequence[Trace], *, strict: bool) -> Iterator[Cause]:
    """Whether the other mode is a way out."""
    asked, other = attempts[strict], attempts[not strict]
    if asked.exported or not other.exported:
        return
    ways = ("without strict mode", "in strict mode")
    problem = f"torch.export refuses this method {ways[strict]}, and exports it {ways[not strict]}"
    yield Cause("mode", problem, (f"set `strict: {str(not strict).lower()}` for the model",), only=asked.mode)


def _explained(attempt: Trace, causes: Sequence[Cause]) -> bool:
    return attempt.exported or any(cause.kind != "mode" and cause.only in (None, attempt.mode) for cause in causes)


def _known(attempts: Sequence[Trace]) -> Iterator[Cause]:
    """Known causes of errors that nothing else explains."""
    causes = [(attempt, cause) for attempt in attempts for cause in known_causes("export", attempt.problem)]
    for attempt, cause in causes:
        both = len(causes) > 1 and len({cause.remedies for _, cause in causes}) == 1
        yield replace(cause, where=attempt.where, code=attempt.code, only=None if both else attempt.mode)


def _distinct(causes: Iterable[Cause]) -> Iterator[Cause]:
    """Each cause once: a line does the same in both modes."""
    seen: set[tuple[str, ...]] = set()
    for cause in causes:
        shared = cause.kind == "known cause" or _AROUND[1].partition("{")[0] in "".join(cause.remedies)
        identity = cause.remedies if shared else (cause.where,) if cause.where else (cause.kind, cause.problem)
        if identity not in seen:
            seen.add(identity)
            yield cause


def _drafted(
    drafted: ExportedProgram,
    error: Exception | None,
    attempt: Trace,
    only: Mode | None,
    frames: Frames,
    fixes: Sequence[str],
    *,
    recurrent: bool,
) -> Iterator[Cause]:
    """Causes that draft export found, without strict mode; a `recurrent` model's steps are taken apart by `unbind`."""
    report: compat.DraftExportReport = drafted._report  # noqa: SLF001 - where draft_export puts it
    for failure in report.failures:
        where, code = frames.of_stack(_stack(failure, "user_stack"))
        match failure.failure_type:
            case compat.FailureType.MISSING_FAKE_KERNEL:
                operator = _operator(failure)
                missing = error is not None and operator.partition("::")[2] in str(error)
                where, code = (attempt.where, attempt.code) if missing else ("", "")
                yield _missing_kernel(operator, report, failure, where, code)
            case compat.FailureType.MISMATCHED_FAKE_KERNEL if _operator(failure).partition("::")[0] not in _TORCHS:
                yield _mismatched_kernel(_operator(failure), str(failure.data["reason"]))
            case compat.FailureType.GUARD_ADDED:
                needed = in_python(failure.data["expr"], failure.data["symbol_to_sources"])
                split = any(function == "unbind" for _, _, function, _ in _stack(failure, "stack"))
                if recurrent and split and "unbind" not in code and re.fullmatch(r"[\w.\[\]]+ == \d+", needed):
                    yield _unrolled(needed, where, code)
                else:
                    yield size_finding(needed, fixes, where, code)
            case compat.FailureType.DATA_DEPENDENT_ERROR:
                held = (failure.data.get("frame_locals") or {}).get("locals") or {}
                finding = branch_finding(code, failure.data["expr"], str(failure.data["result"]), held)
                yield replace(finding, where=where, code=code, only=only)


def _unrolled(needed: str, where: str, code: str) -> Cause:
    problem = (
        "this line calls a recurrent layer (LSTM, GRU, RNN), which torch.export unrolls over the steps of the example: "
        f"the program is for `{needed}` only"
    )
    remedies = (
        "leave this dimension out of the dynamic shapes, and pad sequences to that length",
        "or export one step (torch.nn.LSTMCell or GRUCell, with its state as input and output), and loop around it",
    )
    return Cause("dynamic dimension", problem, remedies, where, code)


def _stack(failure: compat.FailureReport, kind: Literal["stack", "user_stack"]) -> list[tuple[str, int, str, str]]:
    """The frames of a failure, all or those that are not torch's. The report has numbers for the names of files."""
    names = {number: name for name, number in compat.INTERN_TABLE.items()}
    stack: Sequence[Mapping[str, Any]] = failure.data.get(kind) or ()
    return [(names.get(frame["filename"], ""), frame["line"], frame["name"], frame["loc"] or "") for frame in stack]


def _operator(failure: compat.FailureReport) -> str:
    """The operator's name, such as ``mylib::sort``."""
    namespace, _, name = str(failure.data["op"]).partition(".")
    return f"{namespace}::{name.removesuffix('.default')}"


def _missing_kernel(
    operator: str, report: compat.DraftExportReport, failure: compat.FailureReport, where: str, code: str
) -> Cause:
    outputs = {
        f"{str(profile.out_profile.dtype).removeprefix('torch.')} of {profile.out_profile.rank} dimensions"
        for profile in report.op_profiles.get(failure.data["op"], ())
        if hasattr(profile.out_profile, "rank")  # of a single output
    }
    example = f" (for the example inputs: {', '.join(sorted(outputs))})" if outputs else ""
    problem = f"the operator {operator} has no fake kernel, which says what shape and dtype it returns"
    register = (
        f"register one where the operator is defined: a function under `@torch.library.register_fake({operator!r})` "
        f"that takes its arguments and returns an empty tensor of the right shape and dtype{example}"
    )
    remedies = (register, "ExecuTorch's runtime needs an out variant and a kernel of the operator, too")
    return Cause("missing fake kernel", problem, remedies, where, code)


def _mismatched_kernel(operator: str, reason: str) -> Cause:
    reason = reason.rstrip("!.")
    problem = f"the fake kernel of the operator {operator} says other than what the operator returns: {reason}"
    remedy = (
        f"correct the function under `@torch.library.register_fake({operator!r})`: programs are exported and memory is "
        "planned by what it says"
    )
    return Cause("mismatched fake kernel", problem, (remedy,))


def _fixes(
    errors: Mapping[bool, Exception | None], name: str, method: MethodDefinition, shapes: Shapes
) -> tuple[str, ...]:
    """Remedies for dynamic dimensions: torch's, or sizes tried if it knows one or none; `errors` by strict mode."""
    strict = errors[False] is None
    message = str(errors[strict] or "")
    suggested: dict[str, str] = dict(_FIX.findall(message.partition("Suggested fixes:")[2]))
    if refused := _REFUSED.search(message):
        for dimension in refused[1].split(", "):
            if suggested.get(dimension, "0").isdecimal():
                suggested |= _tried(dimension, name, method, shapes, strict=strict)
    return tuple(filter(None, (_remedy(each, value, suggested) for each, value in suggested.items())))


def _tried(dimension: str, name: str, method: MethodDefinition, shapes: Shapes, *, strict: bool) -> dict[str, str]:
    """Sizes of a dimension for which torch.export takes the method: larger ones or multiples, in torch's notation."""
    dynamic = dynamic_shapes_of(name, method, shapes)
    asked = asked_sizes(method.module, method.example_inputs[0], dynamic)
    size = next((each for each in asked if each.name == dimension), None)
    if size is None or size.maximum is None:
        return {}
    steps = [step for step in range(2, size.size // 2 + 1) if size.size % step == 0][:2]
    for step, least in [(1, 4), *((step, step) for step in steps), (1, size.size)]:
        part = dimension if step == 1 else f"_{dimension}"
        smallest = max(least, size.minimum or 0)
        if smallest > size.size or size.maximum < 2 * step:
            continue
        dim = Dim(part, min=-(-smallest // step), max=size.maximum // step)
        sized = dim if step == 1 else step * dim
        trial = compat.pytree.tree_map_only(
            Dim, lambda old, sized=sized: sized if old.__name__ == dimension else old, dynamic
        )
        if not _error(_exported(name, replace(method, dynamic_shapes=trial), None, strict=strict)):
            return {part: repr(dim)} | ({} if step == 1 else {dimension: f"{step}*{part}"})
    return {}


def _remedy(name: str, value: str, fixes: Mapping[str, str]) -> str:
    """Torch's suggestion for a dynamic dimension, in words; empty for its own name of a part of another one."""
    if value.isdecimal():
        return f"leave {name!r} out of the dynamic shapes: it is always {value}"
    if value.isidentifier():
        return f"give {name!r} and {value!r} one name in the dynamic shapes: they are always equal"
    if bounds := _DIM.fullmatch(value):
        return "" if name.startswith("_") else f"bound {name!r} in the dynamic shapes: {{{_limits(bounds)}}}"
    parts = {part: fixes.get(part, f"Dim({part!r})") for part in re.findall(r"_\w+", value)}
    definitions = ", ".join(f"{part} = torch.export.{dim}" for part, dim in parts.items())
    multiple = _MULTIPLE.fullmatch(value)
    if multiple and (bounds := _DIM.fullmatch(parts[multiple["part"]])):
        within = _limits(bounds, int(multiple["step"]))
        return f"bound {name!r} in the dynamic shapes: {{{within}}}; in a builder, `{value}` with {definitions}"
    return f"make {name!r} `{value}` in the dynamic shapes that the builder returns, with {definitions}"


def _limits(bounds: re.Match[str], step: int = 1) -> str:
    """The bounds of a `Dim`, or of a multiple of it, as a zoo file has them."""
    least, most = bounds.groups("")
    sizes = {"min": int(least or 2) * step} | ({"max": int(most) * step} if most else {})  # torch leaves a min of 2 out
    return ", ".join(f"{name}: {size}" for name, size in (sizes | ({"multiple_of": step} if step > 1 else {})).items())


def _graph_breaks(error: Exception, method: MethodDefinition, frames: Frames) -> Iterator[Cause]:
    """Lines that strict mode cannot trace: that of the error, and those that `explain` finds after it."""
    yield _graph_break(str(error), *frames.of_error(error))
    with contextlib.suppress(Exception):  # `explain` goes on after breaks, in code that may not be prepared for it
        compat.dynamo_reset()
        module = copy_module(method.module)
        for reason in compat.dynamo_explain(module)(*method.example_inputs[0]).break_reasons:
            if reason.graph_break:
                yield _graph_break(reason.reason, *frames.of_stack(_summaries(reason.user_stack)))


def _graph_break(reason: str, where: str, code: str) -> Cause:
    if "Data-dependent branching" in reason or reason.startswith("generic_jump"):
        return replace(branch_finding(code, "", "", {}), where=where, code=code, only="strict")
    message = _ADVICE.split(reason)[0]
    explained = re.search(r"Cause: (.+?)(?=\n\s*\n|\n *Hint:|\Z)", message, re.DOTALL)
    what = " ".join((explained[1] if explained else message.partition("\n")[0]).split())
    problem = f"strict mode cannot trace this line: {what.rstrip('.')}"
    hints = [" ".join(hint.split()) for hint in re.findall(r"Hint: (.+)", message)]
    remedies = [hint for hint in hints if not _UNHELPFUL.search(hint)]
    if not code.startswith(("return", "def ")):
        remedies.append(LEAVE_OUT)
    return Cause("graph break", problem, tuple(remedies), where, code, only="strict")

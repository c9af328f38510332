"""Every error pteforge raises on purpose.

PteforgeError
+-- InputError              bad input; nothing was started (exit code 2)
|   +-- ConfigError             a YAML file, a --set or a field of one; names file, line, column, field
|   +-- SourceError             a model's source: builder, example inputs, .pt2 file
|   +-- TargetError             unknown target, unavailable target, unusable option or operator
|   +-- ToolchainError          the installed torch or ExecuTorch lacks what is needed
|   +-- FileFormatError         bytes that are not the expected file format (.pte, .pt2)
|   +-- NoPayloadFits           no payload of a fat file can run on this machine
+-- StoreError              the store or the ledger
|   +-- StoreUnusable           cannot be opened, read or written; untrusted (exit code 2)
|   |   +-- StoreAway               does not answer or has no space left; it may be usable later
|   +-- LeaseLost               another process has taken over what this one was doing
|   +-- ObjectMissing           an object that a ref names is missing
|   +-- ObjectDamaged           an object whose bytes do not match its digest; it was quarantined
+-- StageError              one stage of one model; other models go on
|   +-- StageFailed             the body raised
|   |   +-- CodeChanged             what ran may be other code than its key says; running it again helps
|   +-- StageCrashed            its process died (signal, exit)
|   +-- StageTimedOut           its process was killed at the time limit
|   +-- StageOutOfMemory        its process was killed at the memory limit
+-- VerificationFailed      a produced file does not compute what eager computes
+-- AccuracyMissed          a produced file scores less than its recipe requires
+-- ReleaseError            a release
|   +-- ReleaseDamaged          its bytes are not those that were published, or not signed by the given key
|   +-- ReleaseHeldBack         it is worse than the channel's present release by more than the gates allow
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any


def printable(text: str, *, keep: str = "") -> str:
    r"""The text with unprintable characters escaped, as in ``\x1b``, except those in `keep`.

    What is not pteforge's own text, such as names, logs and messages of others, may contain characters that command a
    terminal, or reorder what it shows. Text that was escaped before stays as it is.
    """
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() or letter in keep else letter.encode("unicode_escape").decode("ascii")
        for letter in text
    )


class PteforgeError(Exception):
    """Root of all errors raised by pteforge. The message says what, where and what to do.

    Attributes:
        findings: causes and ways out that were found after it was raised: `tasks.results.diagnosis.Cause`.
        rejected: a `pteforge.Exported`, if `pteforge.export` made a file that is outside of its recipe's bounds.
    """

    findings: tuple[Any, ...] = ()
    rejected: Any = None

    def __str__(self) -> str:
        return printable(super().__str__(), keep="\n\t")

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles message and attributes, whatever the constructor takes: errors come back from other processes."""
        return _restore, (type(self), self.args, self.__dict__)


def _restore(kind: type[PteforgeError], args: tuple[Any, ...], attributes: dict[str, Any]) -> PteforgeError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(attributes)
    return error


class FileWarning(UserWarning):
    """A file was made, and is not all that was asked for: what `pteforge.export` warns of."""


class InputError(PteforgeError):
    """Input from the user cannot be used. The command line exits with 2."""


@dataclass(frozen=True, slots=True)
class Location:
    """A position in a user's file. Lines and columns count from 1; None if there is no position."""

    file: str
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        return ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)


class ConfigError(InputError):
    """A problem in a configuration file or a ``--set`` value.

    Attributes:
        location: the position; for a value from the command line, the file is ``--set KEY``.
        field: dotted path of the field, for example ``models.resnet8.recipes[1]``.
    """

    def __init__(self, problem: str, *, location: Location | None = None, field: str | None = None) -> None:
        self.problem = problem
        self.location = location
        self.field = field
        where = ": ".join(str(part) for part in (location, field) if part)
        super().__init__(f"{where}: {problem}" if where else problem)


class SourceError(InputError):
    """A model's source cannot be used: no such builder, wrong return type, inputs that do not fit, damaged ``.pt2``."""


class TargetError(InputError):
    """A target, one of its options, or an operator named in a recipe is unknown or not available here."""


class ToolchainError(InputError):
    """The installed torch or ExecuTorch lacks something that is needed."""


class FileFormatError(InputError):
    """Bytes that are damaged, or not in the expected file format."""


class NoPayloadFits(InputError):
    """No payload of a fat file can run on this machine; `report` has a line per payload with the reason."""

    def __init__(self, file: str, report: tuple[str, ...]) -> None:
        self.report = report
        super().__init__("\n  ".join([f"{file}: none of the payloads can run here:", *report]))


class StoreError(PteforgeError):
    """The artifact store or the ledger."""


class StoreUnusable(StoreError, InputError):
    """The store cannot be opened, read or written, or is not trusted."""


class StoreAway(StoreUnusable):
    """The store does not answer, its server is in trouble, or its disk is full. It may be usable later."""


def is_full(error: object) -> bool:
    """Whether an error of the operating system says that there is no space left."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def unusable(error: OSError) -> type[StoreUnusable]:
    """The error of ours for one of the operating system's, about a store or the folder for results."""
    return StoreAway if is_full(error) else StoreUnusable


class LeaseLost(StoreError):
    """Another process has taken over what this one was doing, since it could not be heard of for a while."""


class ObjectMissing(StoreError):
    """An object named by a ref is not in the store; `digest` is its SHA-256."""

    def __init__(self, digest: str, store: str) -> None:
        self.digest = digest
        super().__init__(f"object {digest} is not in the store {store}; the stage that makes it has to run again")


class ObjectDamaged(StoreError):
    """An object's bytes do not match `digest`, its SHA-256; they were moved to `quarantine` and are never used."""

    def __init__(self, digest: str, store: str, quarantine: str) -> None:
        self.digest = digest
        self.quarantine = quarantine
        super().__init__(
            f"object {digest} in {store} is damaged; moved to {quarantine}, the stage that makes it has to run again"
        )


class StageError(PteforgeError):
    """One stage produced no outputs. Other models and specializations are not affected.

    `log_tail` is the end of the stage's log; `bad_input` means that the user's builder, inputs or file is the cause,
    `user_code` that the user's code raised it, `lost_object` that an object of the store was missing or damaged.
    """

    def __init__(
        self,
        problem: str,
        *,
        log_tail: str = "",
        bad_input: bool = False,
        user_code: bool = False,
        lost_object: bool = False,
    ) -> None:
        self.log_tail = log_tail
        self.bad_input = bad_input
        self.user_code = user_code
        self.lost_object = lost_object
        super().__init__(problem)


class StageFailed(StageError):
    """The stage's body raised an exception."""

    @classmethod
    def of(cls, error: Exception) -> StageFailed:
        """Wraps what a body has raised in this process."""
        lost_object = isinstance(error, ObjectMissing | ObjectDamaged)
        return cls(
            whole_message(error),
            bad_input=is_bad_input(error),
            user_code=from_user_code(error),
            lost_object=lost_object,
        )


class CodeChanged(StageFailed):
    """Code has changed since it was loaded, so nothing is recorded."""


class StageCrashed(StageError):
    """The stage's process ended without an answer: by a signal, or because it exited."""


class StageTimedOut(StageError):
    """The stage's process was killed because it exceeded its time limit."""


class StageOutOfMemory(StageError):
    """The stage's process was killed because it exceeded its memory limit."""


class VerificationFailed(PteforgeError):
    """The outputs of a produced file differ from eager's by more than the recipe's bounds. It is not published."""


class AccuracyMissed(PteforgeError):
    """The score of a produced file is below the recipe's bounds. It is not published as a result."""


class ReleaseError(PteforgeError):
    """A release."""


class ReleaseDamaged(ReleaseError):
    """The bytes of a release are not those that were published, or are not signed by the key that was given."""


class ReleaseHeldBack(ReleaseError):
    """A release is worse than the present one of its channel by more than the gates allow. The channel stays."""


class ZooFailed(PteforgeError):
    """Some files of a zoo were not made; others stay. `in_vain`: by bad input or cancelled alone, so no retry helps."""

    def __init__(self, problem: str, *, in_vain: bool = False) -> None:
        self.in_vain = in_vain
        super().__init__(problem)


def is_bad_input(error: BaseException | None) -> bool:
    """Whether the user's input is the cause, so that trying again does not help."""
    return isinstance(error, InputError) and not (isinstance(error, StoreAway) or is_full(error.__cause__))


def from_user_code(error: BaseException) -> bool:
    """Whether the cause of an error is an exception that went through the user's code: a builder, a model's `forward`.

    Neither inputs that torch or a library does not accept, nor a module that cannot be imported.
    """
    import traceback  # noqa: PLC0415 - only failures need it

    cause = error.__cause__ if isinstance(error, InputError) else None
    frames = traceback.extract_tb(cause.__traceback__) if cause else ()
    return any(is_of_user(frame.filename) for frame in frames)


def is_of_user(file: str) -> bool:
    """Whether a file of code is the user's: neither pteforge's, Python's or an installed package's, nor generated."""
    import sysconfig  # noqa: PLC0415 - only failures and warnings need it

    package = Path(__file__).parent
    ours = (f"{package}/{folder}/" for folder in ("api", "evaluators", "flows", "tasks"))
    return not (file.startswith((*ours, sysconfig.get_path("stdlib"), "<")) or "-packages/" in file)


def first_line(problem: str | BaseException) -> str:
    """The first line of a message or of an error; the name of an error's type if it says nothing."""
    lines = str(problem).strip().splitlines()
    return lines[0] if lines else "" if isinstance(problem, str) else type(problem).__name__


def whole_message(error: BaseException) -> str:
    """Type and message of an error, preceded by those of its root cause where a library's error hides it.

    Errors of ours say what their cause said, so that only a cause's own cause precedes them.
    """
    cause = error.__cause__ if isinstance(error, PteforgeError) else error
    root = cause
    while root is not None and root.__cause__ is not None:
        root = root.__cause__
    own, said = _typed(error), str(root).strip() if root is not cause else ""
    return own if not said or said in own else f"{_typed(root)}\n{own}"


def _typed(error: BaseException | None) -> str:
    """`ExceptionType: message`, without the empty line that begins many of torch's messages."""
    message = str(error).strip()
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


_OF_RUNTIME = re.compile(r"(?:[EF] \S+ \w+:|\[)(?!cpuinfo)\w+\.(?:cpp|h|cc|c):\d+\] (?P<text>.+)")
_NO_REASON = re.compile(
    r"cpuinfo|^arg \d+ with type id|not registering|backend .* not available|^(Loading|Program) ", re.IGNORECASE
)


def runtime_reasons(log: str, most: int = 4) -> tuple[str, ...]:
    """The last things that ExecuTorch's runtime said in a log of why it refused something, each once, in order."""
    said = [found["text"].strip().removesuffix(":") for line in log.splitlines() if (found := _OF_RUNTIME.match(line))]
    return tuple(dict.fromkeys(text for text in said if not _NO_REASON.search(text)))[-most:]


@contextmanager
def convert_os_errors(kind: type[PteforgeError], problem: str, advice: str = "") -> Iterator[None]:
    """Converts an OSError to an error of ours: the problem, the reason that the system gives, and advice."""
    try:
        yield
    except OSError as error:
        kind = unusable(error) if kind is StoreUnusable else kind
        raise kind(f"{problem}: {error.strerror or error}" + (f"; {advice}" if advice else "")) from error

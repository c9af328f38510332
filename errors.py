"""Every error pteforge raises on purpose.

PteforgeError
+-- InputError              what the user gave cannot be used; nothing was started (exit code 2)
|   +-- ConfigError             a YAML file, a --set or a field of one; names file, line, column, field
|   +-- SourceError             a model's source: builder, example inputs, .pt2 file
|   +-- TargetError             unknown target, unavailable target, unusable option or operator
|   +-- FileFormatError         bytes that are not the file they should be (.pte, .pt2)
|   +-- NoPayloadFits           no payload of a fat file can run on this machine
+-- StoreError              the store or the ledger
|   +-- StoreUnusable           cannot be opened, read or written; untrusted (exit code 2)
|   +-- ObjectMissing           an object that a ref names is not there
|   +-- ObjectDamaged           an object whose bytes are not what its digest says; it was moved aside
+-- StageError              one stage of one model; siblings go on
|   +-- StageFailed             the body raised
|   +-- StageCrashed            its process died (signal, exit)
|   +-- StageTimedOut           its process was killed at its time limit
|   +-- StageOutOfMemory        its process was killed at its memory bound
+-- VerificationFailed      a produced file does not compute what eager computes
+-- AccuracyMissed          a produced file scores less than its recipe asks for
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


class PteforgeError(Exception):
    """Root of all errors raised by pteforge. The message says what, where and what to do."""


class InputError(PteforgeError):
    """Something the user gave cannot be used. The command line exits with 2."""


@dataclass(frozen=True, slots=True)
class Location:
    """Where in a user's file something stands. Lines and columns count from 1; None where there is no file position."""

    file: str
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        """`file:line:column`, as editors and compilers print it."""
        return ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)


class ConfigError(InputError):
    """A problem in a configuration file or a ``--set`` value.

    Attributes:
        location: where it stands; its file is ``--set KEY`` for a value that came from the command line.
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


class FileFormatError(InputError):
    """Bytes that are not the file format they are said to be, or are damaged."""


class NoPayloadFits(InputError):
    """No payload of a fat file can run on this machine.

    Attributes:
        report: a line for each payload, which says why it was passed over.
    """

    def __init__(self, file: str, report: tuple[str, ...]) -> None:
        self.report = report
        super().__init__("\n  ".join([f"{file}: none of the payloads can run here:", *report]))


class StoreError(PteforgeError):
    """The artifact store or the ledger."""


class StoreUnusable(StoreError, InputError):
    """The store cannot be opened, read or written, or must not be trusted as it stands."""


class ObjectMissing(StoreError):
    """An object named by a ref is not in the store.

    Attributes:
        digest: SHA-256 of the missing object.
    """

    def __init__(self, digest: str, store: str) -> None:
        self.digest = digest
        super().__init__(f"object {digest} is not in the store {store}; the stage that makes it has to run again")


class ObjectDamaged(StoreError):
    """An object's bytes are not what its digest says; it has been moved aside and is never used.

    Attributes:
        digest: SHA-256 the object should have.
        quarantine: where the damaged bytes are now.
    """

    def __init__(self, digest: str, store: str, quarantine: str) -> None:
        self.digest = digest
        self.quarantine = quarantine
        super().__init__(
            f"object {digest} in {store} is damaged; moved to {quarantine}, the stage that makes it has to run again"
        )


class StageError(PteforgeError):
    """One stage did not give its outputs. Other models and specializations are not affected.

    Attributes:
        log_tail: last lines that the stage's process wrote.
        bad_input: the cause is what the user gave (builder, inputs, file), not the lowering.
    """

    def __init__(self, problem: str, *, log_tail: str = "", bad_input: bool = False) -> None:
        self.log_tail = log_tail
        self.bad_input = bad_input
        super().__init__(problem)


class StageFailed(StageError):
    """The stage's body raised an exception."""


class StageCrashed(StageError):
    """The stage's process ended without an answer: a signal, or an exit of its own."""


class StageTimedOut(StageError):
    """The stage's process was killed because its time limit was over."""


class StageOutOfMemory(StageError):
    """The stage's process was killed because it went over its memory bound."""


class VerificationFailed(PteforgeError):
    """A produced file was run and does not give what eager gives, within the recipe's bounds. It is not published."""


class AccuracyMissed(PteforgeError):
    """A produced file was scored by the recipe's evaluator and is below its bounds. It is not published as a result.

    Attributes:
        rejected: what was made, a `pteforge.Exported`, where `pteforge.export` raises this.
    """

    def __init__(self, problem: str, *, rejected: Any = None) -> None:
        self.rejected = rejected
        super().__init__(problem)

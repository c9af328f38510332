"""The result of one model and recipe: one record, which `report`, or the failure, makes and everything else reads."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import PlainSerializer

from ...artifacts.digest import Digest, canonical_json, digest_file
from ...artifacts.files import read_sidecar
from ...artifacts.records import Record
from ...artifacts.ref import ArtifactRef
from ...artifacts.runs import RunRecord
from ...configs.places import HOST
from ...errors import InputError, PteforgeError, StageError, StageFailed, is_bad_input
from ...formats.contract import Contract
from .diagnosis import Cause
from .figures import REFERENCE, WHOLE_FILE, Figures, Proof, Worst
from .finding import AREAS, Fact, Finding, Findings, Value, from_json, to_json
from .numerics import Rung, Rungs
from .tables import fat_cost, format_size

Status = Literal["made", "cached", "failed", "not applicable"]

_Finding = TypeVar("_Finding", bound=Finding)
_Path = Annotated[Path, PlainSerializer(str)]

# outputs of `compile` in debug mode, which are delivered by payload; that of a plain file has no name
DEBUG_ROLES = ("etrecord", "debug_handles", "delegate_map", "debug_sources")
NO_PROVENANCE = (ValueError, TypeError, LookupError, AttributeError)  # of `of_provenance`, for other JSON
_PARTS = ("file", "data", "assets", *DEBUG_ROLES)


@dataclass(frozen=True, slots=True)
class Failure(Record):
    """Why there is no file."""

    step: str  # that failed; empty if none did
    problem: str
    log_tail: str  # the end of its log
    bad_input: bool  # whether the user's input is the cause
    findings: tuple[Cause, ...] = ()  # with ways out
    user_code: bool = False  # whether the user's code raised an exception
    cancelled: bool = False  # by hand: it is not tried again before the next run

    @classmethod
    def of(cls, step: str, error: Exception) -> Failure:
        problem = str(error) or type(error).__name__
        findings = error.findings if isinstance(error, PteforgeError) else ()
        log = error.log_tail if isinstance(error, StageError) else ""
        bad_input = error.bad_input if isinstance(error, StageError) else is_bad_input(error)
        return cls(step, problem, log, bad_input, findings, isinstance(error, StageError) and error.user_code)

    @property
    def unusable(self) -> bool:
        """Whether the input cannot be used: the exit code is 2. Where the user's code raises, its stage failed."""
        return self.bad_input and not self.user_code

    @property
    def log(self) -> str:
        """The end of the log, without a traceback that says the same as the message."""
        log = self.log_tail.partition("Traceback (most recent call last)")[0] if self.bad_input else self.log_tail
        return log.strip("\n")

    def error(self, what: str) -> InputError | StageFailed:
        """An exception about a model or file."""
        problem = f"{self.named(what)}: {self.problem}"
        return InputError(problem) if self.unusable else StageFailed(f"{problem}\n{self.log_tail}".rstrip())

    @property
    def stage(self) -> str:
        """Name of the stage that failed; empty if none did, for example if a method needs too much memory."""
        return self.step.partition("/")[0]

    def named(self, model: str) -> str:
        """The model, and the step that failed if one did."""
        return f"{model} {self.step}".rstrip()

    @property
    def diagnosed(self) -> bool:
        """Whether the findings name lines of the model, and so say more than message and log."""
        return any(finding.where for finding in self.findings)


@dataclass(frozen=True, slots=True)
class MethodCalls:
    """The calls of a method: of delegates, and of kernels, which run what no delegate took."""

    payload: str  # empty for a plain file
    method: str
    delegate_calls: int
    kernel_calls: int

    def __str__(self) -> str:
        payload = f" of payload {self.payload}" if self.payload else ""
        return f"method {self.method}{payload}"


@dataclass(frozen=True, slots=True)
class Delivered(Record):
    """The result of a model and a recipe."""

    model: str
    recipe: str
    status: Status  # ``made`` if any of its stages ran, ``cached`` if none did
    path: _Path | None = None  # the `.pte`, if there is one: verified, unless the recipe does not ask for it
    size: int = 0  # bytes of the `.pte` and its `.ptd`
    # SHA-256 of the files by the ending of their names; of the provenance without the run that wrote it
    digests: Mapping[str, Digest] = field(default_factory=dict)
    assets: Mapping[str, Digest] = field(default_factory=dict)  # SHA-256 of other files, such as a tokenizer, by name
    parts: Mapping[str, ArtifactRef] = field(default_factory=dict)  # all in the store, by role of the stage `report`
    backends: tuple[str, ...] = ()  # those that the file needs
    methods: tuple[str, ...] = ()  # its methods, sorted
    payload_sizes: Mapping[str, int] = field(default_factory=dict)  # bytes of each payload of a fat file, by name
    targets: tuple[str, ...] = ()  # of its specializations
    toolchain: Mapping[str, str] = field(default_factory=dict)  # distribution to version
    delegated: tuple[MethodCalls, ...] = ()  # of a plain file, or of all payloads of a fat one, if it has been read
    findings: Findings = ()
    contract: Contract | None = None  # what a runtime must have to load the file
    left_out: Mapping[str, str] = field(default_factory=dict)  # name of a specialization that the file lacks -> reason
    seconds: float = 0.0  # of all its stages, including those found in the store
    failure: Failure | None = None
    rejected: _Path | None = None  # the file that missed its accuracy gate
    reason: str = ""  # why the recipe does not apply to the model
    until: str = ""  # the stage after which it stopped, as it was asked to; empty where it did not

    @classmethod
    def of_provenance(cls, provenance: Mapping[str, Any]) -> Self:
        """What the stage `report` says of a file; raises `NO_PROVENANCE` for anything else."""
        provenance = upgraded(provenance)
        file, data = provenance["file"], provenance["data"]
        files = {"pte": file, **({"ptd": data} if data else {})}
        fields = {
            "model": provenance["model"],
            "recipe": provenance["recipe"],
            "status": "made",
            "size": sum(written["size"] for written in files.values()),
            "digests": {ending: written["sha256"] for ending, written in files.items()},
            "assets": {name: asset["sha256"] for name, asset in provenance.get("assets", {}).items()},
            "parts": {
                role: ref for role, ref in provenance.get("artifacts", {}).items() if role.partition("/")[0] in _PARTS
            },
            "targets": [target["name"] for target in provenance.get("specializations", {}).values()],
            "left_out": dict.fromkeys(provenance.get("left_out", ()), ""),
            "payload_sizes": {payload["name"]: payload["size"] for payload in file.get("payloads", ())},
            **{name: file[name] for name in ("backends", "methods") if name in file},
            **{name: provenance[name] for name in ("toolchain", "contract") if name in provenance},
        }
        findings = provenance.get("findings", {}) | provenance.get("run", {}).get("findings", {})
        return replace(cls.from_json(fields), findings=tuple(finding.brief() for finding in from_json(findings)))

    @classmethod
    def from_json(cls, value: Any) -> Self:
        return cls.decode(canonical_json(_upgraded_record(value)))

    @classmethod
    def of_run(cls, run: RunRecord, model: str, recipe: str) -> Self | None:
        """The record of a run; None if there is none, or none that can be read."""
        with suppress(*NO_PROVENANCE):
            return cls.from_json(run.files[model][recipe])
        return None

    @classmethod
    def next_to(cls, path: Path, sha256: str = "") -> Self | None:
        """The provenance next to a `.pte`; None if there is none, or it is another file's, by its SHA-256."""
        try:
            delivered = cls.of_provenance(json.loads(read_sidecar(path.with_suffix(".json"))))
            return delivered if delivered.sha256 == (sha256 or digest_file(path)) else None
        except (OSError, *NO_PROVENANCE):
            return None

    def every(self, kind: type[_Finding]) -> tuple[_Finding, ...]:
        """All findings of a kind."""
        return tuple(finding for finding in self.findings if isinstance(finding, kind))

    def get(self, kind: type[_Finding]) -> _Finding | None:
        """The finding of a kind, of which a file has one at most."""
        return next(iter(self.every(kind)), None)

    def facts(self) -> Iterator[Fact]:
        """Everything that is known of it, by area."""
        kinds = dict.fromkeys(type(finding) for finding in self.findings)
        facts = [*self._own_facts(), *(fact for kind in kinds for fact in kind.facts(self.every(kind), self))]
        yield from sorted(filter(str, facts), key=lambda fact: AREAS.index(fact.area))

    def _own_facts(self) -> Iterator[Fact]:
        """What the record says besides findings."""
        if self.reason:
            yield Fact("file", note=f"does not apply: {self.reason}")
        if self.size:
            yield Fact("file", "size", self.size, "B", column=1, lower_is_better=True)
            yield Fact("file", "SHA-256", self.sha256)
        if len(self.payload_sizes) > 1 and self.size:
            yield Fact("payloads", note=f"takes {format_size(self.size)}, {fat_cost(self.size, self.payload_sizes)}")
        for payload, reason in self.left_out.items():
            yield Fact("file", note=f"without {payload}: {reason}".rstrip(": "), telling=True)
        if self.contract:
            if oldest := next(iter(self.contract.runtimes), ""):
                yield Fact("file", "oldest runtime", oldest)
            yield Fact("operators", "libraries to link", ", ".join(self.contract.libraries) or "none")
        yield from (Fact("toolchain", name, version) for name, version in self.toolchain.items())

    @property
    def notes(self) -> tuple[Fact, ...]:
        """The facts that have a note, each once."""
        return tuple({fact.note: fact for fact in self.facts() if fact.note}.values())

    @property
    def columns(self) -> dict[str, Fact]:
        """The facts that tables of files have, by name; a file that failed has none."""
        return {} if self.failure else {fact.name: fact for fact in self.facts() if fact.column}

    @property
    def figures(self) -> Figures | None:
        return self.get(Figures)

    @property
    def ladder(self) -> Rungs | None:
        """How far each program on the way to the file is from eager, if that was measured."""
        rungs = self.every(Rung)
        return Rungs(rungs) if rungs else None

    @property
    def name(self) -> str:
        return f"{self.model}/{self.recipe}"

    @property
    def data(self) -> Path | None:
        """The `.ptd` next to the `.pte`, if weights are in a file of their own."""
        return self.path.with_suffix(".ptd") if self.path and "ptd" in self.digests else None

    @property
    def debugging(self) -> dict[str, dict[str, ArtifactRef]]:
        """The outputs of debug mode, by payload and role; the payload of a plain file has no name."""
        outputs: dict[str, dict[str, ArtifactRef]] = {}
        for role, ref in self.parts.items():
            name, _, payload = role.partition("/")
            if name in DEBUG_ROLES:
                outputs.setdefault(payload, {})[name] = ref
        return outputs

    @property
    def sha256(self) -> str:
        """Digest of the `.pte`."""
        return self.digests.get("pte", "")

    @property
    def verified(self) -> bool:
        """Whether the file itself was run here or on a place, or a payload of it."""
        proven = self.figures is None or self.figures.of_file or any(proof.figures for proof in self.every(Proof))
        return bool(self.path) and proven

    @property
    def payloads(self) -> tuple[str, ...]:
        """Names of a fat file's payloads that a place was to run; of a plain file, ``""``."""
        figures = self.figures
        of_fat = (*figures.payloads, *(name for name in figures.not_run if name != WHOLE_FILE)) if figures else ()
        return tuple(dict.fromkeys(of_fat)) or ("",)

    def proven_on(self, payload: str) -> tuple[str, ...]:
        """The places on which a payload computes what eager computes: ``host`` or ``reference kernels``, and others."""
        here = self.figures and (payload in self.figures.payloads if payload else self.figures.of_file)
        there = [proof.place for proof in self.every(Proof) if proof.payload == payload and proof.figures]
        return (*([self.figures.by] if self.figures and here else []), *there)

    def why_not_run(self, payload: str) -> dict[str, str]:
        """Why places have not run a payload, by place."""
        here = self.figures.not_run.get(payload or WHOLE_FILE, "") if self.figures else ""
        proofs = (proof for proof in self.every(Proof) if proof.payload == payload)
        reasons = {proof.place: proof.not_run for proof in proofs if proof.not_run}
        return {**({HOST: here} if here else {}), **reasons}

    @property
    def proven(self) -> dict[str, tuple[str, ...]]:
        """`proven_on` of every payload."""
        return {payload: self.proven_on(payload) for payload in self.payloads}

    def recorded(self) -> dict[str, Any]:
        """JSON of its findings by name, and where each payload was run."""
        return {
            "proven_on": {payload: list(places) for payload, places in self.proven.items()} if self.figures else {},
            **to_json(self.findings),
        }

    @property
    def standing(self) -> str:
        """Its status, in words: a file that was run is verified, and one that nothing has run is not."""
        if self.failure:
            return f"failed at {self.failure.stage}" if self.failure.stage else "failed"
        if not self.path or self.figures is None:
            return self.status
        if not self.verified:
            return f"{self.status}, not run"
        if self.status != "made":
            return self.status
        return f"verified by {REFERENCE}" if self.proven_on("") == (REFERENCE,) else "verified"

    @property
    def measured(self) -> Worst | None:
        """The figures of the file: here, or else on the first place that ran it; None if only edge programs ran."""
        if self.figures and self.figures.of_file:
            return self.figures.overall
        return next((proof.figures.overall for proof in self.every(Proof) if proof.figures), None)

    @property
    def sqnr_db(self) -> float | None:
        """The smallest; None if all outputs equal eager's, or if nothing was `measured`."""
        return self.measured.sqnr_db if self.measured else None

    def value(self, column: str) -> Value | None:
        """What a column of tables is sorted by; None if the file has none."""
        return self.columns[column].value if column in self.columns else None

    def described(self) -> dict[str, Any]:
        """JSON for users of the file, or of why there is none: the output of ``pteforge export --json``."""
        if self.failure:
            rejected = self.rejected and str(self.rejected)
            return {"status": self.status, **self.failure.to_json(), "rejected": rejected, **to_json(self.findings)}
        if self.status == "not applicable":
            return {"status": self.status, "reason": self.reason}
        worst = self.measured
        return {
            "status": self.status,
            "file": self.path and str(self.path),
            "data": self.data and str(self.data),
            "size": self.size,
            "sha256": self.sha256,
            "seconds": round(self.seconds, 3),
            "max_abs_error": worst and worst.max_abs_error,
            "max_relative_error": worst and worst.max_relative_error,
            "sqnr_db": worst and worst.sqnr_db,
            "verified": self.verified,
            "left_out": dict(self.left_out),
            "contract": self.contract and self.contract.described(),
            "assets": list(self.assets),
            **self.recorded(),
        }


def columns_of(results: Iterable[Delivered]) -> dict[str, Fact]:
    """The columns of a table of files, by name and in order, each with a fact that is in it."""
    columns = {name: fact for result in results for name, fact in result.columns.items()}
    return dict(sorted(columns.items(), key=lambda item: AREAS.index(item[1].area)))


def delivered_by(run: RunRecord) -> dict[str, dict[str, Delivered]]:
    """The record of each model and recipe of a run, by their names; without those that cannot be read."""
    return {
        model: {recipe: result for recipe in recipes if (result := Delivered.of_run(run, model, recipe))}
        for model, recipes in run.files.items()
    }


# Versions before findings wrote provenance of format 1, and records of runs without findings.
_RENAMED = {"places": "proofs", "ladder": "numerics"}
_FIELDS = (
    *("delegation", "memory", "timings", "proofs", "numerics"),
    *("figures", "accuracy", "search", "searched", "quantization"),
)


def upgraded(provenance: Mapping[str, Any]) -> Mapping[str, Any]:
    """Provenance in today's format."""
    if provenance.get("format") != 1:
        return provenance
    verification, timings = provenance.get("verification", {}), provenance.get("run", {}).get("timings")
    findings = _findings({**provenance, "figures": verification.get("figures"), "timings": timings})
    return {**provenance, "bounds": verification.get("bounds"), "findings": findings}


def _upgraded_record(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """The JSON of a `Delivered` in today's format."""
    if "findings" in record:
        return record
    ladder = record.get("ladder") or {}
    return {**record, "findings": _findings({**record, "ladder": ladder.get("rungs")})}


def _findings(written: Mapping[str, Any]) -> dict[str, Any]:
    """Findings by name, which were fields: absent, null or empty without a finding."""
    fields = {_RENAMED.get(name, name): value for name, value in written.items() if value}
    findings = {name: fields[name] for name in _FIELDS if name in fields}
    kept = [(row["payload"], row["method"], row["operator"], row["why"]) for row in written.get("kept_on_cpu", ())]
    for work in findings.get("delegation", ()):
        for calls in work["outside"]:
            calls["kept_on_cpu"] = (work["payload"], work["method"], calls["operator"], calls["why"]) in kept
    if "quantization" in findings:
        by_method = findings["quantization"].items()
        findings["quantization"] = [{**reached, "method": method} for method, reached in by_method]
    return findings

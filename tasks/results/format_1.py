"""Reads what versions before findings wrote: provenance of format 1, and records of runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_NAMES = {"places": "proofs", "ladder": "numerics"}
_LISTS = ("delegation", "memory", "timings", "proofs", "numerics")
_OTHERS = ("figures", "accuracy", "search", "searched", "quantization")


def upgraded(provenance: Mapping[str, Any]) -> Mapping[str, Any]:
    """Provenance as today's versions write it."""
    if provenance.get("format") != 1:
        return provenance
    verification, timings = provenance.get("verification", {}), provenance.get("run", {}).get("timings")
    findings = _findings({**provenance, "figures": verification.get("figures"), "timings": timings})
    return {**provenance, "bounds": verification.get("bounds"), "findings": findings}


def upgraded_record(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """A record of what was delivered as today's versions write it."""
    if "findings" in record:
        return record
    ladder = record.get("ladder") or {}
    return {**record, "findings": _findings({**record, "ladder": ladder.get("rungs")})}


def _findings(written: Mapping[str, Any]) -> dict[str, Any]:
    """Findings by name; as yet they were fields of their own, where nothing found was nothing or an empty list."""
    found = {_NAMES.get(name, name): value for name, value in written.items() if value}
    made = {name: found[name] for name in (*_LISTS, *_OTHERS) if name in found}
    kept = [(row["payload"], row["method"], row["operator"], row["why"]) for row in written.get("kept_on_cpu", ())]
    for work in made.get("delegation", ()):
        for calls in work["outside"]:
            calls["kept_on_cpu"] = (work["payload"], work["method"], calls["operator"], calls["why"]) in kept
    if "quantization" in made:
        made["quantization"] = [{**reached, "method": method} for method, reached in made["quantization"].items()]
    return made

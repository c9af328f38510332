"""Comparing one output of the runtime with eager's."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from ...configs.verify_bounds import VerifyBounds
from ...errors import VerificationFailed
from ..figures import Case

_SILENT_DB = -300.0  # stands for minus infinity: eager gives zeros and the runtime does not


def compare(output: Any, reference: Any, *, method: str, label: str, output_position: int) -> Case:
    """Figures of one output.

    Args:
        output: what the runtime gave: a tensor, a number or None.
        reference: what eager gave.
        method: for the case and for messages.
        label: likewise.
        output_position: likewise.

    Raises:
        VerificationFailed: they cannot be compared: other type, shape or dtype, or NaN and infinity in other places.
    """
    where = f"method {method!r}, {label}, output {output_position}"
    if not isinstance(reference, torch.Tensor):
        if output != reference:
            raise VerificationFailed(f"{where}: the file gives {output!r}, eager gives {reference!r}")
        return Case(method, label, output_position, 0.0, 0.0, None)
    if not isinstance(output, torch.Tensor):
        raise VerificationFailed(f"{where}: the file gives {type(output).__name__}, eager gives a tensor")
    if (output.shape, output.dtype) != (reference.shape, reference.dtype):
        raise VerificationFailed(
            f"{where}: the file gives {output.dtype} {tuple(output.shape)}, "
            f"eager gives {reference.dtype} {tuple(reference.shape)}"
        )
    ours, eager = output.to(torch.float64), reference.to(torch.float64)
    finite = torch.isfinite(eager)
    if not torch.equal(finite, torch.isfinite(ours)) or not _same_not_finite(ours[~finite], eager[~finite]):
        raise VerificationFailed(f"{where}: NaN or infinity where eager has none, or the other way round")
    return _figures(ours[finite], eager[finite], Case(method, label, output_position, 0.0, 0.0, None))


def violations(case: Case, bounds: VerifyBounds) -> Iterator[str]:
    """What about a case is outside the bounds, in words."""
    where = f"method {case.method!r}, {case.label}, output {case.output}"
    if bounds.max_abs_error is not None and case.max_abs_error > bounds.max_abs_error:
        yield f"{where}: max abs error {case.max_abs_error:.3g} > {bounds.max_abs_error:.3g}"
    if bounds.max_relative_error is not None and case.max_relative_error > bounds.max_relative_error:
        yield f"{where}: max relative error {case.max_relative_error:.3g} > {bounds.max_relative_error:.3g}"
    if bounds.min_sqnr_db is not None and case.sqnr_db is not None and case.sqnr_db < bounds.min_sqnr_db:
        yield f"{where}: SQNR {case.sqnr_db:.1f} dB < {bounds.min_sqnr_db:.1f} dB"


def _same_not_finite(ours: torch.Tensor, eager: torch.Tensor) -> bool:
    same_values = torch.equal(torch.nan_to_num(ours, nan=0.0), torch.nan_to_num(eager, nan=0.0))
    return bool(same_values and torch.equal(torch.isnan(ours), torch.isnan(eager)))


def _figures(ours: torch.Tensor, eager: torch.Tensor, case: Case) -> Case:
    difference = (ours - eager).abs()
    error = difference.max().item() if difference.numel() else 0.0
    if not error:
        return case
    peak = eager.abs().max().item()
    if not peak:
        return replace(case, max_abs_error=error, max_relative_error=error, sqnr_db=_SILENT_DB)
    # Sums of squares are taken of values up to 1, since those of large ones overflow and those of small ones vanish.
    ratio = (eager / peak).square().sum().item() / (difference / error).square().sum().item()
    decibels = 10 * math.log10(ratio) + 20 * (math.log10(peak) - math.log10(error))
    return replace(case, max_abs_error=error, max_relative_error=error / peak, sqnr_db=max(decibels, _SILENT_DB))

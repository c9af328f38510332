"""Recipes that are shipped with pteforge: one YAML file each, read when a zoo names it."""

from __future__ import annotations

from importlib.resources import files

_SUFFIX = ".yaml"

RECIPE_TYPES = {
    "xnnpack_fp32": "xnnpack-fp32",
    "xnnpack_pt2e_int8_static_per_channel": "xnnpack-int8-static",
    "xnnpack_pt2e_int8_static_per_tensor": "xnnpack-int8-static-per-tensor",
    "xnnpack_pt2e_int8_dynamic_per_channel": "xnnpack-int8-dynamic",
    "xnnpack_torchao_int8da_int4w_per_channel": "xnnpack-int8da-int4w-per-channel",
    "xnnpack_torchao_int8da_int4w_per_tensor": "xnnpack-int8da-int4w-per-tensor",
    "coreml_fp32": "coreml-fp32",
    "coreml_fp16": "coreml-fp16",
    "coreml_pt2e_int8_static": "coreml-int8-static",
    "coreml_pt2e_int8_weight_only": "coreml-int8-weight-only",
    "coreml_torchao_int4_weight_only_per_channel": "coreml-int4-weight-only-per-channel",
    "coreml_torchao_int4_weight_only_per_group": "coreml-int4-weight-only-per-group",
    "coreml_torchao_int8_weight_only_per_channel": "coreml-int8-weight-only-per-channel",
    "coreml_torchao_int8_weight_only_per_group": "coreml-int8-weight-only-per-group",
    "coreml_codebook_weight_only": "coreml-codebook-weight-only",
}
"""Value of a recipe type of `executorch.export` to the name of the shipped recipe that does the same."""


def preset_names() -> tuple[str, ...]:
    names = (entry.name for entry in files(__name__).iterdir())
    return tuple(sorted(name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX)))


def preset_text(name: str) -> str:
    return (files(__name__) / f"{name}{_SUFFIX}").read_text(encoding="utf-8")

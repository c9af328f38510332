"""pack and serialize of fat files: payloads as they were, what they share once, methods called as before."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from pteforge.artifacts.nfat.fat_file import open_fat
from pteforge.artifacts.nfat.pack import pack_v2
from pteforge.artifacts.pte.pieces import read_payload, write_payload
from pteforge.artifacts.pte.reader import read_pte

MODELS = (
    "two_methods",
    "counter",
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("mlp", "conv_net", "two_partitions", "constant")),
)


def fat(*targets: str, **output):
    """A recipe."""
    return {"output": {"form": "fat", **output}, "specializations": [{"target": target} for target in targets]}


def opened(lowered, folder: Path):
    """The file that was made, with its data file if it has one."""
    outputs, data = lowered.outputs["serialize/tested"], []
    write_payload(outputs["file"], lowered.store, folder / "fat.pte")
    if "data" in outputs:
        data = [folder / "fat.ptd"]
        write_payload(outputs["data"], lowered.store, data[0])
    return open_fat(folder / "fat.pte", data)


@pytest.mark.parametrize("builder", MODELS)
def test_payloads_are_what_was_compiled(builder, stages, tmp_path):
    """Every payload comes out as the file that its specialization gives by itself, by preference."""
    lowered = stages.lower(f"chain_models:{builder}", fat("xnnpack", "portable"))
    container = opened(lowered, tmp_path).container
    assert [payload.name for payload in container.payloads] == ["xnnpack", "portable"]
    for payload in container.payloads:
        compiled = lowered.outputs[f"compile/tested.{payload.name}"]["payload"]
        assert container.rebuild(payload) == read_payload(compiled, lowered.store)
        assert payload.description.executorch_version == "1.5.1"
    assert container.payloads[-1].description.backends == ()


@pytest.mark.parametrize("builder", MODELS)
def test_methods_are_called_as_before(builder, stages, tmp_path):
    """The outer program has the fallback's methods, inputs and outputs; constant methods answer by themselves."""
    lowered = stages.lower(f"chain_models:{builder}", fat("xnnpack", "portable"))
    outer = opened(lowered, tmp_path).outer
    plain = read_pte(read_payload(lowered.outputs["compile/tested.portable"]["payload"], lowered.store))
    assert outer.backends == ("NfatBackend",)
    for ours, theirs in zip(outer.methods, plain.methods, strict=True):
        assert (ours.name, ours.constant) == (theirs.name, theirs.constant)
        assert nameless(ours.inputs) == nameless(theirs.inputs)
        assert nameless(ours.outputs) == nameless(theirs.outputs)
        assert ours.instructions.delegate_calls == (0 if ours.constant else 1)


def nameless(specs):
    """Tensors without the names that weights have."""
    return [dataclasses.replace(spec, name="") if hasattr(spec, "name") else spec for spec in specs]


def test_weights_are_stored_once(stages, tmp_path):
    """Linear layers have the same bytes in both payloads, which the file holds once."""
    lowered = stages.lower("chain_models:mlp", fat("xnnpack", "portable"))
    container = opened(lowered, tmp_path).container
    stored = len(container.inline) + sum(blob.size for blob in container.manifest.blobs)
    weights = sum(c.size for c in read_pte(container.rebuild(container.payload("portable"))).constants)
    assert stored + weights <= sum(payload.size for payload in container.payloads) + 4096


def test_equal_work_gives_equal_bytes(stages, tmp_path):
    """Lowering again gives the same file; so does packing its payloads again."""
    first, again = (stages.lower("chain_models:two_methods", fat("xnnpack", "portable")) for _ in range(2))
    assert first.outputs["serialize/tested"] == again.outputs["serialize/tested"]
    container = opened(first, tmp_path).container
    payloads = [(payload.description, container.rebuild(payload)) for payload in container.payloads]
    assert pack_v2(payloads).open().manifest == container.manifest


def test_weights_beside_the_file(stages, tmp_path):
    """With external data the file is small, and with its `.ptd` the payloads are what they are without."""
    inside = opened(stages.lower("chain_models:mlp", fat("xnnpack", "portable")), tmp_path).container
    lowered = stages.lower("chain_models:mlp", fat("xnnpack", "portable", external_data=True))
    beside = opened(lowered, tmp_path)
    assert beside.outer.named_data == ()
    assert [beside.container.rebuild(payload) for payload in beside.container.payloads] == [
        inside.rebuild(payload) for payload in inside.payloads
    ]
    assert lowered.provenance["data"]["sha256"]


def test_every_payload_that_can_run_is_verified(stages):
    """Figures are given by payload; one without its backend on this machine is named, with the reason."""
    lowered = stages.lower("chain_models:mlp", fat("vulkan", "xnnpack", "portable"))
    figures = lowered.provenance["verification"]["figures"]
    assert set(figures["payloads"]) == {"xnnpack", "portable"}
    assert figures["not_run"] == {"vulkan": "needs VulkanBackend, which this machine's runtime does not have"}
    assert [payload["name"] for payload in lowered.provenance["file"]["payloads"]] == ["vulkan", "xnnpack", "portable"]

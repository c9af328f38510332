"""pack and serialize of fat files: payloads as they were, what they share once, methods and their checks."""

import dataclasses
from pathlib import Path

import pytest
from pteforge.errors import PteforgeError, VerificationFailed
from pteforge.formats.nfat.container import open_fat
from pteforge.formats.nfat.golden import read_cases
from pteforge.formats.nfat.pack import pack_v2
from pteforge.formats.pte.reader import read_pte
from pteforge.runtime import load
from pteforge.tasks.programs.payload import write_payload
from pteforge.tests.lowering import recipe

MODELS = (
    "two_methods",
    "counter",
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("mlp", "conv_net", "two_partitions", "constant")),
)


FAT = recipe("xnnpack", "portable")


def opened(lowered, folder: Path):
    """The file that was made, with its data file if it has one."""
    outputs, data = lowered.outputs["serialize"], []
    write_payload(outputs["file"], lowered.store, folder / "fat.pte")
    if "data" in outputs:
        data = [folder / "fat.ptd"]
        write_payload(outputs["data"], lowered.store, data[0])
    return open_fat(folder / "fat.pte", data)


@pytest.mark.parametrize("builder", MODELS)
def test_payloads_and_methods(builder, lower, tmp_path):
    """Every payload comes out as the file that its specialization gives by itself, by preference."""
    lowered = lower(f"builders:{builder}", FAT)
    fat = opened(lowered, tmp_path)
    assert [payload.name for payload in fat.container.payloads] == ["xnnpack", "portable"]
    for payload in fat.container.payloads:
        assert b"".join(fat.container.verified(payload)) == lowered.payloads[payload.name]
        assert payload.description.executorch_version == "1.5.1"
    assert fat.container.payloads[-1].description.backends == ()

    assert fat.program.backends == ("NfatBackend",)
    for ours, theirs in zip(fat.program.methods, read_pte(lowered.payloads["portable"]).methods, strict=True):
        assert (ours.name, ours.constant) == (theirs.name, theirs.constant)
        assert nameless(ours.inputs) == nameless(theirs.inputs)
        assert nameless(ours.outputs) == nameless(theirs.outputs)
        assert ours.instructions.delegate_calls == (0 if ours.constant else 1)


def nameless(specs):
    """Tensors without the names that weights have."""
    return [dataclasses.replace(spec, name="", sizes=()) if hasattr(spec, "name") else spec for spec in specs]


def test_weights_are_stored_once(lower, tmp_path):
    """Linear layers have the same bytes in both payloads, which the file holds once."""
    inside = opened(lower("builders:mlp", FAT), tmp_path).container
    stored = len(inside.inline) + sum(blob.size for blob in inside.manifest.blobs)
    weights = sum(c.extent.size for c in read_pte(b"".join(inside.verified(inside.payload("portable")))).constants)
    assert stored + weights <= sum(payload.size for payload in inside.payloads) + 4096
    rebuilt = [b"".join(inside.verified(payload)) for payload in inside.payloads]

    lowered = lower("builders:mlp", FAT | {"output": {"form": "fat", "external_data": True}})
    outside = opened(lowered, tmp_path)
    assert outside.program.named_data == ()
    assert [b"".join(outside.container.verified(payload)) for payload in outside.container.payloads] == rebuilt
    assert lowered.provenance["data"]["sha256"]


@pytest.mark.parametrize("external_data", [False, True])
def test_the_store_has_weights_once(external_data, lower):
    """Payloads, container and file, with metadata or without, are pieces of the same weights, also within blobs."""
    source = {"builder": "builders:readers_and_writers", "kwargs": {"width": 192}}
    form = {"output": {"form": "fat", "external_data": external_data}}
    lowered = lower(source, FAT | form, metadata={"labels": ["a", "b"]})
    refs = {ref for name, roles in lowered.outputs.items() if not is_program(name) for ref in roles.values()}
    objects = {blob for ref in refs for blob in lowered.store.objects_of(ref)}
    weights = sum(constant.extent.size for constant in read_pte(lowered.payloads["portable"]).constants)
    assert sum(blob.size for blob in objects) < 1.1 * weights


def is_program(step):
    return step.startswith(("export", "edge", "partition", "preprocess"))


HALF = {"target": "vulkan", "options": {"force_fp16": True}}


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(
    ("target", "expected"),
    [("xnnpack", (1, 16 * 8 * 9 * 4, 0)), pytest.param(HALF, (2, 0, 16 * 8 * 9 * 2), marks=pytest.mark.slow)],
    ids=["layouts", "types"],
)
def test_weights_that_are_converted(shared, target, expected, lower, tmp_path):
    """A weight in another layout or in 16 bits is stored once for both backends, unless the recipe says no."""
    output = {"form": "fat", **({} if shared else {"share_transposed": False})}
    container = opened(lower("builders:wide_conv", recipe(target, "portable", output=output)), tmp_path).container
    found = [(payload.features, payload.transposed_bytes, payload.half_bytes) for payload in container.payloads]
    assert found == [expected if shared else (0, 0, 0), (0, 0, 0)]
    assert pack_of(container, share_transposed=shared).manifest == container.manifest


def pack_of(container, **options):
    payloads = [(payload.description, b"".join(container.verified(payload))) for payload in container.payloads]
    return pack_v2(payloads, **options).open()


def test_equal_work_gives_equal_bytes(lower_fresh, tmp_path):
    """Lowering again gives the same file; so does packing its payloads again."""
    first, again = (lower_fresh("builders:two_methods", FAT) for _ in range(2))
    assert first.outputs["serialize"] == again.outputs["serialize"]
    container = opened(first, tmp_path).container
    assert pack_of(container).manifest == container.manifest


def test_every_payload_that_can_run_is_verified(lower):
    """Figures are given by payload; one without its backend on this machine is named, with the reason."""
    lowered = lower("builders:mlp", recipe("vulkan", "xnnpack", "portable"))
    figures = lowered.figures
    assert set(figures["payloads"]) == {"xnnpack", "portable"}
    assert figures["not_run"] == {"vulkan": "needs VulkanBackend, which this machine's runtime does not have"}
    assert [payload["name"] for payload in lowered.provenance["file"]["payloads"]] == ["vulkan", "xnnpack", "portable"]


def checked(check, **fields):
    return recipe("xnnpack", "portable", output={"form": "fat", "self_check": check}, **fields)


@pytest.mark.parametrize(("builder", "stateful"), [("two_methods", False), ("counter", True)])
def test_self_checks(builder, stateful, lower, tmp_path):
    """Payloads carry calls of all methods with eager's outputs, in one blob, and are otherwise what they were."""
    lowered = lower(f"builders:{builder}", checked({"cases": 2}))
    container = opened(lowered, tmp_path).container
    found = [container.golden_check(payload) for payload in container.payloads]
    assert [(check.tolerance, check.repeats, bytes(check.blob)) for check in found] == [
        (pytest.approx(1e-4), 3, bytes(found[0].blob))
    ] * 2
    cases = read_cases(found[0].blob)
    examples = {
        step.partition("/")[2] or "forward": lowered.value(step, "examples")
        for step, outputs in lowered.outputs.items()
        if "examples" in outputs
    }
    assert [case.method for case in cases] == [name for name in sorted(examples) for _ in range(2)]
    for number, case in enumerate(cases):
        stored = examples[case.method]
        for golden, value in zip(case.outputs, stored["outputs"][number % 2], strict=True):
            assert golden.sizes == tuple(value.shape)
            assert golden.content == value.contiguous().numpy().tobytes()
        assert case.stateful == stateful
    plain = opened(lower(f"builders:{builder}", FAT), tmp_path).container
    assert [each.sha256 for each in container.payloads] == [each.sha256 for each in plain.payloads]
    assert [each.parts_sha256 for each in container.payloads] == [each.parts_sha256 for each in plain.payloads]
    opened(lowered, tmp_path)
    assert load(tmp_path / "fat.pte").report[-1].endswith("; it passed its own check")


@pytest.mark.parametrize(
    ("check", "verify", "tolerance"),
    [
        ({}, {"min_sqnr_db": 60.0}, 1e-3),
        ({}, {"min_sqnr_db": None}, 1e-2),
        ({"tolerance": 0.03}, {"min_sqnr_db": 60.0}, 0.03),
    ],
)
def test_tolerance_of_self_checks(check, verify, tolerance, lower, tmp_path):
    """The tolerance is the recipe's own, or that of its verification."""
    container = opened(lower("builders:mlp", checked(check, verify=verify)), tmp_path).container
    assert [payload.self_check.tolerance for payload in container.payloads] == [pytest.approx(tolerance)] * 2


def test_self_checks_that_cannot_be(lower):
    """A method without one answer, and one that fails its check here, are errors that name what to change."""
    with pytest.raises(PteforgeError, match=r"`output.self_check`: .*'forward' .*random numbers \(aten.rand"):
        lower("builders:noisy", checked({}, verify={"min_sqnr_db": None}))
    with pytest.raises(VerificationFailed, match=r"'xnnpack': .*its own check: output 0 .*`tolerance`"):
        lower("builders:conv_net", checked({"tolerance": 1e-12}))

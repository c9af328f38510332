"""`pteforge.runtime.load`: which payload it takes, and that what it gives is what the payload gives."""

from __future__ import annotations

import resource
import tempfile
from dataclasses import replace

import pytest
from pteforge.errors import FileFormatError, InputError, NoPayloadFits, PteforgeError
from pteforge.runtime import load

NOT_REGISTERED = "vulkan: passed over: it needs VulkanBackend, which is not registered in this runtime"


def equal(left, right) -> bool:
    """Whether two lists of tensors are equal bit for bit."""
    import torch

    return len(left) == len(right) > 0 and all(map(torch.equal, left, right))


def test_order_is_priority(fat, payloads, inputs, plainly):
    """The first payload that can run here runs; its outputs are the plain file's, for each method and batch size."""
    program = load(fat)
    assert program.payload == "xnnpack"
    size = payloads["xnnpack"].stat().st_size
    assert program.report == (NOT_REGISTERED, f"xnnpack: chosen: 0 bytes in place, {size} copied")
    assert program.methods == ("forward", "hidden", "rate", "label")
    for method in ("forward", "hidden"):
        for batch in (2, 8, 1):
            x = [inputs(batch)]
            assert equal(program.run(method, x), plainly(payloads["xnnpack"], method, x))


def test_exclude(fat, payloads, inputs, plainly):
    """A payload that is excluded is not tried, and the report says so; the next one runs."""
    program = load(str(fat), exclude=["xnnpack"])
    assert program.payload == "portable"
    assert program.report[:2] == (NOT_REGISTERED, "xnnpack: passed over: it is excluded")
    x = [inputs(3)]
    assert equal(program.run("forward", x), plainly(payloads["portable"], "forward", x))


def test_prefer(fat, make):
    """Preferred payloads come first, in the order given; the others keep theirs. One that cannot run is passed over."""
    assert load(fat, prefer=["portable"]).report[0].startswith("portable: chosen")
    assert load(fat, prefer=["vulkan", "portable"]).payload == "portable"
    assert load(make.fat("portable", "vulkan", "xnnpack"), prefer=["vulkan"]).payload == "portable"


def test_names_that_there_are_not(fat):
    """A name that is no payload's is refused with those there are, as is one that is preferred and excluded."""
    for wish in ({"prefer": ["xnnpak"]}, {"exclude": ["portable", "xnnpak"]}):
        with pytest.raises(InputError, match=r"model\.pte has no payload 'xnnpak'; it has vulkan, xnnpack, portable"):
            load(fat, **wish)
    with pytest.raises(InputError, match="'portable' cannot be preferred and excluded"):
        load(fat, prefer=["portable"], exclude=["portable"])
    for single in ({"prefer": "portable"}, {"exclude": "xnnpack"}, {"data_files": fat.with_suffix(".ptd")}):
        with pytest.raises(TypeError, match="has to be in a list"):
            load(fat, **single)


def test_nothing_fits(fat):
    """Where no payload is left, the error has a line for each, which says why, and names the file."""
    with pytest.raises(NoPayloadFits) as raised:
        load(fat, exclude=["portable", "xnnpack"])
    excluded = [f"{name}: passed over: it is excluded" for name in ("xnnpack", "portable")]
    assert raised.value.report == (NOT_REGISTERED, *excluded)
    assert str(raised.value) == "\n  ".join([f"{fat}: none of the payloads can run here:", *raised.value.report])


def test_malformed_container(make):
    """A malformed container is refused as a whole; so are files that are no programs or not there."""
    packed = make.pack("portable")
    with pytest.raises(FileFormatError, match=r"fat\.pte: the container has \d+ bytes"):
        load(make.write(replace(packed, container=packed.container[:-1])))
    damaged = make.folder / "text.pte"
    damaged.write_text("not a program")
    with pytest.raises(FileFormatError, match=r"text\.pte: not a \.pte"):
        load(damaged)
    with pytest.raises(InputError, match=r"nowhere\.pte: cannot be read"):
        load(make.folder / "nowhere.pte")


def test_constant_methods(fat, payloads):
    """Constants are methods like any other, in fat files and in plain ones."""
    for file in (fat, payloads["portable"]):
        program = load(file)
        assert (program.run("rate"), program.run("label")) == ([16000], ["speech"])


def test_temporary_files_go(fat, inputs, plainly, payloads, tmp_path, monkeypatch):
    """Rebuilt payloads are gone from the disk before the program first runs, and it runs all the same."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    program = load(fat, exclude=["xnnpack"])
    assert list(tmp_path.iterdir()) == []
    x = [inputs(4)]
    assert equal(program.run("hidden", x), plainly(payloads["portable"], "hidden", x))


def test_no_space(fat):
    """Where a payload cannot be rebuilt, that is the error, and not that the payload does not fit."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20000, before[1]))
    try:
        with pytest.raises(PteforgeError, match=r"cannot be rebuilt in a temporary folder: .*\$TMPDIR") as raised:
            load(fat)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not isinstance(raised.value, NoPayloadFits)


def test_outputs_are_kept(fat, inputs):
    """Outputs of one call are not changed by the next, nor by another method, which uses the same memory."""
    program = load(fat)
    (first,) = program.run("forward", [inputs(2)])
    before = first.clone()
    program.run("hidden", [inputs(8)])
    (second,) = program.run("forward", [inputs(2) + 1])
    assert equal([first], [before])
    assert not equal([first], [second])


def test_plain(payloads, inputs, plainly):
    """A plain file runs as it is; there is no payload to speak of."""
    program = load(payloads["xnnpack"])
    assert (program.payload, program.report) == (None, ())
    x = [inputs(5)]
    assert equal(program.run("forward", x), plainly(payloads["xnnpack"], "forward", x))


def test_plain_files_have_no_payloads(payloads, tmp_path):
    """Of a plain file nothing can be preferred or excluded; one that needs another backend is named with it."""
    for wish in ({"prefer": ["portable"]}, {"exclude": ["portable"]}):
        with pytest.raises(InputError, match=r"xnnpack\.pte is not a fat file"):
            load(payloads["xnnpack"], **wish)
    with pytest.raises(InputError, match=r"vulkan\.pte cannot run here: it needs VulkanBackend"):
        load(payloads["vulkan"])
    with pytest.raises(InputError, match=r"takes one \.ptd file"):
        load(payloads["portable"], data_files=[tmp_path / "a.ptd", tmp_path / "b.ptd"])


@pytest.mark.parametrize("kind", ["fat", "plain"])
def test_calls_that_do_not_fit(kind, fat, payloads, inputs):
    """A method that is not there is refused with those that are, inputs that do not fit with what it takes."""
    file = fat if kind == "fat" else payloads["portable"]
    program = load(file)
    with pytest.raises(InputError, match=r"no method 'decode'; it has 'forward', 'hidden', 'rate', 'label'"):
        program.run("decode", [])
    wrong = {
        r"input 0 has the shape \[9, 64\], the method takes at most \[8, 64\]": [inputs(9)],
        r"it takes 1 input \(float32 up to \[8, 64\]\), and was given 0": [],
        r"it takes 1 input \(float32 up to \[8, 64\]\), and was given 2": [inputs(2), inputs(2)],
        r"input 0 is of float64, the method takes float32 up to \[8, 64\]": [inputs(2).double()],
    }
    for problem, given in wrong.items():
        with pytest.raises(InputError, match=f"cannot run 'forward': {problem}"):
            program.run("forward", given)
    for refused in ([inputs(2, 63)], ["text"]):  # of one whose sizes vary, the runtime knows more than the file says
        with pytest.raises(PteforgeError, match="cannot run 'forward'"):
            program.run("forward", refused)
    assert program.run("forward", [inputs(2)])[0].shape == (2, 32)

"""`pteforge.runtime.load`: which payload it chooses, and that its outputs are the payload's."""

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
    """The first payload that can run here runs: constants, and each method on each batch size as in the plain file."""
    program = load(fat)
    assert program.payload == "xnnpack"
    size = payloads["xnnpack"].stat().st_size
    assert program.report == (NOT_REGISTERED, f"xnnpack: chosen: 0 bytes in place, {size} copied")
    assert program.methods == ("forward", "hidden", "rate", "label")
    assert (program.run("rate"), program.run("label")) == ([16000], ["speech"])
    for method in ("forward", "hidden"):
        for batch in (2, 8, 1):
            x = [inputs(batch)]
            assert equal(program.run(method, x), plainly(payloads["xnnpack"], method, x))


def test_exclude(fat, payloads, inputs, plainly, tmp_path, monkeypatch):
    """An excluded payload is not tried, and the report says so; the next one runs."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    program = load(str(fat), exclude=["xnnpack"])
    assert list(tmp_path.iterdir()) == []
    assert program.payload == "portable"
    assert program.report[:2] == (NOT_REGISTERED, "xnnpack: passed over: it is excluded")
    for method in ("forward", "hidden"):
        x = [inputs(3)]
        assert equal(program.run(method, x), plainly(payloads["portable"], method, x))


def test_prefer(fat, make):
    """Preferred payloads come first, in the order given; the others keep theirs. One that cannot run is passed over."""
    assert load(fat, prefer=["portable"]).report[0].startswith("portable: chosen")
    assert load(fat, prefer=["vulkan", "portable"]).payload == "portable"
    assert load(make.fat("portable", "vulkan", "xnnpack"), prefer=["vulkan"]).payload == "portable"


def test_invalid_wishes(fat):
    """Unknown names are refused with a list of the known ones; so are contradictions and lists that are strings."""
    for wish in ({"prefer": ["xnnpak"]}, {"exclude": ["portable", "xnnpak"]}):
        with pytest.raises(InputError, match=r"model\.pte .*payload 'xnnpak'; .*vulkan, xnnpack, portable"):
            load(fat, **wish)
    with pytest.raises(InputError, match=r"'portable' .*preferred and excluded"):
        load(fat, prefer=["portable"], exclude=["portable"])
    for single in ({"prefer": "portable"}, {"exclude": "xnnpack"}, {"data_files": fat.with_suffix(".ptd")}):
        with pytest.raises(TypeError, match="to be in a list"):
            load(fat, **single)


def test_nothing_fits(fat, make):
    """If no payload is left, the error names the file and gives a reason for each."""
    packed = make.pack("portable")
    with pytest.raises(FileFormatError, match=r"fat\.pte: the container has \d+ bytes"):
        load(make.write(replace(packed, container=packed.container[:-1])))
    with pytest.raises(NoPayloadFits) as raised:
        load(fat, exclude=["portable", "xnnpack"])
    excluded = [f"{name}: passed over: it is excluded" for name in ("xnnpack", "portable")]
    assert raised.value.report == (NOT_REGISTERED, *excluded)
    assert str(raised.value) == "\n  ".join([f"{fat}: none of the payloads can run here:", *raised.value.report])


def test_no_space(fat, file_limit):
    """A payload that cannot be rebuilt is an error, and not a payload that does not fit."""
    message = r"cannot be rebuilt in a temporary folder: .*\$TMPDIR"
    with file_limit(20_000), pytest.raises(PteforgeError, match=message) as raised:
        load(fat)
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


def test_plain(payloads, inputs, plainly, tmp_path):
    """A plain file runs as it is, its constant methods included, and has no payload: none can be chosen."""
    program = load(payloads["xnnpack"])
    assert (program.payload, program.report) == (None, ())
    assert (program.run("rate"), program.run("label")) == ([16000], ["speech"])
    x = [inputs(5)]
    assert equal(program.run("forward", x), plainly(payloads["xnnpack"], "forward", x))
    for wish in ({"prefer": ["portable"]}, {"exclude": ["portable"]}):
        with pytest.raises(InputError, match=r"xnnpack\.pte .*not a fat file"):
            load(payloads["xnnpack"], **wish)
    with pytest.raises(InputError, match=r"vulkan\.pte cannot run .*needs VulkanBackend"):
        load(payloads["vulkan"])
    with pytest.raises(InputError, match=r"takes one \.ptd file"):
        load(payloads["portable"], data_files=[tmp_path / "a.ptd", tmp_path / "b.ptd"])


@pytest.mark.parametrize("kind", ["fat", "plain"])
def test_calls_that_do_not_fit(kind, fat, payloads, inputs):
    """Unknown methods are refused with a list of the known ones, wrong inputs with what the method takes."""
    program = load(fat if kind == "fat" else payloads["portable"])
    with pytest.raises(InputError, match=r"method 'decode'; .*'forward', 'hidden', 'rate', 'label'"):
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


def test_more_memory_than_there_is(payloads, monkeypatch):
    """A file that makes the runtime ask for too much memory is an error of that file."""
    from executorch.runtime import Runtime

    def ask(*_args, **_options):
        raise MemoryError("std::bad_alloc")

    monkeypatch.setattr(Runtime, "load_program", ask)
    with pytest.raises(PteforgeError, match=r"cannot load .*more memory"):
        load(payloads["portable"])

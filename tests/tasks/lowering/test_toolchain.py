"""What environments lower models with."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from pteforge.errors import InputError
from pteforge.tasks.lowering import toolchain
from pteforge.tasks.lowering.toolchain import PatchState, Toolchain, toolchain_of, unmended
from pteforge.tasks.upstream.compat import WITHOUT
from pteforge.tasks.upstream.patches import NOT_TRIED, OFF

LACKING = Toolchain({"executorch": "1"}, (PatchState("first", "a fault", ("torch.a",)),), {})


def test_without_a_name(monkeypatch):
    """Patches that cannot be applied are told with their fault, other names with the modules that need them."""
    monkeypatch.setenv(WITHOUT, "torch.fx.graph_module.GraphModule.recompile,executorch.exir._serialize.padding.pad_to")
    lacking = toolchain_of()
    assert not lacking.well
    (patch,) = [patch for patch in lacking.patches if patch.lacks]
    assert patch.name == "code_on_demand"
    assert lacking.lacks == {"executorch.exir._serialize.padding.pad_to": ("tasks.backend.file_programs",)}
    lines = str(lacking).splitlines()
    assert lines[0].startswith("torch 2.")
    assert any("not mended: the code of graphs" in line for line in lines)
    assert f"{len(lacking.limits)} limits of Vulkan apply" in lines
    assert {limit.name: limit.fault for limit in lacking.limits}["negative_indices"].startswith("negative indices are")


def test_turned_off(monkeypatch):
    """Patches and limits that the environment turns off are not mended; other names there are refused."""
    off = ["expand_tanh_gelu", "hardswish_of_odd_dimensions"]
    monkeypatch.setenv(OFF, ",".join(off))
    found = toolchain_of()
    assert not found.well
    assert [patch.name for patch in found.states if not patch.applies] == off
    assert [line for line in found.changes_since(replace(found, patches=(), limits=())) if "turned off" in line]
    assert f"{len(found.patches) - 1} of {len(found.patches)} patches apply" in str(found)
    assert f"(expand_tanh_gelu is turned off by {OFF})" in str(found)
    monkeypatch.setenv(OFF, "expand_tahn_gelu")
    with pytest.raises(InputError, match=r"'expand_tahn_gelu', which is no patch .*did you mean 'expand_tanh_gelu'"):
        toolchain_of()


def test_what_is_unmended_is_remembered(monkeypatch, tmp_path):
    """The newest release that is tested has none. Another one is asked once, and once more for other versions."""
    assert unmended(tmp_path / "newest") == []
    assert not (tmp_path / "newest").exists()
    asked = []
    monkeypatch.setenv(WITHOUT, "torch.fx.graph_module.GraphModule.recompile")
    monkeypatch.setattr(toolchain, "toolchain_of", lambda: asked.append(1) or LACKING)
    for _ in range(2):
        unmended.cache_clear()
        assert unmended(tmp_path) == ["not mended: a fault (first needs torch.a)"]
    assert len(asked) == 1
    (remembered,) = tmp_path.iterdir()
    remembered.write_bytes(b"{")  # half written
    unmended.cache_clear()
    assert unmended(tmp_path)
    monkeypatch.setenv(WITHOUT, "torch.fx.graph_module.GraphModule.print_readable")
    unmended.cache_clear()
    assert unmended(tmp_path)
    assert len(asked) == 3


def test_changes():
    """Between two toolchains, what is mended in one of them only is told."""
    always, first, second = (
        PatchState(name, f"fault of {name}", lacks)
        for name, lacks in (("always", ()), ("first", ("torch.a",)), ("second", ()))
    )
    earlier = Toolchain({"executorch": "1"}, (always, first, second), {})
    later = Toolchain(
        {"executorch": "2"},
        (always, PatchState("first", "fault of first"), PatchState("second", "f", ("torch.b",))),
        {},
    )
    assert list(later.changes_since(earlier)) == [
        "mended from now on: fault of first (first)",
        "not mended any more: f (second needs torch.b)",
    ]


def test_probes():
    """Lines name patches that are not needed any more or do not help; only the latter make the toolchain unwell."""
    needless, failing = (PatchState(name, "a fault", probe=probe) for name, probe in (("a", "needless"), ("b", "died")))
    assert Toolchain({}, (PatchState("c", "a fault", probe="needed"), needless), {}).well
    toolchain = Toolchain({}, (needless, failing), {})
    assert not toolchain.well
    lines = ["not needed any more: a, which avoids this: a fault", "not mended by b: a fault; died"]
    assert list(toolchain.changes_since(toolchain)) == lines
    assert str(toolchain).splitlines()[-2:] == lines


def test_probes_of_limits():
    """What could not be tried is counted; limits are named like patches where they are not needed or do not help."""
    untried, needless, failing = (
        PatchState(name, "a fault", probe=probe) for name, probe in (("a", NOT_TRIED), ("b", "needless"), ("c", "died"))
    )
    limited = Toolchain({}, (), {}, (untried, needless))
    assert limited.well
    assert str(limited).splitlines()[2:] == [
        f"2 limits of Vulkan apply, 1 {NOT_TRIED}",
        "not needed any more: b, which avoids this: a fault",
    ]
    assert not Toolchain({}, (), {}, (failing,)).well


@pytest.mark.parametrize("content", ["#!/bin/sh\nexit 3\n", "#!/bin/sh\necho Python 3.14\n"])
def test_no_environment_with_pteforge(tmp_path, content):
    """A program that is no Python with pteforge is refused with what it said."""
    program = tmp_path / "python"
    program.write_text(content)
    program.chmod(0o755)
    with pytest.raises(InputError, match="what it lowers with"):
        toolchain_of(program)
    with pytest.raises(InputError, match="what it lowers with"):
        toolchain_of(Path(sys.executable).with_name("no-such-python"))

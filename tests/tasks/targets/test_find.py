"""Finding targets by name, and every way in which that fails."""

import pytest
from pteforge.errors import TargetError
from pteforge.tasks.targets import Target, find_target, target_names
from pteforge.tasks.targets.portable import Portable
from pteforge.tasks.targets.xnnpack import Xnnpack, XnnpackOptions

ACME = '''
from dataclasses import dataclass
from typing import ClassVar
from pteforge.tasks.targets import Target

@dataclass(frozen=True)
class Acme(Target):
    """Acme's."""
    name: ClassVar[str] = "acme"

class NoTarget:
    name = "acme"

a_function = print
'''


@pytest.fixture
def install(tmp_path, monkeypatch, install_target):
    """Installs distributions with entry points to modules that are there."""
    (tmp_path / "acme_target.py").write_text(ACME)
    (tmp_path / "acme_broken.py").write_text("raise RuntimeError('no licence')\n")
    monkeypatch.syspath_prepend(tmp_path)
    return install_target


def test_own_targets():
    """Our own targets are found like all others; those whose bytes may vary, or that need integers, are marked."""
    assert set(target_names()) >= {
        *("portable", "xnnpack", "vulkan", "webgpu", "mlx", "coreml", "openvino"),
        *("ethos_u", "vgf", "cortex_m", "cadence"),
        *("qnn", "nxp", "mediatek", "samsung", "cuda", "metal"),
    }
    assert isinstance(find_target("portable"), Portable)
    assert isinstance(find_target("xnnpack"), Xnnpack)
    assert not any(type(find_target(name)).reproducible for name in ("coreml", "openvino"))
    assert all(type(find_target(name)).quantized_only for name in ("ethos_u", "nxp", "cortex_m"))


def test_options():
    """Options are checked and filled in with defaults; equal ones make equal targets, which nothing can change."""
    target = find_target("xnnpack", {"precisions": ["fp32"]})
    assert target.options == XnnpackOptions(precisions=("fp32",))
    assert target == find_target("xnnpack", {"precisions": ["fp32"]}) != find_target("xnnpack")
    assert find_target("xnnpack") == find_target("xnnpack", {}) == Xnnpack(XnnpackOptions())
    with pytest.raises(AttributeError):
        target.options = XnnpackOptions()
    with pytest.raises(ValueError, match="frozen"):
        target.options.per_operator = False


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("xnpack", {}, r"unknown target 'xnpack'; did you mean 'xnnpack'\? installed targets: .*portable.*xnnpack"),
        *((name, {}, f"unknown target '{name}'; installed targets: .*portable.*xnnpack") for name in ("qqq", "")),
        ("xnnpack", {"per_op": True}, r"of target 'xnnpack': per_op: .*\(its options: force.*, per_operator"),
        ("xnnpack", {"per_operator": "perhaps"}, "per_operator: Input should be a valid boolean"),
        ("xnnpack", {"precisions": ["fp64"]}, r"precisions\.0: Input should be 'fp32'"),
        ("xnnpack", {"precisions": []}, "precisions: .*name at least one precision"),
        ("xnnpack", {"precisions": "fp32"}, "precisions: "),
        ("portable", {"anything": 1}, r"options of target 'portable': anything: .*\(its options: none\)"),
    ],
)
def test_bad_options(name, options, message):
    """The message for an unknown name or a wrong option lists what there is, and the nearest name."""
    with pytest.raises(TargetError, match=message):
        find_target(name, options)


def test_third_parties(install):
    """An installed distribution brings its target; the same entry point in two metadata folders is no clash."""
    install({"acme": "acme_target:Acme"})
    install({"acme": "acme_target:Acme"}, "acme_again")
    assert "acme" in target_names()
    target = find_target("acme")
    assert isinstance(target, Target)
    assert (target.name, target.decomposition_options(), list(target.partitioners())) == ("acme", None, [])
    assert type(target).available() is None


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("acme", "acme_broken:Acme", r"target 'acme' \(acme_broken:Acme\) cannot be imported: no licence"),
        ("acme", "acme_missing:Acme", r"target 'acme' \(acme_missing:Acme\) cannot be imported: No module named"),
        ("acme", "acme_target:Nothing", r"target 'acme' \(acme_target:Nothing\) cannot be imported: .*no attribute"),
        ("acme", "acme_target:NoTarget", "entry point acme_target:NoTarget is not a Target named 'acme'"),
        ("acme", "acme_target:a_function", "entry point acme_target:a_function is not a Target named 'acme'"),
        # A target is found by the name it has itself, so that recipes and provenance agree.
        ("other", "acme_target:Acme", "entry point acme_target:Acme is not a Target named 'other'"),
        ("portable", "acme_target:Acme", "'portable' is claimed by several packages: acme_target:Acme, pteforge"),
    ],
)
def test_broken_entry_points(name, value, message, install):
    """An entry point must lead to a target, the only one of its name; the message names the entry point."""
    install({name: value})
    with pytest.raises(TargetError, match=message):
        find_target(name)

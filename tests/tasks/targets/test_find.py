"""Finding targets by name, and every way in which that fails."""

from __future__ import annotations

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
def install(tmp_path, monkeypatch):
    """Installs a distribution with a module and entry points of the group."""
    (tmp_path / "acme_target.py").write_text(ACME)
    (tmp_path / "acme_broken.py").write_text("raise RuntimeError('no licence')\n")
    monkeypatch.syspath_prepend(tmp_path)

    def make(distribution, **targets):
        folder = tmp_path / f"{distribution}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        lines = ["[pteforge.targets]", *(f"{name} = {value}" for name, value in targets.items())]
        (folder / "entry_points.txt").write_text("\n".join(lines) + "\n")
        monkeypatch.syspath_prepend(tmp_path)

    return make


def test_own_targets():
    """The targets that come with pteforge are found like all others: by their entry points."""
    assert set(target_names()) >= {
        *("portable", "xnnpack", "vulkan", "webgpu", "mlx", "coreml", "openvino"),
        *("ethos_u", "vgf", "cortex_m", "cadence"),
        *("qnn", "nxp", "mediatek", "samsung", "cuda", "metal"),
    }
    assert isinstance(find_target("portable"), Portable)
    assert isinstance(find_target("xnnpack"), Xnnpack)


def test_options():
    """Options are checked and filled in with defaults."""
    target = find_target("xnnpack", {"precisions": ["fp32"]})
    assert target.options == XnnpackOptions(precisions=("fp32",))
    assert find_target("xnnpack") == find_target("xnnpack", {}) == Xnnpack(XnnpackOptions())


def test_targets_are_values():
    """Equal options make equal targets, which nothing can change."""
    target = find_target("xnnpack", {"per_operator": True})
    assert target == find_target("xnnpack", {"per_operator": True})
    assert target != find_target("xnnpack")
    with pytest.raises(AttributeError):
        target.options = XnnpackOptions()
    with pytest.raises(ValueError, match="frozen"):
        target.options.per_operator = False


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("xnpack", r"unknown target 'xnpack'; did you mean 'xnnpack'\? installed targets: "),
        ("qqq", "unknown target 'qqq'; installed targets: "),
        ("", "unknown target ''; installed targets: "),
    ],
)
def test_unknown(name, message):
    """An unknown name is told together with those that are known, and the nearest of them."""
    with pytest.raises(TargetError, match=message) as raised:
        find_target(name)
    assert str(raised.value).endswith(", ".join(target_names()))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "xnnpack",
            {"per_op": True},
            r"options of target 'xnnpack': per_op: .*\(its options: force.*, per_operator",
        ),
        ("xnnpack", {"per_operator": "perhaps"}, "per_operator: Input should be a valid boolean"),
        ("xnnpack", {"precisions": ["fp64"]}, r"precisions\.0: Input should be 'fp32'"),
        ("xnnpack", {"precisions": []}, "precisions: .*name at least one precision"),
        ("xnnpack", {"precisions": "fp32"}, "precisions: "),
        ("portable", {"anything": 1}, r"options of target 'portable': anything: .*\(its options: none\)"),
    ],
)
def test_bad_options(name, options, message):
    """Options that do not fit say which, why, and what there is."""
    with pytest.raises(TargetError, match=message):
        find_target(name, options)


def test_third_parties(install):
    """A distribution that is installed beside pteforge brings its target with it."""
    install("acme", acme="acme_target:Acme")
    assert "acme" in target_names()
    target = find_target("acme")
    assert isinstance(target, Target)
    assert (target.name, target.preserving(), list(target.partitioners()), type(target).available()) == (
        "acme",
        None,
        [],
        None,
    )


def test_claimed_twice(install):
    """Two packages that claim one name for different classes are told; none of them is taken."""
    install("acme", portable="acme_target:Acme")
    with pytest.raises(TargetError, match="'portable' is claimed by several packages: acme_target:Acme, pteforge"):
        find_target("portable")


def test_installed_twice(install):
    """The same entry point in two metadata folders, as editable installations have, is no clash."""
    install("acme", acme="acme_target:Acme")
    install("acme_again", acme="acme_target:Acme")
    assert find_target("acme").name == "acme"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("acme_broken:Acme", r"target 'acme' \(acme_broken:Acme\) cannot be imported: no licence"),
        ("acme_missing:Acme", r"target 'acme' \(acme_missing:Acme\) cannot be imported: No module named"),
        ("acme_target:Nothing", r"target 'acme' \(acme_target:Nothing\) cannot be imported: .*no attribute"),
        ("acme_target:NoTarget", "entry point acme_target:NoTarget is not a Target named 'acme'"),
        ("acme_target:a_function", "entry point acme_target:a_function is not a Target named 'acme'"),
    ],
)
def test_broken_entry_points(value, message, install):
    """What an entry point leads to must be a target, and the message names the entry point where it is not."""
    install("acme", acme=value)
    with pytest.raises(TargetError, match=message):
        find_target("acme")


def test_another_name(install):
    """A target is found by the name it has itself, so that recipes and provenance agree."""
    install("acme", other="acme_target:Acme")
    with pytest.raises(TargetError, match="entry point acme_target:Acme is not a Target named 'other'"):
        find_target("other")

"""What the README shows has to work: it is what people copy."""

from __future__ import annotations

import re
from pathlib import Path

import pteforge
import pytest
from pteforge.configs import load_zoo

ROOT = Path(pteforge.__file__).parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
ZOO, RECIPES, TRANSFORMS, GATES, FAT = re.findall(r"^```yaml\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    """Lines of the README's shell blocks."""
    blocks = re.findall(r"^```bash\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


def test_two_commands_come_first():
    """The first two commands set everything up and run the tests; CI takes them from here."""
    install, run_tests = commands()[:2]
    assert re.fullmatch(
        r'pip install torch==\S+ -e "\.\[test\]" && pteforge export examples/zoo/starter\.yaml', install
    )
    assert run_tests == "scripts/test"


def test_torch_is_the_one_that_the_package_needs():
    """README and scripts/install pin the torch that pyproject.toml asks for; another one would be replaced or clash."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    pinned = re.search(r'"(torch==[\d.]+)"', project)[1]
    assert f"pip install {pinned} " in README
    assert f"pip install {pinned} " in (ROOT / "scripts" / "install").read_text(encoding="utf-8")


def test_zoo_example_is_valid(tmp_path: Path):
    """The zoo and the recipes that the README shows load as one file, and mean what the text says."""
    (tmp_path / "zoo.yaml").write_text(ZOO + RECIPES + (TRANSFORMS + FAT).replace("recipes:\n", ""), encoding="utf-8")
    zoo = load_zoo(tmp_path / "zoo.yaml", ["models.segmenter.source.kwargs.width=0.25"]).zoo
    assert zoo.recipes_of("keywords") == ("portable-fp32", "xnnpack-fp32")
    assert zoo.recipes_of("segmenter") == ("xnnpack-fp32",)
    assert zoo.models["segmenter"].source.kwargs == {"width": 0.25}
    assert zoo.models["segmenter"].limits.timeout == 20 * 60
    assert zoo.recipes["xnnpack-paged"].specializations == zoo.recipes["xnnpack-fp32"].specializations
    assert zoo.recipes["xnnpack-per-operator"].verify.max_abs_error == 0.001
    assert [each.torchao for each in zoo.recipes["mixed"].source_transforms[:2]] == [
        "int8_weight_only",
        "int8_dynamic_activation_intx_weight",
    ]
    assert [each.payload for each in zoo.recipes["fat"].specializations] == ["vulkan", "xnnpack", "portable"]


def test_gate_example_is_valid(tmp_path: Path):
    """The gate that the README shows is one, of what the model and the recipe say."""
    (tmp_path / "zoo.yaml").write_text("version: 1\n" + GATES, encoding="utf-8")
    gate = load_zoo(tmp_path / "zoo.yaml").zoo.accuracy_gate("scenes", "int8-scored")
    assert (gate.evaluator.builder, gate.evaluator.kwargs) == ("vision.score:mean_iou", {"images": 500})
    assert (gate.floor, gate.max_drop) == (0.7, 0.005)


def test_builder_example_runs():
    """The builder that the README shows gives a definition whose module takes its example input."""
    import torch

    source = re.search(r"^  ```python\n(.*?)^  ```", README, re.MULTILINE | re.DOTALL)[1]
    names = {
        "torch": torch,
        "ModelDefinition": pteforge.ModelDefinition,
        "MethodDefinition": pteforge.MethodDefinition,
        "KeywordNet": lambda: torch.nn.Conv2d(1, 4, 3),
    }
    exec("if True:\n" + source, names)  # noqa: S102 - our own README
    definition = names["keyword_spotter"]()
    forward = definition.methods["forward"]
    assert forward.module(*forward.example_inputs[0]).shape == (1, 4, 47, 8)
    assert definition.constant_methods == {"sample_rate": 16000}


@pytest.mark.parametrize("link", re.findall(r"\]\(([^)#]+)\)", README))
def test_links_lead_somewhere(link: str):
    """Every relative link of the README names a file of the repository."""
    assert link.startswith("https://") or (ROOT / link).is_file()

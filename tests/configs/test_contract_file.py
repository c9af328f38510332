"""Contract files: ours and ExecuTorch's are read; others are refused with file, line, field and what to do."""

import json

import pytest
from pteforge.configs.contract_file import RELEASE, Runtime, read_contract
from pteforge.errors import ConfigError

SELECTED = """
operators:
  aten::add.out: {is_root_operator: true, debug_info: [a.pte]}
  aten::mul.out: {is_root_operator: true}
et_kernel_metadata:
  aten::add.out: ["v1/6;0,1|6;0,1", "v1"]
"""


def test_both_forms(tmp_path):
    """Ours says backends; ExecuTorch's does not, and an operator without metadata there has kernels for any dtype."""
    path = tmp_path / "app.yaml"
    ours = {"format": 1, "operators": {"aten::cat.out": ["v1/[6;0]|6;0"]}, "backends": ["XnnpackBackend"], "later": {}}
    path.write_text(json.dumps(ours))
    kernels = {"aten::cat.out": ("v1/[6;0]|6;0",)}
    assert read_contract(path) == Runtime(name="app.yaml", operators=kernels, backends=("XnnpackBackend",))
    path.write_text(SELECTED)
    kernels = {"aten::add.out": ("v1/6;0,1|6;0,1", "v1"), "aten::mul.out": ("default",)}
    assert read_contract(path) == Runtime(name="app.yaml", operators=kernels)
    path.write_text(f"{SELECTED}\ninclude_all_operators: true\n")
    assert read_contract(path).operators is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("models: {}", "app.yaml:1:1: this is no contract, which has `operators`; write one with `pteforge contract"),
        ("[]", "app.yaml:1:1: this is no contract"),
        ("", "app.yaml:1:1: this is no contract"),
        ("operators:\n  a::b: 1", "app.yaml:2:3: operators.a::b: "),
        ("format: 2\noperators: {}\nbackends: []", "app.yaml:1:1: format: "),
        ("format: 1\nbackends: []", "app.yaml:1:1: operators: is missing"),
        (
            "format: 1\nbackends: []\noperators:\n  a::b: [x]",
            "app.yaml:4:10: operators.a::b[0]: 'x' is no kernel key, such as",
        ),
        (SELECTED.replace('"v1"]', '"v2/6;0"]'), "app.yaml:6:"),
        ("operators: [", "app.yaml:2:1: not valid YAML"),
    ],
)
def test_what_is_no_contract(tmp_path, text, problem):
    """An error names the file, the line, the field, and what to do."""
    path = tmp_path / "app.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_contract(path)
    assert problem in str(caught.value)


def test_missing_files(tmp_path):
    """A file that cannot be read is named."""
    with pytest.raises(ConfigError, match=r"app\.yaml: No such file"):
        read_contract(tmp_path / "app.yaml")


def test_releases():
    """Versions are told apart from paths."""
    assert all(map(RELEASE.fullmatch, ("1.4", "1.4.1", "1.10")))
    assert not any(map(RELEASE.fullmatch, ("app-7.yaml", "1.4.yaml", "v1.4", "1")))

"""Where a zoo's stages run."""

import pytest
from pteforge.configs import load_zoo
from pteforge.errors import ConfigError

ZOO = "version: 1\ndefaults: {recipes: [portable-fp32]}\nmodels: {net: {source: nets:net}}\nrun: "


@pytest.fixture
def load(tmp_path):
    """Loads a zoo with this section `run`."""

    def load(run, *overrides):
        (tmp_path / "zoo.yaml").write_text(ZOO + run, encoding="utf-8")
        return load_zoo(tmp_path / "zoo.yaml", overrides).zoo.run

    return load


def test_one_place_is_chosen_of_those_prepared(load):
    """A zoo may prepare several places; a cluster on this machine has two processes by default."""
    prepared = "{on: dask, pool: forge}"
    assert (load(prepared).on, load(prepared).processes) == ("dask", 2)
    assert (load(prepared, "run.on=pool").pool, load(prepared, "run.on=pool").processes) == ("forge", None)
    assert load("{}").on == "local"
    assert (load("{}").memory, load("{memory: 1GiB}", "run.memory=2GiB").memory) == (None, 2 * 2**30)


@pytest.mark.parametrize(
    ("run", "problem"),
    [
        ("{on: dusk}", "run.on"),
        ("{on: pool}", "needs the name of the work pool"),
        ("{on: dask, address: 'scheduler:8786'}", "has no scheme"),
        ("{on: dask, address: 'tcp://a:1', workers: 2}", "leave out one of"),
    ],
)
def test_what_cannot_be_used_is_refused(load, run, problem):
    """The message names the file, the line and what to write."""
    with pytest.raises(ConfigError, match=problem) as raised:
        load(run)
    assert "zoo.yaml:4:" in str(raised.value)

"""Places: what a zoo writes of them, and what the command line says in their place."""

import pytest
from pteforge.configs.places import PlaceConfig
from pteforge.errors import ConfigError, InputError

_ZOO = """\
version: 1
places:
  gpu: {{library: lib/vulkan.so}}
  wrong: {place}
recipes:
  tested: {{extends: portable-fp32, verify: {{on: {on}}}}}
models:
  net: {{source: "pkg.mod:Net", recipes: [tested]}}
"""


def test_places_of_a_zoo(load, tmp_path):
    """Libraries are relative to the file; one needs no list. Recipes verify here unless they say otherwise."""
    zoo = load(_ZOO.format(place="{qemu: cortex-a53, required: true}", on="[gpu]")).zoo
    assert zoo.places["gpu"].library == (tmp_path / "lib" / "vulkan.so",)
    assert zoo.places["wrong"].required
    assert zoo.recipes["tested"].verify.on == ("gpu",)
    assert load('version: 1\nplaces:\nmodels: {net: {source: "a:b", recipes: [xnnpack-fp32]}}\n').zoo.places == {}


@pytest.mark.parametrize(
    ("place", "on", "telling"),
    [
        (
            "{}",
            "[gpu]",
            "zoo.yaml:4:3: places.wrong: needs exactly one of library, command, qemu, python, and has none",
        ),
        ("{qemu: a, command: b}", "[gpu]", "and has command and qemu"),
        ('{command: "\'"}', "[gpu]", "is not a command"),
        ("{command: ''}", "[gpu]", "is empty; write a command"),
        ("{qemu: 'a b'}", "[gpu]", "places.wrong.qemu"),
        ("{qemu: a}", "[gpuu]", "zoo.yaml:6:50: recipes.tested.verify.on[0]: the zoo has no place 'gpuu'"),
    ],
)
def test_places_that_cannot_be(load, place, on, telling):
    """Each problem has file, line and field."""
    with pytest.raises(ConfigError) as caught:
        load(_ZOO.format(place=place, on=on))
    assert telling in str(caught.value)


def test_places_of_a_run(load):
    """A run adds places to all recipes, by name or by what they are."""
    zoo = load(_ZOO.format(place="{qemu: cortex-a53}", on="[host]")).zoo
    added = zoo.with_places(["wrong", "qemu:cortex-a76", "command:./on-phone --fast"])
    assert added.recipes["tested"].verify.on == ("host", "wrong", "cortex-a76", "on-phone")
    assert added.places["on-phone"] == PlaceConfig(command="./on-phone --fast", required=True)
    assert added.places["wrong"].required
    assert not added.places["gpu"].required
    for text in ("nowhere", "qemu:", "tpu:x", "qemu:a b"):
        with pytest.raises(InputError, match=r"no place"):
            zoo.with_places([text])
    for named in (["library:gpu.so"], ["command:a/run", "command:b/run"], ["command:host"]):
        with pytest.raises(InputError, match=r"another place is called"):
            zoo.with_places(named)

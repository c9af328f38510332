"""Zoo files on disk, and a short way to say how loading one must fail."""

import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from pteforge.configs import LoadedZoo, load_zoo
from pteforge.errors import ConfigError

Load = Callable[..., LoadedZoo]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Writes files into a fresh current folder; returns the path of the first, relative to it."""
    monkeypatch.chdir(tmp_path)

    def write_files(zoo: str, **others: str) -> Path:
        for name, text in {"zoo": zoo, **others}.items():
            path = tmp_path / f"{name.replace('__', '/')}.yaml"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text), encoding="utf-8")
        return Path("zoo.yaml")

    return write_files


@pytest.fixture
def load(write: Callable[..., Path]) -> Load:
    """Writes files as `write` does, and loads the first."""

    def write_and_load(zoo: str, *, overrides: Sequence[str] = (), **others: str) -> LoadedZoo:
        return load_zoo(write(zoo, **others), overrides)

    return write_and_load


@pytest.fixture
def failure(load: Load) -> Callable[..., ConfigError]:
    """Writes files and loads the first, which must fail; returns the error."""

    def fail(zoo: str, *, overrides: Sequence[str] = (), **others: str) -> ConfigError:
        with pytest.raises(ConfigError) as caught:
            load(zoo, overrides=overrides, **others)
        return caught.value

    return fail


@pytest.fixture
def refused(failure: Callable[..., ConfigError]) -> Callable[..., None]:
    """Files that `load` must refuse with one message of one line, which starts with a place and says something."""

    def refuse(start: str, *said: str, **files: str) -> None:
        message = str(failure(**files))
        assert message.startswith(start)
        assert all(part in message for part in said)
        assert "\n" not in message

    return refuse

"""Files in a repository of the Hub, by its real client: a commit for changes that belong together, and clear errors."""

import subprocess
import sys

import pytest
from pteforge.artifacts.hub_files import HubFiles, open_files
from pteforge.artifacts.remote_files import RemoteFiles
from pteforge.errors import StoreUnusable
from pteforge.tests.artifacts.hub_server import TOKEN

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # the client's own
BINARY = b"\0" * 1000 + b"end"


def test_one_commit(hub, tmp_path):
    """What is written, copied and deleted is seen at once by its writer, and by others in one commit."""
    (tmp_path / "file").write_bytes(BINARY)
    files, others = HubFiles("hf://org/name"), HubFiles("hf://org/name")
    with files.commit("Add"):
        files.write("a/text", b"hello")
        files.upload(tmp_path / "file", "a/large")
        files.write("a/unwanted", b"x")
        files.delete("a/unwanted")
        files.copy("a/large", "b/same")
        assert files.read("a/text") == b"hello"
        assert files.read("a/large", 2000) == BINARY
        assert [(file.name, file.size) for file in files.list("a")] == [("a/large", 1003), ("a/text", 5)]
        assert files.find("a/large").size == 1003
        assert files.find("a/unwanted") is files.read("a/unwanted") is None
        assert others.names("a") == []
    assert hub.messages == ["Add"]
    assert {name: len(content) for name, content in hub.files("org/name").items() if "/" in name} == {
        "a/text": 5, "a/large": 1003, "b/same": 1003,
    }  # fmt: skip
    assert others.names("a") == ["a/large", "a/text"]
    assert others.read("a/large", 2000) == BINARY
    assert b"".join(others.blocks("a/large", 1003)) == BINARY
    with others.commit("Change"):
        others.delete("a/text")
        others.copy("a/large", "c/again")
        others.copy("a/text", "c/text")
    assert hub.files("org/name")["c/again"] == BINARY
    assert hub.files("org/name")["c/text"] == b"hello"
    assert files.read("a/text") is None
    with files.commit("Nothing"):
        pass
    assert hub.messages == ["Add", "Change"]


def test_branches_and_folders(hub):
    """A URL may name a branch, which is made if needed, and a folder."""
    files = HubFiles("hf://org/name@beta/deep/folder")
    with files.commit("Add"):
        files.write("a/text", b"hello")
    assert hub.files("org/name", "beta")["deep/folder/a/text"] == b"hello"
    assert "deep/folder/a/text" not in hub.files("org/name")
    assert HubFiles("hf://org/name@beta/deep/folder").names("a") == ["a/text"]
    assert HubFiles("hf://org/name").names("a") == []


def test_somebody_else_commits(hub):
    """A commit to a branch that has moved meanwhile is refused, and nothing of it is there."""
    files = HubFiles("hf://org/name")
    with files.commit("First"):
        files.write("a", b"1")
    hub.before_commit = lambda: hub.push("org/name", "b", b"2")
    with (
        pytest.raises(StoreUnusable, match=r"412.*somebody else has changed"),
        files.commit("Second"),
    ):
        files.write("a", b"3")
    assert hub.files("org/name") == {".gitattributes": b"*.pte filter=lfs\n", "a": b"1", "b": b"2"}
    assert files.read("a") == b"1"


def test_an_error_within_a_commit(hub):
    """Nothing is committed."""
    files = HubFiles("hf://org/name")

    def fail() -> None:
        with files.commit("Add"):
            files.write("a", b"1")
            raise RuntimeError("on the way")

    with pytest.raises(RuntimeError, match="on the way"):
        fail()
    assert hub.messages == []
    assert files.read("a") is None


@pytest.mark.usefixtures("hub")
def test_errors(monkeypatch):
    """They say what to do, and never the token."""
    files = HubFiles("hf://org/none")
    assert files.read("a") is None
    with pytest.raises(StoreUnusable, match=r"org/none.* \(repository not found\).*not see it"):
        files.names("a")
    with (
        pytest.raises(StoreUnusable, match=r"403.*permission to write"),
        HubFiles("hf://forbidden/name").commit("Add"),
    ):
        raise AssertionError("not reached")
    with pytest.raises(StoreUnusable, match="org/none is a repository, "):
        files.write("a", b"1")
    with pytest.raises(StoreUnusable, match=r"'namespace/name'.*write hf://ORG/NAME"):
        open_files("hf://name")
    with files.commit("Make it"):
        pass
    with pytest.raises(StoreUnusable, match="revision not found"):
        HubFiles("hf://org/none@missing").names("a")
    assert TOKEN not in files._describe(ValueError(f"sent {TOKEN}"))
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(StoreUnusable, match=r"401.*hf auth login") as refused, HubFiles("hf://org/name").commit("Add"):
        raise AssertionError("not reached")
    assert "hf_wrong" not in str(refused.value)


@pytest.mark.usefixtures("hub")
def test_buckets_are_stores():
    """A bucket has no commits."""
    assert type(open_files("hf://buckets/org/name/folder")) is RemoteFiles
    assert type(open_files("hf://org/name")) is HubFiles


def test_the_client_is_not_installed():
    """The command that installs it is in the message."""
    code = (
        "import sys; sys.modules['huggingface_hub'] = None; "
        "from pteforge.artifacts.hub_files import open_files; open_files('hf://org/name')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pteforge.errors.StoreUnusable: " in done.stderr
    assert "pip install 'pteforge[hf]'" in done.stderr

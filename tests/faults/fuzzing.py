"""Changed bytes for every reader, which returns something sound or raises the error that it documents."""

from __future__ import annotations

import contextlib
import json
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pteforge
from pteforge.artifacts.digest import Digest, canonical_json, digest_bytes
from pteforge.artifacts.files import NamedFiles, at_most
from pteforge.artifacts.ledger import Ledger
from pteforge.artifacts.records import Seal
from pteforge.artifacts.ref import ArtifactRef
from pteforge.artifacts.runs import Runs
from pteforge.configs.load import load_zoo, parse_override
from pteforge.errors import ConfigError, FileFormatError, StoreError
from pteforge.formats.pte.ptd import ptd_named_data
from pteforge.formats.pte.reader import read_pte
from pteforge.tests.faults.campaign import Campaign, trying
from pteforge.tests.faults.commands import Commands, check_said
from pteforge.tests.faults.zoo import SIGNING_KEY, SmallZoo, lower_small_zoo
from pteforge.tests.formats.nfat import test_hostile as nfat
from pteforge.tests.formats.pte import test_hostile as pte
from pteforge.tests.mutations import mutate

REPOSITORY = Path(pteforge.__file__).parent
CORPUS = REPOSITORY / "tests" / "formats" / "nfat" / "corpus"


@dataclass(frozen=True)
class Record:
    """A record of a store before it is sealed, and what for."""

    purpose: str
    content: bytes


@dataclass(frozen=True)
class Corpus:
    """What is changed.

    Attributes:
        files: `.pte`s and a `.ptd`, by name.
        zoos: texts of zoo files.
        records: of a store, by the names of their files.
        artifacts: one of each kind that consists of several objects.
    """

    zoo: SmallZoo
    commands: Commands
    files: dict[str, bytes]
    containers: tuple[bytes, ...]
    zoos: tuple[str, ...]
    records: dict[str, Record]
    artifacts: tuple[ArtifactRef, ...]


def make_corpus(folder: Path) -> Corpus:
    return collect(lower_small_zoo(folder / "zoo"))


def collect(zoo: SmallZoo) -> Corpus:
    with zoo.opened() as store:
        found = [ref for record in store.ledger for ref in record.outputs.values()]
        refs = {ref.kind: ref for ref in sorted(found, key=lambda ref: ref.root.digest) if ref.composite}
        for ref in refs.values():
            store.fetch(ref)
        purposes = store.ledger.purposes() | store.runs.purposes()
    records = {name: Record(purpose, _content(zoo.shared / name)) for name, purpose in sorted(purposes.items())}
    whole = next((zoo.shared / "ledger" / "zoos").iterdir())
    records[f"ledger/zoos/{digest_bytes(b'zoo')}"] = Record("zoo/zoo", _content(whole))
    containers = [path for kind in ("good", "bad", "mutated") for path in sorted((CORPUS / kind).iterdir())]
    zoos = [zoo.folder / "zoo.yaml", *sorted((REPOSITORY / "examples").rglob("*.yaml"))]
    return Corpus(
        zoo,
        Commands(),
        {path.name: path.read_bytes() for path in sorted((zoo.out / "net").glob("*.pt*"))},
        tuple(path.read_bytes() for path in containers),
        tuple(path.read_text(encoding="utf-8") for path in zoos),
        records,
        tuple(refs[kind] for kind in sorted(refs)),
    )


def _content(sealed: Path) -> bytes:
    return sealed.read_bytes().partition(b"\n")[2]


def pte_reader(corpus: Corpus, rng: random.Random, _: Path) -> str:
    content = corpus.files[rng.choice([name for name in sorted(corpus.files) if name.endswith(".pte")])]
    pte.accepted(mutate(content, rng, read_pte(content).program_size))
    return "reader of .pte"


def ptd_reader(corpus: Corpus, rng: random.Random, _: Path) -> str:
    content = next(content for name, content in corpus.files.items() if name.endswith(".ptd"))
    changed = mutate(content, rng, rng.choice((64, 512, len(content))))
    with contextlib.suppress(FileFormatError):
        for view in ptd_named_data(memoryview(changed)).values():
            assert len(view) <= len(changed)
    return "reader of .ptd"


def nfat_reader(corpus: Corpus, rng: random.Random, _: Path) -> str:
    nfat.accepted(mutate(rng.choice(corpus.containers), rng))
    return "reader of NFAT"


SNIPPETS = (
    "&a ", "*a", "<<: *a", "!!python/object:os.system ", "!!binary ", "? ", "- ", ": ", "[", "]", "{", "}", "|", ">-",
    "---\n", "...\n", "%YAML 1.1\n", "\t", "\0", "\x85", "\u2028", "\ufeff", "'", '"\\x', "~", "null", ".nan",
    "-.inf", "1e999", "0x", "0o9", "9" * 5000, "../..", "version: 2\n", "models:", "include: [zoo.yaml]\n", "extends: ",
)  # fmt: skip


def changed_text(text: str, rng: random.Random) -> bytes:
    """Text with lines moved, copied, indented or cut, snippets of YAML put in, or bytes changed."""
    lines = text.splitlines(keepends=True)
    for _ in range(rng.randrange(1, 6)):
        at, other = rng.randrange(len(lines)), rng.randrange(len(lines))
        match rng.randrange(6):
            case 0:
                lines[at], lines[other] = lines[other], lines[at]
            case 1:
                lines.insert(at, lines[other])
            case 2:
                lines[at] = " " * rng.randrange(1, 9) + lines[at]
            case 3:
                lines[at] = lines[at].lstrip() or "\n"
            case _:
                place = rng.randrange(len(lines[at]) + 1)
                lines[at] = lines[at][:place] + rng.choice(SNIPPETS) + lines[at][place:]
    content = "".join(lines).encode("utf-8", "surrogatepass")
    return mutate(content, rng) if rng.random() < 0.3 else content


def yaml_loader(corpus: Corpus, rng: random.Random, folder: Path) -> str:
    path = folder / "zoo.yaml"
    path.write_bytes(changed_text(rng.choice(corpus.zoos), rng))
    with contextlib.suppress(ConfigError):
        load_zoo(path)
    return "loader of zoos"


OVERRIDES = ("models.net.seed=3", "models.*.recipes[0]=both", "defaults.recipes=[both]", "recipes.both={extends: x}",
             "models.net={source: 'a:b', recipes: [both]}", "version=1", 'models."a.b".seed=1')  # fmt: skip


def overrides(corpus: Corpus, rng: random.Random, _: Path) -> str:
    text = changed_text(rng.choice(OVERRIDES), rng).decode("utf-8", "replace").replace("\0", "")
    with contextlib.suppress(ConfigError):
        parse_override(text)
        load_zoo(corpus.zoo.folder / "zoo.yaml", [text])
    return "overrides of zoos"


class Held(NamedFiles):
    """Files in a dictionary."""

    def __init__(self, held: dict[str, bytes]) -> None:
        self.held = held

    def read(self, name: str, limit: int = 1 << 26) -> bytes | None:
        content = self.held.get(name)
        return None if content is None else at_most(content, limit)

    def write(self, name: str, content: bytes) -> None:
        self.held[name] = content

    def delete(self, name: str) -> None:
        self.held.pop(name, None)

    def names(self, folder: str) -> list[str]:
        return sorted(name for name in self.held if name.startswith(f"{folder}/"))


def ledger_records(corpus: Corpus, rng: random.Random, _: Path) -> str:
    """Records are changed as they are stored, or before they are sealed: with the key, for their own purpose."""
    seal = Seal(SIGNING_KEY)
    held = Held({name: seal.close(record.purpose, record.content) for name, record in corpus.records.items()})
    name = rng.choice(list(corpus.records))
    record = corpus.records[name]
    if rng.random() < 0.8:
        changed = changed_json(record.content, rng) if rng.random() < 0.5 else mutate(record.content, rng)
        held.write(name, seal.close(record.purpose, changed))
    else:
        held.write(name, mutate(held.held[name], rng))
    ledger, runs = Ledger(held, seal), Runs(held, seal)
    for found in [*ledger, *ledger.slots(), *runs, *ledger.whole_models("zoo").values()]:
        with contextlib.suppress(ValueError):  # JSON's 1e999 is read as infinity, which is not written
            assert type(found).decode(found.encode()) == found
    list(ledger.watch_lists())
    assert ledger.purposes()
    return "records of a store"


def changed_json(content: bytes, rng: random.Random) -> bytes:
    """JSON in which some value is another one, gone, or there twice."""
    tree = json.loads(content)
    for _ in range(rng.choice((1, 1, 2, 3))):
        places = list(_places(tree))
        if not places:
            return mutate(content, rng)
        place = rng.choice(places)
        value = rng.choice((None, True, -1, 0, 1, 2**31, 2**63, 2**64, 10**400, 0.5, "", "x", "a" * 64, [], {}, [[]],
                            ["a" * 64, 1], {"x": 1}, "\0", "../../x", "\ud800"))  # fmt: skip
        match place, rng.randrange(4):
            case (list() as items, key), 0:
                items.insert(key, value)
            case (box, key), 1:
                del box[key]
            case (box, key), _:
                box[key] = value
    return json.dumps(tree).encode()


def _places(tree: object) -> Iterator[tuple[dict | list, str | int]]:
    """Every place of a tree, as what holds it and its key there."""
    if isinstance(tree, dict | list):
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield tree, key
            yield from _places(value)


def codecs(corpus: Corpus, rng: random.Random, folder: Path) -> str:
    """Manifests are changed, and stored under the digests that they then have."""
    from pteforge.artifacts.local_store import LocalStore
    from pteforge.tasks.programs.delegates import load_delegates
    from pteforge.tasks.programs.payload import load_packed, read_payload
    from pteforge.tasks.programs.program import load_graph, load_program
    from pteforge.tasks.programs.values import load_value

    with corpus.zoo.opened() as opened:
        store = LocalStore(opened.local.root)
    ref = rng.choice(corpus.artifacts)
    changed = changed_json(store.read(ref.root), rng)
    with contextlib.suppress(ValueError):
        changed = canonical_json(json.loads(changed))
    root = store.put_bytes(changed)
    damaged = replace(ref, root=root, identity=Digest(root.digest))
    kind = ref.kind.partition("/")[0]
    load: Callable[[ArtifactRef, LocalStore], object]
    if kind in ("program", "graph") and ref.kind != "program/state":
        load = load_graph if kind == "graph" else load_program
    elif kind == "payload":
        load = partial(load_packed, scratch=folder) if ref.kind == "payload/nfat" else read_payload
    else:
        load = load_delegates if kind == "delegates" else load_value
    with contextlib.suppress(StoreError):
        load(damaged, store)
    return f"codec of {kind}"


READERS = (pte_reader, pte_reader, ptd_reader, nfat_reader, nfat_reader, yaml_loader, yaml_loader, overrides,
           ledger_records, ledger_records, codecs)  # fmt: skip


def run_command(corpus: Corpus, rng: random.Random, folder: Path) -> str:
    """`pteforge run` of changed files. If ExecuTorch's runtime crashes, that is its own, and told."""
    name = rng.choice([name for name in sorted(corpus.files) if name.endswith(".pte")])
    content = corpus.files[name]
    path = folder / name
    path.write_bytes(mutate(content, rng, rng.choice((len(content), read_pte(content).program_size))))
    for data in corpus.files.keys() - {name}:
        if data.endswith(".ptd") and Path(data).stem == path.stem:
            (folder / data).write_bytes(corpus.files[data])
    with trying("pteforge run"):
        said = corpus.commands.run(folder, "run", path)
        check_said(said)
    if "crashed" in said.text:
        return "pteforge run: ExecuTorch's runtime crashed, and pteforge said so"
    return f"pteforge run: {('ran', 'an error', 'bad input')[said.code]}"


def try_reader(corpus: Corpus, rng: random.Random, folder: Path) -> str:
    reader = rng.choice(READERS)
    with trying(reader.__name__.replace("_", " ")):
        return reader(corpus, rng, folder)


def try_any(corpus: Corpus, rng: random.Random, folder: Path) -> str:
    return (run_command if rng.random() < 0.01 else try_reader)(corpus, rng, folder)


FUZZ = Campaign("Fuzzing", make_corpus, try_any, 200_000)

NATIVE_RUNS = 10_000
"""Containers in one trial: libFuzzer starts from the corpus each time."""


def build_fuzzer(folder: Path) -> Path:
    """The fuzzer of the C++ backend, with sanitizers; takes clang++."""
    for command in (
        ["cmake", "-S", REPOSITORY / "runtime", "-B", folder / "build", "-DNFAT_BUILD_FUZZER=ON",
         "-DCMAKE_CXX_COMPILER=clang++", f"-DPython_EXECUTABLE={sys.executable}"],
        ["cmake", "--build", folder / "build", "--target", "fuzz_containers", "--parallel"],
    ):  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    return folder / "build" / "fuzz_containers"


def fuzz_containers(fuzzer: Path, folder: Path, *seeds: Path, runs: int, seed: int) -> None:
    """Lets libFuzzer search for containers that break something; what it finds stays in `folder`, as crash-* and so on.

    Raises AssertionError if it finds one.
    """
    (found := folder / "found").mkdir()
    options = [f"-runs={runs}", f"-seed={seed}", "-timeout=10", "-rss_limit_mb=2048", "-max_len=8192"]
    corpus = (CORPUS / kind for kind in ("good", "bad", "mutated", "unloadable", "blobs"))
    command = [fuzzer, *options, f"-artifact_prefix={folder}/", found, *seeds, *corpus]
    done = subprocess.run(command, capture_output=True, text=True, check=False, errors="replace")
    assert done.returncode == 0, done.stderr[-5000:]
    ended = re.search(r"Done (\d+) runs", done.stderr)
    assert ended, done.stderr[-5000:]
    assert int(ended[1]) >= runs  # when libFuzzer looks for a leak, it runs an input again
    assert len(list(found.iterdir())) > runs // 1000


def try_backend(fuzzer: Path, rng: random.Random, folder: Path) -> str:
    fuzz_containers(fuzzer, folder, runs=NATIVE_RUNS, seed=rng.randrange(1, 2**31))
    return f"C++ reader of NFAT, {NATIVE_RUNS:,} containers each time"


NATIVE = Campaign("Fuzzing of C++", build_fuzzer, try_backend, 100)

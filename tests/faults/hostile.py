"""Hostile stores, files and zoos: whatever others wrote, nothing of it is run, and later runs make the right files."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pickle
import random
import shutil
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from pteforge.artifacts.digest import canonical_json, digest_bytes
from pteforge.artifacts.ledger import StageRecord
from pteforge.artifacts.records import Seal
from pteforge.artifacts.ref import ArtifactRef, BlobRef
from pteforge.artifacts.runs import RunRecord, StageOutcome
from pteforge.configs.load import load_zoo
from pteforge.errors import ConfigError, InputError, PteforgeError, StoreUnusable
from pteforge.flows.releases.releases import Releases
from pteforge.tests.faults.campaign import Campaign, trying
from pteforge.tests.faults.commands import Commands, check_said
from pteforge.tests.faults.zoo import SIGNING_KEY, SmallZoo, lower_small_zoo

OTHER_KEY = "the key of somebody who may write to the bucket"


@dataclass(frozen=True)
class Target:
    """What all trials start from: a lowered zoo, and processes that run commands."""

    zoo: SmallZoo
    commands: Commands


def make_target(folder: Path) -> Target:
    return Target(lower_small_zoo(folder / "zoo"), Commands())


@dataclass(frozen=True)
class Attack:
    """One trial.

    Attributes:
        zoo: a copy of the target's zoo, to be changed.
        folder: of the trial.
    """

    target: Target
    zoo: SmallZoo
    folder: Path
    rng: random.Random

    @property
    def canary(self) -> Path:
        """The file that a bomb makes where it goes off."""
        return self.folder / "canary"

    def command(self, *args: str | Path, codes: tuple[int, ...] = (0, 1, 2, 3)) -> str:
        said = self.target.commands.run(self.zoo.folder, *args, env=self.zoo.environment())
        check_said(said, *codes)
        return said.text

    def records(self, stage: str | None = None) -> list[StageRecord]:
        """Those of the store, or of one kind of stage, in no special order but the same in each run."""
        with self.zoo.opened() as store:
            found = [record for record in store.ledger if stage in (None, record.fields["stage"])]
        return sorted(found, key=lambda record: record.key)

    def forget(self, *records: StageRecord) -> None:
        """Makes stages run again; they find their inputs in the bucket only."""
        for record in records:
            (self.zoo.shared / "ledger" / "stages" / record.key[:2] / record.key).unlink(missing_ok=True)
        shutil.rmtree(self.zoo.shared / "ledger" / "zoos", ignore_errors=True)
        self.forget_copies()

    def forget_copies(self) -> None:
        """Removes this machine's copies of objects: all has to be downloaded."""
        shutil.rmtree(self.zoo.folder / "cache" / "remotes", ignore_errors=True)


def bomb(canary: Path, rng: random.Random, *, compressed: bool | None = None) -> bytes:
    """A pickle that makes a file as soon as it is unpickled, as programs are stored or as they are."""

    class Bomb:
        def __reduce__(self):
            return Path.touch, (canary,)

    content = pickle.dumps([Bomb()], protocol=rng.choice((2, 4, 5)))
    return zlib.compress(content) if compressed or (compressed is None and rng.random() < 0.5) else content


def junk(attack: Attack) -> Callable[[Path], object]:
    """A function that writes what no reader expects to a path."""
    rng = attack.rng
    texts = {
        "100,000 brackets": b"[" * 100_000,
        "100,000 braces": b'{"key":' * 100_000,
        "huge numbers": b'{"seconds":' + b"9" * 20_000 + b',"pid":1e99999,"size":-1}',
        "NaN": b'{"seconds": NaN, "held": -Infinity}',
        "no UTF-8": b'{"id": "\xff\xfe\\ud800"}',
        "a NUL": b'{"id": "\\u0000", "\\u0000": 1}',
        "another type": rng.choice((b"null", b"[]", b"0", b'""', b"true", b"{}")),
        "nothing": b"",
        "a pickle bomb": bomb(attack.canary, rng),
        "escapes": b"\x1b]0;title\x07\x1b[2J\xe2\x80\xae" * 20,
        "random bytes": rng.randbytes(rng.randrange(1, 4000)),
    }
    name = rng.choice((*texts, "200 MB"))
    if name == "200 MB":
        return lambda path: path.touch() or os.truncate(path, 200 << 20)
    seal, purpose = rng.choice((None, Seal(None), Seal(OTHER_KEY))), rng.choice(("stage/", "runs/", "slot/net"))
    content = seal.close(purpose, texts[name]) if seal else texts[name]
    return lambda path: path.write_bytes(content)


def replace_with(path: Path, write: Callable[[Path], object]) -> None:
    """Writes a file in place of another one, or where there is none; a name that cannot exist is left out."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        write(path)
    except OSError as error:
        if error.errno not in (errno.ENAMETOOLONG, errno.EISDIR, errno.ENOTDIR, errno.EEXIST):
            raise


ODD_NAMES = (
    "notanumber", "-1", "99999999", "999999999999999999999", "\u0660" * 8, "0000000a", "00000001\n", "00000000/inside",
    "\x1b[2J", "..", "...", " ", "%2e%2e%2f", "x" * 255, "00000000.json", "\u202egnp.exe", "*", "?x=1", "#",
)  # fmt: skip


def odd_leases(attack: Attack) -> str:
    """Leases of a stage that has to run, with names that are no generations, or content that is no heartbeat."""
    record = attack.rng.choice(attack.records())
    attack.forget(record)
    heartbeat = canonical_json({"holder": "x" * 16, "beat": attack.rng.randrange(3), "held": 0.0})
    for name in attack.rng.sample((*ODD_NAMES, "00000000", "00000007"), 4):
        folder = attack.zoo.shared / "leases" / attack.rng.choice((record.key, record.key, "", name, "x" * 64))
        content = attack.rng.choice((b"", heartbeat, Seal(OTHER_KEY).close(f"leases/{record.key}/{name}", heartbeat)))
        if ".." not in name.split("/"):
            odd = attack.rng.choice((junk(attack), lambda path, content=content: path.write_bytes(content)))
            replace_with(folder / name, odd)
    return "leases with odd names and content"


FOLDERS = ("leases", "publishing", "runs", "ledger/stages", "ledger/slots", "ledger/watch", "ledger/zoos", "damaged",
           "quarantine", "tmp", "objects")  # fmt: skip


def junk_beside(attack: Attack) -> str:
    """Files that nobody expects, in all folders of a store."""
    for _ in range(3):
        folder = attack.rng.choice(FOLDERS)
        odd = attack.rng.choice([name for name in ODD_NAMES if ".." not in name.split("/")])
        digest = digest_bytes(odd.encode())
        replace_with(
            attack.zoo.shared / folder / attack.rng.choice((odd, digest, f"{digest[:2]}/{digest}")), junk(attack)
        )
    if attack.rng.random() < 0.5:
        attack.forget(attack.rng.choice(attack.records()))
    return "files that do not belong into a store"


def junk_in_place(attack: Attack) -> str:
    """Junk in place of records and objects."""
    folder = attack.rng.choice(("ledger/stages", "ledger/slots", "ledger/watch", "ledger/zoos", "runs", "objects"))
    files = sorted(path for path in (attack.zoo.shared / folder).rglob("*") if path.is_file())
    if folder == "objects":
        attack.forget(*attack.records())
    elif attack.rng.random() < 0.5:
        attack.forget(attack.rng.choice(attack.records()))
    for path in attack.rng.sample(files, min(len(files), attack.rng.randrange(1, 6))):
        if path.exists():
            replace_with(path, junk(attack))
    return f"{'objects' if folder == 'objects' else 'records'} replaced by junk"


def armed(attack: Attack, record: StageRecord) -> ArtifactRef:
    """The program of a record, and its graph, with a bomb in place of each stream; all digests are right."""
    objects = attack.zoo.shared / "objects"

    def put(content: bytes) -> BlobRef:
        digest = digest_bytes(content)
        (objects / digest[:2]).mkdir(exist_ok=True)
        (objects / digest[:2] / digest).write_bytes(content)
        return BlobRef(digest, len(content))

    def arm(root: str) -> BlobRef:
        manifest = json.loads((objects / root[:2] / root).read_bytes())
        body, blobs = manifest["body"], manifest["blobs"]
        blobs[body["stream"]] = put(bomb(attack.canary, attack.rng, compressed=True))
        if number := (body.get("graph") or [None])[0]:
            blobs[number] = arm(blobs[number][0])
        return put(canonical_json(manifest))

    ref = record.outputs["program"]
    return replace(ref, root=arm(ref.root.digest))


def forge_record(attack: Attack, seal: Seal | None = None) -> None:
    """A record of an export whose program is a bomb, which the next stage will load if it believes the record."""
    (record,) = attack.records("export")
    others = [other for other in attack.records() if other != record]
    forged = replace(record, outputs={**record.outputs, "program": armed(attack, record)})
    purpose = f"stage/{record.key}"
    path = attack.zoo.shared / "ledger" / "stages" / record.key[:2] / record.key
    sealed = path.read_bytes().partition(b"\n")[0] + b"\n" + forged.encode()
    choices = [forged.encode(), sealed, Seal(None).close(purpose, forged.encode())]
    choices.append(Seal(OTHER_KEY).close(purpose, forged.encode()))
    content = seal.close(purpose, forged.encode()) if seal else attack.rng.choice(choices)
    attack.forget(*others)
    path.write_bytes(content)


def forged_records(attack: Attack) -> str:
    """Records that lead to a bomb, without our key; or genuine ones in place of others."""
    if attack.rng.random() < 0.7:
        forge_record(attack)
        return "forged records of pickle bombs"
    folder = attack.zoo.shared / "ledger" / attack.rng.choice(("stages", "slots"))
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    one, other = attack.rng.sample(paths, 2)
    shutil.copyfile(one, other)
    shutil.rmtree(attack.zoo.shared / "ledger" / "zoos", ignore_errors=True)
    return "records in the place of others"


def bombs_as_objects(attack: Attack) -> str:
    """Bombs in place of stored bytes of every kind, under their names."""
    attack.forget(*attack.records()[attack.rng.randrange(4) :])
    paths = sorted(path for path in (attack.zoo.shared / "objects").rglob("*") if path.is_file())
    for path in attack.rng.sample(paths, attack.rng.randrange(1, len(paths))):
        path.write_bytes(bomb(attack.canary, attack.rng))
    return "pickle bombs in place of objects"


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def wrong_key(attack: Attack) -> str:
    """A run with another key stops before it changes anything."""
    before = tree(attack.zoo.shared)
    with pytest.raises(StoreUnusable, match="store rekey"):
        attack.zoo.lower({"PTEFORGE_SIGNING_KEY": attack.rng.choice((OTHER_KEY, SIGNING_KEY + "x", "x" * 1000))})
    assert tree(attack.zoo.shared) == before
    return "another signing key"


def changed_key(attack: Attack) -> str:
    """Whatever is in the files that say what a store is, a run goes on or says that the store is of no use."""
    path = attack.zoo.shared / attack.rng.choice(("key", "version"))
    content = path.read_bytes()
    others = (b"pteforge key 1 " + b"0" * 32 + b"\n", b"pteforge key 1 " + b"0" * 32 + b" " + b"1" * 32 + b"\n")
    odd = attack.rng.choice((junk(attack), lambda path: path.write_bytes(attack.rng.choice(others))))
    replace_with(path, odd)
    with contextlib.suppress(StoreUnusable):
        attack.zoo.lower()
    path.write_bytes(content)
    return "the store's key or version replaced"


ESCAPES = "\x1b]0;owned\x07 \x1b[2J\u202e [bold]x[/b] \r\x9b31m\x00"


def escapes_in_records(attack: Attack) -> str:
    """A builder's or another user's text in records of runs reaches no terminal as it is."""
    text = attack.rng.choice((ESCAPES, ESCAPES[::-1], f"x[/b]{ESCAPES}"))
    stage = StageOutcome(f"{text}/{text}", text, text, (text,), "failed", None, message=text)
    record = RunRecord(
        "abcdef0123456789", text, "2026-01-02T03:04:05+00:00", 1.0, {text: (stage,), "net": (stage,)}, "failed",
        {"zoo": text}, text, text, text, text,
    )  # fmt: skip
    with attack.zoo.opened() as store:
        store.runs.write(record)
        (newest,) = [run.id for run in store.runs if run.zoo == text]
    for args in (("runs",), ("why", "net", "--run", newest[:8]), ("why", text.replace("\0", "")), ("runs", "--json")):
        attack.command(*args)
    return "escape sequences in records"


def bad_zoos(attack: Attack) -> list[str]:
    """Zoo files that are too deep or too large, want to run something, or leave their folder."""
    rng, canary = attack.rng, attack.canary
    source = "small_builder:linear"
    aliases = "\n".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" if i else "a0: &a0 [x]" for i in range(12))
    merges = "\n".join(f"m{i}: &m{i} {{<<: [{', '.join([f'*m{i - 1}'] * 9)}]}}" if i else "m0: &m0 {k: 1}"
                       for i in range(12))  # fmt: skip
    run = f"[touch {canary}]"
    name = rng.choice(("../../x", "/etc/x", "..", ".", "a/b", "x\u202e"))
    recipe = rng.choice(("../portable-fp32", "/etc/passwd", "..", ""))
    return [
        aliases,
        merges,
        "a: &a [*a]",
        rng.choice(("[" * 100_000, "{a: " * 50_000, "- " * 50_000, "? " * 20_000)),
        f"version: 1\nmodels: {{net: {{source: {source}, seed: {'9' * 100_000}}}}}",
        f"version: 1\nmodels: {{net: {{source: {source}, seed: 0x{'f' * 100_000}}}}}",
        f"!!python/object/apply:os.system {run}",
        f"version: !!python/name:os.system\nmodels: !!python/object/new:subprocess.Popen [{run}]",
        f"models: !!python/module:{canary.stem}\nversion: !!python/tuple [1]",
        "version: 1\nmodels: !!binary aGVsbG8=",
        "version: 1\nmodels: {'\x1b[2J': 1}",
        'version: 1\nmodels: {"\\0": {source: "\\0"}}',
        f"version: 1\ndefaults: {{recipes: [portable-fp32]}}\nmodels: {{{json.dumps(name)}: {source}}}",
        f"version: 1\nmodels: {{net: {{source: {source}, recipes: [{json.dumps(recipe)}]}}}}",
        "version: 1\ninclude: [bomb.yaml]",
        "version: 1\ninclude: [., .., /, /etc]",
        'version: 1\nmodels: {"\\ud800": 1}',
        "? [a, b]\n: 1\n? {c: d}\n: 2",
        "version: 1\nmodels: {" + "x" * 1_000_000 + ": 1}",
    ]


def zoo_bombs(attack: Attack) -> str:
    path = attack.zoo.write("bomb.yaml", "")
    for text in attack.rng.sample(bad_zoos(attack), 5):
        path.write_text(text, encoding="utf-8", errors="surrogatepass")
        with pytest.raises(ConfigError):
            load_zoo(path)
    return "zoo files: bombs, objects of Python, names and includes that lead elsewhere"


def zoo_bombs_by_command(attack: Attack) -> str:
    path = attack.zoo.write("bomb.yaml", "")
    path.write_text(attack.rng.choice(bad_zoos(attack)), encoding="utf-8", errors="surrogatepass")
    attack.command(attack.rng.choice(("plan", "export")), "bomb.yaml", codes=(2,))
    return "zoo files like these, as commands"


def pipes_in_zoos(attack: Attack) -> str:
    os.mkfifo(attack.zoo.folder / "pipe")
    include = attack.rng.choice(("pipe", "/dev/zero", "/dev/stdin", "/dev/tty"))
    attack.zoo.write("bomb.yaml", f"version: 1\ninclude: [{include}]\n")
    attack.command(attack.rng.choice(("plan", "export")), "bomb.yaml", codes=(2,))
    return "zoo files that include pipes and devices"


def traversal(attack: Attack) -> str:
    """Names in releases, provenance and refs never lead out of the folder that was asked for."""
    rng = attack.rng
    name = rng.choice(("../../x", "..", "/etc/x", "a/../../x", "net\0", "\x1b[2J", "x" * 300, "", "net\n", "..\\x"))
    site, out = attack.folder / "site", attack.folder / "fetched"
    before = tree(attack.folder)
    content = b"a .pte"
    file = {"sha256": rng.choice((digest_bytes(content), name)), "size": len(content)}
    figures = {"model": name, "recipe": name, "sha256": digest_bytes(content), "size": 6}
    recipe = {"file": file, "data": None, "figures": figures, "provenance": {"model": name, "run": {"zoo": name}}}
    model, label = rng.choice((("net", name), (name, "both"), (name, name), ("net", "both")))
    models = {model: {"card": file, "recipes": {label: recipe}}}
    manifest = canonical_json({"version": 1, "zoo": name, "published": "now", "run": {}, "models": models})
    release = f"20260102T030405.000000-{digest_bytes(manifest)[:12]}"
    channel = {"release": rng.choice((release, name)), "sha256": digest_bytes(manifest), "moved": name}
    files = {f"releases/{release}.json": manifest, f"files/{digest_bytes(content)}": content}
    files["channels/latest.json"] = rng.choice((canonical_json(channel), b"[" * 100_000, b"\xff", b"{}"))
    for path, written in files.items():
        replace_with(site / path, lambda path, written=written: path.write_bytes(written))
    releases = Releases(str(site))
    for text in ("latest", release, name):
        with contextlib.suppress(InputError, PteforgeError):
            releases.fetch(releases.find(text), "*", out)
    made = {path for path in tree(attack.folder) if path not in before}
    assert all(path.startswith(("site/", "fetched/")) for path in made), made
    assert not (attack.folder.parent / "x.pte").exists()
    return "names that leave their folder, in releases"


def refs_that_lead_out(attack: Attack) -> str:
    """A ref that is no digest, in a record that the store's owner has sealed, counts as no record."""
    record = attack.rng.choice(attack.records())
    value = record.to_json()
    name = attack.rng.choice(
        ("../../../../etc/passwd", "/etc/passwd", "..", "A" * 64, "a" * 64 + "\n", "\u0660" * 64, "")
    )
    for ref in value["outputs"].values():
        ref[attack.rng.choice(("root", "identity"))] = attack.rng.choice((name, [name, 1], [name], [["a" * 64], 1]))
    attack.forget(*attack.records())
    path = attack.zoo.shared / "ledger" / "stages" / record.key[:2] / record.key
    path.write_bytes(Seal(SIGNING_KEY).close(f"stage/{record.key}", json.dumps(value).encode()))
    return "refs that are no digests"


def hostile_neighbours(attack: Attack) -> str:
    """What lies next to a file, and inputs of `run`, are read as what they should be, or refused."""
    rng, out = attack.rng, attack.zoo.out / "net"
    kept = tree(attack.zoo.out)
    replace_with(out / rng.choice(("both.json", "outside.ptd", "outside.json", "input.npz")), junk(attack))
    commands = (
        ("inspect", "out/net/outside.pte"), ("inspect", "out/net/both.pte", "--json"), ("diff", "out", "out"),
        ("run", "out/net/outside.pte"), ("run", "out/net/both.pte", "--input", "out/net/input.npz"),
        ("verify", "out/net/both.pte", "--model", "small_builder:linear"),
    )  # fmt: skip
    attack.command(*rng.choice(commands))
    shutil.rmtree(attack.zoo.out)
    for name, content in kept.items():
        replace_with(attack.zoo.out / name, lambda path, content=content: path.write_bytes(content))
    return "hostile files next to results"


QUICK = (odd_leases, junk_beside, junk_in_place, forged_records, bombs_as_objects, wrong_key, changed_key, zoo_bombs,
         traversal, refs_that_lead_out)  # fmt: skip
BY_COMMAND = (escapes_in_records, hostile_neighbours, zoo_bombs_by_command, pipes_in_zoos)
COMMANDS = (("runs",), ("why", "net"), ("store", "verify"), ("store", "gc", "--dry-run"), ("plan", "zoo.yaml"))


def attack_once(
    target: Target,
    rng: random.Random,
    folder: Path,
    attacks: tuple[Callable[[Attack], str], ...],
    *,
    commands: bool = True,
) -> str:
    """One attack, and in some trials a command; afterwards no bomb has gone off, and the zoo has its files."""
    attack = Attack(target, target.zoo.copy(folder / "zoo"), folder, rng)
    kind = rng.choice(attacks)
    with trying(kind.__name__.replace("_", " ")):
        said = kind(attack)
    with trying(said):
        if commands and rng.random() < 0.05:
            attack.command(*rng.choice(COMMANDS))
        shutil.rmtree(attack.zoo.out)
        outcome = attack.zoo.lower()
        assert not attack.canary.exists(), "a pickle bomb went off"
        assert outcome.exit_code == 0, outcome.failures
        assert attack.zoo.files() == target.zoo.files()
    return said


def try_any(target: Target, rng: random.Random, folder: Path) -> str:
    return attack_once(target, rng, folder, QUICK if rng.random() < 0.9 else BY_COMMAND)


HOSTILE = Campaign("Hostile input", make_target, try_any, 2_000)

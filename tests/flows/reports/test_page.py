"""The page about a run: what is on it, that nothing on it is taken for HTML, and when it is written."""

from __future__ import annotations

import hashlib
import time
from base64 import b64encode
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from pteforge.artifacts.runs import ReleaseOutcome
from pteforge.artifacts.store import open_store
from pteforge.flows.reports.page import NAME, render, runs_before, with_the_rest, write_page
from pteforge.tasks.results.accuracy import AccuracyReport, FoundQuantization, Score, ScoredFile, Scores
from pteforge.tasks.results.delegation import MethodWork, OutsideCalls
from pteforge.tasks.results.delivered import Delivered, Failure, delivered_by
from pteforge.tasks.results.diagnosis import Cause
from pteforge.tasks.results.quantization import LeftWeight, Quantization, WidenedRange
from pteforge.tests.flows.conftest import FAT

RECIPES = ("portable-fp32", "xnnpack-fp32", "fat")
EMPTY = {"meta", "input", "rect", "polyline", "circle", "i", "br", "link", "img"}  # `i` has a closing tag, no content
HOSTILE = "</title><script>alert(1)</script><img src=x onerror=alert(1)>\"'\x1b[31m\x00\u202e"


class Page(HTMLParser):
    """The elements of a page; checks that each is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.elements: list[tuple[str, list[tuple[str, str | None]]]] = []  # with their attributes
        self.attributes: list[tuple[str, str, str]] = []  # of element, name, value
        self.words: list[tuple[str, str]] = []  # classes around a text, and the text
        self._classes: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags[tag] += 1
        self.elements.append((tag, attrs))
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in EMPTY:
            self.open.append(tag)
            self._classes.append(dict(attrs).get("class") or "")

    def handle_startendtag(self, tag, attrs):
        self.tags[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag):
        if tag not in EMPTY:
            assert self.open.pop() == tag
            self._classes.pop()

    def handle_data(self, data):
        if data.strip():
            self.words.append((" ".join(self._classes), " ".join(data.split())))

    @property
    def text(self):
        return " ".join(text for _, text in self.words)

    def of_class(self, name):
        """Texts inside elements of a class."""
        return " ".join(text for classes, text in self.words if name in classes.split())

    def values(self, name):
        return [value for _, attribute, value in self.attributes if attribute == name]


@pytest.fixture(scope="module")
def lowered(lower_project):
    return lower_project({"net": "residual:residual"}, RECIPES, {"fat": FAT})


@pytest.fixture
def record(made):
    """The record of the run, from a copy of its project."""
    with open_store(str(made.store)) as store:
        return next(iter(store.runs))


CHANGED = "xnnpack-fp32"


def changed(record, *findings, **fields):
    """The record with other findings and fields of what came of one of its recipes."""
    made = replace(delivered_by(record)["net"][CHANGED], **fields)
    roles = {finding.role for finding in findings}
    made = replace(made, findings=(*(each for each in made.findings if each.role not in roles), *findings))
    return replace(record, id="another", files={"net": {**record.files["net"], CHANGED: made.to_json()}})


def measured(record, sqnr_db):
    """Its figures, with another SQNR."""
    figures = delivered_by(record)["net"][CHANGED].figures
    return replace(figures, overall=replace(figures.overall, sqnr_db=sqnr_db, max_abs_error=0.1))


FAILED = Delivered(
    "net",
    CHANGED,
    "failed",
    failure=Failure("partition/forward", "no such operator", "first line\nlast line", bad_input=False),
)


def failed_in(record):
    """The record of a run in which that recipe failed."""
    return replace(record, id="failed", files={"net": {**record.files["net"], CHANGED: FAILED.to_json()}})


def test_the_run_writes_its_page(made, record):
    """Header, a line per file, the map of each file and payload, a treemap with a text, and stage times."""
    page = Page((made.out / NAME).read_text(encoding="utf-8"))
    for word in (record.zoo, record.host, record.version, record.id, "completed", "3 files verified"):
        assert word in page.text
    assert page.tags["table"] == len(RECIPES)  # of stage times
    assert page.tags["details"] == len(RECIPES) + 1  # all are new
    assert "XnnpackBackend" in page.of_class("to-delegate")
    assert "not delegated" in page.of_class("left")
    assert "aten::" in page.of_class("kernel")  # portable kernels are what the portable recipe is for
    treemaps = [value for value in page.values("aria-label") if value.startswith("Treemap")]
    assert len(treemaps) == len(RECIPES)
    assert all("program" in text for text in treemaps)
    assert all(f"./net/{recipe}.pte" in page.values("href") for recipe in RECIPES)
    assert all(stage.step in page.text for stage in record.models["net"])


def test_what_a_stage_took(made, record):
    """Its time in the queue, apart from the time that it ran, and its memory, where they are known."""
    first, *others = record.models["net"]
    busy = replace(first, status="ran", seconds=1.5, queued=12.5, peak_memory=3 << 30, predicted_memory=2 << 30)
    text = Page(render(replace(record, models={"net": (busy, *others)}), [], made.out)).text
    for word in ("1.5 s", "12.5 s", "3.0 GiB"):
        assert word in text


def test_the_page_needs_nothing_else(made):
    """It refers to nothing but the files next to it and places in itself, and runs no script but its own."""
    text = (made.out / NAME).read_text(encoding="utf-8")
    page = Page(text)
    assert not {"link", "img", "iframe", "object"} & set(page.tags)
    assert not page.values("src")
    (policy,) = [value for value in page.values("content") if "default-src" in value]
    script = text.partition("<script>")[2].partition("</script>")[0]
    digest = b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy.startswith(f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; ")
    places = {f"#{value}" for value in page.values("id")}
    assert all(link in places or (made.out / link).is_file() for link in page.values("href"))


def test_changes_and_trends(made, record):
    """Size and SQNR are compared with the last run that made the file; lines show earlier ones too."""
    now = changed(record, measured(record, 40.0), size=1030)
    failed = failed_in(record)
    before = changed(record, measured(record, 42.5), size=1000)
    page = Page(render(now, [failed, before], made.out))
    assert page.of_class("worse") == "+3.0 % -2.5 dB"
    assert "Since the last run: failed before" in page.text
    labels = [value for value in page.values("aria-label") if "over the last" in value]
    assert "size over the last 2 runs: from 1000 B to 1.0 KiB" in labels
    assert "SQNR over the last 2 runs: from 42.5 dB to 40.0 dB" in labels
    assert Page(render(record, [], made.out)).of_class("trend") == ""


def test_what_matters_is_first(made, record):
    """Files that failed come first, those that were made before ahead of others; then changed, new and other files.

    Recipes that failed with one problem share a line. Of many files, those that are as before are not open.
    """

    def run(number, **files):
        return replace(record, id=f"{number}", files={"net": {name: made.to_json() for name, made in files.items()}})

    def ended(recipe, **fields):
        return replace(delivered_by(record)["net"]["fat"], recipe=recipe, **fields)

    old = replace(FAILED, recipe="b", failure=replace(FAILED.failure, problem="an old problem"))
    known = {f"k{number}": ended(f"k{number}") for number in range(30)}
    changed = {"e": ended("e"), "f": ended("f", size=1, digests={"pte": "0" * 64})}
    failed = {name: replace(FAILED, recipe=name) for name in ("c", "d")}
    before = run(1, b=old, c=ended("c"), d=ended("d"), e=ended("e", digests={"pte": "0" * 64}), f=ended("f"), **known)
    page = Page(render(run(2, new=ended("new"), **known, **changed, b=old, **failed), [before], made.out))
    assert page.values("data-recipes")[:6] == ["c d", "b", "e", "f", "new", "k0"]
    assert page.values("data-state")[:6] == ["failed", "failed", "changed", "changed", "new", "as before"]
    assert "failed again" in page.of_class("bad")
    opened = [dict(attrs)["id"] for tag, attrs in page.elements if tag == "details" and "open" in dict(attrs)]
    assert opened == ["failed", "changed", "new"]
    for count in ("3 failed", "2 changed", "1 new", "30 as before"):
        assert count in page.text


def test_links(made, record):
    """The run links to its page in Prefect, a release that is held back to its manifest, a gate to the file."""
    reason = "net/fat: the file grew by 9 %, at most 2 % is allowed"
    release = ReleaseOutcome("https://zoo.example/releases", "latest", "20260102T030405-abc", (reason,), held_back=True)
    run = replace(record, status="failed", release=release, url="https://prefect.example/runs/flow-run/1")
    page = Page(render(run, [], made.out))
    links = page.values("href")
    assert run.url in links
    assert "https://zoo.example/releases/releases/20260102T030405-abc.json" in links
    assert {"#release", "#net/fat"} <= set(links)
    assert "release gate: " + reason in page.of_class("bad")
    assert "held back" in page.of_class("bad")
    bucket = replace(run, release=replace(release, url="s3://zoo/releases"))
    assert not [link for link in Page(render(bucket, [], made.out)).values("href") if "s3:" in link]


def test_releases_of_executorch(made, record):
    """Files say which release made them where there are several."""
    toolchain = delivered_by(record)["net"][CHANGED].toolchain
    other = changed(record, toolchain={**toolchain, "executorch": "1.4.1 (1a4b)"})
    assert "ExecuTorch" not in " ".join(Page(render(record, [], made.out)).of_class("dim"))
    names = Page(render(other, [], made.out)).of_class("dim")
    assert f"{CHANGED}, ExecuTorch 1.4.1" in names
    assert f"fat, ExecuTorch {toolchain['executorch'].partition(' ')[0]}" in names


def test_notes(made, record):
    """What is to be known of a file is shown with it, harmless whatever it is."""
    figures = replace(measured(record, 40.0), notes=("dimension 0 takes <2> to 4",))
    page = Page(render(changed(record, figures), [], made.out))
    assert "dimension 0 takes <2> to 4" in page.text
    kept = OutsideCalls("aten.convolution", "groups <are> ignored", 2, 10, kept_on_cpu=True)
    page = Page(render(changed(record, MethodWork("vulkan", "forward", 0, (kept,))), [], made.out))
    assert "vulkan leaves 2 aten.convolution to the CPU: groups <are> ignored" in page.of_class("dim")


def test_work_and_scores(made, record):
    """Shares are those of operations, with a reason for what is left; scores have a column where there are some."""
    outside = OutsideCalls("aten.mean.dim", "mean.dim <only> supports keepdim=True", 1, 10)
    work = MethodWork("", "forward", 990, (outside,))
    page = Page(render(changed(record, work), [], made.out))
    assert "99 %" in page.text
    assert "99 % of the operations are delegated" in page.text
    assert "aten.mean.dim, 1 call, 1 % of the operations: mean.dim <only> supports keepdim=True; write" in page.text
    assert "score" not in page.of_class("columns").split()
    accuracy = AccuracyReport("nets:score", 0.5, None, 1.0, Scores((Score("xnnpack", 0.75),), {}))
    page = Page(render(changed(record, accuracy), [], made.out))
    assert "score" in page.of_class("columns").split()
    assert "0.75 (-0.25)" in page.text


def test_files_of_a_search(made, record):
    """Each file that a search scored is a dot with its options; those with no better file are filled."""
    trials = (
        ScoredFile(0, 0.5, size=100),
        ScoredFile(0, 0.8, size=100, variant={"smooth": True}),
        ScoredFile(2, 0.9, passes=True, size=160, variant={"smooth": True}),
        ScoredFile(4, 0.85, passes=True, size=200, variant={"smooth": True}),
    )
    page = Page(render(changed(record, FoundQuantization(("head",), ("head",), 9, trials, 400)), [], made.out))
    assert page.values("r") == ["3", "3", "5", "5"]
    assert page.values("cx") == ["0.0", "0.0", "216.0", "360.0"]
    circles = [value for tag, name, value in page.attributes if (tag, name) == ("circle", "class")]
    assert circles == ["", "front", "front", ""]
    assert "0.8, 100 B, 0 layers in floating point, smooth: True; does not pass" in page.text
    alone = Page(render(changed(record, FoundQuantization((), (), 0, trials[:1], 400)), [], made.out))
    assert "Files that were scored" not in alone.text


def test_what_quantization_reached(made, record):
    """A file's section says the share of the weights, what is left and why, and marks a small share."""
    left = LeftWeight("table", ("aten.embedding",), 90, "quantizers leave tables")
    reached = Quantization({"int8": 10, "float32": 360}, 100, 10, (left,))
    text = "10% of the weights are integers; in floating point: table (quantizers leave tables)"
    page = Page(render(changed(record, reached), [], made.out))
    assert text in page.of_class("bad")
    widened = (WidenedRange("head", 3.0), WidenedRange("stem", 1.5))
    page = Page(render(changed(record, replace(reached, widened=widened)), [], made.out))
    assert "widened the range of 2 activations: head (3.0 times), stem (1.5 times)" in page.of_class("bad")
    page = Page(render(changed(record, replace(reached, quantized=90)), [], made.out))
    assert text.replace("10%", "90%") in page.of_class("dim")


def test_failures_come_with_their_log(made, record):
    """A failed step says why, for which recipe, and how its log ended; other files keep their place."""
    page = Page(render(failed_in(record), [], made.out))
    assert "no such operator" in page.of_class("failure")
    assert "first line last line" in page.of_class("failure")
    assert "2 files verified" in page.text
    assert "1 failed" in page.text


def test_what_became_of_the_release(made, record):
    """A release that is held back says so where the status is, with the channel and the reasons; so does no release."""
    url, name, reason = (
        "s3://zoo/releases",
        "20260102T030405-abc",
        "net/fat: the file grew by 9 %, at most 2 % is allowed",
    )
    held = replace(record, status="failed", release=ReleaseOutcome(url, "latest", name, (reason,), held_back=True))
    page = Page(render(held, [], made.out))
    for text in ("held back", f"{name} at {url} is not 'latest'"):
        assert text in page.of_class("bad")
    assert reason in page.of_class("failure")
    assert "completed" not in page.text
    fine = Page(render(replace(record, release=ReleaseOutcome(url, "latest", name)), [], made.out))
    assert name in fine.text
    assert (fine.of_class("failure"), fine.of_class("bad")) == ("", "")
    none = replace(record, status="failed", release=ReleaseOutcome(url, "latest", reasons=("the bucket is gone",)))
    assert "the bucket is gone" in Page(render(none, [], made.out)).of_class("failure")
    with open_store(str(made.store)) as store:
        assert write_page(held, store.runs, made.out)
        assert not write_page(held, store.runs, made.out)


def test_a_missing_or_damaged_file_is_told(made, record):
    """A file that is not there, or is none, does not keep the page from being made."""
    (made.out / "net" / "fat.pte").unlink()
    (made.out / "net" / "portable-fp32.pte").write_bytes(b"not a file" * 20)
    text = Page(render(record, [], made.out)).text
    assert text.count("The file cannot be read") == 2


def test_all_text_is_escaped(made, record):
    """Names, messages and logs from outside are text, whatever is in them."""
    finding = Cause("mode", HOSTILE, (HOSTILE,), where=HOSTILE, code=HOSTILE)
    failure = Failure(HOSTILE, HOSTILE, HOSTILE, bad_input=False, findings=(finding,))
    figures = replace(measured(record, 40.0), not_run={HOSTILE: HOSTILE})
    odd = replace(delivered_by(record)["net"]["fat"], left_out={HOSTILE: HOSTILE}, findings=(figures,))
    entries = {HOSTILE: replace(FAILED, failure=failure).to_json(), "odd": odd.to_json()}
    stages = tuple(replace(stage, slot=f"net/{HOSTILE}") for stage in record.models["net"])
    hostile = replace(
        record,
        zoo=HOSTILE,
        host=HOSTILE,
        commit=HOSTILE,
        id=HOSTILE,
        version=HOSTILE,
        parameters={"models": HOSTILE},
        release=ReleaseOutcome(HOSTILE, HOSTILE, HOSTILE, (HOSTILE,), held_back=True),
        url=f"javascript:alert(1)//{HOSTILE}",
        files={HOSTILE: entries, "net": record.files["net"]},
        models={HOSTILE: stages, "net": stages},
    )
    text = render(hostile, [], made.out)
    page = Page(text)
    assert (page.tags["script"], page.tags["img"]) == (1, 0)
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]
    assert "<script>alert(1)</script>" in page.text
    assert not [link for link in page.values("href") if "javascript" in link]
    assert not {"\x1b", "\x00", "\u202e"} & set(text)


def test_an_equal_run_leaves_the_page(made, record):
    """Times and cached stages are no change; another file is. Cause that out takes milliseconds."""
    before = (made.out / NAME).stat().st_mtime_ns
    with open_store(str(made.store)) as store:
        cached = {recipe: {**entry, "status": "cached"} for recipe, entry in record.files["net"].items()}
        later = replace(record, id="later", seconds=0.1, files={"net": cached})
        start = time.process_time()
        assert not write_page(later, store.runs, made.out)
        assert time.process_time() - start < 0.05
        assert (made.out / NAME).stat().st_mtime_ns == before
        assert write_page(changed(record, digests={"pte": "0" * 64}), store.runs, made.out)
        (made.out / NAME).unlink()
        assert write_page(record, store.runs, made.out)
    assert all(path.suffix == ".html" for path in made.out.iterdir() if path.is_file())


def test_each_run_has_a_page(made, record):
    """The page of a zoo outlives runs of others into its folder, which link to it; the newest pages are kept."""
    notes = made.write("out/run-notes.html", "the user's")
    whole = (made.out / NAME).read_bytes()
    with open_store(str(made.store)) as store:
        other = replace(record, zoo="nets:linear", id="other", started="2098-01-01T00:00:00+00:00")
        assert write_page(other, store.runs, made.out)
        single = Page((made.out / NAME).read_text())
        (own,) = (link for link in single.values("href") if link.startswith("./run-"))
        assert (made.out / own).read_bytes() == whole
        assert write_page(replace(record, id="again", started="2098-01-02T00:00:00+00:00"), store.runs, made.out)
        assert (made.out / NAME).read_bytes() == whole  # nothing had changed in that zoo
        assert (made.out / "run-20980101T000000-nets_linear.html").exists()
        for second in range(25):
            file = changed(record, digests={"pte": f"{second:064}"})
            assert write_page(replace(file, started=f"2099-01-01T00:00:{second:02}+00:00"), store.runs, made.out)
    pages = sorted(path.name for path in made.out.glob("run-2*.html"))
    assert (len(pages), pages[0]) == (20, "run-20990101T000005-zoo.html")
    assert notes.read_text() == "the user's"


def test_a_run_of_a_part_keeps_the_rest(record):
    """The page has what earlier runs made of the rest, back to the last run of the whole zoo, in the zoo's order."""
    entry = record.files["net"]["fat"]
    whole = replace(record, id="whole", files={"first": {"fat": entry}, "net": record.files["net"]})
    older = replace(record, id="older", files={"gone": {"fat": entry}})
    part = replace(record, files={"net": {"fat": FAILED.to_json()}}, parameters={**record.parameters, "models": "net"})
    found = with_the_rest(part, [whole, older])
    assert found.files == {"first": {"fat": entry}, "net": {**record.files["net"], "fat": FAILED.to_json()}}
    assert list(found.files) == ["first", "net"]
    elsewhere = replace(whole, parameters={**record.parameters, "out": "/elsewhere"})
    assert with_the_rest(part, [elsewhere]).files == part.files
    assert with_the_rest(record, [older]).files == record.files


def test_runs_before(record, tmp_path):
    """Parts that a run has had other runs lower are no runs before it."""
    with open_store(str(tmp_path / "store")) as store:
        for name, whole in {"before": "", "left": "killed", "now": "", "part": "now"}.items():
            store.runs.write(replace(record, id=name, part_of=whole))
        assert [run.id for run in runs_before("now", record.zoo, store.runs)] == ["before"]


def test_no_page_is_a_warning(made, lower, caplog):
    """A run whose page cannot be written has made its files."""
    (made.out / NAME).unlink()
    (made.out / NAME).mkdir()
    assert lower(made).outcome.exit_code == 0
    assert "the page about the run is not written" in caplog.text


def test_recipes_keep_their_order(made, lower):
    """A run that finds everything reports recipes in the zoo's order, as the run that made the files did."""
    assert [found.recipe for found in lower(made).outcome.recipes] == list(RECIPES)

"""The page about a run in headless Chromium: it fits a phone and a laptop, in light and in dark."""

from __future__ import annotations

import html
import json
import platform
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from pteforge.artifacts.digest import digest_bytes
from pteforge.artifacts.runs import RunRecord, StageOutcome
from pteforge.flows.reports.page import render
from pteforge.tasks.results.delivered import Delivered, Failure
from pteforge.tasks.results.figures import Figures, Worst
from pteforge.tests.chromium import COMMAND, open_page
from pteforge.tests.flows.conftest import FAT
from pteforge.tests.flows.zoo.many import zoo_of

pytestmark = pytest.mark.slow

MODELS = (("nets", "linear"), ("residual", "residual"), ("faulty", "raises"))
# Opens everything, and writes what a reader would meet to the root of the document around it.
# The page itself allows no other script than its own.
MEASURE = """<script>
document.querySelectorAll("details").forEach((each) => { each.open = true; });
const root = document.documentElement;
const wide = [...document.querySelectorAll("body *")].filter((element) =>
  element.getBoundingClientRect().right > root.clientWidth + 1 && !element.closest("pre, summary > span > span"));
parent.document.documentElement.dataset.seen = JSON.stringify({
  width: root.clientWidth,
  content: root.scrollWidth,
  wide: wide.map((element) => element.outerHTML.slice(0, 80)),
  page: getComputedStyle(document.body).backgroundColor,
});
</script>"""
# A window of headless Chromium is at least 500 pixels wide, a frame as narrow as a phone.
FRAME = """<!doctype html><html><head><meta name="color-scheme" content="light dark"></head><body>
<iframe style="border: 0; width: {width}px; height: 2000px" srcdoc="{page}"></iframe></body></html>"""


LAST = "A later run that changes nothing leaves this page as it is."


@pytest.fixture
def record():
    """A run of 20 models with long names, of which each has a file that is not there, and a failure."""
    log = "\n".join(f"{number}: {'long' * 60}" for number in range(40))
    failure = Failure("export", "no " * 80, log, bad_input=False)
    figures = Figures(Worst(3, 0.1, 0.1, 43.21), {}, {}, {})
    left_out = {"vulkan": "it has an operator that is not supported " * 4}
    digests = {"pte": digest_bytes(b"")}
    made = Delivered(
        "", "", "made", Path("net.pte"), 123456789, digests=digests, findings=(figures,), left_out=left_out
    )
    models = [f"model_{number:02d}_{'with_a_long_name_' * 4}" for number in range(20)]
    recipes = [f"recipe-{number}-with-a-long-name" for number in range(6)]
    return RunRecord(
        id="0" * 32,
        zoo="zoo" * 30,
        started="2026-11-22T20:00:00+00:00",
        seconds=4321.0,
        models={
            name: tuple(
                StageOutcome(f"{name}/{stage}/forward/{recipes[0]}.payload", stage, None, (), status, None, seconds=9.5)
                for stage, status in (("edge", "ran"), ("partition", "cached"), ("preprocess", "failed"))
            )
            for name in models
        },
        status="failed",
        commit="0" * 40,
        files={
            name: {
                recipes[0]: Delivered(name, recipes[0], "failed", failure=failure).to_json(),
                **{recipe: replace(made, model=name, recipe=recipe).to_json() for recipe in recipes[1:]},
            }
            for name in models
        },
    )


@pytest.fixture
def seen(tmp_path):
    """What Chromium sees of a page, in a window of some width, in light or in dark."""

    def see(page, width, scheme):
        page = re.sub(r"<meta http-equiv[^>]*>", "", page).replace("</body>", f"{MEASURE}</body>")
        frame = FRAME.format(width=width, page=html.escape(page))
        (tmp_path / "page.html").write_text(frame, encoding="utf-8")
        done = subprocess.run(
            [
                *(*COMMAND, f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1400,2000"),
                f"--blink-settings=preferredColorScheme={0 if scheme == 'dark' else 1}",
                *("--dump-dom", (tmp_path / "page.html").as_uri()),
            ],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        found = re.search(r'<html[^>]* data-seen="([^"]*)"', done.stdout)
        return json.loads(html.unescape(found[1]))

    return see


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (1280, "dark")])
def test_the_page_fits(record, seen, tmp_path, width, scheme):
    """Nothing is wider than the window, whatever the names are; only logs scroll in themselves."""
    found = seen(render(record, [replace(record, id="1")], tmp_path), width, scheme)
    assert found["width"] == width
    assert (found["content"], found["wide"]) == (width, [])
    dark = sum(map(int, re.findall(r"\d+", found["page"])[:3])) < 200
    assert dark == (scheme == "dark")


def test_the_page_of_two_runs(project, lower, pictures, tmp_path, monkeypatch):
    """The page that a run wrote shows its failure, its files, what has changed since the last run, and each model."""
    monkeypatch.setattr(platform, "node", lambda: "forge-1")
    models = {name: {"source": {"builder": f"{file}:{name}"}} for file, name in MODELS}
    project.write_zoo(models, ("fat", "portable-fp32", "xnnpack-int8-dynamic"), {"fat": FAT})
    for width in (64, 32):
        lower(project, f"models.linear.source.kwargs={{width: {width}}}")
    with open_page(tmp_path, "960,1343") as page:
        shown = page.open((project.out / "index.html").as_uri(), "6 files verified, 3 failed", "forge-1", LAST)
        assert "export SourceError: builder faulty:raises failed" in shown
        assert len(re.findall(r"^[\d.]+ KiB\s-[\d.]+ %", shown, re.MULTILINE)) == 3
        assert len(re.findall(r"^[\d.]+ KiB\s=", shown, re.MULTILINE)) == 3
        page.click("residual fat", "Bytes of the file")
        page.picture(pictures / "page.png")


@pytest.fixture
def night():
    """A run of 150 models after another one: one does not export any more, two changed, and one is new."""
    zoo, figures = zoo_of(150), Figures(Worst(3, 1e-7, 1e-7, 140.2), {}, {}, {})
    before = {
        name: {
            recipe: Delivered(name, recipe, "made", Path("net.pte"), 1000 + place, {"pte": f"{place:064}"},
                              targets=("portable", "xnnpack") if recipe == "fat" else (recipe.partition("-")[0],),
                              findings=(replace(figures, overall=replace(figures.overall, sqnr_db=100.0 + place)),))
            for recipe in model["recipes"]
        }
        for place, (name, model) in enumerate(zoo["models"].items())
    }  # fmt: skip
    now = {name: dict(recipes) for name, recipes in before.items()}
    failure = Failure("export", "SourceError: no such width", "the log\nof the failure", bad_input=True)
    for recipe in now["gated_012"]:
        now["gated_012"][recipe] = Delivered("gated_012", recipe, "failed", failure=failure)
    for recipe, size in (("portable-fp32", 9000), ("xnnpack-fp32", 50)):
        now["mlp_101"][recipe] = replace(now["mlp_101"][recipe], size=size, digests={"pte": "0" * 64})
    del before["linear_140"]["portable-fp32"]

    def run(number, files, status):
        written = {name: {recipe: made.to_json() for recipe, made in of.items()} for name, of in files.items()}
        started = f"2026-11-2{number}T20:00:00+00:00"
        return RunRecord(f"{number:032}", zoo["name"], started, 99.0, {}, status, files=written)

    return run(2, now, "failed"), run(1, before, "completed")


def lines_of(text):
    """The lines about files: state, model and recipes."""
    states = "failed again|failed|changed|new|as before"
    return re.findall(rf"^(?:{states})\n(\w+_\d+ .*)$", text, re.MULTILINE)


NEWS = [
    "gated_012 portable-fp32, xnnpack-fp32",
    "mlp_101 portable-fp32",
    "mlp_101 xnnpack-fp32",
    "linear_140 portable-fp32",
]


@pytest.mark.parametrize("width", [1280, 390])
def test_a_page_about_150_models(night, tmp_path, width):
    """One screen shows what failed and changed; the rest is found by words, state, recipe, backend and order."""
    now, before = night
    file = tmp_path / "index.html"
    file.write_text(render(now, [before], tmp_path), encoding="utf-8")
    with open_page(tmp_path, "500,1143") as page:
        page.resize(width, 1000)
        shown = page.open(file.as_uri(), "As before", LAST)
        assert lines_of(shown) == NEWS
        assert "SourceError: no such width" in shown
        assert page.height <= 1000
        page.set("[name=text]", "MLP_101 fp32")
        assert lines_of(page.wait_for("2 of 318 lines")) == NEWS[1:3]
        page.set("[name=recipe]", "xnnpack-fp32")
        assert lines_of(page.wait_for("1 of 318 lines")) == NEWS[2:3]
        page.set("[name=text]", "")
        page.set("[name=recipe]", "fat")
        page.set("[name=backend]", "xnnpack")
        assert len(lines_of(page.wait_for("19 of 318 lines"))) == 19
        page.set("[name=recipe]", "")
        page.set("[name=backend]", "")
        page.set("[name=state]", "new")
        assert lines_of(page.wait_for("1 of 318 lines")) == NEWS[3:]
        page.set("[name=state]", "")
        assert lines_of(page.text) == NEWS  # as it was
        page.set("[name=order]", "size")
        every = lines_of(page.text)
        assert (len(every), every[0], every[-2:]) == (318, NEWS[1], [NEWS[2], NEWS[0]])
        page.set("[name=order]", "")
        page.press("/")
        page.type("no such width")
        assert lines_of(page.wait_for("1 of 318 lines")) == NEWS[:1]
        page.press("Tab", 5)  # past the search, four lists and the group, to the line
        page.press("Tab")
        page.press("Enter")
        assert "of the failure" in page.wait_for("the log")


def test_a_page_without_script(night, tmp_path):
    """Without script there is nothing that does not work, and everything can be opened."""
    now, before = night
    file = tmp_path / "index.html"
    file.write_text(render(now, [before], tmp_path), encoding="utf-8")
    with open_page(tmp_path) as page:
        page.forbid_scripts()
        shown = page.open(file.as_uri(), "As before", LAST)
        assert lines_of(shown) == NEWS
        assert not page.shows("form")
        shown = page.click("As before 314 files", "^as before$")
        assert len(lines_of(shown)) == 318
        page.click(NEWS[0], "of the failure")

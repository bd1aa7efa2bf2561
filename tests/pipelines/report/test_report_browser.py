"""The page in a real headless Chromium: it draws, asks the network for nothing, and fits wide and narrow screens."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from browser import chromium
from gridlaw.pipelines.report import words
from gridlaw.pipelines.report.data import HeatMap, MetricValue
from gridlaw.pipelines.report.page import render

pytestmark = pytest.mark.browser

WIDTHS = (1280, 360)


@dataclass
class Seen:
    """A page opened in the browser, and what it asked for and complained about."""

    page: Any
    console: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def evaluate(self, script: str) -> Any:
        return self.page.evaluate(script)


@pytest.fixture(scope="module")
def browser():
    with chromium() as opened:
        yield opened


@pytest.fixture
def visit(browser, tmp_path: Path) -> Iterator:
    contexts = []

    def visit(report, width: int = 1280, scheme: str = "light") -> Seen:
        file = tmp_path / "report.html"
        file.write_text(render(report), encoding="utf-8")
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        seen = Seen(context.new_page())
        seen.page.on("console", lambda message: seen.console.append(message.text))
        seen.page.on("pageerror", lambda error: seen.console.append(str(error)))
        seen.page.on("request", lambda request: seen.requests.append(request.url))
        seen.page.on("dialog", lambda dialog: (seen.console.append(f"dialog {dialog.message}"), dialog.dismiss()))
        seen.page.goto(file.as_uri())
        if seen.page.locator(".plot").count():
            seen.page.wait_for_selector("html[data-drawn=yes]")
        return seen

    yield visit
    for context in contexts:
        context.close()


def healthy(seen: Seen) -> None:
    assert seen.console == []
    assert len(seen.requests) == 1, f"a report loads nothing but itself: {seen.requests}"
    assert seen.requests[0].startswith("file:")
    assert seen.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


def markers(seen: Seen, section: str = "") -> int:
    return seen.evaluate(f"document.querySelectorAll('{section} .plot path.point').length")


def drawn(seen: Seen, mark: str = "path.point") -> dict[str, int]:
    """Marks by kind of figure, told apart by what the figure says to who cannot see it."""
    kinds = {
        "over training tokens, with": "curves", "Predicted against": "predicted", "log residuals": "residuals",
        "contours of": "contours", "Exponents alpha": "exponents", "by the laws of": "at one size", "minus": "gaps",
        "over training FLOPs": "compute", "chance": "retrieval", "trunk": "training",
    }  # fmt: skip
    found = dict.fromkeys(kinds.values(), 0)
    each = f"[...document.querySelectorAll('.plot')].map(p => [p.ariaLabel, p.querySelectorAll('{mark}').length])"
    for label, number in seen.evaluate(each):
        found[next(kind for part, kind in kinds.items() if part in label)] += number
    return found


@pytest.mark.parametrize("width", WIDTHS)
def test_the_report_draws_every_point_and_fits(visit, sample_report, width):
    seen = visit(sample_report, width)
    healthy(seen)
    counted = drawn(seen)
    for kind in ("curves", "predicted", "residuals", "contours", "compute", "retrieval"):
        assert counted[kind] == 27, kind
    assert counted["at one size"] == 9  # the points of n3
    assert counted["exponents"] == 3 + sum(len(law.fit["draws"]) for law in sample_report.laws if law.form == "nd")
    assert drawn(seen, "path.js-fill") == dict.fromkeys(counted, 0) | {"curves": 9, "at one size": 3, "gaps": 2}
    assert drawn(seen, ".contourlabels text")["contours"] > 9
    assert seen.evaluate("document.querySelectorAll('.wait').length") == 0
    assert seen.evaluate(
        "[...document.querySelectorAll('.plot')].every(p => p.querySelector('svg').clientWidth <= p.clientWidth + 1)"
    )


def test_failed_points_and_no_laws(visit, sample_report, with_failures):
    seen = visit(replace(with_failures(sample_report), laws=(), savings=None), 360)
    healthy(seen)
    assert markers(seen) == 3 * 23  # law panels, compute, retrieval; nothing is predicted


def test_heat_maps_of_needles_are_drawn_as_they_were_measured(visit, sample_report):
    shares = ((0.0, 0.25), (0.5, 0.75), (1.0, 0.125))  # lengths × depths
    ranked = HeatMap(
        point="full/n3/20N/seed0", architecture="full", measure="ranked first", lengths=(128, 256, 512),
        depths=(0.0, 1.0), shares=shares, samples_per_cell=8, chance=0.125,
    )  # fmt: skip
    maps = (ranked, replace(ranked, measure="generated", chance=None))
    seen = visit(replace(sample_report, heat_maps=maps), 360)
    healthy(seen)
    assert seen.evaluate("document.querySelectorAll('.plot .heatmaplayer image').length") == 2
    assert seen.evaluate("document.querySelector('#needles').textContent") == "Needles by depth and length"
    drawn_z = seen.evaluate(
        "[...document.querySelectorAll('.plot')].filter(p => p.data[0].type === 'heatmap').map(p => p.data[0].z)"
    )
    assert drawn_z == [[[0, 0.5, 1], [0.25, 0.75, 0.125]]] * 2  # a row per depth
    told = seen.evaluate(
        "[...document.querySelectorAll('.plot')].map(p => p.ariaLabel).filter(t => t.startsWith('Needles'))"
    )
    assert "from 0.0% to 100.0%. Chance is 12.5%." in told[0]
    assert "Chance" not in told[1]


def test_two_hundred_points(visit, make_report):
    names = ("full", "swa-128", "swa-512", "swa-2048", "lightning", "mamba2", "gdn")
    report = make_report(names, ("n1", "n2", "n3", "n4", "S1"), (5, 10, 15, 20, 40, 80))
    assert len(report.points) == 210
    seen = visit(report, 1280)
    healthy(seen)
    seen.page.set_viewport_size({"width": 360, "height": 900})
    seen.page.wait_for_function("document.querySelector('.plot svg').clientWidth < 340")
    healthy(seen)
    assert drawn(seen)["curves"] == drawn(seen)["residuals"] == 210


@pytest.mark.parametrize("width", WIDTHS)
def test_hostile_and_long_names_run_nothing_and_fit(visit, make_report, width):
    hostile = "<script>alert(1)</script><img src=x onerror=alert(2)><b>bold</b>" + "w" * 120
    report = make_report(architectures=(hostile, "gdn"))
    points = tuple(replace(p, metrics={**p.metrics, hostile: MetricValue(value=2.0)}) for p in report.points)
    report = replace(report, experiment=hostile, hardware=hostile, notes=(hostile,), points=points)
    seen = visit(report, width)
    healthy(seen)
    assert seen.evaluate("document.querySelectorAll('main img, main b, h1 *').length") == 0
    # plotly reads a little HTML of its own in hover texts: there, too, names stay text
    seen.page.locator(".plot .nsewdrag").first.scroll_into_view_if_needed()
    shown = seen.evaluate(
        """() => { const plot = document.querySelector('.plot');
        const at = plot.data.findIndex(t => t.mode === 'markers');
        Plotly.Fx.hover(plot, [{curveNumber: at, pointNumber: 0}]);
        return plot.querySelector('.hoverlayer').textContent; }"""
    )
    assert "<script>" in shown
    healthy(seen)


def test_an_empty_report(visit, sample_report):
    seen = visit(replace(sample_report, points=(), trunks=(), laws=(), savings=None), 360)
    healthy(seen)


def test_legend_hides_a_scale_in_every_panel_of_its_group(visit, sample_report):
    seen = visit(sample_report)
    before = markers(seen, ".panels")
    seen.page.get_by_role("button", name="n1").first.click()
    assert seen.page.get_by_role("button", name="n1").first.get_attribute("aria-pressed") == "false"
    assert markers(seen, ".panels") == before - 18  # curves and residuals: three architectures × three budgets of n1
    seen.page.get_by_role("button", name="n1").first.click()
    assert markers(seen, ".panels") == before


def test_dark_and_light_and_a_change_between_them(visit, sample_report):
    fill = "getComputedStyle(document.querySelector('.plot .ytitle')).fill"
    paper = "getComputedStyle(document.body).backgroundColor"
    seen = visit(sample_report, scheme="dark")
    dark = (seen.evaluate(fill), seen.evaluate(paper))
    seen.page.emulate_media(color_scheme="light")
    seen.page.wait_for_function(f"{fill} !== '{dark[0]}'")
    assert seen.evaluate(paper) != dark[1]
    healthy(seen)


def test_print_shows_the_figures_on_white(visit, sample_report, tmp_path):
    seen = visit(sample_report, scheme="dark")
    pdf = seen.page.pdf(format="A4")
    assert pdf.startswith(b"%PDF")
    seen.page.emulate_media(media="print", color_scheme="dark")
    assert seen.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


def test_headings_tables_and_figures_are_named_for_screen_readers(visit, sample_report):
    seen = visit(sample_report)
    levels = seen.evaluate("[...document.querySelectorAll('h1,h2,h3')].map(h => +h.tagName[1])")
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    assert seen.evaluate("[...document.querySelectorAll('.plot')].every(p => p.getAttribute('aria-label').length > 20)")
    assert seen.evaluate(
        "[...document.querySelectorAll('table')].every(t => t.caption && t.tHead && t.querySelector('th[scope=row]'))"
    )


def test_without_script_the_numbers_are_there(browser, sample_report, tmp_path):
    file = tmp_path / "report.html"
    file.write_text(render(sample_report), encoding="utf-8")
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(file.as_uri())
    assert "Drawing needs JavaScript" in page.inner_text("main")
    held_out = sample_report.laws[0].held_out[0]
    assert words.percent(held_out.relative_error, 2, sign=True) in page.inner_text("main")
    context.close()

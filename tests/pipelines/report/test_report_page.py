"""The page without a browser: what it says, that everything is escaped, and that it holds for odd reports."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from gridlaw.pipelines.figures.marks import log_ticks
from gridlaw.pipelines.laws.compare import gap, ranking
from gridlaw.pipelines.laws.fit import LawFit
from gridlaw.pipelines.report import style, words
from gridlaw.pipelines.report.data import LawRow, MetricValue, ReportData
from gridlaw.pipelines.report.page import render

HOSTILE = '<script>alert("x")</script>&amp;{%y}</title>'


class _Tags(HTMLParser):
    """Every tag and address of a page, and its text outside of scripts and styles."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.text = ""

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag not in ("meta", "link", "wbr", "br"):
            self.open.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "action")]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not {"script", "style"} & set(self.open):
            self.text += data


def read(page: str) -> _Tags:
    tags = _Tags()
    tags.feed(page)
    assert tags.open == []
    return tags


def test_page_is_well_formed_and_points_nowhere(sample_report):
    tags = read(render(sample_report))
    assert all(address.startswith(("#", "data:,")) for address in tags.addresses)
    assert tags.tags.count("h1") == 1
    assert tags.tags.count("table") == tags.tags.count("caption") > 3


def test_every_point_law_and_figure_of_the_data_is_there(sample_report):
    text = read(render(sample_report)).text
    for point in sample_report.points:
        assert point.name in text
    for law in sample_report.laws:
        for parameter in law.parameters:
            value = words.significant(parameter.value, 3)
            assert f"{value} {words.interval(parameter.low, parameter.high)}" in text
        assert words.percent(law.held_out[0].relative_error, 2, sign=True) in text
    assert "34%" in text
    assert "not identified for gdn" in text


def test_failed_and_diverged_points_are_named_with_reasons(sample_report, with_failures):
    text = read(render(with_failures(sample_report))).text
    assert "ran out of memory" in text
    assert "non-finite loss at step 38" in text
    assert "its trunk failed" in text
    assert "haystack shorter than the context" in text
    assert "4 points have no result: 1 failed (full/n1/10N/seed0); 1 diverged (full/n2/20N/seed0)" in text


def test_hostile_names_stay_text(make_report):
    report = make_report(architectures=(HOSTILE, "gdn"))
    points = tuple(replace(p, metrics={**p.metrics, HOSTILE: MetricValue(value=1.0)}) for p in report.points)
    laws = tuple(replace(law, verdict=HOSTILE, excluded={HOSTILE: HOSTILE}) for law in report.laws)
    report = replace(report, experiment=HOSTILE, hardware=HOSTILE, notes=(HOSTILE,), points=points, laws=laws)
    report = replace(report, grid=replace(report.grid, yaml=HOSTILE), versions={HOSTILE: HOSTILE})
    plain, hostile = read(render(make_report(architectures=("full", "gdn")))), read(render(report))
    assert hostile.tags.count("script") == plain.tags.count("script")
    assert hostile.text.count(HOSTILE) > 20


@pytest.mark.parametrize("points", [False, True])
def test_works_without_laws_and_without_points(sample_report, points):
    report = ReportData(experiment="empty", created="now", points=sample_report.points if points else ())
    text = read(render(report)).text
    assert "No law was fitted." in text
    assert ("27 of 27 points finished" if points else "no points yet") in text


def test_architectures_are_ranked_by_their_laws_with_gaps(sample_report):
    text = read(render(sample_report)).text
    assert "Laws of held-out loss at N = 111K and D = 2.21M, lowest first." in text
    laws = {law.architecture: LawFit.from_dict(law.fit) for law in sample_report.laws if law.form == "nd"}
    found = ranking(laws, 110_592, max(point.tokens for point in sample_report.points))
    order = list(found.frame.architecture)
    between = gap(laws[order[1]], laws[order[0]], 110_592, max(point.tokens for point in sample_report.points))
    assert f"Gap to {order[0]}" in text
    assert f"{words.significant(between.gap, 3)} {words.interval(between.low, between.high)}" in text


def test_a_law_of_an_older_ledger_has_its_curve_and_no_spread(sample_report):
    """Its resamples were not kept then."""
    laws = tuple(replace(law, fit=law.fit | {"draws": [], "draw_noise": []}) for law in sample_report.laws)
    page = render(replace(sample_report, laws=laws))
    assert "band: its" not in page
    assert "Laws at N = 111K" in page and "Gap to" not in page


def test_a_law_that_could_not_be_fitted_says_why(sample_report):
    law = LawRow(target="loss", architecture="full", form="nd", reason="3 points for 4 parameters")
    text = read(render(replace(sample_report, laws=(law,)))).text
    assert "3 points for 4 parameters" in text


def test_a_fit_that_did_not_converge_is_never_hidden(sample_report):
    laws = tuple(replace(law, converged=False) for law in sample_report.laws)
    text = read(render(replace(sample_report, laws=laws))).text
    assert "did not converge for full, swa-64 and gdn" in text
    assert text.count("not converged") == len(laws)


def test_at_chance_is_said_to_be_at_chance(sample_report):
    points = tuple(
        replace(p, metrics={"niah": MetricValue(value=0.13, low=0.09, high=0.17, chance=0.125)})
        for p in sample_report.points
    )
    text = read(render(replace(sample_report, points=points, laws=()))).text
    assert "Needle retrieval is at chance (12.5%): none of 27 points lies above it." in text


def test_same_data_same_page(sample_report):
    assert render(sample_report) == render(sample_report)


def test_page_without_figures_carries_no_drawing_code():
    assert len(render(ReportData(experiment="empty", created="now"))) < 50_000


def _luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("colours", [style.LIGHT, style.DARK], ids=["light", "dark"])
def test_contrast_of_text_and_marks(colours):
    """WCAG 2.1 AA: 4.5 for text, 3 for marks."""
    for name, colour in colours.items():
        low, high = sorted((_luminance(colour), _luminance(colours["paper"])))
        ratio = (high + 0.05) / (low + 0.05)
        if name in ("ink", "muted", "link", "good", "bad", "warn"):
            assert ratio >= 4.5, (name, ratio)
        elif re.match("scale|arch", name):
            assert ratio >= 3, (name, ratio)


@pytest.mark.parametrize(
    ("low", "high"), [(1.6, 2.7), (1.0, 1.15), (2.0, 2.0001), (9e4, 2.4e6), (1e9, 1e15), (0.4, 90)]
)
def test_axes_have_two_to_seven_round_ticks(low, high):
    ticks = log_ticks(low, high)
    assert 2 <= len(ticks) <= 7
    assert all(low * 0.999 <= tick <= high * 1.001 for tick in ticks)
    assert ticks == sorted(set(ticks))

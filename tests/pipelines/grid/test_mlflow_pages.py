"""A grid in MLflow's own pages, in a real browser: its views, three clicks to compare, and the parent run's page."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from browser import open_page

# A real grid and its MLflow server: minutes on a busy machine.
pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(1800)]

PATIENCE_MS = 120_000


@pytest.fixture(scope="module")
def watched(new_workplace: Callable[[], Any]) -> Any:
    """A finished grid, and what its parent run's description said while it ran."""
    place = new_workplace()
    place.write({"scales": [place_scale()], "budgets": ["2N", "3N", "4N"], "laws": [{"target": "loss", "form": "d"}]})
    place.notes = []
    process = place.start("--plain")
    while process.poll() is None:
        time.sleep(1.0)
        note = _running_note(place)
        if note and note not in place.notes:
            place.notes.append(note)
    assert process.returncode == 0, (place.folder / "run.log").read_text()
    return place


def place_scale() -> dict[str, Any]:
    return {"name": "a", "layers": 2, "d_model": 16, "ffn_dim": 32, "heads": 2, "kv_heads": 1}


def _running_note(place: Any) -> str:
    if not (place.folder / "gridlaw-runs" / "mlflow.db").is_file():
        return ""
    experiment = place.client().get_experiment_by_name("small")
    runs = place.runs("submission") if experiment is not None else []
    running = [run for run in runs if run.info.status == "RUNNING"]
    return running[0].data.tags.get("mlflow.note.content", "") if running else ""


@pytest.fixture(scope="module")
def server(watched: Any) -> Iterator[str]:
    """``gridlaw ui GRID`` as a person starts it; its address, up to the #."""
    command = [sys.executable, "-m", "gridlaw.pipelines.cli.main", "ui", "grid.yaml"]
    process = subprocess.Popen(
        command, cwd=watched.folder, env=watched.environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True,
    )  # fmt: skip
    assert process.stdout is not None
    address = process.stdout.readline().strip()
    try:
        assert re.fullmatch(
            r"http://127\.0\.0\.1:\d+/#/experiments/\d+/runs\?workflowType=machine_learning"
            r"&viewStateShareKey=gridlaw-points",
            address,
        ), address
        watched.address, watched.ui = address, psutil.Process(process.pid)
        yield address.partition("#")[0]
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0, "Ctrl-C ends the server"
    finally:
        if process.poll() is None:
            process.kill()


@pytest.fixture(scope="module")
def page(server: str) -> Iterator[Any]:
    with open_page(patience_ms=PATIENCE_MS) as opened:
        yield opened


def parent_page(watched: Any, server: str) -> str:
    (parent,) = watched.runs("submission")
    return f"{server}#/experiments/{parent.info.experiment_id}/runs/{parent.info.run_id}?workflowType=machine_learning"


def clicked(page: Any, address: str, link: str) -> Any:
    """The tab that a link of the parent run's description opens: MLflow gives each one of its own."""
    page.goto(address)
    with page.context.expect_page() as opened:
        page.get_by_role("link", name=link, exact=True).click()
    opened.value.set_default_timeout(PATIENCE_MS)
    return opened.value


def test_the_address_opens_the_points_with_their_columns(watched: Any, page: Any, server: str) -> None:
    page.goto(watched.address)
    page.get_by_text("full/a/2N/seed0", exact=True).wait_for()
    assert page.get_by_text("6 matching runs").count() == 1
    for title in ("loss", "bits_per_byte"):
        assert page.locator(".ag-header-cell", has=page.get_by_text(title, exact=True)).count() == 1
    assert page.get_by_text("Model training", exact=True).count() == 1


def test_two_architectures_over_tokens_take_three_clicks(watched: Any, page: Any, server: str) -> None:
    chart = clicked(page, parent_page(watched, server), "Loss over tokens, of chosen runs")
    chart.get_by_text("All runs are hidden").wait_for()
    for name in ("full/a/seed0", "swa-16/a/seed0"):
        row = chart.locator(".ag-row", has_text=name)
        row.locator("label", has=chart.locator(".is-visibility-toggle-checkbox")).click()
    drawn = chart.locator(".js-plotly-plot:has(.xtitle) .scatterlayer .trace")
    drawn.nth(1).wait_for(state="attached")
    assert chart.locator(".js-plotly-plot .xtitle").all_text_contents() == ["tokens"]


def test_the_report_opens_from_the_parent_runs_description(watched: Any, page: Any, server: str) -> None:
    report = clicked(page, parent_page(watched, server), "Report").frame_locator("iframe")
    assert page.get_by_text("6 of 6 points finished").count() == 1
    report.get_by_role("heading", name="Held-out loss over training tokens").wait_for()
    report.locator(".plot path.point").first.wait_for(state="attached")


def test_the_description_was_current_during_the_run(watched: Any) -> None:
    counts = [int(found[1]) for note in watched.notes if (found := re.search(r"- (\d) of 6 points trained", note))]
    assert len(watched.notes) > 1
    assert counts == sorted(counts) and counts[0] < 6
    assert all("viewStateShareKey=gridlaw-points" in note for note in watched.notes)


def test_ui_links_to_a_grid_on_a_tracking_server_and_starts_nothing(watched: Any, server: str) -> None:
    (watched.folder / "other.yaml").write_text(
        (watched.folder / "grid.yaml").read_text() + f"run: {{tracking_uri: '{server.rstrip('/')}'}}\n"
    )
    done = watched.gridlaw("ui", "other.yaml")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == watched.address
    assert Path(watched.folder / "gridlaw-runs" / "mlflow.db").is_file()


def test_ui_listens_on_loopback_only(watched: Any, server: str) -> None:
    listening = {
        connection.laddr.ip
        for process in [watched.ui, *watched.ui.children(recursive=True)]
        for connection in process.net_connections()
        if connection.status == "LISTEN"
    }
    assert listening == {"127.0.0.1"}


def test_ui_of_a_grid_that_has_not_run_is_refused(watched: Any) -> None:
    (watched.folder / "new.yaml").write_text((watched.folder / "grid.yaml").read_text().replace("small", "smell"))
    done = watched.gridlaw("ui", "new.yaml")
    assert done.returncode == 2
    assert "smell" in done.stderr and "small" in done.stderr and "gridlaw run" in done.stderr

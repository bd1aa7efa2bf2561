"""A submitted grid on the Ray dashboard's own pages, in a real browser: behind the token, tasks under points' names."""

from __future__ import annotations

import json

import pytest

from browser import open_page
from running import wait_for
from submitting import Client

# A Ray head, a grid on it and a browser: minutes on a busy machine.
pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(1800)]


def test_the_dashboard_shows_tasks_under_their_points_names(client: Client) -> None:
    assert client.head.token is not None
    client.write({"name": "watched"})
    job = client.submit()
    wait_for(lambda: client.ask(f"/api/jobs/{job}")["status"] not in ("PENDING", "RUNNING"), "the job's end")
    assert [point["state"] for point in client.points()] == ["done", "done"], client.gridlaw("logs", job).stdout
    with open_page(patience_ms=120_000) as page:
        page.goto(f"{client.head.address}/#/jobs/{job}")
        page.get_by_placeholder("Enter your authentication token").fill(client.head.token)
        page.get_by_role("button", name="Submit").click()
        page.get_by_text("Task Table", exact=True).click()
        table = page.locator("table", has=page.get_by_role("columnheader", name="Function or class name"))
        for name in ("full/a/seed0 trunk", "full/a/2N/seed0", "full/a/4N/seed0", "full/a/4N/seed0/loss"):
            table.get_by_role("cell", name=name, exact=True).first.wait_for()
        assert table.get_by_text("FAILED", exact=True).count() == 0
    told = json.loads(client.gridlaw("status", job, "--json").stdout)
    assert (told["job"], told["ledger"]) == (job, {"kind": "point", "num_planned": 2, "states": {"finished": 2}})

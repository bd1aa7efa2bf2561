"""A real headless Chromium for tests that open pages."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip


@contextmanager
def chromium() -> Iterator[Any]:
    """The browser, closed in the end."""
    from playwright.sync_api import sync_playwright

    found = os.environ.get("GRIDLAW_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    assert found, "browser tests need Chromium: apt-get install chromium, or set GRIDLAW_CHROMIUM to its path"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=_FLAGS)
        yield browser
        browser.close()


@contextmanager
def open_page(*, patience_ms: float) -> Iterator[Any]:
    """A page of a desktop's size; every wait on it takes at most ``patience_ms``."""
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        page.set_default_timeout(patience_ms)
        yield page

"""What all tests share: no network, one thread, no write to the user's cache; a browser."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

# Set before numpy or torch are first imported, so that test workers do not fight for the cores.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[name] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["MPLBACKEND"] = "Agg"

BROWSER_ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


def _unavailable(why: str) -> None:
    """Skip on a machine without a browser; fail in CI, where these tests must not vanish."""
    if os.environ.get("CI"):
        pytest.fail(f"{why}; the browser tests must run in CI")
    pytest.skip(why)


# A browser a module: while one is open, playwright's event loop runs and no other can be started.
@pytest.fixture(scope="module")
def browser() -> Iterator:
    """A headless Chromium."""
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        _unavailable("playwright is not installed")
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        _unavailable("no Chromium is installed (Debian: apt-get install chromium)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=BROWSER_ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def visit(browser) -> Callable:
    """`with visit(path) as page`: fails on console messages, errors, and any request but for the file."""

    @contextmanager
    def visiting(path: Path, *, javascript: bool = True, width: int = 1280, **context):
        context |= {"viewport": {"width": width, "height": 900}, "java_script_enabled": javascript}
        opened = browser.new_context(**context)
        page = opened.new_page()
        problems: list[str] = []
        requests: list[str] = []
        page.on("console", lambda message: problems.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(path.as_uri())
        yield page
        outside = [url for url in requests if not url.startswith(("data:", path.as_uri()))]
        opened.close()
        assert problems == []
        assert outside == []

    return visiting

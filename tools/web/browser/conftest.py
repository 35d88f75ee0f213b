"""A browser, and pages in it that fail their test if they complain or ask a server."""

import shutil

import made
import pytest
from places import page_file
from playwright.sync_api import sync_playwright

# What a page may load: itself, and what it makes.
OWN_SCHEMES = ("file:", "data:", "blob:")


@pytest.fixture(scope="session")
def browser():
    """Debian's Chromium, so that none is downloaded."""
    path = shutil.which("chromium")
    assert path, "Chromium is missing (Debian: apt-get install chromium)"
    with sync_playwright() as playwright:
        # CI runs as root, for whom Chromium has no sandbox.
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def address():
    """The address of the page."""
    file = page_file()
    assert file.is_file(), f"{file} does not exist; build it with tools/web/build"
    return file.as_uri()


@pytest.fixture
def visit(browser, address):
    """Opens the page: `visit(fragment, width=…, scheme=…)` returns it when the first view is there."""
    contexts, complaints = [], []

    def open_page(fragment="", width=1280, height=900, scheme="light"):
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, accept_downloads=True
        )
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(30_000)
        page.on("console", lambda message: message.type in ("error", "warning") and complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: request.url.startswith(OWN_SCHEMES) or complaints.append(request.url))
        page.goto(address + fragment)
        page.wait_for_selector("[role=tabpanel]:not([hidden]) h2")
        return page

    yield open_page
    trouble = [page.locator("#trouble").inner_text() for context in contexts for page in context.pages]
    for context in contexts:
        context.close()
    assert [text for text in trouble if text] == [] and complaints == []


@pytest.fixture(scope="session")
def long_capture(tmp_path_factory):
    """A capture of 100,000 packets, one of which has a wrong ICRC."""
    path = tmp_path_factory.mktemp("captures") / "long.pcap"
    path.write_bytes(made.capture(made.LONG, wrong=made.WRONG))
    return path

"""The status page: three files of our own, nothing from elsewhere, no key in them, everything shown as text."""

from __future__ import annotations

import re
import shutil
from importlib.resources import files
from pathlib import Path

import aiohttp
import pytest

from tests.harness.fleet import running_fleet

PAGE = files("dsv41_supervisor.api") / "page"


def _text(name: str) -> str:
    return (PAGE / name).read_text()


def test_the_page_asks_nobody_else_and_has_no_inline_code() -> None:
    html = _text("index.html")
    for name in ("index.html", "page.js", "page.css"):
        assert not re.search(r"(https?:)?//(?!\s)[a-z]", re.sub(r"^\s*// .*$", "", _text(name), flags=re.M)), name
        assert "url(" not in _text(name) and "@import" not in _text(name), name
    assert re.findall(r'(?:src|href)="([^"]*)"', html) == ["page.css", "page.js"]
    assert not re.search(r"<script(?![^>]*src=)", html)
    assert not re.search(r"\son\w+=|style=|<style", html)


def test_the_script_sets_text_only_and_keeps_the_key_in_the_tab() -> None:
    script = _text("page.js")
    for forbidden in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function(",
                      "localStorage", "document.cookie"):  # fmt: skip
        assert forbidden not in script, forbidden
    assert "sessionStorage.removeItem(KEY)" in script
    assert script.count("fetch(") == 1 and 'fetch("status"' in script


def test_every_element_that_the_script_looks_for_is_on_the_page() -> None:
    wanted = set(re.findall(r'at\("(\w+)"\)', _text("page.js")))
    there = set(re.findall(r'id="(\w+)"', _text("index.html")))
    assert wanted <= there, wanted - there


async def test_the_page_is_served_without_a_key_under_a_strict_policy(tmp_path: Path, demo_checkpoint: Path) -> None:
    async with (
        running_fleet(tmp_path, demo_checkpoint, nodes=1, loopback=True, gateway=False) as fleet,
        aiohttp.ClientSession() as session,
    ):
        key = Path(fleet.settings.fleet.key_file).read_text().strip()
        for path, kind in (("/", "text/html"), ("/page.js", "text/javascript"), ("/page.css", "text/css")):
            async with session.get(fleet.head.base + path) as answer:
                assert answer.status == 200
                assert answer.content_type == kind
                policy = answer.headers["Content-Security-Policy"]
                assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
                assert key not in await answer.text()
                assert fleet.settings.fleet.name + '"' not in await answer.text()


BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome-headless-shell")


@pytest.mark.skipif(not any(map(shutil.which, BROWSERS)), reason=f"none of {', '.join(BROWSERS)} is installed")
async def test_a_browser_shows_the_fleet_and_why_it_is_not_green(tmp_path: Path, demo_checkpoint: Path) -> None:
    from tests.harness.browser import Browser

    browser = next(found for name in BROWSERS if (found := shutil.which(name)))
    async with running_fleet(tmp_path, demo_checkpoint, nodes=1, loopback=True, gateway=False) as fleet:
        assert (await fleet.up())["state"] == "serving"
        key = Path(fleet.settings.fleet.key_file).read_text().strip()
        async with Browser(browser, tmp_path / "profile") as tab:
            await tab.go(f"{fleet.head.base}/")
            await tab.until("document.getElementById('ask').checkVisibility()", "the page asks for the key")
            await tab.value(f"document.getElementById('key').value = {'wrong'!r}")
            await tab.value("document.querySelector('#ask button').click()")
            await tab.until("document.getElementById('state').textContent == 'wrong fleet key'", "a wrong key is said")
            await tab.value(f"document.getElementById('key').value = {key!r}")
            await tab.value("document.querySelector('#ask button').click()")
            await tab.until("document.getElementById('state').textContent == 'serving'", "it shows the state")
            assert "spark1" in await tab.value("document.getElementById('nodes').textContent")
            # The ranks serve and nobody can ask them: this fleet has no gateway.
            assert "the gateway at" in await tab.value("document.getElementById('reasons').textContent")
            assert await tab.value("document.querySelectorAll('#reasons li').length") == 1
            assert key not in await tab.value("document.documentElement.outerHTML")
            await fleet.head.call("POST", "/fleet/down", {})
            await tab.until("document.getElementById('state').textContent == 'down'", "it follows")
            assert await tab.errors() == []

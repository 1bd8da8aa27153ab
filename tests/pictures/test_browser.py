"""The page in a real browser: every picture decodes, nothing sticks out, no errors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import browser
import pytest
from browser import Browser
from made_findings import LAYERS, findings

from tvm_blislike.pictures import page

NAME = "<b>bold</b> " + 30 * "long" + ".onnx"


@pytest.fixture(scope="session")
def chromium() -> Browser:
    try:
        return browser.find()
    except RuntimeError as error:
        pytest.skip(f"no Chromium here, and none can be had: {error}")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("browser")
    layers = tuple(replace(LAYERS[0], number=n) for n in range(1, 15))
    page.write(findings(model=NAME, layers=layers, notes=("a note",)), folder)
    return folder / "report.html"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_page_in_a_browser(chromium: Browser, report: Path, dark: bool) -> None:
    facts = chromium.facts(report, (400, 1200), dark)
    assert facts["console"] == []
    for width, expected in (("400", 360), ("1200", 921)):
        found = facts[width]
        assert found["title"].startswith(NAME)
        assert found["scripts"] == 0
        assert found["overflow"] == 0
        assert found["headings"][:2] == [NAME, "Summary"]
        # A sheet for each twelve layers: one more than there are sections.
        assert len(found["images"]) == 6
        for natural_width, natural_height, alt in found["images"]:
            assert natural_width == pytest.approx(expected, abs=2)
            assert natural_height > 90
            assert len(alt) > 20
        assert found["paper"] == ("rgb(23, 27, 33)" if dark else "rgb(255, 255, 255)")


def test_the_browser_would_tell(chromium: Browser, tmp_path: Path) -> None:
    bad = tmp_path / "bad.html"
    bad.write_text(
        "<!doctype html><title>bad</title><section>a</section>"
        '<img src="data:image/svg+xml;base64,AAAA" alt="">'
        '<div style="width: 3000px">wide</div><script>console.error("told")</script>'
    )
    facts = chromium.facts(bad, (400,))
    assert any("told" in line for line in facts["console"])
    assert facts["400"]["overflow"] > 2000
    assert facts["400"]["images"][0][0] == 0

"""The files: a page without references that escapes what it is told, PNGs, and JSON."""

from __future__ import annotations

import base64
import json
import re
import struct
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path

import pytest
from made_findings import LAYERS, findings

from tvm_blislike.errors import OutputError
from tvm_blislike.pictures import page

HOSTILE = "<img src=x onerror=alert(1)>&amp;\"'</title>.onnx"
# Elements without an end.
_VOID = {"meta", "link", "img", "source", "br"}
_REFERENCES = {"src", "srcset", "href", "data", "action", "poster", "background"}


class _Page(HTMLParser):
    """Collects elements and references; `errors` names what is not closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[str] = []
        self.references: list[str] = []
        self.ids: list[str] = []
        self.errors: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        self.errors += [f"{tag} stays open" for tag in self.open]

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.elements.append(tag)
        self.references += [value for name, value in attrs if name in _REFERENCES]
        self.ids += [value for name, value in attrs if name == "id"]
        self.errors += [f"{tag} {name}" for name, _ in attrs if name.startswith("on")]
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.errors.append(f"{tag} ends too early")

    def handle_data(self, data: str) -> None:
        self.words.append(data)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a model with a hostile name."""
    folder = tmp_path_factory.mktemp("pictures")
    found = findings(model=HOSTILE, notes=(HOSTILE,), records=HOSTILE, core=HOSTILE)
    written = page.write(found, folder)
    assert sorted(written) == sorted(folder.iterdir())
    return folder


@pytest.fixture(scope="module")
def text(folder: Path) -> str:
    return (folder / "report.html").read_text()


def test_page_is_well_formed(text: str) -> None:
    parsed = _Page(text)
    assert parsed.errors == []
    assert len(parsed.ids) == len(set(parsed.ids))
    for element in ("html", "title", "h1", "main", "nav"):
        assert parsed.elements.count(element) == 1
    assert parsed.elements.count("img") == 5


def test_page_refers_to_nothing_outside(text: str) -> None:
    parsed = _Page(text)
    assert "script" not in parsed.elements
    assert all(r.startswith(("data:", "#")) for r in parsed.references)
    assert all(r[1:] in parsed.ids for r in parsed.references if r.startswith("#"))
    assert not re.search(r"url\(|@import|https?://", text)
    assert "default-src 'none'" in text


def test_pictures_refer_to_nothing_outside(text: str) -> None:
    images = re.findall(r"data:image/svg\+xml;base64,([^\"]+)", text)
    assert len(images) == 5 * 4
    for image in images:
        root = ElementTree.fromstring(base64.b64decode(image))
        for element in root.iter():
            assert not element.tag.endswith(("}image", "}script", "}foreignObject"))
            links = [v for name, v in element.attrib.items() if name.endswith("href")]
            assert all(link.startswith("#") for link in links)


def test_hostile_names_stay_text(text: str) -> None:
    assert "<img src=x" not in text
    words = "".join(_Page(text).words)
    # Name in title and heading, core in title and lead, records and note.
    assert words.count(HOSTILE) == 6


def test_table_has_the_data_of_the_pictures(text: str) -> None:
    words = " ".join(" ".join(_Page(text).words).split())
    for expected in ("300.0", "0.0080", "150", LAYERS[2].title[3:], "1.50", "3.000"):
        assert expected in words, expected


def test_pngs_have_the_size_of_the_wide_picture(folder: Path) -> None:
    images = sorted(path.name for path in folder.glob("*.png"))
    names = ("layers", "microkernels", "prediction", "progress", "roofline")
    assert images == [f"{name}.png" for name in names]
    for path in folder.glob("*.png"):
        data = path.read_bytes()
        assert data[:8] == b"\x89PNG\r\n\x1a\n"
        width, height = struct.unpack(">II", data[16:24])
        assert width == 1536
        assert 150 <= height <= 4000


def test_json_holds_everything(folder: Path) -> None:
    data = json.loads((folder / "report.json").read_text())
    assert data["model"] == HOSTILE
    assert data["roofs"]["peak_gflops"] == 200.0
    assert data["layers"][0]["engine_ms"] == LAYERS[0].engine_ms
    assert [step["total_ms"] for step in data["steps"]] == [0.1, 0.1, 0.08]


def test_headline_compares_with_every_engine() -> None:
    assert page.headline(findings()) == (
        "2.000 ms for the whole model; onnxruntime takes 1.50 times as long."
    )
    assert page.headline(findings(engines={})) == ""


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "layers.png").mkdir()
    with pytest.raises(OutputError, match=r"layers\.png"):
        page.write(findings(), tmp_path)

"""Findings to one HTML page without references, the PNGs, and the data as JSON."""

from __future__ import annotations

import base64
import io
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2

from tvm_blislike.files import atomic_path, write_text
from tvm_blislike.pictures import layer_times, micro_kernels, prediction, progress, roofline
from tvm_blislike.pictures.findings import Findings
from tvm_blislike.pictures.look import Look
from tvm_blislike.pictures.section import Picture, Section

_OURS = "blislike"
# Pixels per inch: sharp on dense screens and in print.
_PNG_DPI = 160
_SECTIONS = (
    layer_times.section,
    micro_kernels.section,
    roofline.section,
    prediction.section,
    progress.section,
)


@dataclass(frozen=True)
class Drawn:
    """A picture in every look, as data URIs by (narrow, dark); `alt` as in `Picture`."""

    alt: str
    name: str
    uris: dict[tuple[bool, bool], str]


def write(findings: Findings, folder: Path) -> list[Path]:
    """Write report.html, report.json and one PNG for each picture; return their paths.

    Raises
    ------
    OutputError
        When one cannot be written.
    """
    sections = [section(findings) for section in _SECTIONS]
    page, data = folder / "report.html", folder / "report.json"
    images = [_write_png(p, folder) for section in sections for p in section.pictures]
    write_text(data, findings.to_json() + "\n")
    write_text(page, render(findings, sections))
    return [page, data, *images]


def render(findings: Findings, sections: Sequence[Section]) -> str:
    """Return the page: self-contained, for light and dark schemes and any width."""
    loader = jinja2.PackageLoader("tvm_blislike.pictures", ".")
    environment = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    template = environment.get_template("page.html.jinja")
    drawn = {section.name: [_drawn(p) for p in section.pictures] for section in sections}
    return template.render(
        findings=findings, sections=sections, drawn=drawn, headline=headline(findings)
    )


def headline(findings: Findings) -> str:
    """Return the whole model's time and how it compares; nothing when it was not measured."""
    if _OURS not in findings.engines:
        return ""
    ours = findings.engines[_OURS].ms
    others = (
        f"{name} takes {engine.ms / ours:.2f} times as long"
        for name, engine in findings.engines.items()
        if name != _OURS
    )
    return f"{'; '.join([f'{ours:.3f} ms for the whole model', *others])}."


def _drawn(picture: Picture) -> Drawn:
    uris = {
        (narrow, dark): "data:image/svg+xml;base64," + base64.b64encode(data).decode()
        for narrow, dark in itertools.product((False, True), repeat=2)
        for data in [_bytes(picture, Look(dark, narrow), "svg")]
    }
    return Drawn(picture.alt, picture.name, uris)


def _write_png(picture: Picture, folder: Path) -> Path:
    path = folder / f"{picture.name}.png"
    with atomic_path(path) as fresh:
        fresh.write_bytes(_bytes(picture, Look(), "png"))
    return path


def _bytes(picture: Picture, look: Look, kind: str) -> bytes:
    """Return a picture as a file of that kind; the same data give the same bytes."""
    buffer = io.BytesIO()
    with look.applied():
        figure = picture.draw(look)
        undated = {"Date": None} if kind == "svg" else {"Software": None}
        figure.savefig(buffer, format=kind, dpi=_PNG_DPI, metadata=undated)
    return buffer.getvalue()

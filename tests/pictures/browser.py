"""A headless Chromium that says what it makes of a page: the system's, else Debian's, unpacked."""

from __future__ import annotations

import html
import json
import os
import platform
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from debian import missing, unpacked

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_UNPACKED = "usr/lib/chromium/chromium"
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--enable-logging=stderr"),
    # Nothing may be fetched, whatever a page asks for.
    "--host-resolver-rules=MAP * ~NOTFOUND",
)
_SECONDS = 120.0
# The page in frames of given widths; once all are loaded, their facts become the document's text.
_FRAMES = """<!doctype html><meta charset="utf-8"><body><script>
const facts = {};
const wait = [];
for (const width of WIDTHS) {
  const frame = document.createElement("iframe");
  frame.width = width;
  frame.height = 800;
  frame.style.border = "0";
  frame.srcdoc = PAGE;
  wait.push(new Promise((done) => { frame.onload = () => done([width, frame.contentDocument]); }));
  document.body.append(frame);
}
Promise.all(wait).then(async (loaded) => {
  for (const [width, page] of loaded) {
    for (const folded of page.querySelectorAll("details")) folded.open = true;
    const images = [...page.images];
    await Promise.allSettled(images.map((image) => image.decode()));
    facts[width] = {
      images: images.map((image) => [image.naturalWidth, image.naturalHeight, image.alt]),
      overflow: page.documentElement.scrollWidth - page.documentElement.clientWidth,
      headings: [...page.querySelectorAll("h1, h2")].map((heading) => heading.textContent),
      title: page.title,
      scripts: page.scripts.length,
      paper: page.defaultView.getComputedStyle(page.querySelector("section")).backgroundColor,
    };
  }
  document.title = "done";
  document.body.textContent = JSON.stringify(facts);
});
</script></body>"""


@dataclass(frozen=True)
class Browser:
    """A way to start Chromium."""

    program: str
    libraries: str = ""

    def facts(self, page: Path, widths: tuple[int, ...], dark: bool = False) -> dict[str, Any]:
        """Return what the browser says about a page in each width, and "console", its messages."""
        with tempfile.TemporaryDirectory() as folder:
            frames = Path(folder) / "frames.html"
            text = json.dumps(page.read_text()).replace("<", "\\u003c")
            frames.write_text(_FRAMES.replace("WIDTHS", str(list(widths))).replace("PAGE", text))
            done = self._run(folder, dark, "--dump-dom", "--virtual-time-budget=60000", frames)
        found = html.unescape(done.stdout.partition("<body>")[2].partition("</body>")[0])
        if not found.startswith("{"):
            raise AssertionError(f"no facts: {found[:200]}; {done.stderr[-2000:]}")
        messages = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
        return {**json.loads(found), "console": messages}

    def screenshot(self, page: Path, image: Path, width: int, height: int, dark: bool) -> None:
        """Write what the upper part of a page looks like."""
        with tempfile.TemporaryDirectory() as folder:
            size = f"--window-size={width},{height}"
            self._run(folder, dark, size, "--hide-scrollbars", f"--screenshot={image}", page)

    def _run(
        self, folder: str, dark: bool, *arguments: str | Path
    ) -> subprocess.CompletedProcess[str]:
        # Blink's numbers for the preferred colour scheme.
        scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
        *options, page = map(str, arguments)
        profile = f"--user-data-dir={folder}/profile"
        command = [self.program, *_FLAGS, scheme, profile, *options, f"file://{page}"]
        environment = {**os.environ, "HOME": folder}
        if self.libraries:
            environment["LD_LIBRARY_PATH"] = self.libraries
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=True,
            timeout=_SECONDS,
            env=environment,
        )


def find() -> Browser:
    """Return the system's Chromium, else Debian's, unpacked into build/board.

    Raises
    ------
    RuntimeError
        When there is none and it cannot be had.
    """
    for name in _NAMES:
        found = shutil.which(name)
        if found:
            return Browser(found)
    folder = unpacked("chromium", missing(["chromium"])[1], "*")
    machine = f"{platform.machine()}-linux-gnu"
    libraries = folder / "usr/lib" / machine
    # Libraries of PulseAudio look for each other in the system's folder only.
    places = (libraries, libraries / "pulseaudio", folder / "lib" / machine)
    return Browser(str(folder / _UNPACKED), os.pathsep.join(map(str, places)))

"""What the command says of itself: at once, for every command, in every shell."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main
from typer.testing import CliRunner

import tvm_blislike
from tvm_blislike.cli.app import app

# Takes seconds to import, or tenths.
SLOW = ("tvm", "numpy", "onnx", "onnxruntime", "matplotlib", "psutil", "cpuinfo")
COMMANDS = ["run", "compile", "explain", "quantize", "tune", "bench", "report", "probe", "targets"]


def _commands(group: object, *names: str) -> Iterator[tuple[tuple[str, ...], object]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, *names, name)
        else:
            yield (*names, name), command


EVERY = dict(_commands(typer.main.get_command(app)))


def _imported(*arguments: str) -> tuple[str, list[str]]:
    """Run the command in a fresh interpreter; return what it prints and the slow modules."""
    code = (
        "import json, sys\nfrom tvm_blislike.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print(json.dumps([m for m in sys.argv[-1].split(',') if m in sys.modules]))"
    )
    command = [sys.executable, "-c", code, *arguments]
    # The last argument is for the code only: eager options end the command before it is read.
    done = subprocess.run([*command, ",".join(SLOW)], capture_output=True, text=True, check=True)
    *shown, found = done.stdout.splitlines()
    return "\n".join(shown), json.loads(found)


@pytest.mark.parametrize(
    "arguments", [("--help",), ("-h",), ("--version",), ("explain", "-h"), ("records", "-h")]
)
def test_help_imports_nothing_slow(arguments: tuple[str, ...]) -> None:
    shown, slow = _imported(*arguments)
    assert shown and not slow


def test_version_names_this_package_and_tvm() -> None:
    shown, _ = _imported("--version")
    assert shown.startswith(f"tvm-blislike {tvm_blislike.__version__}, apache-tvm 0.")


@pytest.mark.parametrize("names", EVERY, ids=" ".join)
def test_every_command_has_help_and_json(names: tuple[str, ...]) -> None:
    done = CliRunner().invoke(app, [*names, "-h"])
    assert done.exit_code == 0 and "Usage" in done.stdout
    assert any("--json" in parameter.opts for parameter in EVERY[names].params)
    assert {name for (name, *_) in EVERY} >= {*COMMANDS, "records", "cache"}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_commands(shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words = {"bash": {"COMP_WORDS": "tvm-blislike ex", "COMP_CWORD": "1"}}
    line = {"_TYPER_COMPLETE_ARGS": "tvm-blislike ex", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    for name, value in words.get(shell, line).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("_TVM_BLISLIKE_COMPLETE", f"complete_{shell}")
    done = subprocess.run(
        [sys.executable, "-m", "tvm_blislike"], capture_output=True, text=True, check=False
    )
    assert "explain" in done.stdout and "records" not in done.stdout, done.stderr


def test_commands_without_a_result_to_show_have_json_too(tmp_path: Path) -> None:
    def found(*arguments: object) -> dict:
        done = CliRunner().invoke(app, [*map(str, arguments), "--json"])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    empty, target = tmp_path / "empty.jsonl", tmp_path / "all.jsonl"
    empty.write_text("")
    assert found("records", "merge", target, empty)["added"] == 0
    assert found("records", "prune", "--records", empty) == {"kept": 0, "removed_lines": 0}
    assert found("records", "export", tmp_path, "--records", empty)["written"] == 0
    assert found("records", "import", tmp_path, "--records", empty) == {"added": 0, "foreign": 0}


def test_the_pipeline_is_there_whichever_is_imported_first() -> None:
    uses = "from tvm import relax; print(relax.get_pipeline('blislike').info.name)"
    environment = {"TVM_DEVICE_BACKEND_AUTOLOAD": "0"}
    for first in (
        "import tvm_blislike",
        "import tvm, tvm_blislike",
        "import tvm_blislike, tvm",
        "import tvm_blislike, importlib; importlib.reload(tvm_blislike)",
        "import tvm_blislike; tvm_blislike.Core",
        "from tvm_blislike.pipeline import blislike_pipeline",
    ):
        done = subprocess.run(
            [sys.executable, "-c", f"{first}; {uses}"],
            capture_output=True,
            text=True,
            env={**os.environ, **environment},
        )
        assert done.stdout == "blislike.Pipeline\n", (first, done.stderr)

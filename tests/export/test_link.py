"""Which compiler or linker is taken, and what is said when there is none or it fails."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tvm_blislike.errors import OutputError, ToolchainError
from tvm_blislike.export import link
from tvm_blislike.hardware import Core, native_core

NATIVE = native_core().target_config()
BOARD = Core.named("cortex-a72").target_config()
APPLE = Core.named("apple-m1").target_config()


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("CC", "CXX"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)


@pytest.mark.usefixtures("no_compiler")
def test_without_any_compiler_the_message_says_what_to_install() -> None:
    with pytest.raises(ToolchainError, match="gcc or clang, or run: pip install ziglang"):
        link.find_compiler(NATIVE)
    with pytest.raises(ToolchainError) as caught:
        link.find_compiler(BOARD)
    for wanted in ("aarch64", "tvm-blislike[link]", "aarch64-linux-gnu-gcc", "--cc"):
        assert wanted in str(caught.value)
    with pytest.raises(ToolchainError, match="build a program"):
        link.find_builder(BOARD)


@pytest.mark.usefixtures("no_compiler")
def test_ziglang_links_for_every_architecture_without_a_c_library(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name == "ziglang")
    zig = [sys.executable, "-m", "ziglang"]
    assert link.find_compiler(BOARD)[:6] == [*zig, "ld.lld", "-m", "aarch64linux"]
    assert link.find_compiler(APPLE)[:6] == [*zig, "cc", "-target", "aarch64-macos"]
    assert link.find_builder(BOARD)[-2:] == ["-target", "aarch64-linux-gnu.2.28"]


@pytest.mark.usefixtures("no_compiler")
def test_system_compilers_go_by_their_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: name if "clang" not in name else None)
    assert link.find_compiler(NATIVE)[0] == "gcc"
    assert link.find_compiler(BOARD)[0] == "aarch64-linux-gnu-gcc"


@pytest.mark.usefixtures("no_compiler")
def test_the_environment_chooses_for_this_machine_and_cc_for_any(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CC", "mycc --flag")
    monkeypatch.setattr("shutil.which", lambda name: name)
    assert link.find_compiler(NATIVE)[:2] == ["mycc", "--flag"]
    assert link.find_compiler(BOARD)[0] == "aarch64-linux-gnu-gcc"
    assert link.find_compiler(BOARD, "other --arm")[:2] == ["other", "--arm"]
    assert link.find_builder(BOARD, "other --arm") == ["other", "--arm"]


def test_failures_of_the_linker_are_explained(tmp_path: Path) -> None:
    output = str(tmp_path / "net.so")
    with pytest.raises(ToolchainError, match="false could not link"):
        link.link(["false"], output, [])
    with pytest.raises(ToolchainError, match=r"cannot run .*none: No such file"):
        link.link([str(tmp_path / "none")], output, [])
    full = tmp_path / "full"
    full.write_text("#!/bin/sh\necho 'ld.lld: error: No space left on device' >&2\nexit 1\n")
    full.chmod(0o755)
    with pytest.raises(OutputError, match="no space left") as caught:
        link.link([str(full)], output, [])
    assert str(tmp_path) in (caught.value.hint or "")
    assert os.listdir(tmp_path) == ["full"]


def test_a_library_for_the_wrong_architecture_is_refused() -> None:
    with pytest.raises(ToolchainError, match=r"linked a library for .*, not riscv64"):
        link.require_machine(sys.executable, {"mtriple": "riscv64-unknown-linux-gnu"})
    link.require_machine(sys.executable, NATIVE)

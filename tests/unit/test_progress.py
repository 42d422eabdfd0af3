"""What a person sees while it runs: one line per stage on a pipe, more on a terminal."""

from __future__ import annotations

import io
import os
import pty
import re
import threading

import pytest

from kiln.base.progress import Progress


def test_a_pipe_gets_one_line_per_stage_and_no_control_codes() -> None:
    out = io.StringIO()
    with Progress(out).stage("packer build") as stage:
        stage.line("==> a line of Packer's")
        stage.note = "ami-1"
    assert re.fullmatch(r"ok     packer build                    0\.\d s  ami-1\n", out.getvalue())


def test_a_stage_that_fails_says_so_and_keeps_its_time() -> None:
    out = io.StringIO()
    progress = Progress(out)
    with pytest.raises(ValueError, match="no"), progress.stage("checks"):
        raise ValueError("no")
    assert out.getvalue().startswith("failed checks ")
    assert list(progress.seconds) == ["checks"]


def test_rows_that_are_built_side_by_side_are_told_apart() -> None:
    out = io.StringIO()
    progress = Progress(out, label="al2-510")
    progress.say("hello")
    with progress.stage("checks"):
        pass
    assert [line.split(" ", 1)[0] for line in out.getvalue().splitlines()] == ["[al2-510]"] * 2


def test_a_line_is_written_whole_so_that_rows_built_side_by_side_do_not_mix() -> None:
    class Out(io.StringIO):
        def write(self, text: str) -> int:
            written.append(text)
            return len(text)

    written: list[str] = []
    Progress(Out(), label="al2-510").say("hello")
    assert written == ["[al2-510] hello\n"]


def test_a_terminal_sees_what_the_tool_says_while_it_runs() -> None:
    leader, follower = pty.openpty()
    seen = bytearray()

    def read() -> None:
        try:
            while chunk := os.read(leader, 4096):
                seen.extend(chunk)
        except OSError:
            pass

    reader = threading.Thread(target=read)
    reader.start()
    with os.fdopen(follower, "w") as terminal, Progress(terminal).stage("packer build") as stage:
        stage.line("==> one\ntwo")
    reader.join(timeout=10)
    os.close(leader)
    text = seen.decode()
    assert "packer build …" in text
    assert "      ==> one\r\n      two\r\n" in text
    assert re.search(r"ok     packer build +\d+\.\d s", text)


def test_what_a_tool_says_cannot_be_taken_for_markup() -> None:
    out = io.StringIO()
    with Progress(out).stage("packer build") as stage:
        stage.note = "[red]not red[/red]"
    assert "[red]not red[/red]" in out.getvalue()

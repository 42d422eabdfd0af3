"""What a person sees while it runs: one line per stage on a pipe, more on a terminal."""

from __future__ import annotations

import io
import os
import pty
import re
import threading

import pytest

from kiln.base.progress import Progress


def test_pipe_gets_one_plain_line_per_stage() -> None:
    out = io.StringIO()
    with Progress(out).stage("packer build") as stage:
        stage.line("==> a line of Packer's")
        stage.note = "[red]ami-1[/red]"
    line = r"ok     packer build                    0\.\d s  \[red\]ami-1\[/red\]\n"
    assert re.fullmatch(line, out.getvalue())


def test_failed_stage_keeps_its_time() -> None:
    out = io.StringIO()
    progress = Progress(out)
    with pytest.raises(ValueError, match="no"), progress.stage("checks"):
        raise ValueError("no")
    assert out.getvalue().startswith("failed checks ")
    assert list(progress.seconds) == ["checks"]


def test_row_is_named_on_lines_written_whole() -> None:
    class Out(io.StringIO):
        def write(self, text: str) -> int:
            written.append(text)
            return len(text)

    written: list[str] = []
    progress = Progress(Out(), label="al2-510")
    progress.say("hello")
    with progress.stage("checks"):
        pass
    assert [re.sub("checks.*", "checks", text) for text in written] == [
        "[al2-510] hello\n",
        "[al2-510] ok     checks\n",
    ]


def test_terminal_shows_the_tools_lines_meanwhile() -> None:
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
    reader.join(timeout=60)
    os.close(leader)
    text = seen.decode()
    assert "packer build …" in text
    assert "      ==> one\r\n      two\r\n" in text
    assert re.search(r"ok     packer build +\d+\.\d s", text)


class Lines(io.StringIO):
    """Output that a test can wait for."""

    def __init__(self) -> None:
        super().__init__()
        self.written = threading.Semaphore(0)

    def write(self, text: str) -> int:
        count = super().write(text)
        self.written.release()
        return count


def test_silent_stage_says_what_it_waits_for() -> None:
    out = Lines()
    with Progress(out, label="al2", reminder=0.01).stage("packer build") as stage:
        stage.waits_for("SSH on i-1", limit=300)
        for _ in range(3):
            assert out.written.acquire(timeout=60)
    *reminders, last = out.getvalue().splitlines()
    # On a busy machine a reminder may come before the stage says what it waits for.
    if "`packer build`" in reminders[0]:
        del reminders[0]
    assert len(reminders) >= 2
    for line in reminders:
        assert re.fullmatch(r"\[al2\]        waiting for SSH on i-1: \d+ s \(limit 300 s\)", line)
    assert last.startswith("[al2] ok     packer build")


@pytest.mark.parametrize(("limit", "words"), [(90.0, " (limit 90 s)"), (None, "")])
def test_reminder_says_how_long_and_the_limit(limit: float | None, words: str) -> None:
    now = [1000.0]
    with Progress(io.StringIO(), clock=lambda: now[0]).stage("x") as stage:
        assert stage.reminder().startswith("waiting for `x`: ")
        stage.waits_for("SSH", limit=limit)
        now[0] += 30
        stage.waits_for("SSH", limit=limit)
        now[0] += 30.2
        assert stage.reminder() == f"waiting for SSH: 60 s{words}"

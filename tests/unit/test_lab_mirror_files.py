"""The mirror's files: each is made once, and is there when it is whole, whoever asks meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lab.vendors.mirror import keys
from lab.vendors.mirror.keys import Keyring
from lab.vendors.mirror.site import Site

# Long enough for a thread that nothing holds up; one that waits for its turn waits for longer.
_MOMENT = 0.5


class Twice:
    """Asks a second time while the first asker is making a file."""

    def __init__(self, ask: Callable[[], Path | None]) -> None:
        self.made: list[bytes] = []
        self.second = threading.Thread(target=ask)

    def content(self) -> bytes:
        """What is to be written: other bytes each time, like a signature."""
        self.made.append(f"number {len(self.made)}".encode())
        content = self.made[-1]
        if len(self.made) == 1:
            self.second.start()
            self.second.join(_MOMENT)
        return content


def test_a_file_that_two_ask_for_at_once_is_made_once(tmp_path: Path) -> None:
    site = Site(tmp_path, Keyring(tmp_path), digest="x")
    twice = Twice(lambda: site.made("driver.run", make))

    def make(target: Path) -> bool:
        return target.write_bytes(twice.content()) > 0

    file = site.made("driver.run", make)
    twice.second.join()
    assert file
    assert twice.made == [file.read_bytes()]


def test_a_signature_that_two_ask_for_at_once_is_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(tmp_path, Keyring(tmp_path), digest="x")
    file = tmp_path / "driver.run"
    twice = Twice(lambda: site.signature("efa", file))

    def sign(keyring: Keyring, name: str, file: Path, *, armor: bool) -> None:
        content = twice.content()
        file.with_name(f"{file.name}.sig").write_bytes(content)

    monkeypatch.setattr(Keyring, "sign_detached", sign)
    signature = site.signature("efa", file)
    twice.second.join()
    assert signature
    assert twice.made == [signature.read_bytes()]


def test_a_signature_and_a_key_are_there_when_they_are_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    while_making: list[set[str]] = []

    def gpg(keyring: Keyring, *arguments: str, text: str | None = None) -> str:
        if "-o" in arguments:
            target = Path(arguments[arguments.index("-o") + 1])
            target.write_bytes(b"half")
            shown = {path.name for path in tmp_path.iterdir() if not path.name.startswith(".")}
            while_making.append(shown)
        return "fpr:::::::::0123456789ABCDEF:"

    def run(*command: Any, **more: Any) -> str:
        return ""

    monkeypatch.setattr(Keyring, "_gpg", gpg)
    monkeypatch.setattr(keys, "run", run)
    keyring = Keyring(tmp_path)
    keyring.make("efa")
    keyring.sign_detached("efa", tmp_path / "file")
    assert while_making == [
        {"efa.fpr"},
        {"efa.fpr", "efa.asc"},
        {"efa.fpr", "efa.asc", "efa.gpg"},
    ]
    assert (tmp_path / "file.sig").exists()

"""The mirror's files: each is made once, and is there when it is whole, whoever asks meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

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

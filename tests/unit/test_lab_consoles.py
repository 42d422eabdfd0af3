"""The picture of a guest's console."""

from __future__ import annotations

import io

from PIL import Image

from lab.ec2.consoles import screen


def shown(text: str) -> Image.Image:
    return Image.open(io.BytesIO(screen(text)))


def test_it_is_a_jpeg_of_a_text_screen() -> None:
    picture = shown("debian login: ")
    assert (picture.format, picture.size) == ("JPEG", (480, 275))
    assert picture.getbbox()  # something is drawn


def test_it_shows_the_end_of_what_was_written() -> None:
    lines = [f"line {number}" for number in range(40)]
    assert screen("\n".join(lines)) == screen("\n".join(lines[-25:]))
    assert screen("\n".join(lines)) != screen("\n".join(lines[:-1]))


def test_colours_and_other_control_sequences_are_not_drawn() -> None:
    assert screen("[\x1b[0;32m  OK  \x1b[0m] Started\r\n\x07") == screen("[  OK  ] Started\n")


def test_a_long_line_goes_on_in_the_next() -> None:
    assert screen("x" * 100) == screen("x" * 80 + "\n" + "x" * 20)

"""What messages show of the values that somebody wrote, and the forms of times."""

from __future__ import annotations

import json
import unicodedata
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kiln.base import vocabulary
from kiln.base.vocabulary import masked, printable, quoted

MASKED = {
    "http://me:S3cret@proxy.example:3128": "http://…@proxy.example:3128",
    "https://t0ken@a.example/x": "https://…@a.example/x",
    "http://me:S3@a.example/cret@b.example/x": "http://…@b.example/x",
    "http://me:S3/cret@a.example/x": "http://…@a.example/x",
    "http://me:S3://cret@a.example": "http://…@a.example",
    "http://first.last:33/S3cret@a.example": "http://…@a.example",
    "https://a.example/x=https://me:S3cret@m.example": "https://…@m.example",
    "admin@example.com is nobody at https://a.example": None,
    "no URL: user:password@host": None,
}


@pytest.mark.parametrize("text", MASKED)
def test_only_the_user_of_a_url_is_hidden(text: str) -> None:
    shown = MASKED[text] or text
    assert masked(text) == shown
    assert masked(f"a {text}, b@c") == f"a {shown}, b@c"


def joined(*parts: str) -> st.SearchStrategy[str]:
    return st.lists(st.sampled_from(parts), max_size=8).map("".join)


NASTY = joined(*"@:/?#.,'\"=%[](){}aZ059-é", "\\", "://", "http://", "a.example", "10.0.0.1")
SPACED = joined(*"@:/?#.'\"= \t\naZ0", "://", "a.example/")
HOSTS = st.sampled_from(["proxy", "proxy.example", "10.0.0.7", "[2001:db8::7]", "Proxy.Example"])
TAILS = st.sampled_from(["", ":3128", "/", ":3128/a@b", "/a?b=c@d", "#@"])
TURNING = ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
USERS = st.sampled_from(["", "me", "first.last", "ME", "10.0.0.8", "a.example"])


@given(USERS, NASTY, NASTY, HOSTS, TAILS)
@example("first.last", "33/", "", "proxy", "")
@example("me", "a@b.example/", "", "proxy.example", "/c@d")
def test_no_message_has_a_password(
    user: str, before: str, after: str, host: str, tail: str
) -> None:
    url = f"http://{user}:{before}S3cret{after}@{host}{tail}"
    for text in (url, f"{url!r} is wrong", json.dumps({"https://v.example": [url]}), f"{url}: b@c"):
        assert "S3cret" not in masked(text), text
        assert masked(masked(text)) == masked(text)


@given(USERS, SPACED, SPACED, HOSTS, TAILS)
def test_value_shows_no_password_with_spaces(
    user: str, before: str, after: str, host: str, tail: str
) -> None:
    url = f"http://{user}:{before}S3cret{after}@{host}{tail}"
    assert "S3cret" not in quoted(url)
    assert "S3cret" not in vocabulary.shown(url)


@given(st.text())
def test_no_character_that_a_terminal_executes_is_left(text: str) -> None:
    for character in printable(text):
        kind = unicodedata.category(character)
        assert character in "\n\t" or kind not in ("Cc", "Cs", "Zl", "Zp")
        assert unicodedata.bidirectional(character) not in TURNING


def test_times_are_read_as_they_were_written() -> None:
    moment = datetime(2026, 8, 1, 14, 0, 5, tzinfo=timezone(timedelta(hours=2)))
    assert vocabulary.as_time(moment) == "2026-08-01T12:00:05Z"
    assert vocabulary.as_stamp(moment) == "20260801T120005Z"
    assert vocabulary.read_time(vocabulary.as_time(moment)) == moment
    assert vocabulary.read_stamp(vocabulary.as_stamp(moment)) == moment


def test_plain_text_is_printed_unchanged() -> None:
    assert printable("größer → 10.5 GiB\n\t✓ 日本") == "größer → 10.5 GiB\n\t✓ 日本"
    assert printable("\x1b[31mred\x9b\r") == "\\u001b[31mred\\u009b\\u000d"

"""AWS's errors as one message."""

from __future__ import annotations

import pytest
from botocore.exceptions import ClientError

from kiln.base.errors import KilnError
from kiln.cloud import aws


def test_a_web_page_in_the_place_of_an_answer_is_not_printed() -> None:
    page = {"Error": {"Code": "500", "Message": "<!doctype html><html lang=en><title>500"}}
    with (
        pytest.raises(KilnError, match="GetParameter answered 500: the answer is a web page") as e,
        aws.explained("the parent AMI could not be looked up"),
    ):
        raise ClientError(page, "GetParameter")  # type: ignore[arg-type]
    assert "<html" not in str(e.value)
    assert e.value.exit_status == 1

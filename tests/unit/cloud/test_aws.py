"""AWS's errors as one message, and the clients."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from kiln.base.errors import KilnError
from kiln.cloud import aws
from kiln.cloud.target import Target


def test_web_page_answer_is_not_printed() -> None:
    page = {"Error": {"Code": "500", "Message": "<!doctype html><html lang=en><title>500"}}
    with (
        pytest.raises(KilnError, match="GetParameter answered 500: the answer is a web page") as e,
        aws.explained("the parent AMI could not be looked up"),
    ):
        raise ClientError(page, "GetParameter")  # type: ignore[arg-type]
    assert "<html" not in str(e.value)
    assert e.value.exit_status == 1


# https://github.com/fog/fog-aws/issues/585
@pytest.mark.parametrize(
    "code", ["AuthFailure", "InvalidClientTokenId", "UnrecognizedClientException"]
)
def test_auth_failure_hints_at_disabled_region(code: str) -> None:
    answer: Any = {"Error": {"Code": code, "Message": "not able to validate"}}
    error = aws.as_error("the AMIs could not be listed", ClientError(answer, "DescribeImages"))
    assert "aws account enable-region" in (error.hint or "")


def test_misspelled_region_is_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    class Sts:
        def get_caller_identity(self) -> Any:
            raise EndpointConnectionError(endpoint_url="https://sts.example")

    monkeypatch.setattr(aws, "client", lambda *_: Sts())
    with pytest.raises(KilnError, match="eu-centrall-1: AWS has no region of that name") as refused:
        Target("a test", "eu-centrall-1").identified()
    assert refused.value.exit_status == 2
    assert refused.value.hint.startswith("did you mean 'eu-central-1'?")
    with pytest.raises(KilnError, match="the credentials could not be checked") as failed:
        Target("a test", "eu-central-1").identified()
    assert failed.value.exit_status == 1


@pytest.mark.parametrize(
    ("code", "gone"),
    [
        ("InvalidAMIID.NotFound", True),
        ("InvalidAMIID.Unavailable", True),
        ("InvalidSnapshot.NotFound", False),
        ("RequestLimitExceeded", False),
    ],
)
def test_ami_is_gone_by_its_error_code(code: str, *, gone: bool) -> None:
    answer: Any = {"Error": {"Code": code, "Message": "…"}}
    assert aws.is_gone(ClientError(answer, "DescribeImages")) is gone

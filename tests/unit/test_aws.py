"""AWS's errors as one message, and the clients."""

from __future__ import annotations

import http.client
from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from kiln.base.errors import KilnError
from kiln.cloud import aws, network
from kiln.cloud.target import Target

REGIONS = ["us-east-1", "eu-west-1", "ap-south-1"]


def test_a_web_page_in_the_place_of_an_answer_is_not_printed() -> None:
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
def test_a_refusal_that_a_region_which_is_not_enabled_gives_names_that_cause(code: str) -> None:
    answer: Any = {"Error": {"Code": code, "Message": "not able to validate"}}
    error = aws.as_error("the AMIs could not be listed", ClientError(answer, "DescribeImages"))
    assert "aws account enable-region" in (error.hint or "")


def test_a_proxy_that_does_not_speak_http_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    def answered(*asked: Any, **more: Any) -> Any:
        raise http.client.BadStatusLine("SSH-2.0-OpenSSH_9.2")

    monkeypatch.setattr("urllib.request.urlopen", answered)
    with pytest.raises(KilnError, match="this machine's public address is unknown") as refused:
        network.public_address()
    assert refused.value.exit_status == 1


def test_a_region_that_is_misspelled_is_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.parametrize("code", ["NotFound", "Unavailable", "Malformed"])
def test_an_ami_that_ec2_does_not_have_is_gone(code: str) -> None:
    answer: Any = {"Error": {"Code": f"InvalidAMIID.{code}", "Message": "…"}}
    assert aws.is_gone(ClientError(answer, "DescribeImages"))


@pytest.mark.parametrize("code", ["InvalidSnapshot.NotFound", "RequestLimitExceeded", ""])
def test_an_ami_is_not_gone_because_ec2_answered_another_error(code: str) -> None:
    answer: Any = {"Error": {"Code": code, "Message": "…"}}
    assert not aws.is_gone(ClientError(answer, "DescribeImages"))

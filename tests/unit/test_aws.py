"""AWS's errors as one message, and the clients."""

from __future__ import annotations

import http.client
from typing import Any

import pytest
from botocore.exceptions import ClientError
from botocore.loaders import JSONFileLoader

from kiln.base.errors import KilnError
from kiln.cloud import aws, network
from kiln.cloud.target import Target
from kiln.publish.regions import in_regions

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


@pytest.mark.parametrize("code", ["NotFound", "Unavailable", "Malformed"])
def test_an_ami_that_ec2_does_not_have_is_gone(code: str) -> None:
    answer: Any = {"Error": {"Code": f"InvalidAMIID.{code}", "Message": "…"}}
    assert aws.is_gone(ClientError(answer, "DescribeImages"))


@pytest.mark.parametrize("code", ["InvalidSnapshot.NotFound", "RequestLimitExceeded", ""])
def test_an_ami_is_not_gone_because_ec2_answered_another_error(code: str) -> None:
    answer: Any = {"Error": {"Code": code, "Message": "…"}}
    assert not aws.is_gone(ClientError(answer, "DescribeImages"))


def test_clients_of_several_regions_read_a_description_of_aws_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[str] = []

    def counted(loader: JSONFileLoader, path: str) -> Any:
        read.append(path)
        return real(loader, path)

    real = JSONFileLoader.load_file
    monkeypatch.setattr(JSONFileLoader, "load_file", counted)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "KILN")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    aws._botocore_data.cache_clear()
    aws._client.cache_clear()
    target = Target("a test", "us-east-1")
    clients = in_regions(REGIONS, lambda region: aws.sts(target.in_region(region)))
    assert [clients[region].meta.region_name for region in REGIONS] == REGIONS
    assert read
    assert len(read) == len(set(read))

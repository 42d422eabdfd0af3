"""Requests of the agent to its machine (IMDS) and of AWS, with the session token of its role.

AWS's host names lead to the lab (lab/machine/endpoints.py). Logs takes JSON, CloudWatch the query
protocol, both compressed, as the agent's SDK sends them: github:aws/amazon-cloudwatch-agent
sdk/service/{cloudwatchlogs,cloudwatch}/service.go and handlers/
@ab55b8daa204e95c42c0267ee5aa49ec3b3a7317
"""

from __future__ import annotations

import gzip
import json
import re
import time
import urllib.error
import urllib.parse
import urllib.request

TYPE_CHECKING = False  # typing itself costs start-up time
if TYPE_CHECKING:
    from typing import Any

IMDS = "http://169.254.169.254/latest/"
_FORM = "application/x-www-form-urlencoded; charset=utf-8"


class AwsError(Exception):
    """A call that AWS refused: `code` is the error's name."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code


def imds(path: str) -> str:
    """Return the answer of IMDS; "" when it has no such thing or does not answer."""
    try:
        ask = urllib.request.Request(
            IMDS + "api/token",
            method="PUT",
            headers={"X-aws-ec2-metadata-token-ttl-seconds": "60"},
        )
        token = urllib.request.urlopen(ask, timeout=2).read().decode()
        ask = urllib.request.Request(IMDS + path, headers={"X-aws-ec2-metadata-token": token})
        return str(urllib.request.urlopen(ask, timeout=2).read().decode())
    except OSError:
        return ""


class Caller:
    """Makes calls with the keys of the instance's role, which it renews before they end."""

    def __init__(self, region: str) -> None:
        self.region = region
        self._key: dict[str, str] = {}
        self._renewed_at = 0.0

    def _keys(self) -> dict[str, str]:
        if not self._key or time.time() - self._renewed_at > 600:
            role = imds("meta-data/iam/security-credentials/")
            text = imds("meta-data/iam/security-credentials/" + role) if role else ""
            self._key = json.loads(text) if text.startswith("{") else {}
            self._renewed_at = time.time()
        if not self._key:
            raise AwsError("NoCredentialProviders", "no valid providers in chain")
        return self._key

    def logs(self, call: str, **body: Any) -> Any:
        """A call of CloudWatch Logs; its answer."""
        head = {
            "content-type": "application/x-amz-json-1.1",
            "x-amz-target": "Logs_20140328." + call,
        }
        return json.loads(self._send("logs", head, json.dumps(body).encode()) or b"{}")

    def metrics(self, namespace: str, datums: list[dict[str, Any]]) -> None:
        """PutMetricData."""
        form = {"Action": "PutMetricData", "Version": "2010-08-01", "Namespace": namespace}
        _flatten(form, "MetricData", datums)
        body = urllib.parse.urlencode(form).encode()
        self._send("monitoring", {"content-type": _FORM}, body)

    def tags(self, instance_id: str) -> dict[str, str]:
        """The tags of the instance: DescribeTags."""
        form = {
            "Action": "DescribeTags",
            "Version": "2016-11-15",
            "Filter.1.Name": "resource-type",
            "Filter.1.Value.1": "instance",
            "Filter.2.Name": "resource-id",
            "Filter.2.Value.1": instance_id,
        }
        answer = self._send("ec2", {"content-type": _FORM}, urllib.parse.urlencode(form).encode())
        pairs = re.findall(r"<key>(.*?)</key>.*?<value>(.*?)</value>", answer.decode(), re.DOTALL)
        return dict(pairs)

    def _send(self, service: str, head: dict[str, str], body: bytes) -> bytes:
        key = self._keys()
        host = f"{service}.{self.region}.amazonaws.com"
        if service in ("logs", "monitoring"):
            body = gzip.compress(body)
            head = dict(head, **{"content-encoding": "gzip"})
        # The lab checks no signature: the header says which service and region are asked.
        scope = f"{key['AccessKeyId']}/20260101/{self.region}/{service}/aws4_request"
        head = {
            **head,
            "authorization": f"AWS4-HMAC-SHA256 Credential={scope}, Signature=none",
            "x-amz-security-token": key["Token"],
        }
        try:
            ask = urllib.request.Request(f"https://{host}/", body, head)
            return bytes(urllib.request.urlopen(ask, timeout=30).read())
        except urllib.error.HTTPError as error:
            raise _refused(error.read().decode("utf-8", "replace"), error.code) from None


def _flatten(form: dict[str, str], name: str, value: Any) -> None:
    """The query protocol's names: MetricData.member.1.Dimensions.member.2.Name."""
    if isinstance(value, dict):
        for key in value:
            _flatten(form, f"{name}.{key}", value[key])
    elif isinstance(value, list):
        for number, item in enumerate(value, 1):
            _flatten(form, f"{name}.member.{number}", item)
    else:
        form[name] = str(value)


def _refused(text: str, status: int) -> AwsError:
    try:
        answer = json.loads(text)
        code = str(answer.get("__type", "")).rpartition("#")[2]
        return AwsError(code or str(status), answer.get("message") or answer.get("Message", ""))
    except ValueError:
        matches = [re.search(f"<{name}>(.*?)<", text) for name in ("Code", "Message")]
        name, words = (match[1] if match else "" for match in matches)
        return AwsError(name or str(status), words or text[:200])

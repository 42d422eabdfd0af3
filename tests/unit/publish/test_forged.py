"""Parameters below /ami-kiln that no channel of ours has: somebody else's, or forged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kiln.base.errors import KilnError
from kiln.publish import channels
from kiln.publish.channels import read_release
from tests.unit.publish.channel import AWS, LINE, Bake, Client, published

pytestmark = pytest.mark.slow


def test_stray_parameter_is_no_channel(bake: Bake, client: Client) -> None:
    bake()
    published()
    for name in ("/ami-kiln/image_id", "/ami-kiln/x/image_id"):
        client("ssm").put_parameter(Name=name, Value="ami-0123456789abcdef0", Type="String")
    assert [held.line for held in channels.all_held(AWS)] == [LINE]


def forged(client: Client, **values: Any) -> str:
    """The channel's release with other values."""
    name = channels.release_parameter(LINE, "nightly")
    value = client("ssm").get_parameter(Name=name)["Parameter"]["Value"]
    return json.dumps({**json.loads(value), **values})


@pytest.mark.parametrize(
    "values",
    [
        {"recipe": "../../../etc"},
        {"run_id": "*"},
        {"moved": {"at": "9" * 30, "by": "me", "action": "rollback"}},
        {"images": {"us-east-1": "*"}},
    ],
    ids=str,
)
def test_forged_release_is_refused(bake: Bake, client: Client, values: dict[str, Any]) -> None:
    bake()
    published()
    with pytest.raises(KilnError, match="the parameter: not a release: `"):
        read_release(forged(client, **values), "the parameter")


def test_forged_release_leads_to_no_file(bake: Bake, client: Client, tmp_path: Path) -> None:
    bake()
    published()
    elsewhere = tmp_path / "elsewhere" / "run"
    elsewhere.mkdir(parents=True)
    (elsewhere / "record.json").write_text("{}")
    client("ssm").put_parameter(
        Name=channels.release_parameter(LINE, "nightly"),
        Value=forged(client, recipe=str(elsewhere.parent), run_id="run"),
        Overwrite=True,
    )
    with pytest.raises(KilnError, match="`recipe`"):
        list(channels.past(AWS, LINE, "nightly"))

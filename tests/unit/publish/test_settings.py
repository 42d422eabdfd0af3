"""`publish:` in amis.yaml: a wrong setting is one message with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from kiln.base.errors import KilnError
from kiln.cli.matrix import check_answer
from kiln.matrix import load

KEY = "arn:aws:kms:us-east-1:123456789012:key/8bed7f79-0156-4762-84cc-9d58e519cbf4"
MATRIX = """\
stacks:
  lts: {driver: 580.178.04, kernel_module: open}
amis:
- {distro: al2023, stack: lts}
defaults:
  publish:
    """


@pytest.fixture
def matrix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KILN_MATRIX", str(tmp_path / "amis.yaml"))
    return tmp_path / "amis.yaml"


@pytest.mark.parametrize(
    ("setting", "place", "message"),
    [
        ("keep: {stabel: 2}", "7:20", "there is no channel 'stabel': did you mean 'stable'?"),
        ("share: {accounts: ['12']}", "7:24", "'12' is not an account id of 12 digits"),
        (f"kms_keys: {{eu-west-1: '{KEY}'}}", "7:27", "is in us-east-1, not in eu-west-1"),
        ("copy_minutes: 20", "7:19", "copy_minutes: Input should be a multiple of 15"),
        ("deregister_after: 5", "7:23", "needs deprecate_after"),
        ("sign: {}", "7:11", "sign: needs kms_key or key_file, and not both"),
        (
            "chanels: [nightly]",
            "7:5",
            "chanels: there is no such key here: did you mean 'channels'?",
        ),
    ],
)
def test_wrong_setting_names_its_place(
    matrix: Path, setting: str, place: str, message: str
) -> None:
    matrix.write_text(f"{MATRIX}{setting}\n")
    with pytest.raises(KilnError) as refused:
        load.load_publishing()
    assert refused.value.exit_status == 2
    (line,) = refused.value.message.splitlines()
    assert line.startswith(f"{matrix}:{place}: defaults.publish.")
    assert message in line


@pytest.mark.parametrize(
    ("defaults", "lacking"),
    [
        ("publish: {regions: [eu-west-1], share: SHARED}", ["region that bakes, eu-west-1"]),
        (
            "aws: {kms_key_id: alias/ami}\n  publish: {regions: [eu-west-1], share: SHARED}",
            ["none in eu-west-1"],
        ),
        (
            "aws: {kms_key_id: alias/ami}\n  publish: {regions: [eu-west-1], share: SHARED, "
            "kms_keys: {eu-west-1: alias/ami}}",
            [],
        ),
    ],
)
def test_check_warns_of_sharing_without_own_keys(
    matrix: Path, defaults: str, lacking: list[str]
) -> None:
    shared = "{accounts: ['111122223333']}"
    base = MATRIX.partition("  publish:")[0] + "  instance_type: {x86_64: g5.xlarge}\n"
    matrix.write_text(base + f"  {defaults}\n".replace("SHARED", shared))
    for strict, level in ((False, "warning"), (True, "error")):
        answer = check_answer({}, strict=strict)
        found = [entry for entry in answer["findings"] if entry["rule"] == "SHARE-KEY"]
        assert [entry["level"] for entry in found] == [level] * len(lacking)
        assert all(text in entry["message"] for text, entry in zip(lacking, found, strict=True))

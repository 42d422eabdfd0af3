"""Tasks about telemetry: telemetry.cost, telemetry.bundle."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from invoke import Context

from kiln.base.errors import KilnError, named_by
from kiln.cli.flags import JSON
from kiln.cli.front import show, task

if TYPE_CHECKING:
    from kiln.telemetry import Telemetry
    from kiln.telemetry.bundle import Row


@task(
    help={
        "instance-type": "EC2 GPU instance type: --instance-type p4d.24xlarge",
        "profile": "compute, graphics or full: --profile compute",
        "instances": "how many instances: --instances 10",
        **JSON,
    }
)
def cost(
    c: Context,
    instance_type: str,
    profile: str = "compute",
    instances: int = 1,
    json: bool = False,
) -> None:
    """CloudWatch series of a profile on an instance type, and their price per month."""
    from kiln import telemetry

    answer = telemetry.monthly_cost(instance_type, _settings(profile), instances=instances)
    show(answer, as_json=json, text=telemetry.cost_text)


@task(
    help={
        "out": "the script to write: --out kiln-telemetry.sh",
        "profile": "compute, graphics, full or none (events only): --profile compute",
        **JSON,
    }
)
def bundle(
    c: Context,
    out: str = "build/kiln-telemetry.sh",
    profile: str = "compute",
    json: bool = False,
) -> None:
    """Write a script that installs Xid events and GPU metrics on a running instance."""
    from kiln.telemetry import bundle as installer

    settings, packages = _settings(profile), _agent_packages()
    with named_by("--out"):
        digest = installer.write_bundle(Path(out), settings, packages)
    show(
        {"file": out, "sha256": digest},
        as_json=json,
        text=lambda _: (
            f"{out}  sha256 {digest}\n"
            "run it as root on the instance; --uninstall removes everything"
        ),
    )


def _settings(profile: str) -> Telemetry:
    """Settings from flags. Raises KilnError (exit status 2) with the nearest right value."""
    from pydantic import ValidationError

    from kiln.telemetry import Telemetry

    try:
        return Telemetry(profile=profile)
    except ValidationError as error:
        message = error.errors()[0]["msg"]
        raise KilnError(message.removeprefix("Value error, ")) from None


def _agent_packages() -> list[Row]:
    """The CloudWatch agent's packages whose checksum is in amis.lock.yaml."""
    from kiln.packer import lock
    from kiln.telemetry.bundle import agent_packages

    files = {entry["url"]: entry.get("sha256") for entry in lock.load_lock()["artifacts"]}
    return agent_packages({url: sha256 for url, sha256 in files.items() if sha256})

"""Tasks that start instances: build, rebuild, verify."""

from __future__ import annotations

from invoke import Context

from kiln.cli.flags import JSON, ROWS, TARGET
from kiln.cli.front import task


@task(
    help={
        **ROWS,
        **TARGET,
        "instance-type": "bake on another instance type: --instance-type g5.xlarge",
        "verify-instance-type": "check on another type: --verify-instance-type p4d.24xlarge",
        "subnet-id": "subnet of the instances: --subnet-id subnet-0123 (default: default VPC)",
        "kms-key-id": "KMS key that encrypts the AMI: --kms-key-id alias/ami",
        "iam-instance-profile": "profile of the instances: --iam-instance-profile kiln-builder",
        "dry-run": "show the plan (HCL, source AMI, instance types, steps) and start nothing",
        "keep": "keep an AMI that is not verified (interrupted run, checks that did not run)",
        **JSON,
    }
)
def build(
    c: Context,
    distro: str | None = None,
    driver: str | None = None,
    flavor: str | None = None,
    arch: str | None = None,
    cuda: str | None = None,
    kernel_module: str | None = None,
    name: str | None = None,
    all: bool = False,  # noqa: A002 - the flag is --all
    target: str = "auto",
    region: str | None = None,
    no_install: bool = False,
    instance_type: str | None = None,
    verify_instance_type: str | None = None,
    subnet_id: str | None = None,
    kms_key_id: str | None = None,
    iam_instance_profile: str | None = None,
    dry_run: bool = False,
    keep: bool = False,
    json: bool = False,
) -> int:
    """Build an AMI, boot it, check it, record it: --distro al2 --driver 510.47.03"""
    from kiln.cli import targets
    from kiln.matrix import load, select
    from kiln.pipeline import build as builds
    from kiln.pipeline.plan import Options

    recipes = select.select(
        load.load_recipes(),
        name=name,
        distro=distro,
        driver=driver,
        flavor=flavor,
        arch=arch,
        cuda=cuda,
        kernel_module=kernel_module,
        every=all,
    )
    options = Options(
        instance_type=instance_type,
        verify_instance_type=verify_instance_type,
        subnet_id=subnet_id,
        kms_key_id=kms_key_id,
        iam_instance_profile=iam_instance_profile,
        keep=keep,
    )
    return builds.run(
        recipes,
        options,
        target=targets.choose(target, region),
        install=not no_install,
        dry_run=dry_run,
        as_json=json,
    )


@task(
    positional=["record"],
    help={
        "record": "a build: its record.json, run id, AMI id, or AMI name (its newest build)",
        **TARGET,
        "region": "AWS region (default: the record's; a parent AMI is in one region only)",
        "instance-type": "bake on another type than the record's: --instance-type g5.xlarge",
        "verify-instance-type": "check on another type: --verify-instance-type p4d.24xlarge",
        "subnet-id": "subnet of the instances: --subnet-id subnet-0123 (default: default VPC)",
        "kms-key-id": "KMS key that encrypts the AMI: --kms-key-id alias/ami",
        "iam-instance-profile": "profile of the instances: --iam-instance-profile kiln-builder",
        "dry-run": "show the plan and start nothing",
        "keep": "keep an AMI that is not verified (interrupted run, checks that did not run)",
        **JSON,
    },
)
def rebuild(
    c: Context,
    record: str,
    target: str = "auto",
    region: str | None = None,
    no_install: bool = False,
    instance_type: str | None = None,
    verify_instance_type: str | None = None,
    subnet_id: str | None = None,
    kms_key_id: str | None = None,
    iam_instance_profile: str | None = None,
    dry_run: bool = False,
    keep: bool = False,
    json: bool = False,
) -> int:
    """Bake again from a record: its recipe, its parent AMI, its package snapshot."""
    from kiln.cli import targets
    from kiln.pipeline import build as builds
    from kiln.pipeline import rebuild as rebuilding
    from kiln.pipeline import record as records
    from kiln.pipeline.plan import Options

    built = records.find(record)
    recipe, rebuilt = rebuilding.inputs(built)
    options = Options(
        instance_type=instance_type or built.instance_type,
        verify_instance_type=verify_instance_type or built.verify_instance_type,
        subnet_id=subnet_id,
        kms_key_id=kms_key_id,
        iam_instance_profile=iam_instance_profile,
        keep=keep,
    )
    return builds.run(
        [recipe],
        options,
        target=targets.choose(built.target if target == "auto" else target, region or built.region),
        install=not no_install,
        dry_run=dry_run,
        as_json=json,
        rebuilt=rebuilt,
    )


@task(
    help={
        "ami": "an AMI that AMI Kiln built: --ami ami-0123456789abcdef0",
        "instance-type": "boot it as this type: --instance-type p4d.24xlarge",
        **TARGET,
        **JSON,
    }
)
def verify(
    c: Context,
    ami: str,
    instance_type: str | None = None,
    target: str = "auto",
    region: str | None = None,
    no_install: bool = False,
    json: bool = False,
) -> int:
    """Boot an existing AMI, run its checks, and tag it with the verdict."""
    from kiln.cli import targets
    from kiln.pipeline import verify as verifies

    return verifies.run(
        ami,
        instance_type,
        target=targets.choose(target, region),
        install=not no_install,
        as_json=json,
    )

"""Tasks that read the matrix: list, check, which."""

from __future__ import annotations

from typing import TYPE_CHECKING

from invoke import Context

from kiln.base.errors import KilnError
from kiln.cli.flags import JSON, RECORDS, account_help, replaces_settings
from kiln.cli.front import show, task

if TYPE_CHECKING:
    pass


@task(name="list", help={**account_help(RECORDS), **JSON})
@replaces_settings(RECORDS)
def list_(c: Context, aws_flags: dict[str, str], json: bool = False) -> None:
    """The matrix as a table, with the result of each AMI's last build."""
    from kiln.cli import fetched_records, tables
    from kiln.matrix import load
    from kiln.pipeline import records

    recipes = load.load_recipes()
    fetched_records.bring_for_rows(aws_flags, [recipe.name for recipe in recipes])
    built = {recipe.name: records.last(recipe.name) for recipe in recipes}
    if json:
        show(tables.rows(recipes, built), as_json=True, text=str)
    else:
        from rich.console import Console

        Console(soft_wrap=True).print(tables.recipes_table(recipes, built), soft_wrap=True)


@task(
    help={
        "distro": "check a combination instead of the matrix: --distro al2",
        "driver": "with --distro: --driver 510.47.03",
        "cuda": "--cuda 11.6.2",
        "nccl": "--nccl 2.12.7",
        "efa": "EFA installer: --efa 1.34.0",
        "kernel-module": "open, proprietary or both: --kernel-module open",
        "instance-type": "instance type that it must run on: --instance-type p5.48xlarge",
        "arch": "x86_64 or arm64: --arch arm64",
        "flavor": "base, eks, ecs or parallelcluster: --flavor eks",
        "kubernetes": "with flavour eks: --flavor eks --kubernetes 1.35",
        "parallelcluster": "with flavour parallelcluster: --parallelcluster 3.16.3",
        "strict": "errors too: what is past its end of life, was never tried, or rests on a fact "
        "that is not confirmed",
        **JSON,
    }
)
def check(
    c: Context,
    distro: str | None = None,
    driver: str | None = None,
    cuda: str | None = None,
    nccl: str | None = None,
    efa: str | None = None,
    kernel_module: str | None = None,
    instance_type: str | None = None,
    arch: str | None = None,
    flavor: str | None = None,
    kubernetes: str | None = None,
    parallelcluster: str | None = None,
    strict: bool = False,
    json: bool = False,
) -> int:
    """Is the matrix (or one combination) valid, and do its parts work together?"""
    from kiln.cli import checks

    combination = {
        "distro": distro,
        "driver": driver,
        "cuda": cuda,
        "nccl": nccl,
        "efa": efa,
        "kernel_module": kernel_module,
        "instance_type": instance_type,
        "arch": arch,
        "flavor": flavor,
        "kubernetes": kubernetes,
        "parallelcluster": parallelcluster,
    }
    answer = checks.check_answer(combination, strict=strict)
    show(answer, as_json=json, text=checks.findings_text)
    return checks.exit_status(answer)


@task(
    help={
        "instance-type": "an EC2 GPU instance type: --instance-type p5.48xlarge",
        "flavor": "only rows of that flavour: --flavor eks",
        "distro": "only rows on that distribution: --distro al2023",
        "arch": "only rows for that processor: --arch arm64",
        **JSON,
    }
)
def which(
    c: Context,
    instance_type: str | None = None,
    flavor: str | None = None,
    distro: str | None = None,
    arch: str | None = None,
    json: bool = False,
) -> int:
    """Which rows serve an instance type or a purpose, best first, and why others do not."""
    from kiln.compat import which as rows
    from kiln.matrix import load

    if not (instance_type or flavor or distro or arch):
        raise KilnError(
            "which needs a question",
            hint="--instance-type p5.48xlarge, or any of --flavor eks --distro al2023 --arch arm64",
        )
    answer = rows.rows_for(
        instance_type, load.load_recipes(), flavor=flavor, distro=distro, arch=arch
    )
    show(answer, as_json=json, text=rows.which_text)
    return 0 if answer["serves"] else 1

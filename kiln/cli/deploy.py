"""Tasks that set up an engine for the nights."""

from __future__ import annotations

from invoke import Context

from kiln.base.errors import KilnError
from kiln.cli.flags import JSON, PLACE
from kiln.cli.front import note, show, task


@task(
    help={
        "repository": "of amis.yaml, needed the first time: --repository https://git.example.com/amis",
        "stack": "the stack's name: --stack ami-kiln-nightly",
        "revision": "branch or commit that is built: --revision main",
        "schedule": "when, as EventBridge Scheduler writes it: --schedule 'cron(0 2 * * ? *)'",
        "timezone": "of the schedule: --timezone Europe/Berlin",
        "rows": "flags that select rows: --rows='--distro al2023'",
        "image": "what builds run in, with Packer 1.7 or newer; without it CodeBuild's own, where "
        "they install Packer 1.6.6, which needs more permissions: --image REGISTRY/kiln:1",
        "email": "who gets the report of a night: --email team@example.com",
        "permissions_boundary": "of the stack's roles, otherwise that of `aws` in amis.yaml: "
        "--permissions-boundary arn:aws:iam::111122223333:policy/teams",
        "delete": "remove the stack; its bucket stays",
        **PLACE,
        **JSON,
    }
)
def codebuild(
    c: Context,
    repository: str | None = None,
    stack: str = "ami-kiln-nightly",
    revision: str | None = None,
    schedule: str | None = None,
    timezone: str | None = None,
    rows: str | None = None,
    image: str | None = None,
    email: str | None = None,
    permissions_boundary: str | None = None,
    delete: bool = False,
    target: str = "auto",
    region: str | None = None,
    json: bool = False,
) -> None:
    """Create or update the stack that runs the nights on CodeBuild, with its events."""
    from kiln.base import vocabulary
    from kiln.cli import targets
    from kiln.cloud import stacks
    from kiln.matrix.load import default_account
    from kiln.publish.codebuild import CODEBUILD_TEMPLATE

    vocabulary.STACK.required(stack, "--stack")
    place = targets.choose_aws(target, region, "deploy.codebuild")
    note(str(place))
    if delete:
        gone = stacks.remove_stack(place, stack, note)
        show(
            {"stack": stack, "deleted": gone},
            as_json=json,
            text=lambda data: f"{stack} is gone" if gone else f"there is no stack {stack}",
        )
        return
    if permissions_boundary:
        vocabulary.POLICY_ARN.required(permissions_boundary, "--permissions-boundary")
    if repository is not None and not repository.startswith("https://"):
        raise KilnError(f"--repository {repository} is not an HTTPS address")
    account = default_account()
    flags = {
        "Repository": repository,
        "Revision": revision,
        "Schedule": schedule,
        "Timezone": timezone,
        "Rows": rows,
        "Email": email,
        "Image": image,
        "OldPacker": "false" if image else None,
        "PermissionsBoundary": permissions_boundary or account.permissions_boundary,
    }
    parameters = {name: value for name, value in flags.items() if value is not None}
    outputs = stacks.deploy_stack(
        place, stack, CODEBUILD_TEMPLATE.read_text(), parameters, note, tags=account.tags
    )
    show(
        {"stack": stack, "outputs": outputs},
        as_json=json,
        text=lambda data: "\n".join(f"{name:8} {value}" for name, value in outputs.items()),
    )

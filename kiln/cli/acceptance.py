"""The task acceptance: AMI Kiln once in an AWS account, step by step."""

from __future__ import annotations

from pathlib import Path

from kiln.base import vocabulary
from kiln.base.errors import KilnError
from kiln.cli.options import Place, positive_number
from kiln.cli.output import FORMAT, log, output, table
from kiln.cli.task import task


@task("Release")
def acceptance(
    name: list[str],
    ami: str | None = None,
    second_region: str | None = None,
    budget: str = "10",
    mig: bool = False,
    dry_run: bool = False,
    *,
    place: Place,
) -> int:
    """Try AMI Kiln once in an AWS account, and record it.

    ./invoke acceptance --target aws --region eu-west-1 --dry-run
    ./invoke acceptance --target aws --region eu-west-1 --budget 5

    name: a row to build, the first is released; repeat it (default: the cheapest): --name ROW
    ami: release copies of this AMI of the first row, and build nothing: --ami ami-0123456789abcdef0
    second_region: region to copy to (default: us-west-2, or us-east-1): --second-region eu-west-1
    budget: stop before a step that would pass this sum in US dollars: --budget 10
    mig: also verify a MIG layout on a p4d.24xlarge
    dry_run: show the steps and their prices, and start nothing
    """
    from kiln.cli import acceptance_steps as steps
    from kiln.cloud.runs import Run, new_id
    from kiln.cloud.target import DEFAULT_REGION, Target
    from kiln.matrix import flags, load
    from kiln.pipeline.evidence import write_evidence
    from kiln.publish.regions import require_regions

    vocabulary.AMI_ID.optional(ami, "--ami")
    limit, recipes = positive_number(budget, "--budget"), load.load_recipes()
    rows = [flags.select(recipes, name=each)[0] for each in name] or [steps.usual_row()]
    target = Target("a dry run", place.region or load.default_region() or DEFAULT_REGION)
    if not dry_run:
        target = place.choose_aws("acceptance").identified()
        log(target)
    other = second_region or ("us-east-1" if target.region == "us-west-2" else "us-west-2")
    if target.region in require_regions([other], "--second-region"):
        raise KilnError(f"--second-region {other} is that of the builds")
    run = Run(new_id(), "acceptance", Path())
    there = Place("aws", target.region)
    asked = steps.Acceptance(target, there, rows, other, run, ami, mig)
    if dry_run:
        usd = {step.id: step.usd(asked) for step in steps.STEPS}
        shown = {step.id: step.what.format(made=asked) for step in steps.STEPS}
        cells = [(each, steps.shown_usd(usd[each]), shown[each]) for each in usd]
        output(usd, table(("STEP", "PRICE", ""), cells), steps.shown_usd(sum(usd.values())))
        return 0
    json, done = FORMAT.json, steps.accept(asked, limit)
    FORMAT.json = json
    cells = [(step.outcome, step.id, step.detail) for step in done.steps]
    output(done.model_dump(), table((), cells), f"wrote {write_evidence(done)}")
    return int(not done.succeeded)

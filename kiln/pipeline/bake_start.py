"""Where a bake starts: on a fresh instance of the parent AMI, from the state before a component, or
on the instance that an earlier bake of the row has left."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from kiln.base.errors import KilnError
from kiln.base.progress import Progress, Stage
from kiln.base.stopping import Stop
from kiln.base.tags import SOURCE_AMI
from kiln.cloud import aws
from kiln.cloud.access import Access
from kiln.cloud.runs import KeptRun
from kiln.packer.part import Part
from kiln.packer.program import Packer
from kiln.pipeline import bake, continued_bake, kept_instance, states
from kiln.pipeline.bake import BakedAmi
from kiln.pipeline.failure import ProvisionerError
from kiln.pipeline.plan import Plan
from kiln.pipeline.record import Continued, Record
from kiln.pipeline.record_draft import Draft
from kiln.pipeline.states import BakeState


@dataclass(frozen=True)
class Start:
    """Where a bake starts; without a state and a kept instance: at its beginning."""

    state: BakeState | None = None
    on: KeptRun | None = None

    def note(self, draft: Draft) -> None:
        """Note in the record what the bake continues with."""
        if self.state:
            draft.record = replace(
                draft.record,
                continued=Continued(self.state.start, self.state.ami_id, same_inputs=True),
            )

    def bake(
        self,
        plan: Plan,
        packer: Packer,
        draft: Draft,
        access: Access,
        stage: Stage,
        stop: Stop,
    ) -> BakedAmi:
        """Bake what is still to be baked. Raises what `bake.bake` raises."""
        if self.on:
            start = str(plan.start)
            on = Continued(start, self.on.instance_id, same_inputs=False, run_id=self.on.run_id)
            draft.record = replace(
                draft.record, continued=on, recipe_digest=None, input_digest=None
            )
            return continued_bake.bake_on(plan, packer, draft, self.on, stage, stop)
        if self.state:
            order = plan.recipe.components
            part = Part(order[order.index(self.state.start) :], again=True)
            return bake.bake(plan, packer, draft, access, stage, stop, part, self.state.ami_id)
        return bake.bake(plan, packer, draft, access, stage, stop)

    def finish(self, plan: Plan, draft: Draft, ami_id: str) -> None:
        """Make the AMI like one that was baked in one go; a kept instance has served."""
        bake.finish_image(plan, ami_id)
        if self.state:
            with aws.explained(f"{ami_id} could not be tagged"):
                aws.ec2(plan.target).create_tags(
                    Resources=[ami_id], Tags=[{"Key": SOURCE_AMI, "Value": plan.source.ami_id}]
                )
        if self.on:
            kept_instance.end_or_say(plan, self.on, draft)

    def keeps(self, plan: Plan, draft: Draft) -> Callable[[ProvisionerError], bool]:
        """Whether all of the run is kept when a provisioner fails: for `cleaned_up`."""

        def keep(error: ProvisionerError) -> bool:
            # A bake that continues on a kept instance has launched nothing itself.
            return (
                plan.options.keep_instance
                and not self.on
                and kept_instance.keep(plan, draft, error)
            )

        return keep


def start_of(plan: Plan, packer: Packer, first: Record, progress: Progress, stop: Stop) -> Start:
    """Where the bake of a plan starts, by its `--from`. `first` is the record of a failed bake.

    Raises KilnError: exit status 2 without anything to start from, 1 if an operation failed.
    """
    name, option = plan.start, plan.options.start
    if name is None:
        return Start()
    if name != option:
        progress.say(f"from {option}: it judges what {name} leaves, so {name} runs before it")
    on = kept_instance.kept_of(plan)
    if on:
        progress.say(f"from {name}: on {on.instance_id}, which run {on.run_id} has left")
        return Start(on=on)
    if plan.target.bills:
        raise KilnError(
            f"--from {option}: in AWS a bake goes on only where another one failed, and no build "
            f"instance of {plan.recipe.name} is kept here",
            hint="./invoke build … --on-error keep keeps the one whose bake fails; with --target "
            "lab, --from needs none",
        )
    return Start(states.state_before(plan, name, packer, first, progress, stop))

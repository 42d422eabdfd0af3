"""Auto Scaling: a group launches from the version of the template that it names."""

from __future__ import annotations

import random

from moto.autoscaling.models import ASG_NAME_TAG, FakeAutoScalingGroup, InstanceState


class LabGroup(FakeAutoScalingGroup):  # type: ignore[misc]
    """An Auto Scaling group."""

    def replace_autoscaling_group_instances(
        self, count_needed: int, propagated_tags: dict[str, str]
    ) -> None:
        """Launch instances; moto does so from the default version of a launch template."""
        if not self.ec2_launch_template:
            super().replace_autoscaling_group_instances(count_needed, propagated_tags)
            return
        propagated_tags |= {ASG_NAME_TAG: self.name, **self.instance_tags}
        reservation = self.autoscaling_backend.ec2_backend.run_instances(
            self.image_id,
            count_needed,
            self.user_data,
            self.security_groups,
            instance_type=self.instance_type,
            tags={"instance": propagated_tags},
            placement=random.choice(self.availability_zones),
            launch_template={
                "LaunchTemplateId": self.ec2_launch_template.id,
                "Version": self.launch_template_version,
            },
            is_instance_type_default=False,
            subnet_id=(self.vpc_zone_identifier or "").split(",")[0] or None,
        )
        for instance in reservation.instances:
            instance.autoscaling_group = self
            self.instance_states.append(
                InstanceState(
                    instance,
                    protected_from_scale_in=self.new_instances_protected_from_scale_in,
                )
            )

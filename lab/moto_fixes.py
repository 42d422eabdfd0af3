"""Everything that the lab replaces in moto, seen in moto 5.2.5.

Some of it connects moto's EC2 and SSM to the lab's machines and disks, the rest corrects what moto
answers otherwise than EC2. moto has no hooks for either: methods of its backends and responses are
replaced.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import moto.ec2.models.amis as moto_amis
import moto.ec2.models.instances as moto_instances
import moto.ec2.responses.amis as moto_amis_responses
import moto.ssm.models as moto_ssm
from moto.core.utils import utcnow

from lab import imaging, instances


def install(machines: instances.Machines) -> None:
    """Connect moto's EC2 and SSM to `machines`. Call it once per process."""
    instances.LabInstance.machines = machines
    moto_instances.Instance = instances.LabInstance
    backend = moto_instances.InstanceBackend
    backend.run_instances = _launching(backend.run_instances)
    moto_amis.Ami.block_device_mappings = property(imaging.block_device_mappings)
    moto_amis.AmiBackend.create_image = imaging.create_image
    moto_amis.AmiBackend.deregister_image = imaging.deregistering(
        moto_amis.AmiBackend.deregister_image
    )
    # moto: no tags, no encryption, 15 GiB on "standard".
    moto_amis_responses.AmisResponse.copy_image = imaging.copy_image
    load_public = moto_amis.AmiBackend._load_amis

    def load_all(backend: Any) -> None:
        load_public(backend)
        imaging.restore(backend)

    moto_amis.AmiBackend._load_amis = load_all
    _serve_parameters(machines)


def _launching(run_instances: Callable[..., Any]) -> Callable[..., Any]:
    def run_and_launch(*arguments: Any, **named: Any) -> Any:
        reservation = run_instances(*arguments, **named)
        for instance in reservation.instances:
            instance.launch()
        return reservation

    return run_and_launch


def _serve_parameters(machines: instances.Machines) -> None:
    """The public SSM parameters of the parent images, in every region."""
    parameters = {
        image.ssm_parameter: image.id for image in machines.public.values() if image.ssm_parameter
    }

    def prepare(self: Any, account_id: str, region_name: str) -> None:
        super(moto_ssm.ParameterDict, self).__init__(list)
        self.account_id, self.region_name = account_id, region_name
        self.latest_amis_loaded = self.latest_ecs_amis_loaded = True
        self.latest_region_defaults_loaded = self.latest_service_defaults_loaded = False
        for name, value in parameters.items():
            super(moto_ssm.ParameterDict, self).__getitem__(name).append(
                moto_ssm.Parameter(
                    account_id=account_id,
                    name=name,
                    value=value,
                    parameter_type="String",
                    description=None,
                    allowed_pattern=None,
                    keyid=None,
                    last_modified_date=utcnow(),
                    version=1,
                    data_type="aws:ec2:image",
                )
            )

    moto_ssm.ParameterDict.__init__ = prepare

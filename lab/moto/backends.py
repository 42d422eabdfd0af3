"""moto with the lab behind it: subclasses of its backends and answers, one module a service.

moto keeps what calls make; the lab's classes connect that to machines and disks, and correct what
moto answers otherwise than AWS. `api` names them where moto looks its own up. Seen in moto
5.2.5.
"""

from __future__ import annotations

import functools

import moto.autoscaling.models as moto_autoscaling
import moto.core.responses as moto_responses
import moto.ec2.models.amis as moto_amis
import moto.ec2.models.fleets as moto_fleets
import moto.ec2.models.instances as moto_instances
import moto.ec2.models.spot_requests as moto_spot
from moto.cloudwatch.models import cloudwatch_backends
from moto.ec2.models import ec2_backends
from moto.iam.models import iam_backends
from moto.kms.models import kms_backends
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from moto.s3.models import s3_backends
from moto.ssm.models import ssm_backends

from lab.api.dispatch import Admin, Api, Callers
from lab.moto import autoscaling, services
from lab.moto.ec2 import responses as ec2
from lab.moto.instances import LabInstance
from lab.moto.machines import Machines
from lab.moto.ssm import models as ssm


def api(machines: Machines, admin: Admin, callers: Callers | None = None) -> Api:
    """The lab's API, with `machines` behind it. Call it once per process."""
    _install(machines)
    return Api(Dispatcher(create_backend_app), machines.faults, admin, callers)


def _install(machines: Machines) -> None:
    """Make moto use the lab's classes."""
    LabInstance.machines = machines
    ec2_backends.backend = ec2.LabEC2
    ssm_backends.backend = ssm.LabSSM
    iam_backends.backend = services.LabIAM
    kms_backends.backend = services.LabKMS
    s3_backends.backend = services.LabS3
    cloudwatch_backends.backend = services.LabCloudWatch
    # What these backends make, they look up by name.
    moto_instances.Instance = LabInstance
    moto_amis.Ami = ec2.LabAmi
    moto_fleets.Fleet = ec2.LabFleet
    moto_spot.SpotInstanceRequest = ec2.LabSpotRequest
    moto_autoscaling.FakeAutoScalingGroup = autoscaling.LabGroup
    # moto inspects the class of answers at each request, which takes half of its time.
    moto_responses.method_names_from_class = functools.cache(moto_responses.method_names_from_class)


class Dispatcher(DomainDispatcherApplication):  # type: ignore[misc]
    """moto's application; moto lists its own folder at each request."""

    @functools.cache  # noqa: B019 - there is one
    def get_backend_for_host(self, host: str | None) -> object:
        """Return the service that a host name is of. Systems Manager has the calls of its agents;
        moto has no message delivery service."""
        return super().get_backend_for_host("ssm" if f"{host}".startswith("ec2messages.") else host)

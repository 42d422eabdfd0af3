"""Facts about GPUs, drivers, toolkits and distributions: `kiln/facts/knowledge/*.yaml`, typed.

Every fact has a `source` that a stranger can open, or `confirmed: false`: a rule that rests on such
a fact only warns. `unsure` names unconfirmed fields of a confirmed entry. A `source` counts for the
keys beside and below it; `x_source` and `x_confirmed` beside a block `x`, such as a map of
versions, count for x. One module per subject; this package re-exports their names.
"""

from kiln.facts.drivers import Branch as Branch
from kiln.facts.drivers import branch as branch
from kiln.facts.drivers import branches as branches
from kiln.facts.drivers import bundles_plugin as bundles_plugin
from kiln.facts.drivers import cuda_release as cuda_release
from kiln.facts.drivers import driver_cuda as driver_cuda
from kiln.facts.drivers import efa_plugin as efa_plugin
from kiln.facts.drivers import nvlsm_versions as nvlsm_versions
from kiln.facts.drivers import supported_branches as supported_branches
from kiln.facts.instance_types import InstanceType as InstanceType
from kiln.facts.instance_types import instance as instance
from kiln.facts.instance_types import instances as instances
from kiln.facts.instance_types import nvswitches as nvswitches
from kiln.facts.packages import archive_packages as archive_packages
from kiln.facts.packages import distro as distro
from kiln.facts.packages import distro_names as distro_names
from kiln.facts.packages import fill as fill
from kiln.facts.packages import first_match as first_match
from kiln.facts.packages import known_sha256 as known_sha256
from kiln.facts.packages import package_snapshots as package_snapshots
from kiln.facts.packages import parent_disk as parent_disk
from kiln.facts.tables import UsedRow as UsedRow
from kiln.facts.tables import confirmed as confirmed
from kiln.facts.tables import full_source as full_source
from kiln.facts.tables import last_day as last_day
from kiln.facts.tables import table as table
from kiln.facts.tables import used_row as used_row

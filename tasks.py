"""The tasks of ./invoke, in the order of `--list`; each is declared in its module."""

import devel.tasks
from kiln.cli import build, gpu, lab, launch, matrix, nightly, release, telemetry
from kiln.cli.task import KilnTask, Tasks

_MODULES = (matrix, build, release, nightly, launch, telemetry, gpu, lab, devel.tasks)

ns = Tasks(
    *(task for module in _MODULES for task in vars(module).values() if isinstance(task, KilnTask))
)

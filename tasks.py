"""The tasks of ./invoke, in the order of `--list`; each is declared in its module."""

import sys
from types import ModuleType

import devel.tasks
from kiln.cli import acceptance, build, gpu, launch, matrix, nightly, release, targets, telemetry
from kiln.cli.task import KilnTask, Tasks

ns = Tasks()


def _add(*modules: ModuleType) -> None:
    for module in modules:
        for each in vars(module).values():
            if isinstance(each, KilnTask):
                ns.add_task(each)


_add(matrix, build, release, nightly, acceptance, launch, telemetry, gpu, devel.tasks)
_add(*targets.task_modules(sys.argv[1:], ns.tasks))

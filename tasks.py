"""The names of AMI Kiln's tasks. A task and its flags are declared in its group's module."""

from invoke import Collection

import devel.tasks
from kiln.cli import (
    build,
    catalogue,
    consume,
    deploy,
    fleet,
    image,
    lab,
    matrix,
    mig,
    nightly,
    packer,
    preflight,
    provenance,
    publish,
    retire,
    stack,
    telemetry,
    xid,
)

ns = Collection(
    matrix.list_,
    matrix.check,
    matrix.which,
    packer.render,
    packer.validate,
    packer.lock,
    preflight.preflight,
    build.build,
    build.rebuild,
    build.verify,
    publish.publish,
    publish.promote,
    publish.rollback,
    publish.channels_,
    publish.history,
    retire.retire,
    retire.sweep,
    consume.consume,
    catalogue.catalogue_,
    image.diff,
    image.sbom,
    devel.tasks.test,
    devel.tasks.lint,
    devel.tasks.bench,
    devel.tasks.generate,
    devel.tasks.pictures,
)
_GROUPS = {
    "deploy": deploy,
    "fleet": fleet,
    "lab": lab,
    "nightly": nightly,
    "provenance": provenance,
    "xid": xid,
    "mig": mig,
    "telemetry": telemetry,
    "stack": stack,
}
for name, module in _GROUPS.items():
    ns.add_collection(Collection.from_module(module, name=name))

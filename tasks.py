"""AMI Kiln's tasks. Each parses its flags, calls the pipeline and prints; ./invoke --list."""

from invoke import Collection

from kiln.cli.front import show, task

_ROW = {
    "distro": "distribution of the matrix, such as --distro al2",
    "driver": "NVIDIA driver, whole or its beginning: --driver 510.47.03, --driver 580",
    "flavor": "base (meant when several rows fit), eks, ecs or parallelcluster: --flavor eks",
    "arch": "x86_64 (meant when several rows fit) or arm64: --arch arm64",
    "cuda": "CUDA, whole or its beginning: --cuda 11.6",
    "kernel-module": "open, proprietary or both: --kernel-module both",
    "name": "the AMI's name in the matrix, as ./invoke list shows it",
    "all": "every row that fits the other flags",
}
_JSON = {"json": "print JSON for a program instead of text"}
_TARGET = {
    "target": "auto (AWS when boto3 finds credentials, else the lab), aws or lab: --target lab",
    "region": "AWS region: --region eu-central-1 (default: the profile's, else us-east-1)",
    "no-install": "do not install missing system packages: print the line to run instead",
}


@task(name="list", help=_JSON)
def list_(c, json=False):
    """The matrix as a table, with how each AMI's last build ended."""
    from kiln.cli import tables as table
    from kiln.matrix import load
    from kiln.pipeline import record

    recipes = load.load_recipes()
    records = {recipe.name: record.last(recipe.name) for recipe in recipes}
    if json:
        show(table.rows(recipes, records), as_json=True, text=str)
    else:
        from rich.console import Console

        Console(soft_wrap=True).print(table.table(recipes, records), soft_wrap=True)


@task(
    help={
        "distro": "check a combination instead of the matrix: --distro al2",
        "driver": "with --distro: --driver 510.47.03",
        "cuda": "--cuda 11.6.2",
        "nccl": "--nccl 2.12.7",
        "efa": "EFA installer: --efa 1.34.0",
        "kernel-module": "open, proprietary or both: --kernel-module open",
        "instance-type": "must it serve this type? --instance-type p5.48xlarge",
        "arch": "x86_64 or arm64: --arch arm64",
        "flavor": "base, eks, ecs or parallelcluster: --flavor eks",
        "kubernetes": "of flavour eks: --flavor eks --kubernetes 1.35",
        "parallelcluster": "of flavour parallelcluster: --parallelcluster 3.16.3",
        "strict": "a driver branch past its end of life is an error too",
        **_JSON,
    }
)
def check(
    c,
    distro=None,
    driver=None,
    cuda=None,
    nccl=None,
    efa=None,
    kernel_module=None,
    instance_type=None,
    arch=None,
    flavor=None,
    kubernetes=None,
    parallelcluster=None,
    strict=False,
    json=False,
):
    """Is the matrix (or a combination) valid, and can it work together?"""
    from kiln.cli import checks

    given = {
        "distro": distro,
        "driver": driver,
        "cuda": cuda,
        "nccl": nccl,
        "efa": efa,
        "kernel_module": kernel_module,
        "instance_type": instance_type,
        "arch": arch,
        "flavor": flavor,
        "kubernetes": kubernetes,
        "parallelcluster": parallelcluster,
    }
    answer = checks.check(given, strict=strict)
    show(answer, as_json=json, text=checks.as_text)
    return checks.exit_code(answer)


@task(help={"instance-type": "an EC2 GPU instance type: --instance-type p5.48xlarge", **_JSON})
def which(c, instance_type, json=False):
    """Which rows of the matrix serve an instance type, best first, and why others do not."""
    from kiln.compat import which as rows
    from kiln.matrix import load

    answer = rows.which(instance_type, load.load_recipes())
    show(answer, as_json=json, text=rows.which_text)
    return 0 if answer["serves"] else 1


@task(help={"check": "write nothing; fail when what is committed is stale"})
def render(c, check=False):
    """Write packer/<ami-name>/ for each row of the matrix."""
    from kiln.cli import checks

    return checks.render(check_only=check)


@task(help={"no-install": _TARGET["no-install"], **_JSON})
def validate(c, no_install=False, json=False):
    """Render, policy-check, `packer fmt -check` and `packer validate`, all rows in parallel."""
    from kiln.cli import checks

    return checks.validate(install=not no_install, as_json=json)


@task(
    help={
        **_ROW,
        **_TARGET,
        "instance-type": "bake on another instance type: --instance-type g5.xlarge",
        "verify-instance-type": "check on another type: --verify-instance-type p4d.24xlarge",
        "subnet-id": "subnet for the instances: --subnet-id subnet-0123 (default VPC otherwise)",
        "kms-key-id": "KMS key that encrypts the AMI: --kms-key-id alias/ami",
        "iam-instance-profile": "of the instances: --iam-instance-profile kiln-builder",
        "dry-run": "show the plan (HCL, source AMI, instance types, steps) and start nothing",
        "keep": "keep an AMI that was not verified (interrupted run, checks that did not run)",
        **_JSON,
    }
)
def build(
    c,
    distro=None,
    driver=None,
    flavor=None,
    arch=None,
    cuda=None,
    kernel_module=None,
    name=None,
    all=False,
    target="auto",
    region=None,
    no_install=False,
    instance_type=None,
    verify_instance_type=None,
    subnet_id=None,
    kms_key_id=None,
    iam_instance_profile=None,
    dry_run=False,
    keep=False,
    json=False,
):
    """Build an AMI, boot it, check it, record it: --distro al2 --driver 510.47.03"""
    from kiln.cli import targets
    from kiln.matrix import load, select
    from kiln.pipeline import build as builds
    from kiln.pipeline.plan import Options

    recipes = select.select(
        load.load_recipes(),
        name=name,
        distro=distro,
        driver=driver,
        flavor=flavor,
        arch=arch,
        cuda=cuda,
        kernel_module=kernel_module,
        every=all,
    )
    options = Options(
        instance_type=instance_type,
        verify_instance_type=verify_instance_type,
        subnet_id=subnet_id,
        kms_key_id=kms_key_id,
        iam_instance_profile=iam_instance_profile,
        keep=keep,
    )
    return builds.run(
        recipes,
        options,
        target=targets.choose(target, region),
        install=not no_install,
        dry_run=dry_run,
        as_json=json,
    )


@task(
    help={
        "ami": "an AMI that AMI Kiln built: --ami ami-0123456789abcdef0",
        "instance-type": "boot it as this type: --instance-type p4d.24xlarge",
        **_TARGET,
        **_JSON,
    }
)
def verify(c, ami, instance_type=None, target="auto", region=None, no_install=False, json=False):
    """Boot an existing AMI, run its checks, and tag it with the verdict."""
    from kiln.cli import targets
    from kiln.pipeline import verify as verifies

    return verifies.run(
        ami,
        instance_type,
        target=targets.choose(target, region),
        install=not no_install,
        as_json=json,
    )


@task(help={"update": "write amis.lock.yaml", **_JSON})
def lock(c, update=False, json=False):
    """What a bake downloads, against amis.lock.yaml: shows the difference, --update writes it."""
    from kiln.cli import checks

    return checks.lock(update=update, as_json=json)


@task(
    name="diff",
    positional=["a", "b"],
    help={"a": "AMI name or record", "b": "the newer one", **_JSON},
)
def diff_(c, a, b, json=False):
    """What differs between two builds: packages, kernel, driver, CUDA; the grave first."""
    from kiln.image import diff

    return show(diff.of_names(a, b), as_json=json, text=diff.as_text)


@task(positional=["ami"], help={"ami": "AMI name, AMI id, record.json or version-info.json"})
def sbom(c, ami):
    """The CycloneDX SBOM of a built AMI, as JSON on standard output."""
    from kiln.image import sbom as bom

    print(bom.of_name(ami))


@task(help={"k": "only tests whose name has this: -k matrix", "no-lab": "leave out tests/lab"})
def test(c, k=None, no_lab=False):
    """Everything: linters, unit tests, and the lab's tests on real guests."""
    from devel import testing

    return testing.test(only=k, lab=not no_lab)


@task(name="generate", help={"check": "write nothing; fail when what is committed is stale"})
def generate_(c, check=False):
    """Write everything generated that is committed: schema, policy, tables, catalogues, packer/."""
    from devel import generate

    return generate.generate(check_only=check)


@task(help={"no-install": _TARGET["no-install"]})
def lint(c, no_install=False):
    """ruff, mypy --strict, shellcheck, the README's links, stale generated files."""
    from devel import testing

    return testing.lint(install=not no_install)


@task(
    positional=["what"],
    help={"what": "pipeline (default), xid or mig: bench mig", **_JSON},
)
def bench(c, what="pipeline", json=False):
    """Speed, as ratios taken in one run: ./invoke bench, ./invoke bench xid"""
    from devel import bench as benches

    return benches.run(what, as_json=json)


@task(help={"no-install": _TARGET["no-install"], **_JSON})
def lab_up(c, no_install=False, json=False):
    """Start the lab and print the endpoint that any AWS client can use."""
    from lab import commands

    return commands.up(install=not no_install, as_json=json)


@task()
def lab_down(c):
    """Stop the lab: guests, mounts, bridge and NAT go, AMIs stay."""
    from lab import commands

    return commands.down()


@task(help=_JSON)
def lab_status(c, json=False):
    """The lab's instances and AMIs."""
    from lab import commands

    return commands.status(as_json=json)


@task(positional=["instance"], help={"instance": "its id, i-…; the only running one by default"})
def lab_shell(c, instance=""):
    """A root shell in a guest."""
    from lab import commands

    return commands.shell(instance)


@task(positional=["instance"], help={"instance": "its id, i-…; the lab's own log by default"})
def lab_logs(c, instance=""):
    """The lab's log, or a guest's console."""
    from lab import commands

    return commands.logs(instance)


@task(help={"bases": "also delete the root filesystems and packages that labs share"})
def lab_clean(c, bases=False):
    """`lab.down`, and delete the lab's AMIs, disks and logs."""
    from lab import commands

    return commands.clean(bases=bases)


@task(
    help={
        "distro": "the distribution it is: --distro al2023",
        "rootfs": "tar archive or folder: --rootfs al2023.tar.xz",
        "mirror": "package mirror to install from: --mirror https://mirror.example/al2023",
    }
)
def lab_import(c, distro, rootfs=None, mirror=None):
    """Put a real root filesystem in the place of a stand-in base."""
    from lab import commands

    return commands.import_(distro, rootfs, mirror)


@task(positional=["code"], help={"code": "79, xid79 or sxid12028", **_JSON})
def xid_explain(c, code, json=False):
    """What an Xid or SXid means, how grave it is, and what to do: ./invoke xid.explain 79"""
    from kiln.cli import offline
    from kiln.xid import explain

    return show(explain.explain(code), as_json=json, text=offline.explained)


@task(positional=["file"], help={"file": "a kernel log, or - for standard input", **_JSON})
def xid_parse(c, file, json=False):
    """The GPU events in a kernel log of any form: dmesg | ./invoke xid.parse - --json"""
    from kiln.cli import offline

    return offline.parse(file, as_json=json)


_GPU = {
    "instance-type": "--instance-type p4d.24xlarge",
    "gpu": "instead of an instance type: --gpu H100-80GB",
}


@task(help={"instance-type": _GPU["instance-type"], **_JSON})
def mig_profiles(c, instance_type, json=False):
    """What an instance type's GPUs can be cut into: slices per GPU and instance, memory, SMs."""
    from kiln import mig
    from kiln.mig.profiles import profiles_text

    return show(mig.profiles_for(instance_type), as_json=json, text=profiles_text)


@task(help={**_GPU, "devices": "profiles and counts: --devices 2g.20gb=2,4g.40gb=1", **_JSON})
def mig_check(c, devices, gpu=None, instance_type=None, json=False):
    """Does this mix of profiles fit on one GPU? If not, why, and what is nearest."""
    from kiln import mig
    from kiln.cli import offline

    answer = mig.check(gpu, instance_type, devices=devices)
    show(answer, as_json=json, text=offline.mig_verdict)
    return 0 if answer["valid"] else 1


@task(
    help={
        "instance-type": _GPU["instance-type"],
        "want": 'profiles and counts over all GPUs: --want "1g.5gb=40,3g.20gb=4"',
        "svg": "also write the picture to a file: --svg plan.svg",
        **_JSON,
    }
)
def mig_plan(c, instance_type, want, svg=None, json=False):
    """Lay a wish out over the GPUs (fewest GPUs, then fewest profiles), drawn."""
    from kiln import mig
    from kiln.cli import offline

    answer = mig.plan(instance_type, want)
    show(answer, as_json=json, text=offline.mig_plan)
    offline.write_svg(answer, svg)
    return 0 if answer["fits"] else 1


@task(
    help={
        **_GPU,
        "label": "a label of mig-config.yaml: --label all-balanced",
        "strategy": "single or mixed: --strategy mixed",
        "owner": "who cuts the GPUs: ami (gpu-mig at boot), or mig-manager: --owner operator",
        **_JSON,
    }
)
def mig_k8s(c, label, strategy="mixed", gpu=None, instance_type=None, owner="ami", json=False):
    """Helm values, node labels and resource names for a MIG layout in Kubernetes."""
    from kiln import mig
    from kiln.mig.k8s import k8s_text

    answer = mig.k8s(label, strategy, gpu, instance_type, owner=owner)
    return show(answer, as_json=json, text=k8s_text)


@task(
    help={
        "instance-type": _GPU["instance-type"],
        "profile": "compute, graphics or full: --profile compute",
        "interval": "seconds between two measurements: --interval 60",
        "instances": "how many of them: --instances 10",
        **_JSON,
    }
)
def telemetry_cost(c, instance_type, profile="compute", interval=60, instances=1, json=False):
    """CloudWatch series and dollars a month of a profile on an instance type."""
    from kiln import telemetry
    from kiln.cli import offline

    settings = offline.telemetry_settings(profile, interval)
    answer = telemetry.cost(instance_type, settings, instances=instances)
    return show(answer, as_json=json, text=telemetry.cost_text)


@task(
    help={
        "out": "the script to write: --out install-telemetry.sh",
        "profile": "compute, graphics, full or none (events alone): --profile compute",
    }
)
def telemetry_bundle(c, out="build/install-telemetry.sh", profile="compute"):
    """One script that brings Xid events and GPU metrics to a running instance."""
    from kiln.cli import offline

    return offline.bundle(out, profile)


ns = Collection(
    list_,
    check,
    which,
    render,
    validate,
    build,
    verify,
    lock,
    diff_,
    sbom,
    test,
    lint,
    bench,
    generate_,
)
for _name, _tasks in {
    "lab": {
        "up": lab_up,
        "down": lab_down,
        "status": lab_status,
        "shell": lab_shell,
        "logs": lab_logs,
        "clean": lab_clean,
        "import": lab_import,
    },
    "xid": {"explain": xid_explain, "parse": xid_parse},
    "mig": {"profiles": mig_profiles, "check": mig_check, "plan": mig_plan, "k8s": mig_k8s},
    "telemetry": {"cost": telemetry_cost, "bundle": telemetry_bundle},
}.items():
    _group = Collection(_name)
    for _task_name, _task in _tasks.items():
        _group.add_task(_task, name=_task_name)
    ns.add_collection(_group)

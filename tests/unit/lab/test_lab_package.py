"""The lab is a package of its own: kiln finds it by its entry points, and AWS needs none of it."""

from __future__ import annotations

import configparser
import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from devel import lab_api
from kiln.base.paths import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

WATCHED = """
import json, sys
sys.argv = ["./invoke", *{words}]
import tasks
from kiln.cli import main
status = main.run(sys.argv, tasks.ns)
named = [name for name in sys.modules if name.split(".")[0] in ("lab", "flask", "moto")]
print(json.dumps([status, sorted(named)]))
"""


def test_checkout_has_the_entry_points_of_the_package() -> None:
    project = tomllib.loads((ROOT / "lab/pyproject.toml").read_text())["project"]
    found = configparser.ConfigParser()
    found.read(ROOT / "ami_kiln_lab.dist-info/entry_points.txt")
    assert {name: dict(found[name]) for name in found.sections()} == project["entry-points"]
    metadata = (ROOT / "ami_kiln_lab.dist-info/METADATA").read_text().splitlines()
    assert {f"Name: {project['name']}", f"Version: {project['version']}"} <= set(metadata)


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with lab_api.serving(tmp_path_factory.mktemp("lab")) as url:
        yield url


@pytest.mark.parametrize(("target", "imports"), [("aws", False), ("lab", True)])
def test_build_in_aws_imports_no_lab(target: str, imports: bool, endpoint: str) -> None:
    words = ["build", "--distro", "al2", "--driver", "510.47.03", "--dry-run", "--target", target]
    keys = {"AWS_ACCESS_KEY_ID": "AKIAEXAMPLE", "AWS_SECRET_ACCESS_KEY": "example"}
    # It stands for AWS: AWS_ENDPOINT_URL alone could name the lab.
    services = {f"AWS_ENDPOINT_URL_{name}": endpoint for name in ("EC2", "SSM", "STS", "S3")}
    done = subprocess.run(
        [sys.executable, "-c", WATCHED.format(words=words)],
        cwd=ROOT,
        env={**os.environ, **keys, **services},
        capture_output=True,
        text=True,
        check=True,
    )
    status, named = json.loads(done.stdout.splitlines()[-1])
    assert status == 0, done.stderr
    assert bool(named) == imports, named

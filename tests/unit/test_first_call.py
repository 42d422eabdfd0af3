"""The first ./invoke in a checkout: .venv is made from hash-pinned files, by uv or else by pip.

No test here reaches a package index: wheels lie in a folder, and uv is a stand-in of a few lines
that unpacks them and notes how it was called.
"""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import stat
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from setup import uv_settings

ROOT = Path(__file__).resolve().parents[2]

# Does what setup/venv.sh asks of uv, or fails with the words of KILN_TEST_UV_SAYS.
STAND_IN_UV = """#!/bin/bash
echo "$*" >> "$KILN_TEST_UV_CALLS"
env | grep ^UV_ >> "$KILN_TEST_UV_CALLS"
if [[ -n ${KILN_TEST_UV_SAYS-} ]]; then
    echo "$KILN_TEST_UV_SAYS" >&2
    exit 1
fi
if [[ $1 == venv ]]; then
    exec PYTHON -m venv --without-pip "${@: -1}"
fi
while [[ $1 != --python ]]; do shift; done
for wheel in "$PIP_FIND_LINKS"/*.whl; do
    PYTHON -m zipfile -e "$wheel" "${2%/bin/python}"/lib/python3*/site-packages
done
"""

Call = Callable[..., "subprocess.CompletedProcess[str]"]


def wheel(folder: Path, name: str, version: str, files: dict[str, str]) -> str:
    """Write a wheel; the line of a lock that pins it."""
    about = f"{name}-{version}.dist-info"
    contents = {
        **files,
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in contents.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=")
            record += f"{file},sha256={digest.decode()},{len(text)}\n"
            entry = zipfile.ZipInfo(file)
            entry.external_attr = (stat.S_IFREG | 0o755) << 16
            archive.writestr(entry, text)
        archive.writestr(f"{about}/RECORD", f"{record}{about}/RECORD,,\n")
    return f"{name}=={version} --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n"


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    folder = tmp_path / "wheels"
    folder.mkdir()
    return folder


@pytest.fixture
def checkout(tmp_path: Path, wheels: Path) -> Path:
    """A checkout whose locks name two wheels: uv's stand-in, and a project that answers a call."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    shutil.copy(ROOT / "invoke", folder)
    shutil.copytree(ROOT / "setup", folder / "setup")
    entry = next(
        line.split("-m ")[1].split()[0]
        for line in (ROOT / "invoke").read_text().splitlines()
        if line.startswith("exec ")
    )
    package, module = entry.rsplit(".", 1)
    parents = {
        "/".join(package.split(".")[: depth + 1]) + "/__init__.py": ""
        for depth in range(package.count(".") + 1)
    }
    answer = {f"{package.replace('.', '/')}/{module}.py": "print('it runs')\n"}
    lock = wheel(wheels, "project", "1", {**parents, **answer})
    (folder / "requirements.lock").write_text(lock)
    script = {"uv-1.data/scripts/uv": STAND_IN_UV.replace("PYTHON", sys.executable)}
    (folder / "setup/uv.lock.txt").write_text(wheel(wheels, "uv", "1", script))
    return folder


@pytest.fixture
def uv_calls(tmp_path: Path) -> Path:
    """Where uv's stand-in writes how it was called."""
    return tmp_path / "uv-calls"


@pytest.fixture
def invoke(checkout: Path, wheels: Path, uv_calls: Path, tmp_path: Path) -> Call:
    """Run the checkout's ./invoke as a user with that folder of wheels as the package index."""

    def call(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        own = ("PIP_", "UV_", "VIRTUAL_ENV", "PYTHON")
        clean = {name: text for name, text in os.environ.items() if not name.startswith(own)}
        return subprocess.run(
            [str(checkout / "invoke"), *arguments],
            env={
                **clean,
                "HOME": str(tmp_path),
                "PATH": f"{Path(sys.base_prefix, 'bin')}:{os.environ['PATH']}",
                "PIP_NO_INDEX": "1",
                "PIP_FIND_LINKS": str(wheels),
                "PIP_CONFIG_FILE": os.devnull,
                "KILN_TEST_UV_CALLS": str(uv_calls),
                **environment,
            },
            capture_output=True,
            text=True,
            check=False,
        )

    return call


def test_uv_makes_the_venv_and_the_call_goes_on(invoke: Call, uv_calls: Path) -> None:
    done = invoke("list")
    assert (done.returncode, done.stdout) == (0, "it runs\n"), done.stderr
    assert done.stderr.startswith("ami-kiln: making .venv from requirements.lock with Python 3")
    assert done.stderr.count("\n") == 1
    assert "pip install" in uv_calls.read_text()


def test_an_unchanged_lock_makes_nothing_anew(invoke: Call, checkout: Path, uv_calls: Path) -> None:
    invoke("list")
    uv_calls.unlink()
    made = (checkout / ".venv").stat().st_ctime_ns
    done = invoke("list")
    assert (done.stdout, done.stderr) == ("it runs\n", "")
    assert not uv_calls.exists()
    assert (checkout / ".venv").stat().st_ctime_ns == made


def test_a_changed_lock_updates_the_venv_that_is_there(
    invoke: Call, checkout: Path, wheels: Path, uv_calls: Path
) -> None:
    invoke("list")
    python = (checkout / ".venv/bin/python").lstat().st_ino
    uv_calls.unlink()
    with (checkout / "requirements.lock").open("a") as lock:
        lock.write(wheel(wheels, "addition", "1", {"addition.py": ""}))
    assert invoke("list").stdout == "it runs\n"
    assert list((checkout / ".venv").glob("lib/python3*/site-packages/addition.py"))
    assert (checkout / ".venv/bin/python").lstat().st_ino == python
    assert "venv --quiet" not in uv_calls.read_text()


def test_where_the_index_has_no_uv_pip_makes_the_venv(
    invoke: Call, wheels: Path, uv_calls: Path
) -> None:
    (wheels / "uv-1-py3-none-any.whl").unlink()
    done = invoke("list")
    assert (done.returncode, done.stdout) == (0, "it runs\n"), done.stderr
    assert "uv cannot be used here; pip makes .venv" in done.stderr
    assert not uv_calls.exists()


def test_where_uv_fails_pip_makes_the_venv(invoke: Call) -> None:
    done = invoke("list", KILN_TEST_UV_SAYS="error: no such cipher")
    assert (done.returncode, done.stdout) == (0, "it runs\n"), done.stderr
    assert "uv cannot be used here; pip makes .venv" in done.stderr


def test_a_uv_that_is_not_the_pinned_one_is_refused(
    invoke: Call, checkout: Path, wheels: Path, uv_calls: Path
) -> None:
    wheel(wheels, "uv", "1", {"uv-1.data/scripts/uv": "#!/bin/sh\necho other\n"})
    done = invoke("list")
    assert done.returncode == 1
    assert "a package does not match its hash in setup/uv.lock.txt" in done.stderr
    assert done.stderr.count("ami-kiln: ") == 2
    assert not uv_calls.exists()
    assert not (checkout / ".venv").exists()


def test_a_hash_that_uv_refuses_is_not_asked_of_pip(invoke: Call, checkout: Path) -> None:
    invoke("list")
    (checkout / "requirements.lock").write_text("another==1\n")
    done = invoke("list", KILN_TEST_UV_SAYS="error: Hash mismatch for `another==1`")
    assert done.returncode == 1
    assert done.stdout == ""
    assert "a package does not match its hash in requirements.lock" in done.stderr
    assert "pip makes .venv" not in done.stderr


def test_a_hash_that_pip_refuses_is_reported_the_same(
    invoke: Call, checkout: Path, wheels: Path
) -> None:
    (wheels / "uv-1-py3-none-any.whl").unlink()
    wheel(wheels, "project", "1", {"changed.py": ""})
    done = invoke("list")
    assert done.returncode == 1
    assert "a package does not match its hash in requirements.lock" in done.stderr
    # What failed is made again by the next call.
    assert not (checkout / ".venv/.made-from").exists()


def test_an_index_without_the_packages_is_one_message(invoke: Call, wheels: Path) -> None:
    for file in wheels.iterdir():
        file.unlink()
    done = invoke("list")
    assert done.returncode == 1
    assert "ami-kiln: pip could not install requirements.lock" in done.stderr
    assert done.stdout == ""


def test_no_scratch_folder_stays_behind(invoke: Call, wheels: Path, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    assert invoke("list", TMPDIR=str(scratch)).returncode == 0
    (wheels / "uv-1-py3-none-any.whl").write_text("not a wheel")
    shutil.rmtree(tmp_path / "checkout/.venv")
    assert invoke("list", TMPDIR=str(scratch)).returncode == 1
    assert list(scratch.iterdir()) == []


def test_uv_uses_the_index_of_pips_configuration(invoke: Call, uv_calls: Path) -> None:
    invoke("list", PIP_INDEX_URL="https://index.example/simple", PIP_TIMEOUT="77")
    calls = uv_calls.read_text()
    assert "UV_DEFAULT_INDEX=https://index.example/simple" in calls
    assert "UV_HTTP_TIMEOUT=77" in calls
    assert "--no-index" in calls


def test_pips_environment_overrides_its_files() -> None:
    listing = (
        "global.index-url='https://global.example/simple'\n"
        ":env:.index-url='https://env.example/simple'\n"
        "install.index-url='https://install.example/simple'\n"
    )
    assert uv_settings.pip_options(listing)["index-url"] == "https://env.example/simple"


def test_a_users_own_setting_of_uv_is_kept() -> None:
    environment = {"UV_DEFAULT_INDEX": "https://mine.example/simple", "SSL_CERT_FILE": "mine.pem"}
    options = {"index-url": "https://pips.example/simple", "cert": "pips.pem"}
    assert uv_settings.uv_environment(options, environment) == {}


def test_all_of_pips_indexes_are_searched() -> None:
    added = uv_settings.uv_environment(
        {"extra-index-url": "https://a.example/simple\nhttps://b.example/simple"},
        {"SSL_CERT_FILE": "x"},
    )
    assert added == {
        "UV_INDEX": "https://a.example/simple https://b.example/simple",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
    }


def test_a_folder_of_wheels_that_is_not_there_is_left_out(tmp_path: Path) -> None:
    links = f"{tmp_path} {tmp_path}/missing https://links.example/"
    added = uv_settings.uv_environment({"find-links": links}, {"SSL_CERT_FILE": "x"})
    assert added == {"UV_FIND_LINKS": f"{tmp_path},https://links.example/"}


def test_without_pip_and_venv_no_install_says_what_to_run(invoke: Call, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "python3").write_text(
        f'#!/bin/sh\n[ "$1" = -m ] && exit 1\nexec {sys.executable} "$@"\n'
    )
    (bare / "apt-get").write_text("#!/bin/sh\nexit 99\n")
    for program in bare.iterdir():
        program.chmod(0o755)
    done = invoke("list", "--no-install", PATH=f"{bare}:{os.environ['PATH']}")
    assert done.returncode == 1
    assert "python3-venv is missing, and --no-install was given" in done.stderr
    assert "run: sudo apt-get update && sudo apt-get install -y python3-venv" in done.stderr


def test_two_first_calls_at_once_make_one_venv(
    invoke: Call, checkout: Path, uv_calls: Path
) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(2) as both:
        calls = [both.submit(invoke, "list") for _ in range(2)]
    assert [call.result().stdout for call in calls] == ["it runs\n"] * 2
    assert uv_calls.read_text().count("pip install") == 1

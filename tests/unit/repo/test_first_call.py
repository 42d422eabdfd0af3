"""The first ./invoke in a checkout: .venv is made from hash-pinned files, by uv or else by pip.

No test here reaches a package index: wheels lie in a folder, and uv is a stand-in of a few lines
that unpacks them and notes how it was called.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from kiln.base.paths import ROOT
from setup import uv_settings

pytestmark = pytest.mark.slow
BASE_PYTHON = Path(sys.base_prefix, "bin/python3")

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

# Makes a venv as `python -m venv` does, in a tenth of the time: pip is linked, not unpacked.
QUICK_VENV = """#!/bin/sh
[ "$1 $2 $#" = '-m venv 3' ] || exec PYTHON "$@"
PYTHON -m venv --without-pip "$3" || exit
for packages in "$3"/lib/python3*/site-packages; do ln -s PIP "$packages/pip"; done
touch "$3/bin/pip"
"""


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
        # Without the time of day: the same files are the same wheel.
        archive.writestr(zipfile.ZipInfo(f"{about}/RECORD"), f"{record}{about}/RECORD,,\n")
    return f"{name}=={version} --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n"


class Checkout:
    """A checkout whose locks name two wheels: uv's stand-in, and a project that answers a call."""

    def __init__(self, home: Path) -> None:
        self.home, self.root, self.wheels = home, home / "checkout", home / "wheels"
        self.venv, self.uv_calls = self.root / ".venv", home / "uv-calls"
        self.wheels.mkdir()
        shutil.copytree(ROOT / "setup", self.root / "setup")
        shutil.copy(ROOT / "invoke", self.root)
        start = (ROOT / "setup" / "start.py").read_text()
        (entry,) = re.findall(r"^from (kiln\.[\w.]+)", start, re.MULTILINE)
        *packages, module = entry.split(".")
        files = {"/".join([*packages[: n + 1], "__init__.py"]): "" for n in range(len(packages))}
        files["/".join([*packages, f"{module}.py"])] = "def main(tasks):\n    print('it runs')\n"
        lock = wheel(self.wheels, "project", "1", {**files, "tasks.py": "ns = None\n"})
        (self.root / "requirements.lock").write_text(lock)
        uv = STAND_IN_UV.replace("PYTHON", shlex.quote(sys.executable))
        pinned = wheel(self.wheels, "uv", "1", {"uv-1.data/scripts/uv": uv})
        (self.root / "setup/uv.lock.txt").write_text(pinned)

    def invoke(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run ./invoke as a user with the folder of wheels as the package index."""
        own = ("PIP_", "UV_", "VIRTUAL_ENV", "PYTHON")
        clean = {name: text for name, text in os.environ.items() if not name.startswith(own)}
        return subprocess.run(
            [str(self.root / "invoke"), *arguments],
            env={
                **clean,
                "HOME": str(self.home),
                "PATH": f"{BASE_PYTHON.parent}:{os.environ['PATH']}",
                "KILN_PYTHON": "python3",
                "PIP_NO_INDEX": "1",
                "PIP_FIND_LINKS": str(self.wheels),
                "PIP_CONFIG_FILE": os.devnull,
                "KILN_TEST_UV_CALLS": str(self.uv_calls),
                **environment,
            },
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A checkout after its first call, by a user with umask 000 whose pip has settings."""
    made = Checkout(tmp_path_factory.mktemp("made"))
    settings = {"PIP_INDEX_URL": "https://index.example/simple", "PIP_TIMEOUT": "77"}
    before = os.umask(0)
    try:
        done = made.invoke("list", **settings)
    finally:
        os.umask(before)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (0, "it runs\n", 1), done
    return made


def test_uv_makes_the_venv_with_pips_settings(first: Checkout) -> None:
    calls = first.uv_calls.read_text()
    for words in ("pip install", "UV_DEFAULT_INDEX=https://index.example/simple", "--no-index"):
        assert words in calls
    assert "UV_HTTP_TIMEOUT=77" in calls


def test_installed_programs_are_writable_by_owner_only(first: Checkout) -> None:
    """With umask 000: a build in the lab runs them as root."""
    paths = [first.venv, *first.venv.rglob("*")]
    open_ = [path for path in paths if not path.is_symlink() and path.stat().st_mode & 0o022]
    assert any(path.name == "__pycache__" for path in paths)
    assert open_ == []


@pytest.fixture
def made(first: Checkout, checkout: Checkout) -> Path:
    """The .venv of the checkout, as an earlier call made it."""
    return Path(shutil.copytree(first.venv, checkout.venv, symlinks=True))


@pytest.fixture
def quick_venv(tmp_path: Path) -> dict[str, str]:
    """An environment in which a venv costs little: for tests of what is done with it afterwards."""
    asked = [BASE_PYTHON, "-c", "import pip; print(pip.__path__[0])"]
    pip = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    if not pip:
        return {}
    programs = tmp_path / "quick"
    programs.mkdir()
    shim = programs / "python3"
    shim.write_text(QUICK_VENV.replace("PYTHON", str(BASE_PYTHON)).replace("PIP", pip))
    shim.chmod(0o755)
    return {"PATH": f"{programs}:{os.environ['PATH']}"}


@pytest.mark.parametrize("program", ["/opt/nosuch/python3.13", "old"])
def test_wrong_kiln_python_is_bad_input(program: str, checkout: Checkout, tmp_path: Path) -> None:
    python = tmp_path / program
    if program == "old":
        # As Python 3.9 answers the question for its version.
        python.write_text("#!/bin/sh\nexit 1\n")
        python.chmod(0o755)
    done = checkout.invoke("--version", KILN_PYTHON=str(python))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"ami-kiln: KILN_PYTHON is {python}, but ")
    assert not checkout.venv.exists()


def test_unchanged_lock_installs_nothing(checkout: Checkout, made: Path) -> None:
    before = made.stat().st_ctime_ns
    done = checkout.invoke("list")
    assert (done.stdout, done.stderr) == ("it runs\n", "")
    assert not checkout.uv_calls.exists()
    assert made.stat().st_ctime_ns == before


def test_changed_lock_updates_the_venv(checkout: Checkout, made: Path) -> None:
    python = (made / "bin/python").lstat().st_ino
    with (checkout.root / "requirements.lock").open("a") as lock:
        lock.write(wheel(checkout.wheels, "addition", "1", {"addition.py": ""}))
    assert checkout.invoke("list").stdout == "it runs\n"
    assert list(made.glob("lib/python3*/site-packages/addition.py"))
    assert (made / "bin/python").lstat().st_ino == python
    assert "venv --quiet" not in checkout.uv_calls.read_text()


def test_venv_whose_python_is_gone_is_made_again(checkout: Checkout, made: Path) -> None:
    (made / "bin/python").unlink()
    (made / "bin/python").symlink_to("/usr/bin/python3.0")
    done = checkout.invoke("list")
    assert (done.returncode, done.stdout) == (0, "it runs\n"), done.stderr


def test_pip_makes_the_venv_without_uv(checkout: Checkout, quick_venv: dict[str, str]) -> None:
    done = checkout.invoke("list", KILN_TEST_UV_SAYS="error: no such cipher", **quick_venv)
    assert (done.returncode, done.stdout) == (0, "it runs\n"), done.stderr
    assert "uv cannot be used here; pip makes .venv" in done.stderr


def test_uv_that_is_not_the_pinned_one_is_refused(checkout: Checkout) -> None:
    wheel(checkout.wheels, "uv", "1", {"uv-1.data/scripts/uv": "#!/bin/sh\necho other\n"})
    done = checkout.invoke("list")
    assert done.returncode == 1
    assert "a package does not match its hash in setup/uv.lock.txt" in done.stderr
    assert not checkout.uv_calls.exists()
    assert not checkout.venv.exists()


@pytest.mark.usefixtures("made")
@pytest.mark.parametrize("by", ["uv", "pip"])
def test_package_with_another_hash_is_refused(
    by: str, checkout: Checkout, quick_venv: dict[str, str]
) -> None:
    if by == "uv":
        (checkout.root / "requirements.lock").write_text("another==1\n")
        done = checkout.invoke("list", KILN_TEST_UV_SAYS="error: Hash mismatch for `another==1`")
    else:
        (checkout.wheels / "uv-1-py3-none-any.whl").unlink()
        wheel(checkout.wheels, "project", "1", {"changed.py": ""})
        shutil.rmtree(checkout.venv)
        done = checkout.invoke("list", **quick_venv)
        # What failed is made again by the next call.
        assert not (checkout.venv / ".made-from").exists()
    assert (done.returncode, done.stdout) == (1, "")
    assert "a package does not match its hash in requirements.lock" in done.stderr
    assert ("pip makes .venv" in done.stderr) == (by == "pip")


def test_index_without_packages_is_named(
    checkout: Checkout, tmp_path: Path, quick_venv: dict[str, str]
) -> None:
    for file in checkout.wheels.iterdir():
        file.unlink()
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    done = checkout.invoke("list", TMPDIR=str(scratch), **quick_venv)
    assert (done.returncode, done.stdout) == (1, "")
    assert "ami-kiln: pip could not install requirements.lock" in done.stderr
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize(
    ("listing", "added"),
    [
        # pip's environment overrides its files, and pip's section those for all commands.
        (
            "global.index-url='https://g/'\n:env:.index-url='https://e/'\n"
            "install.index-url='https://i/'",
            {"UV_DEFAULT_INDEX": "https://e/"},
        ),
        # All of pip's indexes are searched.
        (
            "global.extra-index-url='https://a/ https://b/'",
            {"UV_INDEX": "https://a/ https://b/", "UV_INDEX_STRATEGY": "unsafe-best-match"},
        ),
    ],
)
def test_uv_gets_pips_settings(listing: str, added: dict[str, str]) -> None:
    options = uv_settings.pip_options(listing)
    assert uv_settings.uv_environment(options, {"SSL_CERT_FILE": "x"}) == added


def test_no_install_names_python3_venv(checkout: Checkout, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "python3").write_text(
        f'#!/bin/sh\ncase $1$2 in -m* | *"import pip") exit 1 ;; esac\n'
        f'exec {shlex.quote(sys.executable)} "$@"\n'
    )
    (bare / "apt-get").write_text("#!/bin/sh\nexit 99\n")
    for program in bare.iterdir():
        program.chmod(0o755)
    done = checkout.invoke("list", "--no-install", PATH=f"{bare}:{os.environ['PATH']}")
    assert done.returncode == 1
    assert "run: sudo apt-get update && sudo apt-get install -y python3-venv" in done.stderr


def test_two_first_calls_make_one_venv(checkout: Checkout) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(2) as both:
        calls = [both.submit(checkout.invoke, "list") for _ in range(2)]
    assert [call.result().stdout for call in calls] == ["it runs\n"] * 2
    assert checkout.uv_calls.read_text().count("pip install") == 1


def test_checkout_of_root_names_sudo(checkout: Checkout) -> None:
    """As for a user in a checkout of root: the lock of the first call cannot be made there."""
    (checkout.root / ".venv.lock").mkdir()
    done = checkout.invoke("list")
    assert done.returncode == 1
    assert "run it with sudo" in done.stderr

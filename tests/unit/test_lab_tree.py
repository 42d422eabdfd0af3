"""How mmdebstrap is called for the tree from which all guests are made."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from lab.rootfs import mmdebstrap, tree
from lab.rootfs.aptsources import Archive

ARCHIVE = Archive("debian", "bookworm", ())
EXCLUDED = ("/usr/share/man/*", "/usr/share/doc/*")


def run_hooks(root: Path, kind: str) -> None:
    """Run the hooks of that kind like mmdebstrap: in a shell, with the root as $1."""
    for option in tree.mmdebstrap_options(["systemd"], EXCLUDED):
        if option.startswith(f"--{kind}-hook="):
            script = option.split("=", 1)[1]
            subprocess.run(
                ["sh", "-c", script, "exec", str(root)],
                env={**os.environ, "PATH": f"{root.parent / 'bin'}:{os.environ['PATH']}"},
                check=True,
            )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root filesystem in which the essential packages have been unpacked."""
    folder = tmp_path / "root"
    for path in ("usr/share/man/man1", "usr/share/doc/bash", "usr/bin", "etc/dpkg/dpkg.cfg.d"):
        (folder / path).mkdir(parents=True)
    (folder / "usr/share/man/man1/bash.1.gz").touch()
    (folder / "usr/share/doc/bash/copyright").touch()
    (folder / "usr/bin/bash").touch()
    # Programs of the tree cannot run here: what would be run is written down instead.
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "chroot").write_text(f'#!/bin/sh\nshift\necho "$*" >> {tmp_path}/in-the-tree\n')
    (programs / "chroot").chmod(0o755)
    return folder


def test_dpkg_leaves_documentation_out_while_the_tree_is_made(root: Path) -> None:
    run_hooks(root, "extract")
    (setting,) = (root / "etc/dpkg/dpkg.cfg.d").iterdir()
    lines = setting.read_text().splitlines()
    assert lines == ["path-exclude=/usr/share/man/*", "path-exclude=/usr/share/doc/*"]


def test_guests_have_no_such_setting_and_no_documentation(root: Path) -> None:
    run_hooks(root, "extract")
    run_hooks(root, "customize")
    files = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    assert files == {"usr/bin/bash"}
    assert not any((root / "usr/share/man").iterdir())


def test_a_tree_of_other_packages_has_another_name() -> None:
    assert tree.mmdebstrap_options(["systemd"], EXCLUDED) != tree.mmdebstrap_options(
        ["systemd", "jq"], EXCLUDED
    )
    assert tree.mmdebstrap_options(["systemd"], EXCLUDED) != tree.mmdebstrap_options(
        ["systemd"], EXCLUDED[:1]
    )


def test_packages_are_byte_compiled_together_once_all_are_installed(root: Path) -> None:
    run_hooks(root, "extract")
    commands = root.parent / "in-the-tree"
    (aside,) = commands.read_text().splitlines()
    assert aside.startswith("dpkg-divert ")
    assert aside.endswith(" --add /usr/bin/py3compile")
    commands.unlink()
    run_hooks(root, "customize")
    back, compiled = commands.read_text().splitlines()
    assert back == aside.replace("--add", "--remove")
    assert "py3compile" in compiled


def test_modules_are_compiled_as_each_packages_own_script_would_have_done(tmp_path: Path) -> None:
    """Each module, and Debian's tools for Python, once; the folder for results is made before."""
    modules = tmp_path / "dist-packages"
    (modules / "dnf").mkdir(parents=True)
    (modules / "six.py").touch()
    compiler = tmp_path / "py3compile"
    compiler.write_text(f'#!/bin/sh\n[ -d {modules}/__pycache__ ] && printf "%s\\n" "$@"\n')
    compiler.chmod(0o755)
    own = tmp_path / "python3"
    (own / "debpython").mkdir(parents=True)
    done = subprocess.run(
        ["sh", "-c", tree.compile_modules(str(modules), str(own))],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == [f"{modules}/dnf", f"{modules}/six.py", str(own)]


def test_an_mmdebstrap_without_the_hook_works_without_it(tmp_path: Path) -> None:
    hook = tmp_path / "extract.sh"
    assert tree.without_syncs(hook) == []
    hook.touch()
    assert tree.without_syncs(hook)[0] == f"--extract-hook={hook}"


def test_nothing_of_the_hook_is_left_in_the_tree_and_no_disk_is_synced(root: Path) -> None:
    hook = root.parent / "extract.sh"
    hook.touch()
    (_, undo) = tree.without_syncs(hook)
    (root / "usr/lib/x86_64-linux-gnu").mkdir(parents=True)
    for path in ("bin/dpkg", "bin/eatmydata", "lib/x86_64-linux-gnu/libeatmydata.so.1"):
        (root / "usr" / path).touch()
    script = undo.removeprefix("--customize-hook=")
    programs = f"{root.parent / 'bin'}:{os.environ['PATH']}"
    subprocess.run(
        ["sh", "-c", script, "exec", str(root)], env={**os.environ, "PATH": programs}, check=True
    )
    assert sorted(path.name for path in (root / "usr/bin").iterdir()) == ["bash"]
    assert not any((root / "usr/lib/x86_64-linux-gnu").iterdir())
    assert "sync" not in script
    (command,) = (root.parent / "in-the-tree").read_text().splitlines()
    assert command.endswith("--remove /usr/bin/dpkg")


FILES = "what dpkg unpacks"


@pytest.fixture
def genuine(tmp_path: Path) -> Path:
    """A root after fetch.sh, from an archive with two packages."""
    return fetched(tmp_path, second="aa")


@pytest.fixture
def forged(tmp_path: Path) -> Path:
    """The same; the hash of the second package is not that of the index."""
    return fetched(tmp_path, second="bb")


def fetched(tmp_path: Path, second: str) -> Path:
    programs = tmp_path / "bin"
    programs.mkdir()
    uris = "\n".join(
        f"'http://debian.example/{name}%2b1.deb' {name}_1+1.deb 20 SHA256:{hash_}"
        for name, hash_ in (("bash", "aa"), ("jq", second))
    )
    script = f'#!/bin/sh\necho "$APT_CONFIG: $*" >> {tmp_path}/asked\n'
    (programs / "apt-get").write_text(
        f'{script}case "$*" in *--print-uris*) cat <<E\n{uris}\nE\nesac\n'
    )
    (programs / "dpkg-deb").write_text(f'#!/bin/sh\nprintf "{FILES} of $2"\n')
    helper = tmp_path / "apt-helper"
    helper.write_text(
        "#!/bin/sh\nwhile [ $1 != download-file ]; do shift; done; shift\n"
        'while [ $# -gt 0 ]; do echo "from $1" > $2; [ $3 = SHA256:aa ] || exit 1; shift 3; done\n'
    )
    for program in (*programs.iterdir(), helper):
        program.chmod(0o755)
    hooks = tmp_path / "hooks"
    shutil.copytree(mmdebstrap.HOOKS, hooks, symlinks=True)
    fetch = hooks / "fetch.sh"
    # One file at a time, so that only the forged one is refused.
    text = fetch.read_text().replace("/usr/lib/apt/apt-helper", str(helper))
    fetch.write_text(text.replace("-n 72", "-n 3"))
    trees_own = tmp_path / "dpkg-deb-of-the-tree"
    trees_own.write_text('#!/bin/sh\necho "itself: $*"\n')
    trees_own.chmod(0o755)
    shutil.copy(hooks / "dpkg-deb.sh", hooks / "of-the-tree.sh")
    itself(hooks / "of-the-tree.sh", "/usr/lib/kiln-lab-dpkg-deb", trees_own)
    itself(hooks / "dpkg-deb.sh", "/usr/bin/dpkg-deb", programs / "dpkg-deb")
    root = tmp_path / "root"
    (root / "var/cache/apt/archives").mkdir(parents=True)
    path = f"{programs}:{os.environ['PATH']}"
    environment = {**os.environ, "MMDEBSTRAP_APT_CONFIG": "the tree's", "PATH": path}
    subprocess.run(["sh", fetch, root, "jq"], env=environment, check=False)
    return root


def itself(script: Path, path: str, program: Path) -> Path:
    """Another program in the place of dpkg's own in the hook; the hook."""
    text = script.read_text()
    assert path in text
    script.write_text(text.replace(path, str(program)))
    return script


def decompressed(root: Path) -> dict[str, str]:
    """What is in the packages that have been decompressed, when nobody does so any more."""
    archives = root / "var/cache/apt/archives"
    subprocess.run(["flock", archives / "unpacked/ahead", "true"], check=True)
    return {path.stem: path.read_text() for path in archives.glob("unpacked/*.deb")}


def test_packages_are_there_before_mmdebstrap_asks_for_them(genuine: Path) -> None:
    archives = genuine / "var/cache/apt/archives"
    assert (archives / "bash_1+1.deb").read_text() == "from http://debian.example/bash%2b1.deb\n"
    update, listing = (genuine.parent / "asked").read_text().splitlines()
    assert update == "the tree's: -qq update --error-on=any"
    assert listing.startswith("the tree's: -qq --print-uris ")
    assert listing.endswith(" install ?essential ?priority(required) jq")


def test_packages_are_decompressed_while_mmdebstrap_goes_on(genuine: Path) -> None:
    archives = genuine / "var/cache/apt/archives"
    assert decompressed(genuine) == {
        name: f"{FILES} of {archives}/{name}.deb" for name in ("bash_1+1", "jq_1+1")
    }


def test_a_package_whose_hash_is_not_that_of_the_signed_index_is_not_used(forged: Path) -> None:
    archives = forged / "var/cache/apt/archives"
    assert [path.name for path in archives.glob("*.deb")] == ["bash_1+1.deb"]
    assert not list(archives.glob("unpacked/*.deb"))


def dpkg_deb(root: Path, *words: str) -> str:
    """What dpkg reads in a tree while it is made."""
    return subprocess.run(
        ["sh", root.parent / "hooks/of-the-tree.sh", *words],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    ).stdout


def test_dpkg_reads_what_is_decompressed_and_decompresses_the_rest_itself(genuine: Path) -> None:
    files = decompressed(genuine)["bash_1+1"]
    archive = genuine / "var/cache/apt/archives/bash_1+1.deb"
    link = genuine / "000-bash_1+1.deb"  # as apt passes it
    link.symlink_to(archive)
    for name in (archive, link):
        assert dpkg_deb(genuine, "--fsys-tarfile", str(name)) == files
        assert dpkg_deb(genuine, "--control", str(name), "to") == f"itself: --control {name} to\n"
    other = archive.with_name("curl_1+1.deb")
    other.touch()
    for _ in range(2):
        assert dpkg_deb(genuine, "--fsys-tarfile", str(other)) == (
            f"itself: --fsys-tarfile {other}\n"
        )


def test_dpkg_waits_for_a_package_that_is_being_decompressed(genuine: Path) -> None:
    decompressed(genuine)
    archive = genuine / "var/cache/apt/archives/curl_1+1.deb"
    archive.touch()
    unpacked = archive.parent / "unpacked" / archive.name
    with unpacked.with_name(f"{archive.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with ThreadPoolExecutor() as pool:
            waits = pool.submit(dpkg_deb, genuine, "--fsys-tarfile", str(archive))
            # Who decompresses ahead does not wait.
            dpkg_deb(genuine, "--ahead", str(archive))
            assert not wait([waits], timeout=0.3).done
            unpacked.write_text("made by somebody else")
            fcntl.flock(lock, fcntl.LOCK_UN)
            assert waits.result(60) == "made by somebody else"


def test_a_package_that_cannot_be_decompressed_fails_where_dpkg_reads_it(genuine: Path) -> None:
    decompressed(genuine)
    hooks = genuine.parent / "hooks"
    archive = genuine / "var/cache/apt/archives/curl_1+1.deb"
    archive.touch()
    script = shutil.copy(mmdebstrap.HOOKS / "dpkg-deb.sh", hooks / "broken.sh")
    itself(Path(script), "/usr/lib/kiln-lab-dpkg-deb", Path("/bin/false"))
    read, ahead = (
        subprocess.run(["sh", script, how, archive], check=False).returncode
        for how in ("--fsys-tarfile", "--ahead")
    )
    assert (read, ahead) == (1, 0)
    assert not (archive.parent / "unpacked" / archive.name).exists()


def test_a_tree_that_is_deleted_half_made_waits_for_what_decompresses(genuine: Path) -> None:
    archives = genuine / "var/cache/apt/archives"
    with (archives / "unpacked/ahead").open() as ahead, ThreadPoolExecutor() as pool:
        fcntl.flock(ahead, fcntl.LOCK_EX)
        deleted = pool.submit(tree.delete, genuine)
        while not (archives / "unpacked/stop").exists():
            assert not deleted.done()
        assert not wait([deleted], timeout=0.3).done
        fcntl.flock(ahead, fcntl.LOCK_UN)
        deleted.result(60)
    assert not genuine.exists()


def test_nothing_decompressed_is_left_in_the_tree_and_dpkg_has_its_own_program(root: Path) -> None:
    for option in tree.in_parallel(["jq"]):
        kind, script = option.split("=", 1)
        if kind != "--setup-hook":
            programs = f"{root.parent / 'bin'}:{os.environ['PATH']}"
            (root / "var/cache/apt/archives/unpacked").mkdir(parents=True, exist_ok=True)
            subprocess.run(
                ["sh", "-c", script, "exec", str(root)],
                env={**os.environ, "PATH": programs},
                check=True,
            )
    assert sorted(path.name for path in (root / "usr/bin").iterdir()) == ["bash"]
    assert not any((root / "var/cache/apt/archives").iterdir())
    aside, back = (root.parent / "in-the-tree").read_text().splitlines()
    assert aside.endswith(" --add /usr/bin/dpkg-deb")
    assert back == aside.replace("--add", "--remove")


def test_a_tree_is_made_although_nothing_could_be_fetched_before(tmp_path: Path) -> None:
    """mmdebstrap then downloads and says what is wrong with the archive."""
    (option,) = (o for o in tree.in_parallel(["jq"]) if o.startswith("--setup-hook="))
    script = option.split("=", 1)[1]
    environment = {**os.environ, "MMDEBSTRAP_APT_CONFIG": "/nothing", "PATH": str(tmp_path)}
    subprocess.run(["/bin/sh", "-c", script, "exec", tmp_path], env=environment, check=True)


def test_a_tree_waits_for_the_mmdebstrap_that_a_killed_build_has_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    # It writes until it is told to end, whatever becomes of who has started it.
    (programs / "mmdebstrap").write_text(
        f"#!/bin/sh\nmkdir -p {tmp_path}/tree\nuntil [ -e {tmp_path}/end ]; do\n"
        f"    touch {tmp_path}/tree/$(date +%N)\ndone\n"
    )
    (programs / "mmdebstrap").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    killed = os.fork()
    if not killed:
        with mmdebstrap.alone(tmp_path, print) as lock:
            mmdebstrap.make(ARCHIVE, "x86_64", (), tmp_path / "tree", tmp_path / "log", lock)
    while not (tmp_path / "tree").exists():
        assert os.waitpid(killed, os.WNOHANG) == (0, 0), (tmp_path / "log").read_text()
    os.kill(killed, signal.SIGKILL)
    os.waitpid(killed, 0)
    waits: list[str] = []

    def say(line: str) -> None:
        waits.append(line)
        (tmp_path / "end").touch()

    with mmdebstrap.alone(tmp_path, say):
        tree.delete(tmp_path / "tree")
    assert len(waits) == 1
    assert not (tmp_path / "tree").exists()
    with mmdebstrap.alone(tmp_path, say):
        assert len(waits) == 1


def test_a_tree_whose_deletion_was_interrupted_is_not_taken_for_a_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tmp_path / "al2-x86_64-1"
    (whole / "etc").mkdir(parents=True)
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", lambda path: os.kill(os.getpid(), signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            tree.delete(whole)
    assert not whole.exists()
    assert tree.delete(whole), "the next call deletes what was left"
    assert list(tmp_path.iterdir()) == []
    assert not tree.delete(whole)

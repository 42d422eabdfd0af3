"""EC2's names of instances in this machine's /etc/hosts, and that nothing else in it changes."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from lab.network import hostnames
from lab.settings import Lab

OWN = "127.0.0.1 localhost\n# said by hand: # AMI Kiln lab3 \n10.204.1.2 mine\n"
NAMES = ["ip-10-204-1-2.ec2.internal", "ec2-10-204-1-2.compute-1.amazonaws.com"]


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "hosts"
    path.write_text(OWN)
    monkeypatch.setattr(hostnames, "HOSTS", path)
    return path


def lab(tmp_path: Path, index: int = 3) -> Lab:
    return Lab(index=index, root=tmp_path)


def test_an_instances_names_lead_to_it_until_it_is_off(hosts: Path, tmp_path: Path):
    hostnames.add(lab(tmp_path), "10.204.1.2", NAMES)
    assert hosts.read_text() == f"{OWN}10.204.1.2 {' '.join(NAMES)} # AMI Kiln lab3\n"
    hostnames.remove(lab(tmp_path), "10.204.1.2")
    assert hosts.read_text() == OWN


def test_a_lab_that_goes_down_takes_its_names_and_no_other_labs(hosts: Path, tmp_path: Path):
    for index, address in ((3, "10.204.1.2"), (3, "10.204.1.3"), (33, "10.234.1.2")):
        hostnames.add(lab(tmp_path, index), address, ["name.ec2.internal"])
    assert hostnames.clear(lab(tmp_path)) is True
    assert hosts.read_text() == f"{OWN}10.234.1.2 name.ec2.internal # AMI Kiln lab33\n"
    assert hostnames.clear(lab(tmp_path)) is False


def test_labs_of_two_folders_lose_no_names_of_each_other(
    hosts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    first, second = (Lab(index=number, root=tmp_path / str(number)) for number in (3, 4))
    other = threading.Thread(target=hostnames.add, args=(second, "10.205.1.2", ["b.ec2.internal"]))

    def write(file: int, data: bytes, offset: int) -> int:
        """The second lab begins after the first has read the file, and before it has written."""
        if other.ident is None:
            other.start()
            other.join(0.5)
        return pwrite(file, data, offset)

    pwrite = os.pwrite
    for one in (first, second):
        one.root.mkdir()
    monkeypatch.setattr("os.pwrite", write)
    hostnames.add(first, "10.204.1.2", ["a.ec2.internal"])
    other.join()
    assert "a.ec2.internal" in hosts.read_text()
    assert "b.ec2.internal" in hosts.read_text()


def test_bytes_that_are_not_text_stay_as_they_are(hosts: Path, tmp_path: Path):
    hosts.write_bytes(b"10.0.0.1 caf\xe9\n")
    hostnames.add(lab(tmp_path), "10.204.1.2", ["a.ec2.internal"])
    assert hosts.read_bytes().startswith(b"10.0.0.1 caf\xe9\n")


def test_a_guest_starts_where_the_file_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(hostnames, "HOSTS", tmp_path / "missing")
    hostnames.add(lab(tmp_path), "10.204.1.2", NAMES)
    assert "instances have no names on this machine" in caplog.text

"""The stand-in's other commands: CSV queries, settings, errors, injected faults, the journal."""

from __future__ import annotations

import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from standin_nvidia_smi_guest import Guest

from kiln.facts import instances
from lab.vendors.standins.nvidia_smi import install
from tests import surroundings

Make = Callable[..., Guest]
PYTHONS = list(surroundings.pythons().values())


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def _make(
        instance_type: str = "p4d.24xlarge", driver: str = "580.173.02", **more: object
    ) -> Guest:
        return Guest(tmp_path, instance_type, driver, **more)

    return _make


def test_csv_has_a_head_with_units_unless_told_otherwise(make: Make) -> None:
    guest = make("g4dn.12xlarge")
    fields = "--query-gpu=index,name,memory.total,temperature.gpu,fan.speed"
    assert guest.ok(fields, "--format=csv").splitlines()[:2] == [
        "index, name, memory.total [MiB], temperature.gpu, fan.speed [%]",
        "0, Tesla T4, 15360 MiB, 26, [N/A]",
    ]
    assert (
        guest.ok(fields, "--format=csv,noheader,nounits", "-i", "3")
        == "3, Tesla T4, 15360, 26, [N/A]\n"
    )
    assert guest.ok("--query-gpu", "count", "--format", "csv,noheader", "-i", "0") == "4\n"


def test_an_alias_gets_the_fields_own_head(make: Make) -> None:
    output = make(driver="570.148.08").ok(
        "--query-gpu=gpu_name,clocks.gr,clocks_throttle_reasons.gpu_idle", "--format=csv", "-i", "0"
    )
    assert output.splitlines()[0] == (
        "name, clocks.current.graphics [MHz], clocks_throttle_reasons.gpu_idle"
    )
    assert output.splitlines()[1] == "NVIDIA A100-SXM4-40GB, 210 MHz, Active"


def test_every_field_of_the_help_can_be_queried(make: Make) -> None:
    guest = make("p5.48xlarge")
    names = [
        line.split('"')[1]
        for line in guest.ok("--help-query-gpu").splitlines()
        if line.startswith('"')
    ]
    assert len(names) > 150
    row = guest.ok(f"--query-gpu={','.join(names)}", "--format=csv,noheader", "-i", "0")
    values = dict(zip(names, row.rstrip("\n").split(", "), strict=True))
    # A misspelt key in the snapshot would read as not available: these are there on every H100.
    missing = {name for name, value in values.items() if value == "[N/A]"}
    assert missing.isdisjoint({
        "uuid", "serial", "memory.free", "clocks.max.sm", "power.draw.instant", "pcie.link.gen.max",
        "remapped_rows.failure", "ecc.errors.uncorrected.aggregate.total", "mig.mode.current",
        "clocks_event_reasons_counters.sw_power_cap", "temperature.memory", "enforced.power.limit",
        "ecc.errors.uncorrected.volatile.sram.parity", "compute_cap", "vbios_version",
        "fabric.state",
    })  # fmt: skip
    assert values["ecc.errors.corrected.volatile.l1_cache"] == "[N/A]"


@pytest.mark.parametrize(
    ("field", "driver"),
    [("cuda_version", "580.173.02"), ("remapped_rows.pending", "535.247.01"),
     ("clocks_event_reasons_counters.sw_power_cap", "550.127.06"), ("fabric.state", "510.47.03")],
)  # fmt: skip
def test_a_field_the_driver_does_not_know_is_refused(make: Make, field: str, driver: str) -> None:
    output = make(driver=driver).smi(f"--query-gpu=index,{field}", "--format=csv")
    assert (output.out, output.code) == (f'Field "{field}" is not a valid field to query.\n\n', 2)


def test_utilisation_is_gone_in_mig_mode(make: Make) -> None:
    guest = make("p5.48xlarge")
    query = (
        "--query-gpu=utilization.gpu,utilization.memory",
        "--format=csv,noheader,nounits",
        "-i",
        "0",
    )
    assert guest.ok(*query) == "0, 0\n"
    guest.ok("-i", "0", "-mig", "1")
    assert guest.ok(*query) == "[N/A], [N/A]\n"


def test_remapped_rows_are_readable_until_instances_exist(make: Make) -> None:
    guest = make("p5.48xlarge")
    query = ("--query-remapped-rows=gpu_bus_id,remapped_rows.pending,remapped_rows.failure",
             "--format=csv,noheader", "-i", "0")  # fmt: skip
    assert guest.ok(*query) == "00000000:53:00.0, No, No\n"
    guest.ok("-i", "0", "-mig", "1")
    guest.ok("mig", "-i", "0", "-cgi", "19", "-C")
    assert guest.ok(*query) == "00000000:53:00.0, [N/A], [N/A]\n"


def test_a_working_program_is_listed_and_a_watching_one_is_not(make: Make) -> None:
    guest = make("p5.48xlarge")
    query = ("--query-compute-apps=pid,name,used_memory", "--format=csv")
    assert guest.ok(*query) == "pid, process_name, used_gpu_memory [MiB]\n"
    guest.faults(busy=[{"gpu": 0, "name": "/opt/app/train", "pid": 77}, {"name": "nv-hostengine"}])
    assert guest.ok(*query).splitlines()[1:] == ["77, /opt/app/train, 4 MiB"]
    assert "/opt/app/train" in guest.ok("-q", "-i", "0")


def test_a_gpu_goes_by_index_uuid_or_bus_id(make: Make) -> None:
    guest = make()
    uuid = guest.ok("--query-gpu=uuid", "--format=csv,noheader", "-i", "2").strip()
    for name in (uuid, "00000000:20:1C.0", "0000:20:1c.0", "20:1C.0"):
        assert guest.ok("--query-gpu=index", "--format=csv,noheader", "-i", name) == "2\n", name


@pytest.mark.parametrize("case", ["no driver", "not loaded", "no gpu", "unknown type"])
def test_without_driver_or_gpu_it_fails_as_the_real_tool_does(make: Make, case: str) -> None:
    guest = make({"no gpu": "m5.large", "unknown type": "q9.huge"}.get(case, "p4d.24xlarge"))
    if case == "no driver":
        (guest.root / "var/lib/kiln-lab/driver.json").unlink()
    if case == "not loaded":
        guest.faults(driver_loaded=False)
    output = guest.smi()
    assert output.out.startswith(
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure "
        "that the latest NVIDIA driver is installed and running."
    )
    assert output.code == 9


def test_lost_devices_leave_none_found(make: Make) -> None:
    guest = make("g5.xlarge")
    guest.faults(hide=[0])
    output = guest.smi("-L")
    assert (output.out, output.code) == ("No devices were found\n", 6)


def test_settings_answer_and_last_until_the_reboot(make: Make) -> None:
    guest = make("g5.xlarge")
    assert guest.ok("-pm", "1") == "Enabled persistence mode for GPU 00000000:00:1E.0.\nAll done.\n"
    assert guest.ok("-pm", "ENABLED") == (
        "Persistence mode is already Enabled for GPU 00000000:00:1E.0.\nAll done.\n"
    )
    assert guest.ok("-ac", "6251,1710") == (
        'Applications clocks set to "(MEM 6251, SM 1710)" for GPU 00000000:00:1E.0\nAll done.\n'
    )
    assert "is not supported for GPU" in guest.ok("-ac", "1,1")
    query = (
        "--query-gpu=persistence_mode,clocks.applications.gr",
        "--format=csv,noheader",
    )
    assert guest.ok(*query) == "Enabled, 1710 MHz\n"
    assert guest.ok("-rac") == "All done.\n"
    guest.reboot()
    assert guest.ok(*query) == "Disabled, 1710 MHz\n"


def test_a_rule_fails_the_nth_matching_command_once(make: Make) -> None:
    guest = make("p5.48xlarge")
    guest.ok("-i", "0", "-mig", "1")
    guest.faults(rules=[{"match": ["mig", "-cgi"], "nth": 2, "exit": 23, "stdout": "boom\n"}])
    assert [guest.smi("mig", "-i", "0", "-cgi", "19").code for _ in range(3)] == [0, 23, 0]
    assert guest.ok("mig", "-lgi").count("MIG 1g") == 2


def test_faults_may_be_written_inside_the_guest_unless_given_from_outside(make: Make) -> None:
    guest = make("p5.48xlarge")
    guest.write("var/lib/kiln-lab/nvidia-smi-faults.json", {"driver_loaded": False})
    assert guest.smi("-L").code == 9
    guest.faults(hide=[0])
    assert guest.ok("-L").startswith("GPU 1: ")


def test_a_rule_may_let_the_command_work_and_then_kill_its_caller(make: Make) -> None:
    guest = make("p5.48xlarge")
    guest.faults(rules=[{"match": ["-mig"], "after": True, "kill_parent": True}])
    command = [*guest.command("nvidia-smi"), "-mig", "1"]
    caller = f"import subprocess; subprocess.run({command!r}); print('alive')"
    done = subprocess.run(
        [sys.executable, "-c", caller], check=False, env=guest.env, capture_output=True, text=True
    )
    assert done.returncode == -9 and "alive" not in done.stdout
    assert "Enabled, Enabled" in guest.ok(
        "--query-gpu=mig.mode.current,mig.mode.pending", "--format=csv"
    )


def test_the_journal_counts_calls_and_changes(make: Make) -> None:
    guest = make("p5.48xlarge")
    guest.ok("-L")
    guest.ok("-pm", "1")
    guest.smi("--nosuch")
    assert [(x["argv"], x["exit"], x["changes"]) for x in guest.journal()] == [
        (["-L"], 0, False), (["-pm", "1"], 0, True), (["--nosuch"], 255, False),
    ]  # fmt: skip


def test_parallel_changes_lose_nothing(make: Make) -> None:
    guest = make("p5.48xlarge")
    guest.ok("-mig", "1")
    calls = [
        subprocess.Popen([*guest.command("nvidia-smi"), "mig", "-i", str(n), "-cgi", "19,19"],
                         env=guest.env, stdout=subprocess.DEVNULL)
        for n in range(8)
    ]  # fmt: skip
    assert [call.wait(120) for call in calls] == [0] * 8
    assert guest.ok("mig", "-lgi").count("MIG 1g.10gb") == 16


class Imds(http.server.BaseHTTPRequestHandler):
    """IMDSv2 of a g5.xlarge: no token, no answer."""

    asked: list[str] = []

    def do_PUT(self) -> None:
        if self.headers["X-aws-ec2-metadata-token-ttl-seconds"] is None:
            self.send_error(400)
        else:
            self.answer(b"secret")

    def do_GET(self) -> None:
        known = {
            "/latest/meta-data/instance-type": b"g5.xlarge",
            "/latest/meta-data/instance-id": b"i-9",
        }
        if self.headers["X-aws-ec2-metadata-token"] != "secret":
            self.send_error(401)
        else:
            self.answer(known[self.path])

    def answer(self, body: bytes) -> None:
        self.asked.append(self.path)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def imds() -> Iterator[str]:
    Imds.asked = []
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Imds)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_without_a_file_imds_names_the_instance_type_once_a_boot(
    make: Make, imds: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    guest = make()
    (guest.root / "etc/kiln-lab/instance.json").unlink()
    monkeypatch.setitem(os.environ, "KILN_LAB_IMDS", imds)
    for _ in range(2):
        assert guest.ok("-L").startswith("GPU 0: NVIDIA A10G (UUID: GPU-")
    assert len(Imds.asked) == 3  # token, instance-type, instance-id


@pytest.fixture(scope="module")
def machine() -> dict[str, Any]:
    """What the stand-in knows of machines."""
    return dict(install.compose()["machines"])


@pytest.mark.parametrize("instance_type", sorted(instances()))
def test_every_instance_type_shows_its_gpus(instance_type: str, machine: dict[str, Any]) -> None:
    shown, facts = machine["machines"][instance_type], instances()[instance_type]
    model = machine["models"][shown["gpu"]]
    assert len(shown["bus"]) == max(facts.gpu_count, 1)
    assert model["product"] == facts.product
    assert model["pci"].lower().startswith(facts.pci_device_ids[0])
    assert model["cc"] == facts.compute_capability
    assert ("mig_facts" in model) == facts.mig


def test_a_slice_of_an_l4_is_named_by_its_memory(make: Make) -> None:
    assert make("g6f.xlarge").ok("-L").startswith("GPU 0: NVIDIA L4-3Q (UUID")


@pytest.mark.skipif(not PYTHONS, reason="no other Python is installed here")
@pytest.mark.parametrize("python", PYTHONS)
def test_it_runs_on_the_guests_python(make: Make, python: str) -> None:
    guest = make("p5.48xlarge", python=python)
    guest.ok("-i", "0", "-mig", "1")
    guest.ok("mig", "-i", "0", "-cgi", "9,19", "-C")
    commands = (
        "-L", "", "-q", "-q -x", "-h", "--query-gpu=uuid --format=csv", "topo -m", "nvlink -s",
        "mig -h", "mig -lgip", "mig -lcip",
    )  # fmt: skip
    for command in commands:
        guest.ok(*command.split())


def test_what_is_laid_down_says_that_it_is_a_stand_in() -> None:
    payload = install.payload()
    for path in install.PROGRAMS:
        assert payload[path].mode == 0o755
        assert b"stand-in" in payload[path].content
    assert not any(path.endswith((".yaml", ".pyc")) for path in payload)


def test_the_knowledge_of_mig_is_one_file() -> None:
    names = {m.get("mig_facts", {}).get("profiles", [{}])[0].get("profile")
             for m in install.compose()["machines"]["models"].values()}  # fmt: skip
    facts = yaml.safe_load((install.KNOWLEDGE / "mig.yaml").read_text())
    assert names - {None} <= {gpu["profiles"][0]["profile"] for gpu in facts["gpus"]}

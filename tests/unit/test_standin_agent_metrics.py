"""What the CloudWatch agent's stand-in measures besides GPUs, and what it makes of it."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from lab.standins.cloudwatch_agent.agent import efa, host, metrics, prometheus
from lab.standins.cloudwatch_agent.agent.plan import Plan
from lab.standins.cloudwatch_agent.agent.statsd import Aggregator, Server

NOW = 1795168800.0


def machine(folder: Path, **files: str) -> str:
    """A root folder with files; `__` in a name stands for a slash."""
    for name, content in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return str(folder)


def test_cpu_usage_is_the_share_of_the_time_since_the_last_reading(tmp_path: Path) -> None:
    root = machine(tmp_path, proc__stat="cpu  100 0 50 800 50 0 0 0 0 0\ncpu0 1 1 1 1\nintr 1\n")
    cpu = host.Cpu({"resources": ["*"], "totalcpu": True}, root)
    first = cpu.rows()
    assert [tags["cpu"] for tags, _ in first] == ["cpu-total", "cpu0"]
    assert "usage_idle" not in first[0][1]
    assert first[0][1]["time_user"] == 1.0
    machine(tmp_path, proc__stat="cpu  130 0 60 850 60 0 0 0 10 0\ncpu0 1 1 1 1\n")
    (_, fields), _ = cpu.rows()
    # A guest's time is part of the user's.
    shares = [round(fields[f"usage_{name}"]) for name in ("user", "guest", "idle", "iowait")]
    assert shares == [20, 10, 50, 10]
    assert fields["usage_active"] == 50


MEMINFO = """MemTotal:  1000 kB
MemFree:    100 kB
MemAvailable: 400 kB
Buffers:     50 kB
Cached:     150 kB
Active:     10 kB
Inactive:   10 kB
Shmem:      10 kB
SReclaimable: 100 kB
SwapTotal:  200 kB
SwapFree:   150 kB
"""


def test_memory_that_the_kernel_can_reclaim_is_not_used(tmp_path: Path) -> None:
    root = machine(tmp_path, proc__meminfo=MEMINFO)
    ((_, fields),) = host.memory({}, root)
    assert (fields["used"], fields["cached"]) == (600 * 1024, 250 * 1024)
    assert (fields["used_percent"], fields["available_percent"]) == (60, 40)
    ((_, fields),) = host.swap({}, root)
    assert (fields["used_percent"], fields["used"]) == (25, 50 * 1024)


def test_a_disk_is_a_mount_point_that_has_a_size(tmp_path: Path) -> None:
    mounts = f"/dev/root {tmp_path} ext4 rw 0 0\nproc /proc proc rw 0 0\nnone /dev tmpfs rw 0 0\n"
    root = machine(tmp_path, proc__self__mounts=mounts)
    every = host.disks({"resources": ["*"]}, root)
    assert [(tags["path"], tags["device"], tags["fstype"]) for tags, _ in every] == [
        (str(tmp_path), "root", "ext4"),
        ("/dev", "tmpfs", "tmpfs"),
    ]
    assert all(0 <= fields["used_percent"] <= 100 for _, fields in every)
    ((tags, _),) = host.disks({"resources": [str(tmp_path)], "drop_device": True}, root)
    assert sorted(tags) == ["fstype", "path"]
    assert len(host.disks({"ignore_file_system_types": ["tmpfs"]}, root)) == 1


NET = """Inter-|   Receive                            |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes
    lo: 9 9 0 0 0 0 0 0 9 9 0 0 0 0 0 0
  eth0: 1000 10 1 2 0 0 0 0 500 5 3 4 0 0 0 0
"""


def test_an_interface_counts_without_the_loopback(tmp_path: Path) -> None:
    root = machine(
        tmp_path,
        proc__net__dev=NET,
        sys__class__net__lo__flags="0x9\n",
        sys__class__net__eth0__flags="0x1003\n",
    )
    ((tags, fields),) = host.interfaces({}, root)
    assert tags == {"interface": "eth0"}
    assert (fields["bytes_recv"], fields["bytes_sent"], fields["drop_out"]) == (1000, 500, 4)
    assert [tags for tags, _ in host.interfaces({"resources": ["lo"]}, root)] == [
        {"interface": "lo"}
    ]


def test_block_devices_and_sockets_are_counted(tmp_path: Path) -> None:
    tcp = "  sl\n 0: a b 0A 0\n 1: a b 01 0\n 2: a b 01 0\n"
    stats = " 259 0 nvme0n1 5 0 8 30 7 0 16 40 2 70 0\n"
    root = machine(tmp_path, proc__diskstats=stats, proc__net__tcp=tcp, proc__net__udp="h\nx\n")
    ((tags, fields),) = host.block_devices({"resources": ["*"]}, root)
    assert tags == {"name": "nvme0n1"}
    assert (fields["read_bytes"], fields["write_bytes"], fields["io_time"]) == (4096, 8192, 70)
    ((_, fields),) = host.connections({}, root)
    assert (fields["tcp_established"], fields["tcp_listen"], fields["udp_socket"]) == (2, 1, 1)


def test_counters_are_sent_as_what_they_gained_and_the_first_value_is_not() -> None:
    deltas, kept = metrics.Deltas(), {"iops_in_progress"}
    name = {"name": "nvme0n1"}
    assert deltas.of(name, {"reads": 5, "iops_in_progress": 2}, kept) == {"iops_in_progress": 2}
    assert deltas.of(name, {"reads": 8}, kept) == {"reads": 3}
    assert deltas.of({"name": "other"}, {"reads": 8}, kept) == {}
    # The counter began anew.
    assert deltas.of(name, {"reads": 2}, kept) == {"reads": 2}


def test_an_efa_device_has_its_port_and_network_interface(tmp_path: Path) -> None:
    port = "sys__class__infiniband__rdmap16s27__ports__1__"
    root = machine(
        tmp_path,
        **{
            f"{port}hw_counters__rx_bytes": "7\n",
            f"{port}hw_counters__rx_drops": "1\n",
            f"{port}gids__0": "fe80:0000:0000:0000:0400:fff1:fe00:0001\n",
        },
    )
    asked: list[str] = []

    def imds(path: str) -> str:
        asked.append(path)
        return "eni-1"

    read = efa.reader(imds, root)
    for _ in range(2):
        ((tags, fields),) = read()
        assert tags == {"device": "rdmap16s27", "port": "1", "eniId": "eni-1"}
        assert fields == {"rx_bytes": 7, "rx_dropped": 1}
    assert asked == ["meta-data/network/interfaces/macs/06:00:ff:00:00:01/interface-id"]


def configured(**collected: Any) -> Plan:
    return Plan({"metrics": {"metrics_collected": collected}}, {"instanceId": "i-1"})


def test_a_measurement_has_its_sections_name_and_the_agents_unit() -> None:
    made = configured(mem={"measurement": ["mem_used_percent", "used"]}, swap={"measurement": []})
    section = made.sections["mem"]
    reading = [({}, {"used_percent": 60.0, "used": 5.0, "free": 1.0}, NOW)]
    found = metrics.datums(made, section, reading, {}, "ip-10-0-0-1")
    assert [(datum["MetricName"], datum["Unit"]) for datum in found] == [
        ("mem_used_percent", "Percent"),
        ("mem_used", "Bytes"),
    ]


def test_what_the_lab_does_not_measure_is_named() -> None:
    made = configured(
        collectd={},
        procstat=[{"exe": "a"}],
        diskio={"measurement": ["reads", "ebs_volume_queue_length"]},
        cpu={"measurement": ["time_user", "usage_idle"]},
    )
    assert made.elsewhere == ["collectd", "procstat", "diskio_ebs_volume_queue_length"]


@pytest.fixture
def statsd() -> Any:
    messages: list[str] = []
    server = Server({"service_address": "127.0.0.1:0"}, messages.append)
    yield server, messages
    server.socket.close()


def test_statsd_lines_become_one_datum_per_series_and_interval(statsd: Any) -> None:
    server, messages = statsd
    client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    address = server.socket.getsockname()
    lines = [
        "jobs.done:1|c|#queue:a,x",
        "jobs.done:2|c|@0.5|#queue:a,x",
        "load:3|g",
        "load:+2|g",
        "users:anna|s\nusers:berta|s\nusers:anna|s",
        "wait:10|ms",
        "wait:10|ms",
        "wait:20|ms",
        "broken",
        "what:1|y",
    ]
    for line in lines:
        client.sendto(line.encode(), address)
    client.close()
    server.listen()
    aggregator = Aggregator(60)
    aggregator.add(server.rows(), NOW + 5)
    made = configured(statsd={})
    assert metrics.aggregated(made, aggregator, "ip-10-0-0-1", NOW + 59) == []
    found = {
        datum["MetricName"]: datum
        for datum in metrics.aggregated(made, aggregator, "ip-10-0-0-1", NOW + 60)
    }
    dimensions = {
        dimension["Name"]: dimension["Value"] for dimension in found["jobs_done"]["Dimensions"]
    }
    assert dimensions == {
        "host": "ip-10-0-0-1",
        "metric_type": "counter",
        "queue": "a",
        "x": "<empty>",
    }
    assert {name: (datum["Values"], datum["Counts"]) for name, datum in found.items()} == {
        "jobs_done": ([5.0], [1.0]),
        "load": ([5.0], [1.0]),
        "users": ([2.0], [1.0]),
        "wait": ([10.0, 20.0], [2.0, 1.0]),
    }
    assert len(messages) == 2
    assert server.rows() == []


SCRAPED = """# HELP DCGM_FI_DEV_FB_USED Frame buffer
# TYPE DCGM_FI_DEV_FB_USED gauge
DCGM_FI_DEV_FB_USED{gpu="0",device="nvidia0",modelName="A100 \\"x\\""} 5
DCGM_FI_DEV_FB_USED{gpu="1",GPU_I_ID="2",GPU_I_PROFILE="1g.5gb"} 7
# TYPE done_total counter
done_total{gpu="0"} 3
# TYPE other gauge
other NaN
# TYPE took histogram
took_bucket{le="1"} 3
"""
SECTION = {
    "log_group_name": "/ec2/dcgm",
    "cluster_name": "none",
    "emf_processor": {
        "metric_namespace": "Kiln",
        "metric_unit": {"DCGM_FI_DEV_FB_USED": "Megabytes"},
        "metric_declaration": [
            {
                "source_labels": ["job", "GPU_I_ID"],
                "label_matcher": matcher,
                "dimensions": [["InstanceId", *names]],
                "metric_selectors": ["^DCGM_FI_DEV_FB_USED$"],
            }
            for matcher, names in (
                ("^dcgm;$", ["gpu"]),
                ("^dcgm;.+$", ["gpu", "GPU_I_ID"]),
            )
        ],
    },
}
SCRAPE = """
global: {scrape_interval: 30s}
scrape_configs:
  - {job_name: dcgm, file_sd_configs: [{files: [/run/kiln/dcgm-target.json]}]}
"""


def scraper(folder: Path, text: str = SCRAPE) -> prometheus.Scraper:
    (folder / "scrape.yaml").write_text(text)
    section = {**SECTION, "prometheus_config_path": str(folder / "scrape.yaml")}
    return prometheus.Scraper(section, None, print, NOW)  # type: ignore[arg-type]


def test_scraped_samples_become_events_of_which_cloudwatch_makes_metrics(tmp_path: Path) -> None:
    made = scraper(tmp_path)
    own = {"job": "dcgm", "instance": "127.0.0.1:9400", "InstanceId": "i-1"}
    events = made.events(SCRAPED, own, NOW)
    assert json.loads(events[0])["modelName"] == 'A100 "x"'
    assert json.loads(events[0])["ClusterName"] == "none"
    # A counter is there from the second time on, as what it gained.
    assert not any("done_total" in event for event in events)
    later = made.events(SCRAPED.replace('done_total{gpu="0"} 3', 'done_total{gpu="0"} 9'), own, NOW)
    assert [json.loads(event)["done_total"] for event in later if "done_total" in event] == [6.0]


def test_a_scrape_configuration_that_the_lab_does_not_know_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not know kubernetes_sd_configs"):
        scraper(tmp_path, SCRAPE.replace("file_sd_configs", "kubernetes_sd_configs"))

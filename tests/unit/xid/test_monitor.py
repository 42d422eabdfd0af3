"""The Xid event parser as it ships: no pytest, so that every Python from 3.7 on can run it.

`python3.7 tests/unit/xid/test_monitor.py` works too (see runtime/test_pythons.py).
"""
# ruff: noqa: B007, PTH100, PTH102, PTH104, PTH108, PTH110, PTH114, PTH118, PTH120, PTH123, PTH202, PTH208, PTH211, UP031

import contextlib
import errno
import fcntl
import json
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import unittest

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
sys.path.insert(0, os.path.join(ROOT, "runtime", "opt", "kiln", "lib"))

from gpu_xid import checkpoint, config, event, host, kmsg, log  # noqa: E402
from gpu_xid import monitor as module  # noqa: E402
from gpu_xid.catalog import Catalog, UnknownCodeError  # noqa: E402
from gpu_xid.monitor import Monitor  # noqa: E402
from gpu_xid.parse import messages, set_message_starts  # noqa: E402

CORPUS = os.path.join(ROOT, "tests", "data", "xid", "lines.jsonl")
UNKNOWN = "pid='<unknown>', name=<unknown>"
XID_79 = "NVRM: Xid (PCI:0000:3b:00): 79, %s, GPU has fallen off the bus." % UNKNOWN
XID_31 = "NVRM: Xid (PCI:0000:3b:00): 31, pid=7, name=app, Ch %08x"


def corpus():
    with open(CORPUS, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


class Instead:
    """A module with some of its functions replaced; where it is used, by a test's clean-up."""

    def __init__(self, test, user, module, **own):
        self.__dict__.update(own, module=module)
        test.addCleanup(setattr, user, module.__name__, module)
        setattr(user, module.__name__, self)

    def __getattr__(self, name):
        return getattr(self.module, name)


def message(line):
    """An archived line without what stands before the driver's message."""
    return re.sub("^.*?(?=NVRM: |nvidia-nvswitch)", "", line)


class Corpus(unittest.TestCase):
    """476 kernel lines from issues, tests and the driver's format strings."""

    def setUp(self):
        set_message_starts(Catalog().entry("message starts"))

    def test_messages_of_the_corpus_have_every_field(self):
        for row in corpus():
            wanted = row["event"] or row.get("note")
            if not wanted or row["line"].count("NVRM") > 1 or "\\x" in row["line"]:
                continue
            if wanted.get("kind") == "serial":  # nothing needs it
                continue
            with self.subTest(row["line"]):
                (fields,) = messages(message(row["line"]))
                if row["event"]:
                    Catalog().classify(fields)
                    self.assertIn(fields["severity"], ("fatal", "error", "warning", "info"))
                for key, value in wanted.items():
                    if key in fields and key != "injected":
                        self.assertEqual(fields[key], value)

    def test_a_user_supplied_severity_wins(self):
        fields = messages("NVRM: Xid (PCI:0000:01:00): 63, Row Remapper: New row")[0]
        Catalog(overrides={"xid 63": "fatal"}).classify(fields)
        self.assertEqual(fields["severity"], "fatal")

    def test_a_record_of_two_lines_may_hold_two_events(self):
        self.assertEqual([f["xid"] for f in messages(XID_79 + "\n" + XID_31 % 1)], [79, 31])
        (item,) = messages(XID_79 + "\nmore of it")
        self.assertTrue(item["raw"].endswith("\nmore of it"))


class Explain(unittest.TestCase):
    def test_a_code_may_be_written_in_any_way(self):
        explain = Catalog().explain
        for code in (79, "79", "xid79", "Xid 79", "XID:79"):
            self.assertEqual(explain(code)["name"], "GPU has fallen off the bus")
        self.assertEqual(explain("sxid 12028")["kind"], "sxid")
        self.assertEqual(explain(12028)["kind"], "sxid")

    def test_an_unknown_code_names_the_nearest(self):
        with self.assertRaises(UnknownCodeError) as caught:
            Catalog().explain(178)
        self.assertIn("Xid 177", caught.exception.nearest)
        for wrong in ("", "seven", "79abc"):
            self.assertRaises(UnknownCodeError, Catalog().explain, wrong)


class Ring:
    """A kernel ring of `size` records behind the reader's `read`, with /dev/kmsg's behavior."""

    def __init__(self, size=1000):
        self.size = size
        self.records = []
        self.first = 0

    def say(self, text, prefix=4, usec=None):
        seq = self.first + len(self.records)
        usec = seq * 1000 if usec is None else usec
        self.records.append(b"%d,%d,%d,-;%s\n" % (prefix, seq, usec, text.encode()))
        if len(self.records) > self.size:
            del self.records[0]
            self.first += 1

    def reader(self):
        ring = self

        class Reader(kmsg.KmsgReader):
            def __init__(self):
                kmsg.KmsgReader.__init__(self, os.devnull)
                self.read = self.read_ring
                self.at = ring.first

            def read_ring(self, _fd, _size):
                if self.at < ring.first:
                    self.at = ring.first
                    raise OSError(errno.EPIPE, "overrun")
                if self.at - ring.first >= len(ring.records):
                    raise BlockingIOError
                self.at += 1
                return ring.records[self.at - 1 - ring.first]

        return Reader()


class Machine(unittest.TestCase):
    """The monitor on a made-up kernel ring, without systemd."""

    def setUp(self):
        self.dir = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.dir)
        self.log = os.path.join(self.dir, "gpuevent.log")
        self.ring = Ring()

    def monitor(self, boot=None, problem=None, **settings):
        conf = config.check(dict({"log": self.log}, **settings), "test")
        place = checkpoint.PositionFile(os.path.join(self.dir, "position"))
        monitor = Monitor(conf, self.ring.reader(), place)
        monitor.boot = boot or monitor.boot
        monitor.start(problem)
        return monitor

    def said(self):
        """The levels of the lines that the journal gets from now on."""
        levels = []
        self.addCleanup(setattr, module, "say", module.say)
        module.say = lambda level, text: levels.append(level)
        return levels

    def kill(self, monitor):
        """What kill -9 leaves: nothing flushed, nothing said, the lock gone."""
        os.close(monitor.position.fd)
        monitor.position.fd = -1
        monitor.log.close()

    def forget_position(self):
        os.unlink(os.path.join(self.dir, "position"))

    def rows(self, path=None):
        with open(path or self.log, "rb") as file:
            return [json.loads(line) for line in file]

    def events(self, *kinds):
        return [row for row in self.rows() if row["event"] in (kinds or ("xid", "sxid"))]

    def seqs(self, *paths):
        """Sequence numbers of all events in the log, repeats as often as they were counted."""
        result = []
        for path in paths or (self.log,):
            for row in self.rows(path):
                if row["event"] in ("xid", "sxid"):
                    result += [row["seq"]] * row.get("count", 1)
        return result

    def test_event_is_one_line_with_the_time_first(self):
        monitor = self.monitor()
        self.ring.say(XID_79)
        monitor.work()
        start = self.rows()[0]
        self.assertEqual(start["event"], "start")
        self.assertLessEqual({"version", "boot_id", "driver", "gpus"}, set(start))
        with open(self.log) as file:
            last = file.readlines()[-1]
        self.assertRegex(last, r'^\{"time":"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z",')
        row = json.loads(last)
        self.assertEqual((row["xid"], row["pci"], row["pid"]), (79, "0000:3b:00", None))
        self.assertEqual((row["seq"], row["severity"], row["raw"]), (0, "fatal", XID_79))
        self.assertNotIn("injected", row)
        self.ring.say(XID_31.replace("app", "a, b") % 1, prefix=12)  # from user space
        monitor.work()
        row = self.rows()[-1]
        self.assertEqual((row["injected"], row["process"]), (True, "a, b"))

    def test_event_names_its_machine_once_cloud_init_knows(self):
        data = os.path.join(self.dir, "instance-data.json")
        self.addCleanup(setattr, host, "INSTANCE_DATA", host.INSTANCE_DATA)
        host.INSTANCE_DATA = data
        monitor = self.monitor(fold_window_s=0)
        self.ring.say(XID_31 % 0)
        monitor.work()
        self.assertNotIn("image_id", self.rows()[-1])
        known = {"instance-id": "i-0a", "ami-id": "ami-0b", "instance-type": "p4d.24xlarge"}
        for key in ("meta_data", "meta-data"):  # older and newer ones
            with open(data, "w") as file:
                json.dump({"ds": {key: known}, "v1": {}}, file)
            self.assertEqual(host.machine()["image_id"], "ami-0b")
        monitor._look_at = 0.0
        self.ring.say(XID_31 % 3)
        monitor.work()
        row = self.rows()[-1]
        names = ("instance_id", "image_id", "instance_type")
        self.assertEqual([row[key] for key in names], ["i-0a", "ami-0b", "p4d.24xlarge"])

    def test_invalid_configuration_is_an_event(self):
        self.monitor(problem="/etc/kiln/gpu-xid.json: unknown key 'logg'")
        (row,) = self.events("config-error")
        self.assertEqual(row["severity"], "error")
        self.assertIn("unknown key", row["raw"])

    def test_events_before_the_start_are_caught_up(self):
        self.ring.say("NVRM: GPU at PCI:0000:3b:00: GPU-b6c3b2be-c55b-d076-fa0e-d464e4c7e08b")
        self.ring.say(XID_79)
        monitor = self.monitor()
        row = self.rows()[-1]
        self.assertEqual((row["event"], row["catchup"]), ("xid", True))
        self.assertTrue(row["uuid"].startswith("GPU-b6c3"))
        self.ring.say(XID_31 % 1)
        monitor.work()
        self.assertNotIn("catchup", self.rows()[-1])

    def test_restart_neither_loses_nor_repeats(self):
        first = self.monitor()
        for number in range(10):
            self.ring.say(XID_31.replace("3b", "%02x" % number) % number)
        first.work()
        first.stop()
        for number in range(10, 20):
            self.ring.say(XID_31.replace("3b", "%02x" % number) % number)
        self.monitor()
        self.assertEqual(self.seqs(), list(range(20)))
        self.assertEqual([row["previous"] for row in self.events("start")], [None, "stop"])

    def test_kill_loses_and_repeats_no_first_event(self):
        for position_lost in (False, True):
            self.ring = Ring()
            self.log = os.path.join(self.dir, "log %s" % position_lost)
            first = self.monitor()
            for number in range(30):  # every third repeats and is counted, the others differ
                line = XID_31 % number if number % 3 else XID_31.replace("3b", "%02x" % number) % 1
                self.ring.say(line)
            first.work()
            self.kill(first)
            if position_lost:
                self.forget_position()
            for number in range(30, 33):
                self.ring.say(XID_31.replace("3b", "%02x" % number) % 1)
            self.monitor().stop()
            pcis = [row["pci"] for row in self.events() if row["pci"] != "0000:3b:00"]
            expected = ["0000:%02x:00" % n for n in range(33) if n >= 30 or n % 3 == 0]
            self.assertEqual(sorted(pcis), expected)
            self.assertEqual([row["previous"] for row in self.events("start")][1:], ["killed"])
            self.forget_position()

    def test_kill_while_an_sxid_waits_for_its_details_loses_nothing(self):
        head = "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, "
        first = self.monitor()
        self.ring.say(head + "Fatal, Link 48 LTSSM Fault Up")
        self.ring.say(XID_79)  # written after it, so that the log is in the kernel's order
        first.work()
        self.assertEqual(self.seqs(), [])
        self.kill(first)
        self.ring.say(head + "Severity 1 Engine instance 48")
        self.ring.say(head + "Data {0x10000000}")
        self.monitor().stop()
        self.assertEqual(self.seqs(), [0, 1])
        self.assertEqual(len(self.events("sxid")[0]["detail"]), 2)

    def test_sxid_waits_no_longer_than_for_both_details(self):
        head = "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, "
        monitor = self.monitor(fold_window_s=0)
        for text in ("Fatal, Link 48 LTSSM Fault Up", "Severity 1 Engine", "Data {0x10000000}"):
            self.ring.say(head + text)
        monitor.work()
        self.assertEqual(self.seqs(), [0])
        self.ring.say(head + "Fatal, Link 48 LTSSM Fault Up")
        monitor.work()
        self.assertGreater(monitor.timeout_ms(), 0)
        monitor.waiting[0]["due"] = 0
        monitor.work()
        self.assertEqual(self.seqs(), [0, 3])

    def test_stop_writes_what_waits_and_what_was_not_read(self):
        monitor = self.monitor()
        self.ring.say("nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 48")
        monitor.work()
        self.ring.say(XID_79)
        monitor.stop()
        self.assertEqual(self.seqs(), [0, 1])

    def test_it_sleeps_until_the_kernel_speaks_and_ends_on_sigterm(self):
        monitor = self.monitor()
        wake, kernel = os.pipe()
        os.set_blocking(wake, False)
        os.dup2(wake, monitor.reader.fd)
        works, real, seen, spins = [], monitor.work, [], threading.Event()

        def work():
            works.append(1)
            if len(works) > 50:
                spins.set()
            with contextlib.suppress(BlockingIOError):
                os.read(wake, 1)
            real()

        systemd = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.addCleanup(systemd.close)
        systemd.bind(os.path.join(self.dir, "notify"))
        self.addCleanup(os.environ.pop, "NOTIFY_SOCKET")
        os.environ["NOTIFY_SOCKET"] = systemd.getsockname()

        def speak():
            spins.wait(0.2)
            self.ring.say(XID_79)
            os.write(kernel, b"x")
            end = time.monotonic() + 60
            while not self.seqs() and time.monotonic() < end:
                time.sleep(0.01)
            seen.extend(self.seqs())
            os.kill(os.getpid(), signal.SIGTERM)

        monitor.work = work
        for number in (signal.SIGTERM, signal.SIGINT):
            self.addCleanup(signal.signal, number, signal.getsignal(number))
        self.addCleanup(signal.set_wakeup_fd, -1)
        thread = threading.Thread(target=speak)
        thread.start()
        monitor.run()
        thread.join()
        self.assertEqual(seen, [0])
        self.assertEqual(self.rows()[-1]["event"], "stop")
        self.assertFalse(spins.is_set())
        self.assertTrue(systemd.recv(4096, socket.MSG_DONTWAIT).startswith(b"READY=1\n"))

    def test_torn_last_line_is_completed(self):
        first = self.monitor()
        self.ring.say(XID_79)
        self.ring.say(XID_31 % 1)
        first.work()
        self.kill(first)
        self.forget_position()  # power loss: only the log is left
        with open(self.log, "r+b") as file:
            file.truncate(os.path.getsize(self.log) - 25)
        self.monitor().stop()
        self.assertEqual(self.seqs(), [0, 1])

    def test_overrun_is_an_event_with_the_exact_count(self):
        self.ring = Ring(size=5)
        said, monitor = self.said(), self.monitor()
        self.ring.say("other")
        monitor.work()
        self.assertEqual(monitor.position.load()["seq"], 0)
        for number in range(20):
            self.ring.say("other")
        monitor.work()
        row = self.rows()[-1]
        self.assertEqual((row["event"], row["lost"]), ("overrun", 15))
        self.assertEqual((row["lost_from"], row["lost_to"]), (1, 15))
        self.assertEqual(said, [4])

    def test_records_overwritten_between_two_runs_are_counted(self):
        self.ring = Ring(size=5)
        self.ring.say("other")
        self.monitor().stop()
        for number in range(20):
            self.ring.say("other")
        self.monitor()
        row = self.events("overrun")[-1]
        self.assertEqual((row["lost"], row["before_start"]), (15, True))

    def test_storm_is_one_event_at_once_and_one_count(self):
        monitor = self.monitor()
        for number in range(1000):
            self.ring.say(XID_31 % number, usec=number)
        monitor.work()
        self.assertEqual(self.seqs(), [0])
        monitor.stop()
        _first, counted = self.events()
        self.assertEqual(counted["count"], 999)
        self.assertEqual((counted["first_seq"], counted["seq"]), (1, 999))
        self.assertTrue(counted["raw"].endswith("Ch %08x" % 999))

    def test_count_is_written_when_its_window_ends(self):
        monitor = self.monitor(fold_window_s=1)
        for number in range(3):
            self.ring.say(XID_31 % number, usec=number)
        monitor.work()
        self.assertGreater(monitor.timeout_ms(), 0)
        for window in monitor.fold._windows.values():
            window.due = 0
        monitor.work()
        self.assertEqual(self.events()[-1]["count"], 2)
        self.assertIsNone(monitor.timeout_ms())

    def test_storm_read_late_is_counted_by_the_kernels_seconds(self):
        monitor = self.monitor()
        for number in range(350):
            self.ring.say(XID_31 % number, usec=number * 10000)
        monitor.work()
        monitor.stop()
        counts = [row.get("count", 1) for row in self.events()]
        self.assertEqual(counts, [1, 99, 1, 99, 1, 99, 1, 49])

    def test_different_faults_are_not_counted_together(self):
        monitor = self.monitor()
        nvlink = "NVRM: Xid (PCI:0000:3b:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link %02d (0x1 0x0)"
        lines = [
            XID_31 % 1,
            (XID_31 % 1).replace("3b", "4c"),
            (XID_31 % 1).replace("name=app", "name=other"),
            (XID_31 % 1) + " caused by previous Xid 94",
            (XID_31 % 1).replace("name=app", "name=train.3"),
            (XID_31 % 1).replace("name=app", "name=train.4"),
            nvlink % 8,
            nvlink % 9,
        ]
        for line in lines:
            self.ring.say(line)
        self.ring.say(XID_31 % 1, prefix=12)  # from user space
        monitor.work()
        self.assertEqual(self.seqs(), list(range(9)))

    def test_more_faults_at_once_than_are_followed_lose_no_count(self):
        monitor = self.monitor()
        for number in range(900):
            line = XID_31.replace("pid=7", "pid=%d" % (number if number % 3 else 0))
            self.ring.say(line % number, usec=number)
        monitor.work()
        self.assertLessEqual(len(monitor.fold._windows), 256)
        monitor.stop()
        self.assertEqual(len(self.seqs()), 900)

    def test_what_is_learned_between_two_events_is_in_the_second(self):
        monitor = self.monitor()
        uuid = "GPU-b6c3b2be-c55b-d076-fa0e-d464e4c7e08b"
        driver = "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 2023"
        self.ring.say(XID_31.replace("pid=7", "pid=1") % 1)
        self.ring.say("NVRM: GPU at PCI:0000:3b:00: " + uuid)
        self.ring.say(driver)
        for line in (driver.replace("535", "999"), "NVRM: GPU at PCI:0000:3b:00: GPU-" + "0" * 32):
            self.ring.say(line, prefix=8)  # from user space
        self.ring.say(XID_31.replace("pid=7", "pid=2") % 2)
        monitor.work()
        rows = self.events()
        self.assertEqual([row["uuid"] for row in rows], [None, uuid])
        self.assertEqual(rows[1]["driver"], "535.129.03")
        self.assertEqual([row["driver"] for row in self.events("driver")], ["535.129.03"])

    def test_rotation_keeps_every_event_and_the_checkpoint(self):
        monitor = self.monitor(max_bytes=4096, keep=50, fold_window_s=0)
        for number in range(100):
            self.ring.say(XID_31 % number)
            monitor.work()
            self.assertTrue(os.path.exists(self.log))
        self.kill(monitor)
        self.forget_position()
        self.monitor(max_bytes=4096, keep=50, fold_window_s=0).stop()
        names = [os.path.join(self.dir, n) for n in os.listdir(self.dir) if n.startswith("gpue")]
        self.assertGreater(len(names), 5)
        self.assertEqual(sorted(self.seqs(*names)), list(range(100)))

    def test_rotation_keeps_as_many_files_as_asked(self):
        monitor = self.monitor(max_bytes=4096, keep=2, fold_window_s=0)
        for number in range(60):
            self.ring.say(XID_31 % number)
            monitor.work()
        names = [name for name in os.listdir(self.dir) if name.startswith("gpuevent")]
        self.assertEqual(sorted(names), ["gpuevent.log", "gpuevent.log.1", "gpuevent.log.2"])

    def test_rotation_from_outside_is_followed(self):
        monitor = self.monitor()
        self.ring.say(XID_79)
        monitor.work()
        os.rename(self.log, self.log + "-20261121")
        with open(self.log, "w"):  # logrotate's `create`
            pass
        self.ring.say(XID_31 % 1)
        monitor.work()
        self.assertEqual(self.seqs(), [1])
        self.kill(monitor)
        os.rename(self.log, self.log + "-20261122")
        self.monitor().stop()
        self.assertEqual(self.seqs(), [])

    def test_log_that_cannot_be_renamed_grows_and_loses_no_file(self):
        def rename(old, new):
            raise OSError(errno.EPERM, "append-only")

        with open(self.log + ".1", "w") as file:
            file.write("{}\n")
        Instead(self, log, os, rename=rename)
        monitor = self.monitor(max_bytes=4096, keep=3, fold_window_s=0)
        for number in range(40):
            self.ring.say(XID_31 % number)
            monitor.work()
        self.assertEqual(self.seqs(), list(range(40)))
        self.assertTrue(os.path.exists(self.log + ".1"))

    def test_full_disk_loses_nothing_and_says_so_when_it_must(self):
        self.addCleanup(setattr, log, "MAX_WAITING", log.MAX_WAITING)
        log.MAX_WAITING = 10
        said, monitor = self.said(), self.monitor(fold_window_s=0)
        monitor.log.path = "/dev/full"
        monitor.log.close()
        for number in range(15):
            self.ring.say(XID_31 % number)
        monitor.work()
        self.assertIsNotNone(monitor.log.error)
        monitor.log.path, monitor.log.retry_at = self.log, None
        monitor.work()
        self.assertEqual(self.seqs(), list(range(10)))
        row = self.rows()[-1]
        self.assertEqual((row["event"], row["events"]), ("dropped", 5))
        self.assertEqual(said, [3, 6])  # five are lost; writable again

    def test_hooks_get_an_event_again_that_a_kill_kept_from_the_log(self):
        got = []
        first = self.monitor()
        first.spool.put = lambda line: got.append((line["seq"], "catchup" in line))
        first.log.path = "/dev/full"
        first.log.close()
        self.ring.say(XID_79)
        first.work()
        self.kill(first)
        self.monitor().stop()
        self.assertEqual(got, [(0, False)])
        self.assertEqual([(row["seq"], row["catchup"]) for row in self.events()], [(0, True)])

    def test_program_ends_without_a_kernel_log_or_beside_another(self):
        conf = config.check({"log": self.log}, "test")
        problems = [None, "unknown key 'logg'", None]
        self.addCleanup(setattr, config, "effective", config.effective)
        config.effective = lambda path: (conf, problems.pop())
        said = self.said()
        other = checkpoint.PositionFile(self.log + ".position")
        self.assertEqual(module.main("", os.devnull), 1)
        other.close()
        self.assertEqual(said, [3])
        self.addCleanup(setattr, Monitor, "run", Monitor.run)
        Monitor.run = Monitor.stop
        self.assertEqual(module.main("", os.devnull), 0)
        events = [row["event"] for row in self.rows()]
        self.assertEqual((said, events), ([3, 3], ["start", "config-error", "stop"]))
        self.assertEqual(module.main("", "/nonexistent"), 1)

    def test_events_that_miss_the_hooks_are_said_once(self):
        said, monitor = self.said(), self.monitor()
        monitor.spool.dropped = 2
        monitor.work()
        monitor.work()
        self.assertEqual(said, [3])

    def test_locked_log_is_waited_for(self):
        said, monitor = self.said(), self.monitor()
        with open(self.log) as other:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.ring.say(XID_79)
            monitor.work()
            monitor.work()  # it is not tried again at once
            self.assertEqual(self.seqs(), [])
            self.assertEqual(monitor.log.error.strerror, "another process holds its lock")
        monitor.log.retry_at = None
        monitor.work()
        monitor.work()
        self.assertEqual(self.seqs(), [0])
        self.assertEqual(said, [3, 6])  # cannot write; writable again

    def test_write_cut_short_leaves_whole_lines_only(self):
        monitor = self.monitor(fold_window_s=0)
        for line in (XID_79, XID_31 % 1, XID_31 % 2):
            self.ring.say(line)
        Instead(self, log, os, write=lambda fd, data: os.write(fd, data[: len(data) // 2]))
        monitor.work()
        log.os = os
        self.rows()  # every line is whole
        monitor.log.retry_at = None
        monitor.work()
        self.assertEqual(self.seqs(), [0, 1, 2])

    def test_burst_larger_than_one_pass_is_written_without_a_wake_up(self):
        self.ring = Ring(size=20000)
        monitor = self.monitor()
        for number in range(10500):
            self.ring.say(XID_31 % number, usec=number)
        monitor.work()
        self.assertEqual(monitor.timeout_ms(), 0)
        while monitor.timeout_ms() == 0:
            monitor.work()
        monitor.stop()
        self.assertEqual(len(self.seqs()), 10500)

    def test_full_disk_is_tried_ever_more_rarely(self):
        now, waits = [0.0], []
        Instead(self, log, time, monotonic=lambda: now[0])
        events = log.EventLog(self.log, 4096, 2, lambda count: b"")
        for path in ["/dev/full"] * 8 + [self.log, "/dev/full"]:
            events.path = path
            events.close()
            events.add(b"{}\n")
            events.flush()
            waits.append(round((events.retry_at or now[0]) - now[0], 3))
            now[0] += waits[-1]
        self.assertEqual(waits, [0.1, 1, 2, 5, 15, 30, 30, 30, 0, 0.1])

    def test_disk_that_fails_at_fsync_is_tried_again_later(self):
        monitor = self.monitor()
        errors = [OSError(errno.EIO, "I/O error")]

        def fsync(fd):
            if errors:
                raise errors.pop()

        Instead(self, log, os, fsync=fsync)
        self.ring.say(XID_79)
        began = time.monotonic()
        monitor.work()
        self.assertGreater(monitor.log.retry_at, began + 0.01)
        monitor.log.retry_at = began
        monitor.work()
        self.assertIsNone(monitor.log.error)
        self.assertIsNone(monitor.timeout_ms())
        self.assertEqual(self.seqs(), [0])

    def test_changed_clock_moves_the_time_and_loses_nothing(self):
        shift = [0]
        now = int(time.clock_gettime(time.CLOCK_MONOTONIC) * 1000000)
        Instead(self, event, time, time=lambda: time.time() + shift[0])
        first = self.monitor()
        for number, hours in enumerate((0, -5, 5)):
            shift[0] = hours * 3600
            self.ring.say(XID_31.replace("3b", "%02x" % number) % number, usec=now)
            first.work()
        self.kill(first)
        self.monitor().stop()
        self.assertEqual(self.seqs(), [0, 1, 2])
        times = [row["time"] for row in self.events()]
        self.assertLess(times[1], times[0])
        self.assertLess(times[0], times[2])

    def test_time_of_an_event_is_as_long_ago_as_the_kernel_says(self):
        Instead(self, event, time, clock_gettime=lambda _: 500.0, time=lambda: 1700000000.0)
        monitor = self.monitor()
        self.ring.say(XID_79, usec=496000000)
        self.ring.say(XID_31 % 1, usec=999000000)  # a kernel clock that runs fast
        monitor.work()
        times = [row["time"] for row in self.events()]
        self.assertEqual(times, ["2023-11-14T22:13:16.000000Z", "2023-11-14T22:13:20.000000Z"])

    def test_log_behind_a_link_rotates_where_it_is(self):
        disk = os.path.join(self.dir, "disk")
        os.mkdir(disk)
        os.symlink(os.path.join(disk, "gpuevent.log"), self.log)
        monitor = self.monitor(max_bytes=4096, keep=9, fold_window_s=0)
        for number in range(20):
            self.ring.say(XID_31 % number)
            monitor.work()
        self.assertTrue(os.path.islink(self.log))
        paths = [os.path.join(disk, name) for name in os.listdir(disk)]
        self.assertGreater(len(paths), 1)
        self.assertEqual(sorted(self.seqs(*paths)), list(range(20)))

    def test_new_boot_begins_anew(self):
        first = self.monitor()
        self.ring.say(XID_79)
        first.work()
        first.stop()
        self.ring = Ring()
        self.ring.say(XID_79, usec=77)
        self.monitor(boot="f" * 32)
        self.assertEqual(self.seqs(), [0, 0])

    def test_line_that_our_code_cannot_handle_does_not_stop_the_next(self):
        said, monitor = self.said(), self.monitor()
        real = monitor.catalog.classify

        def classify(fields, driver):
            if fields["xid"] == 31:
                raise RuntimeError("a bug")
            return real(fields, driver)

        monitor.catalog.classify = classify
        monitor.gpus.learn = None  # another one
        self.ring.say("NVRM: GPU at PCI:0000:3b:00: GPU-b6c3b2be-c55b-d076-fa0e-d464e4c7e08b")
        self.ring.say(XID_31 % 1)
        self.ring.say(XID_79)
        monitor.work()
        rows = self.rows()[1:]
        self.assertEqual([row["event"] for row in rows], ["unhandled"] * 2 + ["xid"])
        self.assertEqual(said, [3, 3])
        self.assertIn("GPU at PCI", rows[0]["raw"])
        self.assertIn("Xid (PCI:0000:3b:00): 31", rows[1]["raw"])

    def test_gpu_lost_without_an_xid_is_reported_once(self):
        monitor = self.monitor()
        lost = "NVRM: GPU 0000:%s:00.0: GPU has fallen off the bus."
        self.ring.say(lost % "29", prefix=12)  # a drill hides no real one
        for line in (lost % "29", lost % "29", XID_79, lost % "3b"):
            self.ring.say(line)
        monitor.work()
        rows = self.events("gpu-lost")
        self.assertEqual([row["pci"] for row in rows], ["0000:29:00.0", "0000:29:00.0"])
        self.assertEqual((rows[1]["severity"], rows[1]["implied_xid"]), ("fatal", 79))
        self.kill(monitor)
        self.monitor().stop()
        self.assertEqual(len(self.events("gpu-lost")), 2)


class Small(unittest.TestCase):
    def test_kmsg_escapes_are_undone(self):
        record = b"12,346,1803145136,-;name=pyth\\xc3\\xb6n\\x5cx, esc\\x09tab\n SUBSYSTEM=pci\n"
        self.assertEqual(
            kmsg.decode(record.decode()), (12, 346, 1803145136, "name=pyth\u00f6n\\x, esc\ttab")
        )

    def test_bad_configuration_is_one_clear_sentence(self):
        for given, words in (
            ({"logg": 1}, "unknown key 'logg'"),
            ({"keep": "5"}, "keep is '5'"),
            ({"max_bytes": 1}, "max_bytes is 1"),
            ({"log": "x"}, "absolute path"),
            ({"hooks": {"dir": "xid.d"}}, "hooks.dir is 'xid.d'; it must be an absolute path"),
            ({"hooks": {"codes": [63]}}, "63 is not a code"),
            ({"severity": {"xid 63": "bad"}}, "'bad' is not a severity"),
            ([], "must be a JSON object"),
        ):
            with self.assertRaises(config.BadConfigError) as caught:
                config.check(given, "/etc/kiln/gpu-xid.json")
            self.assertIn(words, str(caught.exception))
            self.assertIn("gpu-xid.json", str(caught.exception))

    def test_invalid_file_leaves_the_defaults_in_force(self):
        for text in (b"{", b"[" * 100000, b'{"logg": 1}', b"\xff"):
            with tempfile.NamedTemporaryFile(suffix=".json") as file:
                file.write(text)
                file.flush()
                conf, problem = config.effective(file.name)
            self.assertEqual(conf, config.check({}, "defaults"))
            self.assertIn(file.name, problem)
        self.assertEqual(config.effective("/nonexistent.json")[1], None)


if __name__ == "__main__":
    unittest.main()

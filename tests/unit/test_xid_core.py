"""The Xid event parser as it ships: no pytest, so that every Python from 3.7 on can run it.

`python3.7 tests/unit/test_xid_core.py` works too (see test_xid_pythons.py).
"""
# ruff: noqa: B007, PTH100, PTH103, PTH104, PTH108, PTH110, PTH118, PTH120, PTH123, PTH202, PTH208, UP031

import datetime
import errno
import fcntl
import json
import os
import re
import shutil
import sys
import tempfile
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "runtime", "opt", "kiln", "lib"))

from gpu_xid import checkpoint, config, event, fold, hooks, host, kmsg  # noqa: E402
from gpu_xid.catalogue import Catalogue  # noqa: E402
from gpu_xid.explain import UnknownCodeError, explain  # noqa: E402
from gpu_xid.monitor import Monitor  # noqa: E402
from gpu_xid.parse import set_message_starts  # noqa: E402
from gpu_xid.pipeline import messages  # noqa: E402

CORPUS = os.path.join(ROOT, "tests", "data", "xid", "lines.jsonl")
UNKNOWN = "pid='<unknown>', name=<unknown>"
XID_79 = "NVRM: Xid (PCI:0000:3b:00): 79, %s, GPU has fallen off the bus." % UNKNOWN
XID_31 = "NVRM: Xid (PCI:0000:3b:00): 31, pid=7, name=app, Ch %08x"


def corpus():
    with open(CORPUS, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def message(line):
    """An archived line without what stands before the driver's message."""
    return re.sub("^.*?(?=NVRM: |nvidia-nvswitch)", "", line)


class Corpus(unittest.TestCase):
    """476 kernel lines from issues, tests and the driver's format strings."""

    def setUp(self):
        set_message_starts(Catalogue().entry("message starts"))

    def test_messages_of_the_corpus_have_every_field(self):
        for row in corpus():
            wanted = row["event"] or row.get("note")
            if not wanted or row["line"].count("NVRM") > 1 or "\\x" in row["line"]:
                continue
            with self.subTest(row["line"]):
                (fields,) = messages(message(row["line"]))
                if row["event"]:
                    Catalogue().classify(fields)
                    self.assertIn(fields["severity"], ("fatal", "error", "warning", "info"))
                for key, value in wanted.items():
                    if key in fields and key != "injected":
                        self.assertEqual(fields[key], value)

    def test_a_user_supplied_severity_wins(self):
        fields = messages("NVRM: Xid (PCI:0000:01:00): 63, Row Remapper: New row")[0]
        Catalogue(overrides={"xid 63": "fatal"}).classify(fields)
        self.assertEqual(fields["severity"], "fatal")

    def test_a_record_of_two_lines_may_hold_two_events(self):
        self.assertEqual([f["xid"] for f in messages(XID_79 + "\n" + XID_31 % 1)], [79, 31])
        (item,) = messages(XID_79 + "\nmore of it")
        self.assertTrue(item["raw"].endswith("\nmore of it"))


class Explain(unittest.TestCase):
    def test_a_code_may_be_written_in_any_way(self):
        for code in (79, "79", "xid79", "Xid 79", "XID:79"):
            self.assertEqual(explain(code)["name"], "GPU has fallen off the bus")
        self.assertEqual(explain("sxid 12028")["kind"], "sxid")
        self.assertEqual(explain(12028)["kind"], "sxid")

    def test_an_unknown_code_names_the_nearest(self):
        with self.assertRaises(UnknownCodeError) as caught:
            explain(178)
        self.assertIn("Xid 177", caught.exception.nearest)
        for wrong in ("", "seven", "xid", "-1", "79abc", "9" * 30):
            self.assertRaises(UnknownCodeError, explain, wrong)


def unix_us(row):
    """The time of a line of the log as UNIX microseconds."""
    second, _, micro = row["time"].rstrip("Z").partition(".")
    at = datetime.datetime.strptime(second + "+0000", "%Y-%m-%dT%H:%M:%S%z")
    return int(at.timestamp()) * 1000000 + int(micro)


class Forgetful(dict):
    """Keeps nothing: every line is the first of its kind."""

    def __setitem__(self, key, value):
        pass


class Ring:
    """A kernel ring of `size` records behind the reader's `read`, with /dev/kmsg's behaviour."""

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

            def rewind(self):
                kmsg.KmsgReader.rewind(self)
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

    def monitor(self, **settings):
        conf = config.check(dict({"log": self.log}, **settings), "test")
        place = checkpoint.PositionFile(os.path.join(self.dir, "position"))
        monitor = Monitor(conf, self.ring.reader(), place, environ={})
        monitor.start()
        return monitor

    def kill(self, monitor):
        """What kill -9 leaves: nothing flushed, nothing said, the lock gone."""
        os.close(monitor.position_file.fd)
        monitor.position_file.fd = -1
        monitor.log.close()

    def rows(self, path=None):
        with open(path or self.log, "rb") as file:
            return [json.loads(line) for line in file]

    def seqs(self, *paths):
        """Sequence numbers of all events in the log, folded ones unfolded as far as counted."""
        result = []
        for path in paths or (self.log,):
            for row in self.rows(path):
                if row["event"] in ("xid", "sxid"):
                    result += [row["seq"]] * row.get("count", 1)
        return result

    def test_an_event_is_one_line_with_the_time_first(self):
        monitor = self.monitor()
        self.ring.say(XID_79)
        monitor.work()
        with open(self.log) as file:
            last = file.readlines()[-1]
        self.assertRegex(last, r'^\{"time":"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z",')
        row = json.loads(last)
        self.assertEqual((row["xid"], row["pci"], row["pid"]), (79, "0000:3b:00", None))
        self.assertEqual((row["seq"], row["severity"], row["raw"]), (0, "fatal", XID_79))
        self.assertNotIn("injected", row)

    def test_an_event_says_on_which_machine_it_was_once_cloud_init_knows(self):
        data = os.path.join(self.dir, "instance-data.json")
        self.addCleanup(setattr, host, "INSTANCE_DATA", host.INSTANCE_DATA)
        host.INSTANCE_DATA = data
        monitor = self.monitor(fold_window_s=0)
        for number in range(2):  # the second line is made from the first
            self.ring.say(XID_31 % number)
            monitor.work()
        self.assertNotIn("image_id", self.rows()[-1])
        known = {"instance-id": "i-0a", "ami-id": "ami-0b", "instance-type": "p4d.24xlarge"}
        for key in ("meta_data", "meta-data"):  # older and newer ones
            with open(data, "w") as file:
                json.dump({"ds": {key: known}, "v1": {}}, file)
            self.assertEqual(host.machine()["image_id"], "ami-0b")
        monitor.lines.next_look = 0.0
        self.ring.say(XID_31 % 3)
        monitor.work()
        row = self.rows()[-1]
        self.assertEqual(
            [row[key] for key in ("instance_id", "image_id", "instance_type")],
            ["i-0a", "ami-0b", "p4d.24xlarge"],
        )

    def test_what_cloud_init_left_elsewhere_or_broken_stops_no_event(self):
        self.addCleanup(setattr, host, "INSTANCE_DATA", host.INSTANCE_DATA)
        host.INSTANCE_DATA = os.path.join(self.dir, "instance-data.json")
        for text in ("", "[]", "{", '{"ds": null}', '{"ds": {"meta_data": {"ami-id": 7}}}'):
            with open(host.INSTANCE_DATA, "w") as file:
                file.write(text)
            self.assertEqual(host.machine(), {})

    def test_the_start_record_tells_no_xid_from_no_monitor(self):
        self.monitor()
        row = self.rows()[0]
        self.assertEqual(row["event"], "start")
        for key in ("version", "boot_id", "driver", "gpus"):
            self.assertIn(key, row)

    def test_a_line_from_user_space_is_kept_and_marked(self):
        self.ring.say(XID_79, prefix=12)
        self.monitor()
        self.assertIs(self.rows()[-1]["injected"], True)

    def test_what_happened_before_the_start_is_caught_up(self):
        self.ring.say("NVRM: GPU at PCI:0000:3b:00: GPU-b6c3b2be-c55b-d076-fa0e-d464e4c7e08b")
        self.ring.say(XID_79)
        self.monitor()
        row = self.rows()[-1]
        self.assertEqual((row["event"], row["catchup"]), ("xid", True))
        self.assertTrue(row["uuid"].startswith("GPU-b6c3"))

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

    def test_kill_while_events_are_held_back_neither_loses_nor_repeats(self):
        first = self.monitor()
        for number in range(30):  # one repeats and is folded, the others differ
            self.ring.say(XID_31 % number if number % 3 else XID_31.replace("3b", "%02x" % number))
        first.work()
        written = len(self.seqs())
        self.assertLess(written, 30)
        self.kill(first)
        second = self.monitor()
        second.stop()
        self.assertEqual(len(self.seqs()), 30)
        third = self.monitor()
        third.stop()
        self.assertEqual(len(self.seqs()), 30)

    def test_kill_after_a_lost_gpu_was_written_ahead_of_a_storm_does_not_report_it_again(self):
        first = self.monitor()
        for number in range(3):
            self.ring.say(XID_31 % number)
        self.ring.say("NVRM: GPU 0000:29:00.0: GPU has fallen off the bus.")
        first.work()
        self.kill(first)
        self.monitor().stop()
        self.assertEqual([row["event"] for row in self.rows()].count("gpu-lost"), 1)
        self.assertEqual(len(self.seqs()), 3)

    def test_a_torn_last_line_is_completed(self):
        first = self.monitor()
        self.ring.say(XID_79)
        self.ring.say(XID_31 % 1)
        first.work()
        self.kill(first)
        os.unlink(os.path.join(self.dir, "position"))  # power loss: only the log is left
        with open(self.log, "r+b") as file:
            file.truncate(os.path.getsize(self.log) - 25)
        self.monitor().stop()
        self.assertEqual(self.seqs(), [0, 1])

    def test_an_overrun_is_an_event_with_the_exact_count(self):
        self.ring = Ring(size=5)
        monitor = self.monitor()
        self.ring.say("other")
        monitor.work()
        for number in range(20):
            self.ring.say("other")
        monitor.work()
        row = self.rows()[-1]
        self.assertEqual((row["event"], row["lost"]), ("overrun", 15))
        self.assertEqual((row["lost_from"], row["lost_to"]), (1, 15))

    def test_records_overwritten_between_two_runs_are_counted(self):
        self.ring = Ring(size=5)
        self.ring.say("other")
        self.monitor().stop()
        for number in range(20):
            self.ring.say("other")
        self.monitor()
        row = [row for row in self.rows() if row["event"] == "overrun"][-1]
        self.assertEqual((row["lost"], row["exact"]), (15, True))

    def test_a_storm_is_folded_into_one_line_with_a_count(self):
        monitor = self.monitor()
        for number in range(1000):
            self.ring.say(XID_31 % number, usec=number)
        monitor.work()
        self.assertEqual(len(self.seqs()), 1)  # the first one, at once
        monitor.stop()
        rows = [row for row in self.rows() if row["event"] == "xid"]
        self.assertEqual(len(rows), 2)
        self.assertEqual(rows[1]["count"], 999)
        self.assertEqual((rows[1]["first_seq"], rows[1]["seq"]), (1, 999))

    def test_a_storm_of_two_hours_leaves_a_line_a_window(self):
        monitor = self.monitor(fold_window_s=60)
        for second in range(7200):
            self.ring.say(XID_31 % second, usec=second * 1000000)
            monitor.work()
        monitor.stop()
        self.assertEqual(len(self.seqs()), 7200)
        self.assertLess(len(self.rows()), 130)

    def test_different_faults_are_not_folded_together(self):
        monitor = self.monitor()
        self.ring.say(XID_31 % 1)
        self.ring.say((XID_31 % 1).replace("3b", "4c"))
        self.ring.say((XID_31 % 1).replace("name=app", "name=other"))
        self.ring.say((XID_31 % 1) + " caused by previous Xid 94")
        self.ring.say((XID_31 % 1).replace("name=app", "name=train.3"))
        self.ring.say((XID_31 % 1).replace("name=app", "name=train.4"))
        nvlink = "NVRM: Xid (PCI:0000:3b:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link %02d (0x1 0x0)"
        self.ring.say(nvlink % 8)
        self.ring.say(nvlink % 9)
        monitor.work()
        self.assertEqual(len(self.rows()), 9)

    def test_a_storm_on_eight_gpus_is_folded_for_each_and_the_newest_line_is_kept(self):
        monitor = self.monitor()
        for number in range(800):
            line = XID_31.replace("3b", "%02x" % (number % 8)) % number
            self.ring.say(line, usec=number)
        monitor.work()
        monitor.stop()
        rows = [row for row in self.rows() if row.get("count")]
        self.assertEqual([row["count"] for row in rows], [99] * 8)
        for gpu, row in enumerate(rows):
            self.assertEqual(row["pci"], "0000:%02x:00" % gpu)
            self.assertTrue(row["raw"].endswith("Ch %08x" % (792 + gpu)))
            self.assertEqual((row["seq"], row["monotonic_us"]), (792 + gpu, 792 + gpu))

    def test_a_storm_that_changes_its_process_or_its_text_is_not_counted_on(self):
        monitor = self.monitor()
        for number in range(3):
            self.ring.say(XID_31 % number)
        for other in (
            XID_31.replace("pid=7,", "pid=77,") % 3,
            XID_31.replace("name=app,", "name=app, Ch,") % 4,
            XID_31 % 5 + ", intr 10000000",
            XID_31 % 6 + ", Ch 7",
            XID_31 % 8 + ", Ch 9",
            XID_31.replace("Ch", "bh") % 10 + ", Ch 11",  # a name that looks like a channel
        ):
            self.ring.say(other)
        monitor.work()
        monitor.stop()
        self.assertEqual(
            [(row.get("count", 1), row["pid"], row["process"]) for row in self.rows()[1:-1]],
            [
                (1, 7, "app"),
                (1, 77, "app"),
                (1, 7, "app, Ch"),
                (1, 7, "app"),
                (1, 7, "app"),
                (1, 7, "app, bh 0000000a"),
                (2, 7, "app"),
                (1, 7, "app"),
            ],
        )

    def test_a_storm_that_is_read_late_is_folded_by_the_kernels_seconds(self):
        monitor = self.monitor()
        for number in range(3500):
            self.ring.size = 4000
            self.ring.say(XID_31 % number, usec=number * 1000)
        monitor.work()
        monitor.stop()
        rows = [row for row in self.rows() if row["event"] == "xid"]
        self.assertEqual([row.get("count", 1) for row in rows], [1, 999, 1000, 1000, 500])

    def test_what_repeats_after_its_window_was_written_is_counted_anew(self):
        monitor = self.monitor()
        for step in range(3):
            for number in range(10):
                self.ring.say(XID_31 % number, usec=step)
            monitor.work()
            monitor.lines.due(float("inf"))
        monitor.stop()
        self.assertEqual(len(self.seqs()), 30)

    def test_the_recovery_action_of_a_folded_154_is_that_of_its_own_line(self):
        monitor = self.monitor()
        line = "NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x0 to 0x%d"
        for code in (1, 2, 4):
            self.ring.say(line % code)
        monitor.work()
        monitor.stop()
        rows = [row for row in self.rows() if row["event"] == "xid"]
        self.assertEqual([row["raw"][-1] for row in rows], ["1", "4"])
        recoveries = [row["recovery"] for row in rows]
        self.assertEqual(recoveries, ["GPU Reset Required", "Drain and Reset"])

    def test_more_faults_at_once_than_are_followed_lose_no_count(self):
        self.ring = Ring(size=5000)
        monitor = self.monitor()
        for number in range(3 * fold.MAX_KEYS):
            line = XID_31.replace("pid=7", "pid=%d" % (number if number % 3 else 0))
            self.ring.say(line % number, usec=number)
        monitor.work()
        self.assertLessEqual(len(monitor.lines.storm.ends), fold.MAX_KEYS)
        monitor.stop()
        self.assertEqual(len(self.seqs()), 3 * fold.MAX_KEYS)
        self.assertLess(len(self.rows()), 2.2 * fold.MAX_KEYS)

    def test_a_line_from_user_space_is_not_counted_among_the_kernels(self):
        monitor = self.monitor()
        for number in range(12):
            self.ring.say(XID_31 % number, prefix=12 if number % 4 == 0 else 4)
        monitor.work()
        monitor.stop()
        rows = [row for row in self.rows() if row["event"] == "xid"]
        self.assertEqual(
            [(row.get("count", 1), row.get("injected", False)) for row in rows],
            [(1, True), (1, False), (8, False), (2, True)],
        )

    def test_a_line_that_is_like_an_earlier_one_says_the_same_as_if_it_were_the_first(self):
        marked = [(row["line"], 4) for row in corpus()] + [(row["line"], 12) for row in corpus()]
        # Not the SXids: when these are written depends on the clock.
        lines = [(message(line).replace("\\", "/"), n) for line, n in marked if "SXid" not in line]
        written = []
        for forget in (False, True):
            self.log = os.path.join(self.dir, "forget %s.log" % forget)
            self.ring = Ring(size=5000)
            monitor = self.monitor(log=self.log, fold_window_s=0)
            if forget:
                monitor.lines.templates = Forgetful()
            for number, (line, prefix) in enumerate(lines):
                for more in (line, line.replace("pid=", "pid=1"), line.replace("Ch ", "Ch 1")):
                    if "\n" not in more:
                        self.ring.say(more, prefix=prefix)
                # One write for thirty lines: seven versions of Python run this.
                if number % 10 == 9 or number == len(lines) - 1:
                    monitor.work()
            self.kill(monitor)
            os.unlink(os.path.join(self.dir, "position"))
            rows = self.rows()
            for row in rows:
                del row["time"]
            written.append([row for row in rows if row["event"] == "xid"])
        self.assertGreater(len(written[0]), 1000)
        self.assertEqual(len(written[0]), len(written[1]))
        for number, row in enumerate(written[0]):
            self.assertEqual(list(row.items()), list(written[1][number].items()))

    def test_what_is_learned_between_two_events_is_in_the_second(self):
        monitor = self.monitor()
        uuid = "GPU-b6c3b2be-c55b-d076-fa0e-d464e4c7e08b"
        driver = "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 2023"
        self.ring.say(XID_31.replace("pid=7", "pid=1") % 1)
        self.ring.say("NVRM: GPU at PCI:0000:3b:00: " + uuid)
        self.ring.say(XID_31.replace("pid=7", "pid=2") % 2)
        self.ring.say(driver)
        self.ring.say(XID_31.replace("pid=7", "pid=3") % 3)
        monitor.work()
        rows = [row for row in self.rows() if row["event"] == "xid"]
        self.assertEqual([row["uuid"] for row in rows], [None, uuid, uuid])
        self.assertEqual(rows[2]["driver"], "535.129.03")
        conf = config.check({"log": self.log, "severity": {"xid 31": "fatal"}}, "test")
        monitor.lines.configure(conf)
        self.ring.say(XID_31.replace("pid=7", "pid=4") % 4)
        monitor.work()
        self.assertEqual(self.rows()[-1]["severity"], "fatal")

    def test_an_event_that_says_its_cause_is_not_taken_for_one_that_does_not(self):
        monitor = self.monitor()
        for pid, cause in enumerate(
            ("", " caused by previous Xid 94", " caused by previous Xid 95")
        ):
            self.ring.say((XID_31 % 1).replace("pid=7", "pid=%d" % pid) + cause)
            self.ring.say((XID_31 % 1).replace("pid=7", "pid=1%d" % pid) + cause)
        monitor.work()
        causes = [row.get("caused_by_xid") for row in self.rows()[1:]]
        self.assertEqual(causes, [None, None, 94, 94, 95, 95])

    def test_like_events_while_another_is_held_back_say_so_each(self):
        monitor = self.monitor()
        for pid in (1, 7, 7, 2, 3):  # the second 7 is held back
            self.ring.say(XID_31.replace("pid=7", "pid=%d" % pid) % 1)
        monitor.work()
        self.assertEqual([row.get("safe") for row in self.rows()[1:]], [None, None, 1, 1])

    def test_like_events_are_marked_as_caught_up_until_the_start_and_not_after_it(self):
        for pid in (1, 2):
            self.ring.say(XID_31.replace("pid=7", "pid=%d" % pid) % 1)
        monitor = self.monitor()
        for pid in (3, 4):
            self.ring.say(XID_31.replace("pid=7", "pid=%d" % pid) % 1)
        monitor.work()
        rows = [row for row in self.rows() if row["event"] == "xid"]
        self.assertEqual([row.get("catchup") for row in rows], [True, True, None, None])

    def test_no_text_of_the_driver_begins_with_what_ends_a_process_name(self):
        for start in Catalogue().entry("message starts"):
            self.assertNotIn(",", start)  # parse.fixed_start rests on it

    def test_folding_can_be_switched_off(self):
        monitor = self.monitor(fold_window_s=0)
        for number in range(10):
            self.ring.say(XID_31 % number)
        monitor.work()
        self.assertEqual(self.seqs(), list(range(10)))

    def test_raw_writes_the_kernel_line_and_nothing_else(self):
        first = self.monitor(format="raw")
        self.ring.say("nothing of ours")
        self.ring.say(XID_79, usec=1234567)
        first.work()
        self.kill(first)
        self.ring.say(XID_31 % 1, usec=2000000)
        self.monitor(format="raw").stop()
        with open(self.log) as file:
            self.assertEqual(
                file.read(), "[    1.234567] %s\n[    2.000000] %s\n" % (XID_79, XID_31 % 1)
            )

    def test_raw_repeats_nothing_when_killed_before_its_position_was_saved(self):
        first = self.monitor(format="raw")
        self.ring.say(XID_79)
        first.work()
        with open(os.path.join(self.dir, "position")) as file:
            saved = file.read()
        self.ring.say(XID_31 % 1)
        self.ring.say(XID_31 % 2)
        first.work()
        self.kill(first)
        with open(os.path.join(self.dir, "position"), "w") as file:
            file.write(saved)
        self.monitor(format="raw").stop()
        with open(self.log) as file:
            self.assertEqual(len(file.readlines()), 3)

    def test_own_rotation_keeps_every_event_and_the_checkpoint(self):
        monitor = self.monitor(max_bytes=4096, keep=50, fold_window_s=0)
        for number in range(100):
            self.ring.say(XID_31 % number)
            monitor.work()
        self.kill(monitor)
        os.unlink(os.path.join(self.dir, "position"))
        self.monitor(max_bytes=4096, keep=50, fold_window_s=0).stop()
        names = [os.path.join(self.dir, n) for n in os.listdir(self.dir) if n.startswith("gpue")]
        self.assertGreater(len(names), 5)
        self.assertEqual(sorted(self.seqs(*names)), list(range(100)))

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

    def test_a_kill_after_a_rotation_from_outside_repeats_nothing_that_was_written_ahead(self):
        monitor = self.monitor()
        for number in range(6):  # one at once, five held back to be folded
            self.ring.say(XID_31 % number)
        self.ring.say(XID_79)  # written while those are held back
        monitor.work()
        moved = self.log + "-20261121"
        os.rename(self.log, moved)
        self.kill(monitor)
        self.monitor().stop()
        self.assertEqual(len(self.seqs(self.log, moved)), 7)

    def test_a_full_disk_loses_nothing_and_says_so_when_it_must(self):
        monitor = self.monitor(queue_lines=10, fold_window_s=0)
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

    def test_hooks_get_an_event_again_whose_line_was_not_written_before_a_kill(self):
        got = []

        class Spool:
            dropped = 0

            def __init__(self, conf):
                pass

            def put(self, line):
                got.append((line["seq"], line.get("catchup", False)))
                return True

        self.addCleanup(setattr, hooks, "Spool", hooks.Spool)
        hooks.Spool = Spool
        first = self.monitor()
        first.log.path = "/dev/full"
        self.ring.say(XID_79)
        first.work()
        self.kill(first)
        self.monitor().stop()
        self.assertEqual(got, [(0, False), (0, True)])
        self.assertEqual(self.seqs(), [0])

    def test_a_log_that_somebody_else_has_locked_is_waited_for(self):
        monitor = self.monitor()
        with open(self.log) as other:
            fcntl.flock(other, fcntl.LOCK_EX)
            self.ring.say(XID_79)
            monitor.work()
            self.assertEqual(self.seqs(), [])
            self.assertEqual(monitor.log.error.strerror, "another process holds its lock")
        monitor.log.retry_at = None
        monitor.work()
        self.assertEqual(self.seqs(), [0])

    def test_a_write_cut_short_leaves_whole_lines_only(self):
        from gpu_xid import log as log_module

        monitor = self.monitor(fold_window_s=0)
        real = os.write

        class Short:
            def __getattr__(self, name):
                return getattr(os, name)

            @staticmethod
            def write(fd, data):
                return real(fd, data[: len(data) // 2])

        self.ring.say(XID_79)
        self.ring.say(XID_31 % 1)
        self.ring.say(XID_31 % 2)
        log_module.os = Short()
        try:
            monitor.work()
        finally:
            log_module.os = os
        self.rows()  # every line is whole
        monitor.log.retry_at = None
        monitor.work()
        self.assertEqual(self.seqs(), [0, 1, 2])

    def test_a_burst_larger_than_one_pass_is_written_without_the_kernels_next_word(self):
        self.ring = Ring(size=20000)
        monitor = self.monitor(fold_window_s=0)
        for number in range(10500):
            self.ring.say(XID_31 % number)
        monitor.work()
        while monitor.timeout_ms() == 0:
            monitor.work()
        self.assertEqual(len(self.seqs()), 10500)

    def test_a_disk_that_fails_only_at_fsync_is_tried_again_and_not_in_a_tight_loop(self):
        from gpu_xid import log as log_module

        monitor = self.monitor()
        trouble = [OSError(errno.EIO, "I/O error")]

        class Failing:
            def __getattr__(self, name):
                return getattr(os, name)

            @staticmethod
            def fsync(fd):
                if trouble:
                    raise trouble.pop()

        log_module.os = Failing()
        self.addCleanup(setattr, log_module, "os", os)
        self.ring.say(XID_79)
        began = time.monotonic()
        monitor.work()
        self.assertGreater(monitor.log.retry_at, began + 0.01)
        monitor.log.retry_at = began
        monitor.work()
        self.assertIsNone(monitor.log.error)
        self.assertIsNone(monitor.timeout_ms())
        self.assertEqual(self.seqs(), [0])

    def test_a_log_that_cannot_be_renamed_costs_no_rotated_file(self):
        from gpu_xid import log as log_module

        for number in (1, 2, 3):
            with open("%s.%d" % (self.log, number), "w") as file:
                file.write("{}\n")
        asked = []

        class Fixed:
            def __getattr__(self, name):
                return getattr(os, name)

            def link(self, old, new):
                asked.append(old)
                raise OSError(errno.EPERM, "append-only")

        log_module.os = Fixed()
        self.addCleanup(setattr, log_module, "os", os)
        monitor = self.monitor(max_bytes=4096, keep=3, fold_window_s=0)
        for number in range(40):
            self.ring.say(XID_31 % number)
            monitor.work()
        self.assertEqual(self.seqs(), list(range(40)))
        for number in (1, 2, 3):
            self.assertTrue(os.path.exists("%s.%d" % (self.log, number)))
        self.assertIn(len(asked), range(1, 40), "not at every line")

    def test_a_rotation_never_leaves_the_path_without_a_file(self):
        from gpu_xid import log as log_module

        present = []

        class Watched:
            def __getattr__(self, name):
                function = getattr(os, name)
                if name not in ("link", "rename", "unlink", "open"):
                    return function

                def watched(*given):
                    done = function(*given)
                    present.append(os.path.exists(log_path))
                    return done

                return watched

        monitor = self.monitor(max_bytes=4096, keep=3, fold_window_s=0)
        log_path = self.log
        log_module.os = Watched()
        self.addCleanup(setattr, log_module, "os", os)
        for number in range(40):
            self.ring.say(XID_31 % number)
            monitor.work()
        self.assertGreater(len(present), 10)
        self.assertTrue(all(present))

    def test_a_rotation_cut_short_by_a_kill_is_finished_and_keeps_every_file(self):
        for left in (".0", ".1", ".new", ".0 of an older log"):
            os.makedirs(os.path.join(self.dir, left))
            self.log = os.path.join(self.dir, left, "gpuevent.log")
            self.ring = Ring()
            settings = {"log": self.log, "max_bytes": 4096, "keep": 50, "fold_window_s": 0}
            monitor = self.monitor(**settings)
            self.ring.say(XID_31 % 0)
            monitor.work()
            self.kill(monitor)
            if left in (".0", ".1"):  # as far as it came
                os.link(self.log, self.log + left)
            elif left == ".new":
                os.link(self.log, self.log + ".1")
                with open(self.log + left, "w") as file:
                    file.write('{"half a li')
            else:
                os.rename(self.log, self.log + ".0")
            monitor = self.monitor(**settings)
            for number in range(1, 40):
                self.ring.say(XID_31 % number)
                monitor.work()
            self.kill(monitor)
            os.unlink(os.path.join(self.dir, "position"))
            folder = os.path.dirname(self.log)
            names = [os.path.join(folder, n) for n in os.listdir(folder)]
            self.assertNotIn(self.log + ".0", names)
            self.assertNotIn(self.log + ".new", names)
            self.assertGreater(len(names), 3)
            self.assertEqual(sorted(self.seqs(*names)), list(range(40)), left)

    def test_a_changed_clock_moves_the_time_and_loses_or_repeats_nothing(self):
        real, shift = time.time, [0]

        class Clock:
            clock_gettime, CLOCK_MONOTONIC = time.clock_gettime, time.CLOCK_MONOTONIC
            gmtime = time.gmtime

            @staticmethod
            def time():
                return real() + shift[0]

        now = int(time.clock_gettime(time.CLOCK_MONOTONIC) * 1000000)
        event.time = Clock
        self.addCleanup(setattr, event, "time", time)
        first = self.monitor()
        for number, hours in enumerate((0, -5, 5)):
            shift[0] = hours * 3600
            self.ring.say(XID_31.replace("3b", "%02x" % number) % number, usec=now)
            first.work()
        self.kill(first)
        self.monitor().stop()
        self.assertEqual(self.seqs(), [0, 1, 2])
        times = [row["time"] for row in self.rows() if row["event"] == "xid"]
        self.assertLess(times[1], times[0])
        self.assertLess(times[0], times[2])

    def test_two_events_read_at_once_have_the_times_at_which_they_happened(self):
        monitor = self.monitor()
        now = int(time.clock_gettime(time.CLOCK_MONOTONIC) * 1000000)
        for number, ago in enumerate((9000000, 4000000, 3999999)):
            self.ring.say(XID_31.replace("3b", "%02x" % number) % number, usec=now - ago)
        monitor.work()
        at = [unix_us(row) for row in self.rows() if row["event"] == "xid"]
        self.assertEqual((at[1] - at[0], at[2] - at[1]), (5000000, 1))

    def test_the_time_of_an_event_is_as_long_ago_as_the_kernel_had_it(self):
        class Clock:
            CLOCK_MONOTONIC, gmtime = time.CLOCK_MONOTONIC, time.gmtime
            clock_gettime = staticmethod(lambda clock: 500.0)
            time = staticmethod(lambda: 1700000000.0)

        event.time = Clock
        self.addCleanup(setattr, event, "time", time)
        monitor = self.monitor()
        self.ring.say(XID_79, usec=496000000)
        monitor.work()
        at = [unix_us(row) for row in self.rows() if row["event"] == "xid"]
        self.assertEqual(at, [1699999996000000])

    def test_an_event_of_a_kernel_clock_that_runs_fast_is_not_in_the_future(self):
        monitor = self.monitor()
        now = int(time.clock_gettime(time.CLOCK_MONOTONIC) * 1000000)
        self.ring.say(XID_79, usec=now - 1000)
        self.ring.say(XID_31 % 1, usec=now + 3600000000)
        monitor.work()
        at = [unix_us(row) for row in self.rows() if row["event"] == "xid"]
        self.assertLessEqual(at[0], at[1])
        self.assertLess(at[1], time.time() * 1000000 + 1)

    def test_a_second_monitor_on_the_same_log_is_refused(self):
        self.monitor()
        with self.assertRaises(checkpoint.BusyError):
            checkpoint.PositionFile(os.path.join(self.dir, "position"))

    def test_a_new_boot_id_on_the_same_kernel_repeats_nothing(self):
        first = self.monitor()
        self.ring.say(XID_79)
        first.work()
        first.stop()
        conf = config.check({"log": self.log}, "test")
        place = checkpoint.PositionFile(os.path.join(self.dir, "position"))
        monitor = Monitor(conf, self.ring.reader(), place, environ={})
        monitor.boot = monitor.lines.boot = "f" * 32
        monitor.start()
        self.assertEqual(self.seqs(), [0])

    def test_a_new_boot_begins_anew(self):
        first = self.monitor()
        self.ring.say(XID_79)
        first.work()
        first.stop()
        self.ring = Ring()
        self.ring.say(XID_79, usec=77)
        conf = config.check({"log": self.log}, "test")
        place = checkpoint.PositionFile(os.path.join(self.dir, "position"))
        monitor = Monitor(conf, self.ring.reader(), place, environ={})
        monitor.boot = monitor.lines.boot = "f" * 32
        monitor.start()
        self.assertEqual(self.seqs(), [0, 0])

    def test_a_line_our_own_code_cannot_bear_does_not_stop_the_next(self):
        monitor = self.monitor()
        real = monitor.lines.catalogue.classify

        def classify(fields, driver):
            if fields["xid"] == 31:
                raise RuntimeError("a bug")
            return real(fields, driver)

        monitor.lines.catalogue.classify = classify
        self.ring.say(XID_31 % 1)
        self.ring.say(XID_79)
        monitor.work()
        rows = self.rows()[1:]
        self.assertEqual([row["event"] for row in rows], ["unhandled", "xid"])
        self.assertIn("Xid (PCI:0000:3b:00): 31", rows[0]["raw"])

    def test_a_gpu_lost_without_an_xid_is_reported_once(self):
        monitor = self.monitor()
        self.ring.say("NVRM: GPU 0000:29:00.0: GPU has fallen off the bus.")
        self.ring.say("NVRM: GPU 0000:29:00.0: GPU has fallen off the bus.")
        self.ring.say(XID_79)
        self.ring.say("NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.")
        monitor.work()
        rows = [row for row in self.rows() if row["event"] == "gpu-lost"]
        self.assertEqual([(row["pci"], row["xid"]) for row in rows], [("0000:29:00.0", None)])
        self.assertEqual(rows[0]["severity"], "fatal")


class Small(unittest.TestCase):
    def test_json_nested_too_deeply_is_invalid_and_no_crash(self):
        deep = "[" * 100000
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            file.write(deep)
            file.flush()
            with self.assertRaisesRegex(config.BadConfigError, "not valid JSON"):
                config.load(file.name)
        with tempfile.NamedTemporaryFile("w", suffix=".log") as file:
            file.write(deep + '\n{"boot_id": "b", "monotonic_us": 5}\n')
            file.flush()
            self.assertEqual(checkpoint.logged_until(file.name), {"b": 5})

    def test_a_line_with_holes_filled_is_the_line(self):
        fields = messages("NVRM: Xid (PCI:0000:3b:00): 31, pid=7, name=100 %s, Ch 1")[0]
        fields.update(seq=1, usec=2, injected=False, action="sell 50 % of it, %s, %%")
        line = event.gpu_event(fields, 0, "b" * 32, 1, 2)
        filled = json.loads(event.fill(event.template(line), fields, 0))
        self.assertEqual(list(filled.items()), list(line.items()))

    def test_kmsg_escapes_are_undone(self):
        record = b"12,346,1803145136,-;name=pyth\\xc3\\xb6n\\x5cx, esc\\x09tab\n SUBSYSTEM=pci\n"
        self.assertEqual(
            kmsg.decode(record.decode()), (12, 346, 1803145136, "name=pyth\u00f6n\\x, esc\ttab")
        )

    def test_a_bad_configuration_is_one_clear_sentence(self):
        for given, words in (
            ({"logg": 1}, "unknown key 'logg'"),
            ({"keep": "5"}, "keep is '5'"),
            ({"keep": True}, "keep is True"),
            ({"max_bytes": 1}, "max_bytes is 1"),
            ({"format": "xml"}, "format is 'xml'"),
            ({"keep": 2.5}, "keep is 2.5; it must be a whole number"),
            ({"log": "x"}, "absolute path"),
            ({"hooks": {"dir": "xid.d"}}, "hooks.dir is 'xid.d'; it must be an absolute path"),
            ({"hooks": {"codes": [63]}}, "hooks.codes has 63"),
            ({"severity": {"xid 063": "fatal"}}, "severity has 'xid 063'"),
            ({"severity": {"63": "fatal"}}, "a key looks like"),
            ({"severity": {"xid 63": "bad"}}, "the severities are"),
            ({"hooks": {"severity": ["bad"]}}, "the severities are"),
            ([], "must be a JSON object"),
        ):
            with self.assertRaises(config.BadConfigError) as caught:
                config.check(given, "/etc/kiln/gpu-xid.json")
            self.assertIn(words, str(caught.exception))
            self.assertIn("gpu-xid.json", str(caught.exception))


if __name__ == "__main__":
    unittest.main()

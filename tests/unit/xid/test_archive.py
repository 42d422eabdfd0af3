"""Archived logs of any form become events; lines that another program wrote do not."""
# ruff: noqa: RUF015, UP031

from __future__ import annotations

import gzip
import io
import json
import unittest
from pathlib import Path

import pytest
from invoke import Context

from kiln.base.errors import KilnError
from kiln.cli import gpu
from kiln.xid.archive import LeftOut, events
from tests.unit.xid.test_monitor import XID_31, XID_79, corpus

OPTIONAL = ("gpu_instance", "compute_instance", "caused_by_xid", "nvswitch", "word", "link")


class Corpus(unittest.TestCase):
    """476 kernel lines from issues, tests and the driver's format strings."""

    def test_every_event_is_found_with_every_field_right(self):
        for row in corpus():
            if row["event"] is None:
                continue
            with self.subTest(row["line"]):
                result = list(events(row["line"].split("\n")))
                self.assertEqual(len(result), 1)
                self.assertIn(result[0]["severity"], ("fatal", "error", "warning", "info"))
                self.assertTrue(result[0]["action"])
                code = result[0]["xid"] or result[0]["sxid"]
                if code not in (999, 99999, 20123):
                    self.assertTrue(result[0]["name"], row["line"])
                for key, wanted in row["event"].items():
                    self.assertEqual(
                        result[0].get(key, False if key == "injected" else None), wanted
                    )
                nvlink = result[0]["xid"] in range(144, 151)
                for key in OPTIONAL:
                    if key not in row["event"] and not nvlink:
                        self.assertIsNone(result[0].get(key), key)

    def test_no_look_alike_is_taken_for_an_event(self):
        for row in corpus():
            if row["event"] is None:
                lost = [row["note"]] if row.get("note", {}).get("kind") == "gpu-lost" else []
                with self.subTest(row["line"]):
                    found = list(events(row["line"].split("\n")))
                    kinds = [{"kind": event["event"], "pci": event["pci"]} for event in found]
                    self.assertEqual(kinds, lost)


class Meaning(unittest.TestCase):
    def one(self, line):
        result = list(events(line.split("\n")))
        self.assertEqual(len(result), 1, line)
        return result[0]

    def test_aws_action_stands_where_aws_says_otherwise(self):
        result = self.one("NVRM: Xid (PCI:0000:3b:00): 13, pid=7, name=a, Graphics Exception: ESR")
        self.assertIn("CUDA_LAUNCH_BLOCKING=1", result["action"])
        self.assertEqual(result["action_nvidia"], "restart the application")

    def test_nvlink_words_are_decoded(self):
        result = self.one(
            "NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 09 "
            "(0x025525c6 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)"
        )
        self.assertEqual(result["unit"], "NETIR_LINK_EVT")
        self.assertEqual((result["severity"], result["link"]), ("fatal", 9))
        self.assertEqual(result["resolution"], "RESET_GPU")
        self.assertEqual(result["investigate"], "INVESTIGATE_PEER_DEVICE")

    def test_nvlink_words_of_a_newer_driver_are_read(self):
        lines = [
            "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build",
            "NVRM: Xid (PCI:0000:04:00): 145, RLW_REMAP Fatal XC0 i0 Link 00 "
            "(0x00000004 0x00000040 0x00000000 0x00000000)",
        ]
        result = list(events(lines))[0]
        self.assertEqual((result["resolution"], result["driver"]), ("RESET_GPU", "580.95.05"))

    def test_xid_154_is_judged_by_its_number(self):
        line = "NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x0 (None) to %s"
        for text, severity, recovery in (
            ("0x0 (None)", "info", "None"),
            ("0x2 (Reboot)", "fatal", "Node Reboot Required"),
            ("0x2", "fatal", "Node Reboot Required"),
            ("0x1 (Drain and Reset)", "fatal", "GPU Reset Required"),
            ("0x6 (PCIe Reset)", "fatal", "Bus Reset"),
            ("0x7 (Something)", "fatal", "System Reboot"),
            ("0x9 (Something New)", "error", "Something New"),
            ("0x9", "error", "0x9"),
        ):
            row = self.one(line % text)
            self.assertEqual((row["severity"], row["recovery"]), (severity, recovery), text)
        self.assertEqual(self.one(line.partition(" from")[0])["severity"], "error")

    def test_codes_that_changed_their_meaning_follow_the_driver(self):
        line = "NVRM: Xid (PCI:0000:01:00): 139, pid=7, name=a, Ch 1"
        old = "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 2023"
        self.assertEqual(list(events([old, line]))[0]["name"], "CUDA Fast Path Error")
        self.assertEqual(list(events([line]))[0]["name"], "OFA1 Error")

    def test_the_severity_word_of_an_sxid_is_believed(self):
        line = "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 10001, %s, PRI WRITE SYS error"
        self.assertEqual(self.one(line % "Fatal")["severity"], "fatal")
        self.assertEqual(self.one(line % "Non-fatal")["severity"], "warning")

    def test_an_unknown_code_is_an_event_without_a_name(self):
        result = self.one("NVRM: Xid (PCI:0000:01:00): 999, something new")
        self.assertEqual((result["xid"], result["name"], result["severity"]), (999, None, "error"))

    def test_an_indented_paste_is_read_line_by_line(self):
        lines = ["    [1.0] " + XID_79, "    [1.1] " + XID_31 % 1, "    [1.2] other"]
        self.assertEqual([result["xid"] for result in events(lines)], [79, 31])

    def test_time_is_given_when_the_prefix_says_it_fully(self):
        result = self.one("2026-09-14T20:30:27-0400 host kernel: " + XID_79)
        self.assertEqual(result["time"], "2026-09-15T00:30:27.000000Z")
        self.assertIsNone(self.one("Nov 20 12:00:00 host kernel: " + XID_79)["time"])


class Hostile(unittest.TestCase):
    """Archives come from anywhere: disk images, serial consoles, Windows, people who mean harm."""

    def codes(self, data):
        return [result["xid"] for result in events(io.BytesIO(data))]

    def test_files_of_windows_are_read(self):
        text = "\ufeff[    1.000000] %s\r\n[    2.000000] %s\r\n" % (XID_79, XID_31 % 1)
        self.assertEqual(self.codes(text.encode()), [79, 31])

    def test_the_colors_of_dmesg_are_taken_off(self):
        line = "\x1b[32m[    1.5] \x1b[0m\x1b[33mNVRM: \x1b[0m" + XID_79[6:] + "\n"
        self.assertEqual(self.codes(line.encode()), [79])


LINE = XID_31 % 8
SXID = "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"
SECOND = "2026-01-05T03:04:05.000000Z"
# Where a line was collected -> what stands around it, its time, its microseconds since boot.
FORMS = {
    "dmesg -d": ("[   12.000005 <    0.000012>] %s", None, 12000005),
    "dmesg -H": ("[Jan 5 03:04] %s", None, None),
    "dmesg --json": ('         "msg": "%s"', None, None),
    "dmesg that names the caller": ("[   12.000005] [   T1234] %s", None, 12000005),
    "journalctl -o json": (
        '{"MESSAGE":"%s","SYSLOG_FACILITY":"0","_SOURCE_MONOTONIC_TIMESTAMP":"12000005",'
        '"__REALTIME_TIMESTAMP":"1767582245123456"}',
        "2026-01-05T03:04:05.123456Z",
        12000005,
    ),
    "aws logs tail": (
        "2026-01-05T03:04:05.123000+00:00 i-0abcdef1234567890 [   12.000005] %s",
        "2026-01-05T03:04:05.123000Z",
        12000005,
    ),
    "a container's log": (
        "2026-01-05T03:04:05.123456789Z stdout F [   12.000005] %s",
        "2026-01-05T03:04:05.123457Z",
        12000005,
    ),
    "docker's log": ('{"log":"[   12.000005] %s\\n","stream":"stdout"}', None, 12000005),
    "grep -r": ("/var/log/kern.log:Jan  5 03:04:05 h kernel: [   12.000005] %s", None, 12000005),
    "a quote in an issue": ("> [   12.000005] %s", None, 12000005),
    "dmesg -T in French": ("[mer. avril 15 07:56:59 2026] %s", None, None),
    "rsyslog in RFC 5424": ("<4>1 2026-01-05T03:04:05Z h kernel - - -  %s", SECOND, None),
    "syslog-ng in RFC 5424": (
        '<4>1 2026-01-05T04:04:05+01:00 h kernel - - [m id="1"] \ufeff%s',
        SECOND,
        None,
    ),
    "a console behind a login prompt": ("ip-10-0-0-1 login: [   12.000005] %s", None, 12000005),
    "get-console-output": ('  "Output": "[0.0] x\\r\\n[12.000005] %s\\r\\n",', None, 12000005),
    "get-command-invocation": ('{"StandardOutputContent":"[12.000005] %s\\n"}', None, 12000005),
    "the event log itself": (
        '{"time":"2026-01-05T03:04:05.123456Z","event":"xid","monotonic_us":12000005,"raw":"%s"}',
        "2026-01-05T03:04:05.123456Z",
        12000005,
    ),
}


class Forms(unittest.TestCase):
    """How archived lines look: each way to collect them puts something else around."""

    def test_a_line_is_found_however_it_was_collected(self):
        for name, (form, when, usec) in FORMS.items():
            for line in (LINE, SXID):
                with self.subTest(name):
                    result = list(events([form % line, "[13.0] other"]))
                    self.assertEqual([row["raw"] for row in result], [line])
                    self.assertEqual((result[0]["time"], result[0]["monotonic_us"]), (when, usec))
                    self.assertNotIn("injected", result[0])

    def test_logs_are_read_as_cloudwatch_gives_them(self):
        ours = json.dumps({"time": "2026-01-05T03:04:05.000000Z", "event": "xid", "raw": LINE})
        bare = "[   12.000005] " + LINE
        for message in (ours, bare, LINE):
            text = json.dumps(message)
            for lines in (
                ["2026-01-05T03:04:05.123000+00:00 i-0abc/xid " + message],  # tail
                ["2026-01-05T03:04:05.123Z " + message],  # an export to S3
                [
                    "{",
                    '    "events": [',
                    "        {",
                    '            "message": %s,' % text,
                    "        }",
                ],
                ['{"events": [{"message": "other"}, {"timestamp": 1, "message": %s}]}' % text],
                ['[{"timestamp": 1, "message": %s}]' % text],  # jq -c .events
                ['{"timestamp": 1767582245123, "message": %s}' % text],  # jq -c '.events[]'
                ['{"field": "@message",', '    "value": %s' % text],  # get-query-results
                ["[", "    %s," % text],  # --query 'events[].message'
            ):
                with self.subTest(lines[-1]):
                    self.assertEqual([row["raw"] for row in events(lines)], [LINE])

    def test_pretty_answer_of_the_aws_command_is_read(self):
        ours = {"event": "xid", "raw": LINE}
        pretty = "2026-01-05T03:04:05+00:00 i-0abc " + json.dumps(ours, indent=4)
        self.assertEqual([row["raw"] for row in events(pretty.split("\n"))], [LINE])

    def test_gpu_lost_without_xid_is_an_event(self):
        line = "[ 7.0] NVRM: GPU 0000:29:00.0: GPU has fallen off the bus."
        three = [
            "[ 8.0] NVRM: The NVIDIA GPU 0000:b3:00.0",
            "[ 8.0] NVRM: (PCI ID: 10de:26b5) installed in this system has",
            "[ 8.0] NVRM: fallen off the bus and is not responding to commands.",
        ]
        found = list(events([line, *three, line, XID_79, line.replace("29", "3b")]))
        self.assertEqual(
            [(row["event"], row["pci"], row["xid"], row["severity"]) for row in found],
            [
                ("gpu-lost", "0000:29:00.0", None, "fatal"),
                ("gpu-lost", "0000:b3:00.0", None, "fatal"),
                ("xid", "0000:3b:00", 79, "fatal"),
            ],
        )

    def test_a_gpu_is_lost_again_after_the_driver_was_loaded_again(self):
        lost = "NVRM: GPU 0000:29:00.0: GPU has fallen off the bus."
        loaded = "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 2023"
        self.assertEqual([row["pci"] for row in events([lost, loaded, lost])], ["0000:29:00.0"] * 2)

    def test_a_message_of_the_journal_in_bytes_is_read(self):
        (row,) = events([json.dumps({"MESSAGE": list(LINE.encode()), "SYSLOG_FACILITY": "0"})])
        self.assertEqual((row["raw"], "injected" in row), (LINE, False))

    def test_what_user_space_wrote_is_marked_in_json_too(self):
        journal = '{"MESSAGE":"%s","SYSLOG_FACILITY":"1","SYSLOG_IDENTIFIER":"unknown"}' % LINE
        ours = '{"event":"xid","injected":true,"raw":"%s"}' % LINE
        for line in (journal, ours):
            self.assertIs(list(events([line]))[0]["injected"], True)

    def test_a_line_that_stands_for_many_says_how_many(self):
        (row,) = events(['{"event":"xid","count":3,"raw":"%s"}' % LINE])
        self.assertEqual((row["count"], row["raw"]), (3, LINE))

    def test_lines_of_another_program_are_left_out_and_counted(self):
        for form in (
            "Jan  5 03:04:05 h app: [   12.000005] %s",
            "Jan  5 03:04:05 h app: 2026-01-05T03:04:05Z %s",
            "app: %s",
            "Jan  5 03:04:05 app: kernel: %s",
            "Jan  5 03:04:05 h kern.err app: %s",
            "app[77]: [12] %s",
            '{"level":"error","msg":"%s"}',
            '{"event":"start","raw":"%s"}',
            '{"MESSAGE":"%s","_TRANSPORT":"stdout","SYSLOG_IDENTIFIER":"app"}',
            "I0105 03:04:05.551834       1 health.go:169] %s",
            'level=info msg="%s"',
        ):
            left_out = LeftOut()
            self.assertEqual(list(events(["other", form % LINE], left_out)), [], form)
            self.assertEqual(left_out, LeftOut(1, 2), form)

    def test_damaged_lines_are_counted_and_read_ones_are_not(self):
        left_out = LeftOut()
        sxid = SXID.partition("Fatal")[0]
        whole = ["[1.0] " + LINE, SXID, sxid + "Severity 1 Engine", sxid + "Data {0x1}"]
        damaged = ["[2.0] NVRM: Xid (PCI:0000:3b", '{"events":[{"message":"%s"}]' % LINE]
        self.assertEqual(len(list(events([*whole, *damaged], left_out))), 2)
        self.assertEqual(left_out, LeftOut(2, 5))


@pytest.mark.parametrize("content", [gzip.compress(XID_79.encode()), XID_79.encode("utf-16")])
def test_file_that_is_no_text_is_not_called_free_of_xids(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "export").write_bytes(content)
    with pytest.raises(KilnError, match="not a log that can be read") as refused:
        gpu.parse(Context(), file=str(tmp_path / "export"))
    assert refused.value.exit_status == 2

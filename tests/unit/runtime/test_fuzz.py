"""Every file and answer that the shipped programs read, damaged: no traceback, no endless loop.

Each target gets its corpus mutated by a seeded generator, and every attack of `ATTACKS`. What it
may raise is the one exception that its program reports as a message. KILN_FUZZ_INPUTS sets how many
inputs all targets get together (default 3,000; a long run: 1,000,000), KILN_FUZZ_SEED the seed.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import json
import os
import random
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kiln.base.paths import LIBRARY, ROOT, RUNTIME, runtime_module
from kiln.xid import archive
from tests.unit.mig.machine import in_process

pytestmark = pytest.mark.slow
INPUTS = int(os.environ.get("KILN_FUZZ_INPUTS", "3000"))
SEED = int(os.environ.get("KILN_FUZZ_SEED", "20261122"))
# CPU seconds for one input, far more than the slowest takes on a slow machine.
LIMIT_S = 60

m = {
    path.parent.name + "." + path.stem: runtime_module(path.parent.name + "." + path.stem)
    for path in LIBRARY.glob("gpu_*/*.py")
    if not path.stem.startswith("__")
}
MigError = m["gpu_mig.errors"].MigError
BadConfigError = m["gpu_xid.config"].BadConfigError


_PACKED = gzip.compress(b"#!/bin/sh\n# kiln:mig-config=all-1g.5gb\n", mtime=0)
BOMB = gzip.compress(bytes(64 << 20), 1, mtime=0)
ATTACKS = (
    *(b"", b"\n", b"\0" * 100, b"\xff\xfe\xfd", b"[" * 20_000, b'{"a":' * 10_000, b"9" * 5000),
    *b'null [] {} "text" -1e999 NaN \xc2\xb2 \xed\xa0\x80\xe2\x80\xae \x1f\x8b'.split(),
    *(b"xid \xc2\xb2", b"a" * 200_000, b",".join([b"a"] * 10_000), b'"' + b"a" * 200_000),
    *(_PACKED[:-1], _PACKED[:12], _PACKED + _PACKED, _PACKED + b"rubbish", BOMB),
    _PACKED[:20] + b"\xff\xff" + _PACKED[22:],
)
PIECES = (
    *b'" \' { } [ ] : , \0 \\ % # | < \xc2\xb2 \xd9\xa3 \xff -1 0 1e400 null NaN [] {} ""'.split(),
    *(b"\n", b"\r", b"\t", b"a" * 5000, b"9" * 4500, b"9" * 20),
)
ODD = (None, True, -1, 1 << 70, 1.5, "", "x", "\u00b2", [], {}, [[]], {"a": 1}, ["x"])


@dataclass(frozen=True)
class Target:
    """`read` gets an input; `may` are the exceptions that its program reports as a message."""

    name: str
    corpus: tuple[bytes, ...]
    read: Callable[[bytes], object]
    may: tuple[type[BaseException], ...] = ()


def mutate(rng: random.Random, data: bytes) -> bytes:
    """The input with some bytes cut, doubled, replaced or put in."""
    for _ in range(rng.randint(1, 4)):
        at, end = sorted((rng.randrange(len(data) + 1), rng.randrange(len(data) + 1)))
        end = min(end, at + 40)
        match rng.randrange(5):
            case 0:
                data = data[:at] + data[end:]
            case 1:
                data = data[:end] + data[at:end] + data[end:]
            case 2 | 3:
                data = data[:at] + rng.choice(PIECES) + data[at + rng.randrange(2) :]
            case _:
                data = data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
    return data


def retyped(rng: random.Random, value: Any) -> Any:
    """A JSON value of which one part has another type."""
    if isinstance(value, dict) and value and rng.random() < 0.8:
        key = rng.choice(sorted(value))
        return {**value, key: retyped(rng, value[key])}
    if isinstance(value, list) and value and rng.random() < 0.8:
        at = rng.randrange(len(value))
        return [*value[:at], retyped(rng, value[at]), *value[at + 1 :]]
    return rng.choice(ODD)


def inputs(target: Target, count: int, seed: int) -> Iterator[bytes]:
    yield from target.corpus
    yield from ATTACKS
    rng = random.Random(f"{seed} {target.name}")
    parsed = []
    for text in target.corpus:
        with contextlib.suppress(ValueError):
            parsed.append(json.loads(text))
    for _ in range(count):
        if parsed and rng.random() < 0.3:
            yield json.dumps(retyped(rng, rng.choice(parsed))).encode()
        else:
            yield mutate(rng, rng.choice(target.corpus))


def _too_long(*_: object) -> None:
    raise AssertionError(f"an input takes more than {LIMIT_S} s of CPU")


def fuzz(target: Target, count: int, seed: int) -> str:
    """Gives the target its inputs; the first that it does not handle, with the error, or ""."""
    before = signal.signal(signal.SIGVTALRM, _too_long)
    try:
        for data in inputs(target, count, seed):
            signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT_S)
            try:
                target.read(data)
            except target.may:
                pass
            except BaseException as error:
                shown = data if len(data) < 400 else data[:200] + b"..." + data[-100:]
                return f"{target.name}: {error!r} for {shown!r}"
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
    return ""


# --- the targets ---------------------------------------------------------------------------


class Place:
    """A folder for the files that are read, and fakes for what is run."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.monkeypatch = root, monkeypatch

    def file(self, path: str, data: bytes) -> str:
        full = self.root / path
        if not full.exists():
            full.parent.mkdir(parents=True, exist_ok=True)
        full.write_bytes(data)
        return str(full)


def xid_targets(place: Place) -> list[Target]:
    checkpoint, health, config = m["gpu_xid.checkpoint"], m["gpu_xid.health"], m["gpu_xid.config"]
    shipped = (RUNTIME / "etc/kiln/gpu-xid.json").read_bytes()
    row: dict[str, Any] = {
        "time": "2026-11-22T10:00:00.000Z", "event": "xid", "xid": 79, "sxid": None, "seq": 5,
        "monotonic_us": 7, "boot_id": "b", "severity": "fatal", "name": "n", "count": 2,
        "action": "a", "pci": "0000:3b:00", "gpu": 0, "first_seq": 4, "pid": 1, "process": "x",
        "raw": "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=x, GPU has fallen off the bus.",
    }  # fmt: skip
    coded = b'{"hooks": {"codes": ["xid 63"]}, "severity": {"xid 63": "fatal"}, "keep": 3}'
    log = json.dumps(row).encode()
    stop = json.dumps({**row, "event": "stop", "raw": None}).encode()
    position = json.dumps({"boot_id": "b", "seq": 5}).encode()
    archived = tuple(
        json.loads(line)["line"].encode()
        for line in (ROOT / "tests/data/xid/lines.jsonl").read_text().splitlines()
    )
    conf = config.check({"log": f"{place.root}/written.log"}, "fuzz")
    monitor = m["gpu_xid.monitor"].Monitor(
        conf, m["gpu_xid.kmsg"].KmsgReader("/dev/null"), checkpoint.PositionFile("/none/position")
    )

    def recover(log_data: bytes, position_data: bytes) -> None:
        path = place.file("event.log", log_data + b"\n" + log + b"\n")
        saved = checkpoint.PositionFile(place.file("position", position_data))
        checkpoint.recover(path, saved.load(), "b")
        saved.close()

    def query(data: bytes) -> None:
        text = data.decode("utf-8", "replace")
        health.registering(text)
        health.events(health.gpu_state(text), m["gpu_xid.host"].Gpus(()))

    return [
        Target("gpu-xid.json", (shipped, coded, coded.replace(b"63", "\u00b2".encode())),
               lambda data: config.load(place.file("gpu-xid.json", data)), (BadConfigError,)),
        Target("event log at a start", (log, stop), lambda data: recover(data, position)),
        Target("position file", (position,), lambda data: recover(log, data)),
        Target("kmsg records", tuple(b"4,5,6,-;" + line for line in archived[:200]),
               lambda data: monitor._take(data.decode("utf-8", "replace"))),
        Target("archived kernel logs", archived, lambda data: list(archive.events([data]))),
        Target("nvidia-smi remapped rows", (b"A100, 0000:3b:00.0, 0, 1, 2, 3\n",),
               lambda data: health.remapped_rows(data.decode("utf-8", "replace")),
               (m["gpu_common.nvidia_smi"].NvidiaSmiError,)),
        Target("nvidia-smi -q",
               (b"GPU 0000:3B:00.0\n    Fabric\n        State : Completed\n        Status : Success\n",),  # noqa: E501
               query),
    ]  # fmt: skip


def mig_targets(place: Place) -> list[Target]:
    imds, clients = m["gpu_mig.imds"], m["gpu_mig.clients"]
    place.monkeypatch.setenv("GPU_MIG_ROOT", str(place.root))
    place.monkeypatch.setattr(clients, "_run", lambda argv: 1)
    place.monkeypatch.setattr(m["gpu_mig.imds"], "machine_id", lambda: "i-1")
    listing = {name: text.encode() for name, text in _answers(place).items()}
    settings = m["gpu_mig.settings"].Settings()

    class Answer(m["gpu_mig.smi"].Smi):  # type: ignore[misc]
        """Gives one answer to every question, or the right one to all but `to`."""

        def __init__(self, data: bytes, to: str = "") -> None:
            super().__init__()
            self.data, self.to = data, to

        def run(self, *args: object) -> tuple[int, str]:
            key = next((name for name in listing if name in args), "")
            mine = not self.to or self.to == key
            answer = self.data if mine else listing.get(key, b"")
            return 0, answer.decode("utf-8", "replace")

    def launch(data: bytes) -> None:
        for status in (200, 404):
            answers = [(200, b"token"), (status, data), (200, data)]
            place.monkeypatch.setattr(imds, "_request", lambda *a, answers=answers: answers.pop(0))
            label, _ = imds.launch_label()
            assert isinstance(label, str)

    def state(data: bytes) -> None:
        boot = m["gpu_mig.boot"]
        for path in (boot.RESULT, clients.STOPPED, boot.MARKER, boot.THIS_BOOT):
            place.file(path.lstrip("/"), data)
        boot.reboot_once(MigError("x"), settings, lambda _: None)
        place.file(clients.STOPPED.lstrip("/"), data)
        clients.stop_listed(("a",), lambda _: None)
        clients.start_again(lambda _: None)

    def defaults(data: bytes) -> None:
        place.file("etc/default/gpu-mig", data)
        m["gpu_mig.settings"].load()

    gpu = m["gpu_mig.smi"].Gpu(0, "", "", "0x20B010DE", "", "", True, True)
    user_data = b"#!/bin/sh\n# kiln:mig-config=all-1g.5gb\n"
    config = m["gpu_mig.config"]
    layouts = (
        b'{"version": "v1", "mig-configs": {"a": [{"devices": [0, 1], "mig-enabled": true, "mig-devices": {"1g.5gb": 7}}]}}',  # noqa: E501
        b'{"version": "v1", "mig-configs": {"a": [{"devices": "all", "mig-enabled": true, "mig-devices": {"3g.20gb": 2}, "device-filter": "0x20B010DE"}]}}',  # noqa: E501
    )
    marker = b'{"machine": "", "services": ["nvidia-dcgm"], "state": "failed", "block_join": true, "message": "m"}'  # noqa: E501
    return [
        Target("mig-config.json", layouts,
               lambda data: config.load(place.file("mig-config.json", data)), (MigError,)),
        Target("default/gpu-mig", ((RUNTIME / "etc/default/gpu-mig").read_bytes(), b"MIG_CONFIG=all-1g.5gb\n"),  # noqa: E501
               defaults, (MigError,)),
        Target("user data", (user_data, _PACKED), imds.from_user_data),
        Target("IMDS answers", (user_data, b"all-1g.5gb"), launch),
        Target("state files", (marker,), state),
        Target("nvidia-smi --query-gpu", (listing["--query-gpu=" + m["gpu_mig.smi"]._FIELDS],),
               lambda data: Answer(data).gpus(instances=False), (MigError,)),
        *(Target(f"nvidia-smi mig {to}", (listing[to],),
                 lambda data, to=to: Answer(data, to).gpus(), (MigError,))
          for to in ("-lgi", "-lci")),
        *(Target(f"nvidia-smi mig {to}", (listing[to],),
                 lambda data, to=to: Answer(data, to).gpu_type(gpu), (MigError,))
          for to in ("-lgip", "-lgipp")),
        Target("nvidia-smi compute apps", (b"4711, python3\n",),
               lambda data: clients.holders(Answer(data))),
    ]  # fmt: skip


def _answers(place: Place) -> dict[str, str]:
    """What the stand-in answers on a p4d.24xlarge in small slices."""
    with in_process(place.root / "smi", "p4d.24xlarge") as smi:
        smi.run("-mig", "1")
        smi.run("mig", "-cgi", "3g.20gb,2g.10gb,1g.5gb,1g.5gb", "-C")
        query = "--query-gpu=" + m["gpu_mig.smi"]._FIELDS
        found = {query: smi.run(query, "--format=csv,noheader")[1]}
        lists = ("-lgi", "-lci", "-lgip", "-lgipp")
        return {**found, **{name: smi.run("mig", "-i", "0", name)[1] for name in lists}}


@pytest.fixture
def targets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Target]:
    place = Place(tmp_path, monkeypatch)
    return [*xid_targets(place), *mig_targets(place)]


def test_no_damaged_file_or_answer_gives_a_traceback_or_a_loop(targets: list[Target]) -> None:
    csv.field_size_limit(131072)  # Python's default, whatever another test has set
    with contextlib.redirect_stderr(io.StringIO()):
        troubles = [fuzz(target, INPUTS // len(targets), SEED) for target in targets]
    assert "\n".join(filter(None, troubles)) == ""

"""One kernel message to its fields. The meaning of codes is not known here.

The forms are those of the format strings in the driver (open-gpu-kernel-modules 515 to 595):

    NVRM: Xid (PCI:dddd:bb:dd[ GPU-I:ii[ GPU-CI:cc]]): CODE, [pid=P, name=N, ]TEXT
    nvidia-nvswitchN: SXid (PCI:dddd:bb:dd.f): CODE, Fatal|Non-fatal|Correctable, Link L TEXT

Written without `re`: no backtracking on hostile text.
"""

from __future__ import annotations

TYPE_CHECKING = False  # the module typing would cost the monitor 0.7 MiB
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

_HEX = frozenset("0123456789abcdefABCDEF")
_DIGITS = "0123456789"
_SXID_WORDS = ("Fatal", "Non-fatal", "Correctable")
_INSTANCES = (("GPU-I:", "gpu_instance"), ("GPU-CI:", "compute_instance"))
_NVLINK_WORDS = ("Fatal", "Nonfatal")
_NVLINK_XIDS = range(144, 151)

# The texts that messages of the driver start with. A process name may contain ", ", so it ends at
# the first comma before one of these. Set from the catalog (`set_message_starts`).
_starts: tuple[str, ...] = ()


def set_message_starts(starts: Iterable[str]) -> None:
    """Set what messages start with: the catalog's `message starts`."""
    global _starts  # noqa: PLW0603 - set once, at the start
    _starts = tuple(starts)


def messages(text: str) -> list[dict[str, Any]]:
    """Return the messages of a kernel record: usually one, more for a record of several lines.

    A line that is no event of its own belongs to the event before it. `raw` is the text.
    """
    found: list[dict[str, Any]] = []
    for place, line in enumerate(text.split("\n")):
        message = line.strip() if place else line
        fields = parse_message(message)
        if fields is not None:
            fields["raw"] = message
            found.append(fields)
        elif found and found[-1]["kind"] in ("xid", "sxid"):
            found[-1]["raw"] += "\n" + line
    return found


def parse_message(text: str) -> dict[str, Any] | None:
    """Return the fields of a kernel message, or None when it is not about a GPU event.

    `kind` is `xid`, `sxid`, `sxid-detail` (the Severity and Data records that follow an SXid),
    `uuid`, `driver` or `gpu-lost` (fallen off the bus, reported without an Xid).
    `head` of an Xid or SXid is the text with address and code: equal for equal faults.
    """
    if text.startswith("NVRM: Xid ("):
        return _xid(text)
    if text.startswith("NVRM: "):
        return _note(text)
    if text.startswith("nvidia-nvswitch"):
        return _sxid(text)
    return None


def pci_address(text: str) -> str | None:
    """`PCI:0000:3B:00.0` -> `0000:3b:00.0`; also `dddd:bb` of old drivers; None for other text."""
    if text.startswith("PCI:"):
        text = text[4:]
    groups = text.split(":")
    if not 2 <= len(groups) <= 3 or not 4 <= len(groups[0]) <= 8 or len(groups[1]) != 2:
        return None
    last = groups[-1]
    if len(groups) == 3:
        last, dot, function = last.partition(".")
        if dot and not (len(function) == 1 and function in _HEX):
            return None
    if len(last) != 2 or not (_HEX.issuperset(groups[0]) and _HEX.issuperset(groups[1])):
        return None
    return text.lower() if _HEX.issuperset(last) else None


def _is_number(text: str) -> bool:
    """Return True if the driver can have printed this number: int() refuses thousands of digits."""
    return len(text) < 11 and text.isdigit() and text.isascii()


def _leading_number(text: str) -> tuple[int | None, str]:
    """(number, rest) of a text that starts with ASCII digits, else (None, text)."""
    rest = text.lstrip(_DIGITS)
    end = len(text) - len(rest)
    return (int(text[:end]), rest) if 0 < end < 10 else (None, text)


def _code_and_body(text: str) -> tuple[int | None, str]:
    """`79, GPU has …` -> (79, `GPU has …`). None where there is no code or letters follow it."""
    code, rest = _leading_number(text)
    if code is None or (rest and rest[0] not in ", "):
        return None, ""
    return code, rest[1:].strip() if rest else ""


def _xid(text: str) -> dict[str, Any] | None:
    where, _, rest = text[11:].partition("): ")
    code, body = _code_and_body(rest)
    address, *instances = where.split(" ")
    pci = pci_address(address)
    if code is None or pci is None or len(instances) > 2:
        return None
    fields: dict[str, Any] = {"kind": "xid", "xid": code, "pci": pci, "pid": None, "process": None}
    fields["head"] = f"{where}): {code}"
    for part, (label, key) in zip(instances, _INSTANCES):
        number = part[len(label) :]
        if not part.startswith(label) or not _is_number(number):
            return None
        fields[key] = int(number)
    if body.startswith("pid="):
        body = _process(body[4:], fields)
    elif body.startswith("name="):
        body = _named(body, fields)
    fields["message"] = body
    if " caused by previous Xid " in body:
        fields["caused_by_xid"] = _leading_number(body.rpartition("Xid ")[2])[0]
    if code in _NVLINK_XIDS:
        _nvlink(body, fields)
    return fields


def _process(body: str, fields: dict[str, Any]) -> str:
    pid, comma, rest = body.partition(",")
    pid = pid.strip("'")
    if _is_number(pid):
        fields["pid"] = int(pid)
    rest = rest.lstrip()
    return _named(rest, fields) if comma and rest.startswith("name=") else rest


def _named(body: str, fields: dict[str, Any]) -> str:
    """Set the process; returns the following text."""
    name, rest = _split_name(body[5:])
    fields["process"] = None if name in ("", "<unknown>") else name
    return rest


def _split_name(text: str) -> tuple[str, str]:
    """(process name, following text)."""
    if text.startswith("'"):
        end = text.find("'", 1)
        if end > 0 and text[end + 1 : end + 2] in ("", ","):
            return text[1:end], text[end + 1 :].lstrip(", ")
    cut = at = text.find(", ")
    while at >= 0:
        if text.startswith(_starts, at + 2):
            cut = at
            break
        at = text.find(", ", at + 2)
    return (text.rstrip(","), "") if cut < 0 else (text[:cut], text[cut + 2 :].strip())


def _nvlink(body: str, fields: dict[str, Any]) -> None:
    """`UNIT Fatal XC0 i0 Link 08 (0x004505c6 0x00000000 …)`: the message of Xid 144 to 150."""
    tokens = body.replace("(", " ").replace("[", " ").replace(")", " ").replace("]", " ").split()
    if len(tokens) < 3 or tokens[1] not in _NVLINK_WORDS:
        return
    fields["unit"] = tokens[0]
    fields["word"] = tokens[1]
    words = []
    for previous, token in zip(tokens[1:], tokens[2:]):
        if previous == "Link":
            if _is_number(token.lstrip("-")):
                fields["link"] = int(token) if token.count("-") < 2 else None
        elif token.startswith("0x") and len(token) <= 18 and token[2:]:
            if not _HEX.issuperset(token[2:]):
                break
            words.append(int(token, 16))
    if words:
        fields["intrinfo"] = words[0]
    if len(words) > 1:
        fields["error_status"] = words[1]


def _sxid(text: str) -> dict[str, Any] | None:
    switch, rest = _leading_number(text[15:])
    if switch is None or not rest.startswith(": SXid ("):
        return None
    where, close, rest = rest[8:].partition("): ")
    pci = pci_address(where)
    code, body = _code_and_body(rest)
    if not close or pci is None or code is None:
        return None
    fields: dict[str, Any] = {
        "kind": "sxid",
        "sxid": code,
        "pci": pci,
        "pid": None,
        "process": None,
    }
    fields["head"] = f"{where}): {code}"
    fields["nvswitch"] = switch
    fields["message"] = body
    if body.startswith(("Severity ", "Data {")):
        fields["kind"] = "sxid-detail"
        return fields
    for word in _SXID_WORDS:
        if body.startswith(word) and not body[len(word) : len(word) + 1].isalnum():
            fields["word"] = word
            body = body[len(word) :].lstrip(", ")
            break
    if body.startswith("Link "):
        link = _leading_number(body[5:])[0]
        if link is not None:
            fields["link"] = link
    return fields


def _note(text: str) -> dict[str, Any] | None:
    body = text[6:]
    if body.startswith("GPU at PCI:"):
        where, _, uuid = body[7:].rpartition(": ")
        pci = pci_address(where)
        if pci and uuid.startswith("GPU-"):
            return {"kind": "uuid", "pci": pci, "uuid": uuid.strip()}
    elif body.startswith("loading NVIDIA UNIX"):
        for token in body.split():
            if "." in token and not token.strip(_DIGITS + "."):
                return {"kind": "driver", "driver": token}
    if "allen off the bus" in body:
        for token in body.split():
            pci = pci_address(token.rstrip(":,."))
            if pci and "." in pci:
                return {"kind": "gpu-lost", "pci": pci}
        return {"kind": "gpu-lost", "pci": None}
    return None

"""One kernel message (no prefix) in, its fields out. No knowledge of what a code means.

The forms are those of the driver's own format strings (open-gpu-kernel-modules 515 to 595):

    NVRM: Xid (PCI:dddd:bb:dd[ GPU-I:ii[ GPU-CI:cc]]): CODE, [pid=P, name=N, ]TEXT
    nvidia-nvswitchN: SXid (PCI:dddd:bb:dd.f): CODE, Fatal|Non-fatal|Correctable, Link L TEXT

Written by hand, without `re`: less memory, no backtracking, and each refusal has its line.
"""

_HEX = frozenset("0123456789abcdefABCDEF")
_DIGITS = "0123456789"
_SXID_WORDS = ("Fatal", "Non-fatal", "Correctable")
_INSTANCES = (("GPU-I:", "gpu_instance"), ("GPU-CI:", "compute_instance"))
_NVLINK_WORDS = ("Fatal", "Nonfatal")

# What the driver's own texts begin with. A process name may hold ", ", so the name ends at the
# first comma that one of these follows. Set from the catalogue (`set_message_starts`).
_starts = ()

# `PCI:0000:3b:00): 31`, what an Xid line has before its first comma -> the fields that say so.
_heads = {}
_MAX_HEADS = 256  # a flood of made-up addresses must not fill the memory


def set_message_starts(starts):
    global _starts  # noqa: PLW0603
    _starts = tuple(starts)


def parse_message(text):
    """Fields of a kernel message as a dict, or None when it says nothing about a GPU event.

    `kind` is `xid`, `sxid`, `sxid-detail` (the Severity and Data records that follow an SXid),
    `uuid`, `serial`, `driver` or `gpu-lost` (fallen off the bus, said without an Xid).
    `head` of an Xid or SXid is the text that says where and which code: the same text, the same
    fault. `plain` is True for an Xid whose message is nothing but text: no field was read in it.
    """
    if text.startswith("NVRM: Xid ("):
        return _xid(text)
    if text.startswith("NVRM: "):
        return _note(text)
    if text.startswith("nvidia-nvswitch"):
        return _sxid(text)
    return None


def pci_address(text):
    """`PCI:0000:3B:00.0` -> `0000:3b:00.0`; also `dddd:bb` of old drivers; None if it is none."""
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


def _is_number(text):
    """A number that the driver can have printed: int() refuses thousands of digits."""
    return len(text) < 11 and text.isdigit() and text.isascii()


def _leading_number(text):
    """(number, rest) of a text that begins with ASCII digits, else (None, text)."""
    rest = text.lstrip(_DIGITS)
    end = len(text) - len(rest)
    return (int(text[:end]), rest) if 0 < end < 10 else (None, text)


def _code_and_body(text):
    """`79, GPU has …` -> (79, `GPU has …`). None where no code stands or it runs into a word."""
    code, rest = _leading_number(text)
    if code is None or (rest and rest[0] not in ", "):
        return None, ""
    return code, rest[1:].strip() if rest else ""


def _xid(text):
    head, _, body = text[11:].partition(",")
    fields = _heads.get(head)
    if fields is None:
        where, _, rest = text[11:].partition("): ")
        code, body = _code_and_body(rest)
        fields = None if code is None else _new_head(where, code)
        if fields is None:
            return None
    fields = fields.copy()
    body = body.strip()
    if body.startswith("pid="):
        body = _process(body[4:], fields)
    fields["message"] = body
    if " caused by previous Xid " in body:
        fields["plain"] = False
        fields["caused_by_xid"] = _leading_number(body.rpartition("Xid ")[2])[0]
    if not fields["plain"] and 144 <= fields["xid"] <= 150:
        _nvlink(body, fields)
    return fields


def _new_head(where, code):
    """`PCI:0000:3b:00 GPU-I:05 GPU-CI:01`, 31 -> what all such Xid lines begin with, or None."""
    parts = where.split(" ")
    pci = pci_address(parts[0])
    if pci is None or len(parts) > 3:
        return None
    # With all keys that an event gets on its way: a dict that need not grow is copied cheaply.
    fields = dict.fromkeys(("pid", "process", "message", "raw", "seq", "usec", "injected"))
    head = "%s): %d" % (where, code)
    fields.update(kind="xid", xid=code, pci=pci, head=head, plain=not 144 <= code <= 150)
    for part, (label, key) in zip(parts[1:], _INSTANCES):  # noqa: B905
        number = part[len(label) :]
        if not part.startswith(label) or not _is_number(number):
            return None
        fields[key] = int(number)
    if len(_heads) >= _MAX_HEADS:
        _heads.clear()
    _heads[head] = fields
    return fields


def fixed_start(fields):
    """How another line must begin for the same fields: all but `message`, which is only text.

    That is up to the message's first word, when it is one of the driver's: nothing behind it can
    then be taken for a part of the process name. None where the rest of the line may matter.
    """
    raw, message = fields["raw"], fields["message"]
    word = next((start for start in _starts if message.startswith(start)), None)
    if not fields.get("plain") or word is None or "\n" in raw:
        return None
    start = raw[: raw.rindex(message)] + word
    return None if "name='" in start else start


def _process(body, fields):
    pid, comma, rest = body.partition(",")
    pid = pid.strip("'")
    if _is_number(pid):
        fields["pid"] = int(pid)
    rest = rest.lstrip()
    if not comma or not rest.startswith("name="):
        return rest
    name, rest = _split_name(rest[5:])
    fields["process"] = name or None
    return rest


def _split_name(text):
    """(process name or "", what follows). `<unknown>` and `'<unknown>'` are no name."""
    if text.startswith("'"):
        end = text.find("'", 1)
        if end > 0 and text[end + 1 : end + 2] in ("", ","):
            name, rest = text[1:end], text[end + 1 :].lstrip(", ")
            return ("" if name == "<unknown>" else name), rest
    cut = at = text.find(", ")
    while at >= 0:
        if text.startswith(_starts, at + 2):
            cut = at
            break
        at = text.find(", ", at + 2)
    name, rest = (text.rstrip(","), "") if cut < 0 else (text[:cut], text[cut + 2 :])
    return ("" if name == "<unknown>" else name), rest.strip()


def _nvlink(body, fields):
    """`UNIT Fatal XC0 i0 Link 08 (0x004505c6 0x00000000 …)`: what Xid 144 to 150 carry."""
    tokens = body.replace("(", " ").replace("[", " ").replace(")", " ").replace("]", " ").split()
    if len(tokens) < 3 or tokens[1] not in _NVLINK_WORDS:
        return
    fields["unit"] = tokens[0]
    fields["word"] = tokens[1]
    words = []
    for previous, token in zip(tokens[1:], tokens[2:]):  # noqa: B905
        if previous == "Link":
            digits = token.lstrip("-")
            if _is_number(digits):
                fields["link"] = int(token) if token.count("-") < 2 else None
        elif token.startswith("0x") and len(token) <= 18 and token[2:]:
            if not _HEX.issuperset(token[2:]):
                break
            words.append(int(token, 16))
    if words:
        fields["intrinfo"] = words[0]
    if len(words) > 1:
        fields["error_status"] = words[1]


def _sxid(text):
    switch, rest = _leading_number(text[15:])
    if switch is None or not rest.startswith(": SXid ("):
        return None
    where, close, rest = rest[8:].partition("): ")
    pci = pci_address(where)
    code, body = _code_and_body(rest)
    if not close or pci is None or code is None:
        return None
    fields = {"kind": "sxid", "sxid": code, "pci": pci, "pid": None, "process": None}
    fields["head"] = "%s): %d" % (where, code)
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


def _note(text):
    body = text[6:]
    if body.startswith("GPU at PCI:"):
        where, colon, uuid = body[7:].rpartition(": ")
        pci = pci_address(where)
        if pci and uuid.startswith("GPU-"):
            return {"kind": "uuid", "pci": pci, "uuid": uuid.strip()}
    elif body.startswith("GPU Board Serial Number:"):
        return {"kind": "serial", "serial": body[24:].strip()}
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

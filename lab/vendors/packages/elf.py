"""Shared libraries and kernel modules without any code.

`ldconfig`, `ldd`, `file`, `dlopen`, `modinfo` and `depmod` accept them; they have no symbols, and
no kernel loads the modules. Layout: System V ABI, ELF-64 object files, chapters 4 and 5.
"""

from __future__ import annotations

import struct

_MACHINES = {"x86_64": 62, "aarch64": 183}
_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_SYMENT, _DT_SONAME = 4, 5, 6, 10, 11, 14
_EHDR, _PHDR, _SYM, _PAGE = 64, 56, 24, 0x1000


def shared_library(soname: str, machine: str) -> bytes:
    """A shared library with that DT_SONAME; `machine` is x86_64 or aarch64 (KeyError else)."""
    strings = b"\0" + soname.encode() + b"\0AMI Kiln lab stand-in\0"
    symbols = b"\0" * _SYM
    # One bucket and only the undefined symbol: every lookup fails.
    table = struct.pack("<4I", 1, 1, 0, 0)
    at_hash = _EHDR + 2 * _PHDR
    at_symbols = at_hash + len(table)
    at_strings = at_symbols + len(symbols)
    at_dynamic = (at_strings + len(strings) + 7) // 8 * 8
    dynamic = b"".join(
        struct.pack("<2Q", tag, value)
        for tag, value in (
            (_DT_SONAME, 1),
            (_DT_HASH, at_hash),
            (_DT_STRTAB, at_strings),
            (_DT_SYMTAB, at_symbols),
            (_DT_STRSZ, len(strings)),
            (_DT_SYMENT, _SYM),
            (0, 0),
        )
    )
    size = at_dynamic + len(dynamic)
    names = b"\0.hash\0.dynsym\0.dynstr\0.dynamic\0.shstrtab\0"
    # ld of binutils 2.42 refuses a library without sections. Section: name, type, flags, offset,
    # size, link, info, alignment, entry size.
    sections = [
        (b".hash", 5, 2, at_hash, len(table), 2, 0, 4, 4),
        (b".dynsym", 11, 2, at_symbols, len(symbols), 3, 1, 8, _SYM),
        (b".dynstr", 3, 2, at_strings, len(strings), 0, 0, 1, 0),
        (b".dynamic", 6, 3, at_dynamic, len(dynamic), 3, 0, 8, 16),
        (b".shstrtab", 3, 0, size, len(names), 0, 0, 1, 0),
    ]
    at_sections = (size + len(names) + 7) // 8 * 8
    table_of_sections = b"\0" * 64
    for name, kind, flags, at, length, link, info, align, entry in sections:
        address = at if flags else 0
        table_of_sections += struct.pack(
            *("<IIQQQQIIQQ", names.index(name + b"\0"), kind, flags, address, at, length),
            *(link, info, align, entry),
        )
    header = struct.pack(
        *("<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01" + b"\0" * 9),
        3,  # ET_DYN
        *(_MACHINES[machine], 1, 0, _EHDR, at_sections, 0, _EHDR, _PHDR, 2),
        *(64, len(sections) + 1, len(sections)),
    )
    # Readable and writable: the loader relocates the dynamic section in place.
    load = struct.pack("<IIQQQQQQ", _PT_LOAD, 6, 0, 0, 0, size, size, _PAGE)
    span = (at_dynamic, at_dynamic, at_dynamic, len(dynamic), len(dynamic))
    point = struct.pack("<IIQQQQQQ", _PT_DYNAMIC, 6, *span, 8)
    head = header + load + point + table + symbols + strings
    image = head.ljust(at_dynamic, b"\0") + dynamic + names
    return image.ljust(at_sections, b"\0") + table_of_sections


def kernel_module(fields: dict[str, str], machine: str) -> bytes:
    """A kernel module with these `modinfo` fields, for x86_64 or aarch64 (KeyError else)."""
    entries = {**fields, "description": "AMI Kiln lab stand-in"}
    info = b"".join(f"{key}={value}\0".encode() for key, value in entries.items())
    names = b"\0.modinfo\0.symtab\0.strtab\0.shstrtab\0"
    no_symbols = b"\0" * _SYM
    # Section: name, type (1 data, 2 symbols, 3 strings), content, link, entry size.
    sections = [
        (b".modinfo", 1, info, 0, 0),
        (b".symtab", 2, no_symbols, 3, _SYM),
        (b".strtab", 3, b"\0", 0, 0),
        (b".shstrtab", 3, names, 0, 0),
    ]
    body, table, at = b"", b"\0" * 64, _EHDR
    for name, kind, content, link, entry in sections:
        flags = 2 if kind == 1 else 0
        offset = names.index(name + b"\0")
        table += struct.pack(
            "<IIQQQQIIQQ", offset, kind, flags, 0, at, len(content), link, int(kind == 2), 8, entry
        )
        padded = content.ljust((len(content) + 7) // 8 * 8, b"\0")
        body += padded
        at += len(padded)
    header = struct.pack(
        "<16sHHIQQQIHHHHHH",
        b"\x7fELF\x02\x01\x01" + b"\0" * 9,
        1,  # ET_REL
        _MACHINES[machine],
        1,
        0,
        0,
        at,
        0,
        _EHDR,
        0,
        0,
        64,
        len(sections) + 1,
        len(sections),
    )
    return header + body + table

"""The JSON records a bake leaves in /etc/kiln. Python 3.7, stdlib only."""

import json
import os
import sys


def load(path, default):
    try:
        with open(path) as stream:
            return json.load(stream)
    except FileNotFoundError:
        return default


def save(path, data):
    with open(path + ".new", "w") as stream:
        json.dump(data, stream, indent=1, sort_keys=True)
        stream.write("\n")
    os.chmod(path + ".new", 0o644)
    os.replace(path + ".new", path)


def download(path, url, sha256, how, component):
    """One entry per URL: {"url", "sha256", "sha256_was": "locked"|"first-seen", "component"}."""
    entries = [entry for entry in load(path, []) if entry["url"] != url]
    entries.append({"url": url, "sha256": sha256, "sha256_was": how, "component": component})
    save(path, sorted(entries, key=lambda entry: entry["url"]))


def component(path, *assignments):
    """`key=value` sets a text, `key+=a b` adds words to a list without repeating one."""
    record = load(path, {"component": os.path.basename(path)[: -len(".json")]})
    for assignment in assignments:
        key, _, value = assignment.partition("=")
        if key.endswith("+"):
            words = record.setdefault(key[:-1], [])
            words.extend(word for word in value.split() if word not in words)
        else:
            record[key] = value
    save(path, record)


if __name__ == "__main__":
    {"download": download, "component": component}[sys.argv[1]](*sys.argv[2:])

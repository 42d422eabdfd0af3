"""S3's requests as policies name them: the action follows from method, path and query.

https://docs.aws.amazon.com/AmazonS3/latest/userguide/using-with-s3-policy-actions.html
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote
from xml.etree import ElementTree

# The bucket is in the path, or in the host's name. moto takes more names than AWS for the second,
# and some of AWS's (localhost-1.s3.amazonaws.com) for the first: those are not judged.
_PATH_STYLE = re.compile(
    r"(localhost|[0-9.]+|\[[0-9a-f:.]+\]|s3(\.[a-z0-9-]+)?\.amazonaws\.com)(:[0-9]+)?"
)
_HOST = re.compile(
    r"(?!localhost|localstack|host\.docker\.internal|www\.)"
    r"(?P<bucket>[a-z0-9.-]+)\.s3(\.[a-z0-9-]+)?\.amazonaws\.com(:[0-9]+)?"
)
# Method and the query's word ("" for none) → action.
BUCKETS = {
    ("GET", ""): "ListBucket",
    ("HEAD", ""): "ListBucket",
    ("PUT", ""): "CreateBucket",
    ("DELETE", ""): "DeleteBucket",
    ("GET", "location"): "GetBucketLocation",
    ("GET", "versions"): "ListBucketVersions",
    ("GET", "uploads"): "ListBucketMultipartUploads",
    ("GET", "policy"): "GetBucketPolicy",
    ("PUT", "policy"): "PutBucketPolicy",
    ("DELETE", "policy"): "DeleteBucketPolicy",
    ("GET", "tagging"): "GetBucketTagging",
    ("PUT", "tagging"): "PutBucketTagging",
    ("GET", "versioning"): "GetBucketVersioning",
    ("PUT", "versioning"): "PutBucketVersioning",
    ("GET", "encryption"): "GetEncryptionConfiguration",
    ("PUT", "encryption"): "PutEncryptionConfiguration",
    ("GET", "acl"): "GetBucketAcl",
    ("GET", "publicAccessBlock"): "GetBucketPublicAccessBlock",
    ("PUT", "publicAccessBlock"): "PutBucketPublicAccessBlock",
}
OBJECTS = {
    ("GET", ""): "GetObject",
    ("HEAD", ""): "GetObject",
    ("PUT", ""): "PutObject",
    ("DELETE", ""): "DeleteObject",
    ("GET", "versionId"): "GetObjectVersion",
    ("HEAD", "versionId"): "GetObjectVersion",
    ("DELETE", "versionId"): "DeleteObjectVersion",
    ("GET", "acl"): "GetObjectAcl",
    ("PUT", "acl"): "PutObjectAcl",
    ("GET", "tagging"): "GetObjectTagging",
    ("PUT", "tagging"): "PutObjectTagging",
    ("GET", "uploadId"): "ListMultipartUploadParts",
    ("PUT", "uploadId"): "PutObject",
    ("POST", "uploadId"): "PutObject",
    ("POST", "uploads"): "PutObject",
    ("DELETE", "uploadId"): "AbortMultipartUpload",
}
_WORDS: tuple[str, ...] = (
    "location",
    "versions",
    "uploads",
    "uploadId",
    "policy",
    "tagging",
    "versioning",
)
_WORDS += ("encryption", "acl", "versionId", "delete", "publicAccessBlock")
# Words with actions of their own that are not listed here.
_OTHER = {
    *("accelerate", "analytics", "attributes", "cors", "inventory", "legal-hold", "lifecycle"),
    *("logging", "metrics", "notification", "object-lock", "ownershipControls", "policyStatus"),
    *("replication", "requestPayment", "restore", "retention", "select"),
    *("torrent", "website", "intelligent-tiering"),
}
# What stands for an action that is not listed here: only s3:* and * allow it.
_UNKNOWN = "unknown-to-the-lab"


def permissions(environ: Mapping[str, Any], body: bytes) -> list[tuple[str, str | None]]:
    """Action and ARN of each thing that IAM is asked; the ARN is None for what is not known."""
    method = str(environ["REQUEST_METHOD"])
    path = unquote(str(environ.get("PATH_INFO", "/"))).lstrip("/")
    name = str(environ.get("HTTP_HOST", "")).lower()
    in_path = _PATH_STYLE.fullmatch(name)
    host = None if in_path else _HOST.fullmatch(name)
    bucket, _, key = (host["bucket"], "", path) if host else path.partition("/")
    pairs = parse_qsl(str(environ.get("QUERY_STRING", "")), keep_blank_values=True)
    query = dict(pairs)
    if len(query) < len(pairs) or not (in_path or host):
        return [(_UNKNOWN, None)]
    if not bucket:
        return [("ListAllMyBuckets", "*")]
    arn = f"arn:aws:s3:::{bucket}"
    if not key and method == "POST" and "delete" in query:
        return [("DeleteObject", name and f"{arn}/{name}") for name in _keys(body)]
    words = [word for word in _WORDS if word in query]
    action = (OBJECTS if key else BUCKETS).get((method, words[0] if words else ""))
    if action is None or _OTHER & set(query) or len(words) > 1:
        return [(_UNKNOWN, None)]
    questions: list[tuple[str, str | None]] = [(action, f"{arn}/{key}" if key else arn)]
    source = environ.get("HTTP_X_AMZ_COPY_SOURCE")
    if source:
        questions.append(("GetObject", f"arn:aws:s3:::{unquote(str(source)).lstrip('/')}"))
    return questions


def _keys(body: bytes) -> list[str | None]:
    """The objects that a request deletes; None for what cannot be read."""
    try:
        tree = ElementTree.fromstring(body)  # noqa: S314 - expat limits what entities become
    except ElementTree.ParseError:
        return [None]
    keys = [node.text for node in tree.iter() if node.tag.rpartition("}")[2] == "Key"]
    return keys or [None]

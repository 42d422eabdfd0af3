"""The fixed words, the formats of versions, ids and times.

The matrix's schema, the flags of `./invoke check`, the rules and the lab all import them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date, datetime, timezone
from string import Formatter
from typing import Any, Literal, get_args

from kiln.base.errors import KilnError

Arch = Literal["x86_64", "arm64"]
Flavor = Literal["base", "eks", "ecs", "parallelcluster"]
# In the order in which `check` proposes them.
KernelModule = Literal["open", "proprietary", "both"]
DriverSource = Literal["distro", "runfile", "repo"]
Family = Literal["al", "debian"]
PackageManager = Literal["yum", "dnf", "apt"]

ARCHES: tuple[str, ...] = get_args(Arch)
FLAVORS: tuple[str, ...] = get_args(Flavor)
KERNEL_MODULES: tuple[str, ...] = get_args(KernelModule)
DRIVER_SOURCES: tuple[str, ...] = get_args(DriverSource)

# EC2's word for a processor → Debian's and Ubuntu's, which is Go's and so Kubernetes' too.
DEB_ARCH = {"x86_64": "amd64", "arm64": "arm64"}
# EC2's word → the kernel's (`uname -m`), which is RPM's too, and back.
UNAME_ARCH = {"x86_64": "x86_64", "arm64": "aarch64"}
ARCH_OF_UNAME = {UNAME_ARCH[arch]: arch for arch in ARCHES}
# Debian's word → the kernel's.
UNAME_OF_DEB = {DEB_ARCH[arch]: UNAME_ARCH[arch] for arch in ARCHES}


@dataclass(frozen=True)
class Form:
    """A text format: its regular expression, its description in messages, its most characters.

    A field of a pydantic model that is `Annotated[str, FORM]` is checked by it.
    """

    pattern: str
    what: str
    longest: int = 128

    def fits(self, text: object) -> bool:
        """Return True if the whole text matches and is no longer than such a text can be."""
        return (
            isinstance(text, str)
            and len(text) <= self.longest
            and re.fullmatch(self.pattern, text) is not None
        )

    def required(self, text: object, called: str) -> str:
        """The text, which must match; `called` names it in the message."""
        if not self.fits(text):
            raise KilnError(f"{called} {shown(text)} is not {self.what}")
        return str(text)

    def optional(self, text: object, called: str) -> None:
        """Require a text that is not None to match."""
        if text is not None:
            self.required(text, called)

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_after_validator_function(self._checked, handler(source))

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        return {**handler(schema), "pattern": self.pattern, "maxLength": self.longest}

    def _checked(self, text: str) -> str:
        if not self.fits(text):
            # What is before the @ of a URL may be a password, also without https://.
            said = re.sub(r"^.*@", "…@", text) if self in (PROXY, URL) else text
            raise ValueError(f"{quoted(text if '://' in text else said)} is not {self.what}")
        return text


# Of a value in a message.
_SHOWN = 128


def shown(value: object) -> str:
    """A value for a message: text as it is if it can be printed, else quoted; a long one is cut."""
    plain = isinstance(value, str) and value.isprintable() and value
    return _cut(str(value)) if plain else quoted(value)


def quoted(value: object) -> str:
    """A value in quotes for a message; a long one is cut."""
    return _cut(repr(value))


def masked(text: str, *, whole: bool = False) -> str:
    """A message without the users and passwords of the URLs in it.

    A password may have any character, so all before the last @ is hidden. In a message a URL ends
    at a space; `whole`: the text is one value, with its spaces.
    """
    return re.sub(r"://.*@" if whole else r"://\S*@", "://…@", text, flags=re.DOTALL)


def _cut(text: str) -> str:
    text = masked(text, whole=True)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


# Digits are [0-9]: `\d` also matches the digits of other scripts, which no program here reads.
VERSION = Form(r"^[0-9]+(\.[0-9]+)+([-+~.][A-Za-z0-9.]+)*$", "a version such as 1.20.0")
DRIVER = Form(r"^[0-9]{3}(\.[0-9]+)+$", "a complete version such as 510.47.03")
# Packages and URLs need the full number: CUDA 13.0 is a series, not a release.
THREE_NUMBERS = Form(r"^[0-9]+\.[0-9]+\.[0-9]+$", "a whole release such as 13.0.2: three numbers")
CUDNN = Form(
    r"^[0-9]+\.[0-9]+\.[0-9]+\.[0-9]+$", "a whole cuDNN release such as 9.24.1.1: four numbers"
)
SERIES_OR_RELEASE = Form(
    r"^[0-9]+\.[0-9]+(\.[0-9]+)?$", "a series or a whole release such as 13.0 or 13.0.2"
)
KUBERNETES = Form(r"^[0-9]+\.[0-9]+$", "a Kubernetes version such as 1.35")
# These reach shells and device tables unquoted.
PACKAGE = Form(r"^[A-Za-z0-9][A-Za-z0-9.+_-]*$", "a kernel series or package such as kernel6.12")
RULE_ID = Form(r"^[A-Z][A-Z0-9]*(-[A-Z0-9]+)*$", "the id of a rule such as DRV-EOL")
REASON = Form(
    r"^[^\x00-\x1f\x7f]*[^\s\x00-\x1f\x7f][^\x00-\x1f\x7f]*$", "a reason in one line", longest=400
)
USER = Form(r"^[a-z_][a-z0-9_-]*$", "a user name such as ec2-user")
DEVICE = Form(r"^/dev/[a-z0-9]+$", "a device such as /dev/xvda")
# Part of the names of folders and AMIs.
ID = Form(r"^[a-z][a-z0-9_]*$", "a name of small letters, digits and underscores")
STACK_OF_LINE = Form(
    r"^[a-z][a-z0-9_]*(-[a-z0-9_]+)*$",
    "a name of small letters, digits and dashes such as lts-both",
)
INSTANCE_TYPE = Form(
    r"^[a-z][a-z0-9-]*\.(nano|micro|small|medium|[0-9]*x?large|metal(-[0-9]+xl)?)$",
    "an instance type such as g4dn.xlarge",
)

# Ids in EC2 and ours. They are read from records, tags, flags and the environment, and reach EC2's
# filters, which take wildcards: an id `*` matches everything.
RUN_ID = Form(r"^[0-9]{8}T[0-9]{6}Z-[0-9a-f]{4}$", "a run id such as 20260801T120000Z-1a2b")
TIME = Form(r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$", "a time in UTC")
AMI_ID = Form(r"^ami-[0-9a-f]{8,17}$", "an AMI's id such as ami-0123456789abcdef0")
INSTANCE_ID = Form(r"^i-[0-9a-f]{8,17}$", "an instance's id such as i-0123456789abcdef0")
SUBNET_ID = Form(r"^subnet-[0-9a-f]{8,17}$", "a subnet's id such as subnet-0123456789ab")
SECURITY_GROUP_ID = Form(
    r"^sg-[0-9a-f]{8,17}$", "a security group's id such as sg-0123456789abcdef0"
)
RESERVATION_ID = Form(
    r"^cr-[0-9a-f]{8,17}$", "a capacity reservation's id such as cr-0123456789abcdef0"
)
REGION = Form(r"^[a-z]{2,4}(-[a-z]+)+-[0-9]{1,2}$", "a region such as eu-central-1")
ACCOUNT_OR_ENDPOINT = Form(
    r"^([0-9]{12}|https?://[A-Za-z0-9.:-]+)$", "an account id or a lab's endpoint"
)
# git abbreviates to no less than four digits.
COMMIT = Form(r"^([0-9a-f]{4,40}(-dirty)?|unknown)$", "a git commit")
# Part of paths, and of names in EC2.
RECIPE_NAME = Form(
    r"^[a-z][a-z0-9_]*(-[A-Za-z0-9_.]+)*$", "a recipe's name such as al2-510.47.03-base-x86_64"
)
ARCH = Form(r"^(x86_64|arm64)$", "x86_64 or arm64")
TARGET = Form(r"^(aws|lab)$", "aws or lab")
SHA256 = Form(r"^[0-9a-f]{64}$", "a sha256 (64 hexadecimal digits)")
# The owner of a parent AMI, as EC2's DescribeImages takes it.
OWNER = Form(
    r"^([0-9]{12}|amazon|aws-marketplace|self)$", "an account id, amazon or aws-marketplace"
)
# https://docs.aws.amazon.com/systems-manager/latest/userguide/sysman-paramstore-su-create.html
# and {placeholders}.
PARAMETER = Form(r"^/[A-Za-z0-9_./{}!:-]+$", "a public SSM parameter such as /aws/service/…")
# AMI names: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_CreateImage.html, with
# wildcards and {placeholders}.
AMI_NAME = Form(r"^[A-Za-z0-9 ()\[\]./'@_*?{}!:-]+$", "an AMI's name, which may have wildcards")
# Names of distributions reach comments, reports and terminals.
NAME = Form(r"^[A-Za-z0-9][A-Za-z0-9 ().,_+-]*$", "a name of letters, digits, spaces and .,_+-()")
CUDA_REPO = Form(r"^[a-z][a-z0-9]*$", "a name of small letters and digits such as ubuntu2204")
LABEL = Form(r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$", "a label such as all-balanced")

# Where published AMIs go. Names of parameters are made of channels and lines.
CHANNEL = Form(
    r"^[a-z][a-z0-9]*(-[a-z0-9]+)*$", "a channel's name of small letters, digits and dashes"
)
CHANNEL_LINE = Form(
    r"^[a-z][a-z0-9_]*(/[a-z0-9_-]+){2}/(x86_64|arm64)$",
    "a line such as al2023/lts/base/x86_64",
)
ACCOUNT = Form(r"^[0-9]{12}$", "an account id of 12 digits")
# https://docs.aws.amazon.com/organizations/latest/APIReference/API_Organization.html
ORGANIZATION = Form(
    r"^arn:aws[a-z-]*:organizations::[0-9]{12}:organization/o-[a-z0-9]{10,32}$",
    "an organization's ARN such as arn:aws:organizations::123456789012:organization/o-1234567890",
)
# https://docs.aws.amazon.com/organizations/latest/APIReference/API_OrganizationalUnit.html
ORGANIZATIONAL_UNIT = Form(
    r"^arn:aws[a-z-]*:organizations::[0-9]{12}:ou/o-[a-z0-9]{10,32}/ou-[0-9a-z]{4,32}-[0-9a-z]{8,32}$",
    "an organizational unit's ARN such as arn:aws:organizations::123456789012:ou/o-1234567890/"
    "ou-abcd-12345678",
    longest=512,
)
# https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_CopyImage.html (KmsKeyId)
KMS_KEY = Form(
    r"^((arn:aws[a-z-]*:kms:[a-z0-9-]+:[0-9]{12}:)?alias/[A-Za-z0-9/_-]{1,250}"
    r"|(arn:aws[a-z-]*:kms:[a-z0-9-]+:[0-9]{12}:key/)?"
    r"([0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|mrk-[0-9a-f]{32}))$",
    "a KMS key: its id, alias/NAME, or an ARN",
    longest=350,
)
# https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_iam-quotas.html
INSTANCE_PROFILE = Form(r"^[A-Za-z0-9+=,.@_-]+$", "the name of an instance profile (not its ARN)")
# https://docs.aws.amazon.com/IAM/latest/UserGuide/reference-arns.html
POLICY_ARN = Form(
    r"^arn:aws[a-z-]*:iam::(?:[0-9]{12}|aws):policy/[A-Za-z0-9+=,.@_/-]{1,512}$",
    "the ARN of an IAM policy: arn:aws:iam::111122223333:policy/NAME",
    longest=600,
)
# https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/Using_Tags.html#tag-restrictions
TAG_KEY = Form(r"^[\w +=.:/@-]+$", "a tag's key: letters, digits, spaces and +-=._:/@")
TAG_VALUE = Form(
    r"^[\w +=.:/@-]*$", "a tag's value: letters, digits, spaces and +-=._:/@", longest=256
)
# Names and values of https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeSubnets.html
FILTER = Form(r"^[\w +=.:/@*?-]+$", "a filter of DescribeSubnets, such as tag:Class")
# These reach shells and URLs on the build instance.
PROXY = Form(
    r"^https?://[A-Za-z0-9.-]+(:[0-9]{1,5})?/?$",
    "a proxy's URL without user and password, such as http://proxy.example.com:3128: a password "
    "would be in Packer's log, and every script of the bake could read it",
    longest=512,
)
NO_PROXY = Form(r"^[A-Za-z0-9.:*/-]+$", "a host, a domain such as .example.com, or an address")
URL = Form(
    r"^https?://[A-Za-z0-9.-]+(:[0-9]{1,5})?(/[A-Za-z0-9._~/-]*)?$",
    "the beginning of a URL without user and password, such as https://mirror.example.com/nvidia: "
    "a password would be in Packer's log, and every script of the bake could read it",
    longest=512,
)
# https://docs.aws.amazon.com/AmazonS3/latest/userguide/bucketnamingrules.html
BUCKET = Form(
    r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$",
    "the name of an S3 bucket alone: 3 to 63 small letters, digits, dots and dashes",
)
S3_PLACE = Form(
    r"^s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/([A-Za-z0-9_-][A-Za-z0-9._-]*/?)*)?$",
    "a place in S3: s3://BUCKET/PREFIX",
    longest=1024,
)
# coreutils' sleep and Go's time.ParseDuration read it alike.
DURATION = Form(r"^[1-9][0-9]{0,4}[smh]$", "a time such as 90m or 4h")
# https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_CreateLaunchTemplate.html
LAUNCH_TEMPLATE = Form(r"^[A-Za-z0-9().\-/_]{3,128}$", "a launch template's name")
# Not of a FIFO topic, which takes no message without a group.
# https://docs.aws.amazon.com/sns/latest/api/API_CreateTopic.html
TOPIC = Form(
    r"^arn:aws[a-z-]*:sns:[a-z0-9-]+:[0-9]{12}:[A-Za-z0-9_-]+$",
    "the ARN of an SNS topic: arn:aws:sns:eu-central-1:111122223333:NAME",
    longest=320,  # its name alone up to 256
)
# https://docs.aws.amazon.com/AWSCloudFormation/latest/APIReference/API_CreateStack.html
STACK = Form(r"^[A-Za-z][A-Za-z0-9-]{0,127}$", "a stack's name of letters, digits and dashes")


def names_in(text: str) -> list[str]:
    """The names in the `{…}` of a text, sorted. Raises ValueError for a brace that is none."""
    try:
        parts = [part for part in Formatter().parse(text) if part[1] is not None]
    except ValueError as error:
        raise ValueError(f"{quoted(text)}: {error}") from None
    if any(form or conversion for _, _, form, conversion in parts):
        raise ValueError(f"{quoted(text)}: write a placeholder as {{arch}}, without `!` or `:`")
    return sorted({str(name) for _, name, _, _ in parts})


# All control characters but tab and newline (C0, DEL, C1), line separators, the characters that
# change the direction of text, and halves of surrogate pairs, which no encoding takes.
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)


def printable(text: object) -> str:
    """The text with each control character as `\\u001b`, which JSON's strings have too."""
    return _CONTROL.sub(lambda match: f"\\u{ord(match.group()):04x}", str(text))


_TIME, _STAMP = "%Y-%m-%dT%H:%M:%SZ", "%Y%m%dT%H%M%SZ"


def utc_now() -> datetime:
    """This moment, with its time zone."""
    return datetime.now(timezone.utc)


def today() -> date:
    """The day by this machine's clock and zone, by which support ends."""
    return date.today()


def as_time(moment: datetime) -> str:
    """A moment as 2026-08-01T12:00:00Z; it must have a time zone."""
    return moment.astimezone(timezone.utc).strftime(_TIME)


def now() -> str:
    """This moment as 2026-08-01T12:00:00Z."""
    return as_time(utc_now())


def read_time(text: str) -> datetime:
    """A time in ISO 8601, as AWS writes it; without a zone it is UTC. Raises ValueError."""
    moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    return moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)


def as_stamp(moment: datetime) -> str:
    """A moment as 20260801T120000Z; it must have a time zone."""
    return moment.astimezone(timezone.utc).strftime(_STAMP)


def read_stamp(text: str) -> datetime:
    """The moment of 20260801T120000Z. Raises ValueError."""
    return datetime.strptime(text, _STAMP).replace(tzinfo=timezone.utc)

"""URLs of the job file: what messages and the database call them, without what may be secret in them.

Pure: nothing here asks a server. User and password never show. A query does not either: of two URLs that differ in it
alone, each has a name of its own by a digest.
"""

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import parse_qsl

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_CHAIN = "::"
_DIGEST = re.compile(r"\?#[0-9a-f]{12}")
_CONTAINER_SCHEMES = frozenset({"abfs", "abfss", "github", "wasb", "wasbs"})
"""Before the @ stands where the file is, not who asks for it."""
_SIGNATURES = {
    "x-amz-signature": re.compile(r"x-amz-.*"),
    "x-goog-signature": re.compile(r"x-goog-.*"),
    "sig": re.compile(r"s[vserptigk]|ss|srt|spr|sip|sig|sk(oid|tid|[tesv])|scid|saoid|suoid"),
    "signature": re.compile(r"signature|expires|policy|key-pair-id|awsaccesskeyid|googleaccessid"),
}
"""Of a signed URL: by which parameter it is known, and which others are new with each signing (S3, Google, Azure, and
CloudFront with the older ways of the first two)."""


@dataclass(frozen=True, slots=True)
class Url:
    """The parts of a URL as it is written. Of a chain (`zip://a.csv::s3://...`) those of the first link."""

    scheme: str
    user: str
    """With the password; empty without."""
    host: str
    """Or the bucket."""
    path: str
    """With the slash before it, if there is one."""
    query: str
    rest: str
    """The other links of a chain, with the signs before them."""


def is_remote(text: str) -> bool:
    """Whether a path of the job file is a URL."""
    return _URL.match(text) is not None


def find_local(text: str) -> str | None:
    """The path on this machine, of a path or of a URL that names one; None for a URL of another place."""
    scheme, is_url, path = text.partition("://")
    if not is_url or not is_remote(text):
        return text
    return path if scheme in {"file", "local"} and _CHAIN not in path else None


def parse_url(url: str) -> Url:
    """The parts of a text for which `is_remote` holds. Never raises."""
    first, chain, rest = url.partition(_CHAIN)
    scheme, _, address = first.partition("://")
    scheme = scheme.lower()
    if scheme in {"http", "https"}:  # elsewhere a # may stand in a file's name
        address = address.partition("#")[0]
    body, _, query = address.partition("?")
    authority, slash, path = body.partition("/")
    user, _, host = authority.rpartition("@")
    return Url(scheme, user, host, slash + path, query, chain + rest)


def hide_secrets(text: str) -> str:
    """What a path of the job file is called in messages and in the database: of a URL neither user nor query."""
    if not is_remote(text):
        return text
    url = parse_url(text)
    return _write(url, "?..." if url.query else "", hide_secrets)


def name_url(text: str) -> str:
    """The name of one file: different for different files, the same for each run and for each signature."""
    url = parse_url(text)
    told = _drop_signature(url.query)
    digest = hashlib.sha256(repr(told).encode()).hexdigest()[:12]
    return _write(url, f"?#{digest}" if told else "", name_url)


def drop_digest(name: str) -> str:
    """A file's name without what its query adds."""
    return _DIGEST.sub("", name)


def find_file_name(text: str) -> str:
    """What tells by its ending what the file holds; that of a query where the path has none."""
    url = parse_url(text)
    place = f"{url.host}{url.path}"
    return place if "." in place.rpartition("/")[2] or not url.query else url.query


def _write(url: Url, query: str, tell: Callable[[str], str]) -> str:
    user = f"{url.user}@" if url.user and url.scheme in _CONTAINER_SCHEMES else ""
    rest = _CHAIN.join(tell(link) if is_remote(link) else link for link in url.rest.split(_CHAIN))
    return f"{url.scheme}://{user}{url.host}{url.path}{query}{rest}"


def _drop_signature(query: str) -> list[tuple[str, str]]:
    pairs = parse_qsl(query, keep_blank_values=True)
    names = {name.lower() for name, _ in pairs}
    signed = [pattern for name, pattern in _SIGNATURES.items() if name in names]
    return [pair for pair in pairs if not any(pattern.fullmatch(pair[0].lower()) for pattern in signed)]

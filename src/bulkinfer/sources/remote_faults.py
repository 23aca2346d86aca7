"""What goes wrong with a file elsewhere: whatever fsspec and the packages behind it raise becomes a `RemoteFault`.

It is told by types and by status codes, never by the text of a message, which may hold an address with a password.
"""

import errno
import socket
from collections.abc import Callable, Iterator
from enum import Enum, auto
from typing import TypeVar

from bulkinfer.errors import InputError
from bulkinfer.sources.urls import hide_secrets, parse_url
from bulkinfer.threads import run_in_thread

_T = TypeVar("_T")
_PACKAGES = {
    "s3": "s3fs",
    "s3a": "s3fs",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "http": "aiohttp",
    "https": "aiohttp",
    "hf": "huggingface_hub",
    "abfs": "adlfs",
    "abfss": "adlfs",
    "az": "adlfs",
    "adl": "adlfs",
    "sftp": "paramiko",
    "ssh": "paramiko",
    "smb": "smbprotocol",
    "webdav": "webdav4",
    "webhdfs": "requests",
    "github": "requests",
    "libarchive": "libarchive-c",
    "oss": "ossfs",
    "oci": "ocifs",
}
_OF_THE_EXTRA = frozenset({"s3fs", "gcsfs", "aiohttp"})


class Fault(Enum):
    """What kind it is of."""

    MISSING = auto()
    REFUSED = auto()
    NO_CREDENTIALS = auto()
    NO_PACKAGE = auto()
    UNREACHABLE = auto()
    NO_ANSWER = auto()
    BROKEN_OFF = auto()
    SERVER = auto()
    ADDRESS = auto()
    """The address or the settings: the package behind the scheme cannot make anything of them."""
    OTHER = auto()


_KNOWN = {
    Fault.NO_CREDENTIALS: frozenset(
        {
            "NoCredentialsError",
            "PartialCredentialsError",
            "DefaultCredentialsError",
            "ProfileNotFound",
            "TokenRetrievalError",
        }
    ),
    Fault.ADDRESS: frozenset({"ParamValidationError", "InvalidURL"}),
    Fault.UNREACHABLE: frozenset({"ClientConnectionError", "ClientPayloadError", "HTTPClientError", "TransportError"}),
}
"""Classes of botocore, google-auth, aiohttp, httpx and requests that tell by their names what they mean."""
_PASSING = frozenset({Fault.UNREACHABLE, Fault.NO_ANSWER, Fault.BROKEN_OFF, Fault.SERVER})


class RemoteFault(OSError):
    """Why a file elsewhere cannot be read; its `strerror` is a few words that hold nothing of the address."""

    def __init__(self, kind: Fault, words: str) -> None:
        super().__init__(errno.EIO, words)
        self.kind = kind


def is_passing(error: BaseException) -> bool:
    """Whether the same may go well a moment later."""
    return isinstance(error, RemoteFault) and error.kind in _PASSING


def ask(action: Callable[[], _T], limit_s: float) -> _T:
    """Call a package of fsspec's, for so many seconds at most. Raises RemoteFault, whatever goes wrong.

    The call goes on in a thread of its own when it takes longer: nothing can end it, and nobody waits for it.
    """
    future = run_in_thread(action, "remote-file")
    try:
        error = future.exception(limit_s)  # a signal that comes meanwhile is raised here, and is no fault
    except TimeoutError as late:
        raise RemoteFault(Fault.NO_ANSWER, f"no answer for {limit_s:g} s") from late
    if isinstance(error, Exception):  # any package may stand behind a URL, and raises what it likes
        raise _translate(error) from error
    return future.result()


def explain(url: str, fault: RemoteFault) -> InputError:
    """The message for who wrote the URL into the job file."""
    return InputError(f"input.path {hide_secrets(url)!r}: {_tell(parse_url(url).scheme, fault)}", "input.path")


def explain_reading(name: str, fault: RemoteFault) -> InputError:
    """The message for a file that could be found, and not be read to its end."""
    return InputError(
        f"{name}: reading failed ({fault.strerror}). The rows before were read; run again when the network is well"
    )


def _tell(scheme: str, fault: RemoteFault) -> str:  # noqa: PLR0911 - one line for each kind
    match fault.kind:
        case Fault.MISSING:
            return "does not exist. Correct the path, or write the file first"
        case Fault.REFUSED:
            return "access was refused. Check the credentials and what they allow"
        case Fault.NO_CREDENTIALS:
            return (
                f"no credentials were found ({fault.strerror}). Set them as for the service's own tools, such as "
                "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or FSSPEC_S3_ANON=true for a public bucket"
            )
        case Fault.NO_PACKAGE:
            package = _PACKAGES.get(scheme, fault.strerror)
            extra = ", or pip install 'bulkinfer[remote]'" if package in _OF_THE_EXTRA else ""
            return f"the package for {scheme}:// is not installed: pip install {package}{extra}"
        case Fault.UNREACHABLE:
            return f"cannot be reached ({fault.strerror}). Check the address and the network"
        case Fault.ADDRESS:
            return (
                f"is no address that {scheme}:// takes, or settings are missing ({fault.strerror}). See the "
                f"documentation of its fsspec package; settings go into FSSPEC_{scheme.upper()}_<NAME>"
            )
    return f"cannot be read ({fault.strerror}). Check the address and the network"


def _translate(error: Exception) -> RemoteFault:
    if isinstance(error, RemoteFault):
        return error
    reasons = list(_iter_reasons(error))
    if isinstance(error, ImportError):
        return RemoteFault(Fault.NO_PACKAGE, error.name or next(filter(None, map(_find_module, reasons)), "fsspec"))
    judged = filter(None, map(_judge_reason, reasons))
    # fsspec's http takes what it cannot make an address of for a file that is not there.
    wrong = (error for error in reasons if isinstance(error, ValueError | OverflowError))
    return next(judged, None) or _judge_type(next(wrong, error) if isinstance(error, FileNotFoundError) else error)


def _judge_reason(error: BaseException) -> RemoteFault | None:
    if (status := _find_status(error)) is not None:
        return _judge_status(status)
    names = {base.__name__ for base in type(error).__mro__}
    for kind, known in _KNOWN.items():
        if names & known:
            return RemoteFault(kind, type(error).__name__)
    is_network = isinstance(error, ConnectionError | socket.gaierror)
    return RemoteFault(Fault.UNREACHABLE, type(error).__name__) if is_network else None


def _judge_type(error: Exception) -> RemoteFault:
    name = type(error).__name__
    match error:
        case FileNotFoundError() | NotADirectoryError():
            return RemoteFault(Fault.MISSING, "it is not there")
        case PermissionError():
            return RemoteFault(Fault.REFUSED, "access was refused")
        case TimeoutError():
            return RemoteFault(Fault.NO_ANSWER, "no answer in time")
        case OSError():
            is_network = error.errno in {errno.EIO, errno.EPIPE, errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EBUSY}
            return RemoteFault(Fault.UNREACHABLE if is_network else Fault.OTHER, name)
        case (
            TypeError()
            | ArithmeticError()
            | ValueError()
            | LookupError()
            | AttributeError()
            | AssertionError()
            | NotImplementedError()
        ):
            return RemoteFault(Fault.ADDRESS, name)
    return RemoteFault(Fault.OTHER, name)


def _judge_status(status: int) -> RemoteFault:
    words = f"the server answered {status}"
    if status in {401, 403, 407}:
        return RemoteFault(Fault.REFUSED, words)
    if status in {404, 410}:
        return RemoteFault(Fault.MISSING, words)
    is_for_now = status >= 500 or status in {408, 425, 429}
    return RemoteFault(Fault.SERVER if is_for_now else Fault.OTHER, words)


def _iter_reasons(error: BaseException) -> Iterator[BaseException]:
    """The error, and what led to it."""
    seen: set[int] = set()
    reason: BaseException | None = error
    while reason is not None and id(reason) not in seen:
        seen.add(id(reason))
        yield reason
        reason = reason.__cause__ or (None if reason.__suppress_context__ else reason.__context__)


def _find_module(error: BaseException) -> str | None:
    return error.name if isinstance(error, ImportError) else None


def _find_status(error: BaseException) -> int | None:
    """The status of HTTP that aiohttp, requests, httpx, gcsfs and botocore put into what they raise."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        found = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    else:
        found = getattr(error, "status", None) or getattr(error, "code", None) or getattr(response, "status_code", None)
    return found if isinstance(found, int) and 400 <= found <= 599 else None

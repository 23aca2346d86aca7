"""Images: what kind some bytes are, and what was found of the files that rows name."""

import base64
from dataclasses import dataclass

_SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)


@dataclass(frozen=True, slots=True)
class ImageFields:
    """The fields of a job's documents that hold images."""

    names: tuple[str, ...]
    folder: str
    """Absolute: where relative names of files begin, of rows that come from no file."""
    printed: frozenset[str] = frozenset()
    """Those of them that a template prints: the name of a file counts there, too."""


@dataclass(frozen=True, slots=True)
class ImageFile:
    """A file that is an image."""

    key: str
    """Of its content, `write_image_key`: what it counts by, and what stands for it in messages."""
    path: str
    """Absolute."""
    size_bytes: int

    @property
    def num_chars(self) -> int:
        """Of its content as text."""
        return -(-self.size_bytes // 3) * 4


@dataclass(frozen=True, slots=True)
class BadImage:
    """A file that cannot be asked about."""

    key: str
    """Of its name and of what is wrong with it: another one means another document."""
    reason: str
    """Without its name."""


SeenImage = ImageFile | BadImage


def name_image_type(content: bytes) -> str | None:
    """The media type of an image by its first bytes; None for one of another kind, and for what is none."""
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "image/webp"
    return next((name for signature, name in _SIGNATURES if content.startswith(signature)), None)


def write_image_key(digest: bytes) -> str:
    """What stands for a file with this SHA-256. No row can name a file so."""
    return f"sha256:{digest.hex()}"


def write_data_url(content: bytes) -> str | None:
    """An image as text, as prompts take it; None for what is no image."""
    name = name_image_type(content)
    return None if name is None else f"data:{name};base64,{base64.b64encode(content).decode()}"

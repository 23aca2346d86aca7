"""Images that a document brings: `prompt.images`. Reads no file."""

import re
from collections.abc import Iterator, Mapping, Sequence

from bulkinfer.prompt.part import DocumentFault
from bulkinfer.records import FailureCode, JsonValue

_DATA_URL = re.compile(r"data:image/[\w.+-]+;base64,[A-Za-z0-9+/=\s]+")
_OTHER_URL = re.compile(r"(?!data:)[A-Za-z][A-Za-z0-9+.-]*:", re.ASCII)
MAX_IMAGES = 256


def read_images(names: Sequence[str], fields: Mapping[str, JsonValue]) -> tuple[str, ...] | DocumentFault:
    """Files and `data:` URLs, in the order of the fields. A field that is absent or null has none."""
    images: list[str] = []
    for name in names:
        for value in _iter_values(fields.get(name)):
            if not isinstance(value, str) or not _is_image(value):
                expected = "files, data: URLs of images, bytes of PNG, JPEG, GIF or WebP, or lists of these"
                message = f"prompt.images: the field {name}: expected {expected}"
                return DocumentFault(FailureCode.INVALID_FIELD, message)
            images.append(value)
    if len(images) > MAX_IMAGES:
        message = f"prompt.images: expected at most {MAX_IMAGES} images, found {len(images)}"
        return DocumentFault(FailureCode.INVALID_FIELD, message)
    return tuple(images)


def _iter_values(value: JsonValue) -> Iterator[JsonValue]:
    if isinstance(value, list | tuple):
        for part in value:
            yield from _iter_values(part)
    elif isinstance(value, Mapping):
        # As a folder of Hugging Face datasets has them: the bytes, or else the file.
        yield value.get("bytes") or value.get("path")
    elif value is not None:
        yield value


def _is_image(text: str) -> bool:
    if text.startswith("data:"):
        return _DATA_URL.fullmatch(text) is not None
    return bool(text.strip()) and "\0" not in text and _OTHER_URL.match(text) is None and _is_utf8(text)


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True

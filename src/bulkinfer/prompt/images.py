"""Images that a document brings: `prompt.images`. Reads no file."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from bulkinfer.prompt.part import DocumentFault
from bulkinfer.records import BadImage, Document, FailureCode, ImageFile, JsonValue

_DATA_URL = re.compile(r"data:image/[\w.+-]+;base64,[A-Za-z0-9+/=\s]+")
_OTHER_URL = re.compile(r"(?!data:)[A-Za-z][A-Za-z0-9+.-]*:", re.ASCII)
MAX_IMAGES = 256
MAX_IMAGE_CHARS = 256 << 20
"""Of all images of one document, as text."""


@dataclass(frozen=True, slots=True)
class Images:
    """What the last message of a document shows."""

    urls: tuple[str, ...] = ()
    """`data:` URLs, or keys of the files."""
    files: Mapping[str, ImageFile] = field(default_factory=dict)
    """By key."""

    @property
    def num_chars(self) -> int:
        """Of all of them as text."""
        return sum(self.files[url].num_chars if url in self.files else len(url) for url in self.urls)


NO_IMAGES = Images()


def read_images(names: Sequence[str], document: Document) -> Images | DocumentFault:
    """Files and `data:` URLs, in the order of the fields. A field that is absent or null has none."""
    if not names:
        return NO_IMAGES
    known = {} if document.images is None else document.images.files
    values = [(name, value) for name in names for value in _iter_values(document.fields.get(name))]
    if len(values) > MAX_IMAGES:
        return _fault(f"expected at most {MAX_IMAGES} images, found {len(values)}")
    urls: list[str] = []
    files: dict[str, ImageFile] = {}
    for name, value in values:
        match known.get(value) if isinstance(value, str) else None:
            case ImageFile() as file:
                urls.append(file.key)
                files[file.key] = file
            case BadImage(reason=reason):
                return _fault(f"image {len(urls) + 1}: {reason}")
            case None if isinstance(value, str) and _DATA_URL.fullmatch(value):
                urls.append(value)
            case None:
                expected = "files, data: URLs of images, bytes of PNG, JPEG, GIF or WebP, or lists of these"
                return _fault(f"the field {name}: expected {expected}")
    images = Images(tuple(urls), files)
    if images.num_chars > MAX_IMAGE_CHARS:
        return _fault(f"expected at most {MAX_IMAGE_CHARS >> 20} MiB of images, written as base64, found more")
    return images


def is_file_name(text: str) -> bool:
    """Whether a value of such a field names a file."""
    if text.startswith("data:") or not text.strip() or "\0" in text or _OTHER_URL.match(text):
        return False
    return _is_utf8(text)


def _fault(message: str) -> DocumentFault:
    return DocumentFault(FailureCode.INVALID_FIELD, f"prompt.images: {message}")


def _iter_values(value: JsonValue) -> Iterator[JsonValue]:
    if isinstance(value, list | tuple):
        for part in value:
            yield from _iter_values(part)
    elif isinstance(value, Mapping):
        # As a folder of Hugging Face datasets has them: the bytes, or else the file.
        yield value.get("bytes") or value.get("path")
    elif value is not None:
        yield value


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True

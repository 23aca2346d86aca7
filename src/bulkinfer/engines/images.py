"""Images of a prompt on their way to the engine: read from their files, checked by their contents, written as text.

They travel as `data:` URLs in the frame to the engine's process, and stand in no log, event or message.
"""

from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path

import orjson

from bulkinfer.engines.vllm_source import read_assigned_names
from bulkinfer.errors import JobError
from bulkinfer.records import (
    FailureCode,
    ImageFile,
    Message,
    Rejection,
    Request,
    write_data_url,
    write_image_key,
)
from bulkinfer.threads import run_in_thread

_REGISTRY = "model_executor/models/registry.py"
_SEEING_KEYS = ("vision", "image", "visual", "img")


READ_LIMIT_S = 60.0


class ImageFault(Exception):
    """An image of one document cannot be used. The message says which and why, without its name."""

    def __init__(self, message: str, *, is_passing: bool = False) -> None:
        super().__init__(message)
        self.is_passing = is_passing
        """Whether it may be well when it is asked again."""


def load_images(request: Request) -> tuple[Message, ...]:
    """The messages of a request, with every image as a `data:` URL. Raises ImageFault."""
    if not request.image_files:
        return request.messages
    number = 0
    messages = []
    for message in request.messages:
        urls = []
        for image in message.images:
            number += 1
            file = request.image_files.get(image)
            urls.append(image if file is None else _load(file, number))
        messages.append(replace(message, images=tuple(urls)))
    return tuple(messages)


def reject_image(request: Request, error: ImageFault) -> Rejection:
    """What becomes of a request with such an image."""
    code = FailureCode.ENGINE_ERROR if error.is_passing else FailureCode.INVALID_FIELD
    return Rejection(request.document_hash, code, f"prompt.images: {error}")


def check_takes_images(config_path: Path | None) -> None:
    """Refuse a model of which it is known that it takes no images, by its config.json. Raises JobError."""
    if config_path is None:
        return
    try:
        config = orjson.loads(config_path.read_bytes())
        architectures = set(config.get("architectures") or ())
    except (OSError, ValueError, AttributeError, TypeError):
        return
    seeing = read_assigned_names(_REGISTRY, "_MULTIMODAL_MODELS")
    blind = read_assigned_names(_REGISTRY, "_TEXT_GENERATION_MODELS")
    has_vision = any(word in key for key in config for word in _SEEING_KEYS)
    if architectures and not has_vision and architectures <= set(blind) - set(seeing):
        raise JobError(
            f"prompt.images: the model ({', '.join(sorted(architectures))}) takes no images; remove the key",
            "prompt.images",
        )


def _read(file: ImageFile) -> bytes:
    """Nothing of a file that is another one by now."""
    path = Path(file.path)
    return path.read_bytes() if path.stat().st_size == file.size_bytes else b""


def _load(file: ImageFile, number: int) -> str:
    try:
        content = run_in_thread(partial(_read, file), "bulkinfer-image").result(READ_LIMIT_S)
    except TimeoutError:
        raise ImageFault(f"image {number}: its disk does not answer", is_passing=True) from None
    except OSError as error:
        raise ImageFault(f"image {number}: the file cannot be read: {error.strerror}") from None
    url = write_data_url(content)
    if url is None or write_image_key(sha256(content).digest()) != file.key:
        raise ImageFault(f"image {number}: the file changed while the run was using it; run again")
    return url

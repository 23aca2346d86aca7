"""What kind of image some bytes are."""

import base64

_SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)


def name_image_type(content: bytes) -> str | None:
    """The media type of an image by its first bytes; None for one of another kind, and for what is none."""
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "image/webp"
    return next((name for signature, name in _SIGNATURES if content.startswith(signature)), None)


def write_data_url(content: bytes) -> str | None:
    """An image as text, as prompts take it; None for what is no image."""
    name = name_image_type(content)
    return None if name is None else f"data:{name};base64,{base64.b64encode(content).decode()}"

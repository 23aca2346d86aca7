"""Images: what rows may bring, how they are read, and how they stand in the request for the engine."""

import base64
import logging
import threading
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest

from bulkinfer.engines import images
from bulkinfer.engines.base import EngineRequest
from bulkinfer.engines.frames import Submit, decode_parent_frame, encode_parent_frame
from bulkinfer.engines.images import ImageFault, check_takes_images, load_images
from bulkinfer.engines.sending import encode_or_reject
from bulkinfer.engines.vllm_reading import write_message
from bulkinfer.errors import JobError
from bulkinfer.prompt import DocumentFault, Prompt
from bulkinfer.records import (
    BadImage,
    Document,
    DocumentImages,
    FailureCode,
    ImageFile,
    JsonValue,
    Message,
    Origin,
    Rejection,
    Request,
    SeenImage,
    write_data_url,
    write_image_key,
)
from bulkinfer.sources.values import convert_all, plan_reading
from tests.unit.test_prompt_conversation import template

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
URL = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"


A = ImageFile(write_image_key(sha256(PNG).digest()), "/photos/a.png", len(PNG))


def prepare(
    prompt: dict[str, Any], images: Mapping[str, SeenImage] | None = None, **fields: JsonValue
) -> Prompt | DocumentFault:
    shown = DocumentImages({"a.png": A} if images is None else images, fields)
    document = Document(Origin("s", 1, "s:1"), fields, shown)
    return template({"user": "What is it?", **prompt}).prepare(document)


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (PNG, "image/png"),
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"GIF89a..", "image/gif"),
        (b"RIFF\x10\0\0\0WEBPVP8 ", "image/webp"),
        (b"RIFF\x10\0\0\0WAVEfmt ", None),
        (b"text", None),
        (b"", None),
    ],
)
def test_images_are_known_by_their_first_bytes(content: bytes, kind: str | None) -> None:
    url = write_data_url(content)
    assert (None if url is None else url.partition(";")[0]) == (None if kind is None else f"data:{kind}")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("a.png", (A.key,)),
        (URL, (URL,)),
        (["a.png", URL], (A.key, URL)),
        ({"bytes": URL, "path": "a.png"}, (URL,)),
        ({"bytes": None, "path": "a.png"}, (A.key,)),
        (None, ()),
        ([], ()),
    ],
)
def test_the_last_message_gets_the_images(value: JsonValue, expected: tuple[str, ...]) -> None:
    prompt = prepare({"system": "Look.", "images": "photo"}, photo=value)
    assert isinstance(prompt, Prompt)
    assert [message.images for message in prompt.messages] == [(), expected]
    assert prompt.messages[-1].content == "What is it?"
    assert prompt.images.num_chars == sum(len(URL) - len("data:image/png;base64,") * (one == A.key) for one in expected)


def test_several_fields_are_read_in_order_and_belong_to_the_document() -> None:
    found = template({"messages": "talk", "images": ["back", "front"]})
    assert found.fields == {"talk", "back", "front"}
    fields: dict[str, JsonValue] = {"talk": [{"role": "user", "content": "x"}], "front": URL, "back": "a.png"}
    prompt = found.prepare(Document(Origin("s", 1, "s:1"), fields, DocumentImages({"a.png": A}, fields)))
    assert isinstance(prompt, Prompt)
    assert prompt.messages[-1].images == (A.key, URL)


@pytest.mark.parametrize(
    "value",
    [
        3,
        True,
        "",
        " ",
        {},
        {"bytes": None, "path": None},
        [["a.png", 3]],
        "https://example.com/a.png",
        "file:///a.png",
        "data:text/plain;base64,AAAA",
        "data:image/png;base64,",
        "data:image/png,raw",
        "a\0b.png",
        "half \ud800.png",
        "sha256:" + "0" * 64,
        "nobody looked.png",
    ],
)
def test_what_is_no_image_is_the_rows_fault(value: JsonValue) -> None:
    fault = prepare({"images": "photo"}, photo=value)
    expected = "files, data: URLs of images, bytes of PNG, JPEG, GIF or WebP, or lists of these"
    assert fault == DocumentFault(FailureCode.INVALID_FIELD, f"prompt.images: the field photo: expected {expected}")


def test_too_many_images_and_too_large_ones_are_the_rows_fault() -> None:
    fault = prepare({"images": "photo"}, photo=["a.png"] * 257)
    assert fault == DocumentFault(FailureCode.INVALID_FIELD, "prompt.images: expected at most 256 images, found 257")
    large = {name: ImageFile(f"sha256:{name}", name, 40 << 20) for name in "abcde"}
    assert isinstance(prepare({"images": "photo"}, large, photo=["a", "b", "c", "d"]), Prompt)
    fault = prepare({"images": "photo"}, large, photo=["a", "b", "c", "d", "e"])
    expected = "prompt.images: expected at most 256 MiB of images, written as base64, found more"
    assert fault == DocumentFault(FailureCode.INVALID_FIELD, expected)


def test_a_file_that_is_none_is_the_rows_fault() -> None:
    fault = prepare({"images": "photo"}, {"a.png": A, "b.png": BadImage("none:b.png", "why")}, photo=["a.png", "b.png"])
    assert fault == DocumentFault(FailureCode.INVALID_FIELD, "prompt.images: image 2: why")


def request(*found: str | ImageFile) -> Request:
    files = {one.key: one for one in found if isinstance(one, ImageFile)}
    images = tuple(one if isinstance(one, str) else one.key for one in found)
    messages = (Message("system", "s"), Message("user", "What is it?", images))
    return Request(bytes(16), Origin("in.jsonl", 1, "a"), messages, 12, image_files=files)


def write_image(path: Path, content: bytes = PNG) -> ImageFile:
    path.write_bytes(content)
    return ImageFile(write_image_key(sha256(content).digest()), str(path), len(content))


def test_files_travel_as_text(tmp_path: Path) -> None:
    file = write_image(tmp_path / "a.bin")
    system, user = load_images(request(file, URL, file))
    assert system.images == ()
    assert user.images == (URL, URL, URL)
    assert len(URL) - len("data:image/png;base64,") == file.num_chars


def test_a_request_without_files_is_left_as_it_is() -> None:
    for asked in (request(), request(URL)):
        assert load_images(asked) is asked.messages


def test_a_file_that_is_not_what_it_was_is_told_without_its_name(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    file = write_image(path)
    changed = "image 2: the file changed while the run was using it; run again"
    for content in (PNG[:-1] + b"x", PNG + b"x", b"text"):
        path.write_bytes(content)
        with pytest.raises(ImageFault) as caught:
            load_images(request(URL, file))
        assert str(caught.value) == changed
    path.unlink()
    with pytest.raises(ImageFault) as caught:
        load_images(request(file))
    assert str(caught.value) == "image 1: the file cannot be read: No such file or directory"


def test_an_image_whose_disk_does_not_answer_is_asked_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = request(write_image(tmp_path / "a.png"))
    is_free = threading.Event()
    read_bytes = Path.read_bytes

    def read(path: Path) -> bytes:
        assert is_free.wait(30)
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", read)
    monkeypatch.setattr(images, "READ_LIMIT_S", 0.01)
    told = "prompt.images: image 1: its disk does not answer"
    assert encode_or_reject(asked, 0) == Rejection(bytes(16), FailureCode.ENGINE_ERROR, told)
    is_free.set()
    monkeypatch.setattr(images, "READ_LIMIT_S", 30)
    assert isinstance(encode_or_reject(asked, 0), bytes)


def test_the_frame_holds_the_image_and_nothing_that_is_printed_does(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    asked = EngineRequest.of(request(write_image(tmp_path / "a.png")), 0)
    frame = encode_parent_frame(Submit((asked,)))
    assert URL.encode() in frame
    assert decode_parent_frame(frame) == Submit((asked,))
    assert "base64" not in repr(asked)
    assert caplog.text == ""


def test_the_engine_gets_images_before_the_text() -> None:
    message = Message("user", "What is it?", (URL, URL))
    assert write_message(replace(message, images=())) == {"role": "user", "content": "What is it?"}
    image = {"type": "image_url", "image_url": {"url": URL}}
    assert write_message(message)["content"] == [image, image, {"type": "text", "text": "What is it?"}]


def test_bytes_of_a_table_are_an_image_or_text_or_neither() -> None:
    for arrow_type in (pa.binary(), pa.large_binary()):
        convert = plan_reading(arrow_type).convert
        assert convert_all(convert, [PNG, b"text", None]) == [URL, "text", None]
        with pytest.raises(UnicodeDecodeError):
            convert_all(convert, [b"\xfe\xfe"])
    dataset = plan_reading(pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
    assert convert_all(dataset.convert, [{"bytes": PNG, "path": "a"}]) == [{"bytes": URL, "path": "a"}]


@pytest.mark.parametrize(
    ("config", "is_refused"),
    [
        ({"architectures": ["BlindForCausalLM"]}, True),
        ({"architectures": ["BlindForCausalLM"], "vision_config": {}}, False),
        ({"architectures": ["SeeingForCausalLM"]}, False),
        ({"architectures": ["NeverHeardOf"]}, False),
        ({"model_type": "llama"}, False),
        ([], False),
    ],
)
def test_a_model_of_which_it_is_known_that_it_takes_no_images_is_refused(
    config: object, is_refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {"_MULTIMODAL_MODELS": ("SeeingForCausalLM",), "_TEXT_GENERATION_MODELS": ("BlindForCausalLM",)}
    monkeypatch.setattr(images, "read_assigned_names", lambda _, variable: known[variable])
    path = tmp_path / "config.json"
    path.write_bytes(orjson.dumps(config))
    if is_refused:
        with pytest.raises(JobError, match=r"prompt.images: the model \(BlindForCausalLM\) takes no images"):
            check_takes_images(path)
    else:
        check_takes_images(path)
    check_takes_images(None)
    check_takes_images(tmp_path / "none.json")

"""Images: what rows may bring, how they are read, and how they stand in the request for the engine."""

import base64
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest

from bulkinfer.engines import images
from bulkinfer.engines.base import EngineRequest
from bulkinfer.engines.frames import Submit, decode_parent_frame, encode_parent_frame
from bulkinfer.engines.images import ImageFault, check_takes_images, load_images
from bulkinfer.engines.vllm_reading import write_message
from bulkinfer.errors import JobError
from bulkinfer.prompt import DocumentFault, Prompt
from bulkinfer.records import Document, FailureCode, JsonValue, Message, Origin, Request, write_data_url
from bulkinfer.sources.values import convert_all, plan_reading
from tests.unit.test_prompt_conversation import template

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
URL = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"


def prepare(prompt: dict[str, Any], **fields: JsonValue) -> Prompt | DocumentFault:
    return template({"user": "What is it?", **prompt}).prepare(Document(Origin("s", 1, "s:1"), fields))


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
        ("a/b.png", ("a/b.png",)),
        (URL, (URL,)),
        (["a.png", URL], ("a.png", URL)),
        ({"bytes": URL, "path": "a.png"}, (URL,)),
        ({"bytes": None, "path": "a.png"}, ("a.png",)),
        (None, ()),
        ([], ()),
    ],
)
def test_the_last_message_gets_the_images(value: JsonValue, expected: tuple[str, ...]) -> None:
    prompt = prepare({"system": "Look.", "images": "photo"}, photo=value)
    assert isinstance(prompt, Prompt)
    assert [message.images for message in prompt.messages] == [(), expected]
    assert prompt.messages[-1].content == "What is it?"


def test_several_fields_are_read_in_order_and_belong_to_the_document() -> None:
    found = template({"messages": "talk", "images": ["back", "front"]})
    assert found.fields == {"talk", "back", "front"}
    fields: dict[str, JsonValue] = {"talk": [{"role": "user", "content": "x"}], "front": "f.png", "back": "b.png"}
    prompt = found.prepare(Document(Origin("s", 1, "s:1"), fields))
    assert isinstance(prompt, Prompt)
    assert prompt.messages[-1].images == ("b.png", "f.png")


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
    ],
)
def test_what_is_no_image_is_the_rows_fault(value: JsonValue) -> None:
    fault = prepare({"images": "photo"}, photo=value)
    expected = "files, data: URLs of images, bytes of PNG, JPEG, GIF or WebP, or lists of these"
    assert fault == DocumentFault(FailureCode.INVALID_FIELD, f"prompt.images: the field photo: expected {expected}")


def test_too_many_images_are_the_rows_fault() -> None:
    fault = prepare({"images": "photo"}, photo=["a.png"] * 257)
    assert fault == DocumentFault(FailureCode.INVALID_FIELD, "prompt.images: expected at most 256 images, found 257")


def request(*found: str, folder: Path) -> Request:
    messages = (Message("system", "s"), Message("user", "What is it?", found))
    return Request(bytes(16), Origin("in.jsonl", 1, "a"), messages, 12, folder=str(folder))


def test_files_are_read_beside_the_input_and_travel_as_text(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.bin").write_bytes(PNG)
    system, user = load_images(request("photos/a.bin", URL, str(tmp_path / "photos" / "a.bin"), folder=tmp_path))
    assert system.images == ()
    assert user.images == (URL, URL, URL)


def test_a_request_without_images_is_left_as_it_is(tmp_path: Path) -> None:
    asked = request(folder=tmp_path)
    assert load_images(asked) is asked.messages


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("none.png", "image 2: the file cannot be read: No such file or directory"),
        (".", "image 2: the file cannot be read: Is a directory"),
        ("text.png", "image 2: expected a PNG, JPEG, GIF or WebP file, found another"),
        ("large.png", "image 2: expected at most 1 MiB, found a larger file"),
    ],
)
def test_a_file_that_is_none_is_told_without_its_name(
    name: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "MAX_IMAGE_BYTES", 1 << 20)
    (tmp_path / "text.png").write_text("text")
    (tmp_path / "large.png").write_bytes(PNG + bytes(1 << 20))
    with pytest.raises(ImageFault) as caught:
        load_images(request(URL, name, folder=tmp_path))
    assert str(caught.value) == told


def test_the_frame_holds_the_image_and_nothing_that_is_printed_does(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a.png").write_bytes(PNG)
    caplog.set_level(logging.DEBUG)
    asked = EngineRequest.of(request("a.png", folder=tmp_path), 0)
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

"""What goes to standard output as JSON: one object, however long a list in it is."""

import json
from collections.abc import Iterator

import pytest

from bulkinfer.errors import StoreLocked
from bulkinfer.streams import print_json_with


def test_a_list_of_any_length_is_part_of_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    print_json_with({"a": "é\x9b", "b": {}}, "all", ({"n": number} for number in range(3)))
    printed = capsys.readouterr().out
    assert json.loads(printed) == {"a": "é\x9b", "b": {}, "all": [{"n": 0}, {"n": 1}, {"n": 2}]}
    assert printed.count("\n") == 1
    assert "\x9b" not in printed, "it could drive a terminal"
    print_json_with({"a": 1}, "all", [])
    assert json.loads(capsys.readouterr().out) == {"a": 1, "all": []}


def test_what_fails_on_the_way_prints_no_half_of_an_object(capsys: pytest.CaptureFixture[str]) -> None:
    def read() -> Iterator[int]:
        yield 1
        raise StoreLocked("the run ended")

    with pytest.raises(StoreLocked):
        print_json_with({"a": 1}, "all", read())
    assert capsys.readouterr().out == ""


def test_values_are_not_gathered_before_they_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    from bulkinfer import streams

    alive, encoded = 0, []

    def read() -> Iterator[int]:
        nonlocal alive
        for number in range(5):
            alive = number
            yield number

    def encode(value: object) -> str:
        encoded.append((value, alive))
        return json.dumps(value)

    monkeypatch.setattr(streams, "encode_json", encode)
    print_json_with({"a": 1}, "all", read())
    assert encoded[2:] == [(number, number) for number in range(5)]

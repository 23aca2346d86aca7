"""What must and what must not change the identity of a document and of a task."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bulkinfer.errors import JobError
from bulkinfer.fingerprint import ModelIdentity, fingerprint_task, hash_document, hash_part, identify_model
from bulkinfer.job import JobSpec, load_job
from bulkinfer.records import ImageFile, JsonValue, Message, Origin, Request

HUB = ModelIdentity("org/name", None, None)

JSON_VALUES: st.SearchStrategy[JsonValue] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def reversed_keys(value: JsonValue) -> JsonValue:
    match value:
        case dict():
            return {key: reversed_keys(value[key]) for key in reversed(list(value))}
        case list():
            return [reversed_keys(child) for child in value]
    return value


def test_the_fingerprint_of_a_job_over_batch_files_is_pinned(tmp_path: Path) -> None:
    """What its requests may bring since is no reason to answer the others again."""
    text = "name: a\ninput: {path: in.jsonl, format: openai}\nmodel: {path: org/name}\nsampling: {max_tokens: 8}\n"
    (tmp_path / "job.yaml").write_text(f"{text}output: {{database: a.duckdb}}\n")
    spec = load_job(tmp_path / "job.yaml").spec
    assert spec.sampling.columns is not None
    assert spec.sampling.columns.response_format == "response_format"
    assert fingerprint_task(spec, HUB) == UUID("c997f9d9-b659-5d29-3251-45a6a99a86fc")


def test_the_hash_of_a_document_is_pinned() -> None:
    """A change here makes every stored answer count as missing."""
    document: dict[str, JsonValue] = {"subject": "Grüße", "body": "a\nb", "n": 1, "x": None}
    assert hash_document(document).hex() == "b42cd39b0946c4c9d3a0066fa1218dea"


@settings(deadline=None)
@given(st.dictionaries(st.text(), JSON_VALUES, max_size=6))
def test_the_order_of_keys_does_not_count(fields: dict[str, JsonValue]) -> None:
    turned = reversed_keys(fields)
    assert isinstance(turned, dict)
    assert hash_document(turned) == hash_document(fields)
    assert len(hash_document(fields)) == 16


@pytest.mark.parametrize(
    "fields",
    [
        {"a": {"x": 2**80, "y": 1}, "b": 2},
        {"a": {"x": "\ud800", "y": 1}, "b": 2},
    ],
)
def test_the_order_of_keys_does_not_count_in_what_orjson_refuses(fields: dict[str, JsonValue]) -> None:
    turned = reversed_keys(fields)
    assert isinstance(turned, dict)
    assert list(turned) != list(fields)
    assert hash_document(turned) == hash_document(fields)


def test_values_that_prompts_show_differently_have_different_hashes() -> None:
    values: list[JsonValue] = [
        None, True, False, 0, 0.0, -0.0, 1, 1.0, "1", "true", "null", "", " ", [], [[]], {}, [1], [1, 2], [[1], 2],
        {"a": 1}, {"a": None}, 2**63, 2**64, 2**64 + 1, 2**80, float(2**80), str(2**80), hex(2**80), [2**80],
        "é", "e\u0301", "\ud800", "\\ud800", "\ud801", [2**80, "a"], [2**80, ["a"]], {"a": 2**80}, '{"a":1}',
        [2**80, {"a": 1, "b": 2}], [2**80, {"a": [1, "b"], "c": 2}], -(2**80), [2**80, 1.5, True, None],
    ]  # fmt: skip
    documents: list[dict[str, JsonValue]] = [{}, {"w": 1}, {"V": 1}, *({"v": value} for value in values)]
    hashes = {hash_document(document) for document in documents}
    assert len(hashes) == len(documents)


def test_a_value_of_any_depth_has_a_hash() -> None:
    hashes = set()
    for depth in (200, 300, 5000, 5001):
        value: JsonValue = "x"
        for _ in range(depth):
            value = [value]
        hashes.add(hash_document({"a": value}))
    assert len(hashes) == 4


def spec(**sections: object) -> JobSpec:
    values: dict[str, object] = {
        "name": "a-job",
        "input": {"path": "a.jsonl"},
        "model": {"path": "org/name"},
        "prompt": {"user": "{{ body }}"},
        "sampling": {"max_tokens": 48},
        "output": {"database": "a.duckdb"},
    }
    return JobSpec.model_validate(values | sections)


def test_each_policy_for_what_is_too_long_is_a_task_and_the_default_is_none() -> None:
    policies = ("fail", "truncate_head", "truncate_middle", "truncate_tail")
    found = {fingerprint_task(spec(limits={"overlong": policy}), HUB) for policy in policies}
    assert len(found) == len(policies)
    assert fingerprint_task(spec(limits={"overlong": "fail"}), HUB) == fingerprint_task(spec(), HUB)


def test_a_part_is_known_by_all_that_is_asked_and_by_nothing_else() -> None:
    """A change of the pinned hash makes every stored answer to a part count as missing."""
    part = Request(b"a" * 16, Origin("a.jsonl", 1, "a"), (Message("system", "S"), Message("user", "text")), 5)
    other_place = replace(
        part, document_hash=b"b" * 16, origin=Origin("b", 2, "b"), attempt=3, queued_at_s=1.0, priority=4
    )
    assert hash_part(part) == hash_part(other_place)
    assert hash_part(part).hex() == "3f3f37e2dbaa412c2e6deadc53c72763"
    different = [
        replace(part, messages=part.messages[1:]),
        replace(part, messages=(Message("user", "S"), Message("user", "text"))),
        replace(part, messages=(*part.messages[:1], replace(part.messages[1], images=("a.png",)))),
        replace(part, sampling={"temperature": 0.5}),
        replace(part, adapter="formal"),
    ]
    assert len({hash_part(one) for one in (part, *different)}) == len(different) + 1
    shown, moved = (
        replace(different[2], image_files={"a.png": ImageFile("a.png", path, 9)}, num_image_chars=12)
        for path in ("/here/1.png", "/there/2.png")
    )
    assert hash_part(shown) == hash_part(moved), "what an image is counts, and not where it lies"


def test_how_parts_are_cut_and_joined_is_a_part_of_the_task() -> None:
    def split(combine: str, **limits: object) -> UUID:
        prompt = {"user": "{{ body }}", "combine": combine}
        return fingerprint_task(spec(prompt=prompt, limits={"overlong": "split", **limits}), HUB)

    one, other = "{{ parts }}", "{{ parts }}!"
    assert len({split(one), split(other), split(one, overlap_tokens=0), fingerprint_task(spec(), HUB)}) == 4
    assert split(one, overlap_tokens=64) == split(one)
    unused = spec(prompt={"user": "{{ body }}", "combine": one})
    assert fingerprint_task(unused, HUB) == fingerprint_task(spec(), HUB)


def test_the_fingerprint_of_a_task_is_pinned() -> None:
    """A change here makes every stored answer count as missing: raise the scheme's number only when it must be so."""
    assert str(fingerprint_task(spec(), HUB)) == "2d9ae9f0-f2fe-2c0c-8958-4702f6d16549"


@pytest.mark.parametrize(
    "sections",
    [
        {"name": "another"},
        {"input": {"path": ["b.parquet", "c/*.jsonl"], "id": "key"}},
        {"output": {"database": "elsewhere/b.duckdb"}},
        {"output": {"database": "a.duckdb", "accept_truncated": False, "repair": "retry", "max_repairs": 5}},
        {"limits": {"max_concurrency": 8, "max_queue_size": 9, "max_context_tokens": 4096, "max_failures": 3}},
        {"engine": {"kind": "vllm", "vllm": {"block_size": 64}, "max_restarts": 9, "grace_s": 1}},
        {"engine": {"simulated": {"engine_start_s": 3}}},
        {"model": {"path": "./a/folder", "trust_remote_code": True}},
        {"sampling": {"max_tokens": 48, "temperature": 0}},
        {"sampling": {"max_tokens": 48, "temperature": 0.0, "top_p": 1, "top_k": -1, "min_p": 0}},
        {"sampling": {"max_tokens": 48, "n": 1, "logprobs": None, "columns": None}},
        {"sampling": {"max_tokens": 48, "columns": {}}},
        {"sampling": {"max_tokens": 48, "top_k": 0, "presence_penalty": 0, "repetition_penalty": 1.0, "seed": None}},
    ],
)
def test_what_cannot_change_an_answer_does_not_change_the_task(sections: dict[str, object]) -> None:
    assert fingerprint_task(spec(**sections), HUB) == fingerprint_task(spec(), HUB)


def embed_spec(**sections: object) -> JobSpec:
    values: dict[str, object] = {
        "name": "a-job",
        "input": {"path": "a.jsonl"},
        "model": {"path": "org/name"},
        "task": {"kind": "embed"},
        "prompt": {"text": "{{ body }}"},
        "output": {"database": "a.duckdb"},
    }
    return JobSpec.model_validate(values | sections)


def test_the_fingerprint_of_an_embedding_is_pinned() -> None:
    assert str(fingerprint_task(embed_spec(), HUB)) == "396a4623-a49d-a8fc-cb24-211909f16dde"
    written_out = embed_spec(task={"kind": "embed", "normalize": True})
    assert fingerprint_task(written_out, HUB) == fingerprint_task(embed_spec(), HUB)


def test_whatever_can_change_a_vector_or_a_score_changes_the_task() -> None:
    pair = {"query": "{{ q }}", "document": "{{ d }}"}
    variants = [
        spec(),
        embed_spec(),
        embed_spec(task={"kind": "embed", "normalize": False}),
        embed_spec(prompt={"text": "{{ body }} "}),
        embed_spec(task={"kind": "score"}, prompt=pair),
        embed_spec(task={"kind": "score"}, prompt={"query": "{{ d }}", "document": "{{ q }}"}),
        embed_spec(engine={"kind": "simulated"}),
    ]
    assert len({fingerprint_task(one, HUB) for one in variants}) == len(variants)


def test_whatever_can_change_an_answer_changes_the_task() -> None:
    variants: list[dict[str, object]] = [
        {},
        {"prompt": {"user": "{{ body }} "}},
        {"prompt": {"user": "{{ body }}", "system": "Be brief."}},
        {"prompt": {"user": "Be brief.", "system": "{{ body }}"}},
        {"model": {"path": "org/name", "chat_template": "{{ messages }}"}},
        {"sampling": {"max_tokens": 49}},
        {"sampling": {"max_tokens": 48, "temperature": 0.5}},
        {"sampling": {"max_tokens": 48, "top_p": 0.5}},
        {"sampling": {"max_tokens": 48, "top_k": 5}},
        {"sampling": {"max_tokens": 48, "min_p": 0.5}},
        {"sampling": {"max_tokens": 48, "presence_penalty": 0.5}},
        {"sampling": {"max_tokens": 48, "frequency_penalty": 0.5}},
        {"sampling": {"max_tokens": 48, "repetition_penalty": 1.5}},
        {"sampling": {"max_tokens": 48, "stop": "x"}},
        {"sampling": {"max_tokens": 48, "stop": ["x", "y"]}},
        {"sampling": {"max_tokens": 48, "seed": 0}},
        {"sampling": {"max_tokens": 48, "seed": 1}},
        {"sampling": {"max_tokens": 48, "temperature": 0.5, "n": 2}},
        {"sampling": {"max_tokens": 48, "logprobs": 0}},
        {"sampling": {"max_tokens": 48, "logprobs": 5}},
        {"sampling": {"max_tokens": 48, "columns": {"temperature": "warmth"}}},
        {"sampling": {"max_tokens": 48, "columns": {"top_p": "warmth"}}},
        {"prompt": {"text": "{{ body }}"}},
        {"output": {"database": "a.duckdb", "reasoning": "qwen3"}},
        {"output": {"database": "a.duckdb", "accept_truncated": True}},
        {"prompt": {"messages": "body"}},
        {"prompt": {"messages": "body", "system": "Be brief."}},
        {"prompt": {"user": "{{ body }}", "turns": [{"role": "user", "content": "Be brief."}]}},
        {"prompt": {"user": "{{ body }}", "turns": [{"role": "assistant", "content": "Be brief."}]}},
        {"prompt": {"user": "{{ body }}", "turns": [{"role": "system", "content": "Be brief."}]}},
        {"engine": {"kind": "simulated"}},
    ]
    assert len({fingerprint_task(spec(**sections), HUB) for sections in variants}) == len(variants)


def test_models_are_told_apart_by_digest_alone_or_by_id_and_revision() -> None:
    models = [
        HUB,
        ModelIdentity("org/other", None, None),
        ModelIdentity("org/name", "main", None),
        ModelIdentity("/a/folder", None, "ab" * 32),
        ModelIdentity("/a/folder", None, "cd" * 32),
    ]
    assert len({fingerprint_task(spec(), model) for model in models}) == len(models)
    moved = ModelIdentity("/another/folder", "main", "ab" * 32)
    assert fingerprint_task(spec(), moved) == fingerprint_task(spec(), models[3])


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "smollm2-135m"
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt", "chat_template.jinja"):
        (folder / name).write_text(f"of {name}")
    (folder / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    (folder / "generation_config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"0" * 100)
    return folder


def append(name: str) -> Callable[[Path], object]:
    def edit(folder: Path) -> None:
        with (folder / name).open("ab") as file:
            file.write(b" ")

    return edit


def rename(name: str, new_name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).rename(folder / new_name)


@pytest.mark.parametrize(
    ("edit", "is_same"),
    [
        (append("config.json"), False),
        (append("generation_config.json"), False),
        (append("tokenizer.json"), False),
        (append("tokenizer_config.json"), False),
        (append("merges.txt"), False),
        (append("chat_template.jinja"), False),
        (append("special_tokens_map.json"), False),
        (append("modeling_own.py"), False),
        (append("model.safetensors"), False),
        (rename("model.safetensors", "model2.safetensors"), False),
        (append("model-00002.safetensors"), False),
        (append("model.safetensors.index.json"), False),
        (append("README.md"), True),
        (append(".gitattributes"), True),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"1" * 100), True),
        (lambda folder: os.utime(folder / "config.json", (1, 1)), True),
        (lambda folder: (folder / "onnx").mkdir(), True),
    ],
)
def test_identity_of_a_model_folder(model_folder: Path, edit: Callable[[Path], object], is_same: bool) -> None:
    before = identify_model(str(model_folder), None)
    edit(model_folder)
    after = identify_model(str(model_folder), None)
    assert before.digest is not None
    assert (before == after) is is_same


@pytest.mark.parametrize(
    ("name", "is_same"),
    [
        ("modules.json", False),
        ("sentence_bert_config.json", False),
        ("1_Pooling/config.json", False),
        ("2_Dense/model.safetensors", False),
        ("onnx/model.onnx", True),
    ],
)
def test_how_tokens_become_a_vector_is_part_of_an_embedding_model(model_folder: Path, name: str, is_same: bool) -> None:
    for path in ("modules.json", "sentence_bert_config.json", "1_Pooling/config.json", "2_Dense/model.safetensors"):
        (model_folder / path).parent.mkdir(exist_ok=True)
        (model_folder / path).write_text("{}")
    (model_folder / "onnx").mkdir()
    before = identify_model(str(model_folder), None)
    append(name)(model_folder)
    assert (identify_model(str(model_folder), None) == before) is is_same


def test_a_model_folder_keeps_its_digest_when_it_is_moved(model_folder: Path) -> None:
    before = identify_model(str(model_folder), None)
    moved = model_folder.rename(model_folder.with_name("moved"))
    assert identify_model(str(moved), None).digest == before.digest


def test_a_hub_id_is_its_own_identity() -> None:
    assert identify_model("org/name", "v1") == ModelIdentity("org/name", "v1", None)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda folder: (folder / "config.json").unlink(), "holds no config.json"),
        (lambda folder: (folder / "config.json").write_text("{\n!"), "config.json is not JSON (line 2)"),
        (lambda folder: (folder / "config.json").write_text("[]"), "names neither architectures nor model_type"),
        (lambda folder: (folder / "config.json").write_text("{}"), "names neither architectures nor model_type"),
        (lambda folder: (folder / "model.safetensors").unlink(), "no weights in"),
        (rename(".", "../smollm2-135m-instruct"), "does not exist; did you mean"),
    ],
)
def test_a_folder_that_is_no_model_is_refused(model_folder: Path, edit: Callable[[Path], object], message: str) -> None:
    edit(model_folder)
    with pytest.raises(JobError) as raised:
        identify_model(str(model_folder), None)
    assert message in str(raised.value)
    assert str(model_folder) in str(raised.value)


def test_a_file_is_no_model_folder(model_folder: Path) -> None:
    with pytest.raises(JobError, match="is not a folder"):
        identify_model(str(model_folder / "config.json"), None)


def test_a_model_folder_in_no_folder_says_so(model_folder: Path) -> None:
    with pytest.raises(JobError, match="nor does"):
        identify_model(str(model_folder / "not" / "there"), None)

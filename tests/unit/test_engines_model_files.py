"""What a model folder says that it is for, before anything is loaded."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bulkinfer.engines.base import EngineSpec
from bulkinfer.engines.model_files import check_purpose, is_cross_encoder, read_max_tokens
from bulkinfer.errors import JobError
from bulkinfer.records import JsonValue

SENTENCES = [{"type": "sentence_transformers.models.Transformer"}, {"type": "sentence_transformers.models.Pooling"}]


def write_folder(folder: Path, config: JsonValue, modules: JsonValue = None, **files: JsonValue) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if modules is not None:
        (folder / "modules.json").write_text(json.dumps(modules))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))


def spec_of(folder: Path, task: str, **arguments: JsonValue) -> EngineSpec:
    return EngineSpec("vllm", str(folder), None, {"max_tokens": 8}, None, None, arguments, task=task)


ONE_LABEL, THREE_LABELS = {"0": "LABEL_0"}, {"0": "a", "1": "b", "2": "c"}


@pytest.mark.parametrize(
    ("architecture", "more", "modules", "tasks"),
    [
        ("LlamaForCausalLM", {}, None, {"generate"}),
        ("Qwen3ForCausalLM", {}, SENTENCES, {"embed", "score"}),
        ("ChatGLMModel", {}, None, {"generate", "embed", "score"}),
        ("BertModel", {}, SENTENCES, {"embed", "score"}),
        ("XLMRobertaModel", {}, None, {"embed", "score"}),
        ("BertForSequenceClassification", {"id2label": ONE_LABEL}, None, {"score"}),
        ("BertForSequenceClassification", {"num_labels": 1}, None, {"score"}),
        ("BertForSequenceClassification", {}, None, set()),
        ("Qwen2ForSequenceClassification", {"id2label": THREE_LABELS}, None, set()),
        ("T5ForConditionalGeneration", {}, None, {"generate"}),
    ],
)
def test_a_model_is_taken_for_what_it_is_made_for(
    tmp_path: Path, architecture: str, more: dict[str, JsonValue], modules: JsonValue, tasks: set[str]
) -> None:
    write_folder(tmp_path / "m", {"architectures": [architecture], **more}, modules)
    taken = set()
    for task in ("generate", "embed", "score"):
        try:
            check_purpose(spec_of(tmp_path / "m", task))
            taken.add(task)
        except JobError as error:
            assert str(error).startswith(f"model.path: {tmp_path}/m: {architecture} ")  # noqa: PT017 - some are taken
    assert taken == tasks


def test_the_messages_say_what_to_do(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    write_folder(folder, {"architectures": ["BertModel"]}, SENTENCES)
    with pytest.raises(JobError, match=r"BertModel writes no answers here; .*, or write task: \{kind: embed\}"):
        check_purpose(spec_of(folder, "generate"))
    write_folder(folder, {"architectures": ["BertForSequenceClassification"], "id2label": THREE_LABELS})
    with pytest.raises(JobError, match="has 3 labels: expected one, whose number is the score"):
        check_purpose(spec_of(folder, "score"))
    with pytest.raises(JobError, match=r"or write task: \{kind: score\}"):
        check_purpose(spec_of(folder, "generate"))
    write_folder(tmp_path / "n", {"architectures": ["LlamaForCausalLM"]})
    with pytest.raises(JobError, match=r"or set engine\.vllm\.convert: embed"):
        check_purpose(spec_of(tmp_path / "n", "embed"))


def test_what_a_job_says_of_a_model_goes_before_its_files(tmp_path: Path) -> None:
    write_folder(tmp_path / "m", {"architectures": ["LlamaForCausalLM"]})
    check_purpose(spec_of(tmp_path / "m", "embed", convert="embed"))
    check_purpose(spec_of(tmp_path / "m", "score", convert="classify"))
    check_purpose(replace(spec_of(tmp_path / "m", "embed"), kind="simulated"))


@pytest.mark.parametrize("config", ["[]", "{", "null", '{"architectures": []}', '{"architectures": [3]}', '{"a": 1}'])
def test_files_that_say_nothing_stop_nothing(tmp_path: Path, config: str) -> None:
    (tmp_path / "config.json").write_text(config)
    (tmp_path / "modules.json").write_text('{"type": "Pooling"}')
    for task in ("generate", "embed", "score"):
        check_purpose(spec_of(tmp_path, task))
    assert not is_cross_encoder(tmp_path)
    assert read_max_tokens(tmp_path, is_pooling=True) is None
    check_purpose(spec_of(tmp_path / "missing", "embed"))


def test_the_shortest_limit_that_the_files_know_counts(tmp_path: Path) -> None:
    config: dict[str, JsonValue] = {"max_position_embeddings": 512, "position_embedding_type": "absolute"}
    write_folder(tmp_path / "a", config, tokenizer_config={"model_max_length": 384})
    assert read_max_tokens(tmp_path / "a", is_pooling=True) == 384
    assert read_max_tokens(tmp_path / "a", is_pooling=False) == 512
    write_folder(tmp_path / "b", config, sentence_bert_config={"max_seq_length": 256, "do_lower_case": False})
    assert read_max_tokens(tmp_path / "b", is_pooling=True) == 256

"""How vLLM's objects are read, without vLLM."""

from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
from tokenizers import Tokenizer, models, normalizers

from bulkinfer.engines.tuning import ModelFacts
from bulkinfer.engines.vllm_faults import describe_fault
from bulkinfer.engines.vllm_reading import (
    GpuMemory,
    end_spinning,
    find_max_prompt_bytes,
    read_durations,
    read_model_facts,
)
from bulkinfer.engines.white_space import MAX_RUN_CHARS
from bulkinfer.records import Completion


def stand_in(normalizer: normalizers.Normalizer | None, vocabulary: list[str]) -> SimpleNamespace:
    """As much of a tokenizer as is asked for."""
    backend = Tokenizer(models.BPE())
    if normalizer is not None:
        backend.normalizer = normalizer
    return SimpleNamespace(backend_tokenizer=backend, get_vocab=lambda: dict.fromkeys(vocabulary, 0))


@pytest.mark.parametrize(
    ("normalizer", "vocabulary", "limit"),
    [
        (None, ["a", "abcd"], 4 * 100),
        (None, ["a", "\u0120the"], 5 * 100),  # the letter that stands for a space takes two bytes
        (normalizers.Prepend("_"), ["abc"], 3 * 100),
        (normalizers.NFC(), ["abc"], 3 * 100 * 4),
        (normalizers.Strip(), ["abc"], None),
        (normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()]), ["abc"], None),
    ],
)
def test_a_bound_holds_only_for_tokenizers_that_keep_the_text(
    normalizer: normalizers.Normalizer | None, vocabulary: list[str], limit: int | None
) -> None:
    assert find_max_prompt_bytes(stand_in(normalizer, vocabulary), 100) == limit


def test_a_tokenizer_of_another_kind_has_no_bound() -> None:
    assert find_max_prompt_bytes(SimpleNamespace(), 100) is None
    assert find_max_prompt_bytes(None, 100) is None


def test_durations_are_differences_of_vllms_own_clock() -> None:
    metrics = SimpleNamespace(queued_ts=100.0, scheduled_ts=100.5, first_token_ts=101.0, last_token_ts=103.0)
    assert read_durations(metrics, 9.0) == (0.5, 1.0, 3.0)


@pytest.mark.parametrize(
    "metrics",
    [None, SimpleNamespace(queued_ts=0.0, scheduled_ts=0.0, first_token_ts=0.0, last_token_ts=0.0)],
    ids=["no metrics", "metrics not filled in"],
)
def test_without_metrics_the_time_since_adding_is_all_there_is(metrics: object) -> None:
    assert read_durations(metrics, 9.0) == (0.0, 9.0, 9.0)


class ParameterError(ValueError):
    """As vLLM's validation error: it names a parameter, and its text quotes a value."""

    parameter = "input_tokens"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("secret"), "vLLM refused the request: ValueError"),
        (ParameterError("secret"), "vLLM refused the request: ParameterError about its parameter input_tokens"),
    ],
)
def test_a_fault_is_told_without_its_text(error: Exception, message: str) -> None:
    assert describe_fault(error) == message


class Config:
    """vLLM's configuration of a model of 30 layers, as far as it is read."""

    max_model_len = 8192
    dtype = SimpleNamespace(itemsize=2)

    def __init__(self, **changed: int | None) -> None:
        shape = {
            "num_hidden_layers": 30,
            "hidden_size": 576,
            "intermediate_size": 1536,
            "num_attention_heads": 9,
            "vocab_size": 49_152,
        }
        self.hf_text_config = SimpleNamespace(
            **{name: value for name, value in (shape | changed).items() if value is not None}
        )

    def get_total_num_kv_heads(self) -> int:
        """Heads."""
        return 3

    def get_head_size(self) -> int:
        """Size of a head."""
        return 64


def test_the_facts_of_a_model(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"x" * 10)
    (tmp_path / "pytorch_model.bin").write_bytes(b"x" * 7)
    # SmolLM2-135M has 134,515,008 parameters: these, and 30 layers' norms.
    assert read_model_facts(Config(), str(tmp_path)) == ModelFacts(8192, 23_040, 30, 134_479_872, 10)


def test_the_weights_of_a_model_that_is_not_here_are_taken_from_its_shape() -> None:
    assert read_model_facts(Config(), "owner/name").weight_bytes == 2 * 134_479_872


def test_the_weights_of_a_folder_are_counted_once(tmp_path: Path) -> None:
    (tmp_path / "consolidated.safetensors").write_bytes(b"x" * 3)
    assert read_model_facts(Config(), str(tmp_path)).weight_bytes == 3
    for number in (1, 2):
        (tmp_path / f"model-{number}.safetensors").write_bytes(b"x" * 10)
    assert read_model_facts(Config(), str(tmp_path)).weight_bytes == 20
    index = tmp_path / "model.safetensors.index.json"
    index.write_text('{"metadata": {"total_size": 12}, "weight_map": {}}')
    assert read_model_facts(Config(), str(tmp_path)).weight_bytes == 12
    for damaged in ('{"metadata": {}}', '{"metadata": {"total_size": "?"}}', "[]", "{"):
        index.write_text(damaged)
        assert read_model_facts(Config(), str(tmp_path)).weight_bytes == 20


def test_the_weights_of_a_hub_model_are_read_where_they_lie_already(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "snapshots" / "abc"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"x" * 10)
    asked = []

    def find(*arguments: object, **keywords: object) -> str:
        asked.append((arguments, keywords))
        return str(folder / "config.json")

    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", find)
    assert read_model_facts(Config(), "owner/name", "v1").weight_bytes == 10
    assert asked == [(("owner/name", "config.json"), {"revision": "v1"})]


def test_a_token_passes_through_some_experts_but_all_are_loaded() -> None:
    facts = read_model_facts(
        Config(num_local_experts=8, num_experts_per_tok=2, moe_intermediate_size=100, n_shared_experts=1), "owner/name"
    )
    beside = 134_479_872 - 30 * 3 * 576 * 1536
    assert facts.num_parameters == beside + 30 * 3 * 576 * 100 * 3
    assert facts.weight_bytes == 2 * (beside + 30 * 3 * 576 * 100 * 9)


def test_a_model_with_a_cache_of_another_kind_is_of_unknown_shape(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"x" * 10)
    assert read_model_facts(Config(kv_lora_rank=512), str(tmp_path)) == ModelFacts(8192, weight_bytes=10)


def test_what_a_model_of_another_shape_does_not_say_is_not_known(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"x" * 7)
    assert read_model_facts(Config(intermediate_size=None), str(tmp_path)) == ModelFacts(8192, 23_040, 30, None, 7)
    assert read_model_facts(Config(num_hidden_layers=None), str(tmp_path)) == ModelFacts(8192, weight_bytes=7)


class FakeNvml:
    """NVIDIA's library, as far as it is asked."""

    class NVMLError(Exception):
        """Its error."""

    def __init__(self, used_bytes: dict[int, int], *, has_library: bool = True) -> None:
        self._used_bytes = used_bytes
        self._has_library = has_library

    def nvmlInit(self) -> None:  # noqa: N802 - its name
        if not self._has_library:
            raise self.NVMLError

    def nvmlDeviceGetHandleByIndex(self, number: int) -> int:  # noqa: N802 - its name
        return number

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:  # noqa: N802 - its name
        if handle not in self._used_bytes:
            raise self.NVMLError
        return SimpleNamespace(used=self._used_bytes[handle])


class FakePlatform:
    """vLLM's platform: this process sees GPUs 4 and 5."""

    def device_id_to_physical_device_id(self, number: int) -> int:
        """As vLLM reads CUDA_VISIBLE_DEVICES; a name of a part of a GPU is no number."""
        return int(("4", "5", "MIG-1")[number])


@pytest.mark.parametrize(
    ("used_bytes", "num_gpus", "has_library", "read_bytes"),
    [
        ({4: 10, 5: 20}, 2, True, 30),
        ({4: 10, 5: 20}, 1, True, 10),
        ({4: 10}, 2, True, 10),
        ({4: 10, 5: 20}, 3, True, 30),
        ({4: 10}, 0, True, 0),
        ({4: 10}, 1, False, 0),
    ],
)
def test_gpu_memory_is_that_of_the_gpus_that_the_engine_has(
    used_bytes: dict[int, int], num_gpus: int, has_library: bool, read_bytes: int
) -> None:
    nvml = FakeNvml(used_bytes, has_library=has_library)
    assert GpuMemory(nvml, FakePlatform(), num_gpus).read_bytes() == read_bytes


class Spinning:
    """As much of vLLM's engine as is asked for: one state for each answer, with the id of its request."""

    def __init__(self, *answers: tuple[str, str]) -> None:
        states = [
            SimpleNamespace(
                external_req_id=request_id,
                detokenizer=SimpleNamespace(output_text=text, output_token_ids=[1] * 9),
                stats=None,
                prompt_len=5,
                num_cached_tokens=None,
            )
            for request_id, text in answers
        ]
        self.output_processor = SimpleNamespace(request_states=dict(enumerate(states)))
        self.aborted: list[str] = []

    def abort_request(self, request_ids: list[str]) -> None:
        """Drop requests."""
        self.aborted += request_ids


SPACES = "{" + " " * MAX_RUN_CHARS


def test_a_request_of_which_several_answers_spin_is_ended_once() -> None:
    one, two, three = (number.to_bytes(16).hex() for number in (1, 2, 3))
    engine = Spinning((one, SPACES), (one, "{}"), (one, SPACES + "\n"), (two, "{ "), (three, SPACES), (three, SPACES))
    added_at_s = {one: 0.0, two: 0.0}  # the third was dropped meanwhile
    (ended,) = end_spinning(engine, added_at_s, None)
    assert isinstance(ended, Completion)
    assert (ended.document_hash.hex(), ended.finish_reason, ended.output_tokens) == (one, "white_space", 9)
    assert ended.text.isspace() is False
    assert (engine.aborted, set(added_at_s)) == ([one], {two})


def test_only_answers_that_are_held_to_a_form_are_watched() -> None:
    one, two = (number.to_bytes(16).hex() for number in (1, 2))
    engine = Spinning((one, SPACES), (two, SPACES))
    held = {two, "gone"}
    (ended,) = end_spinning(engine, {one: 0.0, two: 0.0}, held)
    assert (ended.document_hash.hex(), held) == (two, {two})

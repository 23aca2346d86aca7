"""LoRA adapters: what is refused before a model is loaded, and which settings they need."""

from collections.abc import Callable
from pathlib import Path

import pytest

from bulkinfer.engines.adapters import Adapter, check_rank_limit, choose_adapter_settings, read_adapters
from bulkinfer.engines.tuning import Settings
from bulkinfer.errors import JobError
from tests.adapter_support import write_adapter, write_base


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A model of two layers."""
    return write_base(tmp_path / "base")


def read(folder: Path, base: Path) -> Adapter:
    (adapter,) = read_adapters({"mine": str(folder)}, str(base))
    return adapter


def test_an_adapter_that_fits_tells_its_rank_and_its_digest(tmp_path: Path, base: Path) -> None:
    adapter = read(write_adapter(tmp_path / "a", num_layers=2, rank=4), base)
    assert (adapter.name, adapter.rank, len(adapter.digest)) == ("mine", 4, 64)
    assert read(write_adapter(tmp_path / "b", num_layers=2, rank=4), base).digest == adapter.digest
    assert read(write_adapter(tmp_path / "c", num_layers=2, rank=4, seed=1), base).digest != adapter.digest
    assert read(write_adapter(tmp_path / "d", num_layers=2, rank=4, lora_alpha=1), base).digest != adapter.digest
    assert read(write_adapter(tmp_path / "e", num_layers=2, rank=4, rank_pattern={"q_proj": 9}), base).rank == 9


def test_a_model_that_is_not_here_is_not_compared(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "a", num_layers=2)
    assert read_adapters({"mine": str(folder)}, "org/name")[0].rank == 8
    assert read_adapters({}, "org/name") == ()


def test_a_model_with_quantized_weights_is_not_compared_by_shape(tmp_path: Path, base: Path) -> None:
    (base / "config.json").write_text('{"model_type": "llama", "quantization_config": {}}')
    assert read(write_adapter(tmp_path / "a", num_layers=2, shapes={"q_proj": (64, 32)}), base).rank == 8


def empty(folder: Path) -> Path:
    folder.mkdir()
    return folder


def without_weights(folder: Path) -> Path:
    (write_adapter(folder, num_layers=2) / "adapter_model.safetensors").unlink()
    return folder


def with_weights(content: bytes) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        (write_adapter(folder, num_layers=2) / "adapter_model.safetensors").write_bytes(content)
        return folder

    return write


def with_config(content: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        (write_adapter(folder, num_layers=2) / "adapter_config.json").write_text(content)
        return folder

    return write


MADE_FOR = "; it says that it was made for HuggingFaceTB/SmolLM2-135M-Instruct"


@pytest.mark.parametrize(
    ("write", "told"),
    [
        (lambda folder: folder, "does not exist; name the folder that holds adapter_config.json"),
        (empty, "holds no adapter_config.json, so it is not an adapter's folder"),
        (without_weights, "has no weights (adapter_model.safetensors or adapter_model.bin)"),
        (with_weights(b"short"), "is no safetensors file"),
        (with_weights(b"\xff" * 100), "is no safetensors file (ValueError)"),
        (with_weights(b"\x02\0\0\0\0\0\0\0{}"), "holds no LoRA weights"),
        (with_config("{\n!"), "adapter_config.json is not JSON (line 2)"),
        (with_config("[]"), "expected a LoRA adapter"),
        (with_config('{"peft_type": "IA3"}'), "expected a LoRA adapter"),
        (with_config('{"peft_type": "LORA", "r": 0}'), "expected a LoRA adapter"),
        (lambda folder: write_adapter(folder, num_layers=1, rank=513), "expected a rank of at most 512, found 513"),
        (
            lambda folder: write_adapter(folder, num_layers=3),
            f"has a layer 3, and the model base has 2 layers{MADE_FOR}",
        ),
        (
            lambda folder: write_adapter(folder, num_layers=2, shapes={"q_proj": (2048, 2048)}),
            "self_attn.q_proj for 2048 x 2048, and the model base has 576 x 576",
        ),
        (
            lambda folder: write_adapter(folder, num_layers=2, shapes={"qkv": (576, 576)}),
            f"none of its 2 modules is in the model base{MADE_FOR}",
        ),
    ],
)
def test_what_is_no_adapter_of_this_model_is_refused(
    write: Callable[[Path], Path], told: str, tmp_path: Path, base: Path
) -> None:
    with pytest.raises(JobError) as caught:
        read(write(tmp_path / "adapter"), base)
    assert str(caught.value).startswith("model.adapters.mine: ")
    assert told in str(caught.value)


def test_settings_are_chosen_by_the_adapters(tmp_path: Path) -> None:
    folders = {f"a{number}": str(write_adapter(tmp_path / f"a{number}", num_layers=1, rank=9)) for number in range(10)}
    settings = Settings()
    choose_adapter_settings(settings, folders)
    expected = {"enable_lora": True, "max_lora_rank": 16, "max_loras": 8, "max_cpu_loras": 10}
    assert settings.values == expected
    assert set(settings.reasons) == {"max_lora_rank", "max_loras"}
    own = Settings({"max_lora_rank": 64, "max_loras": 12})
    choose_adapter_settings(own, folders)
    assert own.values == {"enable_lora": True, "max_lora_rank": 64, "max_loras": 12, "max_cpu_loras": 12}


def test_a_rank_that_the_job_limits_is_refused() -> None:
    adapters = [Adapter("small", 8, ""), Adapter("large", 32, "")]
    check_rank_limit(adapters, {})
    check_rank_limit(adapters, {"max_lora_rank": 32})
    with pytest.raises(JobError, match=r"model.adapters.large: expected a rank of at most 16 .*, found 32"):
        check_rank_limit(adapters, {"max_lora_rank": 16})

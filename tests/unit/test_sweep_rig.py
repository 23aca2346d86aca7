"""What is refused before a model is loaded: more sequences than the memory has room for."""

from dataclasses import replace
from pathlib import Path

import pytest

from bulkinfer.engines.environment import find_vllm
from bulkinfer.errors import JobError
from bulkinfer.sweep.rig import check_room, read_token_bytes
from tests.engine_support import simulated_spec
from tests.sweep_support import make_load

CONFIG = (
    '{"num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64, "hidden_size": 576}'
)


def make_model(folder: Path, config: str = CONFIG) -> str:
    (folder / "config.json").write_text(config)
    return str(folder)


def test_a_token_takes_what_the_models_shape_says(tmp_path: Path) -> None:
    spec = replace(simulated_spec(), model=make_model(tmp_path))
    assert read_token_bytes(spec) == 2 * 2 * 30 * 3 * 64
    assert read_token_bytes(replace(spec, model=make_model(tmp_path, "{}"))) is None
    assert read_token_bytes(replace(spec, model=make_model(tmp_path, "[]"))) is None


def test_a_concurrency_beyond_memory_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    install = find_vllm()
    if install is None or not install.is_cpu:
        pytest.skip("on a GPU the engine knows")
    spec = replace(simulated_spec(max_concurrency=60_000), kind="vllm", model=make_model(tmp_path), arguments={})
    with pytest.raises(JobError, match=r"--concurrency: expected at most .* MiB of memory are free"):
        check_room(spec, make_load(short_chars=100_000, long_chars=100_000))
    check_room(replace(spec, max_concurrency=1), make_load())

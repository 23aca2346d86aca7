"""LoRA adapters with random weights, as PEFT writes them, without PEFT."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

DEMO_SHAPES = {"q_proj": (576, 576), "v_proj": (192, 576)}
"""Outputs and inputs of the demo model's modules that are changed."""


def write_safetensors(path: Path, tensors: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """A file of 32-bit floats: the length of the header, the header as JSON, the numbers."""
    header, offset = {}, 0
    for name, tensor in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [offset, offset + tensor.nbytes]}
        offset += tensor.nbytes
    text = json.dumps(header).encode()
    numbers = b"".join(tensor.tobytes() for tensor in tensors.values())
    path.write_bytes(len(text).to_bytes(8, "little") + text + numbers)


def write_adapter(
    folder: Path,
    *,
    seed: int = 0,
    rank: int = 8,
    num_layers: int = 30,
    shapes: Mapping[str, tuple[int, int]] = DEMO_SHAPES,
    scale: float = 0.05,
    **config: object,
) -> Path:
    """An adapter for the attention of a llama model; `config` is laid over its configuration."""
    folder.mkdir(parents=True)
    drawn = np.random.default_rng(seed)
    tensors = {}
    for layer in range(num_layers):
        for module, (outer, inner) in shapes.items():
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            tensors[f"{name}.lora_A.weight"] = drawn.normal(0, scale, (rank, inner)).astype(np.float32)
            tensors[f"{name}.lora_B.weight"] = drawn.normal(0, scale, (outer, rank)).astype(np.float32)
    write_safetensors(folder / "adapter_model.safetensors", tensors)
    told: dict[str, object] = {
        "peft_type": "LORA",
        "base_model_name_or_path": "HuggingFaceTB/SmolLM2-135M-Instruct",
        "r": rank,
        "lora_alpha": 2 * rank,
        "target_modules": sorted(shapes),
        "task_type": "CAUSAL_LM",
    }
    (folder / "adapter_config.json").write_text(json.dumps(told | config))
    return folder


def write_base(folder: Path, *, num_layers: int = 2, shapes: Mapping[str, tuple[int, int]] = DEMO_SHAPES) -> Path:
    """What of a model an adapter is compared with."""
    folder.mkdir(parents=True)
    names = {
        f"model.layers.{layer}.self_attn.{module}": shape
        for layer in range(num_layers)
        for module, shape in shapes.items()
    }
    tensors = {f"{name}.weight": np.zeros(shape, np.float32) for name, shape in names.items()}
    write_safetensors(folder / "model.safetensors", tensors)
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": num_layers}
    (folder / "config.json").write_text(json.dumps(config))
    return folder

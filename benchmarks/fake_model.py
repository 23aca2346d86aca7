"""A model folder for the simulated engine, which only wants to know which model it is."""

from pathlib import Path


def write_fake_model(folder: Path) -> None:
    """Write a config, and weights of one byte, unless they are there."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (
        ("config.json", '{"architectures": ["LlamaForCausalLM"], "model_type": "llama"}'),
        ("model.safetensors", "0"),
    ):
        if not (folder / name).exists():
            (folder / name).write_text(text, encoding="utf-8")

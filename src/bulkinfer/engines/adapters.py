"""LoRA adapters as PEFT writes them: whether one fits the model, its rank, and its digest. Loads no weights."""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from bulkinfer.engines.tuning import Settings
from bulkinfer.errors import JobError
from bulkinfer.records import JsonValue

CONFIG = "adapter_config.json"
_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Those that vLLM has room for; see its `max_lora_rank`."""
MAX_AT_ONCE = 8
"""Adapters that one step may serve; each takes memory of its own beside the model."""
_MAX_HEADER_BYTES = 100 << 20
_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")
_SIDE = re.compile(r"(?:base_model\.model\.)?(.+)\.lora_([AB])(?:\.default)?\.weight")

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Adapter:
    """One adapter that fits its model, as far as that can be told without loading it."""

    name: str
    rank: int
    """The largest of its modules."""
    digest: str
    """Of its configuration and its weights, 64 hex digits."""


def read_adapters(folders: Mapping[str, str], model: str) -> tuple[Adapter, ...]:
    """By name; `model` is a folder's absolute path or a hub id.

    Raises JobError for a folder that is missing or holds no adapter, and for one that was made for another model.
    """
    base = _read_base(Path(model)) if folders and Path(model).is_dir() else None
    return tuple(_read_adapter(name, Path(folder), base) for name, folder in folders.items())


def choose_adapter_settings(settings: Settings, folders: Mapping[str, str]) -> None:
    """vLLM's arguments for these adapters, which were checked before; those that the job gives are left."""
    settings.values["enable_lora"] = True
    rank = max(_find_rank(orjson.loads((Path(folder) / CONFIG).read_bytes())) for folder in folders.values())
    settings.choose("max_lora_rank", _round_rank(rank), f"the adapters' largest rank is {rank}")
    num_at_once = min(len(folders), MAX_AT_ONCE)
    settings.choose("max_loras", num_at_once, f"of {len(folders)} in model.adapters, at most {MAX_AT_ONCE} at a time")
    given = settings.values["max_loras"]
    settings.values.setdefault("max_cpu_loras", max(len(folders), given if isinstance(given, int) else 1))


def check_rank_limit(adapters: Sequence[Adapter], arguments: Mapping[str, JsonValue]) -> None:
    """Refuse adapters that have no room in an `engine.vllm.max_lora_rank` that the job gives. Raises JobError."""
    limit = arguments.get("max_lora_rank")
    for adapter in adapters:
        if isinstance(limit, int) and adapter.rank > limit:
            raise JobError(
                f"model.adapters.{adapter.name}: expected a rank of at most {limit} (engine.vllm.max_lora_rank), "
                f"found {adapter.rank}; raise that, or remove it: it is chosen by the adapters",
                f"model.adapters.{adapter.name}",
            )


def _round_rank(rank: int) -> int:
    return next(known for known in _RANKS if known >= rank)


@dataclass(frozen=True, slots=True)
class _Base:
    """What of a model an adapter must fit."""

    name: str
    shapes: Shapes
    """Of its weights; empty where they are not told, or are not as the model was trained."""
    num_layers: int | None


def _read_adapter(name: str, folder: Path, base: _Base | None) -> Adapter:
    key = f"model.adapters.{name}"
    config = _read_config(key, folder)
    weights = next((folder / file for file in _WEIGHTS if (folder / file).is_file()), None)
    if weights is None:
        raise JobError(f"{key}: {folder} has no weights ({' or '.join(_WEIGHTS)}); is it copied in full?", key)
    rank = _find_rank(config)
    if rank > _RANKS[-1]:
        raise JobError(f"{key}: expected a rank of at most {_RANKS[-1]}, found {rank} in {folder / CONFIG}", key)
    if base is not None and weights.suffix == ".safetensors":
        _check_shapes(key, folder, _read_shapes(key, weights), base, str(config.get("base_model_name_or_path") or ""))
    return Adapter(name, rank, _digest(key, folder / CONFIG, weights))


def _read_config(key: str, folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise JobError(f"{key}: the folder {folder} does not exist; name the folder that holds {CONFIG}", key)
    try:
        config = orjson.loads((folder / CONFIG).read_bytes())
    except FileNotFoundError:
        raise JobError(f"{key}: {folder} holds no {CONFIG}, so it is not an adapter's folder", key) from None
    except OSError as error:
        raise JobError(f"{key}: {folder / CONFIG} cannot be read: {error.strerror}", key) from None
    except orjson.JSONDecodeError as error:
        raise JobError(f"{key}: {folder / CONFIG} is not JSON (line {error.lineno})", key) from None
    kind = config.get("peft_type") if isinstance(config, dict) else None
    if kind != "LORA" or not isinstance(config.get("r"), int) or config["r"] < 1:
        raise JobError(f"{key}: expected a LoRA adapter (peft_type LORA, and its rank r), found another {CONFIG}", key)
    return dict(config)


def _find_rank(config: Mapping[str, Any]) -> int:
    by_module = config.get("rank_pattern") or {}
    return max([int(config["r"]), *(int(rank) for rank in by_module.values())])


def _read_base(folder: Path) -> _Base:
    config: dict[str, Any] = {}
    with suppress(OSError, ValueError):
        config = dict(orjson.loads((folder / "config.json").read_bytes()))
    shapes: dict[str, tuple[int, ...]] = {}
    if "quantization_config" not in config:  # its weights have other shapes
        for path in sorted(folder.glob("*.safetensors")):
            with suppress(OSError, ValueError):
                shapes |= read_shapes(path)
    text = config.get("text_config") if isinstance(config.get("text_config"), dict) else config
    num_layers = (text or {}).get("num_hidden_layers")
    return _Base(folder.name, shapes, num_layers if isinstance(num_layers, int) else None)


def read_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor in a safetensors file, from its header. Raises OSError and ValueError."""
    with path.open("rb") as file:
        num_bytes = int.from_bytes(file.read(8), "little")
        if num_bytes > _MAX_HEADER_BYTES:
            raise ValueError("no safetensors file")
        header = orjson.loads(file.read(num_bytes))
    if not isinstance(header, dict):
        raise ValueError("no safetensors file")
    return {name: tuple(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__"}


def _read_shapes(key: str, path: Path) -> Shapes:
    try:
        return read_shapes(path)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise JobError(f"{key}: {path} is no safetensors file ({type(error).__name__}); copy it again", key) from None


def _check_shapes(key: str, folder: Path, shapes: Shapes, base: _Base, made_for: str) -> None:
    """Compare each module of the adapter with the model's weight of that name."""
    modules = list(_iter_modules(shapes))
    if not modules:
        raise JobError(f"{key}: {folder} holds no LoRA weights (lora_A and lora_B)", key)
    about = f"; it says that it was made for {made_for}" if made_for else ""
    num_found = 0
    for module, inner, outer in modules:
        layer = _LAYER.search(module)
        if layer and base.num_layers is not None and int(layer[1]) >= base.num_layers:
            told = f"a layer {int(layer[1]) + 1}, and the model {base.name} has {base.num_layers} layers"
            raise JobError(f"{key}: made for another model: {folder} has {told}{about}", key)
        weight = _find_weight(module, base.shapes)
        if weight is None:
            continue
        num_found += 1
        if weight != (outer, inner):
            told = f"{module} for {outer} x {inner}, and the model {base.name} has {' x '.join(map(str, weight))}"
            raise JobError(f"{key}: made for another model: {folder} has {told}{about}", key)
    if base.shapes and not num_found:
        told = f"none of its {len(modules)} modules is in the model {base.name}"
        raise JobError(f"{key}: made for another model: {told}{about}", key)


def _iter_modules(shapes: Shapes) -> Iterator[tuple[str, int, int]]:
    """Each module that the adapter changes, with the sizes of what goes into it and what comes out."""
    sides: dict[str, dict[str, tuple[int, ...]]] = {}
    for name, shape in shapes.items():
        if (match := _SIDE.fullmatch(name)) and len(shape) == 2:
            sides.setdefault(match[1], {})[match[2]] = shape
    for module, both in sorted(sides.items()):
        if len(both) == 2:
            yield module, both["A"][1], both["B"][0]


def _find_weight(module: str, shapes: Shapes) -> tuple[int, ...] | None:
    """The model's weight of that name; a model within another has something before it."""
    for name in (f"{module}.weight", f"{module.removeprefix('model.')}.weight", f"model.{module}.weight"):
        if name in shapes:
            return shapes[name]
    return None


def _digest(key: str, config: Path, weights: Path) -> str:
    """Of the contents: an adapter that is trained anew has the same name and size."""
    digest = hashlib.sha256()
    try:
        for path in (config, weights):
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    except OSError as error:
        raise JobError(f"{key}: {error.filename} cannot be read: {error.strerror}", key) from None
    return digest.hexdigest()

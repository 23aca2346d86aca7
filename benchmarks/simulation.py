"""How far the simulated engine is off, once its costs are fitted to the real one: `python -m benchmarks.simulation`.

A load of short chats and long summaries, so many in flight at a time, goes through the real engine; its readings are
fitted (`engines.calibration`). Then another load, with other texts, goes through both, and their throughput and
latencies are compared. Every answer has a length of its own, drawn with the load, so that both do the same work.
"""

import argparse
import hashlib
import json
import random
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from benchmarks.words import write_ticket
from bulkinfer.engines import create_engine
from bulkinfer.engines.base import Engine, EngineSpec
from bulkinfer.engines.calibration import calibrate
from bulkinfer.engines.simulated import estimate_prompt_tokens
from bulkinfer.records import (
    Completion,
    EngineReady,
    EngineStats,
    JsonValue,
    Message,
    Origin,
    Rejection,
    Request,
)

MAX_CONTEXT_TOKENS = 2048
CHAT_SHARE = 0.7
START_LIMIT_S = 120


@dataclass(frozen=True, slots=True)
class Measured:
    """What one load took. Latencies in seconds."""

    num_in_flight: int
    seconds: float
    output_tokens_per_s: float
    first_token_p50: float
    first_token_p95: float
    total_p50: float
    total_p95: float


@dataclass(frozen=True, slots=True)
class Load:
    """Requests, and how many of them are in flight at a time."""

    num_in_flight: int
    requests: Sequence[Request]


def draw_load(seed: int, num_requests: int, num_in_flight: int) -> Load:
    """Short chats with answers of 8 to 48 tokens, and summaries of long texts with 48 to 128."""
    drawn = random.Random(seed)
    return Load(num_in_flight, [_draw_request(drawn, f"{seed}-{number}") for number in range(num_requests)])


def _draw_request(drawn: random.Random, name: str) -> Request:
    if drawn.random() < CHAT_SHARE:
        text, max_tokens = write_ticket(drawn, drawn.randint(60, 400)), drawn.randint(8, 48)
    else:
        text, max_tokens = write_ticket(drawn, drawn.randint(2_000, 4_500)), drawn.randint(48, 128)
    document_hash = hashlib.sha256(name.encode()).digest()[:16]
    messages = (Message("user", f"{name}: {text}"),)
    return Request(document_hash, Origin("", 0, name), messages, len(text), sampling={"max_tokens": max_tokens})


def run_load(engine: Engine, load: Load) -> tuple[list[Completion], list[EngineStats], float]:
    """Run it; the answers, the readings of the engine, and the seconds of its clock."""
    waiting, num_in_flight = deque(load.requests), 0
    answers: list[Completion] = []
    readings: list[EngineStats] = []
    began_s = engine.now()
    while waiting or num_in_flight:
        begun = [waiting.popleft() for _ in range(min(len(waiting), load.num_in_flight - num_in_flight))]
        num_in_flight += len(begun)
        engine.submit(begun)
        for event in engine.poll(1.0):
            match event:
                case Completion():
                    answers.append(event)
                    num_in_flight -= 1
                case Rejection():
                    raise SystemExit(f"the engine refused a request: {event.message}")
                case EngineStats():
                    readings.append(event)
    return answers, readings, engine.now() - began_s


def describe(load: Load, answers: Sequence[Completion], seconds: float) -> Measured:
    """The figures of one load."""
    firsts, totals = (sorted(getattr(one, name) for one in answers) for name in ("first_token_s", "total_s"))
    return Measured(
        load.num_in_flight,
        seconds,
        sum(answer.output_tokens for answer in answers) / seconds,
        *(times[int(share * (len(times) - 1))] for times in (firsts, totals) for share in (0.5, 0.95)),
    )


def compare(spec: EngineSpec, to_fit: Sequence[Load], to_compare: Sequence[Load]) -> dict[str, JsonValue]:
    """Fit a simulated engine to this one, and lay the two side by side on other loads."""
    engine = create_engine(spec)
    ready = _start(engine)
    readings: list[EngineStats] = []
    answers: list[Completion] = []
    for load in to_fit:
        more_answers, more_readings, _ = run_load(engine, load)
        answers += more_answers
        readings += more_readings
    real = [_measure(engine, load) for load in to_compare]
    engine.close()
    found = calibrate(readings)
    if found is None:
        raise SystemExit("too few readings to fit a model to; take a longer load")
    estimated = sum(estimate_prompt_tokens(request.messages) for load in to_fit for request in load.requests)
    factor = sum(answer.prompt_tokens for answer in answers) / estimated
    arguments = {**found.to_arguments(ready, factor), "clock": "virtual", "output_tokens": MAX_CONTEXT_TOKENS}
    simulated_engine = create_engine(replace(spec, kind="simulated", arguments=arguments))
    _start(simulated_engine)
    simulated = [_measure(simulated_engine, load) for load in to_compare]
    pairs = [_lay_side_by_side(*pair) for pair in zip(real, simulated, strict=True)]
    return {"calibration": asdict(found), "arguments": arguments, "loads": pairs}


def _start(engine: Engine) -> EngineReady:
    engine.start()
    until_s = time.monotonic() + START_LIMIT_S
    while time.monotonic() < until_s:
        ready = next((event for event in engine.poll(1.0) if isinstance(event, EngineReady)), None)
        if ready is not None:
            return ready
    raise SystemExit(f"the engine was not ready within {START_LIMIT_S} s")


def _measure(engine: Engine, load: Load) -> Measured:
    answers, _, seconds = run_load(engine, load)
    return describe(load, answers, seconds)


def _lay_side_by_side(real: Measured, simulated: Measured) -> dict[str, JsonValue]:
    told: dict[str, JsonValue] = {"num_in_flight": real.num_in_flight}
    for name in Measured.__slots__[1:]:
        ours, theirs = getattr(simulated, name), getattr(real, name)
        told[name] = {"real": theirs, "simulated": ours, "error": ours / theirs - 1 if theirs else None}
    return told


def main() -> None:
    """Measure, and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=".models/smollm2-135m-instruct")
    parser.add_argument("--requests", type=int, default=48, help="of each load")
    parser.add_argument("--in-flight", type=int, nargs="+", default=[1, 4, 8, 16])
    arguments = parser.parse_args()
    most = max(arguments.in_flight)
    spec = EngineSpec(
        kind="vllm",
        model=arguments.model,
        revision=None,
        sampling={"max_tokens": 128, "temperature": 0, "ignore_eos": True},
        max_concurrency=most,
        max_context_tokens=MAX_CONTEXT_TOKENS,
    )
    sizes = {in_flight: max(8, arguments.requests * in_flight // most) for in_flight in arguments.in_flight}
    to_fit, to_compare = (
        [draw_load(base + in_flight, num, in_flight) for in_flight, num in sizes.items()] for base in (1_000, 2_000)
    )
    json.dump(compare(spec, to_fit, to_compare), sys.stdout, indent=2)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()

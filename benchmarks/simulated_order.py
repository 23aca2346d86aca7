"""What an order is worth where the length of each answer is ours to choose: a simulation of continuous batching.

    python -m benchmarks.simulated_order

Takes half a minute and no model, gives the same each time, and writes its table into docs/performance.md. Lengths of
prompts and answers are lognormal and correlated (`rho`, of their logarithms). Every step gives each running sequence a
token. There is no prefix cache, so that nothing but the lengths decides. All orders begin like the product's, longest
prompt first, and differ in the last windows; `shuffled` alone has none.
"""

import heapq
import math
import random
import signal
import statistics
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.peers.catalogue import ROOT
from benchmarks.table import write_between

SLOTS = 64
NUM_QUEUES = 8
MAX_TOKENS = 1024
WINDOWS = (8, 16, 64)
RHOS = (-0.9, -0.5, 0.0, 0.5, 0.9)
TAIL = 4 * SLOTS
"""Documents at the end whose order is in question."""
NOT_ANSWERED = 2 * SLOTS
"""Documents before these that are still running or waiting when they are ordered: a fit cannot use them."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Of a document's prompt, and of its answer."""

    prompt: float
    output_tokens: int


@dataclass(frozen=True, slots=True)
class StepCost:
    """What a step costs: a part that is always the same, and one for each of its sequences."""

    name: str
    fixed: float
    per_sequence: float


CONSTANT = StepCost("the same", 1.0, 0.005)
"""As on a device that waits for memory: a step with few sequences costs nearly as much as a full one."""
PROPORTIONAL = StepCost("by sequences", 0.0, 1.0)
"""As on a CPU with few cores, which computes one sequence after the other."""


@dataclass(frozen=True, slots=True)
class Line:
    """Makespans over that of the longest prompt first, by order; medians."""

    cost: StepCost
    rho: float
    num_windows: int
    ratios: dict[str, float]


def main() -> None:
    """Print the table, and write it into the page."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    lines = [measure(CONSTANT, rho, num_windows) for rho in RHOS for num_windows in WINDOWS]
    lines += [measure(PROPORTIONAL, rho, WINDOWS[0]) for rho in (0.0, 0.9)]
    text = render_lines(lines)
    print(text)
    write_between(ROOT / "docs" / "performance.md", "simulated", text)


def measure(cost: StepCost, rho: float, num_windows: int) -> Line:
    """Every order over the same queues."""
    found: dict[str, list[float]] = {name: [] for name in ORDERS}
    for seed in range(NUM_QUEUES):
        queue = make_lengths(num_windows * SLOTS, rho, seed)
        longest_first = find_makespan(_by_prompt(queue), cost)
        for name, order in ORDERS.items():
            found[name].append(find_makespan(order(queue), cost) / longest_first)
    return Line(cost, rho, num_windows, {name: statistics.median(ratios) for name, ratios in found.items()})


def make_lengths(num_documents: int, rho: float, seed: int) -> list[Lengths]:
    """In no order; answers around an eighth of MAX_TOKENS."""
    rng = random.Random(seed)
    queue = []
    for _ in range(num_documents):
        prompt = rng.gauss(0, 1)
        output = rho * prompt + math.sqrt(1 - rho * rho) * rng.gauss(0, 1)
        output_tokens = int(math.exp(math.log(MAX_TOKENS / 8) + output))
        queue.append(Lengths(math.exp(6 + 0.8 * prompt), max(1, min(MAX_TOKENS, output_tokens))))
    return queue


def find_makespan(queue: Sequence[Lengths], cost: StepCost, num_slots: int = SLOTS) -> float:
    """Cost of all steps when the queue is worked through in its order."""
    waiting = deque(lengths.output_tokens for lengths in queue)
    running: list[int] = []
    total, step = 0.0, 0
    while waiting or running:
        while waiting and len(running) < num_slots:
            heapq.heappush(running, step + waiting.popleft())
        total += (running[0] - step) * (cost.fixed + cost.per_sequence * len(running))
        step = running[0]
        while running and running[0] <= step:
            heapq.heappop(running)
    return total


def render_lines(lines: Sequence[Line]) -> str:
    """The table."""
    head = ["a step costs", "rho", "windows", *ORDERS]
    rows = [
        [line.cost.name, f"{line.rho:g}", str(line.num_windows), *(f"{line.ratios[name]:.3f}" for name in ORDERS)]
        for line in lines
    ]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [head, ["---"] * len(head), *rows])


def _by_prompt(queue: Sequence[Lengths]) -> list[Lengths]:
    return sorted(queue, key=lambda one: one.prompt, reverse=True)


def _shuffle(queue: Sequence[Lengths]) -> list[Lengths]:
    return list(queue)  # they are made in no order


def _predict(queue: Sequence[Lengths]) -> list[Lengths]:
    """The tail by the length that a fit to what is answered then gives for a prompt: all that there is to go by."""
    ordered = _by_prompt(queue)
    answered = ordered[: -TAIL - NOT_ANSWERED]
    fit = statistics.linear_regression(
        [math.log(one.prompt) for one in answered], [one.output_tokens for one in answered]
    )
    return _order_tail(ordered, lambda one: fit.slope * math.log(one.prompt))


def _guess(queue: Sequence[Lengths]) -> list[Lengths]:
    """The tail by the answer's true length times an error of a factor of two and more."""
    rng = random.Random(len(queue))
    return _order_tail(_by_prompt(queue), lambda one: one.output_tokens * rng.lognormvariate(0, 0.7))


def _foresee(queue: Sequence[Lengths]) -> list[Lengths]:
    """The tail by the answer's true length: the bound of any prediction."""
    return _order_tail(_by_prompt(queue), lambda one: one.output_tokens)


def _order_tail(ordered: Sequence[Lengths], key: Callable[[Lengths], float]) -> list[Lengths]:
    return [*ordered[:-TAIL], *sorted(ordered[-TAIL:], key=key, reverse=True)]


ORDERS: dict[str, Callable[[Sequence[Lengths]], list[Lengths]]] = {
    "shuffled": _shuffle,
    "predicted from the prompt": _predict,
    "answers guessed": _guess,
    "answers known": _foresee,
}


if __name__ == "__main__":
    main()

"""What an order by expected output length could bring at the end of a queue: a simulation of continuous batching.

    python benchmarks/tail.py

Prompt and output lengths are lognormal and correlated (`rho`, of their logarithms). Every step gives each running
sequence one token and costs FIXED_COST + active sequences * COST_PER_SEQUENCE: on a GPU the first dominates, so that a
step with few sequences costs as much as a full one, and the tail of a queue is long. On a CPU the second dominates and
no order matters. Printed: makespan over that of the longest prompt first, medians over SEEDS queues, for

    random      no order
    by length   the last 4 windows by the output length that a fit to the answers so far predicts from the prompt's
    foresight   the last 4 windows by their true output length: the bound of any prediction
"""

import heapq
import math
import random
import statistics
from collections import deque
from collections.abc import Sequence

SLOTS = 64
SEEDS = 8
MAX_TOKENS = 1024
FIXED_COST = 1.0
COST_PER_SEQUENCE = 0.005

Lengths = tuple[float, int]
"""Of a prompt, and of its answer."""


def make_queue(num_documents: int, rho: float, seed: int) -> list[Lengths]:
    """Lognormal lengths, outputs around an eighth of MAX_TOKENS."""
    generator = random.Random(seed)
    queue = []
    for _ in range(num_documents):
        prompt = generator.gauss(0, 1)
        output = rho * prompt + math.sqrt(1 - rho * rho) * generator.gauss(0, 1)
        num_output_tokens = int(math.exp(math.log(MAX_TOKENS / 8) + output))
        queue.append((math.exp(6 + 0.8 * prompt), max(1, min(MAX_TOKENS, num_output_tokens))))
    return queue


def find_makespan(queue: Sequence[Lengths]) -> float:
    """Cost of all steps when the queue is worked through in its order."""
    waiting = deque(output for _, output in queue)
    running: list[int] = []
    cost, step = 0.0, 0
    while waiting or running:
        while waiting and len(running) < SLOTS:
            heapq.heappush(running, step + waiting.popleft())
        cost += (running[0] - step) * (FIXED_COST + COST_PER_SEQUENCE * len(running))
        step = running[0]
        while running and running[0] <= step:
            heapq.heappop(running)
    return cost


def compare(num_documents: int, rho: float, seed: int) -> tuple[float, float, float]:
    """Makespans of the three orders over that of the longest prompt first."""
    queue = make_queue(num_documents, rho, seed)
    by_prompt = sorted(queue, reverse=True)
    head, tail = by_prompt[: -4 * SLOTS], by_prompt[-4 * SLOTS :]
    answered = head[: -2 * SLOTS]
    fit = statistics.linear_regression([math.log(prompt) for prompt, _ in answered], [output for _, output in answered])
    longest_first = find_makespan(by_prompt)
    predicted = sorted(tail, key=lambda lengths: fit.slope * math.log(lengths[0]), reverse=True)
    foreseen = sorted(tail, key=lambda lengths: lengths[1], reverse=True)
    return (
        find_makespan(queue) / longest_first,
        find_makespan([*head, *predicted]) / longest_first,
        find_makespan([*head, *foreseen]) / longest_first,
    )


def main() -> None:
    """Print a table."""
    print(f"{'rho':>5} {'documents':>9} {'random':>8} {'by length':>10} {'foresight':>10}")
    for rho in (-0.9, -0.5, 0.0, 0.5, 0.9):
        for num_documents in (8 * SLOTS, 16 * SLOTS, 64 * SLOTS):
            ratios = zip(*(compare(num_documents, rho, seed) for seed in range(SEEDS)), strict=True)
            unordered, predicted, foreseen = (statistics.median(ratio) for ratio in ratios)
            print(f"{rho:>5} {num_documents:>9} {unordered:>8.3f} {predicted:>10.3f} {foreseen:>10.3f}")


if __name__ == "__main__":
    main()

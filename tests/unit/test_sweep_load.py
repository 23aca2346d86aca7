"""The load: kinds by length, made where there are too few, the same for the same seed, and no request twice."""

from itertools import islice

from bulkinfer.records import Message
from bulkinfer.sweep.load import LONG_RATIO, MIN_OF_KIND, Conversation, Load, sort_kinds
from bulkinfer.sweep.options import Kind
from tests.sweep_support import make_load

EVEN = {Kind.SHORT: 0.5, Kind.LONG: 0.5}


def prompt_of(num_chars: int, mark: str = "x") -> Conversation:
    return (Message("system", "Be brief."), Message("user", (mark * num_chars)[:num_chars]))


def chars_of(conversation: Conversation) -> int:
    return sum(len(message.content) for message in conversation)


def test_the_longest_quarter_is_long_where_it_is_long_enough() -> None:
    conversations = [prompt_of(100 + number) for number in range(30)] + [
        prompt_of(900 + number) for number in range(10)
    ]
    prompts, made = sort_kinds(conversations, None)
    assert made == {Kind.SHORT: 0, Kind.LONG: 0}
    assert len(prompts[Kind.SHORT]) == 20
    assert {chars_of(one) >= 900 for one in prompts[Kind.LONG]} == {True}


def test_long_prompts_are_made_of_several_documents_where_all_are_alike() -> None:
    conversations = [prompt_of(100, chr(97 + number % 26)) for number in range(3)]
    prompts, made = sort_kinds(conversations, None)
    assert made[Kind.LONG] == len(prompts[Kind.LONG]) == MIN_OF_KIND
    short = max(map(chars_of, prompts[Kind.SHORT]))
    assert all(chars_of(one) >= LONG_RATIO * short for one in prompts[Kind.LONG])
    assert all(one[0].role == "system" for one in prompts[Kind.LONG])


def test_a_single_document_is_enough_and_the_context_is_kept() -> None:
    prompts, _ = sort_kinds([prompt_of(100)], 150)
    assert all(len(one[-1].content) <= 150 for one in prompts[Kind.LONG])
    assert len(prompts[Kind.SHORT]) == 1


def take(
    load: Load, count: int, *, seed: int = 0, cancel_share: float = 0.0, mix: dict[Kind, float] | None = None
) -> list:  # type: ignore[type-arg]
    return list(islice(load.iter_requests(mix or EVEN, cancel_share, 3, seed, 0), count))


def test_no_request_comes_twice_and_no_prompt_is_repeated_word_for_word() -> None:
    requests = take(make_load(), 200)
    assert len({one.request.document_hash for one in requests}) == 200
    assert len({one.request.messages for one in requests}) == 200


def test_the_same_seed_gives_the_same_load() -> None:
    def draw(seed: int) -> list[tuple[Kind, int, float | None]]:
        return [(one.kind, one.user, one.cancel_draw) for one in take(make_load(), 50, seed=seed, cancel_share=0.3)]

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)


def test_the_shares_are_those_of_the_mix_and_of_the_cancels() -> None:
    requests = take(make_load(), 4000, cancel_share=0.1, mix={Kind.SHORT: 0.8, Kind.LONG: 0.2})
    num_short = sum(one.kind is Kind.SHORT for one in requests)
    num_cancelled = sum(one.cancel_draw is not None for one in requests)
    assert 3100 < num_short < 3300
    assert 330 < num_cancelled < 470


def test_a_kind_without_a_share_never_comes() -> None:
    requests = take(make_load(), 100, mix={Kind.SHORT: 0.0, Kind.LONG: 1.0})
    assert {one.kind for one in requests} == {Kind.LONG}


def test_the_engine_is_told_the_longest_prompts() -> None:
    workload = make_load(short_chars=10, long_chars=90).workload(4)
    assert workload.num_documents == 4
    assert workload.longest_bytes == (90, 90, 90, 90)
    assert workload.max_chars == 90
    assert workload.mean_chars == 50


def test_points_send_the_same_load_in_prompts_that_no_prefix_cache_knows() -> None:
    load = make_load()
    one, other = (list(islice(load.iter_requests(EVEN, 0.0, 3, 0, point), 50)) for point in (0, 1))
    assert [request.request.document_hash for request in one] == [request.request.document_hash for request in other]
    assert [request.request.num_chars for request in one] == [request.request.num_chars for request in other]
    texts = [{request.request.messages[-1].content for request in requests} for requests in (one, other)]
    assert not texts[0] & texts[1]
    assert {text.split(".")[0] for text in texts[0]} == {"0"}
    assert {text.split(".")[0] for text in texts[1]} == {"1"}

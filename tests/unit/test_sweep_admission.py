"""The bounded queue: who gets in, who is refused, and what a refusal promises."""

import pytest

from bulkinfer.engines.reserve import Reserve
from bulkinfer.sweep.admission import MAX_RETRY_AFTER_S, Admission, LowShare, Reason, Refusal
from tests.sweep_support import make_waiting


def make_admission(
    queue_size: int = 2, num_slots: int = 1, *, per_user: int | None = None, rejects: bool = True
) -> Admission:
    return Admission(queue_size, num_slots, per_user=per_user, is_rejecting=rejects, now_s=0.0)


def test_a_full_queue_refuses_exactly_what_is_too_much() -> None:
    admission = make_admission(queue_size=2, num_slots=1)
    answers = [admission.offer(make_waiting(str(number)), 0, 0.0) for number in range(5)]
    # One goes straight to the free slot, two wait.
    assert answers == [None, None, None, *[Refusal(Reason.QUEUE_FULL, None)] * 2]
    assert admission.num_queued == 3


def test_a_slot_in_use_is_no_room() -> None:
    admission = make_admission(queue_size=1, num_slots=1)
    assert admission.offer(make_waiting("a"), 1, 0.0) is None
    assert admission.offer(make_waiting("b"), 1, 0.0) is not None
    assert admission.take(1) is None
    assert admission.take(0) is not None


def test_without_rejecting_arrivals_wait_outside_in_their_order() -> None:
    admission = make_admission(queue_size=1, rejects=False)
    for name in "abcd":
        assert admission.offer(make_waiting(name), 1, 0.0) is None
    assert (admission.num_queued, admission.num_outside) == (1, 3)
    taken = [admission.take(0) for _ in range(4)]
    assert [one.load.request.messages[0].content for one in taken if one] == list("abcd")
    assert admission.take(0) is None


def test_normal_priority_leaves_the_queue_first() -> None:
    admission = make_admission(queue_size=9)
    for name, priority in (("low", 1), ("normal", 0), ("low too", 1)):
        admission.offer(make_waiting(name, priority=priority), 1, 0.0)
    taken = [admission.take(0) for _ in range(3)]
    assert [one.load.request.messages[0].content for one in taken if one] == ["normal", "low", "low too"]


def test_low_priority_before_a_full_queue_does_not_hold_up_the_others() -> None:
    admission = make_admission(queue_size=1, rejects=False)
    for name, priority in (("low", 1), ("low too", 1), ("normal", 0)):
        admission.offer(make_waiting(name, priority=priority), 1, 0.0)
    assert (admission.num_queued, admission.num_outside) == (1, 2)
    taken = [admission.take(0) for _ in range(3)]
    assert [one.load.request.messages[0].content for one in taken if one] == ["normal", "low", "low too"]


def test_requests_of_low_priority_leave_the_reserve_free() -> None:
    share = LowShare(Reserve(0.5), num_sequences=4, num_kv_tokens=1_000)
    admission = Admission(9, 4, per_user=None, is_rejecting=False, now_s=0.0, low_share=share)
    low = [make_waiting(f"low {number}", priority=1) for number in range(3)]
    for waiting in low:
        admission.offer(waiting, 0, 0.0)
    assert [admission.take(number) for number in range(3)] == [low[0], low[1], None]
    normal = make_waiting("normal")
    admission.offer(normal, 2, 0.0)
    assert admission.take(2) is normal
    assert admission.take(3) is None
    admission.note_left(low[0])
    assert admission.take(2) is low[2]


@pytest.mark.parametrize("rejects", [True, False])
def test_a_queue_full_of_low_priority_leaves_the_reserve_to_the_others(*, rejects: bool) -> None:
    share = LowShare(Reserve(0.5), num_sequences=4, num_kv_tokens=1_000)
    admission = Admission(2, 4, per_user=None, is_rejecting=rejects, now_s=0.0, low_share=share)
    low = [make_waiting(f"low {number}", priority=1) for number in range(10)]
    refused = [admission.offer(waiting, 0, 0.0) for waiting in low]
    # Two may run, two may wait.
    assert sum(refusal is not None for refusal in refused) == (6 if rejects else 0)
    assert admission.num_queued == 4
    assert [admission.take(number) for number in range(3)] == [low[0], low[1], None]
    assert admission.num_queued == 2
    normal = [make_waiting(f"normal {number}") for number in range(3)]
    assert [admission.offer(waiting, 2, 0.0) is None for waiting in normal] == [True, True, not rejects]
    assert [admission.take(number) for number in (2, 3)] == normal[:2]
    admission.note_left(low[0])
    assert admission.take(3) is (low[2] if rejects else normal[2])


def test_one_user_cannot_take_all() -> None:
    admission = make_admission(queue_size=9, per_user=2)
    answers = [admission.offer(make_waiting(str(number), user=7), 0, 0.0) for number in range(3)]
    assert answers == [None, None, Refusal(Reason.USER_LIMIT, None)]
    assert admission.offer(make_waiting("other", user=8), 0, 0.0) is None
    admission.leave(7)
    assert admission.offer(make_waiting("again", user=7), 0, 0.0) is None


def test_nothing_is_promised_before_anything_has_left() -> None:
    admission = make_admission(queue_size=0, num_slots=0)
    refusal = admission.offer(make_waiting("a"), 0, 1.0)
    assert refusal == Refusal(Reason.QUEUE_FULL, None)


def drain(admission: Admission, num: int, until_s: float) -> None:
    for number in range(num):
        admission.note_drained(until_s * (number + 1) / num)


def test_a_promise_is_when_a_place_will_be_free_and_each_gets_its_own() -> None:
    admission = make_admission(queue_size=0, num_slots=0)
    drain(admission, 20, 10.0)  # two a second
    found = [admission.offer(make_waiting(str(number)), 0, 10.0) for number in range(3)]
    assert [refusal.retry_after_s for refusal in found if refusal] == [0.5, 1.0, 1.5]


def test_a_promise_that_is_over_makes_room_for_another() -> None:
    admission = make_admission(queue_size=0, num_slots=0)
    drain(admission, 20, 10.0)
    first = admission.offer(make_waiting("a"), 0, 10.0)
    drain_later = admission.offer(make_waiting("b"), 0, 10.6)
    assert first is not None
    assert drain_later is not None
    assert drain_later.retry_after_s is not None
    assert drain_later.retry_after_s < 0.6


def test_nobody_is_told_to_come_back_where_more_come_than_twice_what_leaves() -> None:
    admission = make_admission(queue_size=0, num_slots=0)
    drain(admission, 20, 10.0)
    found = [admission.offer(make_waiting(str(number)), 0, 10.0) for number in range(50)]
    promised = [refusal.retry_after_s is not None for refusal in found if refusal]
    assert promised[0]
    assert not promised[-1]
    assert sum(promised) == 40  # twice the 20 that left in the same time


def test_the_flood_of_one_user_leaves_the_others_their_promises() -> None:
    admission = make_admission(queue_size=2, num_slots=0, per_user=1)
    drain(admission, 20, 10.0)
    assert admission.offer(make_waiting("first", user=1), 0, 10.0) is None
    assert admission.offer(make_waiting("other", user=2), 0, 10.0) is None
    flood = [admission.offer(make_waiting(str(number), user=1), 0, 10.0) for number in range(200)]
    assert {refusal.reason for refusal in flood if refusal} == {Reason.USER_LIMIT}
    assert flood[-1] == Refusal(Reason.USER_LIMIT, None)
    # The queue is full; before the third one only those of the flood wait for it that were told to come back.
    num_promised = sum(refusal.retry_after_s is not None for refusal in flood if refusal)
    third = admission.offer(make_waiting("third", user=3), 0, 10.0)
    assert third == Refusal(Reason.QUEUE_FULL, (num_promised + 1) / 2)
    again = admission.offer(make_waiting("other again", user=2), 0, 10.0)
    assert again is not None
    assert again.retry_after_s is not None


def test_who_has_too_many_open_waits_for_one_of_them_and_for_a_full_queue_too() -> None:
    admission = make_admission(queue_size=5, num_slots=0, per_user=2)
    drain(admission, 20, 10.0)
    for user in (1, 1, 2, 2):
        admission.offer(make_waiting("open", user=user), 0, 10.0)
    # Half of what leaves is theirs: one a second. There is room in the queue.
    assert admission.offer(make_waiting("more", user=1), 0, 10.0) == Refusal(Reason.USER_LIMIT, 1.0)
    assert admission.offer(make_waiting("last", user=3), 0, 10.0) is None
    assert admission.offer(make_waiting("too late", user=4), 0, 10.0) == Refusal(Reason.QUEUE_FULL, 0.5)
    # Now there is none: two of five, and behind the one who was told to come back for it.
    assert admission.offer(make_waiting("more", user=2), 0, 10.0) == Refusal(Reason.USER_LIMIT, 1 / (2 * 2 / 5))
    assert admission.offer(make_waiting("too late", user=4), 0, 10.0) == Refusal(Reason.QUEUE_FULL, 1.5)


def test_nobody_is_told_to_wait_longer_than_a_minute() -> None:
    admission = make_admission(queue_size=0, num_slots=0)
    drain(admission, 4, 29.0)
    found = [admission.offer(make_waiting(str(number)), 0, 29.0) for number in range(8)]
    promised = [refusal.retry_after_s for refusal in found if refusal and refusal.retry_after_s is not None]
    assert promised
    assert max(promised) <= MAX_RETRY_AFTER_S


def test_rates_forget_what_is_half_a_minute_old() -> None:
    admission = make_admission(queue_size=0, num_slots=0)
    drain(admission, 20, 10.0)
    refusal = admission.offer(make_waiting("a"), 0, 100.0)
    assert refusal == Refusal(Reason.QUEUE_FULL, None)


def test_a_request_that_waits_can_be_taken_back_once() -> None:
    admission = make_admission(queue_size=1, rejects=False, per_user=5)
    inside, outside = make_waiting("in"), make_waiting("out")
    admission.offer(inside, 1, 0.0)
    admission.offer(outside, 1, 0.0)
    assert admission.remove(outside)
    assert admission.remove(inside)
    assert not admission.remove(inside)
    assert admission.take(0) is None

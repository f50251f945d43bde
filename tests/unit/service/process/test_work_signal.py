"""Workers that wait for work query only when there may be some."""

import weakref

from shardtune.service.process.work_signal import WorkSignal


def test_alike_workers_look_once_per_state_of_the_studies():
    work_signal = WorkSignal()
    work_signal.update({"study-1": 3})
    assert work_signal.may_have_work("a", "w1") and work_signal.may_have_work("b", "w2")
    work_signal.record_no_work("a", work_signal.change_count)
    assert not work_signal.may_have_work("a", "w1") and work_signal.may_have_work("b", "w2")
    work_signal.update({"study-1": 3})
    assert not work_signal.may_have_work("a", "w1")
    work_signal.update({"study-1": 4})
    assert work_signal.may_have_work("a", "w1")


def test_a_change_during_the_look_is_not_missed():
    work_signal = WorkSignal()
    before = work_signal.change_count
    work_signal.update({"study-1": 1})
    work_signal.record_no_work("a", before)
    assert work_signal.may_have_work("a", "w1")


def test_a_worker_with_work_of_its_own_looks_whatever_the_others_found():
    work_signal = WorkSignal()
    work_signal.record_no_work("a", work_signal.change_count, frozenset({"w1"}))
    assert work_signal.may_have_work("a", "w1") and not work_signal.may_have_work("a", "w2")
    work_signal.record_no_work("a", work_signal.change_count)
    assert not work_signal.may_have_work("a", "w1"), "it has looked itself"


def test_of_many_who_ask_at_once_one_looks_for_all():
    work_signal = WorkSignal()
    work_signal.record_no_work("a", work_signal.change_count, frozenset({"w3"}), began_s=10.0)
    assert not work_signal.may_have_work("a", "w1", asked_s=9.9), "that look began after the question"
    assert work_signal.may_have_work("a", "w1", asked_s=10.1), "and says nothing about later ones"
    assert work_signal.may_have_work("a", "w3", asked_s=9.9)


def test_what_workers_say_they_are_does_not_add_up():
    work_signal = WorkSignal()
    for number in range(1000):
        work_signal.record_no_work(f"kind {number}", work_signal.change_count)
    assert work_signal.may_have_work("kind 0", "w1") and not work_signal.may_have_work("kind 999", "w1")
    nobodys = weakref.ref(work_signal.kind_lock("a"))
    assert nobodys() is None
    mine = work_signal.kind_lock("a")
    assert work_signal.kind_lock("a") is mine

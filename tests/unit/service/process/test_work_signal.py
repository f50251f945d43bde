"""Who waits for work looks only when there may be some."""

from shardtune.service.process.work_board import Board


def test_alike_workers_look_once_per_state_of_the_studies():
    board = Board()
    board.update({"study-1": 3})
    assert board.may_have_work("a", "w1") and board.may_have_work("b", "w2")
    board.found_nothing("a", board.seen)
    assert not board.may_have_work("a", "w1") and board.may_have_work("b", "w2")
    board.update({"study-1": 3})
    assert not board.may_have_work("a", "w1")
    board.update({"study-1": 4})
    assert board.may_have_work("a", "w1")


def test_a_change_during_the_look_is_not_missed():
    board = Board()
    before = board.seen
    board.update({"study-1": 1})
    board.found_nothing("a", before)
    assert board.may_have_work("a", "w1")


def test_a_worker_with_work_of_its_own_looks_whatever_the_others_found():
    board = Board()
    board.found_nothing("a", board.seen, frozenset({"w1"}))
    assert board.may_have_work("a", "w1") and not board.may_have_work("a", "w2")
    board.found_nothing("a", board.seen)
    assert not board.may_have_work("a", "w1"), "it has looked itself"


def test_of_many_who_ask_at_once_one_looks_for_all():
    board = Board()
    board.found_nothing("a", board.seen, frozenset({"w3"}), began_s=10.0)
    assert not board.may_have_work("a", "w1", asked_s=9.9), "that look began after the question"
    assert board.may_have_work("a", "w1", asked_s=10.1), "and says nothing about later ones"
    assert board.may_have_work("a", "w3", asked_s=9.9)

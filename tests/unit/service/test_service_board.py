"""Who waits for work looks only when there may be some."""

from service.board import Board


def test_alike_workers_look_once_per_state_of_the_studies():
    board = Board()
    board.update({"study-1": 3})
    assert board.may_have_work("a") and board.may_have_work("b")
    board.found_nothing("a", board.seen)
    assert not board.may_have_work("a") and board.may_have_work("b")
    board.update({"study-1": 3})
    assert not board.may_have_work("a")
    board.update({"study-1": 4})
    assert board.may_have_work("a")


def test_a_change_during_the_look_is_not_missed():
    board = Board()
    before = board.seen
    board.update({"study-1": 1})
    board.found_nothing("a", before)
    assert board.may_have_work("a")

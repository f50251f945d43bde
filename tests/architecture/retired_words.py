"""Words that were given up, each with what to say instead. `test_retired_words.py` holds code and documents to them."""

from typing import NamedTuple


class RetiredWord(NamedTuple):
    """A word of an earlier version of this code."""

    pattern: str
    """Regular expression of the whole word; `\\b` is added on both sides."""
    instead: str
    example: str
    """A use that is found."""
    legal: tuple[str, ...] = ()
    """Uses in another sense, which are not found."""
    code_only: bool = False
    """True: documents may use the word, such as for another project's recipes."""


RETIRED = (
    RetiredWord(r"errands?|Errands?", "system study", "the errand"),
    RetiredWord(r"askers?|Askers?", "PlannerCache, ask_lock", "its asker"),
    RetiredWord(r"crown(ing|ed|s)?", "winner", "the crowned trial"),
    RetiredWord(r"[Ee]ras?|\w*_eras?", "fingerprint period", "def _eras", ("cameras",)),
    RetiredWord(r"study_keys?", "case_key (study_id names a study)", "study_key"),
    RetiredWord(r"shape_key", "case_key_without_fingerprint", "shape_key"),
    RetiredWord(r"match_round", "promotion_round", "match_round"),
    RetiredWord(r"BestRow", "ServedCaseRow", "BestRow"),
    RetiredWord(r"Seats|seats", "StreamLimits", "free seats"),
    RetiredWord(r"(work_)?board|Board", "WorkSignal", "the work_board", ("dashboard", "keyboard")),
    RetiredWord(r"event_feed|Feed", "EventSignal", "event_feed"),
    RetiredWord(r"DeadEnd", "NoLegalValue", "DeadEnd"),
    RetiredWord(r"tether(ed)?", "a process that dies with its parent (parent_death)", "tethered"),
    RetiredWord(r"see_through", "run_to_end", "see_through"),
    RetiredWord(r"second_life", "resume phase", "second_life"),
    RetiredWord(r"StudyView", "StudySnapshot", "StudyView"),
)

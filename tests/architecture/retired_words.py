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
    stem: str = ""
    """Lower-case part of every use, by which files without one are passed over quickly; empty: too short to tell."""


RETIRED = (
    RetiredWord(r"errands?|Errands?", "system study", "the errand", stem="errand"),
    RetiredWord(r"askers?|Askers?", "PlannerCache, ask_lock", "its asker", stem="asker"),
    RetiredWord(r"crown(ing|ed|s)?", "winner", "the crowned trial", stem="crown"),
    RetiredWord(r"[Ee]ras?|\w*_eras?", "fingerprint period", "def _eras", ("cameras",)),
    RetiredWord(r"study_keys?", "target_key (study_id names a study)", "study_key", stem="study_key"),
    RetiredWord(r"shape_key", "target_key_without_fingerprint", "shape_key", stem="shape_key"),
    RetiredWord(r"match_round", "final_comparison_round", "match_round", stem="match_round"),
    RetiredWord(r"BestRow", "RecommendedTargetRow, or its present name", "BestRow", stem="bestrow"),
    RetiredWord(r"Seats|seats", "StreamLimits", "free seats", stem="seats"),
    RetiredWord(r"(work_)?board|Board", "WorkSignal", "the work_board", ("dashboard", "keyboard"), stem="board"),
    RetiredWord(r"event_feed|Feed", "EventSignal", "event_feed", stem="feed"),
    RetiredWord(r"DeadEnd", "NoLegalValue", "DeadEnd", stem="deadend"),
    RetiredWord(r"tether(ed)?", "a process that dies with its parent (parent_death)", "tethered", stem="tether"),
    RetiredWord(r"see_through", "run_to_end", "see_through", stem="see_through"),
    RetiredWord(r"second_life", "resume phase", "second_life", stem="second_life"),
    RetiredWord(r"StudyView", "StudySnapshot", "StudyView", stem="studyview"),
    RetiredWord(
        r"[Rr]estart[ -]checks?|\w*restart_checks?\w*|RestartCheck\w*",
        "resume check",
        "its restart check",
        ("restart of a process", "restarted", "restart_s"),
        stem="restart",
    ),
    RetiredWord(
        r"(?<!type )(?<!dtype )[Pp]romotions?|\w+_promotions?\w*|promotions?_\w+|Promotion[A-Z]\w*",
        "final comparison",
        "promotion_round",
        ("torch's type promotion", "dtype promotion", "promote to fp32"),
        stem="promotion",
    ),
    RetiredWord(
        r"[Ff]resh[ -]runs?|\w*fresh_runs?\w*|FreshRun\w*",
        "validation run",
        "fresh_runs_expected",
        ("a fresh clone", "freshness", "fresh_port"),
        stem="fresh",
    ),
    RetiredWord(
        r"[Mm]eetings?(?! (?:the|a|an|its|this|that|these|those|every|each)\b)|\w+_meetings?\w*|\w*Meeting[A-Z]?\w*",
        "collective instance (traces), rendezvous (launchers)",
        "class NoMeeting",
        ("meeting the target", "meeting a limit"),
        stem="meeting",
    ),
    RetiredWord(
        r"[Ww]arm[ -]hosts?|\w*warm_hosts?\w*|WarmHost\w*",
        "fork server",
        "test_warm_host",
        ("warm up", "warm_imports", "the warm and the cold host"),
        stem="warm",
    ),
    RetiredWord(
        r"(?<![-\w])[Nn]ode[ -]process(?:es)?|\w*node_process(?:es)?\w*|NodeProcess\w*",
        "node agent",
        "former node processes",
        ("inter-node processes", "node processor"),
        stem="process",
    ),
    RetiredWord(
        r"[Hh]ost[ -]share|(?:the|of|all|these|its|by) host shares|\w*host_shares?\w*|HostShare\w*",
        "host partition",
        "HostShare",
        ("each host shares its link", "the hosts share a switch", "hosts_shared"),
        stem="share",
    ),
    RetiredWord(
        r"[Tt]uning cases?|\w*case_(?:key|keys|like|row|selection|speed|standing)(?:_\w+)?|(?:[A-Z][a-z]+)?Case[A-Z]\w*",
        "tuning target, target_key",
        "lower_case_keys",
        ("case Interval():", "match case:", "in lower case", "test case", "case_sensitive", "TestCase"),
        stem="case",
    ),
    RetiredWord(
        r"[Jj]udge?ments?(?! call)|\w*judgement_\w+|\w+_judgement|Judgement[A-Z]\w*",
        "parity groups",
        "judgement_at_the_end",
        ("a judgement call", "judged"),
        stem="judg",
    ),
    RetiredWord(
        r"\w*Refused|\w+_refused|refused_\w+|[Ss]ervice_refused|refused(?= (?:=|:=|in) |: \w)",
        "rejected",
        "class RequestRefused",
        ("ConnectionRefusedError", "connection refused", "ECONNREFUSED", "a worker is refused."),
        code_only=True,
        stem="refused",
    ),
    RetiredWord(r"stands_for", "merged_ticks", "its stands_for", stem="stands_for"),
    RetiredWord(
        r"went_on", "uninterrupted (steps of the processes that saved the checkpoint)", "went_on", stem="went_on"
    ),
)

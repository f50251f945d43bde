"""Lists of words that the measure is made of: vague names, docstring openings without a head, nouns that end in -ing."""

import re


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


VAGUE = _words(
    "asked came came_of found given held known left made meant one ones rest said seen stands took told tried "
    "untold wanted what when who whole"
)
"""Names that say nothing of their value. Compared in lower case, without leading and trailing underscores."""

KIN = _words(
    "again all done everything gone got had happened here how kept most nothing other others ours own same "
    "shown some something such taken that theirs there these thing things this those went where which whom whose why"
)
"""Names about as vague as `VAGUE`: listed, not limited, so that one vague name is not traded for another."""

_PREPOSITIONS = _words(
    "About Above Across After Against Along Alongside Among Around As At Before Behind Below Beneath Beside Besides "
    "Between Beyond By Despite During Except For From In Inside Instead Into Like Of On Onto Outside Over Per Since "
    "Than Through Throughout To Toward Towards Under Until Unlike Upon Via With Within Without"
)
_CLAUSES = _words(
    "Also And Because But Else How If Likewise Or So That Then Though Although Unless What Whatever When Whenever "
    "Where Wherever Which Whichever While Who Whoever Whom Whose Why"
)
_PRONOUNS = _words("It Its Nobody None Nothing Ours Such Them They Their Theirs Those")
_RELATIONS = (
    r"The (?:same|one|ones|former|latter|others)",
    r"The other(?=[.,:;]| of| that| is)",
    r"This one",
    r"(?:These|All|Each|Both|Some) (?:that|which|who|with|in|as|by|from|at|on)",
    r"(?:One|All|Each|Some|Both|Two) of (?:them|these|those)",
    r"One (?:that|which|who|whose|for|with|without|more|by|at|in|to|on)",
    r"One(?=[.,:;])",
    r"Out of",
    r"Up to",
    r"Near (?:the|a|an|it)",
    r"[Aa]s above",
)

HEADLESS = re.compile(rf"\(?(?:{'|'.join([*_PREPOSITIONS, *_CLAUSES, *_PRONOUNS, *_RELATIONS])})(?![\w'’-])")
"""Openings that leave a docstring without a head. `Per-rank memory` and `That's` are words of their own."""

NOUNS = _words(
    "batching binding bucketing caching checkpointing clipping encoding forking formatting hashing leasing lightning "
    "listing locking logging mapping packing padding paging parsing planning pricing processing profiling pruning "
    "quoting ranking rendering reporting retuning routing sampling scaling scheduling serving setting sharding string "
    "staging stopping streaming testing timing tracing training tuning typing warming wording deepspeed embed feed "
    "learning seed shed speed undecided"
)
"""Module names in -ing or -ed that are nouns: activities that a textbook lists, products, and `undecided`, a verdict.

Not among them: activities without an object (`sending`, `waiting`, `working`, `settling`, `resolving`,
`sharing`, `explaining`, `predicting`), which leave open what is sent or waited for."""


def is_vague(name: str) -> bool:
    return name.strip("_").lower() in VAGUE


def is_kin(name: str) -> bool:
    return name.strip("_").lower() in KIN


def is_headless(text: str) -> bool:
    return HEADLESS.match(text.strip()) is not None


def is_bare_participle(module: str) -> bool:
    """Whether a module's or folder's name is one word that is vague, or ends in -ed or -ing and is no noun."""
    word = module.strip("_").lower()
    if "_" in word:
        return False
    return word in VAGUE | KIN or (word.endswith(("ed", "ing")) and word not in NOUNS)

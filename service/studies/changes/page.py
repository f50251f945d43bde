"""`changes.md` of an export: what changes in the user's configuration, and what each change is worth."""

from collections.abc import Mapping, Sequence

from shardtune.api_schemas.formatting import listed
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_result import Contender, StudyResult, Verdict
from shardtune.api_schemas.studies.verdicts import TOO_BUSY_STATE
from shardtune.service.studies.changes import effects, user_file
from shardtune.service.studies.changes.effects import SettingChange, SpeedOf
from shardtune.service.studies.changes.user_file import UserFile
from shardtune.tuner.export.quoting import remark

FILE = "changes.md"
_FAR = 1.1
"""Ratio of the product of the effects and the measured gain from which their difference is explained."""


def changes_page(
    study: Study, result: StudyResult, search_speeds: Mapping[TrialConfig, float], predicted: SpeedOf
) -> str | None:
    """Return a Markdown page about the changes from the baseline to the best configuration; None if they are equal. If
    the machine was too busy to answer, the page calls that configuration the candidate, else the recommended one.
    """
    today, best = result.baseline, result.best
    if today.config == best.config:
        return None
    changes = effects.changes_of(today.config, best.config, search_speeds, predicted)
    is_busy = result.verdict is Verdict.TOO_BUSY
    after, best_name = ("candidate", "candidate") if is_busy else ("recommended", "recommended configuration")
    lines = [
        f"# Changes: {_name(today, best)} → {_name(best, today)}",
        "",
        _speedup_sentence(result),
        "",
        *_table(changes, "today" if _is_own(study, result) else "baseline", after, best_name),
        "",
        *_legend(changes, result, best_name),
        *_own_file(study, today, best),
    ]
    return "\n".join(lines) + "\n"


def _name(contender: Contender, other: Contender) -> str:
    """Name a configuration; where the other one has the same short description, by its trial's number too."""
    number = f"trial {contender.trial_number}, " if contender.description == other.description else ""
    return f"{number}{remark(contender.description)}"


def _is_own(study: Study, result: StudyResult) -> bool:
    """Whether the result's baseline is the user's own configuration, and no documented default."""
    return study.spec.baseline is not None and result.replaced_baseline is None


def _speedup_sentence(result: StudyResult) -> str:
    if result.speedup is None:
        return "Together: not compared in enough paired runs for an interval."
    low, high = result.speedup.ci95
    verdict = result.verdict.value.replace("_", " ")
    verdict += f": {TOO_BUSY_STATE}" if result.verdict is Verdict.TOO_BUSY else ""
    return (
        f"Together: {result.speedup.value:.2f}x [{low:.2f}, {high:.2f}] in {result.speedup.pairs} paired runs "
        f"({verdict})."
    )


def _table(changes: Sequence[SettingChange], before: str, after: str, best_name: str) -> list[str]:
    """Table of the changes. `before` and `after` are the titles of the columns with the values of the baseline and of
    the best configuration, which the text calls `best_name`."""
    rows = [
        f"| setting | {before} | {after} | effect | known from |",
        "|---|---|---|---|---|",
    ]
    return rows + [
        f"| `{change.name}` | {_value(change.before)} | {_value(change.after)} | "
        f"{'–' if change.factor is None else f'{change.factor:.2f}x'} | {_origin(change, best_name)} |"
        for change in changes
    ]


def _origin(change: SettingChange, best_name: str) -> str:
    """Describe how the effect of a change is known, and in which configuration."""
    match change.base:
        case "baseline":
            return f"{change.origin}, added alone to the baseline"
        case "recommended":
            return f"{change.origin}, removed alone from the {best_name}"
        case None:
            return change.origin


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "–" if value is None else remark(str(value)).replace("|", "\\|")


def _legend(changes: Sequence[SettingChange], result: StudyResult, best_name: str) -> list[str]:
    origins = {
        "measured": "- measured: two undisturbed search runs differ in this setting alone (one run each).",
        "predicted": f"- predicted: how much slower the {best_name} should be without the change. No "
        "undisturbed search run tested it alone.",
        "unknown": "- unknown: no undisturbed search run tested this setting alone, and its effect cannot be predicted.",
    }
    found = {change.origin for change in changes}
    lines = [
        "- effect: speed with this change divided by the speed without it; all other settings are equal.",
        *(text for origin, text in origins.items() if origin in found),
        *(f"- {text}" for text in (_combination(changes, result),) if text),
    ]
    if any(change.name == "backend" for change in changes):
        lines += ["", "`backend` stands for all settings of the strategy, which change together."]
    return lines


def _combination(changes: Sequence[SettingChange], result: StudyResult) -> str:
    """Say how the effects relate to the gain of all changes together; empty if there is nothing to relate."""
    gain = None if result.speedup is None else f"{result.speedup.value:.2f}x"
    if len(changes) == 1:
        known = "which is more certain than this effect" if changes[0].factor else "of this change alone"
        return "" if gain is None else f"Paired runs measured the gain above, {gain}, {known}."
    rule = "Effects do not combine exactly, since each change also alters what the others are worth"
    product = effects.product_of(changes)
    if product is None:
        return f"{rule}."
    measured = "" if gain is None else f"; paired runs measured {gain} for all changes together"
    return f"{rule}. Their product before rounding is {product:.2f}x{measured}.{_difference(changes, product, result)}"


def _difference(changes: Sequence[SettingChange], product: float, result: StudyResult) -> str:
    """Say why the product of the effects lies far from the measured gain; empty if it does not."""
    if result.speedup is None or max(product, result.speedup.value) < _FAR * min(product, result.speedup.value):
        return ""
    causes = []
    # Where one change is worth little without another, the effect of each contains that of the other.
    if product > result.speedup.value and all(change.base == "recommended" for change in changes):
        causes.append("changes that gain only together count more than once")
    elif all(change.base == "recommended" for change in changes):
        causes.append("a change counts too little where another one brings the same gain")
    if any(change.origin == "predicted" for change in changes):
        causes.append("predicted effects may be wrong")
    if result.verdict is Verdict.TOO_BUSY:
        causes.append("the pairs ran beside other programs")
    return f" They may differ because {listed(causes, 'or')}; the paired runs are the measurement." if causes else ""


def _own_file(study: Study, today: Contender, best: Contender) -> list[str]:
    own = user_file.diff_of(study, today, best)
    if own is None:
        return []
    title = ["", f"## In your {own.name}", ""]
    if own.note is not None:
        return [*title, f"{own.note[:1].upper()}{own.note[1:]}."]
    lines = ["```diff", *own.diff.splitlines(), "```"] if own.diff else ["No line of this file changes."]
    return [*title, *lines, *_outside(own, has_own_code=study.spec.model.is_own)]


def _outside(own: UserFile, *, has_own_code: bool) -> list[str]:
    """Name the changed settings for which the format of the user's file has no key, and the exported files that set
    them.
    """
    if not own.outside:
        return []
    names = ", ".join(f"`{name}`" for name in own.outside)
    verb, them = ("is", "it") if len(own.outside) == 1 else ("are", "them")
    # Exports of the user's own code hold no script and no launcher.
    setters = (
        "`config.json` holds every setting of the table; set what you need in your script."
        if has_own_code
        else "`train_snippet.py` and `launch.sh` set every setting of the table; copy what you need from there."
    )
    return ["", f"{names} {verb} not in this file: a {own.name} has no key for {them}. {setters}"]

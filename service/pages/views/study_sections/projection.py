"""Values of a study page's section about the target: table, chart, and what nobody measured."""

from dataclasses import dataclass

from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.targets import BestAtSize, ProjectedConfig, StudyProjection
from shardtune.service.pages.charts.curve import curve
from shardtune.service.pages.charts.plot import Plot
from shardtune.service.wording.targets import confirmation_words, projection_words, rehearsal_words

_TONES = {"projected": "busy", "confirmed": "good", "changed": "warn"}
"""Tone (colour) of the badge for each verdict on a projection."""


@dataclass(frozen=True)
class ProjectedLine:
    """One configuration on the target."""

    trial: int
    description: str
    is_answer: bool
    speed: str
    memory: str
    may_not_fit: bool
    chance: str
    measured: float
    """Speed in tokens per second and GPU that was measured on the study's own cluster, which is smaller than the
    target."""
    rank: int
    """Rank by measured speed."""


@dataclass(frozen=True)
class SizeLine:
    """Fastest configuration, measured or projected, on a cluster of one size between the study's own and the target."""

    row: BestAtSize
    speed: str


@dataclass(frozen=True)
class ProjectionSection:
    """All values of the section."""

    size: str
    badge: tuple[str, str]
    """Tone (colour) and words of the badge for the state of the projection."""
    status: str
    """Sentence that says whether the answer was projected only, or whether runs on the target confirmed or changed
    it."""
    errors: tuple[str, ...]
    """Sentences about the error of the projected speeds; empty unless runs on the target measured these speeds."""
    confirmed_by: str | None
    """Id of the study that ran on the target cluster."""
    lines: tuple[ProjectedLine, ...]
    sizes: tuple[SizeLine, ...]
    changes: tuple[str, ...]
    """Sentences about the projection: the order of the configurations, the sizes at which another configuration
    becomes the fastest, and how well smaller sizes predicted larger ones."""
    rehearsals: tuple[str, ...]
    """Sentences about rehearsals, which say which configurations could be built, without GPUs, at the target's number
    of ranks."""
    assumptions: tuple[str, ...]
    measured_on: str
    """GPUs on which the study measured, such as `8 × H100-80GB` if the target has another kind; otherwise `here`."""
    plot: Plot


def projection_section(study: Study) -> ProjectionSection | None:
    """Return the section about the study's target (a larger cluster); None for a study without a projection."""
    projection = None if study.result is None else study.result.projection
    return None if projection is None else _section(projection)


def _section(projection: StudyProjection) -> ProjectionSection:
    return ProjectionSection(
        size=projection_words.size(projection),
        badge=(_TONES[projection.verdict], projection.verdict),
        status=confirmation_words.page_status(projection),
        errors=tuple(confirmation_words.sentences(projection)[1:]),
        confirmed_by=None if projection.confirmation is None else projection.confirmation.study_id,
        lines=tuple(
            ProjectedLine(
                trial=config.trial_number,
                description=config.description,
                is_answer=config.config == projection.answer.config,
                speed=projection_words.speed(config.tokens_per_s_per_gpu),
                memory=projection_words.peak(config.memory_gib),
                may_not_fit=config.may_not_fit,
                chance=_chance(projection, config),
                measured=config.measured_tokens_per_s_per_gpu,
                rank=config.rank_measured,
            )
            for config in projection_words.ranked(projection)
        ),
        sizes=tuple(SizeLine(row, projection_words.speed(row.tokens_per_s_per_gpu)) for row in projection.sizes),
        changes=(
            projection_words.order(projection),
            *projection_words.strong_scaling(projection),
            *projection_words.limits(projection),
            *projection_words.take_overs(projection.sizes),
            *projection_words.rung_test(projection),
        ),
        rehearsals=tuple(rehearsal_words.sentences(projection)),
        assumptions=tuple(projection_words.assumptions(projection)),
        measured_on="here" if projection.measured_gpu is None else f"on {projection_words.measured_gpus(projection)}",
        plot=curve(projection),
    )


def _chance(projection: StudyProjection, config: ProjectedConfig) -> str:
    if not projection_words.has_chances(projection):
        return "–"
    whole = projection_words.chance_of_trial(config)
    return f"{projection_words.chance(config)} ({whole})" if whole else projection_words.chance(config)

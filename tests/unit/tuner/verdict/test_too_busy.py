"""A verdict is withheld where most of its pairs ran under unequal load, and only there."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from shardtune.api_schemas.machines.conditions import Conditions, ProgramLoad
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import DdpConfig, Fsdp2Config, TrialConfig
from shardtune.api_schemas.studies.final_comparison import Finalists
from shardtune.api_schemas.studies.study_result import FinalComparison, Verdict
from shardtune.api_schemas.studies.verdicts import OpenVerdict
from shardtune.tuner.verdict import disturbance, final_comparison, ranking
from shardtune.tuner.verdict.comparison_blocks import Pair, ValidationRun
from shardtune.tuner.verdict.final_comparison import RankingState
from shardtune.tuner.verdict.run_load import UNDISTURBED, RunLoad, is_even
from tests.support.values.tuner_inputs import complete

DDP, FSDP2 = TrialConfig(strategy=DdpConfig()), TrialConfig(strategy=Fsdp2Config(dp_shard=2))
BUSY, BUSIER, UNSEEN = RunLoad(True, 1.0), RunLoad(True, 0.8), RunLoad(True, None)
EVEN, UNEVEN = (UNDISTURBED, UNDISTURBED), (BUSY, BUSIER)
FIELD = Finalists(0, (1,))
FASTER = math.log(1.4)


def result(pair_loads, ratio=FASTER, field=FIELD, history=None):
    """Result after pairs under these loads, each of which has the same ratio."""
    history = history or [complete(0, DDP, 100, "baseline"), complete(1, FSDP2, 140)]
    pairs = [Pair(ratio, loads) for loads in pair_loads]
    even, uneven = tuple(pair for pair in pairs if pair.is_even), tuple(pair for pair in pairs if not pair.is_even)
    state = RankingState(0, 1, even, None, uneven_pairs=uneven)
    return ranking.result(history, field, state, (2 * len(pair_loads), 10.0))


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (UNDISTURBED, UNDISTURBED, True),
        (RunLoad(False, 1.9), RunLoad(False, 1.2), True),
        (UNDISTURBED, BUSY, False),
        (RunLoad(False, 1.71), RunLoad(True, 1.69), True),
        (BUSY, RunLoad(True, 1.1), True),
        (BUSY, BUSIER, False),
        (RunLoad(True, 0.6), RunLoad(True, 0.9), False),
        (BUSY, UNSEEN, False),
        (RunLoad(True, 0.0), BUSY, False),
    ],
)
def test_runs_are_even_if_undisturbed_or_under_about_the_same_load(first, second, expected):
    assert is_even(first, second) is is_even(second, first) is expected


def test_nine_pairs_of_disturbed_runs_are_no_answer_though_each_was_won():
    busy = result([UNEVEN] * 9)
    assert (busy.verdict, busy.undecided, busy.best.trial_number) == (Verdict.TOO_BUSY, None, 0)
    assert busy.speedup is None and busy.notes == (), "no note blames something else"
    cause = busy.too_busy
    assert (cause.rests_on, cause.runs, cause.disturbed_runs, cause.uneven_pairs) == ("pairs", 18, 18, 9)
    assert cause.missing_runs == 14, "the fewest pairs of any verdict"


def test_pairs_under_equal_steady_load_count_but_a_gain_needs_one_without_any():
    """What is faster beside other programs may be slower alone."""
    steady = result([(BUSY, BUSY)] * 7)
    assert (steady.verdict, steady.best.trial_number) == (Verdict.TOO_BUSY, 0)
    assert (steady.speedup.pairs, steady.too_busy.disturbed_runs, steady.too_busy.uneven_pairs) == (7, 14, 0)
    mixed = result([(BUSY, BUSY)] * 6 + [EVEN])
    assert (mixed.verdict, mixed.too_busy) == (Verdict.CONFIRMED, None)
    assert mixed.final_comparison.disturbed_counted_runs == 12


def test_even_pairs_decide_whatever_was_left_out():
    clear = result([EVEN] * 7 + [UNEVEN] * 11)
    assert (clear.verdict, clear.speedup.pairs, clear.final_comparison.uneven_pairs) == (Verdict.CONFIRMED, 7, 11)
    assert result([EVEN] * 7 + [UNEVEN] * 11, 0.0).verdict is Verdict.NOT_FASTER


def test_what_even_pairs_do_not_settle_is_undecided_unless_uneven_pairs_are_the_cause():
    assert result([EVEN] * 7 + [UNEVEN] * 6, -FASTER).verdict is Verdict.NOT_FASTER
    noise = (Pair(0.5, EVEN), Pair(-0.5, EVEN)) * 5
    noisy = RankingState(0, 1, noise, None, uneven_pairs=(Pair(0.5, UNEVEN),) * 3)
    history = [complete(0, DDP, 100, "baseline"), complete(1, FSDP2, 140)]
    assert ranking.result(history, FIELD, noisy, (26, 1.0)).verdict is Verdict.UNDECIDED
    busier = RankingState(0, 1, noise, None, uneven_pairs=(Pair(0.5, UNEVEN),) * 10)
    assert ranking.result(history, FIELD, busier, (40, 1.0)).verdict is Verdict.TOO_BUSY
    too_few = result([EVEN] * 6 + [UNEVEN])
    assert too_few.verdict is Verdict.TOO_BUSY and too_few.too_busy.missing_runs == 2


def seen(number, config, speed, foreign, origin="sampler"):
    cluster = Cluster(device="cpu", gpus_per_node=2, memory_gib=4, host_memory_gib=8)
    trial = complete(number, config, speed, origin)
    measurement = trial.measurement.model_copy(
        update={
            "conditions": Conditions(
                foreign_cpu_cores=foreign, foreign_programs=(ProgramLoad(name="cc1plus", cores=foreign),)
            ),
            "cores_left": disturbance.cores_left(foreign, cluster, 2),
            "disturbed": disturbance.foreign_load(foreign, cluster, 2),
        }
    )
    return type(trial)(**vars(trial) | {"measurement": measurement})


def searched(*foreign):
    configs = [FSDP2.model_copy(update={"micro_batch": 2**number}) for number in range(len(foreign) - 1)]
    others = (
        seen(i, config, 100, cores) for i, (config, cores) in enumerate(zip(configs, foreign[1:], strict=True), 1)
    )
    return [seen(0, DDP, 100, foreign[0], "baseline"), *others]


def test_not_faster_rests_on_the_search_too():
    busy = result([EVEN] * 7, 0.0, history=searched(0.1, 1.2, 0.8, 0.0))
    assert busy.verdict is Verdict.TOO_BUSY
    assert (busy.too_busy.rests_on, busy.too_busy.disturbed_runs, busy.too_busy.missing_runs) == ("search", 2, 2)
    assert busy.too_busy.describe().endswith("; an answer takes a new study on a quiet machine"), (
        "no run of it is repeated"
    )
    assert busy.too_busy.programs == (ProgramLoad(name="cc1plus", cores=1.0),)
    assert result([EVEN] * 7, 0.0, history=searched(0.1, 1.2, 0.0, 0.0)).verdict is Verdict.NOT_FASTER
    assert result([EVEN] * 7, 0.0, history=searched(1.0, 1.0, 1.05, 0.95)).verdict is Verdict.NOT_FASTER
    assert result([EVEN] * 7, FASTER, history=searched(0.1, 1.2, 0.8, 0.0)).verdict is Verdict.CONFIRMED


def test_a_candidate_far_behind_is_no_verdict_after_a_busy_search():
    state = RankingState(0, 1, (Pair(-0.5),) * 2, None, is_far_behind=True)
    busy = ranking.result(searched(0.0, 1.5, 1.2), FIELD, state, (0, 0.0))
    assert (busy.verdict, busy.too_busy.rests_on) == (Verdict.TOO_BUSY, "search")
    assert ranking.result(searched(0.0, 0.1, 0.2), FIELD, state, (0, 0.0)).verdict is Verdict.NOT_FASTER


def compared(load_of, most_pairs=24, speed_of=lambda trial: 100.0 + 40 * trial, field=FIELD):
    """A final comparison to its end, whose n-th run is under `load_of(n)`."""
    runs = []
    while True:
        state = final_comparison.ranking_state(field, {0: 100.0, 1: 140.0}, runs, most_pairs, "salt")
        if state.next is None:
            return state
        load = load_of(len(runs))
        runs.append(
            ValidationRun(state.next.trial, state.next.comparison_block, "w", speed_of(state.next.trial), load=load)
        )


def test_uneven_pairs_are_left_out_and_others_take_their_place():
    state = compared(lambda run: (BUSY, BUSIER)[run % 2] if run < 10 else UNDISTURBED)
    assert (len(state.log_ratios), len(state.uneven_pairs)) == (7, 5)


def test_pairs_end_once_half_of_all_would_be_uneven():
    state = compared(lambda run: (BUSY, BUSIER)[run % 2])
    assert (state.log_ratios, len(state.uneven_pairs)) == ((), 12)
    assert len(compared(lambda run: (BUSY, BUSIER)[run % 2], 37).uneven_pairs) == 19


def test_a_pair_that_is_added_after_too_many_uneven_ones_runs():
    """`--add-pairs 1` was advised after 6 even and 4 uneven pairs of at most 7, and ran nothing."""
    earlier = [UNDISTURBED] * 12 + [BUSY, BUSIER] * 4
    ended = compared(lambda run: earlier[run], 7)
    assert (len(ended.log_ratios), len(ended.uneven_pairs)) == (6, 4)
    field = Finalists(0, (1,), fewest_pairs=11)
    assert len(compared(lambda run: [*earlier, UNDISTURBED, UNDISTURBED][run], 8, field=field).log_ratios) == 7
    busy = compared(lambda run: [*earlier, BUSY, BUSIER][run], 8, field=field)
    assert len(busy.uneven_pairs) == 5, "a machine that stays busy ends the comparison again"
    later, field = [*earlier, BUSY, BUSIER, UNDISTURBED, UNDISTURBED], Finalists(0, (1,), fewest_pairs=12)
    assert len(compared(lambda run: later[run], 9, field=field).log_ratios) == 7, (
        "a second pair that is added runs, too"
    )


def test_a_quiet_machine_and_a_steady_load_need_no_pair_more():
    for load in (UNDISTURBED, BUSY):
        state = compared(lambda _, load=load: load)
        assert (len(state.log_ratios), state.uneven_pairs) == (7, ())


@given(st.lists(st.sampled_from([UNDISTURBED, BUSY, BUSIER, UNSEEN]), min_size=2, max_size=80), st.randoms())
def test_whether_a_pair_counts_does_not_depend_on_which_run_was_whose(loads, random):
    """So the sign of a pair that counts is a fair coin for equal configurations."""
    pairs = list(zip(loads[::2], loads[1::2], strict=False))
    swapped = [random.choice(((one, other), (other, one))) for one, other in pairs]
    assert [is_even(*pair) for pair in pairs] == [is_even(*pair) for pair in swapped]


def test_a_stored_result_with_the_former_name_of_its_disturbed_runs_is_read() -> None:
    """`final_comparison` and `too_busy` had different counts of the same name."""
    stored = {"candidates": [3], "pairs": 7, "runs": 20, "gpu_seconds": 1.0, "disturbed_runs": 4}
    assert FinalComparison.model_validate(stored).disturbed_counted_runs == 4
    open_verdict = {"pairs": 7, "won_pairs": 6, "more_pairs": None, "disturbed_runs": 2}
    read = OpenVerdict.model_validate_json(json.dumps(open_verdict))
    assert read.disturbed_counted_runs == 2 and OpenVerdict.model_validate(read.model_dump()) == read
    with pytest.raises(ValidationError):
        FinalComparison.model_validate(stored | {"disturbed_run": 1})

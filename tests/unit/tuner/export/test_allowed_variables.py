"""Of all variables that torch, NCCL, cuBLAS, oneDNN and OpenMP read, an export sets those of a list, to values of a form."""

import ast
import re
from pathlib import Path
from typing import get_args

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from shardtune.api_schemas.strategies import DdpConfig, Fsdp2Config, TrialConfig, ZeroConfig
from shardtune.api_schemas.studies.exports import ExportFormat
from shardtune.api_schemas.studies.study import Study
from shardtune.tuner.export import environment, export
from shardtune.tuner.export.allowed_variables import ALLOWED, LONGEST_VALUE, is_allowed
from shardtune.tuner.export.source import ExportSource
from tests.support.long_run import IS_LONG, wide
from tests.support.service.simulated_worker import FINGERPRINT
from tests.support.values.launcher_exports import LAUNCHERS
from tests.support.values.synthetic_studies import CPU, contender_of, study_of

LISTS = sorted((Path(__file__).parents[3] / "data/environment_variables").glob("*.txt"))
READ = {name for file in LISTS for name in file.read_text().split()}
DDP, FSDP2, ZERO = TrialConfig(strategy=DdpConfig()), TrialConfig(strategy=Fsdp2Config(dp_shard=2)), TrialConfig(
    strategy=ZeroConfig(stage=1)
)  # fmt: skip
FORMS: dict[ExportFormat, TrialConfig] = {
    "standard": DDP,
    "lightning": FSDP2,
    "training-arguments": ZERO,
    "trl": DDP,
    "axolotl": FSDP2,
    "llama-factory": ZERO,
    "ms-swift": DDP,
    "torchtitan": FSDP2,
}
"""Each form with one backend; all that a form can hold in the long run."""
EXPORTS = [
    (pytest.param if FORMS[form] is config or form == "standard" else wide)(config, form)
    for form in FORMS
    for config in (DDP, FSDP2, ZERO)
    if (config, form) != (ZERO, "torchtitan")
]
HARMLESS_LOOKING = ("1", "evil", "train_snippet.py", "0.0.0.0:28028", "libevil.so", "a.b")
PROBES = [
    *(
        "evil",
        "evil.so",
        "./evil",
        "/tmp/evil",
        "..",
        "~",
        "train_snippet.py",
        "launch.sh",
        "C:\\evil",
        "a/b",
        "os.path",
    ),
    *(
        "localhost",
        "10.0.0.1",
        "::1",
        "[::]:28028",
        "0.0.0.0:28028",
        "evil.example",
        "evil:6379",
        ":28028",
        "redis://evil",
    ),
    *(
        "eth0",
        "=eth0",
        "mlx5_0",
        "ib0:1",
        "stdout",
        "socket",
        "%h",
        "$HOME",
        "$(id)",
        "`id`",
        ";id",
        "|id",
        "&",
        "<",
        "*",
    ),
    *(
        "1\n",
        "\n1",
        "1\0",
        "1 evil",
        "x=1",
        "1\u2028",
        "\u0661",
        "TRUE\u017f",
        "{a,b}",
        "(1)",
        "#",
        "'",
        '"',
        "%s",
        "\\",
    ),
]
"""Values that name a file, a host, a port, an interface or a module, or that a shell would interpret."""
WORDS = set(
    re.findall(
        r"\w+",
        """true false loc nvl pix pxb pxn p c phb sys tree ring collnetdirect collnetchain nvls nvlstree pat simple ll
    parallel group expandable segments backend native cudamallocasync garbage collection threshold max split size mb
    non rounding roundup power divisions pinned num register threads use cuda host background granularity fine thread
    core tile socket node compact scatter balanced none disabled respect norespect reset glibc malloc hugetlb arena test
    mmap trim top pad tcache count mxfast default all sse avx vnni amx bf fp f tf any strict no hints prefer ymm lazy
    eager aten triton cpp vsx zvector sve auto compatible cores caches numa domains sockets close spread master primary
    active passive static dynamic guided b k m g infinite infinity""",
    )
)
"""All words of which values consist; each was looked up in the manual of its library, and names nothing outside it."""
SUSPICIOUS = re.compile(
    r"FILE|PATH|DIR|LIB(?!C_)|PLUGIN|PRELOAD|DUMP|ADDR|HOST|PORT|IFNAME|URL|REDIS|CACHE|LOG|DEBUG|TOOL|HOOK"
)


def test_every_format_but_those_of_launchers_is_among_the_forms_of_this_file() -> None:
    """Files of a launcher start the standard files, whose environment they do not change."""
    assert set(FORMS) == set(get_args(ExportFormat)) - set(LAUNCHERS)


def study(*variables: str) -> Study:
    return study_of(cluster=CPU.model_copy(update={"nodes": 2}), global_batch=16).model_copy(
        update={"fingerprint": FINGERPRINT.model_copy(update={"environment": variables, "cpu_count": 8})}
    )


def code_of(file: str, text: str) -> str:
    """Text of a file without its comments, which are all that a worker's words may appear in."""
    match file.rpartition(".")[2]:
        case "py":
            return ast.dump(without_docstring(ast.parse(text)))
        case "yaml":
            return str(yaml.safe_load(text))
        case "json":
            return text
        case _:
            return "\n".join(line for line in text.splitlines() if not line.startswith("#"))


def without_docstring(module: ast.Module) -> ast.Module:
    assert ast.get_docstring(module) is not None
    return ast.Module(module.body[1:], type_ignores=[])


def codes(config: TrialConfig, form: ExportFormat, *variables: str) -> dict[str, str]:
    """What runs of each exported file, where the worker had these variables."""
    files = export(study(*variables), contender_of(config), form).files
    return {file: code_of(file, text) for file, text in files.items()}


@pytest.mark.parametrize(("config", "form"), EXPORTS, ids=lambda value: getattr(value, "backend", value))
def test_no_variable_that_a_library_reads_leaves_the_comments_unless_it_is_allowed(
    config: TrialConfig, form: ExportFormat
) -> None:
    others, plain = sorted(READ - ALLOWED.keys()), codes(config, form)
    assert len(others) > 1500
    at_once = 100 if IS_LONG else 500
    for names in (others[start : start + at_once] for start in range(0, len(others), at_once)):
        for value in HARMLESS_LOOKING if IS_LONG else ("evil", "0.0.0.0:28028"):
            assert codes(config, form, *(f"{name}={value}" for name in names)) == plain


def test_the_variables_that_are_set_are_those_that_are_allowed() -> None:
    for name in sorted(READ):
        for value in HARMLESS_LOOKING:
            set_by_worker = environment.settings(ExportSource.of(study(f"{name}={value}"), contender_of(DDP)))
            assert set_by_worker.keys() <= ALLOWED.keys()
            assert name == "OMP_NUM_THREADS" or set_by_worker.get(name) == (value if is_allowed(name, value) else None)


@pytest.mark.parametrize(
    "variable",
    [
        "TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE=1",
        "TORCHINDUCTOR_REDIS_HOST=evil",
        "CUBLAS_LOGDEST_DBG=train_snippet.py",
        "NCCL_RAS_ADDR=0.0.0.0:28028",
        "NCCL_NET=evil",
        "OMP_TOOL_LIBRARIES=evil.so",
        "MALLOC_CONF=prof:true,prof_prefix:launch.sh",
        "ONEDNN_VERBOSE_LOGFILE=launch.sh",
        "NCCL_NEXT_YEARS_VARIABLE=1",
        "NCCL_ALGO=evil",
    ],
)
def test_what_reached_a_colleague_s_job_is_a_comment(variable: str) -> None:
    name, _, value = variable.partition("=")
    files = export(study(variable), contender_of(ZERO), "standard").files
    assert codes(ZERO, "standard", variable) == codes(ZERO, "standard")
    assert f"# environment: the worker also had {name} set, to {value}" in files["launch.sh"].splitlines()


def test_a_worker_s_interface_does_not_replace_the_one_that_the_export_chose() -> None:
    one_node = study("GLOO_SOCKET_IFNAME=eth1").model_copy(update={"cluster": CPU})
    script = export(one_node, contender_of(DDP), "standard").files["launch.sh"]
    assert [line for line in script.splitlines() if line.startswith("export GLOO")] == ["export GLOO_SOCKET_IFNAME=lo"]


def test_each_allowed_variable_is_one_that_a_library_reads() -> None:
    assert ALLOWED.keys() - READ == set()


def test_a_variable_that_sounds_like_a_file_or_host_takes_a_number_only() -> None:
    for name in filter(SUSPICIOUS.search, ALLOWED):
        for value in HARMLESS_LOOKING[1:]:
            assert not is_allowed(name, value)
        assert re.fullmatch(r"\[0-?[129]\](\{1,\d+\})?", ALLOWED[name].pattern), name


@pytest.mark.parametrize("name", sorted(ALLOWED))
def test_no_value_of_an_allowed_variable_names_a_file_a_host_a_port_or_a_module(name: str) -> None:
    @settings(max_examples=30 if IS_LONG else 12, deadline=None)
    @given(st.from_regex(ALLOWED[name], fullmatch=True))
    def check(value: str) -> None:
        assert re.fullmatch(r"[A-Za-z0-9_.,:=^-]+", value)
        # A dot stands in a fraction or in glibc's own names, never in a name of a file, a host or a module.
        assert "." not in re.sub(r"\b0\.[0-9]+|\bglibc\.malloc\.", "", value)
        assert {word.lower() for word in re.findall(r"[A-Za-z]+", value)} <= WORDS
        for probe in PROBES:
            for planted in (
                probe,
                value + probe,
                probe + value,
                f"{value},{probe}",
                f"{value}:{probe}",
                f"{probe},{value}",
            ):
                assert planted == value or not is_allowed(name, planted), planted

    check()


def test_a_value_that_the_worker_cut_is_not_set() -> None:
    whole = ",".join(["max_split_size_mb:128"] * 9)
    assert len(whole) > LONGEST_VALUE and ALLOWED["PYTORCH_ALLOC_CONF"].fullmatch(whole)
    assert not is_allowed("PYTORCH_ALLOC_CONF", whole)


COMMENT_ENDS = [
    *"\"'\\",
    '"""',
    "'''",
    "\n",
    "\r",
    "\x0b",
    "\x0c",
    "\x1c",
    "\x85",
    "\u2028",
    "\u2029",
    "\u202e",
    "\0",
    "*/",
]
COMMENT_ENDS += [
    "\n---\n",
    "\nexport A=1\n",
    "\n#SBATCH --wrap=id\n",
    "-->",
    "$(id)",
    "`id`",
    "${A}",
    "$model_name",
    "{{",
    "%}",
]


@pytest.mark.parametrize(("config", "form"), EXPORTS, ids=lambda value: getattr(value, "backend", value))
def test_a_comment_holds_whatever_a_worker_says(config: TrialConfig, form: ExportFormat) -> None:
    plain = codes(config, form)

    @settings(max_examples=40 if IS_LONG else 15, deadline=None)
    @given(st.lists(st.sampled_from(COMMENT_ENDS) | st.text(max_size=3)).map("".join))
    def check(value: str) -> None:
        assert codes(config, form, f"LD_PRELOAD={value}") == plain

    check()

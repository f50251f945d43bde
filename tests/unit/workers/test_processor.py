"""The identity of a processor, on which folders of compiled code depend."""

from pathlib import Path

import pytest

from shardtune.workers import processor

EPYC = """processor	: 0
vendor_id	: AuthenticAMD
cpu family	: 25
model		: 1
cpu MHz		: 2445.404
flags		: fpu sse2 avx avx2

processor	: 1
flags		: only of another core
"""
GRAVITON = """processor	: 0
BogoMIPS	: 2100.00
Features	: fp asimd sve
CPU implementer	: 0x41
CPU architecture: 8
CPU variant	: 0x1
CPU part	: 0xd40

"""


@pytest.fixture
def digest_of(tmp_path: Path):
    def digest(text: str) -> str:
        (tmp_path / "cpuinfo").write_text(text)
        return processor.digest(tmp_path / "cpuinfo")

    return digest


@pytest.mark.parametrize(
    ("text", "old", "new"),
    [
        (EPYC, "avx avx2", "avx avx2 avx512f"),
        (EPYC, "model		: 1", "model		: 17"),
        (GRAVITON, "asimd sve", "asimd"),
        (GRAVITON, "0xd40", "0xd0c"),
    ],
)
def test_processors_with_other_instructions_have_other_digests(digest_of, text: str, old: str, new: str) -> None:
    assert old in text and digest_of(text) != digest_of(text.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new"), [("2445.404", "1500.0"), ("avx avx2", "avx2 avx"), ("only of another core", "")]
)
def test_clock_order_and_other_cores_do_not_change_it(digest_of, old: str, new: str) -> None:
    assert old in EPYC and digest_of(EPYC) == digest_of(EPYC.replace(old, new))


def test_a_host_without_proc_has_one_too(tmp_path: Path) -> None:
    assert len(processor.digest(tmp_path / "missing")) == 8

"""Output of `shardtune fingerprints`."""

from datetime import UTC, datetime

from shardtune.api_schemas.machines.fingerprints import Dependent, FieldChange, FingerprintDetail, FingerprintHolder
from shardtune.service.cli.commands import fingerprints
from tests.support.service.simulated_worker import FINGERPRINT

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
HOLDER = FingerprintHolder(
    worker_id="worker-1", worker="node-1", since=NOON, until=None, is_live=True, predecessor_id="a" * 32,
    changes=(
        FieldChange(field="torch", was="2.12", now="2.13.0", effect="stale"),
        FieldChange(field="kernel", was="6.1.1", now="6.1", effect="confidence"),
    ),
)  # fmt: skip
RECORD = FingerprintDetail(
    fingerprint_id="b" * 32,
    fingerprint=FINGERPRINT.model_copy(update={"overridden": ("torch",)}),
    is_overridden=True,
    first_seen_at=NOON,
    is_current=True,
    holders=(HOLDER, HOLDER.model_copy(update={"worker": "node-2", "until": NOON, "is_live": False, "changes": ()})),
    dependents=(
        Dependent(
            project_id="default", target_key="c" * 32, recommendation_id="rec-1", model="llama-tiny", freshness="stale",
            changed_fields=("torch",),
        ),
    ),
)  # fmt: skip


def test_a_fingerprint_in_lines():
    head, first, second = fingerprints.lines(RECORD)
    assert head == f"{'b' * 32}  CPU ranks on simulated  declared, not detected: torch"
    assert first == (
        "  node-1 from 2026-01-01 12:00 until now: torch 2.12 → 2.13.0; kernel 6.1.1 → 6.1 (lowers the confidence only)"
    )
    assert second == "  node-2 from 2026-01-01 12:00 until 2026-01-01 12:00"


def test_its_fields_mark_what_was_declared_and_leave_out_what_is_unknown():
    shown = fingerprints.details(RECORD)
    assert "  torch: 2.13.0 (declared)" in shown and "  python: 3.11.2" in shown
    assert not any("driver" in line for line in shown)
    assert shown[-1] == f"  measured under it: llama-tiny, target key {'c' * 32}: stale (torch)"

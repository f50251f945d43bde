"""Declarations of knobs that several backends have with one meaning; each backend's field completes them."""

from collections.abc import Mapping

from shardtune.api_schemas.knobs import Consumer, Knob, Lost, Statement, When, Written

GRAD_SYNC = Knob(
    help="Time at which gradients are reduced while accumulating: after every micro batch, or after the last (`no_sync`).",
    name="gradient sync",
    words=("every", "reduce_scatter", "last"),
    tries=("every", "last"),
    when=When(has_peers=True, accumulates=True),
    memory_order=("every", "reduce_scatter", "last"),
    upstream="`no_sync`",
)
DP_SHARD = Knob(
    help="Ranks over which parameters, gradients and optimizer state are sharded (second axis of the mesh).",
    name="shard group",
    places_states=True,
)
DP_REPLICATE = Knob(
    help="Groups that each hold a whole copy (first axis of the mesh); “replicated ×2” is two of them.",
    name="replicas",
)
CPU_OFFLOAD = Knob(
    help="FSDP: shards, gradients and optimizer state live in host memory.",
    tries=(False, True),
    when=When(on_gpu=True),
    places_states=True,
)
PINNED = "Offloaded state lies in page-locked host memory, which is copied faster"

NO_SETTING = Lost("has no setting for it")
IN_ENVIRONMENT: Mapping[Consumer, Statement] = dict.fromkeys(
    ("script", "accelerate", "training_arguments", "torchtitan", "lightning"), Written("the environment of the ranks")
)
"""Form in which exports state a knob that sets environment variables of the ranks (`rank_environment`): each exported
file sets these variables, or names them for the user."""

"""Schema of a tuning target (model, workload, cluster and fingerprint that a recommendation applies to) in canonical
form, with its keys and differences."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from shardtune.api_schemas.machines.hardware import Cluster, Fingerprint
from shardtune.api_schemas.training.adapters import unsaid_settings
from shardtune.api_schemas.training.models import ModelSpec
from shardtune.api_schemas.training.optimizers import unsaid_kind
from shardtune.api_schemas.training.workload import Workload

_WITHOUT_EFFECT = {"transformers_version", "torch_dtype", "dtype", "architectures", "use_cache"}
"""Keys of a model's config.json that have no effect on trials, in addition to all keys that start with an underscore.
Some of them concern dtypes, which the workload sets; others concern stored weights, which trials create anew instead of
loading."""
Flat = Mapping[str, Any]
"""Values of a tuning target by the names of their fields, such as `workload.global_batch`."""
_CLUSTER = ("device", "gpu", "nodes", "gpus_per_node", "memory_gib")


@dataclass(frozen=True)
class TuningTarget:
    """Tuning target of a study: the model, workload, cluster and fingerprint (hardware and software versions) for which
    its result holds."""

    model: ModelSpec
    workload: Workload
    cluster: Cluster

    def canonical(self) -> dict[str, Any]:
        """Return those parts of the tuning target that determine its result, in a canonical form: equal targets give
        equal parts."""
        precision = self.workload.precision
        # Cases are known by their keys: those of precisions without autocast have no word about it.
        unsaid = {"name"} if precision.autocast else {"name", "autocast"}
        exclude: dict[str, bool | set[str]] = {
            "seed": True,
            "precision": unsaid,
            "optimizer": unsaid_kind(self.workload.optimizer),
        }
        if self.workload.adapter is None:
            # The keys of answers without an adapter have no word about it, nor have those of samples of one length, or without float8.
            exclude["adapter"] = True
        else:
            exclude["adapter"] = unsaid_settings(self.workload.adapter)
        if self.workload.data is None:
            exclude["data"] = True
        if self.workload.float8 is None:
            exclude["float8"] = True
        workload = self.workload.model_dump(mode="json", exclude=exclude)
        cluster = self.cluster.model_dump(mode="json", include=set(_CLUSTER))
        cluster["gpu"] = cluster["gpu"].strip().casefold()
        cluster["memory_gib"] = round(cluster["memory_gib"], 1)
        model = _without_ineffective_keys(self.model.config)
        if self.model.is_own:
            model = {"entry_point": self.model.entry_point, "script": self.model.script, "config": self.model.config}
        return {"model": model, "workload": workload, "cluster": cluster}

    def flat(self) -> Flat:
        """Return the parts of the tuning target that determine its result, by the names of their fields, such as
        `workload.global_batch`."""
        return dict(_flat_items("", self.canonical()))

    @property
    def model_key(self) -> str:
        """Return a key (hash) of the architecture of the tuning target's model, without its workload and cluster."""
        return _key(self.canonical()["model"])

    @property
    def model_type(self) -> str:
        """Model architecture of the target, or the name of the user's own code. A target with another value is never a
        nearest match."""
        return (self.model.model_type or f"own:{self.model.entry_point or self.model.script}")[:100]

    @property
    def target_key_without_fingerprint(self) -> str:
        """Key of the tuning target without its fingerprint (hardware and software versions)."""
        return _key(self.canonical())

    def target_key(self, fingerprint: Fingerprint) -> str:
        """Return the key of the complete tuning target, including the fingerprint (hardware and software versions)."""
        return _key([self.canonical(), fingerprint.content_key()])


def differing_fields(first: Flat, second: Flat) -> list[str]:
    """Return the names of the fields in which two tuning targets differ, such as `workload.global_batch`, sorted."""
    return sorted(name for name in first.keys() | second.keys() if first.get(name) != second.get(name))


def _without_ineffective_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _without_ineffective_keys(value) if isinstance(value, dict) else value
        for key, value in config.items()
        if not key.startswith("_") and key not in _WITHOUT_EFFECT
    }


def _flat_items(prefix: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat_items(f"{prefix}.{key}" if prefix else key, inner)
    else:
        yield prefix, value


def _key(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:32]

"""Name of a cluster in a request: it is parsed once, whoever asks for it."""

import pytest

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.trials.predictions import PredictionRequest
from shardtune.tuner.prediction import catalogue, prediction_request
from shardtune.tuner.search import fastest


def test_a_named_cluster_is_parsed_once_in_a_command() -> None:
    catalogue.parse_cluster.cache_clear()
    request = PredictionRequest(model="gpt2", cluster="2xh100", top=1)
    prediction_request.precision_of(request)
    table = fastest.answer_request(request)
    assert catalogue.parse_cluster.cache_info().misses == 1
    assert table.cluster == prediction_request.cluster_of(request)


@pytest.mark.parametrize("name", ["８xh100", "4x８xh100", "8xh100１", "8xh100é"])
def test_a_cluster_is_named_in_ascii(name: str) -> None:
    with pytest.raises(ValueError, match="cluster "):
        catalogue.parse_cluster(name)


def test_signs_in_a_name_of_a_gpu_are_ignored() -> None:
    assert catalogue.find("NVIDIA® H100_SXM (80GB)").name == catalogue.find("h100-sxm-80gb").name


def test_the_host_memory_that_a_name_assumes_is_stated_where_configurations_offload() -> None:
    def notes(model: str, cluster: Cluster | str) -> str:
        request = PredictionRequest(model=model, cluster=cluster, sequence_length=4096, top=3)
        return " ".join(fastest.answer_request(request).notes)

    assert "host memory: 2,048 GiB a node are assumed" in notes("llama-3.1-70b", "8xa100-80gb")
    assert "host memory" not in notes("llama-3.2-1b", "8xa100-80gb"), "nothing is offloaded"
    assert "host memory" not in notes("llama-3.1-70b", catalogue.parse_cluster("8xa100-80gb")), "it was stated"


@pytest.mark.parametrize("name", ["L40", "NVIDIA L40", "mi300"])
def test_a_name_that_ends_within_that_of_a_model_is_another_product(name: str) -> None:
    with pytest.raises(ValueError, match=r"is not in the catalogue; use (L40S-48GB|MI300X-192GB)"):
        catalogue.find(name)


@pytest.mark.parametrize(
    ("name", "product"),
    [
        ("NVIDIA H100 80GB HBM3", "H100-SXM5-80GB"),
        ("NVIDIA A100 80GB PCIe", "A100-PCIe-80GB"),
        ("AMD Instinct MI300X OAM", "MI300X-192GB"),
        ("h100pcie", "H100-PCIe-80GB"),
        ("rtx4090", "RTX-4090-24GB"),
        ("V100 (DGX-2)", "V100-SXM2-32GB"),
        ("NVIDIA H200 NVL", None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("NVIDIA L40", None),
        ("Home-made 9000", None),
        ("", None),
    ],
)
def test_a_product_is_not_its_neighbour_in_the_catalogue(name: str, product: str | None) -> None:
    found = catalogue.product(name)
    assert (None if found is None else found.name) == product

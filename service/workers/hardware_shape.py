"""Compare hardware by kind and size: a worker's with a study's, by whatever name each has for its GPU."""

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.tuner.prediction import catalogue


def has_same_shape(available: Cluster, cluster: Cluster) -> bool:
    """Whether hardware of this kind and size can run the trials of a study on a cluster; memory is not compared."""
    same_device = available.device == cluster.device and (
        available.device == "cpu" or _is_same_gpu(available.gpu, cluster.gpu)
    )
    # A smaller trial on a larger machine would leave ranks idle that share its links, so each node must be used in full
    # as soon as there are several of them.
    is_part_of_node = cluster.nodes == 1 and cluster.gpus_per_node < available.gpus_per_node
    fits = is_part_of_node or cluster.gpus_per_node == available.gpus_per_node
    return same_device and cluster.nodes <= available.nodes and fits


def _is_same_gpu(name: str, other: str) -> bool:
    """Whether two names of GPUs are equal, or one is the catalogue's name of the other: a study on `8xh100` has the
    catalogue's name of the GPU, but a worker reports its driver's name.
    """
    first, second = name.strip().casefold(), other.strip().casefold()
    return first == second or _catalogue_name(first) == second or _catalogue_name(second) == first


def _catalogue_name(gpu: str) -> str | None:
    """Name of a GPU in the catalogue, in lower case; None if the catalogue does not contain the GPU."""
    product = catalogue.product(gpu)
    return None if product is None else product.name.casefold()

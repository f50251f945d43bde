"""Host partitions of several workers, and the workers that may run at once."""

from itertools import combinations

import pytest

from shardtune.workers.machine import host_facts
from shardtune.workers.machine.inventory import DetectedGpu, Gpus, cluster
from shardtune.workers.partitions.divide import Cores, divide

HOST = "0c5b1a7e94d2f386"
NO_GPU = Gpus(driver=None, devices=())
TWO_SOCKETS = Cores(range(16), {core: core // 8 for core in range(16)})


def gpus(count, word):
    """`word(i, j)`: how two of them are joined."""
    devices = tuple(
        DetectedGpu(uuid=f"GPU-{n}", name="NVIDIA L4", memory_bytes=1, pcie_gb_per_s=32) for n in range(count)
    )
    links = tuple((i, j, word(i, j)) for i, j in combinations(range(count), 2))
    return Gpus(driver="570", devices=devices, links=links)


def by_name(partitions):
    return {division.name: division for division in partitions}


def meet(partitions, first, other):
    return by_name(partitions)[first].partition.conflicts_with(by_name(partitions)[other].partition)


def pcie(i, j):
    """Pairs under one switch, four on a socket."""
    return "PIX" if i // 2 == j // 2 else "NODE" if i // 4 == j // 4 else "SYS"


def test_every_size_gets_as_many_workers_as_there_is_room_for():
    partitions = divide(HOST, gpus(8, lambda i, j: "NV18"), 8, [8, 1], TWO_SOCKETS)
    assert [division.name for division in partitions] == [*(f"1x{n}" for n in range(8)), "8x0"]
    assert by_name(partitions)["1x3"].gpu_uuids == by_name(partitions)["1x3"].partition.devices == ("GPU-3",)
    assert [division.partition.least_ranks for division in partitions] == [*[1] * 8, 2]
    assert sorted(core for division in partitions[:8] for core in division.cores) == list(range(16))
    assert by_name(partitions)["8x0"].cores == set(range(16)) and partitions[0].partition.fraction == 1 / 8


def test_a_partition_offers_its_fraction_of_the_host_s_memory():
    full, half = (cluster(NO_GPU, ranks, None, part) for ranks, part in ((2, 1.0), (1, 0.5)))
    assert half.host_memory_gib == pytest.approx(full.host_memory_gib / 2, abs=0.01)
    assert half.memory_gib == pytest.approx(full.memory_gib, abs=0.01)


def test_sets_meet_where_they_have_a_device_in_common():
    partitions = divide(HOST, gpus(8, lambda i, j: "NV18"), 8, [1, 2, 8], TWO_SOCKETS)
    assert meet(partitions, "2x0", "1x1") and meet(partitions, "8x0", "1x7") and meet(partitions, "8x0", "2x3")
    assert not meet(partitions, "2x0", "1x2") and not meet(partitions, "2x0", "2x1")


def test_over_pcie_sets_of_several_meet_below_the_switch_or_node_that_both_need():
    partitions = divide(HOST, gpus(8, pcie), 8, [1, 2, 4], TWO_SOCKETS)
    assert not meet(partitions, "2x0", "2x1"), "each has a switch of its own"
    assert not meet(partitions, "4x0", "4x1"), "each has a socket of its own"
    assert meet(partitions, "4x0", "2x1") and not meet(partitions, "4x0", "2x2")
    assert not any(meet(partitions, f"1x{n}", "2x0") for n in range(2, 8)), "one device has no collectives"
    apart = divide(HOST, gpus(4, lambda i, j: "SYS"), 4, [2], TWO_SOCKETS)
    assert meet(apart, "2x0", "2x1"), "both need the way between the sockets"


def test_where_nvml_does_not_say_how_gpus_are_joined_sets_of_several_meet():
    silent = Gpus(driver="570", devices=gpus(4, pcie).devices)
    partitions = divide(HOST, silent, 4, [1, 2], TWO_SOCKETS)
    assert meet(partitions, "2x0", "2x1") and not meet(partitions, "1x0", "2x1")


def test_pairs_joined_by_nvlink_do_not_meet_others_of_their_kind_and_a_mixed_set_meets_its_neighbours():
    bridged = gpus(4, lambda i, j: "NV4" if i // 2 == j // 2 else "PHB")
    assert not meet(divide(HOST, bridged, 4, [2], TWO_SOCKETS), "2x0", "2x1")
    crossing = gpus(8, lambda i, j: "NV4" if abs(i - j) == 4 else pcie(i, j))
    partitions = divide(HOST, crossing, 8, [4], TWO_SOCKETS)
    assert meet(partitions, "4x0", "4x1")


def test_cpu_ranks_have_cores_of_their_own_and_several_meet_on_a_numa_node():
    partitions = divide(HOST, NO_GPU, 4, [1, 2], TWO_SOCKETS)
    assert by_name(partitions)["1x1"].cores == {4, 5, 6, 7}
    assert by_name(partitions)["1x1"].partition.devices == ("cpu4", "cpu5", "cpu6", "cpu7")
    assert meet(partitions, "2x0", "1x1") and not meet(partitions, "1x0", "1x1") and not meet(partitions, "2x0", "2x1")
    one_node = divide(HOST, NO_GPU, 4, [1, 2], Cores(range(16), dict.fromkeys(range(16), 0)))
    unknown = divide(HOST, NO_GPU, 4, [1, 2], Cores(range(16), {}))
    for same in (one_node, unknown):
        assert meet(same, "2x0", "2x1") and not meet(same, "1x0", "1x3")


@pytest.mark.parametrize(
    ("machine", "ranks", "sizes", "says"),
    [
        (gpus(8, pcie), 8, [3], r"split \(3\) must name sizes that divide the 8 GPUs.*choose from 1, 2, 4, 8"),
        (gpus(8, pcie), 8, [1, 16], r"split \(1,16\).*and 16 does not"),
        (NO_GPU, 2, [4], r"split \(4\).*2 CPU ranks.*choose from 1, 2"),
        (NO_GPU, 32, [1], r"split \(1\) gives each CPU rank cores.*16 for 32 ranks; use --ranks 16"),
    ],
)
def test_what_cannot_be_divided_is_rejected_with_what_can(machine, ranks, sizes, says):
    with pytest.raises(ValueError, match=says):
        divide(HOST, machine, ranks, sizes, TWO_SOCKETS)


def test_cores_stand_by_socket_then_by_core_whatever_their_numbers(tmp_path):
    for core, (socket, number) in enumerate([(0, 0), (1, 0), (0, 1), (1, 1), (0, 0), (1, 0)]):
        folder = tmp_path / f"sys/devices/system/cpu/cpu{core}"
        (folder / "topology").mkdir(parents=True)
        (folder / "topology/physical_package_id").write_text(str(socket))
        (folder / "topology/core_id").write_text(str(number))
        (folder / f"node{socket}").mkdir()
    assert host_facts.cores_in_order(range(6), tmp_path) == [0, 4, 2, 1, 5, 3]
    assert host_facts.numa_nodes(range(2), tmp_path) == {0: 0, 1: 1}


def test_a_host_has_one_name_until_it_boots_again(tmp_path):
    boot = tmp_path / "proc/sys/kernel/random/boot_id"
    boot.parent.mkdir(parents=True)
    boot.write_text("one\n")
    before = host_facts.host_id(tmp_path)
    assert before == host_facts.host_id(tmp_path) and before.isalnum() and len(before) == 16
    boot.write_text("two\n")
    assert host_facts.host_id(tmp_path) != before

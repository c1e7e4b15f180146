"""A GPU as plain data: its limits by compute capability, occupancy and clusters."""

import pytest

from cuconv.device import A100, H200, DeviceSpec

B200 = DeviceSpec("NVIDIA B200", (10, 0), 148)
PART_OF_AN_H100 = DeviceSpec("NVIDIA H100 80GB HBM3 MIG 3g.40gb", (9, 0), 60)


@pytest.mark.parametrize(
    ("capability", "kib"),
    [((8, 0), 163), ((8, 6), 99), ((8, 7), 163), ((8, 9), 99), ((9, 0), 227), ((10, 0), 227), ((12, 0), 99)],
    ids=str,
)
def test_shared_memory_of_a_block_is_that_of_the_programming_guide(capability, kib):
    assert DeviceSpec("", capability, 100).shared_bytes_per_block == kib * 1024


def test_only_hopper_has_the_architecture_with_an_a():
    assert [device.arch for device in (A100, H200, B200)] == ["sm_80", "sm_90a", "sm_100"]


@pytest.mark.parametrize(("device", "most"), [(A100, 1), (B200, 8), (PART_OF_AN_H100, 8), (H200, 16)], ids=str)
def test_clusters_of_sixteen_are_for_whole_hopper_gpus_and_fit_their_sms(device, most):
    assert device.max_cluster_blocks == most and device.has_clusters == (most > 1)
    for blocks in (1, 2, 4, 8, 16):
        assert blocks > most or 0 < device.clusters_at_a_time(blocks) * blocks <= device.sm_count


@pytest.mark.parametrize(
    ("threads", "registers", "shared_bytes", "blocks"),
    [(256, 64, 0, 4), (128, 255, 0, 2), (256, 32, 100 * 1024, 2), (128, 32, 227 * 1024, 1), (1024, 128, 0, 1)],
)
def test_occupancy_follows_from_registers_and_shared_memory(threads, registers, shared_bytes, blocks):
    assert H200.resident_blocks(threads, registers, shared_bytes) == blocks


@pytest.mark.parametrize("device", [H200, B200, A100], ids=lambda device: device.name)
@pytest.mark.parametrize("resident", [1, 2, 3, 5, 8])
def test_shared_memory_can_limit_an_sm_to_a_number_of_blocks(device, resident):
    least = device.shared_bytes_that_hold(resident)
    assert device.resident_blocks(32, 32, least) == resident
    assert device.resident_blocks(32, 32, least - 128) > resident

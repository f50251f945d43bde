"""Environment of ranks, from the environment of the process that starts them."""

from shardtune.workers.launchers.processes import rank_environment, without_secrets


def test_neither_secrets_nor_an_engine_s_words_reach_the_ranks() -> None:
    inputs = {
        "SHARDTUNE_API_KEY": "secret",
        "RAY_AUTH_TOKEN": "secret",
        "SLURM_PROCID": "0",
        "PMI_RANK": "0",
        "OMPI_COMM_WORLD_RANK": "0",
        "NCCL_ALGO": "Ring",
        "PATH": "/bin",
    }
    assert rank_environment(inputs) == {"NCCL_ALGO": "Ring", "PATH": "/bin"}
    assert "SHARDTUNE_API_KEY" not in without_secrets(inputs) and "SLURM_PROCID" in without_secrets(inputs)

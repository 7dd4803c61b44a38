"""Several processes over gloo share one optimizer: FSDP2, HSDP, DistributedDataParallel, distributed checkpoints."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

WORKER = Path(__file__).with_name("ranks_worker.py")


def run(scenario, size, folder):
    """Runs a scenario on so many processes; each of them asserts."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, str(WORKER), scenario]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(size), str(folder)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        said = [rank.communicate(timeout=280)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    failed = [f"rank {place}:\n{said[place]}" for place, rank in enumerate(ranks) if rank.returncode]
    assert not failed, "\n".join(failed)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_sharded_parameters_give_the_bits_of_one_process(size, tmp_path):
    run("fsdp", size, tmp_path)


def test_replicas_of_shards_share_the_work(tmp_path):
    run("hsdp", 4, tmp_path)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_groups_share_the_collectives_of_one_step(size, tmp_path):
    run("groups", size, tmp_path)


@pytest.mark.parametrize("size", [2, 4])
def test_real_data_trains_as_on_one_process(size, tmp_path):
    run("digits", size, tmp_path)


def test_a_real_backward_pass_through_fully_shard_trains_as_one_process(tmp_path):
    run("training", 2, tmp_path)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_a_process_group_shares_the_work_of_replicated_parameters(size, tmp_path):
    run("ddp", size, tmp_path)


def test_distributed_checkpoints_change_nothing_and_are_read_by_any_number_of_ranks(tmp_path):
    run("save", 2, tmp_path)
    for size in (1, 2, 3):
        run("load", size, tmp_path)


def test_faults_are_errors_on_all_ranks(tmp_path):
    run("faults", 2, tmp_path)


@pytest.mark.parametrize("sharded, sizes", [(False, (2, 3)), (True, (2,))])
def test_real_runs_stand_beside_what_scaling_models(sharded, sizes, command):
    words = ["up=96x64", "down=64x96", "norm=96", "--measure", "3", "--ranks", *map(str, sizes)]
    options = ["--set", "max_factor_dim=32", "check_period=2"]
    done = command("-m", "foam", "scaling", *words, *(["--sharded"] if sharded else []), *options)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in done.stdout.splitlines()]
    assert head[8:] == ["measured: state", "work, largest / mean", "collectives", "bytes sent"] and len(rows) == len(sizes)
    for ranks, row in zip(sizes, rows):
        modelled, measured = (row[1], row[2], row[3], row[4]), row[8:]
        assert (row[0], measured[2]) == (str(ranks), modelled[2] if sharded else "2")
        number = {"model": float(modelled[3].split()[0]), "run": float(measured[3].split()[0])}
        # Of replicated parameters the bytes are exact; parts that are cut have messages of their own lengths.
        assert number["model"] == number["run"] if not sharded else abs(number["run"] / number["model"] - 1) < 0.25, row
        state = float(measured[0].split()[0]) / float(modelled[0].split()[0])
        # Arrays begin at multiples of 256 bytes.
        assert 1 <= state < 1.3 and 1 <= float(measured[1]) <= ranks, row

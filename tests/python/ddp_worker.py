"""One rank of the DDP test: `ddp_worker.py FOLDER RANK`. Rank 0 also trains alone on the whole batches."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from foam.torch import FOAM
from test_torch_training import OPTIONS, digits, network

STEPS, BATCH = 30, 64


def batches():
    images, labels = digits()
    generator = torch.Generator().manual_seed(5)
    for _ in range(STEPS):
        chosen = torch.randint(0, 1437, (BATCH,), generator=generator)
        yield images[chosen], labels[chosen]


def train(model, optimizer, part):
    for images, labels in batches():
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[part]), labels[part]).backward()
        optimizer.step()


def main():
    folder, rank = Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=2)
    model = network()
    if rank == 1:
        # DDP has to bring rank 0's weights here.
        nn.init.zeros_(model[0].weight)
    parallel = DistributedDataParallel(model)
    optimizer = FOAM(parallel.parameters(), **OPTIONS)
    half = BATCH // 2
    train(parallel, optimizer, slice(rank * half, (rank + 1) * half))
    states = [group["foam_state"] for group in optimizer.state_dict()["param_groups"]]
    result = {"model": model.state_dict(), "foam": states, "steps": optimizer.stats()["steps"]}
    torch.save(result, folder / f"rank{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        alone = network()
        start = {name: weight.clone() for name, weight in alone.state_dict().items()}
        train(alone, FOAM(alone.parameters(), **OPTIONS), slice(None))
        torch.save({"model": alone.state_dict(), "start": start}, folder / "single.pt")


if __name__ == "__main__":
    main()

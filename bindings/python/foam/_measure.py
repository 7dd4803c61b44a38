"""Real runs of many ranks on this machine: processes over gloo, one thread each. ``python -m foam scaling --measure`` and
``benches/ranks.py`` are built on it; it needs PyTorch.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from .errors import FoamError

__all__ = ["Measured", "World"]


class Measured(NamedTuple):
    """What so many ranks did, by rank."""

    #: Bytes of state.
    state: List[int]
    #: Of every step: seconds, and seconds of the processor that the rank's thread had.
    steps: List[List[Tuple[float, float]]]
    #: Collectives of the last step, and the bytes that each rank sent in it.
    collectives: int
    sent: List[int]

    def balance(self) -> float:
        """Largest over mean work: the seconds of the processor in all steps but the first."""
        work = [sum(cpu for _, cpu in steps[1:]) for steps in self.steps]
        return max(work) * len(work) / sum(work)


class World:
    """So many processes that share one optimizer, and take steps when they are told to."""

    def __init__(
        self,
        shapes: Sequence[Tuple[str, Sequence[int], str]],
        size: int,
        sharded: bool,
        preset: Optional[str],
        options: Mapping[str, Any],
    ) -> None:
        self._folder = tempfile.TemporaryDirectory()
        work = {"shapes": list(shapes), "sharded": sharded, "preset": preset, "options": dict(options)}
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        # The package of this process, wherever it was found.
        places = [str(Path(__file__).resolve().parents[1]), os.environ.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, places))
        self._ranks = [
            subprocess.Popen(
                [sys.executable, "-m", "foam._measure", str(rank), str(size), self._folder.name, json.dumps(work)],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(size)
        ]
        self._steps: List[List[Tuple[float, float]]] = [[] for _ in range(size)]

    def __enter__(self) -> "World":
        return self

    def __exit__(self, *_: Any) -> None:
        for rank in self._ranks:
            rank.kill()
            rank.communicate()
        self._folder.cleanup()

    def _ask(self, line: str) -> List[Any]:
        for rank in self._ranks:
            if rank.stdin is not None and rank.poll() is None:
                rank.stdin.write(line + "\n")
                rank.stdin.flush()
        answers = [rank.stdout.readline() if rank.stdout is not None else "" for rank in self._ranks]
        if not all(answers):
            raise FoamError("a rank ended before its time; its messages are above")
        return [json.loads(answer) for answer in answers]

    def step(self, count: int) -> List[List[Tuple[float, float]]]:
        """Takes so many steps; their seconds, by rank."""
        made = self._ask(str(count))
        for kept, fresh in zip(self._steps, made):
            kept.extend((wall, cpu) for wall, cpu in fresh)
        return made

    def end(self) -> Measured:
        """What all steps came to. No steps after it."""
        said = self._ask("end")
        # One that is ended before the others have left would be an error on them.
        for rank in self._ranks:
            rank.wait(timeout=60)
        return Measured(
            [each["state"] for each in said],
            self._steps,
            max(each["collectives"] for each in said),
            [each["sent"] for each in said],
        )


# ---- one rank


def _parameters(work: Dict[str, Any], size: int) -> List[Tuple[str, Any]]:
    import torch

    generator = torch.Generator().manual_seed(0)
    made = []
    for name, shape, dtype in work["shapes"]:
        whole = torch.randn(shape, generator=generator).to(getattr(torch, dtype))
        if work["sharded"]:
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.tensor import Shard, distribute_tensor

            whole = distribute_tensor(whole, init_device_mesh("cpu", (size,)), [Shard(0)])
        made.append((name, torch.nn.Parameter(whole)))
    return made


def _rank(rank: int, size: int, folder: str, work: Dict[str, Any]) -> None:
    import torch
    import torch.distributed as dist

    from .torch import FOAM

    torch.set_num_threads(1)
    store = dist.FileStore(str(Path(folder) / "store"), size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timedelta(minutes=10))
    params = _parameters(work, size)
    group = {} if work["sharded"] else {"process_group": dist.group.WORLD}
    optimizer = FOAM([{"params": params}], preset=work["preset"], **{"num_threads": 1, **work["options"]}, **group)
    before = after = optimizer.stats()
    number = 0
    for line in sys.stdin:
        if line.strip() == "end":
            break
        made = []
        for _ in range(int(line)):
            # The same gradients on every rank, and others in every step.
            for place, (_, param) in enumerate(params):
                noise = torch.Generator().manual_seed(1000 * number + place + rank * work["sharded"])
                own = param.to_local() if work["sharded"] else param
                grad = torch.randn(own.shape, generator=noise).to(own.dtype)
                if work["sharded"]:
                    from torch.distributed.tensor import DTensor

                    grad = DTensor.from_local(
                        grad, param.device_mesh, param.placements, shape=param.shape, stride=param.stride()
                    )
                param.grad = grad
            dist.barrier()
            before = optimizer.stats()
            wall, cpu = time.perf_counter(), time.thread_time()
            optimizer.step()
            made.append((time.perf_counter() - wall, time.thread_time() - cpu))
            after = optimizer.stats()
            number += 1
        print(json.dumps(made), flush=True)
    said = {
        "state": after["state_bytes_host"],
        "sent": after["bytes_sent"] - before["bytes_sent"],
        "collectives": after["collectives"] - before["collectives"],
    }
    print(json.dumps(said), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    _rank(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4]))

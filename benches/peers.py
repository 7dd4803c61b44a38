"""A step beside other optimizers, through `foam.torch`, interleaved in one process:

    PYTHONPATH=bindings/python FOAM_LIBRARY=target/release/libfoam.so python benches/peers.py \
        --foam DIR --shampoo DIR --soap DIR [--works S1 S3] [--threads 2] [--rounds 20]

The folders are checkouts of the authors' FOAM, of Meta's Distributed Shampoo and of SOAP; what is not given is left
out. AdamW (fused) is always there. Three kinds of step: plain; a check that reuses every basis and changes every
damping; a check that refreshes every basis (SOAP: a power iteration and QR, and no vectors). All have f32, blocks up
to 1024, p = 2 and the lengths of Adam, where the optimizer knows them. The state is counted in bytes per parameter.
"""

import argparse
import gc
import importlib
import platform
import statistics
import sys
import time
from pathlib import Path

import torch

import foam
from foam.torch import FOAM

ENCODER = [(1, 1), (1, 3), (1, 4), (4, 1), (1,), (3,), (4,), (1,)]


def encoder(width):
    return [tuple(width * times for times in shape) for shape in ENCODER]


#: Name, what it is, and the shapes of its parameters.
WORKS = {
    "S1": ("one 256×256", [(256, 256)]),
    "S2": ("one 1024×1024", [(1024, 1024)]),
    "S3": ("ViT-S/16 encoder block", encoder(384)),
    "S4": ("GPT-2 small block", encoder(768)),
    "S5": ("200 of 64×64, 100 of 64", [(64, 64)] * 200 + [(64,)] * 100),
}
KINDS = ["plain", "reuse", "refresh"]
NEVER = 1_000_000


def ours(params, kind):
    options = {
        "plain": dict(start_step=1, check_period=NEVER),
        "reuse": dict(policy="foam_no_refresh", check_period=1, start_step=1, tau=1e-3, epsilon_max=1e9),
        "refresh": dict(policy="stale", check_period=1, start_step=1),
    }[kind]
    return FOAM(params, lr=1e-3, preset="reference", num_threads=torch.get_num_threads(), **options)


def authors(params, kind):
    package = "optimizers.distributed_shampoo."
    shampoo = importlib.import_module(package + "distributed_shampoo").DistributedShampoo
    grafting = importlib.import_module(package + "shampoo_types").AdamGraftingConfig
    options = {
        "plain": dict(preconditioner_update_mode="stale"),
        "reuse": dict(
            preconditioner_update_mode="foam_no_evd_refresh",
            matrix_root_inv_threshold=1e-3,
            max_epsilon=1e9,
        ),
        "refresh": dict(preconditioner_update_mode="stale"),
    }[kind]
    return shampoo(
        params,
        lr=1e-3,
        betas=(0.95, 0.995),
        epsilon=1e-9,
        precondition_frequency=1,
        start_preconditioning_step=1,
        inv_root_override=2,
        grafting_config=grafting(beta2=0.995, epsilon=1e-9),
        **options,
    )


def distributed_shampoo(params, kind):
    package = importlib.import_module("distributed_shampoo")
    if kind == "reuse":
        return None
    return package.DistributedShampoo(
        params,
        lr=1e-3,
        betas=(0.95, 0.995),
        epsilon=1e-9,
        precondition_frequency=1,
        start_preconditioning_step=1,
        preconditioner_config=package.RootInvShampooPreconditionerConfig(
            inverse_exponent_override={1: 0.5, 2: 0.5}
        ),
        grafting_config=package.AdamPreconditionerConfig(beta2=0.995, epsilon=1e-9),
    )


def soap(params, kind):
    if kind == "reuse":
        return None
    frequency = NEVER if kind == "plain" else 1
    return importlib.import_module("soap").SOAP(params, lr=1e-3, precondition_frequency=frequency)


def adamw(params, kind):
    return torch.optim.AdamW(params, lr=1e-3, fused=True) if kind == "plain" else None


def tensor_bytes():
    """Bytes of all storages that tensors hold."""
    gc.collect()
    sizes = {}
    for found in gc.get_objects():
        if isinstance(found, torch.Tensor):
            storage = found.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
    return sum(sizes.values())


def clock():
    """Seconds: of the thread's own work where it does all of it, which other programs disturb least."""
    return time.thread_time() if torch.get_num_threads() == 1 else time.perf_counter()


class Run:
    """One optimizer on its own copy of the parameters."""

    def __init__(self, make, shapes, kind):
        random = torch.Generator().manual_seed(0)
        self.params = [torch.nn.Parameter(torch.randn(shape, generator=random)) for shape in shapes]
        self.grads = [[torch.randn(shape, generator=random) for shape in shapes] for _ in range(3)]
        for param, grad in zip(self.params, self.grads[0]):
            param.grad = grad
        before = tensor_bytes()
        self.optimizer, self.taken, self.times = make(self.params, kind), 0, []
        if self.optimizer is not None:
            self.step(), self.step()
            self.times.clear()
            # Some refuse a first check before the end of a period: they begin with checks at every step.
            for group in self.optimizer.param_groups:
                if kind == "plain" and group.get("precondition_frequency") == 1:
                    group["precondition_frequency"] = NEVER
        own = self.optimizer.memory()["total"] if isinstance(self.optimizer, FOAM) else tensor_bytes() - before
        self.state = own / sum(param.numel() for param in self.params)

    def step(self):
        for param, grad in zip(self.params, self.grads[self.taken % 3]):
            param.grad = grad
        self.taken += 1
        began = clock()
        self.optimizer.step()
        self.times.append(1e3 * (clock() - began))


def measure(name, peers, rounds):
    what, shapes = WORKS[name]
    for kind in KINDS:
        runs = {peer: Run(make, shapes, kind) for peer, make in peers.items()}
        present = {peer: run for peer, run in runs.items() if run.optimizer is not None}
        for _ in range(rounds if kind == "plain" else max(3, rounds // 4)):
            for run in present.values():
                run.step()
        cells = [
            f"{statistics.median(runs[peer].times):.2f} ({min(runs[peer].times):.2f})" if peer in present else "–"
            for peer in peers
        ]
        print(f"| {name}, {what} | {kind} | {' | '.join(cells)} |", flush=True)
        if kind == "plain":
            state = [f"{runs[peer].state:.1f}" for peer in peers]
            print(f"| {name} | state, bytes per parameter | {' | '.join(state)} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--foam", type=Path, help="a checkout of the authors' FOAM")
    parser.add_argument("--shampoo", type=Path, help="a checkout of Distributed Shampoo")
    parser.add_argument("--soap", type=Path, help="a checkout of SOAP")
    parser.add_argument("--works", nargs="+", choices=WORKS, default=list(WORKS))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=20, help="plain steps; a quarter of it of the others")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    peers = {"libfoam": ours}
    for name, folder, make in [
        ("authors' FOAM", options.foam, authors),
        ("Distributed Shampoo", options.shampoo, distributed_shampoo),
        ("SOAP", options.soap, soap),
    ]:
        if folder is not None:
            sys.path.insert(0, str(folder))
            peers[name] = make
    peers["AdamW"] = adamw
    processor = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    machine = processor[0].split(":")[1].strip() if processor else platform.processor()
    print(f"{foam.build_info()} | torch {torch.__version__} | {machine}, {options.threads} threads")
    print(f"median (minimum), milliseconds of {'CPU' if options.threads == 1 else 'wall-clock'} time")
    print(f"| work | step | {' | '.join(peers)} |")
    print(f"| {' | '.join(['---'] * (len(peers) + 2))} |")
    for name in options.works:
        measure(name, peers, options.rounds)


if __name__ == "__main__":
    main()

"""A step beside other optimizers, through `foam.torch`, interleaved in one process:

    PYTHONPATH=bindings/python FOAM_LIBRARY=target/release/libfoam.so python benches/peers.py \
        --foam DIR --shampoo DIR --soap DIR [--works S1 S3] [--threads 2] [--rounds 20] [--train 120]

The folders are checkouts of the authors' FOAM, of Meta's Distributed Shampoo and of SOAP; what is not given is left
out. AdamW (fused) is always there. Three kinds of step: plain; a check that reuses every basis and changes every
damping; a check that refreshes every basis (SOAP: a power iteration and QR, and no vectors). All have f32, blocks up
to 1024, p = 2 and the lengths of Adam, where the optimizer knows them. The state is counted in bytes per parameter.
With `--train` the optimizers then train a student on a teacher, both with the parameters of S3 (the policy foam, a
check every 20 steps): the mean step, the loss at the end and the eigendecompositions.
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
#: What the two FOAM optimizers share in a training.
TRAINING = dict(tau=0.75, epsilon_max=3e-7, check_period=20)
NEVER = 1_000_000


def ours(params, kind):
    options = {
        "plain": dict(start_step=1, check_period=NEVER),
        "reuse": dict(policy="foam_no_refresh", check_period=1, start_step=1, tau=1e-3, epsilon_max=1e9),
        "refresh": dict(policy="stale", check_period=1, start_step=1),
        "train": dict(weight_decay=0.0, **TRAINING),
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
        "train": dict(
            preconditioner_update_mode="foam",
            matrix_root_inv_threshold=TRAINING["tau"],
            max_epsilon=TRAINING["epsilon_max"],
        ),
    }[kind]
    period = TRAINING["check_period"] if kind == "train" else 1
    return shampoo(
        params,
        lr=1e-3,
        betas=(0.95, 0.995),
        epsilon=1e-9,
        precondition_frequency=period,
        start_preconditioning_step=period,
        inv_root_override=2,
        grafting_config=grafting(beta2=0.995, epsilon=1e-9),
        **options,
    )


def distributed_shampoo(params, kind):
    package = importlib.import_module("distributed_shampoo")
    if kind == "reuse":
        return None
    period = TRAINING["check_period"] if kind == "train" else 1
    return package.DistributedShampoo(
        params,
        lr=1e-3,
        betas=(0.95, 0.995),
        epsilon=1e-9,
        precondition_frequency=period,
        start_preconditioning_step=period,
        preconditioner_config=package.RootInvShampooPreconditionerConfig(
            inverse_exponent_override={1: 0.5, 2: 0.5}
        ),
        grafting_config=package.AdamPreconditionerConfig(beta2=0.995, epsilon=1e-9),
    )


def soap(params, kind):
    if kind == "reuse":
        return None
    frequency = {"plain": NEVER, "refresh": 1, "train": TRAINING["check_period"]}[kind]
    return importlib.import_module("soap").SOAP(params, lr=1e-3, precondition_frequency=frequency)


def adamw(params, kind):
    return torch.optim.AdamW(params, lr=1e-3, fused=True) if kind in ("plain", "train") else None


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


def outputs(params, inputs):
    """An encoder block of width d without attention: the three parts of its second product are added up."""
    first, second, third, fourth, *biases = params
    hidden = inputs @ first + biases[0]
    hidden = hidden + torch.tanh(hidden @ second + biases[1]).reshape(len(inputs), 3, -1).sum(1)
    return torch.nn.functional.gelu(hidden @ third + biases[2]) @ fourth + biases[3]


def weights(shapes, seed):
    random = torch.Generator().manual_seed(seed)
    scaled = [torch.randn(shape, generator=random) / max(shape[0], 1) ** 0.5 for shape in shapes]
    return [torch.nn.Parameter(weight) for weight in scaled]


def decompositions(optimizer):
    if isinstance(optimizer, FOAM):
        return str(optimizer.stats()["evd_calls"])
    if not hasattr(optimizer, "get_preconditioner_diagnostics"):
        return "–"
    return str(sum(group["evd_calls"] for group in optimizer.get_preconditioner_diagnostics()["groups"]))


def train(peers, steps):
    shapes = WORKS["S3"][1]
    teacher = weights(shapes, 1)
    students = {peer: weights(shapes, 2) for peer in peers}
    optimizers = {peer: make(students[peer], "train") for peer, make in peers.items()}
    spent, losses = {peer: 0.0 for peer in peers}, {}
    random = torch.Generator().manual_seed(3)
    for _ in range(steps):
        inputs = torch.randn((256, shapes[0][0]), generator=random)
        with torch.no_grad():
            targets = outputs(teacher, inputs)
        for peer, optimizer in optimizers.items():
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(outputs(students[peer], inputs), targets)
            loss.backward()
            losses[peer] = loss.item()
            began = clock()
            optimizer.step()
            spent[peer] += 1e3 * (clock() - began)
    rows = {
        f"mean of {steps} steps of training": [f"{spent[peer] / steps:.2f}" for peer in peers],
        "loss at the end": [f"{losses[peer]:.4f}" for peer in peers],
        "eigendecompositions": [decompositions(optimizers[peer]) for peer in peers],
    }
    for row, cells in rows.items():
        print(f"| S3 | {row} | {' | '.join(cells)} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--foam", type=Path, help="a checkout of the authors' FOAM")
    parser.add_argument("--shampoo", type=Path, help="a checkout of Distributed Shampoo")
    parser.add_argument("--soap", type=Path, help="a checkout of SOAP")
    parser.add_argument("--works", nargs="+", choices=WORKS, default=list(WORKS))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=20, help="plain steps; a quarter of it of the others")
    parser.add_argument("--train", type=int, default=0, metavar="STEPS", help="also train S3 for so many steps")
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
    if options.train > 0:
        train(peers, options.train)


if __name__ == "__main__":
    main()

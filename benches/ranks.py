"""What a second process is worth: the step of S3 and S4 of benches/step.rs on one and on two processes over gloo, one
thread each, with the bytes exchanged; beside it one process with as many threads, which exchanges nothing: what this
machine's cores give at most. The balance is the largest over the mean work of the ranks, in seconds of the processor: of
plain steps, and of those with a refresh. Ranks wait for the one with the most, so that R of them are worth at most R
divided by it; blocks are whole, so that it is rarely 1.

    python benches/ranks.py [S3] [S4] [--rounds 4] [--processes 1 2]

All worlds are there at once and take ten steps in turn, so that they meet the same machine; every tenth step decomposes
all factors. Of each kind the least of all steps counts: other work on the machine only ever adds.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bindings/python"))

from foam._measure import World  # noqa: E402

PERIOD = 10
OPTIONS = {"policy": "stale", "check_period": PERIOD}


def encoder(d):
    """The parameters of a block of a transformer, as in benches/step.rs."""
    shapes = [[d, d], [d, 3 * d], [d, 4 * d], [4 * d, d], [d], [3 * d], [4 * d], [d]]
    return [(f"p{place}", shape, "float32") for place, shape in enumerate(shapes)]


WORKS = {"S3": encoder(384), "S4": encoder(768)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("works", nargs="*", choices=[*WORKS, []], default=list(WORKS))
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--processes", nargs="+", type=int, default=[1, 2])
    chosen = parser.parse_args()
    print("| work | processes | threads each | plain step | ratio | balance | with refresh | ratio | balance | bytes sent |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for name in chosen.works:
        measure(name, chosen.processes, chosen.rounds)


def balance(work):
    """Largest over mean."""
    return max(work) * len(work) / sum(work)


def measure(name, processes, rounds):
    shapes = sorted({(1, 1), *((1, size) for size in processes), *((size, 1) for size in processes)})
    worlds = {
        (size, threads): World(WORKS[name], size, False, "default", {**OPTIONS, "num_threads": threads})
        for size, threads in shapes
    }
    try:
        for _ in range(rounds + 1):
            for world in worlds.values():
                world.step(PERIOD)
        first = None
        for (size, threads), world in worlds.items():
            ended = world.end()
            # A step takes as long as its slowest rank. The first round has no bases.
            slowest = [max(wall for wall, _ in step) for step in zip(*ended.steps)][PERIOD:]
            plain = min(seconds for at, seconds in enumerate(slowest, 1) if at % PERIOD)
            refresh = min(seconds for at, seconds in enumerate(slowest, 1) if at % PERIOD == 0)
            first = first or (plain, refresh)
            work = [[cpu for _, cpu in steps][PERIOD:] for steps in ended.steps]
            plain_work = [min(cpu for at, cpu in enumerate(own, 1) if at % PERIOD) for own in work]
            refresh_work = [min(cpu for at, cpu in enumerate(own, 1) if at % PERIOD == 0) for own in work]
            print(
                f"| {name} | {size} | {threads} | {1e3 * plain:.1f} ms | {first[0] / plain:.2f}x | "
                f"{balance(plain_work):.3f} | {1e3 * refresh:.1f} ms | {first[1] / refresh:.2f}x | "
                f"{balance(refresh_work):.3f} | {max(ended.sent) / 1e6:.2f} MB |",
                flush=True,
            )
    finally:
        for world in worlds.values():
            world.__exit__()


if __name__ == "__main__":
    main()

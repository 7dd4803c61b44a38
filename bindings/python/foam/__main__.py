"""``python -m foam``: doctor, plot, report, replay and scaling."""

from __future__ import annotations

import argparse
import os
import sys
from typing import List, Optional

from . import _version


def main(arguments: Optional[List[str]] = None) -> int:
    """Runs a subcommand; the result is the exit status."""
    try:
        status = _run(arguments)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # A reader that has seen enough (`... | head`) is no reason to fail loudly.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _run(arguments: Optional[List[str]]) -> int:
    parser = argparse.ArgumentParser(prog="python -m foam", description="Tools of the FOAM optimizer.")
    parser.add_argument("--version", action="version", version=f"foam {_version.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")

    doctor = commands.add_parser(
        "doctor", help="report the library, the machine and CUDA, to paste into an issue; or say what is wrong with a run"
    )
    doctor.add_argument(
        "csv", nargs="?", help="instead: a file that Optimizer.to_csv or the train example wrote; what is wrong with it"
    )
    doctor.add_argument("--policy", help="with a file: the run to judge, where it has several; default: all of them")
    doctor.add_argument(
        "--plan",
        nargs="+",
        metavar="SHAPE",
        help="instead: the blocks, factors, bytes and products of a model, as NAME=768x3072 or as a safetensors file",
    )
    doctor.add_argument("--preset", help="with --plan: the options to start from")
    doctor.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="with --plan: options")

    plot = commands.add_parser("plot", help="plot epsilon, proxy and EVD rate of every factor from a CSV file")
    plot.add_argument("csv", help="a file that Optimizer.to_csv or the train example wrote")
    plot.add_argument("--out", metavar="PREFIX", help="write PREFIX.png and PREFIX.svg; default: beside the CSV")
    plot.add_argument("--policy", help="the run to plot, where the file has several; default: all, one file each")
    plot.add_argument("--tau", type=float, help="draw this tau, where the file does not say it")

    report = commands.add_parser("report", help="write a page about every factor, to look into with a browser")
    report.add_argument("csv", help="a file that Optimizer.to_csv or the train example wrote")
    report.add_argument("--out", metavar="FILE", help="the page; default: beside the CSV, with the ending .html")
    report.add_argument("--policy", help="the run to show, where the file has several; default: all of them")
    report.add_argument("--tau", type=float, help="this tau, where the file does not say it")

    replay = commands.add_parser("replay", help="compare golden traces with this build")
    replay.add_argument("traces", nargs="+", metavar="case.safetensors")

    scaling = commands.add_parser("scaling", help="what many ranks would have to do: balance, bytes, a modelled step")
    scaling.add_argument("shapes", nargs="+", metavar="SHAPE", help="NAME=768x3072, or a safetensors file")
    scaling.add_argument("--ranks", nargs="+", type=int, default=[1, 2, 4, 8], help="numbers of ranks")
    scaling.add_argument("--sharded", action="store_true", help="parameters are sharded (FSDP2), not replicated (DDP)")
    scaling.add_argument("--flops", type=float, default=1e14, help="operations per second of a rank; default 1e14")
    scaling.add_argument("--link", type=float, default=5e10, help="bytes per second that a rank sends; default 5e10")
    scaling.add_argument("--latency", type=float, default=2e-5, help="seconds of a collective; default 2e-5")
    scaling.add_argument(
        "--measure", type=int, default=0, metavar="STEPS", help="beside it, so many steps of real runs (needs PyTorch)"
    )
    scaling.add_argument("--preset", help="the options to start from")
    scaling.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="options")

    chosen = parser.parse_args(arguments)
    if chosen.command == "scaling":
        from .scaling import main as model

        speeds = (chosen.flops, chosen.link, chosen.latency)
        return model(
            chosen.shapes, chosen.ranks, chosen.sharded, speeds, chosen.preset, chosen.set, chosen.measure
        )
    if chosen.command == "doctor":
        from .doctor import main as examine
        from .doctor import plan_main as plan
        from .doctor import run_main as judge

        if chosen.csv:
            return judge(chosen.csv, chosen.policy)
        return plan(chosen.plan, chosen.preset, chosen.set) if chosen.plan else examine()
    if chosen.command == "plot":
        from .plot import main as draw

        return draw(chosen.csv, chosen.out, chosen.policy, chosen.tau)
    if chosen.command == "report":
        from .report import main as write

        return write(chosen.csv, chosen.out, chosen.policy, chosen.tau)
    from .replay import main as certify

    return certify(chosen.traces)


if __name__ == "__main__":
    sys.exit(main())

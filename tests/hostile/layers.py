"""The Python layers under hostile use: `layers.py numpy|torch|jax --first SEED --seconds T [--count N]`.

Prints `@seed` before every case and `+what number` at the end, as the other parts of the campaign do.
"""

import argparse
import contextlib
import copy
import gc
import io
import pathlib
import pickle
import random
import sys
import threading
import time
import traceback
from collections import Counter

import numpy as np

import foam

COUNTS: Counter = Counter()
OPTIONS = dict(check_period=2, beta2=0.9, epsilon=1e-6, epsilon_max=1e-3, lr=0.01)


def options(dice):
    chosen = dict(OPTIONS, num_threads=dice.choice([1, 2, 3]), max_factor_dim=dice.choice([4, 1024]))
    chosen["policy"] = dice.choice(["foam", "stale", "diagonal_residual", "foam_certified", "sandwich"])
    return chosen


def shapes(dice):
    return [tuple(dice.randint(1, 12) for _ in range(dice.randint(0, 3))) for _ in range(dice.randint(1, 4))]


def in_threads(work, count):
    """Runs `work(number)` on threads; an exception that none of them may have ends the case."""
    failed = []

    def run(number):
        try:
            work(number)
        except BaseException:  # noqa: BLE001 - it is raised again below
            failed.append(traceback.format_exc())

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
        assert not thread.is_alive(), "a thread hangs"
    assert not failed, failed[0]


# --- NumPy ----------------------------------------------------------------------------------------------------------


def numpy_case(dice):
    numbers = np.random.default_rng(dice.getrandbits(32))
    sizes, chosen = shapes(dice), options(dice)

    def arrays():
        rng = np.random.default_rng(7)
        return {f"p{i}": rng.standard_normal(s).astype(np.float32).reshape(s) for i, s in enumerate(sizes)}

    grads = [
        {f"p{i}": numbers.standard_normal(s).astype(np.float32).reshape(s) for i, s in enumerate(sizes)}
        for _ in range(8)
    ]
    own, twin = arrays(), arrays()
    optimizer, other = foam.Optimizer(own, **chosen), foam.Optimizer(twin, **dict(chosen, num_threads=1))
    for grad in grads:
        kind = dice.randrange(6)
        before, state = {k: v.tobytes() for k, v in own.items()}, optimizer.save_memory()
        if kind == 0:  # something that has to be refused
            name = dice.choice(list(own))
            bad = dict(grad)
            bad[name] = dice.choice([
                np.full(own[name].shape, np.nan, np.float32),
                np.zeros(own[name].shape + (2,), np.float32),
                np.zeros(own[name].shape, np.int32),
                "text",
                object(),
            ])
            try:
                optimizer.step(bad)
            except (foam.FoamError, TypeError, ValueError):
                COUNTS["refused"] += 1
            else:
                raise AssertionError(f"{bad[name]!r} was taken as a gradient")
            assert {k: v.tobytes() for k, v in own.items()} == before, "a refused step changed a parameter"
            assert optimizer.save_memory() == state, "a refused step changed the state"
        elif kind == 1:  # two threads on one optimizer: whole steps or none
            taken = []

            def work(_, grad=grad):
                try:
                    optimizer.step(grad)
                    taken.append(1)
                except foam.BusyError:
                    COUNTS["busy"] += 1

            in_threads(work, 3)
            for _ in taken:
                other.step(grad)
            COUNTS["steps"] += len(taken)
        elif kind == 2:  # garbage collection in the middle
            gc.collect()
            optimizer.step({k: v.copy() for k, v in grad.items()})
            other.step(grad)
            COUNTS["steps"] += 1
        elif kind == 3:  # a state travels
            moved = foam.Optimizer(own, **chosen)
            moved.load_memory(pickle.loads(pickle.dumps(state)))
            optimizer.close()
            optimizer = moved
            COUNTS["moved"] += 1
        else:
            optimizer.step(grad)
            other.step(grad)
            COUNTS["steps"] += 1
    assert all(own[k].tobytes() == twin[k].tobytes() for k in own), "other parameters than the twin's"
    moved = foam.Optimizer(arrays(), **dict(chosen, num_threads=1))
    moved.load_memory(optimizer.save_memory())
    assert moved.save_memory() == other.save_memory(), "another state than the twin's"
    # Closing while others step.
    racing = foam.Optimizer(arrays(), **chosen)

    def race(number):
        try:
            if number == 0:
                racing.close()
            else:
                racing.step(grads[0])
        except (foam.BusyError, foam.InvalidArgumentError):
            pass

    in_threads(race, 3)
    COUNTS["closed while stepping"] += 1


# --- PyTorch --------------------------------------------------------------------------------------------------------


def torch_case(dice):
    import torch
    from foam.torch import FOAM

    torch.manual_seed(dice.getrandbits(31))

    class Sub(torch.Tensor):
        """A subclass, as libraries for sharding and quantization have."""

    def network():
        torch.manual_seed(3)
        first, second = torch.nn.Linear(6, 5), torch.nn.Linear(5, 6)
        model = torch.nn.Sequential(first, torch.nn.Tanh(), second)
        if tied:
            second.weight = torch.nn.Parameter(second.weight.detach().clone())
            model.tied = first.weight
        return model

    tied = dice.random() < 0.3
    chosen = options(dice)

    def groups(model):
        parameters = list(model.parameters())
        half = len(parameters) // 2
        return [{"params": parameters[:half], "lr": 0.02}, {"params": parameters[half:]}]

    own, twin = network(), network()
    optimizer, other = FOAM(groups(own), **chosen), FOAM(groups(twin), **dict(chosen, num_threads=1))

    def backward(model, x):
        model.zero_grad(set_to_none=True)
        model(x).square().sum().backward()

    def bits(model):
        return [p.detach().numpy().tobytes() for p in model.parameters()]

    for number in range(8):
        x = torch.randn(7, 6)
        backward(own, x)
        backward(twin, x)
        kind = dice.randrange(8)
        if kind == 0:  # refused as a whole
            before = bits(own)
            victim = dice.choice([p for p in own.parameters() if p.grad is not None])
            good = victim.grad
            victim.grad = torch.full_like(victim, float("nan"))
            try:
                optimizer.step()
            except foam.FoamError:
                COUNTS["refused"] += 1
            else:
                raise AssertionError("NaN was taken")
            assert bits(own) == before, "a refused step changed a parameter"
            victim.grad = good
        elif kind == 1:  # the optimizer is copied
            optimizer_state = copy.deepcopy(optimizer.state_dict())
            optimizer = FOAM(groups(own), **chosen)
            optimizer.load_state_dict(optimizer_state)
            COUNTS["copied"] += 1
        elif kind == 2:  # pickled with its model
            buffer = io.BytesIO()
            torch.save((own, optimizer), buffer)
            buffer.seek(0)
            own, optimizer = torch.load(buffer, weights_only=False)
            backward(own, x)
            COUNTS["pickled"] += 1
        elif kind == 3:  # deep copies share nothing
            copied_model, copied = copy.deepcopy((own, optimizer))
            backward(copied_model, x)
            before = bits(own)
            copied.step()
            assert bits(own) == before, "a copy stepped its original"
            COUNTS["copied"] += 1
        elif kind == 4:  # tensors move
            for p in own.parameters():
                p.data = p.data.clone()
                if p.grad is not None:
                    p.grad = p.grad.clone()
            gc.collect()
            COUNTS["moved"] += 1
        elif kind == 5:  # a gradient of a subclass
            for p in own.parameters():
                if p.grad is not None:
                    p.grad = p.grad.as_subclass(Sub)
            COUNTS["subclasses"] += 1
        elif kind == 6 and number > 0:  # another size is refused by name, once a step has been taken
            victim = next(p for p in own.parameters() if p.grad is not None)
            kept, grad = victim.data, victim.grad
            before = bits(own)
            victim.grad = None
            victim.data = torch.zeros(3, 2)
            victim.grad = torch.ones(3, 2)
            try:
                optimizer.step()
            except foam.FoamError:
                COUNTS["refused"] += 1
            else:
                raise AssertionError("a parameter of another size was taken")
            victim.grad = None
            victim.data = kept
            victim.grad = grad
            assert bits(own) == before, "a refused step changed a parameter"
        optimizer.step()
        other.step()
        COUNTS["steps"] += 2
        assert bits(own) == bits(twin), f"other parameters than the twin's after kind {kind}"
    if dice.random() < 0.3:
        many = [torch.nn.Parameter(torch.randn(40, 40)) for _ in range(20)]
        crowd = FOAM([{"params": [p]} for p in many], **dict(chosen, num_threads=4, max_factor_dim=1024))
        for p in many:
            p.grad = torch.randn(40, 40)
        crowd.step()
        crowd.step()
        ours = sum(name.startswith("foam-") for name in thread_names())
        assert ours <= 3 + 2 + 1, f"{ours} threads of the library for 20 groups of 4 threads"
        COUNTS["groups on one pool"] += 20


def thread_names():
    """The names of this process's threads."""
    names = []
    for path in pathlib.Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(OSError):  # one that has ended meanwhile
            names.append(path.read_text())
    return names


# --- JAX ------------------------------------------------------------------------------------------------------------


def jax_case(dice):
    import jax
    import jax.numpy as jnp
    from foam.jax import foam as foam_jax

    rng = np.random.default_rng(dice.getrandbits(32))
    params = {"w": jnp.asarray(rng.standard_normal((6, 5)), jnp.float32), "b": jnp.zeros((5,), jnp.float32)}
    chosen = options(dice)
    lr = chosen.pop("lr")
    optimizer = foam_jax(lr, **chosen)
    step = jax.jit(optimizer.update)
    grads = [jax.tree.map(lambda p: jnp.asarray(rng.standard_normal(p.shape), jnp.float32), params) for _ in range(6)]

    def run(update, travels=False):
        state, own = optimizer.init(params), params
        for grad in grads:
            updates, state = update(grad, state, own)
            own = jax.tree.map(lambda p, u: p + u, own, updates)
            if travels:
                state = copy.deepcopy(pickle.loads(pickle.dumps(jax.device_get(state))))
                gc.collect()
        return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(own)]

    expected = run(step)
    assert run(step, travels=True) == expected, "a state that travelled gives other bits"
    COUNTS["travelled"] += 1
    results = {}
    in_threads(lambda number: results.__setitem__(number, run(step)), 3)
    assert all(result == expected for result in results.values()), "threads give other bits"
    COUNTS["runs compared"] += 4
    bad = dict(grads[0], w=grads[0]["w"].at[0, 0].set(jnp.nan))
    state = optimizer.init(params)
    updates, _ = step(bad, state, params)
    assert all(np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves(updates)), "NaN came through"
    COUNTS["not finite"] += 1
    try:
        optimizer.update({"w": grads[0]["w"][:3], "b": grads[0]["b"]}, state, params)
    except Exception:  # noqa: BLE001 - any error will do, a crash would not
        COUNTS["refused"] += 1
    else:
        raise AssertionError("a gradient of another shape was taken")


CASES = {"numpy": numpy_case, "torch": torch_case, "jax": jax_case}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("layer", choices=CASES)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int)
    parser.add_argument("--seconds", type=float, default=1.0)
    told = parser.parse_args()
    sys.setswitchinterval(1e-5)  # threads change places often
    begun, seed = time.monotonic(), told.first
    while seed - told.first < told.count if told.count is not None else time.monotonic() - begun < told.seconds:
        print(f"@{seed}", flush=True)
        CASES[told.layer](random.Random(seed))
        seed += 1
    for what, number in COUNTS.items():
        print(f"+{what} {number}", flush=True)


if __name__ == "__main__":
    main()

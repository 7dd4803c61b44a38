"""Two parameters and their gradients, for the tests of `foam.Optimizer`."""

import numpy as np

import foam

NAMES = ["matrix", "vector"]
OPTIONS = {"preset": "reference", "lr": 0.02, "check_period": 3, "epsilon": 1e-4, "epsilon_max": 1e-2}


def arrays(seed=0):
    random = np.random.default_rng(seed)
    return {"matrix": random.normal(size=(40, 30)).astype("f4"), "vector": random.normal(size=7).astype("f4")}


def gradients(count, seed=1):
    random = np.random.default_rng(seed)
    return [
        {"matrix": random.normal(size=(40, 30)).astype("f4"), "vector": random.normal(size=7).astype("f4")}
        for _ in range(count)
    ]


def bits(weights):
    return {name: weight.tobytes() for name, weight in weights.items()}


def run(params, grads, **options):
    with foam.Optimizer(params, **{**OPTIONS, "max_factor_dim": 40, **options}) as optimizer:
        for grad in grads:
            optimizer.step(grad)
        return optimizer.stats(), optimizer.factor_stats()

"""Golden traces give the same bits through NumPy arrays, PyTorch tensors and `foam.torch.FOAM`."""

import torch

import foam.torch
from foam import replay
from test_golden import CASES, PRECISIONS


def with_torch_optimizer(case, precision):
    """The weights after the last step through ``foam.torch.FOAM``."""
    weights = [torch.nn.Parameter(torch.from_numpy(weight)) for weight in case.start(precision)]
    options = dict(case.options)
    lr = options.pop("lr")
    if any(case.roots):
        assert len(set(case.roots)) == 1, "one group has one root"
        options["root"] = case.roots[0]
    optimizer = foam.torch.FOAM(weights, lr=lr, preset=case.preset, **options)
    for step in range(1, case.steps + 1):
        for weight, gradient in zip(weights, case.gradients(step, precision)):
            weight.grad = torch.from_numpy(gradient)
        optimizer.step()
    return [weight.detach().numpy() for weight in weights]


@PRECISIONS
@CASES
def test_the_same_bits_through_numpy_and_torch(path, precision):
    case = replay.load(path)
    report, with_numpy = replay.run(case, precision)
    assert report.passed and report.compared > 0
    _, with_torch = replay.run(case, precision, convert=torch.from_numpy)
    for ours, *others in zip(with_numpy, with_torch, with_torch_optimizer(case, precision)):
        assert all(ours.tobytes() == other.tobytes() for other in others)

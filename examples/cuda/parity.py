"""Steps the same model on the CPU and on a GPU, and prints how far they are apart and how long a step takes.

    PYTHONPATH=bindings/python python examples/cuda/parity.py [--device N] [--steps N] [--no-timing]

Needs NumPy, the package foam, and CUDA's driver, cuBLAS and cuSOLVER. The exit status is 1 if a difference is larger
than its tolerance, or the two devices decided differently about an eigendecomposition.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import sys
import time
from typing import Any, Dict, List, Tuple

import numpy as np

import foam

POLICIES = (
    "stale",
    "foam",
    "foam_fixed_epsilon",
    "foam_no_refresh",
    "diagonal_residual",
    "foam_certified",
    "sandwich",
    "grafting_only",
)
#: The forms of SOAP.
FORMS = ("exact", "in_basis")
#: DLPack's code and bits of each type, and the difference that is tolerated, relative to the largest element.
DTYPES = {
    "float32": (2, 32, 1e-4),
    "float64": (2, 64, 1e-9),
    # Two units in the last place: a difference in f32 may tip the rounding.
    "float16": (2, 16, 2.0**-9),
    "bfloat16": (4, 16, 2.0**-6),
}
#: A matrix, one that is cut into blocks, a vector, a tensor of order 3.
SHAPES = {"matrix": (24, 16), "wide": (8, 40), "vector": (12,), "tensor": (6, 5, 4)}


def encoder(width: int) -> List[Tuple[int, ...]]:
    """The weights and biases of a transformer's block."""
    matrices = [(width, width), (width, 3 * width), (width, 4 * width), (4 * width, width)]
    return matrices + [(width,), (3 * width,), (4 * width,), (width,)]


SIZES = {
    "one 256x256": [(256, 256)],
    "one 1024x1024": [(1024, 1024)],
    "ViT-S/16 block": encoder(384),
    "GPT-2 small block": encoder(768),
}


# ---- memory


class Host:
    """Memory of the CPU."""

    device, stream = (1, 0), None

    def __init__(self) -> None:
        self._kept: Dict[int, np.ndarray] = {}

    def allocate(self, size: int) -> int:
        memory = np.empty(max(size, 1), np.uint8)
        self._kept[memory.ctypes.data] = memory
        return memory.ctypes.data

    def free(self, address: int) -> None:
        del self._kept[address]

    def write(self, address: int, data: np.ndarray) -> None:
        ctypes.memmove(address, data.ctypes.data, data.nbytes)

    def read(self, address: int, data: np.ndarray) -> None:
        ctypes.memmove(data.ctypes.data, address, data.nbytes)

    def synchronize(self) -> None:
        pass


class Gpu:
    """Memory and a stream of a GPU, by the driver's own functions."""

    def __init__(self, number: int) -> None:
        try:
            self._driver = ctypes.CDLL("libcuda.so.1")
        except OSError as cause:
            sys.exit(f"no CUDA driver: {cause}")
        self.device = (2, number)
        handle, context, stream = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuInit", 0)
        self._call("cuDeviceGet", ctypes.byref(handle), number)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), handle)
        self._call("cuCtxSetCurrent", context)
        # 1: does not wait for the legacy default stream.
        self._call("cuStreamCreate", ctypes.byref(stream), 1)
        self._handle, self._stream = handle, stream
        self.stream = stream.value

    def close(self) -> None:
        self._call("cuStreamDestroy_v2", self._stream)
        self._call("cuDevicePrimaryCtxRelease_v2", self._handle)

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._driver, name)(*arguments)
        if status != 0:
            text = ctypes.c_char_p()
            self._driver.cuGetErrorString(status, ctypes.byref(text))
            sys.exit(f"{name}: {(text.value or b'unknown error').decode()} ({status})")

    def describe(self) -> str:
        name, version = ctypes.create_string_buffer(256), ctypes.c_int()
        self._call("cuDeviceGetName", name, len(name), self._handle)
        self._call("cuDriverGetVersion", ctypes.byref(version))
        return f"{name.value.decode()}, driver for CUDA {version.value // 1000}.{version.value % 1000 // 10}"

    def allocate(self, size: int) -> int:
        address = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(max(size, 1)))
        return address.value

    def free(self, address: int) -> None:
        self._call("cuMemFree_v2", ctypes.c_uint64(address))

    def write(self, address: int, data: np.ndarray) -> None:
        self._copy("cuMemcpyHtoDAsync_v2", ctypes.c_uint64(address), ctypes.c_void_p(data.ctypes.data), data.nbytes)

    def read(self, address: int, data: np.ndarray) -> None:
        self._copy("cuMemcpyDtoHAsync_v2", ctypes.c_void_p(data.ctypes.data), ctypes.c_uint64(address), data.nbytes)

    def _copy(self, name: str, target: Any, source: Any, size: int) -> None:
        self._call(name, target, source, ctypes.c_size_t(size), self._stream)
        self.synchronize()

    def synchronize(self) -> None:
        self._call("cuStreamSynchronize", self._stream)


class Array:
    """A tensor in either memory, as anything with DLPack is one."""

    def __init__(self, memory: Any, dtype: str, values: np.ndarray) -> None:
        from foam._structs import Tensor

        self._memory, self._dtype, self.shape = memory, dtype, values.shape
        bits = encode(values, dtype)
        self._bits = bits.dtype
        self._address = memory.allocate(bits.nbytes)
        memory.write(self._address, bits)
        sizes = (ctypes.c_int64 * max(values.ndim, 1))(*values.shape)
        # A DLManagedTensor: the tensor, then two pointers that a borrower does not use.
        self._managed = (ctypes.c_uint8 * (ctypes.sizeof(Tensor) + 16))()
        tensor = Tensor.from_buffer(self._managed)
        tensor.data = self._address
        tensor.device.device_type, tensor.device.device_id = memory.device
        tensor.ndim = values.ndim
        tensor.dtype.code, tensor.dtype.bits = DTYPES[dtype][:2]
        tensor.dtype.lanes = 1
        tensor.shape = ctypes.cast(sizes, ctypes.POINTER(ctypes.c_int64))
        self._kept = (sizes, tensor)

    def __dlpack_device__(self) -> Tuple[int, int]:
        return self._memory.device

    def __dlpack__(self, **_: Any) -> Any:
        make = ctypes.pythonapi.PyCapsule_New
        make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return make(ctypes.addressof(self._managed), b"dltensor", None)

    def numpy(self) -> np.ndarray:
        """Its elements in double precision."""
        bits = np.empty(self.shape, self._bits)
        self._memory.read(self._address, bits)
        return decode(bits, self._dtype)

    @property
    def address(self) -> int:
        """Where it lies."""
        return self._address

    def fill(self, values: np.ndarray) -> None:
        """Other values, at the same address."""
        self._memory.write(self._address, encode(values, self._dtype))

    def free(self) -> None:
        self._memory.free(self._address)


def encode(values: np.ndarray, dtype: str) -> np.ndarray:
    """The elements nearest to the values; those of bfloat16, which NumPy does not know, as their bits."""
    if dtype != "bfloat16":
        return np.ascontiguousarray(values.astype(dtype))
    bits = values.astype(np.float32).view(np.uint32)
    return np.ascontiguousarray(((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16))


def decode(bits: np.ndarray, dtype: str) -> np.ndarray:
    """The values of elements."""
    if dtype != "bfloat16":
        return bits.astype(np.float64)
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


# ---- parity


def gradients(steps: int) -> List[Dict[str, np.ndarray]]:
    """Gradients around 1e-2 whose directions drift, so that bases grow stale; the same in every run."""
    random = np.random.default_rng(7)
    scales = {name: 1e-2 * random.lognormal(size=shape) for name, shape in SHAPES.items()}
    result = []
    for step in range(steps):
        drift = 1.0 + 0.05 * step
        result.append({name: drift * scale * random.normal(size=scale.shape) for name, scale in scales.items()})
    return result


def trajectory(memory: Any, policy: str, dtype: str, steps: int) -> Tuple[Dict[str, np.ndarray], List[Dict[str, Any]]]:
    """The parameters and the factors' statistics after some steps."""
    random = np.random.default_rng(11)
    params = {name: Array(memory, dtype, random.normal(size=shape)) for name, shape in SHAPES.items()}
    options: Dict[str, Any] = dict(merge_dims=False, lr=1e-2, beta2=0.98, check_period=3)
    # The eigenvectors of zero eigenvalues are anybody's choice, and diagonal_residual and SOAP go by that choice. At the
    # first check of the policies every statistic has full rank; SOAP gets no basis of a side that is too long for it.
    if policy in POLICIES:
        options.update(preset="reference", policy=policy, epsilon=3e-5, epsilon_max=3e-4, tau=0.5)
        options.update(residual_threshold=0.35, start_step=14, max_factor_dim=32)
    else:
        options.update(preset="soap", soap_form=policy.split()[1], refresh_schedule="fixed", max_precond_dim=16)
    with foam.Optimizer(params, **options) as optimizer:
        for step in gradients(steps):
            grads = {name: Array(memory, dtype, value) for name, value in step.items()}
            optimizer.step(grads, stream=memory.stream)
            optimizer.synchronize()
            memory.synchronize()
            for grad in grads.values():
                grad.free()
        factors = optimizer.factor_stats()
    values = {name: param.numpy() for name, param in params.items()}
    for param in params.values():
        param.free()
    return values, factors


def distance(ours: np.ndarray, theirs: np.ndarray) -> float:
    """The largest difference, relative to the largest element; infinite where either is not finite."""
    if not (np.isfinite(ours).all() and np.isfinite(theirs).all()):
        return float("inf")
    largest = max(float(np.abs(ours).max()), 1e-300)
    return float(np.abs(ours - theirs).max()) / largest


def readings(factors: List[Dict[str, Any]], name: str) -> np.ndarray:
    """One statistic of every factor; those that do not exist are 0."""
    return np.nan_to_num(np.array([float(factor[name]) for factor in factors] or [0.0]), nan=0.0)


def parity(gpu: Gpu, steps: int) -> bool:
    """Prints the table of differences; whether all are tolerable."""
    print(f"\nCPU against GPU after {steps} steps: largest difference, relative to the largest element of the tensor\n")
    print("policy              dtype     parameters   tolerance     epsilon       proxy  decisions          ")
    fine = True
    for policy in (*POLICIES, *(f"soap {form}" for form in FORMS)):
        for dtype, (_, bits, tolerance) in DTYPES.items():
            # Adam in a basis is not smooth in the basis: the rounding of two solvers tips more units than one or two.
            if policy.startswith("soap") and bits == 16:
                tolerance *= 4
            ours, our_factors = trajectory(Host(), policy, dtype, steps)
            theirs, their_factors = trajectory(gpu, policy, dtype, steps)
            apart = max(distance(ours[name], theirs[name]) for name in SHAPES)
            epsilon, proxy = (
                distance(readings(our_factors, name), readings(their_factors, name)) for name in ("epsilon", "proxy")
            )
            branches = [(factor["branch"], factor["evd_calls"]) for factor in our_factors]
            same = branches == [(factor["branch"], factor["evd_calls"]) for factor in their_factors]
            passed = apart <= tolerance and same
            fine &= passed
            numbers = f"{apart:>10.1e}  {tolerance:>10.1e}  {epsilon:>10.1e}  {proxy:>10.1e}"
            words = f"{'the same' if same else 'DIFFERENT'}{'' if passed else '  FAILED'}"
            print(f"{policy:<18}  {dtype:<8}  {numbers}  {words}", flush=True)
    return fine


# ---- timing


def median_step(memory: Any, shapes: List[Tuple[int, ...]], budget: float, **options: Any) -> float:
    """Median milliseconds of a step, each waited for."""
    random = np.random.default_rng(3)
    arrays = [[Array(memory, "float32", 1e-2 * random.normal(size=shape)) for shape in shapes] for _ in range(2)]
    params, grads = arrays
    taken: List[float] = []
    with foam.Optimizer(params, preset="reference", epsilon=1e-5, epsilon_max=1e30, merge_dims=False, **options) as optimizer:

        def step() -> None:
            optimizer.step(grads, stream=memory.stream)
            memory.synchronize()

        for _ in range(3):
            step()
        end = time.perf_counter() + budget
        while len(taken) < 5 or (len(taken) < 200 and time.perf_counter() < end):
            start = time.perf_counter()
            step()
            taken.append(1e3 * (time.perf_counter() - start))
    for array in params + grads:
        array.free()
    return statistics.median(taken)


#: What a step does in each column: no check, a check that keeps every basis, a check that decomposes every factor.
KINDS: Dict[str, Dict[str, Any]] = {
    "plain": dict(policy="stale", refresh_schedule="fixed", check_period=10**9, start_step=1),
    "check": dict(policy="foam_no_refresh", check_period=1),
    "EVD": dict(policy="stale", check_period=1),
}


def timing(gpu: Gpu) -> None:
    """Prints the table of milliseconds."""
    print("\nMedian milliseconds of a step, f32, blocks up to 1024, waited for; plain: no check, check: every basis is")
    print("kept, EVD: every factor is decomposed\n")
    print("work               " + "".join(f"{f'{where} {kind}':>12}" for where in ("CPU", "GPU") for kind in KINDS))
    for name, shapes in SIZES.items():
        cells = []
        for memory in (Host(), gpu):
            for options in KINDS.values():
                cells.append(f"{median_step(memory, shapes, 2.0, **options):>12.3f}")
        print(f"{name:<19}" + "".join(cells), flush=True)


def main() -> int:
    """Runs both; the result is the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", type=int, default=0, help="the GPU's number; default 0")
    parser.add_argument("--steps", type=int, default=36, help="steps of each comparison; default 36")
    parser.add_argument("--no-timing", action="store_true", help="compare only")
    chosen = parser.parse_args()
    gpu = Gpu(chosen.device)
    print(f"library: {foam.build_info()}\ndevice:  {gpu.describe()}")
    fine = parity(gpu, chosen.steps)
    if not chosen.no_timing:
        if "cudasim" in gpu.describe():
            print("\nno timing: this is a simulator, whose speed says nothing about a GPU's")
        else:
            timing(gpu)
    gpu.close()
    print(f"\nparity: {'passed' if fine else 'FAILED'}")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())

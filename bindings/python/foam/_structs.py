"""The structs and constants of ``foam.h``, as ctypes has them.

``tests/python/test_structs.py`` holds every size and offset against ``include/foam.layout`` and every constant
against ``include/foam.h``.
"""

from __future__ import annotations

import ctypes
from ctypes import c_double, c_int32, c_int64, c_size_t, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p

#: Version of the ABI that these structs describe.
ABI_MAJOR = 0
ABI_MINOR = 1

OK = 0

#: ``FOAM_*`` statuses by number.
STATUS_NAMES = (
    "FOAM_OK",
    "FOAM_INVALID_ARGUMENT",
    "FOAM_UNSUPPORTED",
    "FOAM_SHAPE_MISMATCH",
    "FOAM_OUT_OF_MEMORY",
    "FOAM_DEVICE_ERROR",
    "FOAM_NOT_FINITE",
    "FOAM_NO_CONVERGENCE",
    "FOAM_IO_ERROR",
    "FOAM_BAD_CHECKPOINT",
    "FOAM_COLLECTIVE_FAILED",
    "FOAM_CANCELLED",
    "FOAM_BUSY",
    "FOAM_POISONED",
    "FOAM_PANIC",
)

MESSAGE_SIZE = 1000

DEVICE_CPU = 1
DEVICE_CUDA = 2
DEVICE_CUDA_HOST = 3
DEVICE_CUDA_MANAGED = 13

DTYPE_INT = 0
DTYPE_UINT = 1
DTYPE_FLOAT = 2
DTYPE_BFLOAT = 4

PARAM_GRAFTING_ONLY = 1

#: ``FOAM_STEP_VALIDATE``: a step is checked, not taken.
STEP_VALIDATE = 1

#: ``FOAM_API_VERSION``: the version of the table of functions that is asked for.
API_VERSION = 1

STACK_GRAFTING_ONLY = 1
CADENCE_PAPER = 1
PRECONDITIONER_SOAP = 1
SCHEDULE_FRONT_LOADED = 1
SCHEDULE_GEOMETRIC = 2
SCHEDULE_COMBINED = 4
STACK_MAX_NDIM = 8
STACK_BUFFER_NDIM = 9
STACK_NAME_SIZE = 32
BLOCK_MAX_NDIM = 8
PORT_DTYPES = 4

VERB_ACCUMULATE = 0
VERB_CHECK = 1
VERB_APPLY = 2
PORT_READ = 1
PORT_WRITTEN = 2
RECORD_REAL = 0
RECORD_WHOLE = 1

#: ``FOAM_INFO_*``: what a verb says about a block of a stack.
INFO_IDLE = 1
INFO_NOT_FINITE = 2
INFO_LEFT_OUT = 4
INFO_FELL_BACK = 8

LOG_WARNING = 1
LOG_INFO = 2

#: ``FOAM_BRANCH_*`` by number: what a factor's last check did.
BRANCHES = (
    "none",
    "evd_first",
    "evd_stale",
    "reuse_raised",
    "reuse_lowered",
    "reuse_floor",
    "evd_cap",
    "evd_threshold",
    "reuse_clipped",
    "reuse_same",
    "qr_short",
    "evd_failed",
)

#: ``FOAM_FINDING_*`` by the number of the bit: what keeps a configuration from working.
FINDINGS = ("noise_above_tau", "epsilon_at_cap", "always_refreshes", "damping_dominates", "refreshes_fail")

#: ``FOAM_FACTOR_*``: the matrices of a factor.
FACTOR_MATRICES = {"statistic": 0, "basis": 1, "spectrum": 2, "inverse_root": 3}

LOG_FUNCTION = ctypes.CFUNCTYPE(None, c_void_p, c_int32, ctypes.c_char_p)


class Error(ctypes.Structure):
    """``foam_error``."""

    _fields_ = [
        ("struct_size", c_uint32),
        ("code", c_int32),
        ("param_index", c_int64),
        ("axis", c_int32),
        ("native_code", c_int32),
        ("message", ctypes.c_char * MESSAGE_SIZE),
    ]

    def __init__(self) -> None:
        super().__init__(ctypes.sizeof(Error), OK, -1, -1, 0, b"")


class Dtype(ctypes.Structure):
    """``foam_dtype``, DLPack's ``DLDataType``."""

    _fields_ = [("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16)]


class Device(ctypes.Structure):
    """``foam_device``, DLPack's ``DLDevice``."""

    _fields_ = [("device_type", c_int32), ("device_id", c_int32)]


class Tensor(ctypes.Structure):
    """``foam_tensor``, DLPack's ``DLTensor``."""

    _fields_ = [
        ("data", c_void_p),
        ("device", Device),
        ("ndim", c_int32),
        ("dtype", Dtype),
        ("shape", ctypes.POINTER(c_int64)),
        ("strides", ctypes.POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


class Config(ctypes.Structure):
    """``foam_config``."""

    _fields_ = (
        [("struct_size", c_uint32), ("flags", c_uint32)]
        + [
            (name, c_int32)
            for name in (
                "policy",
                "cadence",
                "grafting",
                "statistic_dtype",
                "nonfinite",
                "negative_eigenvalues",
                "device_type",
                "device_id",
                "bias_correction",
                "merge_dims",
                "normalized_grafting",
                "nesterov",
                "ema_momentum",
                "nadam",
                "decoupled_weight_decay",
                "noise_floor",
                "inject_fault",
                "reserved",
            )
        ]
        + [
            (name, c_int64)
            for name in ("check_period", "start_step", "max_factor_dim", "num_threads", "inject_fault_step")
        ]
        + [
            (name, c_double)
            for name in (
                "root",
                "exponent_multiplier",
                "beta1",
                "beta2",
                "epsilon",
                "epsilon_left",
                "epsilon_right",
                "epsilon_max",
                "tau",
                "residual_threshold",
                "grafting_beta2",
                "grafting_epsilon",
                "momentum",
                "weight_decay",
                "lr",
            )
        ]
        + [
            ("log", LOG_FUNCTION),
            ("log_user", c_void_p),
            ("allocate", c_void_p),
            ("deallocate", c_void_p),
            ("allocator_user", c_void_p),
            ("epsilon_mode", c_int32),
            ("precondition_1d", c_int32),
            ("keep_matrix", c_int32),
            ("preconditioner", c_int32),
            ("soap_form", c_int32),
            ("refresh_schedule", c_int32),
            ("normalize_grads", c_int32),
            ("refresh_method", c_int32),
        ]
        + [(name, c_int64) for name in ("max_precond_dim", "front_period", "front_steps")]
        + [(name, c_double) for name in ("refresh_growth", "kappa_threshold")]
        + [(name, c_int64) for name in ("correction_period", "statistics_period")]
        + [(name, c_int32) for name in ("keep_inverse_root", "qr_track", "matmul_precision", "even_blocks")]
        + [("refresh_delay", c_int64)]
        + [(name, c_int32) for name in ("share_squares", "reserved_2")]
    )


class Param(ctypes.Structure):
    """``foam_param``."""

    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("name", ctypes.c_char_p),
        ("shape", ctypes.POINTER(c_int64)),
        ("ndim", c_int32),
        ("dtype", Dtype),
        ("lr_scale", c_double),
        ("weight_decay_scale", c_double),
        ("root", c_double),
        ("shard_axis", c_int64),
        ("shard_start", c_int64),
        ("shard_length", c_int64),
    ]


class StepArgs(ctypes.Structure):
    """``foam_step_args``."""

    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("count", c_size_t),
        ("params", ctypes.POINTER(Tensor)),
        ("grads", ctypes.POINTER(Tensor)),
        ("stream", c_void_p),
        ("skipped", ctypes.POINTER(c_int32)),
        ("lr", c_double),
        ("grad_scale", c_double),
        ("after", ctypes.POINTER(c_void_p)),
        ("after_count", c_size_t),
    ]


class StatsInfo(ctypes.Structure):
    """``foam_stats_info``."""

    _fields_ = (
        [("struct_size", c_uint32), ("flags", c_uint32)]
        + [
            (name, c_uint64)
            for name in (
                "steps",
                "skipped_steps",
                "params",
                "blocks",
                "factors",
                "checks",
                "evd_calls",
                "reuse_calls",
                "proxy_calls",
                "epsilon_updates",
                "cap_refreshes",
                "residual_calls",
                "failed_evds",
                "fallback_double",
                "fallback_svd",
                "fallback_stale",
                "state_bytes_host",
                "state_bytes_device",
                "workspace_bytes",
                "threads",
            )
        ]
        + [
            ("seconds_" + phase, c_double)
            for phase in ("inspect", "accumulate", "sense", "refresh", "redamp", "apply", "total")
        ]
        + [
            (name, c_uint64)
            for name in ("bound_exceeded", "bound_average", "bound_spectral", "bound_sandwich")
        ]
        + [
            (name, c_uint64)
            for name in ("collectives", "bytes_sent", "bytes_received", "plain_steps")
        ]
        + [(name, c_uint64) for name in ("qr_steps", "qr_refreshes", "qr_fallbacks", "findings", "qr_tracked", "delayed_checks")]
    )


class FactorInfo(ctypes.Structure):
    """``foam_factor_info``."""

    _fields_ = (
        [("struct_size", c_uint32), ("last_branch", c_int32)]
        + [(name, c_int64) for name in ("param_index", "block", "axis", "dim")]
        + [
            (name, c_double)
            for name in (
                "root",
                "epsilon_base",
                "epsilon",
                "proxy",
                "max_proxy",
                "relative_change",
                "alpha",
                "gap_bound",
                "residual",
                "noise_floor",
                "eigenvalue_min",
                "eigenvalue_max",
            )
        ]
        + [
            (name, c_uint64)
            for name in (
                "last_refresh",
                "last_check",
                "checks",
                "evd_calls",
                "reuse_calls",
                "proxy_calls",
                "epsilon_updates",
                "cap_refreshes",
                "residual_calls",
                "failed_evds",
                "fallback_double",
                "fallback_svd",
                "fallback_stale",
                "bound_exceeded",
                "bound_average",
                "bound_spectral",
                "bound_sandwich",
            )
        ]
        + [("kappa", c_double), ("orthogonality", c_double)]
        + [(name, c_uint64) for name in ("qr_steps", "qr_refreshes", "qr_fallbacks")]
        + [(name, c_uint64) for name in ("findings", "qr_tracked", "recent_refreshes", "pending_since", "delayed_checks")]
    )


class Stack(ctypes.Structure):
    """``foam_stack``."""

    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("shape", ctypes.POINTER(c_int64)),
        ("ndim", c_int32),
        ("dtype", Dtype),
        ("count", c_int64),
        ("weight_decay_scale", c_double),
        ("root", c_double),
    ]


class StackBuffer(ctypes.Structure):
    """``foam_stack_buffer``."""

    _fields_ = [
        ("struct_size", c_uint32),
        ("kind", c_int32),
        ("axis", c_int32),
        ("ndim", c_int32),
        ("dtype", Dtype),
        ("reserved", c_uint32),
        ("bytes", c_uint64),
        ("shape", c_int64 * STACK_BUFFER_NDIM),
        ("name", ctypes.c_char * STACK_NAME_SIZE),
    ]


class StackArgs(ctypes.Structure):
    """``foam_stack_args``."""

    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("state", ctypes.POINTER(Tensor)),
        ("state_out", ctypes.POINTER(Tensor)),
        ("state_count", c_size_t),
        ("grads", ctypes.POINTER(Tensor)),
        ("params", ctypes.POINTER(Tensor)),
        ("active", ctypes.POINTER(Tensor)),
        ("info_in", ctypes.POINTER(Tensor)),
        ("info", ctypes.POINTER(Tensor)),
        ("update", ctypes.POINTER(Tensor)),
        ("workspace", c_void_p),
        ("workspace_size", c_size_t),
        ("stream", c_void_p),
        ("scale", c_double),
        ("grad_scale", c_double),
    ]


class BlockInfo(ctypes.Structure):
    """``foam_block_info``."""

    _fields_ = (
        [("struct_size", c_uint32), ("ndim", c_int32)]
        + [(name, c_int64) for name in ("param_index", "block", "stack", "offset", "elements", "factors")]
        + [(name, c_uint64) for name in ("step_cost", "check_cost", "refresh_cost", "state_bytes")]
        + [("shape", c_int64 * BLOCK_MAX_NDIM), ("strides", c_int64 * BLOCK_MAX_NDIM)]
        + [("owner", c_int64), ("cost", c_uint64)]
    )


class StackPort(ctypes.Structure):
    """``foam_stack_port``."""

    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("state", c_int32),
        ("ndim", c_int32),
        ("dtype_count", c_int32),
        ("reserved", c_uint32),
        ("dtypes", Dtype * PORT_DTYPES),
        ("shape", c_int64 * STACK_BUFFER_NDIM),
        ("name", ctypes.c_char * STACK_NAME_SIZE),
    ]


class RecordField(ctypes.Structure):
    """``foam_record_field``."""

    _fields_ = [
        ("struct_size", c_uint32),
        ("kind", c_int32),
        ("word", c_int32),
        ("words", c_int32),
        ("name", ctypes.c_char * STACK_NAME_SIZE),
    ]


#: ``FOAM_COMM_IN_PLACE``: ``all_gatherv`` also takes bytes that lie where they belong among those that come in.
COMM_IN_PLACE = 1

#: ``foam_all_to_allv_fn`` and ``foam_all_gatherv_fn``.
ALL_TO_ALL_FUNCTION = ctypes.CFUNCTYPE(
    c_int32, c_void_p, c_void_p, ctypes.POINTER(c_uint64), c_void_p, ctypes.POINTER(c_uint64), c_void_p
)
ALL_GATHER_FUNCTION = ctypes.CFUNCTYPE(
    c_int32, c_void_p, c_void_p, c_uint64, c_void_p, ctypes.POINTER(c_uint64), c_void_p
)


class Comm(ctypes.Structure):
    """``foam_comm``."""

    _fields_ = [
        ("struct_size", c_uint32),
        ("rank", c_int32),
        ("size", c_int32),
        ("flags", c_uint32),
        ("user", c_void_p),
        ("all_to_allv", ALL_TO_ALL_FUNCTION),
        ("all_gatherv", ALL_GATHER_FUNCTION),
    ]


class StatePart(ctypes.Structure):
    """``foam_state_part``."""

    _fields_ = [("offset", c_uint64), ("bytes", c_uint64), ("data", c_void_p)]


#: The functions of ``foam_api`` in order, without ``foam_``. Later versions only append.
API_FUNCTIONS = (
    "abi_version",
    "build_info",
    "status_name",
    "config_init",
    "config_set",
    "config_get",
    "config_validate",
    "config_check_due",
    "param_init",
    "create",
    "destroy",
    "synchronize",
    "step_args_init",
    "step",
    "set_option",
    "get_option",
    "stats",
    "factor_stats",
    "factor_read",
    "exact_gap",
    "plan_blocks",
    "blocks",
    "save_file",
    "load_file",
    "save_memory",
    "load_memory",
    "stack_init",
    "stack_layout",
    "stack_ports",
    "record_fields",
    "stack_workspace",
    "stack_reset",
    "stack_trim",
    "stack_args_init",
    "stack_accumulate",
    "stack_check",
    "stack_apply",
    "xla_accumulate",
    "xla_check",
    "xla_apply",
    "xla_accumulate_cuda",
    "xla_check_cuda",
    "xla_apply_cuda",
    "cuda_probe",
    "create_ranks",
    "plan_owners",
    "param_state_bytes",
    "read_states",
    "write_states",
    "step_together",
    "diagnosis",
    "diagnose",
)


class Api(ctypes.Structure):
    """``foam_api``, the table of all functions, as addresses."""

    _fields_ = [("struct_size", c_uint32), ("version", c_uint32)] + [(name, c_void_p) for name in API_FUNCTIONS]


#: Each struct under its name in the header.
STRUCTS = {
    "foam_error": Error,
    "foam_dtype": Dtype,
    "foam_device": Device,
    "foam_tensor": Tensor,
    "foam_config": Config,
    "foam_param": Param,
    "foam_step_args": StepArgs,
    "foam_stats_info": StatsInfo,
    "foam_factor_info": FactorInfo,
    "foam_stack": Stack,
    "foam_stack_buffer": StackBuffer,
    "foam_stack_args": StackArgs,
    "foam_block_info": BlockInfo,
    "foam_stack_port": StackPort,
    "foam_record_field": RecordField,
    "foam_comm": Comm,
    "foam_state_part": StatePart,
    "foam_api": Api,
}

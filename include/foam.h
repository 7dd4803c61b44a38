/*
 * foam.h: the C interface of libfoam, the FOAM optimizer (Shampoo whose damping and eigendecomposition
 * frequency are controlled by a measured error).
 *
 * Generated from src/abi by cbindgen; do not edit. C11 and C++17.
 *
 * In short: foam_config_init, foam_param_init for each parameter, foam_create; then, for each training
 * step, foam_step_args_init and foam_step; at the end, foam_destroy.
 *
 * Frameworks that keep state in plain buffers use stacks instead: foam_stack_init, foam_stack_layout and
 * foam_stack_reset; then, for each step, foam_stack_accumulate, foam_stack_check and foam_stack_apply.
 *
 * Threads. A handle may be used from any thread, by one call at a time. A call that overlaps another one
 * on the same handle returns FOAM_BUSY and changes nothing. Different handles are independent. Functions
 * that take no handle may be called at any time. Callbacks run on the thread that is inside the call; a
 * callback that calls back into its own handle gets FOAM_BUSY.
 *
 * Ownership. The library owns what foam_create returns, until foam_destroy. Everything else is the
 * caller's and is borrowed for the length of the call only: configurations, names, shapes, tensors,
 * errors. Strings that the library returns (foam_build_info, foam_status_name) are static.
 *
 * Errors. Every call that can fail returns a foam_status and takes, as its last argument, a foam_error or
 * NULL. Arguments are checked before anything is written: a call that fails leaves its outputs (unless its
 * comment says otherwise), the parameters and the optimizer's state as they were. The one exception is
 * FOAM_PANIC, an internal error: it poisons the handle, and the parameters of that step are then undefined.
 * What the library has to say goes to the log callback.
 *
 * struct_size. Every struct that may grow starts with it: set it to sizeof, or let the _init function do
 * so. A struct that is shorter than the library's (an older caller) is completed with defaults. A longer
 * one (a newer caller) is accepted if the fields that the library does not know are zero, and refused
 * with FOAM_UNSUPPORTED otherwise. A field counts if it lies within struct_size as a whole.
 *
 * Buffers. Nothing is copied: foam_step updates the parameters in place and only reads the gradients.
 * Within one step no parameter may overlap another parameter or a gradient.
 *
 * Floating point. Every call computes in the standard environment (round to nearest, subnormal numbers kept,
 * no traps), on all threads, and gives the caller's back: rounding modes, flags and traps of the caller change
 * no result and stop no step. Callbacks run in the standard environment.
 *
 * Stack. A thread that calls needs no more than FOAM_THREAD_STACK_SIZE bytes of stack.
 *
 * Plugins. A host that must run without the library links nothing: dlopen, dlsym("foam_get_api"), and every
 * function is in the table foam_api. examples/plugin is such a host.
 *
 * Streams. foam_step_args.stream is reserved for CUDA handles; the CPU ignores it.
 */

#ifndef FOAM_H
#define FOAM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/** Major version of the ABI that this header describes; it changes when something is removed. */
#define FOAM_ABI_MAJOR 0

/** Minor version of the ABI; it changes when something is added. */
#define FOAM_ABI_MINOR 1

/** Result of every call that can fail: `FOAM_OK` or one of the codes below. */
typedef int32_t foam_status;

/** The call did what it says. */
#define FOAM_OK 0

/** An argument is NULL, out of range, or contradicts another. */
#define FOAM_INVALID_ARGUMENT 1

/** A legal request that this library or device does not serve. */
#define FOAM_UNSUPPORTED 2

/** A tensor's shape, dtype or device is not the one declared at creation. */
#define FOAM_SHAPE_MISMATCH 3

/** Memory for the state could not be had. */
#define FOAM_OUT_OF_MEMORY 4

/** The device reported an error; `native_code` holds its code. */
#define FOAM_DEVICE_ERROR 5

/** A gradient is not finite, or its square overflows the statistics. */
#define FOAM_NOT_FINITE 6

/** An eigendecomposition failed on every path (diagnostics only: a step never returns it). */
#define FOAM_NO_CONVERGENCE 7

/** A file could not be read or written. */
#define FOAM_IO_ERROR 8

/** A checkpoint is truncated, foreign, or belongs to another model. */
#define FOAM_BAD_CHECKPOINT 9

/** A collective of `foam_comm` failed, or did not deliver; the message says whether parameters were written. */
#define FOAM_COLLECTIVE_FAILED 10

/** The caller asked to stop (reserved). */
#define FOAM_CANCELLED 11

/** Another call is inside the same handle. */
#define FOAM_BUSY 12

/** An earlier panic left the handle unusable; only statistics and destroy work. */
#define FOAM_POISONED 13

/** A panic was caught at the boundary; the handle, if any, is now poisoned. */
#define FOAM_PANIC 14

/** Size of `foam_error.message`, with its final NUL. */
#define FOAM_MESSAGE_SIZE 1000

/**
 * What went wrong, in the caller's own memory. Pass NULL if you do not want it.
 *
 * Set `struct_size` (or start from `FOAM_ERROR_INIT`) before the first call. A failed call fills
 * the record; a successful call sets `code` to `FOAM_OK` and empties the message.
 */
typedef struct foam_error {
    /** Bytes of this struct, set by the caller. */
    uint32_t struct_size;
    /** The status that the call returned. */
    foam_status code;
    /** Index of the parameter concerned, or -1. */
    int64_t param_index;
    /** Axis of the block concerned, or -1. */
    int32_t axis;
    /** Error code of the operating system or the device, or 0. */
    int32_t native_code;
    /** A sentence for a person, NUL-terminated UTF-8. */
    char message[FOAM_MESSAGE_SIZE];
} foam_error;

/** An empty record to start from: `foam_error error = FOAM_ERROR_INIT;` */
#define FOAM_ERROR_INIT { sizeof(foam_error), 0, -1, -1, 0, {0} }

/** Host memory. */
#define FOAM_DEVICE_CPU 1

/** CUDA device memory. */
#define FOAM_DEVICE_CUDA 2

/** Pinned host memory, used as host memory. */
#define FOAM_DEVICE_CUDA_HOST 3

/** CUDA managed memory. */
#define FOAM_DEVICE_CUDA_MANAGED 13

/** dtype code of i32 (only in calls on stacks). */
#define FOAM_DTYPE_INT 0

/** dtype code of u32 and u8 (only in calls on stacks). */
#define FOAM_DTYPE_UINT 1

/** dtype code of f16, f32 and f64. */
#define FOAM_DTYPE_FLOAT 2

/** dtype code of bf16. */
#define FOAM_DTYPE_BFLOAT 4

/** DLPack's `DLDataType`: f32 is {2,32,1}, f64 {2,64,1}, f16 {2,16,1}, bf16 {4,16,1}. */
typedef struct foam_dtype {
    /** `FOAM_DTYPE_*`. */
    uint8_t code;
    /** Bits of one element. */
    uint8_t bits;
    /** Always 1. */
    uint16_t lanes;
} foam_dtype;

/** DLPack's `DLDevice`. */
typedef struct foam_device {
    /** One of `FOAM_DEVICE_*`. */
    int32_t device_type;
    /** Ordinal of the device. */
    int32_t device_id;
} foam_device;

/**
 * A tensor, borrowed for the call; byte-identical to DLPack's `DLTensor`, so that a `DLTensor *`
 * passes by cast. The elements start at `data + byte_offset` and must be row-major contiguous
 * (`strides` may be NULL, or say so; strides of dimensions of size 1 do not matter).
 */
typedef struct foam_tensor {
    /** The elements' allocation; NULL in a gradient means "takes no part in this step". */
    void *data;
    /** Where `data` lives. */
    foam_device device;
    /** Number of dimensions. */
    int32_t ndim;
    /** Type of an element. */
    foam_dtype dtype;
    /** `ndim` sizes. */
    int64_t *shape;
    /** `ndim` strides in elements, or NULL for row-major contiguous. */
    int64_t *strides;
    /** Bytes from `data` to the first element. */
    uint64_t byte_offset;
} foam_tensor;

/** An eigendecomposition at every check (Algorithm 2). */
#define FOAM_POLICY_STALE 0

/** The proxy steers epsilon; refresh when it would pass `epsilon_max` (Algorithm 3). */
#define FOAM_POLICY_FOAM 1

/** The proxy decides about the refresh, epsilon stays at its base. */
#define FOAM_POLICY_FOAM_FIXED_EPSILON 2

/** Epsilon is steered and capped; no eigendecomposition after the first. */
#define FOAM_POLICY_FOAM_NO_REFRESH 3

/** Refresh when the off-diagonal residual passes `residual_threshold`. */
#define FOAM_POLICY_DIAGONAL_RESIDUAL 4

/** The smallest epsilon whose proven gap bound is at most `tau`; refresh when there is none. */
#define FOAM_POLICY_FOAM_CERTIFIED 5

/** No preconditioner: the grafted method alone. */
#define FOAM_POLICY_GRAFTING_ONLY 6

/** The spectrum is corrected at every check; refresh when the proven sandwich bound of the gap passes `tau`. */
#define FOAM_POLICY_SANDWICH 7

/** `epsilon`, `epsilon_max` and `grafting_epsilon` have the units of the paper. */
#define FOAM_EPSILON_ABSOLUTE 0

/**
 * `epsilon` and `epsilon_max` are shares of a factor's largest eigenvalue, `grafting_epsilon` of the gradient's
 * root mean square: nothing depends on the scale of the loss.
 */
#define FOAM_EPSILON_RELATIVE 1

/** Checks at `start_step`, then at multiples of `check_period` (the authors' code). */
#define FOAM_CADENCE_REFERENCE 0

/** Checks at t = 1, then whenever (t - 1) mod `check_period` = 0 (the paper). */
#define FOAM_CADENCE_PAPER 1

/** The preconditioned direction as it is. */
#define FOAM_GRAFTING_NONE 0

/** Step length of gradient descent. */
#define FOAM_GRAFTING_SGD 1

/** Step length of AdaGrad. */
#define FOAM_GRAFTING_ADAGRAD 2

/** Step length of RMSprop. */
#define FOAM_GRAFTING_RMSPROP 3

/** Step length of Adam. */
#define FOAM_GRAFTING_ADAM 4

/** f64 statistics for f64 parameters, f32 for all others. */
#define FOAM_STATISTIC_AUTO 0

/** Single-precision statistics and eigendecompositions. */
#define FOAM_STATISTIC_F32 1

/** Double-precision statistics and eigendecompositions. */
#define FOAM_STATISTIC_F64 2

/** A gradient that is not finite fails the step, which changes nothing. */
#define FOAM_NONFINITE_ERROR 0

/** A gradient that is not finite skips the whole step, which succeeds and is counted. */
#define FOAM_NONFINITE_SKIP 1

/** Rounding's negative eigenvalues: the spectrum is shifted up until the smallest is zero. */
#define FOAM_NEGATIVE_SHIFT 0

/** Rounding's negative eigenvalues become zero. */
#define FOAM_NEGATIVE_CLAMP 1

/** Inverse roots of the statistics times the filtered gradient. */
#define FOAM_PRECONDITIONER_SHAMPOO 0

/** SOAP: Adam in the eigenbasis of the statistics. */
#define FOAM_PRECONDITIONER_SOAP 1

/** SOAP's statistics in the parameter's own axes, as in the authors' code. */
#define FOAM_SOAP_EXACT 0

/** SOAP's statistics in the basis: equal in exact arithmetic, and cheaper. */
#define FOAM_SOAP_IN_BASIS 1

/** Checks every `check_period` steps. */
#define FOAM_SCHEDULE_FIXED 0

/** Checks every `front_period` steps in the first `front_steps`, then every `check_period`. */
#define FOAM_SCHEDULE_FRONT_LOADED 1

/** Checks at t = 1, then at t <- ceil(refresh_growth * t). */
#define FOAM_SCHEDULE_GEOMETRIC 2

/** Checks every `check_period` steps; SOAP's basis is refreshed where kappa is above `kappa_threshold`. */
#define FOAM_SCHEDULE_KAPPA 3

/**
 * Checks every `check_period` steps, and at the times of `FOAM_SCHEDULE_GEOMETRIC`, when bases are refreshed whatever
 * is found.
 */
#define FOAM_SCHEDULE_COMBINED 4

/** A basis is refreshed by an eigendecomposition. */
#define FOAM_REFRESH_EVD 0

/**
 * A basis is refreshed by steps Q <- qr(A Q) until the sandwich bound is at most `tau`, at most three of them; by an
 * eigendecomposition only where they do not suffice (policy sandwich, tau >= 0.1).
 */
#define FOAM_REFRESH_QR 1

/** `FOAM_REFRESH_QR` on a GPU where the policy has a bound that says when to stop, else `FOAM_REFRESH_EVD`. */
#define FOAM_REFRESH_AUTO 2

/** Products of every step in the precision of their numbers. */
#define FOAM_MATMUL_F32 0

/** On a CUDA device operands in single precision are rounded to ten bits (TF32), sums are not. */
#define FOAM_MATMUL_TF32 1

/** No fault. */
#define FOAM_FAULT_NONE 0

/** A panic in the middle of the step. */
#define FOAM_FAULT_PANIC 1

/** The eigendecomposition in the chosen precision fails. */
#define FOAM_FAULT_EVD_CHOSEN 2

/** The eigendecomposition in the chosen precision returns a basis that is not orthogonal. */
#define FOAM_FAULT_EVD_NONORTHOGONAL 3

/** The double-precision retry fails as well. */
#define FOAM_FAULT_EVD_DOUBLE 4

/** Every eigendecomposition fails: the stale basis has to serve. */
#define FOAM_FAULT_EVD_ALL 5

/** Log levels of `foam_log_fn`. */
#define FOAM_LOG_WARNING 1

/** Something that a user may ignore. */
#define FOAM_LOG_INFO 2

/** Receives log lines; called only on a thread that is inside a call on the handle. */
typedef void (*foam_log_fn)(void *user, int32_t level, const char *message);

/** Gives `size` bytes aligned to `alignment`, or NULL. Called only inside calls on the handle. */
typedef void *(*foam_allocate_fn)(void *user, size_t size, size_t alignment);

/** Takes back what `foam_allocate_fn` gave, with the same size and alignment. */
typedef void (*foam_deallocate_fn)(void *user, void *data, size_t size, size_t alignment);

/**
 * Every hyperparameter. Fill it with `foam_config_init`, then set fields or call
 * `foam_config_set`; `foam_create` validates it as a whole. Switches hold 0 or 1.
 */
typedef struct foam_config {
    /** Bytes of this struct, set by the caller. */
    uint32_t struct_size;
    /** Must be 0. */
    uint32_t flags;
    /** `FOAM_POLICY_*`: what decides about a factor at a check step. */
    int32_t policy;
    /** `FOAM_CADENCE_*`: when factors are checked. */
    int32_t cadence;
    /** `FOAM_GRAFTING_*`: whose step length the direction takes. */
    int32_t grafting;
    /** `FOAM_STATISTIC_*`: precision of statistics, basis and spectrum. */
    int32_t statistic_dtype;
    /** `FOAM_NONFINITE_*`: what a gradient that is not finite does. */
    int32_t nonfinite;
    /** `FOAM_NEGATIVE_*`: what becomes of negative eigenvalues. */
    int32_t negative_eigenvalues;
    /** `FOAM_DEVICE_CPU` or `FOAM_DEVICE_CUDA`. */
    int32_t device_type;
    /** Ordinal of the device. */
    int32_t device_id;
    /** Divide statistics by 1 - beta2^t and the filtered gradient by 1 - beta1^t. */
    int32_t bias_correction;
    /** Merge neighbouring dimensions while their product is at most `max_factor_dim`. */
    int32_t merge_dims;
    /** Graft from the gradient divided by its norm. */
    int32_t normalized_grafting;
    /** Nesterov momentum. */
    int32_t nesterov;
    /** Scale the momentum's input by 1 - momentum. */
    int32_t ema_momentum;
    /** Look one filter step ahead (NAdam). */
    int32_t nadam;
    /** Decay the parameter itself (1) or add the decay to the gradient (0). */
    int32_t decoupled_weight_decay;
    /** Measure the proxy right after each refresh and report it as the factor's `noise_floor`. */
    int32_t noise_floor;
    /** `FOAM_FAULT_*`: a fault made on purpose, for testing how your code handles one. */
    int32_t inject_fault;
    /** Must be 0. */
    int32_t reserved;
    /** Steps between checks (the paper's f). */
    int64_t check_period;
    /** First check of the reference cadence; 0 means `check_period`. */
    int64_t start_step;
    /** Largest side of a block; larger dimensions are split. */
    int64_t max_factor_dim;
    /** Threads that share the work, the caller's included; 0 means one for each core. Handles with the same number share one pool. */
    int64_t num_threads;
    /** The first step at which `inject_fault` happens. */
    int64_t inject_fault_step;
    /** p of the inverse root; 0 means twice the block's order. */
    double root;
    /** The exponent is -exponent_multiplier / root. */
    double exponent_multiplier;
    /** Decay of the gradient filter, in [0, 1). */
    double beta1;
    /** Decay of the statistics, in [0, 1]; 1 means a plain sum. */
    double beta2;
    /**
     * Base damping (the paper's epsilon_0), added to every eigenvalue; in the unit that `epsilon_mode` says, as
     * all dampings.
     */
    double epsilon;
    /** Base damping of axis 0 of blocks of order 2 and more; 0 means `epsilon`. */
    double epsilon_left;
    /** Base damping of the other axes of such blocks; 0 means `epsilon`. */
    double epsilon_right;
    /** Largest damping; a refresh follows when the proxy asks for more. */
    double epsilon_max;
    /** Tolerated proxy of the relative operator gap. */
    double tau;
    /** Threshold of the policy diagonal_residual. */
    double residual_threshold;
    /** Decay of the grafted method's second moment, in [0, 1). */
    double grafting_beta2;
    /** Added to the root of the grafted second moment. */
    double grafting_epsilon;
    /** Momentum on the update, in [0, 1). */
    double momentum;
    /** Weight decay. */
    double weight_decay;
    /** Learning rate of a step whose arguments give none. */
    double lr;
    /**
     * Log callback, or NULL. The library never prints; only an internal panic, should there be one, is
     * also reported on stderr by the language runtime.
     */
    foam_log_fn log;
    /** First argument of `log`. */
    void *log_user;
    /**
     * Allocator of the state and the workspace, or NULL for the library's own. With a CUDA device it must give
     * memory of that device.
     */
    foam_allocate_fn allocate;
    /** Its counterpart; both or neither must be given. */
    foam_deallocate_fn deallocate;
    /** First argument of both. */
    void *allocator_user;
    /** `FOAM_EPSILON_*`: the unit of the dampings. */
    int32_t epsilon_mode;
    /** Precondition vectors and scalars too; else they take the grafted method's step (SOAP: plain Adam). */
    int32_t precondition_1d;
    /** Merging leaves the first dimension alone, so that a matrix stays a matrix. */
    int32_t keep_matrix;
    /** `FOAM_PRECONDITIONER_*`: which preconditioner gives the direction. */
    int32_t preconditioner;
    /** `FOAM_SOAP_*`: where SOAP keeps its statistics. */
    int32_t soap_form;
    /** `FOAM_SCHEDULE_*`: at which steps factors are checked (policy stale and SOAP: refreshed). */
    int32_t refresh_schedule;
    /** SOAP: divide the direction of a block by its root mean square. */
    int32_t normalize_grads;
    /** `FOAM_REFRESH_*`: how a basis of Shampoo is refreshed. */
    int32_t refresh_method;
    /** SOAP: a side larger than this has no basis; 0 means no limit. */
    int64_t max_precond_dim;
    /** Steps between checks in the first part of the schedule front_loaded. */
    int64_t front_period;
    /** Steps of that part; 0 means 4 / (1 - beta2). */
    int64_t front_steps;
    /** Factor from a time to the next in the schedules geometric and combined, in [1.01, 1000]. */
    double refresh_growth;
    /** Kappa above which the schedule kappa refreshes. */
    double kappa_threshold;
    /**
     * If > 0, `refresh_schedule` says when bases are refreshed whatever the policy finds, and every so many steps in
     * between the spectrum is corrected; policies stale, sandwich (which may refresh then, too) and diagonal_residual.
     */
    int64_t correction_period;
    /** Gradients enter the statistics at a block's step 1 and at the multiples of this; 1 means at every step. */
    int64_t statistics_period;
    /**
     * Keep an inverse root for every axis (1), or apply basis and spectrum in every step (0): twice the products of a
     * plain step, and a square less of state for every axis.
     */
    int32_t keep_inverse_root;
    /** With QR steps: a factor most of whose recent checks asked for a refresh is refreshed at every check, unseen. */
    int32_t qr_track;
    /** `FOAM_MATMUL_*`: how the products of every step are rounded on a CUDA device. No effect on the CPU. */
    int32_t matmul_precision;
    /**
     * Cut a dimension larger than `max_factor_dim` into pieces of about one size (1), or into pieces of `max_factor_dim`
     * and a rest (0). The number of pieces is the same.
     */
    int32_t even_blocks;
    /**
     * If > 0, a basis that a check asks for is decomposed in the background, from the statistic as it is then, and taken
     * so many steps later; until then the stale one serves. Shampoo with eigendecompositions.
     */
    int64_t refresh_delay;
    /**
     * On the CPU, keep the statistic and the inverse root of a side of 128 or more in one square (1), or in a square each
     * (0). The numbers are the same, and so are checkpoints; a plain step takes a few percent longer.
     */
    int32_t share_squares;
    /** 0. */
    int32_t reserved_2;
} foam_config;

/**
 * No preconditioner for this parameter: it takes the grafted method's step (needs a grafting).
 * For embeddings, or whatever you know should not be preconditioned.
 */
#define FOAM_PARAM_GRAFTING_ONLY 1

/**
 * One parameter of the model. Fill it with `foam_param_init` first, then set name, shape and dtype.
 * The library copies what it needs: nothing is borrowed after `foam_create`.
 */
typedef struct foam_param {
    /** Bytes of this struct, set by the caller; the same in every element of an array. */
    uint32_t struct_size;
    /** `FOAM_PARAM_*` bits. */
    uint32_t flags;
    /** Unique name, NUL-terminated UTF-8; NULL means "param_<index>". Checkpoints are keyed by it. */
    const char *name;
    /** `ndim` sizes, each at least 1. */
    const int64_t *shape;
    /** Number of dimensions; 0 for a scalar. */
    int32_t ndim;
    /** Type of the parameter's elements. */
    foam_dtype dtype;
    /** Multiplies the learning rate; default 1, must be > 0. */
    double lr_scale;
    /** Multiplies the weight decay; default 1, 0 switches it off. */
    double weight_decay_scale;
    /** The inverse root's p for this parameter; 0 (the default) means the configuration's. */
    double root;
    /**
     * The axis of `shape` of which this rank holds a part, with `foam_create_ranks`; -1 (the default) if it holds
     * the whole parameter. `shape` is that of the whole parameter on every rank; the tensors of a step have
     * `shard_length` places on this axis.
     */
    int64_t shard_axis;
    /** First place of the part. */
    int64_t shard_start;
    /** Places of the part; 0 if this rank holds nothing of the parameter (its tensors' `data` may then be NULL). */
    int64_t shard_length;
} foam_param;

/**
 * Bytes of stack that are enough for any call, on a thread of the caller's: measured at less than half of that, for
 * every policy and every path of an eigendecomposition. The library's own threads have stacks of 2 MiB.
 */
#define FOAM_THREAD_STACK_SIZE 262144

/** An optimizer. Created by `foam_create`, used by one call at a time, destroyed by `foam_destroy`. */
typedef struct foam_optimizer foam_optimizer;

/**
 * The step is only checked, not taken: everything that it would refuse is refused (arguments, tensors, overlaps,
 * gradients that are not finite), and neither parameters nor state change. `skipped` receives what the step would
 * say. On a CUDA device the call waits for the answer.
 */
#define FOAM_STEP_VALIDATE 1

/** Arguments of one step. Fill it with `foam_step_args_init`, then set `count`, `params` and `grads`. */
typedef struct foam_step_args {
    /** Bytes of this struct, set by the caller. */
    uint32_t struct_size;
    /** 0, or `FOAM_STEP_VALIDATE`. */
    uint32_t flags;
    /** Number of tensors in `params` and in `grads`: as many as at creation, in the same order. */
    size_t count;
    /** The parameters, updated in place. */
    const foam_tensor *params;
    /** Their gradients, only read; `data` = NULL for a parameter that takes no part in this step. */
    const foam_tensor *grads;
    /**
     * CUDA stream (a CUstream or cudaStream_t) to order the work on; NULL is the legacy default stream.
     * Ignored on the CPU.
     */
    void *stream;
    /** NULL, or receives 1 if the step was skipped because a gradient is not finite, else 0. */
    int32_t *skipped;
    /** Learning rate of this step; NaN (the default) means the configuration's. */
    double lr;
    /** Multiplies every gradient, default 1; for example 1/S to undo a loss scale of S. */
    double grad_scale;
    /**
     * NULL, or CUDA streams on which gradients or parameters are still being made: the step comes after what has been
     * put on them so far. Ignored on the CPU; not for optimizers from `foam_create_ranks`.
     */
    void *const *after;
    /** Number of streams in `after`. */
    size_t after_count;
} foam_step_args;

/**
 * Statistics of the whole optimizer since its creation (or since the start of the run that its
 * checkpoint continues; seconds count from creation).
 */
typedef struct foam_stats_info {
    /** Bytes of this struct, set by the caller. */
    uint32_t struct_size;
    /** 0. */
    uint32_t flags;
    /** Steps taken; skipped ones are not counted here. */
    uint64_t steps;
    /** Steps skipped because a gradient was not finite. */
    uint64_t skipped_steps;
    /** Parameters of the model. */
    uint64_t params;
    /** Blocks that they are cut into. */
    uint64_t blocks;
    /** Kronecker factors, over all blocks. */
    uint64_t factors;
    /** Checks of factors: what stale Shampoo would spend an eigendecomposition on each time. */
    uint64_t checks;
    /** Eigendecompositions done (SOAP: refreshes of a basis, the first and those by QR). */
    uint64_t evd_calls;
    /** Checks that kept the stale basis. */
    uint64_t reuse_calls;
    /** Proxies computed. */
    uint64_t proxy_calls;
    /** Checks that asked for another epsilon. */
    uint64_t epsilon_updates;
    /** Refreshes because epsilon would have passed `epsilon_max` (or no epsilon was certified). */
    uint64_t cap_refreshes;
    /** Off-diagonal residuals computed (policy diagonal_residual). */
    uint64_t residual_calls;
    /** Eigendecompositions that failed on at least one path. */
    uint64_t failed_evds;
    /** Refreshes saved by double precision. */
    uint64_t fallback_double;
    /** Refreshes saved by the other driver (a singular value decomposition). */
    uint64_t fallback_svd;
    /** Refreshes given up: the stale basis was kept with raised damping. */
    uint64_t fallback_stale;
    /** Bytes of state in host memory. */
    uint64_t state_bytes_host;
    /** Bytes of state in device memory. */
    uint64_t state_bytes_device;
    /** Bytes of workspace. */
    uint64_t workspace_bytes;
    /** Threads that work on a step. */
    uint64_t threads;
    /** Seconds spent checking gradients. */
    double seconds_inspect;
    /** Seconds spent in statistics. */
    double seconds_accumulate;
    /** Seconds spent in proxies. */
    double seconds_sense;
    /** Seconds spent in eigendecompositions. */
    double seconds_refresh;
    /** Seconds spent forming inverse roots. */
    double seconds_redamp;
    /** Seconds spent in directions and parameters. */
    double seconds_apply;
    /** Seconds spent in steps, all in all. */
    double seconds_total;
    /** Refreshes because a lower bound of the sandwich passed `tau` (policy `sandwich`). */
    uint64_t bound_exceeded;
    /** Reuses certified by what an average can have lost (policy `sandwich`). */
    uint64_t bound_average;
    /** Reuses certified by bounds of the drift's spectrum (policy `sandwich`). */
    uint64_t bound_spectral;
    /** Reuses certified by the sandwich bound itself (policy `sandwich`). */
    uint64_t bound_sandwich;
    /** Collectives of `foam_comm` so far; 0 alone. */
    uint64_t collectives;
    /** Bytes that this rank gave to others in them. */
    uint64_t bytes_sent;
    /** Bytes that it received from others. */
    uint64_t bytes_received;
    /**
     * Steps before the next check, if all parameters take part: so many plain steps may be replayed from a
     * CUDA graph. UINT64_MAX if no check is near.
     */
    uint64_t plain_steps;
    /** Steps Q <- qr(A Q) (`refresh_method` qr). */
    uint64_t qr_steps;
    /** Refreshes that such steps gave, without an eigendecomposition. */
    uint64_t qr_refreshes;
    /** Refreshes by an eigendecomposition because such steps did not suffice. */
    uint64_t qr_fallbacks;
    /** What keeps the configuration from working: `FOAM_FINDING_*` bits, see `foam_diagnosis`. */
    uint64_t findings;
    /** Checks that refreshed by QR steps without looking at the basis first (`qr_track`). */
    uint64_t qr_tracked;
    /** Checks that asked for a refresh and left the stale basis in use, because refreshes are delayed (`refresh_delay`). */
    uint64_t delayed_checks;
} foam_stats_info;

/** No check yet. */
#define FOAM_BRANCH_NONE 0

/** The first eigendecomposition. */
#define FOAM_BRANCH_EVD_FIRST 1

/** An eigendecomposition because the policy is stale. */
#define FOAM_BRANCH_EVD_STALE 2

/** Reuse; epsilon was raised. */
#define FOAM_BRANCH_REUSE_RAISED 3

/** Reuse; epsilon was lowered, still above its base. */
#define FOAM_BRANCH_REUSE_LOWERED 4

/** Reuse at the base epsilon. */
#define FOAM_BRANCH_REUSE_FLOOR 5

/** An eigendecomposition because epsilon would have passed `epsilon_max` (or none was certified). */
#define FOAM_BRANCH_EVD_CAP 6

/** An eigendecomposition because the proxy or the residual passed its threshold. */
#define FOAM_BRANCH_EVD_THRESHOLD 7

/** Reuse; epsilon was clipped at `epsilon_max`. */
#define FOAM_BRANCH_REUSE_CLIPPED 8

/** Reuse; nothing changed. */
#define FOAM_BRANCH_REUSE_SAME 9

/** QR steps on a CUDA device that did not bring the bound to `tau`: the next check decomposes. */
#define FOAM_BRANCH_QR_SHORT 10

/** A delayed refresh failed on a CUDA device: the next check decomposes in double precision, at once. */
#define FOAM_BRANCH_EVD_FAILED 11

/** Statistics of one Kronecker factor. Values that do not exist yet are NaN. */
typedef struct foam_factor_info {
    /** Bytes of this struct as the library wrote it. */
    uint32_t struct_size;
    /** `FOAM_BRANCH_*`: what the last check did. */
    int32_t last_branch;
    /** Parameter of the factor. */
    int64_t param_index;
    /** Block within the parameter, in row-major order. */
    int64_t block;
    /** Axis within the block. */
    int64_t axis;
    /** Side of the factor. */
    int64_t dim;
    /** p of the inverse root. */
    double root;
    /** Base damping. */
    double epsilon_base;
    /** Damping in use. */
    double epsilon;
    /** h of the last check: the proxy of the relative operator gap. */
    double proxy;
    /** Largest h so far. */
    double max_proxy;
    /** RC of the last check. */
    double relative_change;
    /** alpha of the last check. */
    double alpha;
    /**
     * Proven upper bound of the relative operator gap at the last check, for the epsilon that was in use
     * then (policy foam_certified: for the epsilon that it chose).
     */
    double gap_bound;
    /** Off-diagonal residual of the last check (policy diagonal_residual). */
    double residual;
    /** Proxy right after the last refresh, with no drift at all: what rounding alone makes of it. */
    double noise_floor;
    /** Smallest eigenvalue of the basis in use. */
    double eigenvalue_min;
    /** Largest eigenvalue of the basis in use. */
    double eigenvalue_max;
    /** Step of the last refresh, on the parameter's own clock; 0 for never. */
    uint64_t last_refresh;
    /** Step of the last check, on the parameter's own clock; 0 for never. */
    uint64_t last_check;
    /** Checks. */
    uint64_t checks;
    /** Eigendecompositions (SOAP: refreshes of the basis, the first and those by QR). */
    uint64_t evd_calls;
    /** Checks that kept the stale basis. */
    uint64_t reuse_calls;
    /** Proxies computed. */
    uint64_t proxy_calls;
    /** Checks that asked for another epsilon. */
    uint64_t epsilon_updates;
    /** Refreshes because of the cap. */
    uint64_t cap_refreshes;
    /** Residuals computed. */
    uint64_t residual_calls;
    /** Eigendecompositions that failed on at least one path. */
    uint64_t failed_evds;
    /** Refreshes saved by double precision. */
    uint64_t fallback_double;
    /** Refreshes saved by the other driver. */
    uint64_t fallback_svd;
    /** Refreshes given up. */
    uint64_t fallback_stale;
    /** Refreshes because a lower bound of the sandwich passed `tau` (policy `sandwich`). */
    uint64_t bound_exceeded;
    /** Reuses certified by what an average can have lost (policy `sandwich`). */
    uint64_t bound_average;
    /** Reuses certified by bounds of the drift's spectrum (policy `sandwich`). */
    uint64_t bound_spectral;
    /** Reuses certified by the sandwich bound itself (policy `sandwich`). */
    uint64_t bound_sandwich;
    /** SOAP: kappa of the last check, how far the statistic was from diagonal in the basis in use; 0 is fresh. */
    double kappa;
    /** |Q'Q - I| of a basis that QR steps gave, as sign vectors see it; NaN otherwise. */
    double orthogonality;
    /** Steps Q <- qr(A Q) (`refresh_method` qr). */
    uint64_t qr_steps;
    /** Refreshes that such steps gave, without an eigendecomposition. */
    uint64_t qr_refreshes;
    /** Refreshes by an eigendecomposition because such steps did not suffice. */
    uint64_t qr_fallbacks;
    /** What is wrong with the factor: `FOAM_FINDING_*` bits. It is judged from its twentieth check on. */
    uint64_t findings;
    /** Checks that refreshed by QR steps without looking at the basis first (`qr_track`). */
    uint64_t qr_tracked;
    /**
     * Which of the last eight checks that looked at the basis asked for a refresh (policy `sandwich`): a bit each, the
     * newest lowest.
     */
    uint64_t recent_refreshes;
    /**
     * Step at which the refresh that is under way was asked for, 0 if none is (`refresh_delay`). It is counted, and
     * `last_refresh` becomes this step, when it is taken.
     */
    uint64_t pending_since;
    /** Checks that asked for a refresh and left the stale basis in use, because refreshes are delayed. */
    uint64_t delayed_checks;
} foam_factor_info;

/** Right after a refresh, with no drift at all, the proxy is above `tau`: rounding decides, not staleness. */
#define FOAM_FINDING_NOISE_ABOVE_TAU 1

/** Most checks wanted a larger epsilon than `epsilon_max`. */
#define FOAM_FINDING_EPSILON_AT_CAP 2

/** At least nine of ten checks refresh, for no reason named above: nothing is saved. */
#define FOAM_FINDING_ALWAYS_REFRESHES 4

/** Epsilon is at least the largest eigenvalue: nothing is preconditioned. */
#define FOAM_FINDING_DAMPING_DOMINATES 8

/** Most eigendecompositions failed or were inaccurate at first. */
#define FOAM_FINDING_REFRESHES_FAIL 16

/** The factor's statistic: the running second moment, not bias-corrected; dim x dim. */
#define FOAM_FACTOR_STATISTIC 0

/** The stale basis, one eigenvector per row; dim x dim. */
#define FOAM_FACTOR_BASIS 1

/** The stale spectrum; dim values. */
#define FOAM_FACTOR_SPECTRUM 2

/** The inverse root in use; dim x dim. */
#define FOAM_FACTOR_INVERSE_ROOT 3

/** Sizes in `foam_block_info.shape` and `strides`. */
#define FOAM_BLOCK_MAX_NDIM 8

/**
 * A block: a rectangular piece of a parameter that has a preconditioner of its own. Its element at (i, j, ...)
 * is element `offset` + i * `strides[0]` + j * `strides[1]` + ... of the parameter.
 */
typedef struct foam_block_info {
    /** Bytes of this struct as the library wrote it. */
    uint32_t struct_size;
    /** Number of dimensions; 1 for a scalar or a vector. */
    int32_t ndim;
    /** Parameter of the block. */
    int64_t param_index;
    /** Number of the block within its parameter, in row-major order, as in `foam_factor_info`. */
    int64_t block;
    /**
     * Number of its stack: blocks have the same number if a `foam_stack` could hold them together, that is if
     * shape, dtype, root, weight decay and preconditioning are equal. Numbered from 0 in the order of the list.
     */
    int64_t stack;
    /** First element within the parameter. */
    int64_t offset;
    /** Number of elements. */
    int64_t elements;
    /** Number of factors: one per axis, or 0 without a preconditioner. */
    int64_t factors;
    /**
     * Multiplications of the matrix products of a step: 2 * elements * (sum of the sides), or `elements` without
     * a preconditioner.
     */
    uint64_t step_cost;
    /**
     * Multiplications that a check adds when it keeps the basis: 3 * dim^3 per axis (the statistic in the stale
     * basis, and a new inverse root).
     */
    uint64_t check_cost;
    /** Multiplications that a refresh adds, about 10 * dim^3 per axis (the eigendecomposition and the inverse root). */
    uint64_t refresh_cost;
    /** Bytes of the block's state, without alignment. */
    uint64_t state_bytes;
    /** Its sizes; those behind `ndim` are 0. */
    int64_t shape[FOAM_BLOCK_MAX_NDIM];
    /** Elements of the parameter between neighbours along each axis; those behind `ndim` are 0. */
    int64_t strides[FOAM_BLOCK_MAX_NDIM];
    /** The rank that works on the block and holds its state; 0 without a `foam_comm`. */
    int64_t owner;
    /**
     * Multiplications per step on average: `step_cost`, 128 * `elements` for what is done beside the products, and
     * (`check_cost` + `refresh_cost` / 4) / `check_period`, with the policy stale all of `refresh_cost`. The owners
     * are chosen by the work of plain steps (the first two) and of steps that check, each for itself.
     */
    uint64_t cost;
} foam_block_info;

/** A part of the bytes of one parameter's state, see `foam_read_states`. */
typedef struct foam_state_part {
    /** First byte. */
    uint64_t offset;
    /** Bytes; may be 0. */
    uint64_t bytes;
    /** Host memory of as many bytes; may be NULL for none. */
    void *data;
} foam_state_part;

/** No preconditioner: the blocks take the grafted method's step (needs a grafting). */
#define FOAM_STACK_GRAFTING_ONLY 1

/** Largest `ndim` of a stack's blocks. */
#define FOAM_STACK_MAX_NDIM 8

/** Sizes in `foam_stack_buffer.shape`. */
#define FOAM_STACK_BUFFER_NDIM 9

/** Bytes of `foam_stack_buffer.name`, with its final NUL. */
#define FOAM_STACK_NAME_SIZE 32

/**
 * A stack: `count` blocks of the same shape, type and options, whose state lies in buffers of the caller.
 * Each of them has the number of the block as its first dimension. Fill it with `foam_stack_init`, then
 * set shape, ndim, count and dtype. Blocks are taken as they are: `merge_dims` and `max_factor_dim` do
 * nothing here, and neither do `lr_scale` and `nonfinite`.
 *
 * One step is three calls, `foam_stack_accumulate`, `foam_stack_check` and `foam_stack_apply` (for SOAP
 * `foam_stack_accumulate`, `foam_stack_apply` and `foam_stack_check`). They do what
 * `foam_step` does to parameters of that shape, with equal bits. There is no handle: calls may overlap as
 * long as they write different buffers. Threads are shared by all calls with the same `num_threads`.
 */
typedef struct foam_stack {
    /** Bytes of this struct, set by the caller. */
    uint32_t struct_size;
    /** `FOAM_STACK_*` bits. */
    uint32_t flags;
    /** `ndim` sizes of one block, each at least 1. */
    const int64_t *shape;
    /** Number of dimensions of one block, from 1 to `FOAM_STACK_MAX_NDIM`. */
    int32_t ndim;
    /** Type of the parameters' elements. */
    foam_dtype dtype;
    /** Number of blocks, at least 1. */
    int64_t count;
    /** Multiplies the weight decay; default 1, 0 switches it off. */
    double weight_decay_scale;
    /** The inverse root's p; 0 (the default) means the configuration's. */
    double root;
} foam_stack;

/**
 * The clock of every block, u32[count, 4]: its steps as a 64-bit whole number, the weight of its statistics
 * as a double.
 */
#define FOAM_STACK_CLOCK 0

/**
 * The record of every factor, u32[count, ndim, 76]: twelve doubles (epsilon, proxy, max_proxy, relative_change, alpha,
 * gap_bound, residual, noise_floor, eigenvalue_min, eigenvalue_max, kappa, orthogonality), then 26 64-bit whole numbers
 * (last_branch, 1 once there is a basis, last_refresh, last_check, checks, evd_calls, reuse_calls,
 * proxy_calls, epsilon_updates, cap_refreshes, residual_calls, failed_evds, fallback_double, fallback_svd,
 * fallback_stale, bound_exceeded, bound_average, bound_spectral, bound_sandwich, qr_steps, qr_refreshes,
 * qr_fallbacks, qr_tracked, recent_refreshes, pending_since, delayed_checks), as in `foam_factor_info`.
 */
#define FOAM_STACK_RECORD 1

/**
 * Statistics of an axis; the lower triangle of their transpose counts. The rest may hold inverse roots, see
 * `FOAM_STACK_ROOT_DIAGONAL`.
 */
#define FOAM_STACK_STATISTIC 2

/** Bases of an axis, one eigenvector per row. */
#define FOAM_STACK_BASIS 3

/** Spectra of an axis. */
#define FOAM_STACK_SPECTRUM 4

/** Inverse roots of an axis. */
#define FOAM_STACK_INVERSE_ROOT 5

/** Filtered gradients (`beta1` > 0). */
#define FOAM_STACK_FILTER 6

/** The grafted method's second moments (adagrad, rmsprop, adam). */
#define FOAM_STACK_MOMENT 7

/** Momentum (`momentum` > 0). */
#define FOAM_STACK_MOMENTUM 8

/** Spectra of an axis as the last refresh gave them (policy sandwich). */
#define FOAM_STACK_FRESH_SPECTRUM 9

/** Statistics of an axis in its basis (`soap_form` = in_basis); the lower triangle of their transpose counts. */
#define FOAM_STACK_ROTATED_STATISTIC 10

/** Eigenvalues of an axis' inverse roots (`keep_inverse_root` = 0). */
#define FOAM_STACK_ROOT_SPECTRUM 11

/** Statistics of an axis as they were when a refresh that is under way was asked for (`refresh_delay` > 0). */
#define FOAM_STACK_PENDING_STATISTIC 12

/**
 * Diagonals of an axis' inverse roots (`share_squares` = 1): the numbers below the diagonal lie in the statistics'
 * squares, where those count that the statistics do not use.
 */
#define FOAM_STACK_ROOT_DIAGONAL 13

/** One state buffer of a stack, as `foam_stack_layout` describes it: row-major and contiguous. */
typedef struct foam_stack_buffer {
    /** Bytes of this struct as the library wrote it. */
    uint32_t struct_size;
    /** `FOAM_STACK_*`: what it holds. */
    int32_t kind;
    /** Axis, for a factor's buffer, else -1. */
    int32_t axis;
    /** Number of dimensions. */
    int32_t ndim;
    /** Type of its elements. */
    foam_dtype dtype;
    /** 0. */
    uint32_t reserved;
    /** Bytes. */
    uint64_t bytes;
    /** Its sizes; those behind `ndim` are 0. */
    int64_t shape[FOAM_STACK_BUFFER_NDIM];
    /** Its name, for example "statistic_0", NUL-terminated. */
    char name[FOAM_STACK_NAME_SIZE];
} foam_stack_buffer;

/** The block took no part: it is not active, or never accumulated. */
#define FOAM_INFO_IDLE 1

/** The block's gradient is not finite, or its square overflows: nothing of the block changed. */
#define FOAM_INFO_NOT_FINITE 2

/** The block's direction overflowed and was left out of the update. */
#define FOAM_INFO_LEFT_OUT 4

/** An eigendecomposition of the block failed or was inaccurate, and another path served. */
#define FOAM_INFO_FELL_BACK 8

/**
 * Arguments of the verbs of a stack. Fill it with `foam_stack_args_init`, then set what the verb uses. All
 * tensors have `count` blocks as their first dimension.
 */
typedef struct foam_stack_args {
    /** Bytes of this struct, set by the caller. */
    uint32_t struct_size;
    /** Must be 0. */
    uint32_t flags;
    /**
     * The state buffers, in the order of `foam_stack_layout`. `data` may be NULL where the verb does not
     * use a buffer.
     */
    const foam_tensor *state;
    /**
     * NULL: the state is updated in place. Else where the new state goes, in the same order; `data` = NULL
     * means in place for that buffer. What a verb does not write is not touched.
     */
    const foam_tensor *state_out;
    /** Number of tensors in `state`, and in `state_out`. */
    size_t state_count;
    /** Gradients, count * shape, of any floating type (accumulate, apply). */
    const foam_tensor *grads;
    /**
     * Parameters, count * shape, or NULL; needed where there is a weight decay (accumulate: a coupled one).
     * Only read.
     */
    const foam_tensor *params;
    /** i32[count]: 0 for a block that takes no part; NULL means that all do (accumulate). */
    const foam_tensor *active;
    /** i32[count]: what the verb before wrote (check, apply); NULL means `info` itself. */
    const foam_tensor *info_in;
    /** i32[count]: receives `FOAM_INFO_*` bits for every block. */
    const foam_tensor *info;
    /**
     * Receives the updates, count * shape, of the stack's type (or f32 for f16 and bf16). It may be exactly
     * `grads` or `params`, if these have the same type (apply).
     */
    const foam_tensor *update;
    /** Workspace, of any content and alignment. */
    void *workspace;
    /** Its bytes, at least what `foam_stack_workspace` says. */
    size_t workspace_size;
    /** CUDA stream to order the work on; ignored on the CPU. */
    void *stream;
    /**
     * The update is this times the direction; NaN (the default) means minus the configuration's learning
     * rate (apply).
     */
    double scale;
    /** Multiplies every gradient, default 1; the same in accumulate and in apply. */
    double grad_scale;
} foam_stack_args;

/** `foam_stack_accumulate`. */
#define FOAM_VERB_ACCUMULATE 0

/** `foam_stack_check`. */
#define FOAM_VERB_CHECK 1

/** `foam_stack_apply`. */
#define FOAM_VERB_APPLY 2

/** The verb reads it: an operand. */
#define FOAM_PORT_READ 1

/** The verb writes it: a result. */
#define FOAM_PORT_WRITTEN 2

/** Dtypes in `foam_stack_port.dtypes`. */
#define FOAM_PORT_DTYPES 4

/** One operand or result of a verb of a stack. */
typedef struct foam_stack_port {
    /** Bytes of this struct as the library wrote it. */
    uint32_t struct_size;
    /** `FOAM_PORT_READ` for an operand, `FOAM_PORT_WRITTEN` for a result. */
    uint32_t flags;
    /**
     * Place of a state buffer in `foam_stack_layout`; -1 for what is not state. A buffer that is both read and
     * written is listed twice, and may be the same memory.
     */
    int32_t state;
    /** Number of dimensions. */
    int32_t ndim;
    /** Dtypes that it may have; at least 1. */
    int32_t dtype_count;
    /** 0. */
    uint32_t reserved;
    /** The dtypes, the stack's own first; those behind `dtype_count` are zero. */
    foam_dtype dtypes[FOAM_PORT_DTYPES];
    /**
     * Its sizes, the number of blocks first; those behind `ndim` are 0. The workspace has one dimension of
     * size 0 here: `foam_stack_workspace` says how many bytes it needs.
     */
    int64_t shape[FOAM_STACK_BUFFER_NDIM];
    /** Its name, for example "grads" or "statistic_0", NUL-terminated. */
    char name[FOAM_STACK_NAME_SIZE];
} foam_stack_port;

/** A double. */
#define FOAM_RECORD_REAL 0

/** A signed 64-bit whole number. */
#define FOAM_RECORD_WHOLE 1

/** A field of a factor's record, which a stack keeps as 32-bit words. */
typedef struct foam_record_field {
    /** Bytes of this struct as the library wrote it. */
    uint32_t struct_size;
    /** `FOAM_RECORD_REAL` or `FOAM_RECORD_WHOLE`. */
    int32_t kind;
    /** Its first word within the record of a factor. */
    int32_t word;
    /** Its number of words. */
    int32_t words;
    /** Its name, as in `foam_factor_info`, and "has_basis"; NUL-terminated. */
    char name[FOAM_STACK_NAME_SIZE];
} foam_record_field;

/** Version of `foam_api` that this header describes; it is raised when functions are appended. */
#define FOAM_API_VERSION 1

/** The most ranks that may share an optimizer. */
#define FOAM_MAX_RANKS 65536

/**
 * `foam_comm.flags`: `all_gatherv` also takes a `send` that lies in `recv`, where the bytes of this rank belong. New
 * values are then gathered so: they are neither kept nor copied twice.
 */
#define FOAM_COMM_IN_PLACE 1

/**
 * Gives every rank some bytes, and takes some from every rank: `send` holds the messages to rank 0, 1, ... one
 * behind the other, of `send_bytes[0]`, `send_bytes[1]`, ... bytes, and `recv` receives those of rank 0, 1, ...
 * likewise. Returns 0, or the caller's own code of an error once the call has failed or timed out.
 *
 * On the CPU `send` and `recv` are host memory, and the bytes have arrived when the call returns. On a CUDA device they
 * are memory of that device, and the work is put on `stream`: a CUstream, that of the step, or outside of a step one of
 * the library's. The device's primary context is current. The call need not wait for the work; NCCL's do not.
 */
typedef int32_t (*foam_all_to_allv_fn)(void *user,
                                       const void *send,
                                       const uint64_t *send_bytes,
                                       void *recv,
                                       const uint64_t *recv_bytes,
                                       void *stream);

/**
 * Gives all ranks the same `bytes` bytes of `send`; `recv` receives those of rank 0, 1, ... (the own ones too) one
 * behind the other, of `recv_bytes[0]`, `recv_bytes[1]`, ... bytes. Otherwise as `foam_all_to_allv_fn`.
 */
typedef int32_t (*foam_all_gatherv_fn)(void *user,
                                       const void *send,
                                       uint64_t bytes,
                                       void *recv,
                                       const uint64_t *recv_bytes,
                                       void *stream);

/**
 * How ranks reach each other: two collectives of the caller (MPI, NCCL, gloo, ...), which move bytes and compute
 * nothing. All ranks make the same calls on their optimizers in the same order; the library then makes the same
 * collectives in the same order on each, on the thread that is inside the call. A collective should time out: a
 * rank that died is only noticed by it. Optimizers that take a step together share the communicator of the first.
 */
typedef struct foam_comm {
    /** Bytes of this struct, set by the caller. */
    uint32_t struct_size;
    /** This rank, from 0. */
    int32_t rank;
    /** Number of ranks. */
    int32_t size;
    /** 0, or `FOAM_COMM_IN_PLACE`; ranks may differ. */
    uint32_t flags;
    /** First argument of both. */
    void *user;
    /** Every rank gives every rank its own bytes. */
    foam_all_to_allv_fn all_to_allv;
    /** Every rank gives all ranks the same bytes. */
    foam_all_gatherv_fn all_gatherv;
} foam_comm;

/** Version of the ABI that the loaded library implements: MAJOR << 16 | MINOR. */
uint32_t foam_abi_version(void);

/** One line about the build: version, ABI, version of `foam_api`, target and backends. Valid as long as the library is. */
const char *foam_build_info(void);

/** The name of a status, for example "FOAM_BUSY"; "FOAM_UNKNOWN" for any other number. */
const char *foam_status_name(foam_status status);

/**
 * Fills `config` with a preset: NULL or "default" (works without tuning: relative damping, the policy sandwich),
 * "reference" (the paper's ViT setting on the schedule of the authors' code), "paper" (Algorithms 1-3 as
 * printed) or "soap" (SOAP). `struct_size` is `sizeof(foam_config)` as the caller was compiled. For a program
 * compiled before the preset "default" existed, NULL means "reference", as it did then.
 *
 * Contract: `config` points to `struct_size` writable bytes; `preset` is NULL or a C string; `error` is NULL
 * or a record.
 */
foam_status foam_config_init(foam_config *config,
                             uint32_t struct_size,
                             const char *preset,
                             foam_error *error);

/**
 * Sets one option by name, for example `foam_config_set(&config, "tau", "0.75", &error)`.
 * Keys are the names of the struct's fields, and "device" ("cpu", "cuda:0"). An unknown key is an
 * error that lists the known ones; a refused value leaves the configuration as it was.
 *
 * Contract: `config` was filled by `foam_config_init`; `key` and `value` are C strings; `error` is NULL or a
 * record.
 */
foam_status foam_config_set(foam_config *config,
                            const char *key,
                            const char *value,
                            foam_error *error);

/**
 * Writes the text form of option `key`, NUL-terminated, into `value` of `capacity` bytes. Give
 * `key` = NULL to get all keys, separated by spaces.
 *
 * Contract: `config` was filled by `foam_config_init`; `key` is NULL or a C string; `value` points to
 * `capacity` writable bytes; `error` is NULL or a record.
 */
foam_status foam_config_get(const foam_config *config,
                            const char *key,
                            char *value,
                            size_t capacity,
                            foam_error *error);

/**
 * Says whether `foam_create` would accept the configuration: every value, every relation between values, the
 * callbacks, and whether its device can be used (a CUDA device is looked for, as `foam_cuda_probe` does). Nothing
 * is created. What depends on the parameters is checked by `foam_create` and `foam_plan_blocks`.
 *
 * Contract: `config` is a struct whose `struct_size` is set; `error` is NULL or a record.
 */
foam_status foam_config_validate(const foam_config *config,
                                 foam_error *error);

/**
 * Says whether the factors of a parameter are checked at its step `step` (counted from 1, for each parameter
 * by itself: a step in which it has no gradient does not count), or may take over a basis that an earlier check asked
 * for (`refresh_delay`). `*due` receives 1 or 0.
 *
 * Contract: `config` is a struct whose `struct_size` is set; `due` is writable; `error` is NULL or a record.
 */
foam_status foam_config_check_due(const foam_config *config,
                                  int64_t step,
                                  int32_t *due,
                                  foam_error *error);

/**
 * Fills `param` with the defaults: a nameless f32 scalar with both scales 1.
 * `struct_size` is `sizeof(foam_param)` as the caller was compiled.
 *
 * Contract: `param` points to `struct_size` writable bytes; `error` is NULL or a record.
 */
foam_status foam_param_init(foam_param *param,
                            uint32_t struct_size,
                            foam_error *error);

/**
 * Creates an optimizer for `count` parameters, with all state zero, and puts it into `*out`.
 * Nothing that the arguments point to is kept. On failure `*out` is not written.
 *
 * Contract: `config` and the `params` are structs whose `struct_size` is set and whose pointers are valid;
 * `out` is writable; `error` is NULL or a record.
 */
foam_status foam_create(const foam_config *config,
                        const foam_param *params,
                        size_t count,
                        foam_optimizer **out,
                        foam_error *error);

/**
 * Creates an optimizer whose work and state are shared by the ranks of `comm`, which all make this call with the
 * same configuration and parameters. What differs is an error on every rank that names it. Nothing but the
 * callbacks of `comm` and its `user` is kept.
 *
 * Contract: As `foam_create`; `comm` is a struct whose `struct_size` is set and whose callbacks work until the optimizer is
 * destroyed.
 */
foam_status foam_create_ranks(const foam_config *config,
                              const foam_comm *comm,
                              const foam_param *params,
                              size_t count,
                              foam_optimizer **out,
                              foam_error *error);

/**
 * Waits until all work on the optimizer's device is done. On the CPU nothing is ever pending.
 *
 * Contract: `optimizer` came from `foam_create`; `error` is NULL or a record.
 */
foam_status foam_synchronize(foam_optimizer *optimizer, foam_error *error);

/**
 * Destroys an optimizer and all its state. NULL is fine. No call may be inside the handle; if one is,
 * the handle is left alone (and leaks) rather than torn from under it.
 *
 * Contract: `optimizer` is NULL or came from `foam_create`, and is not used afterwards.
 */
void foam_destroy(foam_optimizer *optimizer);

/**
 * Fills `args` with the defaults: no tensors, the configuration's learning rate, gradients as they are.
 * `struct_size` is `sizeof(foam_step_args)` as the caller was compiled.
 *
 * Contract: `args` points to `struct_size` writable bytes; `error` is NULL or a record.
 */
foam_status foam_step_args_init(foam_step_args *args,
                                uint32_t struct_size,
                                foam_error *error);

/**
 * One step: reads the gradients, updates the parameters in place. Everything is validated before the
 * first write: a failed step (other than FOAM_PANIC) has changed neither parameters nor state.
 *
 * On a CUDA device the step is put on `args.stream`; the call waits for the device only when a check is due.
 * A gradient that is not finite is held back by the device, and the caller learns of it at the next call that
 * waits (a check, `foam_synchronize`, statistics, a checkpoint): with `nonfinite = error` that call, or the next
 * step, fails with FOAM_NOT_FINITE, and no step since the bad one was taken; with `skip` that one step is left
 * out and counted. If the device itself fails in the middle of a step (FOAM_DEVICE_ERROR), the message says
 * that parameters and state are lost, and later calls give FOAM_POISONED.
 *
 * Contract: `optimizer` came from `foam_create`; the tensors' memory is valid for the call, and nobody else
 * writes it or reads the parameters meanwhile; `error` is NULL or a record.
 */
foam_status foam_step(foam_optimizer *optimizer,
                      const foam_step_args *args,
                      foam_error *error);

/**
 * One step of several optimizers, or of none of them: `args[i]` is that of `optimizers[i]`. Everything that one of
 * them refuses all refuse, and nothing has changed; a gradient that is not finite skips the step of all if the options
 * of its optimizer say so, and that one counts it. Overlaps between the tensors of two optimizers are not looked for.
 *
 * Either all are from `foam_create`, on one device and (on CUDA) with one `stream`: the call then waits for the device
 * as often as that of one optimizer, once at a check and never in a plain step. Or all are from `foam_create_ranks`
 * with the same ranks, and share the collectives of one step: the groups of a model need no more of them than one
 * group. The communicator of the first serves all, and all ranks make this call with the same optimizers in the same
 * order.
 *
 * Contract: `optimizers` and `args` have `count` elements, each as for `foam_step`; `error` is NULL or a record.
 */
foam_status foam_step_together(foam_optimizer *const *optimizers,
                               const foam_step_args *args,
                               size_t count,
                               foam_error *error);

/**
 * Changes one option of a live optimizer; the next step uses it, and no state moves. Keys and values are those of
 * `foam_config_set`. Live are lr, weight_decay, decoupled_weight_decay, the dampings (epsilon, epsilon_left,
 * epsilon_right, epsilon_max), tau, residual_threshold, check_period, grafting_epsilon, nonfinite,
 * negative_eigenvalues, noise_floor, nesterov, ema_momentum, nadam, inject_fault, inject_fault_step,
 * refresh_schedule, refresh_method, qr_track, front_period, front_steps, refresh_growth and kappa_threshold, and as long as they
 * switch nothing on or off also beta1, beta2, grafting_beta2, momentum, correction_period and refresh_delay. The others shape the state
 * and are refused by name with the reason.
 *
 * The configuration is validated as a whole; a refused value changes nothing. A new damping is used from the next
 * check on. A new check_period or schedule leaves the first check where it was. Bias corrections take a new beta as
 * if it had been in use from the first step.
 *
 * Contract: `optimizer` came from `foam_create`; `key` and `value` are C strings; `error` is NULL or a record.
 */
foam_status foam_set_option(foam_optimizer *optimizer,
                            const char *key,
                            const char *value,
                            foam_error *error);

/**
 * Writes the text form of an optimizer's option `key`, NUL-terminated, into `value` of `capacity` bytes: the value
 * in use. Give `key` = NULL to get the keys that `foam_set_option` changes, separated by spaces.
 *
 * Contract: `optimizer` came from `foam_create`; `key` is NULL or a C string; `value` points to `capacity` writable bytes;
 * `error` is NULL or a record.
 */
foam_status foam_get_option(foam_optimizer *optimizer,
                            const char *key,
                            char *value,
                            size_t capacity,
                            foam_error *error);

/**
 * Reads the statistics of the whole optimizer. Set `info->struct_size` first. Works after a panic too.
 *
 * Contract: `optimizer` came from `foam_create`; `info` points to as many writable bytes as its `struct_size`
 * says; `error` is NULL or a record.
 */
foam_status foam_stats(foam_optimizer *optimizer,
                       foam_stats_info *info,
                       foam_error *error);

/**
 * Reads the statistics of every factor, ordered by parameter, block and axis. `items` has room for
 * `capacity` elements of `item_size` = `sizeof(foam_factor_info)` bytes as the caller was compiled;
 * `*count` receives the number of factors. Pass `items` = NULL and `capacity` = 0 to ask for it.
 * If there is too little room, nothing is written but `*count`. Works after a panic too.
 *
 * Contract: `optimizer` came from `foam_create`; `items` has `capacity` * `item_size` writable bytes; `count` is
 * writable; `error` is NULL or a record.
 */
foam_status foam_factor_stats(foam_optimizer *optimizer,
                              foam_factor_info *items,
                              size_t item_size,
                              size_t capacity,
                              size_t *count,
                              foam_error *error);

/**
 * Reads one of a factor's matrices (`FOAM_FACTOR_*`), row-major, as doubles. `*count` receives the
 * number of values; pass `values` = NULL to ask for it.
 *
 * Contract: `optimizer` came from `foam_create`; `values` is NULL or has room for `capacity` doubles; `count` is
 * writable; `error` is NULL or a record.
 */
foam_status foam_factor_read(foam_optimizer *optimizer,
                             int64_t param_index,
                             int64_t block,
                             int64_t axis,
                             int32_t what,
                             double *values,
                             size_t capacity,
                             size_t *count,
                             foam_error *error);

/**
 * Computes the exact relative operator gap of a factor at this moment: what the proxy estimates, at
 * the price of an eigendecomposition in double precision. For studies and tests.
 *
 * Contract: `optimizer` came from `foam_create`; `gap` is writable; `error` is NULL or a record.
 */
foam_status foam_exact_gap(foam_optimizer *optimizer,
                           int64_t param_index,
                           int64_t block,
                           int64_t axis,
                           double *gap,
                           foam_error *error);

/**
 * Lists the blocks that `foam_create` would cut `param_count` parameters into, ordered by parameter and block,
 * without creating anything: no state is allocated, and no device is asked. What `foam_create` would refuse about
 * the configuration's values or the parameters is refused here. `items`, `item_size` = `sizeof(foam_block_info)`,
 * `capacity` and `count` are as in `foam_stack_layout`. A block of more than `FOAM_BLOCK_MAX_NDIM` dimensions
 * gives FOAM_UNSUPPORTED.
 *
 * Contract: `config` and the `params` are structs whose `struct_size` is set and whose pointers are valid; `items` has
 * `capacity` * `item_size` writable bytes; `count` is writable; `error` is NULL or a record.
 */
foam_status foam_plan_blocks(const foam_config *config,
                             const foam_param *params,
                             size_t param_count,
                             foam_block_info *items,
                             size_t item_size,
                             size_t capacity,
                             size_t *count,
                             foam_error *error);

/**
 * Lists the blocks as `foam_plan_blocks` does, with the owners that they have among `ranks` ranks. All ranks wait for
 * the one with the most work, in plain steps and in those with a check: the blocks, the longest plain work first, go
 * each to the rank that makes the time from one check to the next the least, with a bound on the bytes. Every rank
 * finds the same owners.
 *
 * Contract: As `foam_plan_blocks`.
 */
foam_status foam_plan_owners(const foam_config *config,
                             const foam_param *params,
                             size_t param_count,
                             int32_t ranks,
                             foam_block_info *items,
                             size_t item_size,
                             size_t capacity,
                             size_t *count,
                             foam_error *error);

/**
 * Lists the blocks of an optimizer, as `foam_plan_blocks` does. Works after a panic too.
 *
 * Contract: `optimizer` came from `foam_create`; `items` has `capacity` * `item_size` writable bytes; `count` is writable;
 * `error` is NULL or a record.
 */
foam_status foam_blocks(foam_optimizer *optimizer,
                        foam_block_info *items,
                        size_t item_size,
                        size_t capacity,
                        size_t *count,
                        foam_error *error);

/**
 * Writes the whole state to a safetensors file, keyed by parameter name. The file appears whole or
 * not at all: a temporary file beside it is flushed to the disk and then renamed. A symbolic link is
 * followed, the permissions of a file that is replaced are kept, and what is no regular file is refused.
 * With a `foam_comm` all ranks make this call, and rank 0 writes the one file, which is the same for every number
 * of ranks.
 *
 * Contract: `optimizer` came from `foam_create`; `path` is a C string; `error` is NULL or a record.
 */
foam_status foam_save_file(foam_optimizer *optimizer,
                           const char *path,
                           foam_error *error);

/**
 * Reads the state that `foam_save_file` wrote, into an optimizer created for the same parameters (in
 * any order) with options that give the same state. The run then continues bit for bit. A file that
 * does not fit is refused with the reason, and nothing changes. With a `foam_comm` all ranks make this call, each
 * reads its own blocks, and the number of ranks may be another than that of the save.
 *
 * Contract: `optimizer` came from `foam_create`; `path` is a C string; `error` is NULL or a record.
 */
foam_status foam_load_file(foam_optimizer *optimizer,
                           const char *path,
                           foam_error *error);

/**
 * Writes what `foam_save_file` writes into `data` of `capacity` bytes. `*size` receives the number of
 * bytes; pass `data` = NULL to ask for it, which does not read the state. With a `foam_comm` all ranks make this
 * call with room enough, and each receives all of the state.
 *
 * Contract: `optimizer` came from `foam_create`; `data` is NULL or has `capacity` writable bytes; `size` is
 * writable; `error` is NULL or a record.
 */
foam_status foam_save_memory(foam_optimizer *optimizer,
                             void *data,
                             size_t capacity,
                             size_t *size,
                             foam_error *error);

/**
 * Reads from memory what `foam_load_file` reads from a file.
 *
 * Contract: `optimizer` came from `foam_create`; `data` has `size` readable bytes; `error` is NULL or a record.
 */
foam_status foam_load_memory(foam_optimizer *optimizer,
                             const void *data,
                             size_t size,
                             foam_error *error);

/**
 * `*bytes` receives the bytes of the state of parameter `param_index` in the form of `foam_read_states`: the same
 * on every rank and for every number of ranks.
 *
 * Contract: `optimizer` came from `foam_create`; `bytes` is writable; `error` is NULL or a record.
 */
foam_status foam_param_state_bytes(foam_optimizer *optimizer,
                                   int64_t param_index,
                                   uint64_t *bytes,
                                   foam_error *error);

/**
 * Copies a part of every parameter's state, `parts[i]` of parameter i, for frameworks that keep the optimizer's
 * state parameter by parameter, and shard it themselves. With a `foam_comm` all ranks make this call together, each
 * with the parts that it wants. The bytes are those of the parameter's tensors in the checkpoint file, in the file's
 * order, and do not depend on the number of ranks; they belong to this version of the library and these options.
 *
 * Contract: `optimizer` came from `foam_create`; `parts` has `count` elements, whose memory is writable; `error` is NULL or a
 * record.
 */
foam_status foam_read_states(foam_optimizer *optimizer,
                             const foam_state_part *parts,
                             size_t count,
                             foam_error *error);

/**
 * Takes over what `foam_read_states` gave. Together the parts of all ranks must have all bytes of every parameter;
 * several ranks may have the same ones. `steps` and `skipped_steps` become those of `foam_stats`. What does not fit
 * is refused on every rank, and nothing changes.
 *
 * Contract: As `foam_read_states`; the parts' memory is only read.
 */
foam_status foam_write_states(foam_optimizer *optimizer,
                              const foam_state_part *parts,
                              size_t count,
                              uint64_t steps,
                              uint64_t skipped_steps,
                              foam_error *error);

/**
 * Fills `stack` with the defaults: one f32 block without a shape yet, scale 1, the configuration's root.
 * `struct_size` is `sizeof(foam_stack)` as the caller was compiled.
 *
 * Contract: `stack` points to `struct_size` writable bytes; `error` is NULL or a record.
 */
foam_status foam_stack_init(foam_stack *stack,
                            uint32_t struct_size,
                            foam_error *error);

/**
 * Describes the state buffers of a stack, in the order in which every other call takes them. `items` has room
 * for `capacity` elements of `item_size` = `sizeof(foam_stack_buffer)` bytes as the caller was compiled;
 * `*count` receives their number. Pass `items` = NULL and `capacity` = 0 to ask for it. If there is too
 * little room, nothing is written but `*count`.
 *
 * Contract: `config` and `stack` are structs whose `struct_size` is set; `items` has `capacity` * `item_size` writable
 * bytes; `count` is writable; `error` is NULL or a record.
 */
foam_status foam_stack_layout(const foam_config *config,
                              const foam_stack *stack,
                              foam_stack_buffer *items,
                              size_t item_size,
                              size_t capacity,
                              size_t *count,
                              foam_error *error);

/**
 * Bytes of workspace that any verb needs for this stack; they depend on `num_threads`.
 *
 * Contract: `config` and `stack` are structs whose `struct_size` is set; `bytes` is writable; `error` is NULL or a
 * record.
 */
foam_status foam_stack_workspace(const foam_config *config,
                                 const foam_stack *stack,
                                 size_t *bytes,
                                 foam_error *error);

/**
 * Writes the first values into the state buffers of a stack: zeros, a clock at step 0, and records with the
 * base epsilon. `state` has the `count` tensors of `foam_stack_layout`, in that order.
 *
 * Contract: `config` and `stack` are structs whose `struct_size` is set; the tensors' memory is valid for the call, and
 * nobody else accesses it meanwhile; `error` is NULL or a record.
 */
foam_status foam_stack_reset(const foam_config *config,
                             const foam_stack *stack,
                             const foam_tensor *state,
                             size_t count,
                             foam_error *error);

/**
 * Lets go of what the library keeps between calls on stacks: plans, and with CUDA handles and pinned memory on
 * the devices. Calls that come later make them anew; state is not affected, it is the caller's.
 */
void foam_stack_trim(void);

/**
 * Fills `args` with the defaults: no tensors, in place, all blocks active.
 * `struct_size` is `sizeof(foam_stack_args)` as the caller was compiled.
 *
 * Contract: `args` points to `struct_size` writable bytes; `error` is NULL or a record.
 */
foam_status foam_stack_args_init(foam_stack_args *args,
                                 uint32_t struct_size,
                                 foam_error *error);

/**
 * First part of a step: looks at the gradients, ticks the clocks of the active blocks whose gradients are
 * finite, and adds these to the statistics. Reads grads, params, active, clock and statistics; writes clock,
 * statistics and info. Numerical trouble is reported by `info`, not by an error.
 *
 * Contract: The structs have their `struct_size` set; the tensors' memory is valid for the call, and nobody else writes
 * it, or reads what is written, meanwhile; `error` is NULL or a record.
 */
foam_status foam_stack_accumulate(const foam_config *config,
                                  const foam_stack *stack,
                                  const foam_stack_args *args,
                                  foam_error *error);

/**
 * Second part of a step: measures, decides, refreshes and re-damps the factors of the blocks that took part
 * and whose clock says that a check is due. Call it in every step, or at least in every step with a check.
 * Reads info, clock, record, statistics, bases, spectra and inverse roots; writes all of these but clock and
 * statistics. SOAP's basis is checked after `foam_stack_apply`: its check reads info, clock, record, statistics,
 * bases, filter and moment, and writes all of these but clock and (`soap_form` = exact) statistics.
 *
 * Contract: As `foam_stack_accumulate`.
 */
foam_status foam_stack_check(const foam_config *config,
                             const foam_stack *stack,
                             const foam_stack_args *args,
                             foam_error *error);

/**
 * Last part of a step: the updates, to be added to the parameters. Reads grads, params, info, clock, inverse
 * roots, filter, moment and momentum; writes update, filter, moment, momentum and info. A block that took no
 * part gets an update of zeros and keeps its state. SOAP reads the bases in place of the inverse roots; with
 * `soap_form` = in_basis it adds the projected gradient to the statistics here.
 *
 * Contract: As `foam_stack_accumulate`.
 */
foam_status foam_stack_apply(const foam_config *config,
                             const foam_stack *stack,
                             const foam_stack_args *args,
                             foam_error *error);

/**
 * Lists what a verb (`FOAM_VERB_*`) of a stack takes and gives: its operands in order, then its results in order,
 * as the XLA handlers have them. `with_params` is 1 with the parameters among the operands, 0 without, and -1 for
 * what the weight decay needs; 0 is refused where a weight decay needs them. `items`, `item_size` =
 * `sizeof(foam_stack_port)`, `capacity` and `count` are as in `foam_stack_layout`.
 *
 * Contract: `config` and `stack` are structs whose `struct_size` is set; `items` has `capacity` * `item_size` writable
 * bytes; `count` is writable; `error` is NULL or a record.
 */
foam_status foam_stack_ports(const foam_config *config,
                             const foam_stack *stack,
                             int32_t verb,
                             int32_t with_params,
                             foam_stack_port *items,
                             size_t item_size,
                             size_t capacity,
                             size_t *count,
                             foam_error *error);

/**
 * Lists the fields of a factor's record in the buffer `FOAM_STACK_RECORD`, in the order of their words. A later
 * version may have more fields: look them up by name. `items`, `item_size` = `sizeof(foam_record_field)`,
 * `capacity` and `count` are as in `foam_stack_layout`.
 *
 * Contract: `items` has `capacity` * `item_size` writable bytes; `count` is writable; `error` is NULL or a record.
 */
foam_status foam_record_fields(foam_record_field *items,
                               size_t item_size,
                               size_t capacity,
                               size_t *count,
                               foam_error *error);

/**
 * `foam_stack_accumulate` as an XLA FFI handler of API version 0.1, for the platform cpu. Register it by its
 * address, for example with `jax.ffi.register_ffi_target`; both pointers are XLA's, `XLA_FFI_CallFrame *`
 * and `XLA_FFI_Error *`.
 *
 * Operands: grads, params (with_params = 1), active, clock, statistic_*. Results: clock, statistic_*, info,
 * workspace. Attributes of all three handlers: options ("key=value;key=value", after "preset=NAME" if
 * wanted), order (dimensions of a block; those in front are batch), with_params, preconditioned, dtype,
 * grad_scale, weight_decay_scale, root, and scale (apply).
 *
 * Contract: `call_frame` is a call frame of XLA's.
 */
void *foam_xla_accumulate(void *call_frame);

/**
 * `foam_stack_check` as an XLA FFI handler, as `foam_xla_accumulate`. Operands: info, clock, record,
 * statistic_*, basis_*, spectrum_*, inverse_root_*. Results: record, basis_*, spectrum_*, inverse_root_*,
 * info, workspace. SOAP, `keep_inverse_root` = 0, and an axis whose squares are shared (`share_squares`: statistic_* is a
 * result, too, and root_diagonal_* stands for inverse_root_*) have other ports; `foam_stack_ports` lists them. SOAP is
 * checked after `foam_xla_apply`.
 *
 * Contract: `call_frame` is a call frame of XLA's.
 */
void *foam_xla_check(void *call_frame);

/**
 * `foam_stack_apply` as an XLA FFI handler, as `foam_xla_accumulate`. Operands: grads, params (with_params
 * = 1), info, clock, inverse_root_*, filter, moment, momentum. Results: update, filter, moment, momentum,
 * info, workspace. Other ports as with `foam_xla_check`.
 *
 * Contract: `call_frame` is a call frame of XLA's.
 */
void *foam_xla_apply(void *call_frame);

/**
 * `foam_xla_accumulate` for the platform CUDA: device buffers, on XLA's stream, without waiting.
 *
 * Contract: `call_frame` is a call frame of XLA's.
 */
void *foam_xla_accumulate_cuda(void *call_frame);

/**
 * `foam_xla_check` for the platform CUDA. It waits for the device once.
 *
 * Contract: `call_frame` is a call frame of XLA's.
 */
void *foam_xla_check_cuda(void *call_frame);

/**
 * `foam_xla_apply` for the platform CUDA, without waiting.
 *
 * Contract: `call_frame` is a call frame of XLA's.
 */
void *foam_xla_apply_cuda(void *call_frame);

/**
 * Looks for CUDA: NVIDIA's driver, cuBLAS, cuSOLVER, and devices. `usable` receives 1 if `device = cuda` can
 * work, else 0. `text`, if not NULL, receives a report for people, cut to `capacity` bytes with the final
 * zero: a line for each library (its file and version, or what was looked for) and for each device, and a
 * verdict with its reason. `needed`, if not NULL, receives the bytes of the whole report. Loads the libraries
 * that it finds, and initialises the driver, as `foam_create` with a CUDA device would.
 *
 * Contract: `usable` and `needed` are NULL or writable; `text` is NULL or has `capacity` bytes; `error` is NULL or a
 * record.
 */
foam_status foam_cuda_probe(int32_t *usable,
                            char *text,
                            size_t capacity,
                            size_t *needed,
                            foam_error *error);

/**
 * All functions of the library, each under its name without `foam_`. Later versions only append.
 */
typedef struct foam_api {
    /** Bytes of the table. */
    uint32_t struct_size;
    /** `FOAM_API_VERSION` of the library. */
    uint32_t version;
    /** `foam_abi_version` */
    uint32_t (*abi_version)(void);
    /** `foam_build_info` */
    const char *(*build_info)(void);
    /** `foam_status_name` */
    const char *(*status_name)(foam_status status);
    /** `foam_config_init` */
    foam_status (*config_init)(foam_config *config, uint32_t struct_size, const char *preset, foam_error *error);
    /** `foam_config_set` */
    foam_status (*config_set)(foam_config *config, const char *key, const char *value, foam_error *error);
    /** `foam_config_get` */
    foam_status (*config_get)(const foam_config *config, const char *key, char *value, size_t capacity, foam_error *error);
    /** `foam_config_validate` */
    foam_status (*config_validate)(const foam_config *config, foam_error *error);
    /** `foam_config_check_due` */
    foam_status (*config_check_due)(const foam_config *config, int64_t step, int32_t *due, foam_error *error);
    /** `foam_param_init` */
    foam_status (*param_init)(foam_param *param, uint32_t struct_size, foam_error *error);
    /** `foam_create` */
    foam_status (*create)(const foam_config *config, const foam_param *params, size_t count, foam_optimizer **out, foam_error *error);
    /** `foam_destroy` */
    void (*destroy)(foam_optimizer *optimizer);
    /** `foam_synchronize` */
    foam_status (*synchronize)(foam_optimizer *optimizer, foam_error *error);
    /** `foam_step_args_init` */
    foam_status (*step_args_init)(foam_step_args *args, uint32_t struct_size, foam_error *error);
    /** `foam_step` */
    foam_status (*step)(foam_optimizer *optimizer, const foam_step_args *args, foam_error *error);
    /** `foam_set_option` */
    foam_status (*set_option)(foam_optimizer *optimizer, const char *key, const char *value, foam_error *error);
    /** `foam_get_option` */
    foam_status (*get_option)(foam_optimizer *optimizer, const char *key, char *value, size_t capacity, foam_error *error);
    /** `foam_stats` */
    foam_status (*stats)(foam_optimizer *optimizer, foam_stats_info *info, foam_error *error);
    /** `foam_factor_stats` */
    foam_status (*factor_stats)(foam_optimizer *optimizer, foam_factor_info *items, size_t item_size, size_t capacity, size_t *count, foam_error *error);
    /** `foam_factor_read` */
    foam_status (*factor_read)(foam_optimizer *optimizer, int64_t param_index, int64_t block, int64_t axis, int32_t what, double *values, size_t capacity, size_t *count, foam_error *error);
    /** `foam_exact_gap` */
    foam_status (*exact_gap)(foam_optimizer *optimizer, int64_t param_index, int64_t block, int64_t axis, double *gap, foam_error *error);
    /** `foam_plan_blocks` */
    foam_status (*plan_blocks)(const foam_config *config, const foam_param *params, size_t param_count, foam_block_info *items, size_t item_size, size_t capacity, size_t *count, foam_error *error);
    /** `foam_blocks` */
    foam_status (*blocks)(foam_optimizer *optimizer, foam_block_info *items, size_t item_size, size_t capacity, size_t *count, foam_error *error);
    /** `foam_save_file` */
    foam_status (*save_file)(foam_optimizer *optimizer, const char *path, foam_error *error);
    /** `foam_load_file` */
    foam_status (*load_file)(foam_optimizer *optimizer, const char *path, foam_error *error);
    /** `foam_save_memory` */
    foam_status (*save_memory)(foam_optimizer *optimizer, void *data, size_t capacity, size_t *size, foam_error *error);
    /** `foam_load_memory` */
    foam_status (*load_memory)(foam_optimizer *optimizer, const void *data, size_t size, foam_error *error);
    /** `foam_stack_init` */
    foam_status (*stack_init)(foam_stack *stack, uint32_t struct_size, foam_error *error);
    /** `foam_stack_layout` */
    foam_status (*stack_layout)(const foam_config *config, const foam_stack *stack, foam_stack_buffer *items, size_t item_size, size_t capacity, size_t *count, foam_error *error);
    /** `foam_stack_ports` */
    foam_status (*stack_ports)(const foam_config *config, const foam_stack *stack, int32_t verb, int32_t with_params, foam_stack_port *items, size_t item_size, size_t capacity, size_t *count, foam_error *error);
    /** `foam_record_fields` */
    foam_status (*record_fields)(foam_record_field *items, size_t item_size, size_t capacity, size_t *count, foam_error *error);
    /** `foam_stack_workspace` */
    foam_status (*stack_workspace)(const foam_config *config, const foam_stack *stack, size_t *bytes, foam_error *error);
    /** `foam_stack_reset` */
    foam_status (*stack_reset)(const foam_config *config, const foam_stack *stack, const foam_tensor *state, size_t count, foam_error *error);
    /** `foam_stack_trim` */
    void (*stack_trim)(void);
    /** `foam_stack_args_init` */
    foam_status (*stack_args_init)(foam_stack_args *args, uint32_t struct_size, foam_error *error);
    /** `foam_stack_accumulate` */
    foam_status (*stack_accumulate)(const foam_config *config, const foam_stack *stack, const foam_stack_args *args, foam_error *error);
    /** `foam_stack_check` */
    foam_status (*stack_check)(const foam_config *config, const foam_stack *stack, const foam_stack_args *args, foam_error *error);
    /** `foam_stack_apply` */
    foam_status (*stack_apply)(const foam_config *config, const foam_stack *stack, const foam_stack_args *args, foam_error *error);
    /** `foam_xla_accumulate` */
    void *(*xla_accumulate)(void *call_frame);
    /** `foam_xla_check` */
    void *(*xla_check)(void *call_frame);
    /** `foam_xla_apply` */
    void *(*xla_apply)(void *call_frame);
    /** `foam_xla_accumulate_cuda` */
    void *(*xla_accumulate_cuda)(void *call_frame);
    /** `foam_xla_check_cuda` */
    void *(*xla_check_cuda)(void *call_frame);
    /** `foam_xla_apply_cuda` */
    void *(*xla_apply_cuda)(void *call_frame);
    /** `foam_cuda_probe` */
    foam_status (*cuda_probe)(int32_t *usable, char *text, size_t capacity, size_t *needed, foam_error *error);
    /** `foam_create_ranks` */
    foam_status (*create_ranks)(const foam_config *config, const foam_comm *comm, const foam_param *params, size_t count, foam_optimizer **out, foam_error *error);
    /** `foam_plan_owners` */
    foam_status (*plan_owners)(const foam_config *config, const foam_param *params, size_t param_count, int32_t ranks, foam_block_info *items, size_t item_size, size_t capacity, size_t *count, foam_error *error);
    /** `foam_param_state_bytes` */
    foam_status (*param_state_bytes)(foam_optimizer *optimizer, int64_t param_index, uint64_t *bytes, foam_error *error);
    /** `foam_read_states` */
    foam_status (*read_states)(foam_optimizer *optimizer, const foam_state_part *parts, size_t count, foam_error *error);
    /** `foam_write_states` */
    foam_status (*write_states)(foam_optimizer *optimizer, const foam_state_part *parts, size_t count, uint64_t steps, uint64_t skipped_steps, foam_error *error);
    /** `foam_step_together` */
    foam_status (*step_together)(foam_optimizer *const *optimizers, const foam_step_args *args, size_t count, foam_error *error);
    /** `foam_diagnosis` */
    foam_status (*diagnosis)(foam_optimizer *optimizer, char *text, size_t capacity, size_t *needed, foam_error *error);
    /** `foam_diagnose` */
    foam_status (*diagnose)(const foam_config *config, foam_factor_info *factors, size_t item_size, size_t count, uint64_t *findings, char *text, size_t capacity, size_t *needed, foam_error *error);
} foam_api;

/**
 * Gives the table of all functions: the one symbol that a host has to look up. `version` is the
 * `FOAM_API_VERSION` that the host was compiled with. The result is NULL if the library is older than that (or
 * `version` is 0); ask for 1 then, which every library serves, and let its `build_info` say what it is. The table
 * lives as long as the library. Functions are only ever appended to it: `struct_size` says which are there.
 */
const foam_api *foam_get_api(uint32_t version);

/**
 * Says what `findings` of `foam_stats` means: a line for each finding, with its name, the factors that have it, the
 * option to change and a value to try; an empty text if nothing was found. `text`, if not NULL, is cut to `capacity`
 * bytes with the final zero; `needed`, if not NULL, receives the bytes of the whole text. The log function gets each
 * finding once, when it is made. A factor is judged from its twentieth check on, and one in ten judged factors makes a
 * finding. Works after a panic too.
 *
 * Contract: `optimizer` came from `foam_create`; `text` is NULL or has `capacity` bytes; `needed` is NULL or writable; `error`
 * is NULL or a record.
 */
foam_status foam_diagnosis(foam_optimizer *optimizer,
                           char *text,
                           size_t capacity,
                           size_t *needed,
                           foam_error *error);

/**
 * The same judgement of statistics that were read before: `count` factors of `item_size` =
 * `sizeof(foam_factor_info)` bytes each, of an optimizer with the options of `config`. `findings` receives the bits
 * of them all, and `findings` of each factor its own. `text`, `capacity` and `needed` are as in `foam_diagnosis`.
 *
 * Contract: `config` is a configuration; `factors` is NULL or has `count` * `item_size` writable bytes; `findings` and `needed`
 * are NULL or writable; `text` is NULL or has `capacity` bytes; `error` is NULL or a record.
 */
foam_status foam_diagnose(const foam_config *config,
                          foam_factor_info *factors,
                          size_t item_size,
                          size_t count,
                          uint64_t *findings,
                          char *text,
                          size_t capacity,
                          size_t *needed,
                          foam_error *error);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* FOAM_H */

//! Sizes and offsets of every struct of the ABI, as the Rust compiler lays them out.

use foam::abi::*;
use std::mem::{align_of, offset_of, size_of, size_of_val};

/// The text of `include/foam.layout`.
pub fn list() -> String {
    let mut text = String::from(HEAD);
    for table in [
        error(),
        dtype(),
        device(),
        tensor(),
        config(),
        param(),
        step_args(),
        stats_info(),
        factor_info(),
        stack(),
        stack_buffer(),
        stack_args(),
        block_info(),
        stack_port(),
        record_field(),
        comm(),
        state_part(),
        api(),
    ] {
        text.push('\n');
        text.push_str(&table);
    }
    text
}

const HEAD: &str = "\
/* The structs of the ABI on 64-bit machines, as C macros: tests/c/layout.c asserts them in C and C++,
   tests/header.rs in Rust. Regenerate: FOAM_UPDATE_HEADER=1 cargo test --test header

   STRUCT(name, size, alignment)
   FIELD(struct, field, offset, size) */
";

/// The table of one struct. A field that is missing here does not compile.
macro_rules! layout {
    ($function:ident, $type:ident { $($field:ident),+ $(,)? }) => {
        fn $function() -> String {
            // SAFETY: the structs of the ABI are plain data, for which zero is a value.
            let value: $type = unsafe { std::mem::zeroed() };
            let $type { $($field),+ } = &value;
            let name = stringify!($type);
            let mut text = format!("STRUCT({name}, {}, {})\n", size_of::<$type>(), align_of::<$type>());
            $(text.push_str(&format!(
                "FIELD({name}, {}, {}, {})\n",
                stringify!($field),
                offset_of!($type, $field),
                size_of_val($field)
            ));)+
            text
        }
    };
}

layout!(error, foam_error { struct_size, code, param_index, axis, native_code, message });
layout!(dtype, foam_dtype { code, bits, lanes });
layout!(device, foam_device { device_type, device_id });
layout!(tensor, foam_tensor { data, device, ndim, dtype, shape, strides, byte_offset });
layout!(
    config,
    foam_config {
        struct_size,
        flags,
        policy,
        cadence,
        grafting,
        statistic_dtype,
        nonfinite,
        negative_eigenvalues,
        device_type,
        device_id,
        bias_correction,
        merge_dims,
        normalized_grafting,
        nesterov,
        ema_momentum,
        nadam,
        decoupled_weight_decay,
        noise_floor,
        inject_fault,
        reserved,
        check_period,
        start_step,
        max_factor_dim,
        num_threads,
        inject_fault_step,
        root,
        exponent_multiplier,
        beta1,
        beta2,
        epsilon,
        epsilon_left,
        epsilon_right,
        epsilon_max,
        tau,
        residual_threshold,
        grafting_beta2,
        grafting_epsilon,
        momentum,
        weight_decay,
        lr,
        log,
        log_user,
        allocate,
        deallocate,
        allocator_user,
        epsilon_mode,
        precondition_1d,
        keep_matrix,
        preconditioner,
        soap_form,
        refresh_schedule,
        normalize_grads,
        refresh_method,
        max_precond_dim,
        front_period,
        front_steps,
        refresh_growth,
        kappa_threshold,
        correction_period,
        statistics_period,
        keep_inverse_root,
        qr_track,
        matmul_precision,
        even_blocks,
        refresh_delay,
        share_squares,
        reserved_2,
    }
);
layout!(
    param,
    foam_param {
        struct_size,
        flags,
        name,
        shape,
        ndim,
        dtype,
        lr_scale,
        weight_decay_scale,
        root,
        shard_axis,
        shard_start,
        shard_length,
    }
);
layout!(
    step_args,
    foam_step_args {
        struct_size,
        flags,
        count,
        params,
        grads,
        stream,
        skipped,
        lr,
        grad_scale,
        after,
        after_count
    }
);
layout!(
    stats_info,
    foam_stats_info {
        struct_size,
        flags,
        steps,
        skipped_steps,
        params,
        blocks,
        factors,
        checks,
        evd_calls,
        reuse_calls,
        proxy_calls,
        epsilon_updates,
        cap_refreshes,
        residual_calls,
        failed_evds,
        fallback_double,
        fallback_svd,
        fallback_stale,
        state_bytes_host,
        state_bytes_device,
        workspace_bytes,
        threads,
        seconds_inspect,
        seconds_accumulate,
        seconds_sense,
        seconds_refresh,
        seconds_redamp,
        seconds_apply,
        seconds_total,
        bound_exceeded,
        bound_average,
        bound_spectral,
        bound_sandwich,
        collectives,
        bytes_sent,
        bytes_received,
        plain_steps,
        qr_steps,
        qr_refreshes,
        qr_fallbacks,
        findings,
        qr_tracked,
        delayed_checks,
    }
);
layout!(
    factor_info,
    foam_factor_info {
        struct_size,
        last_branch,
        param_index,
        block,
        axis,
        dim,
        root,
        epsilon_base,
        epsilon,
        proxy,
        max_proxy,
        relative_change,
        alpha,
        gap_bound,
        residual,
        noise_floor,
        eigenvalue_min,
        eigenvalue_max,
        last_refresh,
        last_check,
        checks,
        evd_calls,
        reuse_calls,
        proxy_calls,
        epsilon_updates,
        cap_refreshes,
        residual_calls,
        failed_evds,
        fallback_double,
        fallback_svd,
        fallback_stale,
        bound_exceeded,
        bound_average,
        bound_spectral,
        bound_sandwich,
        kappa,
        orthogonality,
        qr_steps,
        qr_refreshes,
        qr_fallbacks,
        findings,
        qr_tracked,
        recent_refreshes,
        pending_since,
        delayed_checks,
    }
);
layout!(stack, foam_stack { struct_size, flags, shape, ndim, dtype, count, weight_decay_scale, root });
layout!(
    stack_buffer,
    foam_stack_buffer { struct_size, kind, axis, ndim, dtype, reserved, bytes, shape, name }
);
layout!(
    stack_args,
    foam_stack_args {
        struct_size,
        flags,
        state,
        state_out,
        state_count,
        grads,
        params,
        active,
        info_in,
        info,
        update,
        workspace,
        workspace_size,
        stream,
        scale,
        grad_scale,
    }
);
layout!(
    block_info,
    foam_block_info {
        struct_size,
        ndim,
        param_index,
        block,
        stack,
        offset,
        elements,
        factors,
        step_cost,
        check_cost,
        refresh_cost,
        state_bytes,
        shape,
        strides,
        owner,
        cost,
    }
);
layout!(comm, foam_comm { struct_size, rank, size, flags, user, all_to_allv, all_gatherv });
layout!(state_part, foam_state_part { offset, bytes, data });
layout!(
    stack_port,
    foam_stack_port { struct_size, flags, state, ndim, dtype_count, reserved, dtypes, shape, name }
);
layout!(record_field, foam_record_field { struct_size, kind, word, words, name });

/// The table of all functions: two numbers, then an address for each function.
fn api() -> String {
    let pointer = size_of::<*const u8>();
    let mut text = format!("STRUCT(foam_api, {}, {})\n", size_of::<foam_api>(), align_of::<foam_api>());
    text.push_str(&format!("FIELD(foam_api, struct_size, {}, 4)\n", offset_of!(foam_api, struct_size)));
    text.push_str(&format!("FIELD(foam_api, version, {}, 4)\n", offset_of!(foam_api, version)));
    for (place, name) in FOAM_API_FUNCTIONS.iter().enumerate() {
        let field = name.strip_prefix("foam_").expect("a function of the library is called so");
        text.push_str(&format!("FIELD(foam_api, {field}, {}, {pointer})\n", 8 + place * pointer));
    }
    text
}

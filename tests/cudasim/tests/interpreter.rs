//! The PTX interpreter runs NVRTC's output and agrees with Rust.

mod common;

use common::{Gpu, MATH, REDUCE, TYPES};

fn spread(n: usize) -> Vec<f64> {
    (0..n).map(|i| 0.001 + (i as f64 * 0.37).exp2() % 23.0 + i as f64 * 0.01).collect()
}

/// The most that two numbers differ, in units of the last place of `b`.
fn ulps64(a: f64, b: f64) -> f64 {
    if a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan() || a == b {
        return 0.0;
    }
    (a - b).abs() / (b.abs().next_up() - b.abs())
}

fn ulps32(a: f32, b: f32) -> f64 {
    if a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan() || a == b {
        return 0.0;
    }
    f64::from((a - b).abs()) / f64::from(b.abs().next_up() - b.abs())
}

fn check64(gpu: &mut Gpu, name: &str, limit: f64, f: fn(f64, f64) -> f64) {
    let mut x = spread(300);
    let mut y: Vec<f64> = spread(300).into_iter().rev().map(|v| v * 0.3 - 2.0).collect();
    x.extend([0.0, 1.0, 1e-310, 1e300, f64::INFINITY, f64::NAN]);
    y.extend([0.5, -1.0, 2.0, -0.25, 3.0, 1.0]);
    let n = x.len() as i32;
    let kernel = gpu.kernel(MATH, name);
    let (dx, dy, out) = (gpu.upload(&x), gpu.upload(&y), gpu.alloc::<f64>(x.len()));
    assert_eq!(gpu.launch(kernel, [2, 1, 1], 64, 0, args![dx, dy, out, n]), 0);
    for (i, got) in gpu.download::<f64>(out, x.len()).into_iter().enumerate() {
        let want = f(x[i], y[i]);
        assert!(ulps64(got, want) <= limit, "{name}({}, {}) = {got}, not {want}", x[i], y[i]);
    }
}

fn check32(gpu: &mut Gpu, name: &str, limit: f64, f: fn(f32, f32) -> f32) {
    let mut x: Vec<f32> = spread(300).into_iter().map(|v| v as f32).collect();
    let mut y: Vec<f32> = spread(300).into_iter().rev().map(|v| (v * 0.3 - 2.0) as f32).collect();
    x.extend([0.0, 1.0, 1e-40, 1e30, f32::INFINITY, f32::NAN]);
    y.extend([0.5, -1.0, 2.0, -0.25, 3.0, 1.0]);
    let n = x.len() as i32;
    let kernel = gpu.kernel(MATH, name);
    let (dx, dy, out) = (gpu.upload(&x), gpu.upload(&y), gpu.alloc::<f32>(x.len()));
    assert_eq!(gpu.launch(kernel, [2, 1, 1], 64, 0, args![dx, dy, out, n]), 0);
    for (i, got) in gpu.download::<f32>(out, x.len()).into_iter().enumerate() {
        let want = f(x[i], y[i]);
        assert!(ulps32(got, want) <= limit, "{name}({}, {}) = {got}, not {want}", x[i], y[i]);
    }
}

#[test]
fn double_functions_of_libdevice() {
    let mut gpu = Gpu::new();
    check64(&mut gpu, "exp_f64", 1.0, |a, _| a.exp());
    check64(&mut gpu, "log_f64", 1.0, |a, _| a.ln());
    check64(&mut gpu, "pow_f64", 2.0, f64::powf);
    check64(&mut gpu, "expm1_f64", 1.0, |a, _| a.exp_m1());
    check64(&mut gpu, "log1p_f64", 1.0, |a, _| a.ln_1p());
    check64(&mut gpu, "sqrt_f64", 0.0, |a, _| a.sqrt());
    check64(&mut gpu, "rsqrt_f64", 1.0, |a, _| 1.0 / a.sqrt());
    check64(&mut gpu, "cbrt_f64", 1.0, |a, _| a.cbrt());
    check64(&mut gpu, "div_f64", 0.0, |a, b| a / b);
    check64(&mut gpu, "sin_f64", 2.0, |a, _| a.sin());
    check64(&mut gpu, "tanh_f64", 2.0, |a, _| a.tanh());
    check64(&mut gpu, "fmod_f64", 0.0, |a, b| a % b);
    check64(&mut gpu, "hypot_f64", 2.0, f64::hypot);
    check64(&mut gpu, "fma_f64", 0.0, |a, b| a.mul_add(b, 1.0));
    gpu.clean();
}

#[test]
fn single_functions_of_libdevice() {
    let mut gpu = Gpu::new();
    check32(&mut gpu, "exp_f32", 2.0, |a, _| f64::from(a).exp() as f32);
    check32(&mut gpu, "log_f32", 2.0, |a, _| f64::from(a).ln() as f32);
    check32(&mut gpu, "pow_f32", 4.0, |a, b| f64::from(a).powf(f64::from(b)) as f32);
    check32(&mut gpu, "sqrt_f32", 0.0, |a, _| a.sqrt());
    check32(&mut gpu, "div_f32", 0.0, |a, b| a / b);
    check32(&mut gpu, "sin_f32", 2.0, |a, _| f64::from(a).sin() as f32);
    check32(&mut gpu, "fma_f32", 0.0, |a, b| a.mul_add(b, 1.0));
    gpu.clean();
}

#[test]
fn directed_rounding_brackets_the_exact_result() {
    let mut gpu = Gpu::new();
    check32(&mut gpu, "add_down_f32", 0.0, |a, b| {
        // The sum and what it lost, which is exact because the larger operand comes first.
        let (large, small) = if a.abs() > b.abs() { (a, b) } else { (b, a) };
        let sum = f64::from(large) + f64::from(small);
        let lost = f64::from(small) - (sum - f64::from(large));
        let near = sum as f32;
        let above = f64::from(near) > sum || f64::from(near) == sum && lost < 0.0;
        if above && near.is_finite() { near.next_down() } else { near }
    });
    check32(&mut gpu, "mul_up_f32", 0.0, |a, b| {
        let exact = f64::from(a) * f64::from(b);
        let near = exact as f32;
        if f64::from(near) < exact { near.next_up() } else { near }
    });
    check32(&mut gpu, "div_zero_f32", 0.0, |a, b| {
        let near = a / b;
        let excess = f64::from(near).mul_add(f64::from(b), -f64::from(a)) / f64::from(b);
        if near > 0.0 && excess > 0.0 {
            near.next_down()
        } else if near < 0.0 && excess < 0.0 {
            near.next_up()
        } else {
            near
        }
    });
    check64(&mut gpu, "fma_up_f64", 1.0, |a, b| a.mul_add(b, 1.0));
    check64(&mut gpu, "add_down_f64", 1.0, |a, b| a + b);
    gpu.clean();
}

#[test]
fn reductions_with_shared_memory_and_shuffles() {
    let mut gpu = Gpu::new();
    let x: Vec<f64> = (0..1000).map(|i| f64::from(i % 17) - 3.0).collect();
    let want: f64 = x.iter().sum();
    let (dx, out, n) = (gpu.upload(&x), gpu.alloc::<f64>(1), 1000i32);
    let sum = gpu.kernel(REDUCE, "sum");
    for threads in [32, 96, 256, 1024] {
        assert_eq!(gpu.launch(sum, [1, 1, 1], threads, 0, args![dx, out, n]), 0);
        assert_eq!(gpu.download::<f64>(out, 1), [want], "{threads} threads");
    }
    let x: Vec<f32> = (0..512).map(|i| (i % 13) as f32).collect();
    let (dx, out) = (gpu.upload(&x), gpu.alloc::<f32>(2));
    let sum = gpu.also("sum_dynamic");
    assert_eq!(gpu.launch(sum, [2, 1, 1], 256, 1024, args![dx, out]), 0);
    let want: Vec<f32> = x.chunks(256).map(|c| c.iter().sum()).collect();
    assert_eq!(gpu.download::<f32>(out, 2), want);
    gpu.clean();
}

#[test]
fn atomics_of_all_types() {
    // One of them keeps the number of the thread that comes first.
    let mut gpu = Gpu::with(&[("blocks", "ordered")]);
    let kernel = gpu.kernel(REDUCE, "atomics");
    let u = gpu.upload(&[0u32, 0, 0, 7, 0, 0]);
    let (w, f, d, s) =
        (gpu.upload(&[0u64; 3]), gpu.upload(&[0f32]), gpu.upload(&[0f64]), gpu.upload(&[0i32, -1000]));
    assert_eq!(gpu.launch(kernel, [2, 1, 1], 64, 0, args![u, w, f, d, s]), 0);
    let xor = (0..128).fold(0, |a, b| a ^ b);
    assert_eq!(gpu.download::<u32>(u, 6), [127 * 64, u32::MAX, 127, 0, 128 % 10, xor]);
    assert_eq!(gpu.download::<u64>(w, 3), [(127 * 64) << 32, 127 * 127, 42]);
    assert_eq!(gpu.download::<f32>(f, 1), [64.0]);
    assert_eq!(gpu.download::<f64>(d, 1), [32.0]);
    assert_eq!(gpu.download::<i32>(s, 2), [-127, 0]);
    gpu.clean();
}

#[test]
fn votes_shuffles_and_bit_counts() {
    let mut gpu = Gpu::new();
    let kernel = gpu.kernel(REDUCE, "votes");
    let out = gpu.alloc::<u32>(320);
    assert_eq!(gpu.launch(kernel, [1, 1, 1], 32, 0, args![out]), 0, "{}", common::reason());
    let got = gpu.download::<u32>(out, 320);
    let ballot = (0..32).filter(|i| i % 3 == 0).fold(0u32, |b, i| b | 1 << i);
    for i in 0..32u32 {
        let at = |row: u32| got[(32 * row + i) as usize];
        assert_eq!(at(0), ballot);
        assert_eq!((at(1), at(2)), (1, 0));
        assert_eq!(at(3), (i + 1) % 32 * 10);
        assert_eq!(at(4), i ^ 5);
        assert_eq!(at(5), if i < 3 { i } else { i - 3 });
        assert_eq!(at(6), i / 8 * 8 + 1);
        assert_eq!(at(7), 0xf << (i / 4 * 4));
        let first = if i == 0 { 0 } else { i.trailing_zeros() + 1 };
        assert_eq!(
            at(8),
            i.count_ones() + 100 * i.leading_zeros() + 10000 * first + (i.reverse_bits() >> 31)
        );
        assert_eq!(at(9), 16);
    }
    gpu.clean();
}

#[test]
fn the_last_block_sees_the_whole_sum() {
    let mut gpu = Gpu::new();
    let kernel = gpu.kernel(REDUCE, "last_block");
    let out = gpu.upload(&[0u32]);
    assert_eq!(gpu.launch(kernel, [10, 1, 1], 64, 0, args![out]), 0);
    assert_eq!(gpu.download::<u32>(out, 1), [10 * 63 * 32]);
    gpu.clean();
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Batch {
    x: [u64; 16],
    y: [u64; 16],
    n: [i32; 16],
    scale: f64,
    tag: u8,
}

#[test]
fn large_parameters_by_value_are_indexed() {
    for name in ["by_value", "by_value_copied"] {
        let mut gpu = Gpu::new();
        let kernel = gpu.kernel(TYPES, name);
        let mut batch = Batch { x: [0; 16], y: [0; 16], n: [0; 16], scale: 2.5, tag: 200 };
        for b in 0..16 {
            let x: Vec<f32> = (0..b + 1).map(|i| (b * 100 + i) as f32).collect();
            batch.x[b] = gpu.upload(&x);
            batch.y[b] = gpu.upload(&vec![-1f32; b + 1]);
            batch.n[b] = b as i32 + 1;
        }
        assert_eq!(gpu.launch(kernel, [1, 16, 1], 32, 0, args![batch]), 0);
        for b in 0..16usize {
            for (i, got) in gpu.download::<f32>(batch.y[b], b + 1).into_iter().enumerate() {
                let x = (b * 100 + i) as f32;
                let want = match name {
                    "by_value" => x * 2.5 + 200.0,
                    _ if i < b => x - b as f32,
                    _ => -1.0,
                };
                assert_eq!(got, want, "{name}: block {b}, element {i}");
            }
        }
        gpu.clean();
    }
}

#[test]
fn functions_are_called_with_structures_pointers_and_recursion() {
    let mut gpu = Gpu::new();
    let kernel = gpu.kernel(TYPES, "calls");
    let x: Vec<f64> = (0..40).map(|i| f64::from(i) * 1.37).collect();
    let (dx, out, n) = (gpu.upload(&x), gpu.alloc::<f64>(40), 40i32);
    assert_eq!(gpu.launch(kernel, [1, 1, 1], 64, 0, args![dx, out, n]), 0);
    let fibonacci = [0, 1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89];
    for (i, got) in gpu.download::<f64>(out, 40).into_iter().enumerate() {
        let (low, high) = (x[i].floor(), x[i] - x[i].floor());
        let want = low + 100.0 * (high * 10.0).floor() + 2000.0 + 1e6 * f64::from(fibonacci[i % 12]);
        assert_eq!(got, want, "thread {i}");
    }
    gpu.clean();
}

#[test]
fn constants_and_variables_are_initialised() {
    let mut gpu = Gpu::new();
    let kernel = gpu.kernel(TYPES, "constants");
    let out = gpu.alloc::<f32>(12);
    assert_eq!(gpu.launch(kernel, [1, 1, 1], 12, 0, args![out]), 0);
    for (i, got) in gpu.download::<f32>(out, 12).into_iter().enumerate() {
        let want = [1.5, -2.5, 3.5, -4.5][i % 4]
            + [10.0, 20.0, 30.0][i % 3]
            + [[1.0, 2.0], [3.0, 4.0]][i % 2][i / 2 % 2]
            + 5.0;
        assert_eq!(got, want);
    }
    gpu.clean();
}

#[test]
fn every_half_converts_and_rounds() {
    use half::{bf16, f16};
    let mut gpu = Gpu::new();
    let kernel = gpu.kernel(TYPES, "halves");
    let all: Vec<u16> = (0..=u16::MAX).collect();
    let n = all.len() as i32;
    let (input, wide) = (gpu.upload(&all), gpu.alloc::<f32>(all.len()));
    let (halves, floats) = (gpu.alloc::<u16>(all.len()), gpu.alloc::<u16>(all.len()));
    assert_eq!(gpu.launch(kernel, [256, 1, 1], 256, 0, args![input, wide, halves, floats, n]), 0);
    let (wide, halves) = (gpu.download::<f32>(wide, all.len()), gpu.download::<u16>(halves, all.len()));
    let floats = gpu.download::<u16>(floats, all.len());
    for i in 0..all.len() {
        let f = f16::from_bits(all[i]).to_f32();
        if f.is_nan() {
            assert!(
                wide[i].is_nan() && f16::from_bits(halves[i]).is_nan() && bf16::from_bits(floats[i]).is_nan()
            );
            continue;
        }
        assert_eq!(wide[i].to_bits(), f.to_bits());
        assert_eq!(halves[i], f16::from_f32(f * 1.001).to_bits());
        assert_eq!(floats[i], bf16::from_f32(f * 1.001).to_bits());
    }
    gpu.clean();
}

#[test]
fn integer_arithmetic_of_all_widths() {
    macro_rules! mix {
        ($t:ty, $a:expr, $b:expr) => {{
            let (a, b) = ($a as $t, $b as $t);
            let (q, r) = if b == 0 { (0, a) } else { (a.wrapping_div(b), a.wrapping_rem(b)) };
            (q ^ (r << 3))
                .wrapping_add(a >> 5)
                .wrapping_sub(a.min(b))
                .wrapping_add(a.max(b).wrapping_mul(3))
                .wrapping_add((a < b) as $t)
        }};
    }
    let mut gpu = Gpu::new();
    let kernel = gpu.kernel(TYPES, "integers");
    let x: Vec<i32> = (0..200).map(|i: i32| i.wrapping_mul(0x1234_5677) ^ (i << 7)).collect();
    let y: Vec<i32> = (0..200).map(|i: i32| i.wrapping_mul(-987_654_321) >> (i % 29)).collect();
    let (dx, dy, out, n) = (gpu.upload(&x), gpu.upload(&y), gpu.alloc::<i64>(1600), 200i32);
    assert_eq!(gpu.launch(kernel, [4, 1, 1], 64, 0, args![dx, dy, out, n]), 0);
    let got = gpu.download::<i64>(out, 1600);
    for i in 0..200 {
        let (a, b) = (x[i], y[i]);
        let wide = i64::from(a) << 20 | i64::from(b as u32);
        let row = &got[8 * i..8 * i + 8];
        assert_eq!(row[0], i64::from(mix!(i32, a, b)), "{a} {b}");
        assert_eq!(row[1], i64::from(mix!(u32, a, b)), "{a} {b}");
        assert_eq!(row[2], mix!(i64, wide, b), "{wide} {b}");
        assert_eq!(row[3], mix!(u64, wide, b as u32) as i64, "{wide} {b}");
        // Short arithmetic is done in int and cut at the end.
        let (sa, sb) = (i32::from(a as i16), i32::from(b as i16));
        let (q, r) = if sb == 0 { (0, sa) } else { (sa / sb, sa % sb) };
        let (q, r) = (i32::from(q as i16), i32::from(r as i16));
        let short = (q ^ (r << 3)) + (sa >> 5) - sa.min(sb) + sa.max(sb) * 3 + i32::from(sa < sb);
        assert_eq!(row[4], i64::from(short as i16), "{sa} {sb}");
        let high = (i64::from(a) * i64::from(b)) >> 32;
        let wide_high = ((wide as u64 as u128 * wide as u64 as u128) >> 64) as i64;
        assert_eq!(row[5], high.wrapping_add(wide_high), "{a} {b}");
        let pair = u64::from(b as u32) << 32 | u64::from(a as u32);
        let funnel = (pair << (a & 31) >> 32) as u32;
        let bytes = pair.to_le_bytes();
        let perm = u32::from_le_bytes([bytes[0], bytes[4], bytes[1], bytes[5]]);
        assert_eq!(row[6] as u32, funnel.wrapping_add(perm), "{a} {b}");
        assert_eq!(row[7], wide as f64 as i64 + (a as f32) as i64 + i64::from(a as i8), "{a} {b}");
    }
    gpu.clean();
}

#[test]
fn vector_loads_and_stores() {
    let mut gpu = Gpu::new();
    let kernel = gpu.kernel(TYPES, "vectors");
    let quads: Vec<f32> = (0..32).map(|i| i as f32).collect();
    let pairs: Vec<f64> = (0..16).map(f64::from).collect();
    let (a, b) = (gpu.upload(&quads), gpu.alloc::<f32>(32));
    let (c, d) = (gpu.upload(&pairs), gpu.alloc::<f64>(16));
    assert_eq!(gpu.launch(kernel, [1, 1, 1], 8, 0, args![a, b, c, d]), 0);
    let want: Vec<f32> = quads.chunks(4).flat_map(|q| q.iter().rev().copied().collect::<Vec<_>>()).collect();
    assert_eq!(gpu.download::<f32>(b, 32), want);
    let want: Vec<f64> = pairs.chunks(2).flat_map(|q| [q[1], q[0]]).collect();
    assert_eq!(gpu.download::<f64>(d, 16), want);
    gpu.clean();
}

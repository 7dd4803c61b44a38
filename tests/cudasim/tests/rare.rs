//! Instructions that NVRTC rarely emits, from PTX written by hand.

mod common;

use common::{Gpu, reason};

const RARE: &str = include_str!("fixtures/rare.ptx");

#[test]
fn rare_instructions_compute_what_the_manual_says() {
    let mut gpu = Gpu::with(&[("capability", "8.0")]);
    let kernel = gpu.kernel(RARE, "rare");
    let x = 0x1234_5f87u32;
    let out = gpu.upload(&[0u32; 29]);
    assert_eq!(gpu.launch(kernel, [1, 1, 1], 32, 64, args![out, x]), 0, "{}", reason());
    let got = gpu.download::<u32>(out, 29);
    let field = x >> 4 & 0xff;
    let inserted = !(0xfff << 8) | (x & 0xfff) << 8;
    let (b, c) = (0x0f0f_0f0fu32, 0x00ff_ff00u32);
    let majority = x & b | x & c | b & c;
    let want = [
        field as u8 as i8 as i32 as u32,
        field,
        inserted,
        majority,
        x ^ b ^ c,
        11,
        u32::MAX,
        0,
        3,
        1,
        (-2.5f32).to_bits(),
        1f32.to_bits(),
        // 1 and 2: 1·1 + 1 = 2 and 2·2 + 2 = 6.
        0x4600_4000,
        0x3f81_3f81,
        77,
        16,
        -7i32 as u32,
        1002,
        28,
        x - 100 + 1000,
        -128i32 as u32,
        6,
        0,
        127,
        16_777_218f32.to_bits(),
        307,
        f32::NAN.to_bits(),
        1f32.to_bits(),
        31 * 16,
    ];
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        assert_eq!(*got, want, "result {i}: {got:#x}, not {want:#x}");
    }
    gpu.clean();
    // The directive limits the block.
    assert_eq!(gpu.launch(kernel, [1, 1, 1], 64, 64, args![out, x]), 1);
    assert!(reason().contains("at most 32"), "{}", reason());
}

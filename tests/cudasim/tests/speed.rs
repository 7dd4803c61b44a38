//! How fast the interpreter is; prints, and asserts nothing. Run with `--ignored --nocapture`.

mod common;

use common::{Gpu, MATH, REDUCE, TYPES, count};

#[test]
#[ignore = "prints a speed"]
fn instructions_per_second() {
    for (ptx, name, large) in
        [(TYPES, "add_to", 1 << 20), (MATH, "pow_f64", 1 << 17), (REDUCE, "sum", 1 << 20)]
    {
        let mut gpu = Gpu::new();
        let kernel = gpu.kernel(ptx, name);
        let x = gpu.upload(&vec![1.5f64; large]);
        let out = gpu.upload(&vec![1.25f64; large]);
        let n = large as i32;
        let before = std::time::Instant::now();
        let blocks = [large as u32 / 256, 1, 1];
        let status = match name {
            "pow_f64" => gpu.launch(kernel, blocks, 256, 0, args![x, x, out, n]),
            "sum" => gpu.launch(kernel, [1, 1, 1], 256, 0, args![x, out, n]),
            _ => gpu.launch(kernel, blocks, 256, 0, args![x, out, n]),
        };
        assert_eq!(status, 0);
        let seconds = before.elapsed().as_secs_f64();
        let instructions = count("instructions");
        println!(
            "{name}: {:.1} M instructions, {:.0} M/s",
            instructions as f64 / 1e6,
            instructions as f64 / seconds / 1e6
        );
    }
}

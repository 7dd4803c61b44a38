//! The UCI digits, compiled into the program: see examples/data/README.md for source and licence.

use crate::random::Random;
use ndarray::{Array2, Axis};

static DIGITS: &[u8] = include_bytes!("../data/digits.bin");

/// Pixels of an image.
pub const PIXELS: usize = 64;
/// Digits to tell apart.
pub const CLASSES: usize = 10;
const BITS: usize = 5;
const RECORD: usize = 1 + PIXELS * BITS / 8;
const BRIGHTEST: f32 = 16.0;
const TEST_IMAGES: usize = 360;
/// The split is part of the task: the same whatever the seed of the run.
const SPLIT_SEED: u64 = 1998;

/// Images, one a row with pixels in [0, 1], and their labels.
#[derive(Clone)]
pub struct Images {
    pub pixels: Array2<f32>,
    pub labels: Vec<u8>,
}

impl Images {
    /// Number of images.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// The images at `rows`.
    pub fn select(&self, rows: &[usize]) -> Images {
        Images {
            pixels: self.pixels.select(Axis(0), rows),
            labels: rows.iter().map(|row| self.labels[*row]).collect(),
        }
    }
}

/// The training and the test part of the data set.
pub fn digits() -> (Images, Images) {
    let all = unpack();
    let mut order: Vec<usize> = (0..all.len()).collect();
    Random::new(SPLIT_SEED).shuffle(&mut order);
    let (test, train) = order.split_at(TEST_IMAGES);
    (all.select(train), all.select(test))
}

fn unpack() -> Images {
    let records = DIGITS.chunks_exact(RECORD);
    let pixel = |record: &[u8], place: usize| {
        let bit = place * BITS;
        // Five bits may straddle two bytes; the last pixel ends with the record.
        let low = u16::from(record[1 + bit / 8]);
        let high = u16::from(*record.get(2 + bit / 8).unwrap_or(&0));
        ((low | high << 8) >> (bit % 8) & 0x1f) as f32 / BRIGHTEST
    };
    let labels: Vec<u8> = records.clone().map(|record| record[0]).collect();
    let values: Vec<f32> =
        records.flat_map(|record| (0..PIXELS).map(move |place| pixel(record, place))).collect();
    // `PIXELS` values were pushed for each label.
    let pixels = Array2::from_shape_vec((labels.len(), PIXELS), values).expect("one row a label");
    Images { pixels, labels }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_holds_the_published_data_set() {
        let all = unpack();
        assert_eq!(all.len(), 1797);
        let mut count = [0; CLASSES];
        all.labels.iter().for_each(|label| count[*label as usize] += 1);
        assert_eq!(count, [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]);
        let first: Vec<f32> = all.pixels.row(0).iter().take(8).map(|p| p * BRIGHTEST).collect();
        assert_eq!(first, [0.0, 0.0, 5.0, 13.0, 9.0, 1.0, 0.0, 0.0]);
        assert!(all.pixels.iter().all(|p| (0.0..=1.0).contains(p)));
    }

    #[test]
    fn the_split_shares_no_image() {
        let (train, test) = digits();
        assert_eq!((train.len(), test.len()), (1437, 360));
        let total: f32 = unpack().pixels.sum();
        assert!((train.pixels.sum() + test.pixels.sum() - total).abs() < 1.0);
    }
}

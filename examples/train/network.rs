//! A multi-layer perceptron with ReLU units and softmax cross-entropy, forward and backward.

use crate::data::Images;
use crate::random::Random;
use ndarray::{Array1, Array2, ArrayView2, Axis, Zip};

/// One affine map, y = x·W + b; also the shape of its gradient.
#[derive(Clone)]
pub struct Layer {
    /// Inputs × outputs.
    pub weight: Array2<f32>,
    pub bias: Array1<f32>,
}

/// Affine maps with ReLU between them; the last one gives the logits.
#[derive(Clone)]
pub struct Network {
    pub layers: Vec<Layer>,
}

/// What the network is worth on a set of images.
#[derive(Clone, Copy)]
pub struct Evaluation {
    /// Mean cross-entropy in nats.
    pub loss: f64,
    /// Fraction of images whose largest logit is the right one.
    pub accuracy: f64,
}

impl Network {
    /// A network of these widths, with He's initialisation.
    pub fn new(widths: &[usize], random: &mut Random) -> Self {
        let layer = |pair: &[usize]| {
            let deviation = (2.0 / pair[0] as f32).sqrt();
            let mut weight = Array2::zeros((pair[0], pair[1]));
            weight.iter_mut().for_each(|w| *w = deviation * random.normal());
            Layer { weight, bias: Array1::zeros(pair[1]) }
        };
        Network { layers: widths.windows(2).map(layer).collect() }
    }

    /// Loss of a batch, and its gradient.
    pub fn loss_and_gradient(&self, batch: &Images) -> (f64, Vec<Layer>) {
        // inputs[i] is what layer i reads.
        let mut inputs = vec![batch.pixels.clone()];
        for layer in &self.layers[..self.layers.len() - 1] {
            let mut units = affine(layer, inputs[inputs.len() - 1].view());
            units.mapv_inplace(|u| u.max(0.0));
            inputs.push(units);
        }
        let last = self.layers.len() - 1;
        let mut delta = affine(&self.layers[last], inputs[last].view());
        let loss = softmax(&mut delta, &batch.labels);
        // d loss / d logits = (probability − one-hot) / batch
        for (mut row, label) in delta.rows_mut().into_iter().zip(&batch.labels) {
            row[*label as usize] -= 1.0;
        }
        delta /= batch.len() as f32;

        let mut gradient = Vec::with_capacity(self.layers.len());
        for (layer, input) in self.layers.iter().zip(&inputs).rev() {
            gradient.push(Layer { weight: input.t().dot(&delta), bias: delta.sum_axis(Axis(0)) });
            if gradient.len() < self.layers.len() {
                let mut below = delta.dot(&layer.weight.t());
                // ReLU passes the gradient on where its output, which is this layer's input, is positive.
                Zip::from(&mut below).and(input).for_each(|d, unit| *d = if *unit > 0.0 { *d } else { 0.0 });
                delta = below;
            }
        }
        gradient.reverse();
        (loss, gradient)
    }

    /// Loss and accuracy on `images`.
    pub fn evaluate(&self, images: &Images) -> Evaluation {
        // `new` makes a layer for every pair of widths.
        let (last, hidden) = self.layers.split_last().expect("at least two widths");
        let mut units = images.pixels.clone();
        for layer in hidden {
            units = affine(layer, units.view());
            units.mapv_inplace(|u| u.max(0.0));
        }
        let mut logits = affine(last, units.view());
        let right = logits.rows().into_iter().zip(&images.labels).filter(|(row, label)| {
            let own = row[**label as usize];
            row.iter().all(|logit| *logit <= own)
        });
        let accuracy = right.count() as f64 / images.len() as f64;
        Evaluation { loss: softmax(&mut logits, &images.labels), accuracy }
    }
}

fn affine(layer: &Layer, input: ArrayView2<f32>) -> Array2<f32> {
    input.dot(&layer.weight) + &layer.bias
}

/// Turns logits into probabilities, row by row, and gives the mean cross-entropy of `labels`.
fn softmax(logits: &mut Array2<f32>, labels: &[u8]) -> f64 {
    let mut loss = 0.0;
    for (mut row, label) in logits.rows_mut().into_iter().zip(labels) {
        let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let own = row[*label as usize] - largest;
        row.mapv_inplace(|logit| (logit - largest).exp());
        let total = row.sum();
        loss += f64::from(total.ln() - own);
        row /= total;
    }
    loss / labels.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{CLASSES, PIXELS, digits};

    /// Loss after moving the network along `direction`.
    fn moved(network: &Network, direction: &[Layer], length: f32) -> f64 {
        let mut network = network.clone();
        for (layer, way) in network.layers.iter_mut().zip(direction) {
            layer.weight.scaled_add(length, &way.weight);
            layer.bias.scaled_add(length, &way.bias);
        }
        let (_, test) = digits();
        network.evaluate(&test).loss
    }

    #[test]
    fn the_gradient_agrees_with_finite_differences() {
        let (_, test) = digits();
        let mut random = Random::new(7);
        let network = Network::new(&[PIXELS, 24, 16, CLASSES], &mut random);
        let (_, gradient) = network.loss_and_gradient(&test);
        for layer in 0..network.layers.len() {
            // A random direction within one layer, weights and biases together.
            let mut direction = Network::new(&[PIXELS, 24, 16, CLASSES], &mut random).layers;
            for (index, way) in direction.iter_mut().enumerate() {
                let size = if index == layer { 1.0 } else { 0.0 };
                way.bias.mapv_inplace(|_| random.normal() * 0.1 * size);
                way.weight *= size;
            }
            let slope: f32 = gradient
                .iter()
                .zip(&direction)
                .map(|(g, d)| (&g.weight * &d.weight).sum() + (&g.bias * &d.bias).sum())
                .sum();
            let length = 1e-2;
            let difference = moved(&network, &direction, length) - moved(&network, &direction, -length);
            let measured = difference / (2.0 * f64::from(length));
            let error = (measured - f64::from(slope)).abs() / measured.abs();
            assert!(error < 2e-2, "layer {layer}: slope {slope}, measured {measured}");
        }
    }

    #[test]
    fn certain_and_right_has_no_loss() {
        let mut logits = Array2::from_elem((1, CLASSES), -50.0f32);
        logits[[0, 3]] = 50.0;
        assert!(softmax(&mut logits, &[3]) < 1e-6);
        assert!((logits.sum() - 1.0).abs() < 1e-6);
    }
}

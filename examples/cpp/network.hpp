/* Affine maps with ReLU between them, softmax cross-entropy at the end: forward and backward in plain loops. */
#ifndef NETWORK_HPP
#define NETWORK_HPP

#include "digits.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <random>
#include <vector>

/** One affine map y = x W + b, and its gradient. */
struct Layer {
    std::size_t inputs, outputs;
    std::vector<float> weight, bias, weight_grad, bias_grad;

    Layer(std::size_t from, std::size_t to, std::mt19937 &random)
        : inputs(from), outputs(to), weight(from * to), bias(to), weight_grad(from * to), bias_grad(to) {
        // He's initialisation.
        std::normal_distribution<float> normal(0.0f, std::sqrt(2.0f / static_cast<float>(from)));
        std::generate(weight.begin(), weight.end(), [&] { return normal(random); });
    }
};

/** The network; the last layer gives the logits. */
struct Network {
    std::vector<Layer> layers;

    Network(const std::vector<std::size_t> &widths, std::mt19937 &random) {
        for (std::size_t i = 0; i + 1 < widths.size(); i++) layers.emplace_back(widths[i], widths[i + 1], random);
    }

    /** Mean loss of `count` images, whose gradient goes to the layers. */
    double backward(const Digits &data, const std::size_t *rows, std::size_t count) {
        for (Layer &layer : layers) {
            std::fill(layer.weight_grad.begin(), layer.weight_grad.end(), 0.0f);
            std::fill(layer.bias_grad.begin(), layer.bias_grad.end(), 0.0f);
        }
        double loss = 0.0;
        for (std::size_t i = 0; i < count; i++) {
            const std::vector<std::vector<float>> units = forward(data, rows[i]);
            std::vector<float> delta = units.back();
            const auto label = static_cast<std::size_t>(data.labels[rows[i]]);
            loss -= std::log(softmax(delta)[label]);
            // d loss / d logits = (probability - one-hot) / count
            delta[label] -= 1.0f;
            for (float &d : delta) d /= static_cast<float>(count);
            for (std::size_t at = layers.size(); at-- > 0;) delta = back(layers[at], units[at], delta, at > 0);
        }
        return loss / static_cast<double>(count);
    }

    /** Fraction of the images whose largest logit is the right one. */
    double accuracy(const Digits &data) const {
        std::size_t right = 0;
        for (std::size_t row = 0; row < data.size(); row++) {
            const std::vector<float> logits = forward(data, row).back();
            const auto best = std::max_element(logits.begin(), logits.end()) - logits.begin();
            right += best == data.labels[row] ? 1 : 0;
        }
        return static_cast<double>(right) / static_cast<double>(data.size());
    }

  private:
    /** What each layer reads, and the logits behind the last. */
    std::vector<std::vector<float>> forward(const Digits &data, std::size_t row) const {
        const float *image = data.images.data() + row * Digits::pixels;
        std::vector<std::vector<float>> units = {std::vector<float>(image, image + Digits::pixels)};
        for (std::size_t at = 0; at < layers.size(); at++) {
            const Layer &layer = layers[at];
            std::vector<float> out = layer.bias;
            for (std::size_t i = 0; i < layer.inputs; i++) {
                const float in = units.back()[i];
                for (std::size_t o = 0; o < layer.outputs; o++) out[o] += in * layer.weight[i * layer.outputs + o];
            }
            if (at + 1 < layers.size()) {
                for (float &unit : out) unit = std::max(unit, 0.0f);
            }
            units.push_back(std::move(out));
        }
        return units;
    }

    /** Adds to the layer's gradient; gives the gradient of its input, behind a ReLU if `below` is one. */
    static std::vector<float> back(Layer &layer, const std::vector<float> &input, const std::vector<float> &delta,
                                   bool below) {
        std::vector<float> result(layer.inputs, 0.0f);
        for (std::size_t o = 0; o < layer.outputs; o++) layer.bias_grad[o] += delta[o];
        for (std::size_t i = 0; i < layer.inputs; i++) {
            for (std::size_t o = 0; o < layer.outputs; o++) {
                layer.weight_grad[i * layer.outputs + o] += input[i] * delta[o];
                result[i] += layer.weight[i * layer.outputs + o] * delta[o];
            }
            if (below && input[i] <= 0.0f) result[i] = 0.0f;
        }
        return result;
    }

    /** Turns logits into probabilities. */
    static const std::vector<float> &softmax(std::vector<float> &logits) {
        const float largest = *std::max_element(logits.begin(), logits.end());
        float total = 0.0f;
        for (float &logit : logits) total += logit = std::exp(logit - largest);
        for (float &logit : logits) logit /= total;
        return logits;
    }
};

#endif

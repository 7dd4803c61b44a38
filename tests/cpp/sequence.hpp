/* A model with a deterministic sequence of gradients, and a run of it through foam.h alone: what every other way to
   drive the library must reproduce bit for bit. */
#ifndef SEQUENCE_HPP
#define SEQUENCE_HPP

#include "check.hpp"

#include <cmath>
#include <cstring>
#include <vector>

/* Parameters and gradients of type T. */
template <class T> struct Sequence {
    std::vector<std::string> names = {"matrix", "vector", "scalar", "tall"};
    std::vector<foam::Shape> shapes = {{6, 4}, {5}, {}, {12, 3}};
    std::vector<std::vector<T>> params, grads;

    Sequence() {
        for (const foam::Shape &shape : shapes) {
            size_t elements = 1;
            for (int64_t size : shape) elements *= static_cast<size_t>(size);
            params.emplace_back(elements);
            grads.emplace_back(elements);
            for (T &value : params.back()) value = static_cast<T>(uniform());
        }
    }

    size_t size() const { return names.size(); }

    /* The next gradients: noise whose directions turn slowly, so that every branch of the policy is seen. */
    void advance() {
        time_ += 1;
        for (size_t p = 0; p < size(); p++) {
            for (size_t at = 0; at < grads[p].size(); at++) {
                const double turn = std::sin(0.05 * time_ + static_cast<double>(at % 7));
                grads[p][at] = static_cast<T>(uniform() * turn + 0.1 * static_cast<double>(params[p][at]));
            }
        }
    }

    std::vector<foam::Param> described() const {
        std::vector<foam::Param> result;
        for (size_t p = 0; p < size(); p++) result.emplace_back(names[p], shapes[p], foam::dtype_of<T>::value);
        return result;
    }
    std::vector<foam::Tensor> param_tensors() { return tensors(params); }
    std::vector<foam::Tensor> grad_tensors() { return tensors(grads); }

    bool operator==(const Sequence &other) const {
        for (size_t p = 0; p < size(); p++) {
            if (std::memcmp(params[p].data(), other.params[p].data(), params[p].size() * sizeof(T)) != 0) return false;
        }
        return true;
    }
    bool operator!=(const Sequence &other) const { return !(*this == other); }

  private:
    std::vector<foam::Tensor> tensors(std::vector<std::vector<T>> &data) {
        std::vector<foam::Tensor> result;
        for (size_t p = 0; p < size(); p++) result.emplace_back(data[p].data(), shapes[p]);
        return result;
    }

    /* In [-1, 1): a linear congruence is random enough here. */
    double uniform() {
        random_ = random_ * 6364136223846793005u + 1442695040888963407u;
        return static_cast<double>(random_ >> 11) / static_cast<double>(uint64_t{1} << 52) - 1.0;
    }

    uint64_t random_ = 7;
    double time_ = 0.0;
};

/* Options that show every branch within a few steps, set by name so that each binding can take them. */
inline const std::vector<std::pair<std::string, std::string>> sequence_options = {
    {"check_period", "3"}, {"max_factor_dim", "8"}, {"merge_dims", "false"}, {"num_threads", "2"},
    {"lr", "0.05"},        {"epsilon", "1e-6"},     {"epsilon_max", "1e-2"},
};

/* A sequence driven by foam.h alone. */
template <class T> class PlainRun {
  public:
    PlainRun() {
        foam_config config;
        done(foam_config_init(&config, sizeof config, "reference", &error_));
        for (const auto &[key, value] : sequence_options) {
            done(foam_config_set(&config, key.c_str(), value.c_str(), &error_));
        }
        std::vector<foam_param> params(model.size());
        for (size_t p = 0; p < model.size(); p++) {
            done(foam_param_init(&params[p], sizeof params[p], &error_));
            params[p].name = model.names[p].c_str();
            params[p].shape = model.shapes[p].data();
            params[p].ndim = static_cast<int32_t>(model.shapes[p].size());
            params[p].dtype.bits = 8 * sizeof(T);
        }
        done(foam_create(&config, params.data(), params.size(), &optimizer_, &error_));
    }
    ~PlainRun() { foam_destroy(optimizer_); }
    PlainRun(const PlainRun &) = delete;
    PlainRun &operator=(const PlainRun &) = delete;

    /* One step; `without` has no gradient. */
    void step(double lr = std::nan(""), size_t without = SIZE_MAX) {
        std::vector<foam_tensor> params, grads;
        model.advance();
        for (size_t p = 0; p < model.size(); p++) {
            foam_tensor tensor = {};
            tensor.device.device_type = FOAM_DEVICE_CPU;
            tensor.ndim = static_cast<int32_t>(model.shapes[p].size());
            tensor.dtype = {FOAM_DTYPE_FLOAT, 8 * sizeof(T), 1};
            tensor.shape = model.shapes[p].data();
            tensor.data = model.params[p].data();
            params.push_back(tensor);
            tensor.data = p == without ? nullptr : model.grads[p].data();
            grads.push_back(tensor);
        }
        foam_step_args args;
        done(foam_step_args_init(&args, sizeof args, &error_));
        args.count = model.size();
        args.params = params.data();
        args.grads = grads.data();
        args.lr = lr;
        done(foam_step(optimizer_, &args, &error_));
    }

    std::vector<uint8_t> state() {
        size_t size = 0;
        done(foam_save_memory(optimizer_, nullptr, 0, &size, &error_));
        std::vector<uint8_t> bytes(size);
        done(foam_save_memory(optimizer_, bytes.data(), size, &size, &error_));
        return bytes;
    }
    void save(const std::string &path) { done(foam_save_file(optimizer_, path.c_str(), &error_)); }

    Sequence<T> model;

  private:
    void done(foam_status status) {
        if (!EXPECT(status == FOAM_OK)) std::fprintf(stderr, "    %s\n", error_.message), std::exit(1);
    }

    foam_error error_ = FOAM_ERROR_INIT;
    foam_optimizer *optimizer_ = nullptr;
};

#endif

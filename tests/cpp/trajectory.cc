/* Steps parameters through foam.hpp, by the script that tests/python/trajectory.c describes.
   Usage: trajectory SCRIPT RESULT */
#include <foam.hpp>

#include <cstdio>
#include <fstream>
#include <iostream>
#include <sstream>

using Bytes = std::vector<char>;

static Bytes read(std::istream &source, size_t size) {
    Bytes bytes(size);
    if (!source.read(bytes.data(), static_cast<std::streamsize>(size)))
        throw std::runtime_error("the script is too short");
    return bytes;
}

static void follow(std::istream &script, std::ostream &result) {
    foam::Config config("reference");
    std::vector<foam::Param> described;
    std::string load, save;
    int bits = 32, steps = 0;
    for (std::string text, word; std::getline(script, text) && text != "data";) {
        std::istringstream line(text);
        line >> word;
        if (word == "preset") {
            line >> word;
            config = foam::Config(word);
        } else if (word == "option") {
            std::string key, value;
            line >> key >> value;
            config.set(key, value);
        } else if (word == "param") {
            foam::Param param("", {});
            line >> param.name >> param.root;
            for (int64_t size; line >> size;) param.shape.push_back(size);
            described.push_back(param);
        } else if (word == "bits") {
            line >> bits;
        } else if (word == "steps") {
            line >> steps;
        } else if (word == "load") {
            line >> load;
        } else if (word == "save") {
            line >> save;
        } else {
            throw std::runtime_error("the script has an unknown line: " + text);
        }
    }
    const foam::DType dtype = bits == 64 ? foam::DType::f64 : foam::DType::f32;
    std::vector<Bytes> weights;
    std::vector<foam::Tensor> params;
    for (foam::Param &param : described) {
        size_t size = static_cast<size_t>(bits) / 8;
        for (int64_t side : param.shape) size *= static_cast<size_t>(side);
        weights.push_back(read(script, size));
        params.emplace_back(static_cast<void *>(weights.back().data()), dtype, param.shape);
        param.dtype = foam::raw(dtype);
    }

    foam::Optimizer optimizer(config, described);
    if (!load.empty()) optimizer.load_file(load);
    for (int step = 0; step < steps; step++) {
        std::vector<Bytes> held;
        std::vector<foam::Tensor> grads;
        for (size_t p = 0; p < params.size(); p++) {
            held.push_back(read(script, weights[p].size()));
            grads.emplace_back(static_cast<const void *>(held.back().data()), dtype, described[p].shape);
        }
        optimizer.step(params, grads);
    }
    if (!save.empty()) optimizer.save_file(save);
    for (const Bytes &bytes : weights) result.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

int main(int count, char **arguments) {
    if (count != 3) return std::fprintf(stderr, "usage: trajectory SCRIPT RESULT\n"), 2;
    try {
        std::ifstream script(arguments[1], std::ios::binary);
        std::ofstream result(arguments[2], std::ios::binary);
        follow(script, result);
        return result.flush() ? 0 : 1;
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}

/* The UCI digits of examples/data (source, licence and format: the README there), for both C++ examples. */
#ifndef DIGITS_HPP
#define DIGITS_HPP

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

/** Images, 64 pixels in [0, 1] a row, and their labels. */
struct Digits {
    static constexpr std::size_t pixels = 64;
    static constexpr std::size_t classes = 10;

    std::vector<float> images;
    std::vector<int64_t> labels;

    std::size_t size() const { return labels.size(); }

    /** Reads the file; every fifth image goes to `test`, the others to `train`. */
    static void read(const std::string &path, Digits &train, Digits &test) {
        constexpr std::size_t bits = 5, record = 1 + pixels * bits / 8;
        std::ifstream file(path, std::ios::binary);
        const std::vector<char> bytes((std::istreambuf_iterator<char>(file)), {});
        if (bytes.empty() || bytes.size() % record != 0) {
            throw std::runtime_error("'" + path + "' is not examples/data/digits.bin; give its path as first argument");
        }
        for (std::size_t start = 0; start < bytes.size(); start += record) {
            Digits &part = start / record % 5 == 0 ? test : train;
            const auto byte = [&](std::size_t at) -> unsigned {
                return at < record ? static_cast<unsigned char>(bytes[start + at]) : 0;
            };
            part.labels.push_back(bytes[start]);
            for (std::size_t pixel = 0; pixel < pixels; pixel++) {
                // Five bits may straddle two bytes.
                const std::size_t bit = pixel * bits, at = 1 + bit / 8;
                const unsigned value = ((byte(at) | byte(at + 1) << 8) >> (bit % 8)) & 31;
                part.images.push_back(static_cast<float>(value) / 16.0f);
            }
        }
    }
};

#endif

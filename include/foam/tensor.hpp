/* Views of tensors, and what a parameter is. Part of foam.hpp. */

#ifndef FOAM_TENSOR_HPP
#define FOAM_TENSOR_HPP

#include "enums.hpp"

#include <cstring>
#include <initializer_list>
#include <iterator>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace foam {
inline namespace FOAM_HPP_MODE {

/** An element of brain floating point, as its 16 bits. */
struct bf16 {
    uint16_t bits; /**< The upper half of an f32. */
};

/** An element of IEEE half precision, as its 16 bits. */
struct f16 {
    uint16_t bits; /**< Sign, 5 bits of exponent, 10 of fraction. */
};

/** The element type of a C++ type; specialise it for your own 16-bit floats. */
template <class T> struct dtype_of;
/** float is f32. */
template <> struct dtype_of<float> : std::integral_constant<DType, DType::f32> {};
/** double is f64. */
template <> struct dtype_of<double> : std::integral_constant<DType, DType::f64> {};
/** foam::f16 is f16. */
template <> struct dtype_of<f16> : std::integral_constant<DType, DType::f16> {};
/** foam::bf16 is bf16. */
template <> struct dtype_of<bf16> : std::integral_constant<DType, DType::bf16> {};

/** Sizes of a tensor's dimensions; empty for a scalar. */
using Shape = std::vector<int64_t>;

/** A view of somebody's elements: they must outlive every call that it is given to, not the view. */
class Tensor {
  public:
    /** No tensor: a parameter whose gradient is this takes no part in the step. */
    Tensor() noexcept : tensor_{nullptr, {FOAM_DEVICE_CPU, 0}, 0, foam::raw(DType::f32), nullptr, nullptr, 0} {}
    /** Row-major contiguous elements in host memory. A view of const elements serves as a gradient only. */
    template <class T, DType dtype = dtype_of<std::remove_const_t<T>>::value>
    Tensor(T *data, Shape shape) : Tensor(data, dtype, std::move(shape)) {}
    /** Row-major contiguous elements of a type and a place that are known at run time only. */
    Tensor(void *data, DType dtype, Shape shape, foam_device device = {FOAM_DEVICE_CPU, 0})
        : tensor_{data, device, static_cast<int32_t>(shape.size()), foam::raw(dtype), nullptr, nullptr, 0},
          shape_(std::move(shape)) {}
    /** The same, to be read only. */
    Tensor(const void *data, DType dtype, Shape shape, foam_device device = {FOAM_DEVICE_CPU, 0})
        : Tensor(const_cast<void *>(data), dtype, std::move(shape), device) {
        read_only_ = true;
    }
    /** What a `DLTensor` (or a foam_tensor) describes; its shape and strides are copied. */
    template <class DLTensor> static Tensor from_dlpack(const DLTensor *source) {
        static_assert(sizeof(DLTensor) == sizeof(foam_tensor) && std::is_trivially_copyable_v<DLTensor>,
                      "DLPack's DLTensor, or foam_tensor");
        Tensor result;
        std::memcpy(&result.tensor_, source, sizeof result.tensor_);
        const foam_tensor &own = result.tensor_;
        if (own.ndim > 0 && own.shape) result.shape_.assign(own.shape, own.shape + own.ndim);
        if (own.ndim > 0 && own.strides) result.strides_.assign(own.strides, own.strides + own.ndim);
        return result;
    }

    /** foam.h's struct; its shape and strides are this object's and live as long as it does. */
    foam_tensor raw() const noexcept {
        foam_tensor result = tensor_;
        // The library only reads through these two pointers.
        result.shape = const_cast<int64_t *>(shape_.data());
        result.strides = strides_.empty() ? nullptr : const_cast<int64_t *>(strides_.data());
        return result;
    }
    /** Whether it may not be written. */
    bool read_only() const noexcept { return read_only_; }
    /** Sizes of the dimensions. */
    const Shape &shape() const noexcept { return shape_; }

  private:
    foam_tensor tensor_;
    Shape shape_;
    Shape strides_;
    bool read_only_ = false;
};

/** The part of a parameter that this rank holds: `length` places of `axis`, from `start` on. */
struct Shard {
    int64_t axis = 0;   /**< Axis of the whole parameter's shape. */
    int64_t start = 0;  /**< First place. */
    int64_t length = 0; /**< Places; 0 for none. */
};

/** One parameter of the model. */
struct Param {
    /** A parameter of this name, shape and type; an empty name means "param_<index>". */
    Param(std::string called, Shape sizes, DType type = DType::f32)
        : name(std::move(called)), shape(std::move(sizes)), dtype(foam::raw(type)) {}
    /** A parameter with the shape and the type of `tensor`. A template, so that `{}` is the shape of a scalar. */
    template <class T, std::enable_if_t<std::is_same_v<T, Tensor>, int> = 0>
    Param(std::string called, const T &tensor)
        : name(std::move(called)), shape(tensor.shape()), dtype(tensor.raw().dtype) {}

    std::string name;                /**< Unique; checkpoints are keyed by it. */
    Shape shape;                     /**< Sizes of the dimensions. */
    foam_dtype dtype;                /**< Type of an element. */
    double lr_scale = 1.0;           /**< Multiplies the learning rate. */
    double weight_decay_scale = 1.0; /**< Multiplies the weight decay; 0 switches it off. */
    double root = 0.0;               /**< p of the inverse root; 0 means the configuration's. */
    bool grafting_only = false;      /**< No preconditioner: the grafted method's step alone. */
    std::optional<Shard> shard = {}; /**< What this rank holds of it, with a Comm; none for all of it. */
};

/** A view of `size()` objects in a row: a vector, an array, a braced list, or a pointer and a count. */
template <class T> class Span {
  public:
    /** `size` objects from `data` on. */
    constexpr Span(const T *data, size_t size) noexcept : data_(data), size_(size) {}
    /** The elements of a vector. */
    Span(const std::vector<T> &items) noexcept : Span(items.data(), items.size()) {}
    /** The elements of an array. */
    template <size_t N> constexpr Span(const T (&items)[N]) noexcept : Span(items, N) {}
    /** The elements of a braced list, which lives until the end of the call that it is written in. */
    constexpr Span(std::initializer_list<T> items) noexcept : Span(std::data(items), items.size()) {}

    /** The first object. */
    constexpr const T *data() const noexcept { return data_; }
    /** How many there are. */
    constexpr size_t size() const noexcept { return size_; }
    /** The first object. */
    constexpr const T *begin() const noexcept { return data_; }
    /** Behind the last object. */
    constexpr const T *end() const noexcept { return data_ + size_; }

  private:
    const T *data_;
    size_t size_;
};

} // namespace FOAM_HPP_MODE
} // namespace foam

#endif /* FOAM_TENSOR_HPP */

/* As much of CUDA's driver as a small trainer needs: a device, a stream, buffers. Host C++ only, no nvcc. */
#ifndef DEVICE_HPP
#define DEVICE_HPP

#include <cuda.h>

#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

/** Throws the driver's own words if a call failed. */
inline void check(CUresult status, const char *call) {
    if (status == CUDA_SUCCESS) return;
    const char *text = nullptr;
    if (cuGetErrorString(status, &text) != CUDA_SUCCESS || !text) text = "unknown error";
    throw std::runtime_error(std::string(call) + ": " + text + " (" + std::to_string(int(status)) + ")");
}
#define CHECK(call) check(call, #call)

/** A device whose primary context, the one that libfoam and the frameworks share, is this thread's current one. */
class Device {
  public:
    explicit Device(int ordinal) {
        CHECK(cuInit(0));
        CHECK(cuDeviceGet(&device_, ordinal));
        CHECK(cuDevicePrimaryCtxRetain(&context_, device_));
        CHECK(cuCtxSetCurrent(context_));
    }
    Device(const Device &) = delete;
    Device &operator=(const Device &) = delete;
    ~Device() {
        cuCtxSetCurrent(nullptr);
        cuDevicePrimaryCtxRelease(device_);
    }

    std::string name() const {
        char text[256] = {};
        CHECK(cuDeviceGetName(text, int(sizeof text), device_));
        return text;
    }

  private:
    CUdevice device_ = 0;
    CUcontext context_ = nullptr;
};

/** A stream of our own. */
class Stream {
  public:
    Stream() { CHECK(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING)); }
    Stream(const Stream &) = delete;
    Stream &operator=(const Stream &) = delete;
    ~Stream() { cuStreamDestroy(stream_); }

    CUstream get() const { return stream_; }
    void synchronize() const { CHECK(cuStreamSynchronize(stream_)); }

  private:
    CUstream stream_ = nullptr;
};

/** Device memory for the elements of a vector. */
class Buffer {
  public:
    explicit Buffer(const std::vector<float> &host) : bytes_(host.size() * sizeof(float)) {
        CHECK(cuMemAlloc(&address_, bytes_));
    }
    Buffer(Buffer &&other) noexcept : address_(other.address_), bytes_(other.bytes_) { other.address_ = 0; }
    Buffer &operator=(Buffer &&) = delete;
    ~Buffer() {
        if (address_) cuMemFree(address_);
    }

    /** The address, as libfoam takes it. */
    void *data() const { return reinterpret_cast<void *>(address_); }
    /** Enqueues a copy from the host. */
    void upload(const std::vector<float> &host, const Stream &stream) const {
        CHECK(cuMemcpyHtoDAsync(address_, host.data(), bytes_, stream.get()));
    }
    /** Enqueues a copy to the host, which is there when the stream has been synchronized. */
    void download(std::vector<float> &host, const Stream &stream) const {
        CHECK(cuMemcpyDtoHAsync(host.data(), address_, bytes_, stream.get()));
    }

  private:
    CUdeviceptr address_ = 0;
    std::size_t bytes_;
};

#endif

/* The C and C++ compilers lay the structs out as include/foam.layout says, and foam_tensor as DLPack does. */
#include <foam.h>

#ifdef __cplusplus
#define ASSERT(condition) static_assert(condition, #condition)
#else
#define ASSERT(condition) _Static_assert(condition, #condition)
#endif

#define STRUCT(name, size, alignment) ASSERT(sizeof(name) == size && ALIGNMENT(name) == alignment);
#define FIELD(name, field, offset, size)                                                                     \
    ASSERT(offsetof(name, field) == offset && sizeof(((name *)0)->field) == size);

#ifdef __cplusplus
#define ALIGNMENT(name) alignof(name)
#else
#define ALIGNMENT(name) _Alignof(name)
#endif

#include <foam.layout>

/* DLPack, written down from its specification. */
typedef enum { kDLCPU = 1, kDLCUDA = 2, kDLCUDAHost = 3, kDLCUDAManaged = 13 } DLDeviceType;
typedef enum { kDLInt = 0, kDLUInt = 1, kDLFloat = 2, kDLBfloat = 4 } DLDataTypeCode;

typedef struct {
    DLDeviceType device_type;
    int32_t device_id;
} DLDevice;

typedef struct {
    uint8_t code;
    uint8_t bits;
    uint16_t lanes;
} DLDataType;

typedef struct {
    void *data;
    DLDevice device;
    int32_t ndim;
    DLDataType dtype;
    int64_t *shape;
    int64_t *strides;
    uint64_t byte_offset;
} DLTensor;

#define SAME(theirs, ours, field)                                                                            \
    ASSERT(offsetof(theirs, field) == offsetof(ours, field) &&                                               \
           sizeof(((theirs *)0)->field) == sizeof(((ours *)0)->field))

ASSERT(sizeof(DLTensor) == sizeof(foam_tensor));
SAME(DLTensor, foam_tensor, data);
SAME(DLTensor, foam_tensor, device);
SAME(DLTensor, foam_tensor, ndim);
SAME(DLTensor, foam_tensor, dtype);
SAME(DLTensor, foam_tensor, shape);
SAME(DLTensor, foam_tensor, strides);
SAME(DLTensor, foam_tensor, byte_offset);
ASSERT(sizeof(DLDevice) == sizeof(foam_device));
SAME(DLDevice, foam_device, device_type);
SAME(DLDevice, foam_device, device_id);
ASSERT(sizeof(DLDataType) == sizeof(foam_dtype));
SAME(DLDataType, foam_dtype, code);
SAME(DLDataType, foam_dtype, bits);
SAME(DLDataType, foam_dtype, lanes);

int main(void) {
    int same = (int)kDLCPU == FOAM_DEVICE_CPU && (int)kDLCUDA == FOAM_DEVICE_CUDA &&
               (int)kDLCUDAHost == FOAM_DEVICE_CUDA_HOST && (int)kDLCUDAManaged == FOAM_DEVICE_CUDA_MANAGED &&
               (int)kDLFloat == FOAM_DTYPE_FLOAT && (int)kDLBfloat == FOAM_DTYPE_BFLOAT;
    return same ? 0 : 1;
}

# Trains with libfoam through ctypes alone: no package, no NumPy.
import os
from ctypes import *

def struct(**fields):
    return type("struct", (Structure,), {"_fields_": list(fields.items())})

Tensor = struct(data=c_void_p, device=c_int32 * 2, ndim=c_int32, dtype=c_uint8 * 4,
                shape=c_void_p, strides=c_void_p, byte_offset=c_uint64)  # DLPack's DLTensor
Param = struct(struct_size=c_uint32, flags=c_uint32, name=c_char_p, shape=c_void_p, ndim=c_int32,
               dtype=c_uint8 * 4)
StepArgs = struct(struct_size=c_uint32, flags=c_uint32, count=c_size_t, params=POINTER(Tensor),
                  grads=POINTER(Tensor))
Error = struct(struct_size=c_uint32, code=c_int32, param=c_int64, axis=c_int32, native=c_int32,
               message=c_char * 1000)
foam, error = CDLL(os.environ.get("FOAM_LIBRARY", "libfoam.so")), Error(sizeof(Error))

def call(name, *arguments):
    if getattr(foam, name)(*arguments, byref(error)):
        raise RuntimeError(error.message.decode())

config, optimizer, param, args = create_string_buffer(4096), c_void_p(), Param(), StepArgs()
shape, w, g = (c_int64 * 2)(8, 4), (c_float * 32)(*[1.5] * 32), (c_float * 32)()
call("foam_config_init", config, c_size_t(4096), None)
call("foam_config_set", config, b"lr", b"0.01")
call("foam_param_init", byref(param), c_size_t(sizeof(param)))
param.name, param.shape, param.ndim = b"weight", addressof(shape), 2
call("foam_create", config, byref(param), c_size_t(1), byref(optimizer))
params, grads = (Tensor(addressof(x), (1, 0), 2, (2, 32, 1, 0), addressof(shape)) for x in (w, g))
call("foam_step_args_init", byref(args), c_size_t(sizeof(args)))
args.count, args.params, args.grads = 1, pointer(params), pointer(grads)
for step in range(300):
    g[:] = w[:]  # the loss is half the squared norm
    call("foam_step", optimizer, byref(args))
foam.foam_destroy(optimizer)
print("w[0]", w[0])

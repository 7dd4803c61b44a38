# Trains with libfoam through ctypes alone: no package, no NumPy.
import os
from ctypes import *

class Tensor(Structure):  # foam_tensor, which is DLPack's DLTensor
    _fields_ = [("data", c_void_p), ("device", c_int32 * 2), ("ndim", c_int32),
                ("dtype", c_uint8 * 4), ("shape", c_void_p), ("strides", c_void_p),
                ("byte_offset", c_uint64)]

class Param(Structure):  # the beginning of foam_param; the library completes it
    _fields_ = [("struct_size", c_uint32), ("flags", c_uint32), ("name", c_char_p),
                ("shape", c_void_p), ("ndim", c_int32), ("dtype", c_uint8 * 4)]

class StepArgs(Structure):  # the beginning of foam_step_args
    _fields_ = [("struct_size", c_uint32), ("flags", c_uint32), ("count", c_size_t),
                ("params", POINTER(Tensor)), ("grads", POINTER(Tensor))]

class Error(Structure):  # foam_error
    _fields_ = [("struct_size", c_uint32), ("code", c_int32), ("param", c_int64),
                ("axis", c_int32), ("native", c_int32), ("message", c_char * 1000)]

foam, error = CDLL(os.environ.get("FOAM_LIBRARY", "libfoam.so")), Error(sizeof(Error))

def call(name, *arguments):
    if getattr(foam, name)(*arguments, byref(error)):
        raise RuntimeError(error.message.decode())

config, optimizer, param, args = create_string_buffer(4096), c_void_p(), Param(), StepArgs()
shape, w, g = (c_int64 * 2)(8, 4), (c_float * 32)(*[1.5] * 32), (c_float * 32)()
call("foam_config_init", config, c_size_t(4096), None)
for key, value in {"lr": "0.01", "tau": "0.5"}.items():
    call("foam_config_set", config, key.encode(), value.encode())
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

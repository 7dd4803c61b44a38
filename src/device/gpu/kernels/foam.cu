// The kernels of libfoam: what cuBLAS and cuSOLVER do not have. Compiled ahead of time to foam.ptx by
// build.py; the host side is ../step.rs and ../factor.rs.
#include "factor.cuh"
#include "step.cuh"
